package record

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// zstdProduceVersion is the first version of Produce in which zstd is allowed.
const zstdProduceVersion = 7

// Validate decides whether a leader may append what a producer sent for one
// partition, and returns the batch to append: b itself, or a rewritten batch in
// fresh memory if the rules demand another codec. Where only timestamps must
// change, b is patched in place and its checksum recomputed.
//
// The checks run in this order, and the first that fails decides the error:
//
//	exactly one whole batch, magic 2              *InvalidError (a length that can't be: ErrCorrupt)
//	base offset 0                                 *InvalidError
//	size                                          ErrTooLarge
//	checksum                                      ErrCorrupt
//	count > 0, last offset delta = count-1        *InvalidError
//	not a control batch                           *InvalidError
//	producer id ≥ 0 has a base sequence ≥ 0       *InvalidError
//	codec exists, zstd only from Produce 7 on     ErrUnsupportedCodec
//	timestamp type CreateTime                     *InvalidError (ErrInvalidTimestamp)
//	the records can be read                       *InvalidError, ErrDecompressedTooLarge
//	per record: key, timestamp, offset delta      *InvalidError with the records
//	size after recompression                      ErrTooLarge
//
// Leader epoch, and epoch and sequence of a batch without producer id, are not
// looked at: clients send anything there.
//
// The records are parsed only if something asks for it: CheckRecords,
// KeyRequired, another codec, a timestamp bound that the header can't answer
// for, or a maxTimestamp that is not to be trusted, that is ≤ 0 or below
// baseTimestamp (some clients leave it unset); it is then corrected. Otherwise
// the cost is the header and the checksum.
//
// A batch that Validate accepts passes [Batch.Check] once the leader has
// stamped its offset and epoch.
func Validate(b []byte, r Rules) (Batch, error) {
	batch, err := single(b)
	if err != nil {
		return nil, err
	}
	if err := checkProduced(batch, &r); err != nil {
		return nil, err
	}
	codec := batch.Codec()
	recompress := r.Codec != CodecProducer && r.Codec != codec
	if recompress || r.CheckRecords || r.KeyRequired || !r.LogAppendTime && !headerSettlesTimestamps(batch, &r) {
		return validateRecords(batch, &r, recompress)
	}
	if r.LogAppendTime {
		stampAppendTime(batch, r.Now)
		batch.Seal()
	}
	return batch, nil
}

// single demands that b is one batch of format 2, whole and alone.
func single(b []byte) (Batch, error) {
	if len(b) == 0 {
		return nil, invalid("no record batch")
	}
	if len(b) <= atMagic {
		return nil, invalid("record batch cut short")
	}
	length := int32(binary.BigEndian.Uint32(b[atLength:]))
	switch {
	case length < 0:
		return nil, corruptLength(length)
	case int(length) > len(b)-lengthOverhead:
		return nil, invalid("record batch cut short")
	case int(length) < len(b)-lengthOverhead:
		return nil, invalid("more than one record batch for a partition")
	case b[atMagic] > magic2: // or below zero
		return nil, fmt.Errorf("validate record batch: %w: format version %d", ErrCorrupt, int8(b[atMagic]))
	case b[atMagic] != magic2:
		return nil, invalid("record batch of format version " + strconv.Itoa(int(int8(b[atMagic]))) + ", only 2 is accepted")
	case length < HeaderBytes-lengthOverhead:
		return nil, corruptLength(length)
	}
	return Batch(b), nil
}

// checkProduced runs the checks of the header and the checksum.
func checkProduced(b Batch, r *Rules) error {
	if b.BaseOffset() != 0 {
		return invalid("base offset of a produced batch is " + strconv.FormatInt(b.BaseOffset(), 10) + ", not 0")
	}
	if r.MaxBytes > 0 && len(b) > r.MaxBytes {
		return tooLarge(len(b), r.MaxBytes)
	}
	if !b.CheckCRC() {
		return fmt.Errorf("validate record batch: %w: checksum %08x does not fit", ErrCorrupt, b.CRC())
	}
	count := b.Count()
	if count <= 0 || b.LastOffsetDelta() != count-1 {
		return invalid("record count " + strconv.Itoa(int(count)) + " does not fit last offset delta " + strconv.Itoa(int(b.LastOffsetDelta())))
	}
	codec := b.Codec()
	if codec == CodecNone && int64(count)*minRecordBytes > int64(len(b)-HeaderBytes) {
		return invalid("record count " + strconv.Itoa(int(count)) + " does not fit " + strconv.Itoa(len(b)-HeaderBytes) + " bytes of records")
	}
	if b.IsControl() {
		return invalid("producers must not write control batches")
	}
	if b.ProducerID() >= 0 && b.BaseSequence() < 0 {
		return invalid("base sequence " + strconv.Itoa(int(b.BaseSequence())) + " in a batch with a producer id")
	}
	if !codec.Valid() {
		return fmt.Errorf("validate record batch: %w: %d", ErrUnsupportedCodec, codec)
	}
	if codec == CodecZstd && r.ProduceVersion < zstdProduceVersion {
		return fmt.Errorf("validate record batch: %w: zstd in produce version %d, needs %d", ErrUnsupportedCodec, r.ProduceVersion, zstdProduceVersion)
	}
	if b.TimestampType() == LogAppendTime {
		return &InvalidError{Message: "producers must not set the timestamp type to LogAppendTime", kind: ErrInvalidTimestamp}
	}
	return nil
}

