package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// state is the content of millrace.state, the authoritative file of a partition (wal.md 2). It is replaced whole, by
// one atomic rename, at creation, at every truncation and trim (W13-W15), and when segments were sealed.
type state struct {
	topic     string
	partition int32
	topicID   [16]byte
	// logID names one stretch of history in which the log only grows (W13).
	logID uint64
	// start is the first offset served.
	start int64
	// recoveryPoint: all below it is in synced segments, and all derived files below it are synced (W19). The
	// checkpoint may know a higher one.
	recoveryPoint int64
	// cut is -1, or the offset to which a truncation was cutting when the process ended: recovery finishes it (W14).
	cut int64
	// sealed is the manifest (L10): the segments that were closed and synced when the state was written, ascending,
	// each beginning where the one before ended. A later one may exist on disk already.
	sealed []sealedSegment
}

// sealedSegment is what the manifest says about a closed segment.
type sealedSegment struct {
	// base is the first offset by name, next the offset behind the last batch.
	base, next int64
	// sizeBytes is the exact size of the .log file.
	sizeBytes int64
	// maxTimestamp is the largest record timestamp in milliseconds, -1 if none; maxTimestampOffset the last offset of
	// the batch that has it.
	maxTimestamp, maxTimestampOffset int64
	// appendedMillis is the wall clock at the last append, the floor of retention for future-dated records (L15).
	appendedMillis int64
	// aborted is what the index of aborted transactions must hold.
	aborted abortedSum
}

// Version 1 of millrace.state, big endian:
//
//	0  magic "MRST"
//	4  CRC-32C of all that follows
//	8  version u16
//	10 topic id 16 bytes
//	26 log id u64
//	34 start i64 | 42 recovery point i64 | 50 cut i64
//	58 partition i32
//	62 length of the topic name u16, topic name
//	.. number of sealed segments u32, each 48 bytes: base, next, size, max timestamp, its offset, append time
//
// In version 2 each sealed segment has 8 bytes more: number and CRC-32C of its aborted transactions. It is written only if
// there are any, so that an older release can still read the partitions that it could have written.
const (
	stateMagic          = 0x4d525354 // "MRST"
	stateVersion        = 1
	stateVersionAborted = 2
	stateMinBytes       = 68
	sealedBytes         = 48
	sealedAbortedBytes  = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *state) encode() []byte {
	version, sealedBytes := stateVersion, sealedBytes
	for _, g := range s.sealed {
		if g.aborted.count > 0 {
			version, sealedBytes = stateVersionAborted, sealedBytes+sealedAbortedBytes
			break
		}
	}
	b := make([]byte, 0, stateMinBytes+len(s.topic)+sealedBytes*len(s.sealed))
	b = binary.BigEndian.AppendUint32(b, stateMagic)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(version))
	b = append(b, s.topicID[:]...)
	b = binary.BigEndian.AppendUint64(b, s.logID)
	b = binary.BigEndian.AppendUint64(b, uint64(s.start))
	b = binary.BigEndian.AppendUint64(b, uint64(s.recoveryPoint))
	b = binary.BigEndian.AppendUint64(b, uint64(s.cut))
	b = binary.BigEndian.AppendUint32(b, uint32(s.partition))
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.topic)))
	b = append(b, s.topic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.sealed)))
	for _, g := range s.sealed {
		for _, v := range [...]int64{g.base, g.next, g.sizeBytes, g.maxTimestamp, g.maxTimestampOffset, g.appendedMillis} {
			b = binary.BigEndian.AppendUint64(b, uint64(v))
		}
		if version == stateVersionAborted {
			b = binary.BigEndian.AppendUint32(b, uint32(g.aborted.count))
			b = binary.BigEndian.AppendUint32(b, g.aborted.checksum)
		}
	}
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

var errStateFormat = errors.New("not a state file")

// decodeState reads the content of a state file. An error matches ErrCorrupt: the partition goes offline, nothing is
// guessed.
func decodeState(b []byte) (state, error) {
	bad := func(format string, args ...any) (state, error) {
		return state{}, fmt.Errorf("%w: %w: %s", ErrCorrupt, errStateFormat, fmt.Sprintf(format, args...))
	}
	if len(b) < stateMinBytes {
		return bad("%d bytes", len(b))
	}
	if m := binary.BigEndian.Uint32(b); m != stateMagic {
		return bad("magic %08x", m)
	}
	if want, got := binary.BigEndian.Uint32(b[4:]), crc32.Checksum(b[8:], castagnoli); want != got {
		return bad("checksum %08x, computed %08x", want, got)
	}
	version, sealedBytes := int(binary.BigEndian.Uint16(b[8:])), sealedBytes
	switch version {
	case stateVersion:
	case stateVersionAborted:
		sealedBytes += sealedAbortedBytes
	default:
		return bad("version %d is unknown to this release", version)
	}
	s := state{
		topicID:       [16]byte(b[10:26]),
		logID:         binary.BigEndian.Uint64(b[26:]),
		start:         int64(binary.BigEndian.Uint64(b[34:])),
		recoveryPoint: int64(binary.BigEndian.Uint64(b[42:])),
		cut:           int64(binary.BigEndian.Uint64(b[50:])),
		partition:     int32(binary.BigEndian.Uint32(b[58:])),
	}
	n := int(binary.BigEndian.Uint16(b[62:]))
	rest := b[64:]
	if len(rest) < n+4 {
		return bad("topic name of %d bytes", n)
	}
	s.topic, rest = string(rest[:n]), rest[n:]
	count := int64(binary.BigEndian.Uint32(rest))
	rest = rest[4:]
	if int64(len(rest)) != count*int64(sealedBytes) {
		return bad("%d sealed segments in %d bytes", count, len(rest))
	}
	s.sealed = make([]sealedSegment, count)
	for i := range s.sealed {
		g := &s.sealed[i]
		for _, field := range [...]*int64{&g.base, &g.next, &g.sizeBytes, &g.maxTimestamp, &g.maxTimestampOffset, &g.appendedMillis} {
			*field = int64(binary.BigEndian.Uint64(rest))
			rest = rest[8:]
		}
		if version == stateVersionAborted {
			g.aborted = abortedSum{count: int(binary.BigEndian.Uint32(rest)), checksum: binary.BigEndian.Uint32(rest[4:])}
			rest = rest[sealedAbortedBytes:]
		}
	}
	switch {
	case s.start < 0 || s.recoveryPoint < s.start:
		return bad("start %d, recovery point %d", s.start, s.recoveryPoint)
	case s.cut < -1:
		return bad("cut %d", s.cut)
	case s.partition < 0:
		return bad("partition %d", s.partition)
	}
	for i, g := range s.sealed {
		if g.base < 0 || g.next < g.base || g.sizeBytes < 0 || i > 0 && g.base != s.sealed[i-1].next {
			return bad("sealed segment %d from %d to %d of %d bytes", i, g.base, g.next, g.sizeBytes)
		}
	}
	return s, nil
}
