package log

import "encoding/binary"

// The time index, Kafka's .timeindex: the largest timestamp so far (8 bytes) and the last offset of the batch that has
// it, relative to the segment's base (4 bytes), big endian; an entry wherever the offset index gets one, if the
// timestamp has risen, and one when the segment is closed. Every record with a larger timestamp lies behind that batch.
const timeEntryBytes = 12

var timeIndexKind = indexKind{
	name:       "time index",
	entryBytes: timeEntryBytes,
	put: func(p []byte, e indexEntry) {
		binary.BigEndian.PutUint64(p, uint64(e.key))
		binary.BigEndian.PutUint32(p[8:], e.value)
	},
	get: func(p []byte) indexEntry {
		return indexEntry{key: int64(binary.BigEndian.Uint64(p)), value: binary.BigEndian.Uint32(p[8:])}
	},
}
