package raftlog

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"syscall"

	"github.com/hashicorp/raft"
)

// StoreLogs appends entries, durably when it returns nil: one write and one sync, or several of each for more than fit into a
// segment; then any number of the first may be there after a crash. Their indexes must be above the last; one that leaves a
// gap is allowed.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	stored := l.writing.stored // of a call that is repeated
	l.writing.stored = 0
	for len(entries) > 0 && entries[0].Index <= stored {
		entries = entries[1:]
	}
	for len(entries) > 0 {
		n, bytes, err := l.fit(entries)
		if err == nil {
			err = l.append(entries[:n], bytes, entries[0].Index)
		}
		if err != nil {
			if RefusedForSpace(err) {
				l.writing.stored = stored
			}
			return err
		}
		stored = entries[n-1].Index
		entries = entries[n:]
	}
	return nil
}

// fit returns how many of the entries, at least one, make the next batch, and how many bytes it has.
func (l *Log) fit(entries []*raft.Log) (n, bytes int, err error) {
	l.mu.RLock()
	_, last := l.boundsLocked()
	last = max(last, l.mu.head-min(l.mu.head, 1))
	l.mu.RUnlock()
	if entries[0].Index <= last {
		return 0, 0, fmt.Errorf("raft entry %d can't follow entry %d", entries[0].Index, last)
	}
	bytes = batchHead
	for i, e := range entries {
		size, err := entryBytes(e)
		if err != nil {
			return 0, 0, err
		}
		if i > 0 && (e.Index != entries[i-1].Index+1 || sectorsFor(bytes+size) > l.limit-firstSector) {
			return i, bytes, nil
		}
		bytes += size
	}
	return len(entries), bytes, nil
}

func (l *Log) bounds() (first, last uint64) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.boundsLocked()
}

// append writes one batch: entries, or without any a cut at index.
func (l *Log) append(entries []*raft.Log, bytes int, index uint64) error {
	if err := l.failed(); err != nil {
		return err
	}
	s, err := l.place(sectorsFor(bytes), index, len(entries) > 0)
	if err != nil {
		return err
	}
	number, at := l.mu.next, s.next
	e := &l.writing.encoder
	e.begin()
	for _, entry := range entries {
		e.add(entry)
	}
	b := e.end(s.sealer, at, len(entries), index, number)
	if err := l.write(s, b, at); err != nil {
		return err
	}
	l.mu.Lock()
	if s.nextBatch == s.firstBatch {
		s.firstBatch = number
	}
	s.last, s.next, s.nextBatch, l.mu.next = at, at+len(b)/sectorBytes, number+1, number+1
	l.mu.active = s.number
	if len(entries) == 0 {
		l.cutLocked(index)
	}
	off := at*sectorData + batchHead
	for _, entry := range entries {
		if len(s.at) == 0 {
			s.first = entry.Index
		}
		n := entryHead + len(entry.Data) + len(entry.Extensions)
		s.at = append(s.at, position{uint32(off), uint32(n)})
		off += n
	}
	l.mu.Unlock()
	if cap(e.buf) > keptBuffer {
		e.buf = nil
	}
	if s.next > s.sectors/2 { // a spare in time, and none before it is likely to be needed
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// write puts the batch b into s, durably. What is refused for lack of space may be tried again, but only as it was: two
// different batches in the same place would leave sectors of both after a crash.
func (l *Log) write(s *segment, b []byte, at int) error {
	sum := crc32.Checksum(b, castagnoli)
	if l.writing.refused != nil && *l.writing.refused != sum && l.mutants&mutantAnyRetry == 0 {
		return l.fail(errRefused)
	}
	if _, err := s.file.WriteAt(b, int64(at)*sectorBytes); err != nil {
		err = fmt.Errorf("append to segment %d: %w", s.number, err)
		if !RefusedForSpace(err) {
			return l.fail(err)
		}
		l.writing.refused = &sum
		return err
	}
	l.writing.refused = nil
	if l.mutants&mutantNoSync != 0 {
		return nil
	}
	if err := s.file.sync(); err != nil {
		return l.fail(fmt.Errorf("sync segment %d: %w", s.number, err))
	}
	return nil
}

// RefusedForSpace reports whether err is a write, or a new file, that the file system refused because the disk, or what its owner
// may use of it, is full. Nothing of it counts then. A sync that failed is none, whatever its reason (M7).
func RefusedForSpace(err error) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && (path.Op == "write" || path.Op == "open") && (errors.Is(path.Err, syscall.ENOSPC) || errors.Is(path.Err, syscall.EDQUOT))
}

// place returns a segment for a batch of that many sectors: the active one or one after it.
func (l *Log) place(sectors int, index uint64, entries bool) (*segment, error) {
	if s := l.roomFor(sectors, index, entries); s != nil {
		return s, nil
	}
	l.shaping.Lock()
	defer l.shaping.Unlock()
	if s := l.roomFor(sectors, index, entries); s != nil { // it was being made
		return s, nil
	}
	if l.writing.refused != nil && l.mutants&mutantAnyRetry == 0 {
		return nil, l.fail(errRefused)
	}
	return l.makeSegment(firstSector + sectors)
}

// roomFor returns the first segment from the active one on that has room for a batch. The entries of one segment have no gap.
func (l *Log) roomFor(sectors int, index uint64, entries bool) *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, s := range l.mu.segments {
		if s.number < l.mu.active || s.next+sectors > s.sectors || entries && len(s.at) > 0 && s.end() != index {
			continue
		}
		return s
	}
	return nil
}
