package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// HeaderBytes is the size of a batch's header: where its records begin.
const HeaderBytes = 61

// Positions of the header's fields.
const (
	atBaseOffset      = 0
	atLength          = 8
	atLeaderEpoch     = 12
	atMagic           = 16
	atCRC             = 17
	atAttributes      = 21 // the checksum covers everything from here
	atLastOffsetDelta = 23
	atBaseTimestamp   = 27
	atMaxTimestamp    = 35
	atProducerID      = 43
	atProducerEpoch   = 51
	atBaseSequence    = 53
	atCount           = 57
)

const (
	magic2 = 2
	// lengthOverhead is what the length field does not count: base offset and itself.
	lengthOverhead = 12
	// minRecordBytes is the smallest record with its own length byte.
	minRecordBytes = 7
)

// Attribute bits.
const (
	attrCodecMask     = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrDeleteHorizon = 0x40
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// TimestampType says who dated the records of a batch.
type TimestampType int8

// The timestamp types.
const (
	CreateTime    TimestampType = 0 // each record carries the producer's time
	LogAppendTime TimestampType = 1 // all records carry the batch's max timestamp, set by the leader
)

// Batch is one encoded record batch, header and records, exactly as on the
// wire and in a segment. Its length equals the size its header announces:
// obtain one from [Next], [Validate] or a [Builder]. The accessors read and
// patch the bytes in place and never allocate; they panic on a slice shorter
// than HeaderBytes, which those functions never return.
type Batch []byte

// Next splits off the first batch of b. The batch and the rest alias b. The
// error is ErrShort when b ends inside the batch (also when b is empty) and
// ErrCorrupt when the length or the magic byte cannot be those of a batch. The
// checksum is not looked at; see [Batch.Check]. On an error the rest is b.
func Next(b []byte) (Batch, []byte, error) {
	n, err := frame(b)
	if err != nil {
		return nil, b, err
	}
	if n > len(b) {
		return nil, b, shortBatch(len(b), n)
	}
	return Batch(b[:n:n]), b[n:], nil
}

// frame returns the size of the batch that begins at b[0], which may exceed
// len(b), after checking as much of length and magic as is there.
func frame(b []byte) (int, error) {
	if len(b) < atLength+4 {
		return 0, shortBatch(len(b), HeaderBytes)
	}
	length := int32(binary.BigEndian.Uint32(b[atLength:]))
	if length < HeaderBytes-lengthOverhead {
		return 0, corruptLength(length)
	}
	if len(b) > atMagic && b[atMagic] != magic2 {
		return 0, corruptMagic(b[atMagic])
	}
	return lengthOverhead + int(length), nil
}

// The errors of the framing are made out of line, so that Next stays small.

func shortBatch(have, want int) error {
	return fmt.Errorf("read record batch: %w: %d of %d bytes", ErrShort, have, want)
}

func corruptLength(length int32) error {
	return fmt.Errorf("read record batch: %w: length %d is below the header's %d", ErrCorrupt, length, HeaderBytes-lengthOverhead)
}

func corruptMagic(magic byte) error {
	return fmt.Errorf("read record batch: %w: magic %d", ErrCorrupt, int8(magic))
}

// BaseOffset is the offset of the first record (of the first one the batch was
// built with: compaction may have removed it).
func (b Batch) BaseOffset() int64 {
	return int64(binary.BigEndian.Uint64(b[atBaseOffset:]))
}

// SetBaseOffset patches the base offset; the checksum does not cover it.
func (b Batch) SetBaseOffset(offset int64) {
	binary.BigEndian.PutUint64(b[atBaseOffset:], uint64(offset))
}

// LeaderEpoch is the epoch of the leader that appended the batch. What a
// producer sends here means nothing.
func (b Batch) LeaderEpoch() int32 {
	return int32(binary.BigEndian.Uint32(b[atLeaderEpoch:]))
}

// SetLeaderEpoch patches the leader epoch; the checksum does not cover it.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[atLeaderEpoch:], uint32(epoch))
}

// Magic is the format version, 2.
func (b Batch) Magic() int8 { return int8(b[atMagic]) }

// CRC is the checksum as stored; see [Batch.CheckCRC].
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[atCRC:]) }

// Attributes are the raw attribute bits.
func (b Batch) Attributes() int16 {
	return int16(binary.BigEndian.Uint16(b[atAttributes:]))
}

func (b Batch) setAttributes(a int16) {
	binary.BigEndian.PutUint16(b[atAttributes:], uint16(a))
}

// Codec is the compression of the records; it may be one that does not exist
// ([Codec.Valid]).
func (b Batch) Codec() Codec { return Codec(b[atAttributes+1] & attrCodecMask) }

// TimestampType says whether the records' own timestamps count.
func (b Batch) TimestampType() TimestampType {
	return TimestampType(b[atAttributes+1] & attrLogAppendTime >> 3)
}

// IsTransactional reports whether the records belong to a transaction (KIP-98).
func (b Batch) IsTransactional() bool { return b[atAttributes+1]&attrTransactional != 0 }

// IsControl reports whether the batch holds control records, which consumers
// never hand to their application.
func (b Batch) IsControl() bool { return b[atAttributes+1]&attrControl != 0 }

// HasDeleteHorizon reports whether BaseTimestamp is the time from which
// compaction may drop the batch's tombstones and markers (KIP-534).
func (b Batch) HasDeleteHorizon() bool { return b[atAttributes+1]&attrDeleteHorizon != 0 }

