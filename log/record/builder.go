package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Builder encodes one batch record by record: for control batches, compaction,
// tools and tests. The exported fields go into the header and may be set until
// [Builder.Build]; [NewBuilder] gives them the values of a plain producer.
//
// A Builder keeps its memory over [Builder.Reset] and is not safe for
// concurrent use.
type Builder struct {
	BaseOffset    int64
	LeaderEpoch   int32
	ProducerID    int64 // -1 = not idempotent
	ProducerEpoch int16
	BaseSequence  int32
	Transactional bool
	Control       bool
	// LogAppendTime makes AppendTime the timestamp of all records.
	LogAppendTime bool
	AppendTime    int64 // ms
	// Level is the compression level as in Rules; 0 is the codec's default.
	Level int

	codec         Codec
	records       []byte
	count         int32
	lastDelta     int32 // highest offset delta the batch occupies, -1 = none
	baseTimestamp int64
	maxTimestamp  int64
}

// noTimestamp is the timestamp of a batch without records or dates.
const noTimestamp = -1

// NewBuilder returns a builder for batches compressed with codec, which must be
// valid ([Codec.Valid]).
func NewBuilder(codec Codec) *Builder {
	if !codec.Valid() {
		panic("record: new builder with " + codec.String())
	}
	b := &Builder{codec: codec}
	b.Reset()
	return b
}

// Reset starts a new batch with the same codec and level.
func (b *Builder) Reset() {
	*b = Builder{
		ProducerID:    -1,
		ProducerEpoch: -1,
		BaseSequence:  -1,
		Level:         b.Level,
		codec:         b.codec,
		records:       b.records[:0],
		lastDelta:     -1,
		baseTimestamp: noTimestamp,
		maxTimestamp:  noTimestamp,
	}
}

// Add appends a record at the next offset. timestamp is in ms since 1970; a nil
// key or value is null. Nothing is retained.
func (b *Builder) Add(timestamp int64, key, value []byte, headers []RecordHeader) {
	b.AddAt(b.lastDelta+1, timestamp, key, value, headers)
}

// AddAt is Add at an offset relative to BaseOffset, which must be above that of
// the record before: compaction leaves gaps.
func (b *Builder) AddAt(offsetDelta int32, timestamp int64, key, value []byte, headers []RecordHeader) {
	if offsetDelta <= b.lastDelta {
		panic(fmt.Sprintf("record: add at offset delta %d after %d", offsetDelta, b.lastDelta))
	}
	if b.count == 0 {
		b.baseTimestamp, b.maxTimestamp = timestamp, timestamp
	}
	b.maxTimestamp = max(b.maxTimestamp, timestamp)
	b.records = appendRecord(b.records, timestamp-b.baseTimestamp, offsetDelta, key, value, headers)
	b.count++
	b.lastDelta = offsetDelta
}

// Extend makes the batch occupy the offsets up to lastOffsetDelta, inclusive,
// even if its last records have been compacted away.
func (b *Builder) Extend(lastOffsetDelta int32) { b.lastDelta = max(b.lastDelta, lastOffsetDelta) }

// Count is the number of records added.
func (b *Builder) Count() int { return int(b.count) }

// Size is the size in bytes of the batch if it were not compressed.
func (b *Builder) Size() int { return HeaderBytes + len(b.records) }

// Build returns the batch in memory of its own, sealed. The builder may go on
// adding and build again.
func (b *Builder) Build() Batch {
	size := HeaderBytes
	if b.codec == CodecNone {
		size += len(b.records)
	}
	return Batch(b.AppendTo(make([]byte, 0, size)))
}

// AppendTo appends the batch to dst and returns the extended slice. A batch
// without records is never compressed. It panics if the batch would exceed the
// 2 GiB that its length can express.
func (b *Builder) AppendTo(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, HeaderBytes)...)
	codec := b.codec
	if b.count == 0 {
		codec = CodecNone
	}
	dst = appendCompressed(dst, codec, b.Level, b.records)
	v := Batch(dst[start:])
	if len(v)-lengthOverhead > math.MaxInt32 {
		panic(fmt.Sprintf("record: build a batch of %d bytes", len(v)))
	}
	attributes := int16(codec)
	maxTimestamp := b.maxTimestamp
	if b.LogAppendTime {
		attributes |= attrLogAppendTime
		maxTimestamp = b.AppendTime
	}
	if b.Transactional {
		attributes |= attrTransactional
	}
	if b.Control {
		attributes |= attrControl
	}
	v.SetBaseOffset(b.BaseOffset)
	binary.BigEndian.PutUint32(v[atLength:], uint32(len(v)-lengthOverhead))
	v.SetLeaderEpoch(b.LeaderEpoch)
	v[atMagic] = magic2
	v.setAttributes(attributes)
	binary.BigEndian.PutUint32(v[atLastOffsetDelta:], uint32(b.lastDelta))
	binary.BigEndian.PutUint64(v[atBaseTimestamp:], uint64(b.baseTimestamp))
	v.setMaxTimestamp(maxTimestamp)
	binary.BigEndian.PutUint64(v[atProducerID:], uint64(b.ProducerID))
	binary.BigEndian.PutUint16(v[atProducerEpoch:], uint16(b.ProducerEpoch))
	binary.BigEndian.PutUint32(v[atBaseSequence:], uint32(b.BaseSequence))
	binary.BigEndian.PutUint32(v[atCount:], uint32(b.count))
	v.Seal()
	return dst
}
