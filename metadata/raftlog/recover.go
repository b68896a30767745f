package raftlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Open opens a log and reads all of it. What an append left behind that was cut off by a crash, and was therefore never
// acknowledged, is erased; anything else that is not as it was written is an error that matches ErrDamaged, with which
// nothing was changed.
func Open(o Options) (*Log, error) {
	l := newLog(o)
	text, err := o.Record.Load()
	if err != nil {
		return nil, fmt.Errorf("read the record of the raft log: %w", err)
	}
	if l.shaping.record, err = decodeRecord(text); err != nil {
		return nil, fmt.Errorf("open the raft log: %w", err)
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the raft log: %w", err), l.closeFiles())
	}
	l.start(o)
	return l, nil
}

// tornBatch is what is left of an append in a segment: sectors from … to-1 are zeros or its own.
type tornBatch struct {
	in       *segment
	from, to int
}

// recover reads the segments that the record names, and puts the last append right.
func (l *Log) recover() error {
	r := &l.shaping.record
	if r.last < r.first || r.last-r.first > 1<<20 || r.first == 0 {
		return fmt.Errorf("its record names segments %d to %d: %w", r.first, r.last, ErrDamaged)
	}
	l.mu.next = r.batch
	var torn tornBatch
	var b []byte
	for number := r.first; number <= r.last; number++ {
		s, err := l.openSegment(number)
		if err != nil {
			return err
		}
		l.mu.segments = append(l.mu.segments, s)
		if n := s.sectors * sectorBytes; cap(b) < n {
			b = make([]byte, n)
		}
		b = b[:s.sectors*sectorBytes]
		if _, err := s.file.ReadAt(b, 0); err != nil {
			return fmt.Errorf("read segment %d: %w", number, err)
		}
		if err := l.replay(s, b, &torn); err != nil {
			return fmt.Errorf("segment %d, %w", number, err)
		}
	}
	if l.mu.next < r.durable && l.mutants&mutantNoDurable == 0 {
		return fmt.Errorf("batches %d to %d are gone: %w", l.mu.next, r.durable-1, ErrDamaged)
	}
	l.mu.head = r.head
	for _, s := range l.mu.segments {
		s.behead(r.head)
	}
	if l.frozen {
		return nil
	}
	if err := l.clearStray(); err != nil {
		return err
	}
	return l.settle(torn)
}

// openSegment opens the file of a segment and checks its header and size.
func (l *Log) openSegment(number uint64) (*segment, error) {
	f, err := l.files.open(segmentName(number))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("segment %d is gone: %w", number, ErrDamaged)
	}
	if err != nil {
		return nil, fmt.Errorf("segment %d: %w", number, err)
	}
	s := &segment{number: number, file: f, sealer: newSealer(l.shaping.id, number), next: firstSector}
	size, err := f.size()
	b := make([]byte, firstSector*sectorBytes)
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	if err == nil {
		var ok bool
		if s.sectors, ok = checkHeader(b[:sectorBytes], l.shaping.id, number, s.sealer); !ok || !empty(b[sectorBytes:]) {
			err = fmt.Errorf("its header: %w", ErrDamaged)
		} else if size != int64(s.sectors)*sectorBytes {
			err = fmt.Errorf("it has %d bytes, not %d: %w", size, s.sectors*sectorBytes, ErrDamaged)
		}
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("it has %d bytes: %w", size, ErrDamaged)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("segment %d: %w", number, err), f.Close())
	}
	return s, nil
}

// replay reads the batches of s, all of which is in b. torn is what an earlier segment, or this one, has of a batch that is
// not whole.
func (l *Log) replay(s *segment, b []byte, torn *tornBatch) error {
	sector := func(at int) []byte { return b[at*sectorBytes:][:sectorBytes] }
	damaged := func(at int, why string) error { return fmt.Errorf("sector %d: %s: %w", at, why, ErrDamaged) }
	for s.next < s.sectors {
		at, want := s.next, l.mu.next
		first := sector(at)
		if empty(first) {
			break
		}
		if torn.in != nil {
			return damaged(at, fmt.Sprintf("batch %d follows one that is not whole", want))
		}
		if !s.sealer.whole(at, first) {
			return l.orTorn(torn, s, at, damaged(at, "it is not what was written"))
		}
		h := readBatch(first)
		if (sectorTag(first) != tagOf(want) || h.number != want) && l.mutants&mutantNoNumbers == 0 {
			return damaged(at, fmt.Sprintf("batch %d is there, batch %d should be", h.number, want))
		}
		n := sectorsFor(h.bytes)
		if h.bytes < batchHead || n > s.sectors-at {
			return damaged(at, fmt.Sprintf("batch %d has %d bytes", want, h.bytes))
		}
		for i := at + 1; i < at+n; i++ {
			if empty(sector(i)) {
				return l.findTorn(torn, s, b, at, n)
			}
			if !s.sealer.whole(i, sector(i)) || sectorTag(sector(i)) != tagOf(h.number) {
				return l.orTorn(torn, s, at, damaged(i, "it is not what was written"))
			}
		}
		// The sums in b are of no use any more.
		if err := l.take(s, at, h, unpack(b[at*sectorBytes : (at+n)*sectorBytes])[:h.bytes]); err != nil {
			return fmt.Errorf("batch %d: %w", want, err)
		}
		s.next, s.last, s.nextBatch, l.mu.next, l.mu.active = at+n, at, h.number+1, h.number+1, s.number
	}
	return l.findTorn(torn, s, b, s.next, s.sectors-s.next)
}

