package raftlog

import "fmt"

// DeleteRange removes the entries first … last, both included, durably when it returns nil: from the front of the log, which
// drops the segments that nothing is left of, or a tail, for which one batch says where the log is cut. Entries in the middle
// can't be removed.
func (l *Log) DeleteRange(first, last uint64) error {
	begin, end := l.bounds()
	switch {
	case end == 0 || last < begin || first > end || last < first:
		return nil
	case last >= end && first <= begin:
		return l.cut(0)
	case last >= end:
		return l.cut(first)
	case first > begin:
		return fmt.Errorf("remove raft entries %d to %d: the log has %d to %d, none can be removed from its middle", first, last, begin, end)
	}
	return l.behead(last + 1)
}

// cut removes the entries from index on; 0 = all. What follows in the log follows the cut, so that nothing before it can come
// back: neither the entries nor their places are touched.
func (l *Log) cut(index uint64) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.mutants&mutantCutUnwritten != 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cutLocked(index)
		return nil
	}
	return l.append(nil, batchHead, index)
}

func (l *Log) cutLocked(index uint64) {
	for _, s := range l.mu.segments {
		s.cut(index)
	}
}

// behead removes the entries before index, one that is not the last.
func (l *Log) behead(index uint64) error {
	l.shaping.Lock()
	defer l.shaping.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	r := l.noted()
	r.head = max(r.head, index)
	l.mu.RLock()
	n := 0
	for _, s := range l.mu.segments {
		if s.number >= l.mu.active || len(s.at) > 0 && s.end() > r.head {
			break
		}
		n++
	}
	gone := l.mu.segments[:n:n]
	if n > 0 {
		front := l.mu.segments[n]
		r.first, r.batch = front.number, front.firstBatch
	}
	l.mu.RUnlock()
	if l.mutants&mutantUnlinkFirst != 0 {
		l.unlink(gone)
	}
	if err := l.keep.Store(r.encode()); err != nil {
		err = fmt.Errorf("record that the raft log begins at entry %d: %w", index, err)
		if !RefusedForSpace(err) {
			return l.fail(err)
		}
		return err
	}
	l.shaping.record = r
	l.mu.Lock()
	l.mu.segments, l.mu.head = l.mu.segments[n:], r.head
	for _, s := range l.mu.segments {
		s.behead(r.head)
	}
	l.mu.Unlock()
	l.unlink(gone)
	return nil
}

// unlink removes files that the record does not have any more. What fails here is made up for when the log is opened.
func (l *Log) unlink(gone []*segment) {
	for _, s := range gone {
		err := s.file.Close()
		if removeErr := l.files.remove(segmentName(s.number)); err != nil || removeErr != nil {
			l.logger.Warn("a segment of the raft log that is no longer needed stays", "segment", s.number, "close", err, "remove", removeErr)
		}
	}
}
