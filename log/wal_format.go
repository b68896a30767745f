package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The write-ahead log is a ring of files. Each holds, in blocks, a header and then frames; a file is written once per
// generation, from front to back, and never shortened.
//
// Header, version 1, big endian, in block 0, the rest of which is zero:
//
//	0  magic "MRWH"
//	4  CRC-32C of bytes 8..63
//	8  version u16, 2 bytes zero
//	12 block size u32
//	16 generation u64
//	24 nonce, 16 random bytes
//	40 sequence number of the first frame u64
//	48 oldest live generation u64, as known when the header was written
//	56 8 bytes zero
//
// Frame, at the start of a block, padded to whole blocks:
//
//	0  magic "MRWF"
//	4  CRC-32C of bytes 8..47 and all records (before the data, never behind it: W10)
//	8  generation u64
//	16 nonce
//	32 sequence number u64
//	40 bytes of all records u32
//	44 number of records u32
//	48 records
//
// Record:
//
//	0  log id u64
//	8  base offset i64
//	16 next offset i64 (exclusive)
//	24 base offset of the segment i64
//	32 durable end of the partition when the frame was built i64
//	40 position in the segment u32
//	44 bytes of the batches u32
//	48 record batches
const (
	walHeaderMagic = 0x4d525748 // "MRWH"
	walFrameMagic  = 0x4d525746 // "MRWF"
	walVersion     = 1

	walHeaderBytes     = 64
	walFrameHeadBytes  = 48
	walRecordHeadBytes = 48
	walNonceBytes      = 16
	walMinBlockBytes   = 64
	walBlockBytes      = 4096
	walMaxFrameBytes   = 8 << 20
	walMaxBlockBytes   = 1 << 20
)

type walNonce [walNonceBytes]byte

// walHeader is block 0 of a WAL file.
type walHeader struct {
	blockBytes    int
	generation    uint64
	nonce         walNonce
	firstSequence uint64
	// oldest is the oldest live generation when this one began.
	oldest uint64
}

func (h *walHeader) encode() []byte {
	b := make([]byte, h.blockBytes)
	binary.BigEndian.PutUint32(b[0:], walHeaderMagic)
	binary.BigEndian.PutUint16(b[8:], walVersion)
	binary.BigEndian.PutUint32(b[12:], uint32(h.blockBytes))
	binary.BigEndian.PutUint64(b[16:], h.generation)
	copy(b[24:], h.nonce[:])
	binary.BigEndian.PutUint64(b[40:], h.firstSequence)
	binary.BigEndian.PutUint64(b[48:], h.oldest)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:walHeaderBytes], castagnoli))
	return b
}

var errWALHeader = errors.New("not a header of the write-ahead log")