// LastOffsetDelta is the offset of the last record the batch was built with,
// relative to BaseOffset.
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[atLastOffsetDelta:]))
}

// LastOffset is the last offset the batch occupies, inclusive.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the offset after the batch: LastOffset+1.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// BaseTimestamp is what the records' timestamp deltas are relative to, in ms
// since 1970. It is the first record's time, not the smallest.
func (b Batch) BaseTimestamp() int64 {
	return int64(binary.BigEndian.Uint64(b[atBaseTimestamp:]))
}

// MaxTimestamp is the largest timestamp of the batch in ms since 1970, or the
// append time for LogAppendTime. In a batch fresh from a producer it is a claim.
func (b Batch) MaxTimestamp() int64 {
	return int64(binary.BigEndian.Uint64(b[atMaxTimestamp:]))
}

// setMaxTimestamp invalidates the checksum.
func (b Batch) setMaxTimestamp(ms int64) {
	binary.BigEndian.PutUint64(b[atMaxTimestamp:], uint64(ms))
}

// ProducerID is the id of an idempotent producer, or -1.
func (b Batch) ProducerID() int64 {
	return int64(binary.BigEndian.Uint64(b[atProducerID:]))
}

// ProducerEpoch means something only if ProducerID ≥ 0.
func (b Batch) ProducerEpoch() int16 {
	return int16(binary.BigEndian.Uint16(b[atProducerEpoch:]))
}

// BaseSequence is the sequence of the first record; it means something only if
// ProducerID ≥ 0.
func (b Batch) BaseSequence() int32 {
	return int32(binary.BigEndian.Uint32(b[atBaseSequence:]))
}

// LastSequence is the sequence of the last record. Sequences wrap from 2^31-1
// to 0 (trap P3). -1 if the batch has no sequence.
func (b Batch) LastSequence() int32 {
	return lastSequence(b.BaseSequence(), b.LastOffsetDelta())
}

func lastSequence(base, delta int32) int32 {
	if base < 0 {
		return -1
	}
	return int32((uint32(base) + uint32(delta)) & math.MaxInt32)
}

// Count is the number of records in the batch.
func (b Batch) Count() int32 { return int32(binary.BigEndian.Uint32(b[atCount:])) }

// Payload is the records, compressed as Codec says. It aliases the batch.
func (b Batch) Payload() []byte { return b[HeaderBytes:] }

// CheckCRC reports whether the stored checksum fits the bytes.
func (b Batch) CheckCRC() bool {
	return crc32.Checksum(b[atAttributes:], castagnoli) == b.CRC()
}

// Seal stores the checksum of the bytes as they are now.
func (b Batch) Seal() {
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[atAttributes:], castagnoli))
}

// Header is a decoded batch header, for scans that read only the first
// HeaderBytes of each batch. Fields are as the accessors of [Batch] describe.
type Header struct {
	BaseOffset      int64
	Length          int32 // bytes after the length field itself; Size counts all
	LeaderEpoch     int32
	CRC             uint32
	Attributes      int16
	LastOffsetDelta int32
	BaseTimestamp   int64 // ms
	MaxTimestamp    int64 // ms
	ProducerID      int64
	ProducerEpoch   int16
	BaseSequence    int32
	Count           int32
}

// ParseHeader decodes the header at b[0]; b need not hold the records. Errors
// are those of [Next], ErrShort if b has fewer than HeaderBytes. Apart from
// length and magic nothing is checked; see [Header.Check].
func ParseHeader(b []byte) (Header, error) {
	n, err := frame(b)
	if err != nil {
		return Header{}, err
	}
	if len(b) < HeaderBytes {
		return Header{}, shortBatch(len(b), HeaderBytes)
	}
	v := Batch(b[:HeaderBytes])
	return Header{
		BaseOffset:      v.BaseOffset(),
		Length:          int32(n - lengthOverhead),
		LeaderEpoch:     v.LeaderEpoch(),
		CRC:             v.CRC(),
		Attributes:      v.Attributes(),
		LastOffsetDelta: v.LastOffsetDelta(),
		BaseTimestamp:   v.BaseTimestamp(),
		MaxTimestamp:    v.MaxTimestamp(),
		ProducerID:      v.ProducerID(),
		ProducerEpoch:   v.ProducerEpoch(),
		BaseSequence:    v.BaseSequence(),
		Count:           v.Count(),
	}, nil
}

// Header decodes the header of b.
func (b Batch) Header() Header {
	h, _ := ParseHeader(b)
	return h
}

// Size is the size of the whole batch in bytes.
func (h *Header) Size() int { return lengthOverhead + int(h.Length) }

// LastOffset is the last offset the batch occupies, inclusive.
func (h *Header) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset is the offset after the batch: LastOffset+1.
func (h *Header) NextOffset() int64 { return h.LastOffset() + 1 }

// LastSequence is as [Batch.LastSequence].
func (h *Header) LastSequence() int32 { return lastSequence(h.BaseSequence, h.LastOffsetDelta) }

// Codec is the compression of the records.
func (h *Header) Codec() Codec { return Codec(h.Attributes & attrCodecMask) }

// TimestampType says whether the records' own timestamps count.
func (h *Header) TimestampType() TimestampType {
	return TimestampType(h.Attributes & attrLogAppendTime >> 3)
}

// IsTransactional reports whether the records belong to a transaction.
func (h *Header) IsTransactional() bool { return h.Attributes&attrTransactional != 0 }

// IsControl reports whether the batch holds control records.
func (h *Header) IsControl() bool { return h.Attributes&attrControl != 0 }
