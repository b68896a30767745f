package log

import "encoding/binary"

// The offset index, Kafka's .index: for a batch every index.interval.bytes, its last offset relative to the segment's
// base (4 bytes) and its position (4 bytes), big endian. The last offset, not the first: an entry with an offset ≤ the
// one sought is a batch at or before it, and one with an offset < a limit is a batch that ends below the limit.
const offsetEntryBytes = 8

var offsetIndexKind = indexKind{
	name:       "offset index",
	entryBytes: offsetEntryBytes,
	put: func(p []byte, e indexEntry) {
		binary.BigEndian.PutUint32(p, uint32(e.key))
		binary.BigEndian.PutUint32(p[4:], e.value)
	},
	get: func(p []byte) indexEntry {
		return indexEntry{key: int64(binary.BigEndian.Uint32(p)), value: binary.BigEndian.Uint32(p[4:])}
	},
}
