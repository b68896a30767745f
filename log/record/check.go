package record

import (
	"fmt"
	"math"
)

// Check reports whether the bytes are a batch as a leader stores it: its header
// is plausible and the checksum fits. Recovery, replication and the scrubber
// all decide with it (I19, L22); they add what only they know, such as the
// base offset that must follow. The error is ErrCorrupt.
//
// It does not look at the records: a batch whose checksum fits was accepted by
// a leader with exactly these bytes.
func (b Batch) Check() error {
	h, err := ParseHeader(b)
	if err != nil {
		return fmt.Errorf("check record batch: %w: %w", ErrCorrupt, err)
	}
	if h.Size() != len(b) {
		return fmt.Errorf("check record batch at offset %d: %w: %d bytes, header says %d", h.BaseOffset, ErrCorrupt, len(b), h.Size())
	}
	if err := h.Check(); err != nil {
		return err
	}
	if !b.CheckCRC() {
		return fmt.Errorf("check record batch at offset %d: %w: checksum %08x does not fit", h.BaseOffset, ErrCorrupt, h.CRC)
	}
	return nil
}

// Check reports whether the header is one that a leader may have stored. It is
// the part of [Batch.Check] that needs no record bytes: garbage fails it early,
// but passing it proves nothing. The error is ErrCorrupt.
//
// A stored batch differs from a produced one: compaction keeps LastOffsetDelta
// when it removes records, so Count may be smaller, down to 0 (the empty batch
// that keeps a producer's last sequence, L18).
func (h *Header) Check() error {
	switch {
	case h.BaseOffset < 0:
		return h.corrupt("base offset is negative")
	case h.LastOffsetDelta < 0:
		return h.corrupt("last offset delta is negative")
	case h.BaseOffset > math.MaxInt64-int64(h.LastOffsetDelta)-1:
		return h.corrupt("offsets overflow")
	case h.LeaderEpoch < 0:
		return h.corrupt("leader epoch is negative")
	case h.Count < 0 || int64(h.Count) > int64(h.LastOffsetDelta)+1:
		return h.corrupt("record count does not fit the offsets")
	case !h.Codec().Valid():
		return h.corrupt("codec does not exist")
	case h.Codec() == CodecNone && int64(h.Count)*minRecordBytes > int64(h.Size()-HeaderBytes):
		return h.corrupt("more records than bytes for them")
	}
	return nil
}

func (h *Header) corrupt(what string) error {
	return fmt.Errorf("check record batch at offset %d: %w: %s (epoch %d, count %d, last offset delta %d, attributes %#x)",
		h.BaseOffset, ErrCorrupt, what, h.LeaderEpoch, h.Count, h.LastOffsetDelta, h.Attributes)
}
