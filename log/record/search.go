package record

// Position is where a record is and when it was written.
type Position struct {
	Offset    int64
	Timestamp int64 // ms
}

// FirstSince finds the first record with a timestamp ≥ timestamp (ms), as
// ListOffsets by time wants it: exact to the record. found is false if the
// batch has none; a caller should look at MaxTimestamp first, which settles
// that without decompressing. In a LogAppendTime batch every record carries the
// batch's time. limit and errors are as for [Batch.Each].
func (b Batch) FirstSince(timestamp int64, limitBytes int) (p Position, found bool, err error) {
	return b.search(limitBytes, func(ts int64) bool { return ts >= timestamp })
}

// LatestTimestamp finds the first record that carries the batch's largest
// timestamp (KIP-734). found is false in a batch without records. limit and
// errors are as for [Batch.Each].
func (b Batch) LatestTimestamp(limitBytes int) (p Position, found bool, err error) {
	slot := acquireSlot(b)
	defer releaseSlot(slot)
	s, err := openScanner(b, limitBytes, nil)
	if err != nil {
		return Position{}, false, err
	}
	defer s.close()
	appendTime := b.TimestampType() == LogAppendTime
	for {
		ok, err := s.next()
		if err != nil {
			return Position{}, false, err
		}
		if !ok {
			return p, found, nil
		}
		at := Position{Offset: b.BaseOffset() + int64(s.f.offsetDelta), Timestamp: b.BaseTimestamp() + s.f.timestampDelta}
		if appendTime {
			at.Timestamp = b.MaxTimestamp()
			return at, true, nil
		}
		if !found || at.Timestamp > p.Timestamp {
			p, found = at, true
		}
	}
}

func (b Batch) search(limitBytes int, match func(int64) bool) (Position, bool, error) {
	slot := acquireSlot(b)
	defer releaseSlot(slot)
	s, err := openScanner(b, limitBytes, nil)
	if err != nil {
		return Position{}, false, err
	}
	defer s.close()
	for {
		ok, err := s.next()
		if !ok {
			return Position{}, false, err
		}
		timestamp := b.BaseTimestamp() + s.f.timestampDelta
		if b.TimestampType() == LogAppendTime {
			timestamp = b.MaxTimestamp()
		}
		if match(timestamp) {
			return Position{Offset: b.BaseOffset() + int64(s.f.offsetDelta), Timestamp: timestamp}, true, nil
		}
	}
}