// headerSettlesTimestamps reports whether the header alone shows that the
// timestamps are within bounds and that maxTimestamp needs no correction.
func headerSettlesTimestamps(b Batch, r *Rules) bool {
	largest := b.MaxTimestamp()
	return largest > 0 && largest >= b.BaseTimestamp() && !bounded(r.BeforeMax) && r.timestampOK(largest)
}

func stampAppendTime(b Batch, now int64) {
	b.setAttributes(b.Attributes() | attrLogAppendTime)
	b.setMaxTimestamp(now)
}

// validateRecords is the slow path: it parses every record, and on the way
// compresses them anew if asked to. Records keep their bytes, as timestamp and
// offset deltas stay true.
func validateRecords(b Batch, r *Rules, recompress bool) (Batch, error) {
	slot := acquireSlot(b)
	defer releaseSlot(slot)
	var out *recompressor
	if recompress {
		out = newRecompressor(b, r.Codec, r.Level)
	}
	largest, err := parseRecords(b, r, out)
	if err != nil {
		return nil, err
	}
	if out != nil {
		if b, err = out.finish(); err != nil {
			return nil, err
		}
		if r.MaxBytes > 0 && len(b) > r.MaxBytes {
			return nil, tooLarge(len(b), r.MaxBytes)
		}
	}
	switch {
	case r.LogAppendTime:
		stampAppendTime(b, r.Now)
	case largest != b.MaxTimestamp():
		b.setMaxTimestamp(largest)
	case !recompress:
		return b, nil // as received
	}
	b.Seal()
	return b, nil
}

// parseRecords checks every record and returns the largest timestamp.
func parseRecords(b Batch, r *Rules, out *recompressor) (int64, error) {
	var s *scanner
	var err error
	if out != nil {
		s, err = openScanner(b, r.DecompressedLimit, out)
	} else {
		s, err = openScanner(b, r.DecompressedLimit, nil)
	}
	if err != nil {
		return 0, unreadable(err)
	}
	defer s.close()
	base, largest := b.BaseTimestamp(), int64(math.MinInt64)
	var faults recordFaults
	for {
		ok, err := s.next()
		if err != nil {
			return 0, unreadable(err)
		}
		if !ok {
			return largest, faults.err()
		}
		index, timestamp := s.index-1, base+s.f.timestampDelta
		largest = max(largest, timestamp)
		switch {
		case r.KeyRequired && s.f.key == nil:
			faults.add(faultKey, index, "a compacted topic needs a key")
		case !r.timestampOK(timestamp):
			faults.add(faultTimestamp, index, "timestamp "+strconv.FormatInt(timestamp, 10)+" is out of the topic's bounds around "+strconv.FormatInt(r.Now, 10))
		case s.f.offsetDelta != index:
			faults.add(faultOffset, index, "offset delta "+strconv.Itoa(int(s.f.offsetDelta))+" is not its position")
		}
	}
}

// recordFaults gathers the errors of single records.
type recordFaults struct {
	kinds   [3]int // number of faults per kind
	records []RecordError
}

// The kinds of faults, in the order in which they decide the error of the batch.
const (
	faultKey = iota
	faultTimestamp
	faultOffset
)

func (f *recordFaults) add(kind int, index int32, message string) {
	f.kinds[kind]++
	if len(f.records) < MaxRecordErrors {
		f.records = append(f.records, RecordError{Index: index, Message: message})
	}
}

func (f *recordFaults) err() error {
	if len(f.records) == 0 {
		return nil
	}
	e := &InvalidError{Records: f.records}
	total := f.kinds[faultKey] + f.kinds[faultTimestamp] + f.kinds[faultOffset]
	e.Message = strconv.Itoa(total) + " records of the batch are invalid"
	if f.kinds[faultKey] == 0 && f.kinds[faultTimestamp] > 0 {
		e.kind = ErrInvalidTimestamp
	}
	return e
}

// unreadable turns a fault of the bytes into the producer's fault: the checksum
// fits, so it is what the producer sent, and sending it again won't help (which
// is what ErrCorrupt would suggest).
func unreadable(err error) error {
	if isCorrupt(err) {
		return &InvalidError{Message: err.Error()}
	}
	return fmt.Errorf("validate record batch: %w", err)
}

func invalid(message string) error { return &InvalidError{Message: message} }

func tooLarge(have, limit int) error {
	return fmt.Errorf("validate record batch: %w: %d bytes, limit %d", ErrTooLarge, have, limit)
}