func decodeWALHeader(b []byte) (walHeader, error) {
	bad := func(format string, args ...any) (walHeader, error) {
		return walHeader{}, fmt.Errorf("%w: %s", errWALHeader, fmt.Sprintf(format, args...))
	}
	if len(b) < walHeaderBytes {
		return bad("%d bytes", len(b))
	}
	if m := binary.BigEndian.Uint32(b); m != walHeaderMagic {
		return bad("magic %08x", m)
	}
	if want, got := binary.BigEndian.Uint32(b[4:]), crc32.Checksum(b[8:walHeaderBytes], castagnoli); want != got {
		return bad("checksum %08x, computed %08x", want, got)
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != walVersion {
		return bad("version %d is unknown to this release", v)
	}
	h := walHeader{
		blockBytes:    int(binary.BigEndian.Uint32(b[12:])),
		generation:    binary.BigEndian.Uint64(b[16:]),
		nonce:         walNonce(b[24:40]),
		firstSequence: binary.BigEndian.Uint64(b[40:]),
		oldest:        binary.BigEndian.Uint64(b[48:]),
	}
	if h.blockBytes < walMinBlockBytes || h.blockBytes > walMaxBlockBytes {
		return bad("blocks of %d bytes", h.blockBytes)
	}
	if h.generation == 0 || h.oldest > h.generation {
		return bad("generation %d with oldest %d", h.generation, h.oldest)
	}
	return h, nil
}

// walRecord is one run of whole batches of one partition.
type walRecord struct {
	logID uint64
	// base is the first offset, next the offset behind the last.
	base, next int64
	// segmentBase names the segment, position the first byte in it (W3).
	segmentBase, position int64
	// durableEnd is that of the partition when the frame was built: recovery must reach it (wal.md 4 step 6).
	durableEnd int64
	// data is the batches, as written to the segment. more are further pieces of them, only while a frame is built.
	data []byte
	more [][]byte
}

// length is the size of the batches in bytes.
func (r *walRecord) length() int {
	n := len(r.data)
	for _, p := range r.more {
		n += len(p)
	}
	return n
}

func (r *walRecord) putHead(b []byte) {
	binary.BigEndian.PutUint64(b[0:], r.logID)
	binary.BigEndian.PutUint64(b[8:], uint64(r.base))
	binary.BigEndian.PutUint64(b[16:], uint64(r.next))
	binary.BigEndian.PutUint64(b[24:], uint64(r.segmentBase))
	binary.BigEndian.PutUint64(b[32:], uint64(r.durableEnd))
	binary.BigEndian.PutUint32(b[40:], uint32(r.position))
	binary.BigEndian.PutUint32(b[44:], uint32(r.length()))
}

// decodeWALRecord reads the record at the start of b and returns the rest. data aliases b.
func decodeWALRecord(b []byte) (r walRecord, rest []byte, err error) {
	if len(b) < walRecordHeadBytes {
		return r, nil, fmt.Errorf("%w: record in %d bytes of a frame", ErrCorrupt, len(b))
	}
	r = walRecord{
		logID:       binary.BigEndian.Uint64(b[0:]),
		base:        int64(binary.BigEndian.Uint64(b[8:])),
		next:        int64(binary.BigEndian.Uint64(b[16:])),
		segmentBase: int64(binary.BigEndian.Uint64(b[24:])),
		durableEnd:  int64(binary.BigEndian.Uint64(b[32:])),
		position:    int64(binary.BigEndian.Uint32(b[40:])),
	}
	n := int64(binary.BigEndian.Uint32(b[44:]))
	if n > int64(len(b)-walRecordHeadBytes) || r.base < 0 || r.next <= r.base || r.segmentBase < 0 || r.segmentBase > r.base {
		return r, nil, fmt.Errorf("%w: record of %d bytes, offsets %d to %d, segment %d", ErrCorrupt, n, r.base, r.next, r.segmentBase)
	}
	r.data = b[walRecordHeadBytes : walRecordHeadBytes+n]
	return r, b[walRecordHeadBytes+n:], nil
}

// walFrameHead is the head of a frame.
type walFrameHead struct {
	generation uint64
	nonce      walNonce
	sequence   uint64
	bodyBytes  int
	records    int
	crc        uint32
}

// decodeWALFrameHead reads the head of a frame; ok is false if the magic is another.
func decodeWALFrameHead(b []byte) (h walFrameHead, ok bool) {
	if len(b) < walFrameHeadBytes || binary.BigEndian.Uint32(b) != walFrameMagic {
		return h, false
	}
	return walFrameHead{
		crc:        binary.BigEndian.Uint32(b[4:]),
		generation: binary.BigEndian.Uint64(b[8:]),
		nonce:      walNonce(b[16:32]),
		sequence:   binary.BigEndian.Uint64(b[32:]),
		bodyBytes:  int(binary.BigEndian.Uint32(b[40:])),
		records:    int(binary.BigEndian.Uint32(b[44:])),
	}, true
}

// walFrame collects the records of one round and turns them into buffers for one vectored write. It is reused: in the
// steady state it allocates nothing.
type walFrame struct {
	records []walRecord
	// bytes is the size of head and records, without padding.
	bytes int
	// scratch holds heads and small batches, pieces the buffers in order; large batches are referenced, not copied.
	scratch []byte
	pieces  [][]byte
}

func (f *walFrame) reset() {
	clear(f.records) // drop references to batch bytes
	clear(f.pieces)
	f.records, f.pieces, f.bytes = f.records[:0], f.pieces[:0], walFrameHeadBytes
}

// add appends a record. The bytes of r.data must stay as they are until the frame has been written.
func (f *walFrame) add(r walRecord) {
	f.records = append(f.records, r)
	f.bytes += walRecordHeadBytes + r.length()
}

// size is the space the frame takes in a file.
func (f *walFrame) size(blockBytes int) int64 { return alignUp(int64(f.bytes), blockBytes) }

// build returns the frame as buffers, padded with zeros (of which zeros must hold a block) to whole blocks.
func (f *walFrame) build(h *walHeader, sequence uint64, zeros []byte) [][]byte {
	need := walFrameHeadBytes
	for i := range f.records {
		r := &f.records[i]
		need += walRecordHeadBytes + inlineBytes(r.data, h.blockBytes)
		for _, p := range r.more {
			need += inlineBytes(p, h.blockBytes)
		}
	}
	if cap(f.scratch) < need {
		f.scratch = make([]byte, max(need, 2*cap(f.scratch)))
	}
	s := f.scratch[:need]
	clear(f.pieces)
	f.pieces = f.pieces[:0]
	binary.BigEndian.PutUint32(s[0:], walFrameMagic)
	binary.BigEndian.PutUint64(s[8:], h.generation)
	copy(s[16:], h.nonce[:])
	binary.BigEndian.PutUint64(s[32:], sequence)
	binary.BigEndian.PutUint32(s[40:], uint32(f.bytes-walFrameHeadBytes))
	binary.BigEndian.PutUint32(s[44:], uint32(len(f.records)))
	from, to := 0, walFrameHeadBytes
	for i := range f.records {
		r := &f.records[i]
		r.putHead(s[to:])
		to += walRecordHeadBytes
		from, to = f.put(s, from, to, r.data, h.blockBytes)
		for _, p := range r.more {
			from, to = f.put(s, from, to, p, h.blockBytes)
		}
	}
	if from < to {
		f.pieces = append(f.pieces, s[from:to])
	}
	crc := crc32.Update(0, castagnoli, f.pieces[0][8:])
	for _, p := range f.pieces[1:] {
		crc = crc32.Update(crc, castagnoli, p)
	}
	binary.BigEndian.PutUint32(s[4:], crc)
	if pad := alignUp(int64(f.bytes), h.blockBytes) - int64(f.bytes); pad > 0 {
		f.pieces = append(f.pieces, zeros[:pad])
	}
	return f.pieces
}

// inlineBytes is how much of a piece is copied into the scratch buffer: those up to a block whole, larger ones not at
// all.
func inlineBytes(p []byte, blockBytes int) int {
	if len(p) <= blockBytes {
		return len(p)
	}
	return 0
}

// put adds a piece to the frame. s[from:to] is scratch that is not among the pieces yet.
func (f *walFrame) put(s []byte, from, to int, p []byte, blockBytes int) (int, int) {
	if len(p) <= blockBytes {
		return from, to + copy(s[to:], p)
	}
	f.pieces = append(f.pieces, s[from:to], p)
	return to, to
}

// alignUp rounds n up to whole blocks.
func alignUp(n int64, blockBytes int) int64 {
	b := int64(blockBytes)
	return (n + b - 1) / b * b
}
