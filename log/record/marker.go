package record

import (
	"encoding/binary"
	"fmt"
)

// Marker is a transaction marker: the control record that ends a transaction in
// one partition (KIP-98). Its batch is transactional, not compressed, has the
// producer's id and epoch and no sequence, and takes one offset.
//
//	key:   version i16 = 0 | type i16 (0 abort, 1 commit)
//	value: version i16 = 0 | coordinatorEpoch i32
type Marker struct {
	Commit           bool // else abort
	CoordinatorEpoch int32
}

const (
	markerAbort  = 0
	markerCommit = 1
)

// Batch returns the control batch of m for a producer, dated timestamp (ms).
func (m Marker) Batch(producerID int64, producerEpoch int16, timestamp int64) Batch {
	var key [4]byte
	if m.Commit {
		key[3] = markerCommit
	}
	var value [6]byte
	binary.BigEndian.PutUint32(value[2:], uint32(m.CoordinatorEpoch))
	b := NewBuilder(CodecNone)
	b.ProducerID, b.ProducerEpoch = producerID, producerEpoch
	b.Transactional, b.Control = true, true
	b.Add(timestamp, key[:], value[:], nil)
	return b.Build()
}

// ParseMarker decodes the marker in a control batch. ok is false for a control
// record of another type, which readers skip. Later versions of key and value
// may only add bytes at their ends.
func ParseMarker(b Batch) (m Marker, ok bool, err error) {
	if !b.IsControl() {
		return Marker{}, false, fmt.Errorf("read marker at offset %d: %w: not a control batch", b.BaseOffset(), ErrCorrupt)
	}
	s, err := openScanner(b, 0, nil)
	if err != nil {
		return Marker{}, false, err
	}
	defer s.close()
	switch found, err := s.next(); {
	case err != nil:
		return Marker{}, false, err
	case !found:
		return Marker{}, false, fmt.Errorf("read marker at offset %d: %w: empty control batch", b.BaseOffset(), ErrCorrupt)
	case len(s.f.key) < 4:
		return Marker{}, false, s.corrupt("control record's key is too short")
	}
	kind := binary.BigEndian.Uint16(s.f.key[2:])
	if kind != markerAbort && kind != markerCommit {
		return Marker{}, false, nil
	}
	if len(s.f.value) < 6 {
		return Marker{}, false, s.corrupt("marker's value is too short")
	}
	return Marker{Commit: kind == markerCommit, CoordinatorEpoch: int32(binary.BigEndian.Uint32(s.f.value[2:]))}, true, nil
}