// findTorn looks at what stands where the next batch would: nothing, or, in sectors at … at+n-1, some of those of an append that was
// cut off. Behind that only zeros may be.
func (l *Log) findTorn(torn *tornBatch, s *segment, b []byte, at, n int) error {
	tag := tagOf(l.mu.next)
	end := at
	for i := at; i < s.sectors; i++ {
		sector := b[i*sectorBytes:][:sectorBytes]
		if empty(sector) {
			continue
		}
		if !s.sealer.whole(i, sector) || sectorTag(sector) != tag || i >= at+n || torn.in != nil {
			return l.orTorn(torn, s, at, fmt.Errorf("sector %d: it should be empty, behind the end of the log: %w", i, ErrDamaged))
		}
		end = i + 1
	}
	if end > at {
		*torn = tornBatch{s, at, end}
	}
	return nil
}

// orTorn is err, but for a mutant.
func (l *Log) orTorn(torn *tornBatch, s *segment, at int, err error) error {
	if l.mutants&mutantRotIsTorn == 0 {
		return err
	}
	if torn.in == nil {
		*torn = tornBatch{s, at, s.sectors}
	}
	return nil
}

// take adds what a whole batch says to the log in memory. b is the batch's bytes, at its first sector.
func (l *Log) take(s *segment, at int, h batch, b []byte) error {
	if !h.verify(b) {
		return fmt.Errorf("its sum: %w", ErrDamaged)
	}
	if s.nextBatch == s.firstBatch {
		s.firstBatch = h.number
	}
	if h.count == 0 {
		l.cutLocked(h.index)
		return nil
	}
	_, last := l.boundsLocked()
	if h.index == 0 || h.index <= last || len(s.at) > 0 && h.index != s.end() {
		return fmt.Errorf("entry %d follows entry %d: %w", h.index, last, ErrDamaged)
	}
	if len(s.at) == 0 {
		s.first = h.index
	}
	err := h.entries(b, func(_ uint64, off int, entry []byte) {
		s.at = append(s.at, position{uint32(at*sectorData + off), uint32(len(entry))})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, ErrDamaged)
	}
	return nil
}

// settle makes what was read durable, and everything behind it empty. It writes all of that anew: what a failed sync, or a
// start that was cut off, left in the file system's memory looks like what is on the disk. After a clean end there is nothing
// to do.
func (l *Log) settle(torn tornBatch) error {
	if torn.in == nil && l.shaping.closed == l.mu.next {
		return nil
	}
	if torn.in != nil {
		l.logger.Info("an append to the raft log that was cut off is erased", "segment", torn.in.number, "batch", l.mu.next, "sectors", torn.to-torn.from)
	}
	if l.shaping.closed != 0 { // once erased, it can't be seen any more that the end was not clean
		r := l.shaping.record
		r.closed = 0
		if err := l.keep.Store(r.encode()); err != nil {
			return fmt.Errorf("record that the raft log was not closed: %w", err)
		}
		l.shaping.record = r
	}
	for _, s := range l.mu.segments {
		if s.number < l.mu.active {
			continue
		}
		if err := l.rewrite(s, torn); err != nil {
			return fmt.Errorf("settle segment %d: %w", s.number, err)
		}
	}
	return nil
}

// rewrite writes the last batch of s, and zeros behind it.
func (l *Log) rewrite(s *segment, torn tornBatch) error {
	if s.number == l.mu.active && l.mutants&mutantCached == 0 {
		b := make([]byte, (s.next-s.last)*sectorBytes)
		at := int64(s.last) * sectorBytes
		if _, err := s.file.ReadAt(b, at); err != nil {
			return err
		}
		if _, err := s.file.WriteAt(b, at); err != nil {
			return err
		}
	}
	from, to := s.next, s.sectors
	if l.mutants&(mutantTornStays|mutantErasedOnce) != 0 {
		if from, to = torn.from, torn.to; l.mutants&mutantTornStays != 0 {
			return s.file.sync()
		} else if torn.in != s {
			return nil
		}
	}
	for at := from; at < to; {
		n := min(to-at, len(zeros)/sectorBytes)
		if _, err := s.file.WriteAt(zeros[:n*sectorBytes], int64(at)*sectorBytes); err != nil {
			return err
		}
		at += n
	}
	return s.file.sync()
}

// clearStray removes files of segments that the record does not have: those before the first, and one that was being made.
// One behind the last that holds anything says that the record is not the newest.
func (l *Log) clearStray() error {
	names, err := l.files.names()
	if err != nil {
		return fmt.Errorf("list the segments of the raft log: %w", err)
	}
	r := &l.shaping.record
	var gone []string
	for _, name := range names {
		number := segmentNumber(name)
		if number == 0 || number >= r.first && number <= r.last {
			continue
		}
		if number > r.last {
			used, err := l.used(name)
			if err != nil {
				return err
			}
			if used {
				return fmt.Errorf("segment %d is there, and not in the record: %w", number, ErrDamaged)
			}
		}
		gone = append(gone, name)
	}
	if l.frozen {
		return nil
	}
	for _, name := range gone {
		if err := l.files.remove(name); err != nil {
			return fmt.Errorf("remove the segment %s: %w", name, err)
		}
	}
	return nil
}

// used reports whether a file has anything but zeros behind the header of a segment.
func (l *Log) used(name string) (bool, error) {
	f, err := l.files.open(name)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", name, err)
	}
	defer f.Close()
	size, err := f.size()
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", name, err)
	}
	b := make([]byte, 64<<10)
	for at := int64(firstSector * sectorBytes); at < size; at += int64(len(b)) {
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return false, fmt.Errorf("look at %s: %w", name, err)
		}
		for _, c := range b[:n] {
			if c != 0 {
				return true, nil
			}
		}
	}
	return false, nil
}
