package raftlog

import (
	"errors"
	"fmt"
)

// makeAhead makes the next segment while there is room in the present one, so that no append has to wait for it.
func (l *Log) makeAhead() {
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
			l.makeSpare()
		}
	}
}

// makeSpare makes sure that a segment follows the active one. For lack of space it does nothing: whoever needs the segment
// tries again, and is told. Any other error is the log's.
func (l *Log) makeSpare() {
	l.shaping.Lock()
	defer l.shaping.Unlock()
	l.mu.RLock()
	n := len(l.mu.segments)
	spare := n > 0 && l.mu.segments[n-1].number > l.mu.active
	failed := l.mu.err != nil
	l.mu.RUnlock()
	if spare || failed {
		return
	}
	_, _ = l.makeSegment(0)
}

// makeSegment makes the next segment, with at least that many sectors: a file of zeros, durable with its name before the record has
// it. The caller holds shaping. An error for lack of space leaves everything as it was; any other is the log's.
func (l *Log) makeSegment(sectors int) (*segment, error) {
	if err := l.failed(); err != nil {
		return nil, err
	}
	s := l.shaping.made
	if s != nil && s.sectors < sectors { // of another caller; it is recorded and stays empty
		if err := l.recordSegment(s); err != nil {
			return nil, err
		}
		s = nil
	}
	if s == nil {
		var err error
		if s, err = l.makeFile(sectors); err != nil {
			return nil, err
		}
	}
	return s, l.recordSegment(s)
}

// makeFile makes the file of the next segment; when the disk is full, a small one.
func (l *Log) makeFile(sectors int) (*segment, error) {
	number := l.shaping.last + 1
	full := l.limit
	for size, n := smallestBytes/sectorBytes, uint64(1); size < full; size, n = size*segmentGrowth, n+1 {
		if number <= n {
			full = size
		}
	}
	small := max(sectors, min(full, smallestBytes/sectorBytes))
	s, err := l.fill(number, max(sectors, full))
	if err != nil && RefusedForSpace(err) && small < full {
		s, err = l.fill(number, small)
	}
	if err == nil || RefusedForSpace(err) {
		return s, err
	}
	return nil, l.fail(err)
}

// fill makes a segment's file.
func (l *Log) fill(number uint64, sectors int) (*segment, error) {
	name := segmentName(number)
	f, err := l.files.create(name)
	if err != nil {
		return nil, fmt.Errorf("make segment %d of the raft log: %w", number, err)
	}
	s := &segment{number: number, file: f, sectors: sectors, sealer: newSealer(l.shaping.id, number), next: firstSector}
	for at, size := int64(0), int64(sectors)*sectorBytes; at < size && err == nil; at += int64(len(zeros)) {
		_, err = f.WriteAt(zeros[:min(int64(len(zeros)), size-at)], at)
	}
	if err == nil {
		_, err = f.WriteAt(header(l.shaping.id, number, sectors, s.sealer), 0)
	}
	if err == nil && l.mutants&mutantSegmentUnsynced == 0 {
		err = f.sync()
	}
	if err == nil && l.mutants&mutantNameUnsynced == 0 {
		err = l.files.syncNames()
	}
	if err != nil {
		err = fmt.Errorf("make segment %d of the raft log: %w", number, err)
		return nil, errors.Join(err, f.Close(), l.files.remove(name))
	}
	return s, nil
}

// recordSegment puts a segment into the record, and then into use.
func (l *Log) recordSegment(s *segment) error {
	r := l.noted()
	r.last = s.number
	l.shaping.made = s
	if err := l.keep.Store(r.encode()); err != nil {
		err = fmt.Errorf("record segment %d of the raft log: %w", s.number, err)
		if !RefusedForSpace(err) {
			return l.fail(err)
		}
		return err
	}
	l.shaping.made, l.shaping.record = nil, r
	l.mu.Lock()
	l.mu.segments = append(l.mu.segments, s)
	l.mu.Unlock()
	return nil
}
