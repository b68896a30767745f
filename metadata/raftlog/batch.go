package raftlog

import (
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/hashicorp/raft"
)

// What sectors carry is batches, each from the beginning of a sector on:
//
//	4 bytes   length in bytes, these included
//	4 bytes   number of entries; 0 = a cut
//	8 bytes   index of the first entry; of a cut, the first index that is gone, 0 = all
//	8 bytes   number of the batch
//	4 bytes   CRC-32C over the 24 bytes before, and the CRC-32C and length of all that follows
//	          entries
//
// and an entry is
//
//	4 bytes   CRC-32C over its index and all that follows
//	4 bytes   length of its data
//	4 bytes   length of its extensions
//	4 bytes   type
//	8 bytes   term
//	8 bytes   nanoseconds since 1970 at which the leader appended it, 0 = unknown
//	          data, extensions
//
// All numbers are little-endian. The sums stand in front of what they cover.
const (
	batchHead = 28
	entryHead = 32
	// entryLimit bounds an entry; ours have 256 KiB.
	entryLimit = 1 << 30
)

// position is where an entry is in its segment: of its first byte, counted in bytes that sectors carry, from sector 0 on.
type position struct{ off, n uint32 }

// encoder lays a batch out in sectors.
type encoder struct {
	buf []byte // whole sectors but for the last, not sealed
	n   int    // bytes of the batch so far
	sum uint32 // of them, after the batch's head
}

func (e *encoder) begin() {
	e.buf, e.n, e.sum = e.buf[:0], 0, 0
	var head [batchHead]byte
	e.put(head[:])
}

// put appends p.
func (e *encoder) put(p []byte) {
	e.n += len(p)
	for len(p) > 0 {
		if len(e.buf)%sectorBytes == 0 {
			e.buf = append(e.buf, zeros[:sectorHead]...)
		}
		n := min(len(p), sectorBytes-len(e.buf)%sectorBytes)
		e.buf = append(e.buf, p[:n]...)
		p = p[n:]
	}
}

func (e *encoder) add(l *raft.Log) {
	var head [entryHead]byte
	little.PutUint32(head[4:], uint32(len(l.Data)))
	little.PutUint32(head[8:], uint32(len(l.Extensions)))
	head[12] = byte(l.Type)
	little.PutUint64(head[16:], l.Term)
	if !l.AppendedAt.IsZero() {
		little.PutUint64(head[24:], uint64(l.AppendedAt.UnixNano()))
	}
	little.PutUint32(head[:], entrySum(l.Index, head[4:], l.Data, l.Extensions))
	for _, p := range [][]byte{head[:], l.Data, l.Extensions} {
		e.sum = crc32.Update(e.sum, castagnoli, p)
		e.put(p)
	}
}

// end completes the batch and returns its sectors, which are good until the next begin.
func (e *encoder) end(s sealer, at, count int, index, batch uint64) []byte {
	if over := len(e.buf) % sectorBytes; over > 0 {
		e.buf = append(e.buf, zeros[:sectorBytes-over]...)
	}
	head := e.buf[sectorHead : sectorHead+batchHead]
	little.PutUint32(head, uint32(e.n))
	little.PutUint32(head[4:], uint32(count))
	little.PutUint64(head[8:], index)
	little.PutUint64(head[16:], batch)
	little.PutUint32(head[24:], batchSum(head[:24], e.sum, e.n-batchHead))
	s.seal(at, tagOf(batch), e.buf)
	return e.buf
}

// batchSum takes the sum of the rest instead of the rest itself, which is summed while it is put together.
func batchSum(head []byte, rest uint32, n int) uint32 {
	var b [8]byte
	little.PutUint32(b[:], rest)
	little.PutUint32(b[4:], uint32(n))
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, b[:])
}

func entrySum(index uint64, head, data, extensions []byte) uint32 {
	var b [8]byte
	little.PutUint64(b[:], index)
	sum := crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, head)
	return crc32.Update(crc32.Update(sum, castagnoli, data), castagnoli, extensions)
}

// batch is what a batch says of itself.
type batch struct {
	bytes, count  int
	index, number uint64
	sum           uint32
}

// readBatch reads the head of a batch from its first sector.
func readBatch(sector []byte) batch {
	b := sector[sectorHead:]
	return batch{int(little.Uint32(b)), int(little.Uint32(b[4:])), little.Uint64(b[8:]), little.Uint64(b[16:]), little.Uint32(b[24:])}
}

// verify checks a whole batch, of which b is all bytes.
func (h batch) verify(b []byte) bool {
	return h.sum == batchSum(b[:24], crc32.Checksum(b[batchHead:], castagnoli), len(b)-batchHead)
}

// entries calls each with the bytes of every entry and where they begin in b, all bytes of the batch.
func (h batch) entries(b []byte, each func(index uint64, off int, entry []byte)) error {
	off := batchHead
	for i := range h.count {
		if len(b)-off < entryHead {
			return fmt.Errorf("entry %d is cut off", h.index+uint64(i))
		}
		n := entryHead + int(little.Uint32(b[off+4:])) + int(little.Uint32(b[off+8:]))
		if n > len(b)-off {
			return fmt.Errorf("entry %d is cut off", h.index+uint64(i))
		}
		each(h.index+uint64(i), off, b[off:off+n])
		off += n
	}
	if off != len(b) {
		return fmt.Errorf("%d bytes follow the last entry", len(b)-off)
	}
	return nil
}

// readEntry decodes an entry, into memory of its own, and reports whether its sum fits.
func readEntry(index uint64, b []byte, l *raft.Log) bool {
	if len(b) < entryHead {
		return false
	}
	data, extensions := int(little.Uint32(b[4:])), int(little.Uint32(b[8:]))
	if entryHead+data+extensions != len(b) || little.Uint32(b) != entrySum(index, b[4:entryHead], b[entryHead:entryHead+data], b[entryHead+data:]) {
		return false
	}
	*l = raft.Log{Index: index, Term: little.Uint64(b[16:]), Type: raft.LogType(b[12])}
	if nano := little.Uint64(b[24:]); nano != 0 {
		l.AppendedAt = time.Unix(0, int64(nano))
	}
	if data+extensions > 0 {
		own := append(make([]byte, 0, data+extensions), b[entryHead:]...)
		if data > 0 {
			l.Data = own[:data:data]
		}
		if extensions > 0 {
			l.Extensions = own[data:]
		}
	}
	return true
}

// entryBytes returns what an entry takes of a batch.
func entryBytes(l *raft.Log) (int, error) {
	n := entryHead + len(l.Data) + len(l.Extensions)
	if n > min(entryLimit, math.MaxInt32) {
		return 0, fmt.Errorf("raft entry %d has %d bytes, at most %d can be kept", l.Index, n, entryLimit)
	}
	return n, nil
}
