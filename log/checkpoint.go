package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"slices"

	"github.com/millrace/millrace/log/vfs"
)

// checkpoint is the content of millrace.checkpoint (wal.md 2). Its recovery points are hints: without them recovery
// reads more. Its oldest generation is more than a hint: the rename of the file that names it is the retirement of all
// generations below (W11).
type checkpoint struct {
	// oldest is the oldest generation of the write-ahead log whose records may be needed.
	oldest uint64
	// live says that a generation ≥ oldest exists. It is false after a clean stop and after a start without a
	// write-ahead log; with it a lost file of the newest generation is noticed.
	live bool
	// recoveryPoints holds, per log id, an offset below which everything is in synced segments.
	recoveryPoints map[uint64]int64
}

// Version 1 of millrace.checkpoint, big endian:
//
//	0  magic "MRCP"
//	4  CRC-32C of all that follows
//	8  version u16
//	10 flags u16: 1 = a generation ≥ oldest exists
//	12 number of recovery points u32
//	16 oldest live generation u64
//	24 recovery points, each 16 bytes, ascending by log id: log id u64, offset i64
const (
	checkpointMagic     = 0x4d524350 // "MRCP"
	checkpointVersion   = 1
	checkpointHeadBytes = 24
	checkpointItemBytes = 16
	checkpointFlagLive  = 1
)

func (c *checkpoint) encode() []byte {
	b := make([]byte, 0, checkpointHeadBytes+checkpointItemBytes*len(c.recoveryPoints))
	b = binary.BigEndian.AppendUint32(b, checkpointMagic)
	b = binary.BigEndian.AppendUint32(b, 0)
	b = binary.BigEndian.AppendUint16(b, checkpointVersion)
	flags := uint16(0)
	if c.live {
		flags |= checkpointFlagLive
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, uint32(len(c.recoveryPoints)))
	b = binary.BigEndian.AppendUint64(b, c.oldest)
	for _, id := range slices.Sorted(maps.Keys(c.recoveryPoints)) {
		b = binary.BigEndian.AppendUint64(b, id)
		b = binary.BigEndian.AppendUint64(b, uint64(c.recoveryPoints[id]))
	}
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

var errCheckpointFormat = errors.New("not a checkpoint file")

// decodeCheckpoint reads the content of a checkpoint file. A bad one is ignored by recovery (L5): it only costs time,
// because the headers of the write-ahead log name the oldest generation too.
func decodeCheckpoint(b []byte) (checkpoint, error) {
	bad := func(format string, args ...any) (checkpoint, error) {
		return checkpoint{}, fmt.Errorf("%w: %w: %s", ErrCorrupt, errCheckpointFormat, fmt.Sprintf(format, args...))
	}
	if len(b) < checkpointHeadBytes {
		return bad("%d bytes", len(b))
	}
	if m := binary.BigEndian.Uint32(b); m != checkpointMagic {
		return bad("magic %08x", m)
	}
	if want, got := binary.BigEndian.Uint32(b[4:]), crc32.Checksum(b[8:], castagnoli); want != got {
		return bad("checksum %08x, computed %08x", want, got)
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != checkpointVersion {
		return bad("version %d is unknown to this release", v)
	}
	flags := binary.BigEndian.Uint16(b[10:])
	if flags&^checkpointFlagLive != 0 {
		return bad("flags %04x", flags)
	}
	n := int64(binary.BigEndian.Uint32(b[12:]))
	if int64(len(b)) != checkpointHeadBytes+n*checkpointItemBytes {
		return bad("%d recovery points in %d bytes", n, len(b))
	}
	c := checkpoint{
		oldest:         binary.BigEndian.Uint64(b[16:]),
		live:           flags&checkpointFlagLive != 0,
		recoveryPoints: make(map[uint64]int64, n),
	}
	last := uint64(0)
	for i, rest := int64(0), b[checkpointHeadBytes:]; i < n; i, rest = i+1, rest[checkpointItemBytes:] {
		id, offset := binary.BigEndian.Uint64(rest), int64(binary.BigEndian.Uint64(rest[8:]))
		if i > 0 && id <= last || offset < 0 {
			return bad("recovery point %d: log id %016x, offset %d", i, id, offset)
		}
		last = id
		c.recoveryPoints[id] = offset
	}
	return c, nil
}

// readCheckpoint reads the checkpoint of a log directory; an absent file is an empty one. With an error that matches
// ErrCorrupt the empty checkpoint is to be used.
func readCheckpoint(fsys vfs.FS, dir string) (checkpoint, error) {
	b, err := vfs.ReadFile(fsys, vfs.Join(dir, checkpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return checkpoint{}, nil
	}
	if err != nil {
		return checkpoint{}, fmt.Errorf("read checkpoint of %s: %w", dir, err)
	}
	c, err := decodeCheckpoint(b)
	if err != nil {
		return checkpoint{}, fmt.Errorf("read checkpoint of %s: %w", dir, err)
	}
	return c, nil
}
