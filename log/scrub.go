package log

import (
	"errors"
	"fmt"
)

// scrubber reads sealed segments slowly, round and round, and checks every batch: bit rot is found before the replica
// with it becomes the only one (L9, I19). It belongs to Tick.
type scrubber struct {
	// key, base and position are where the next step goes on: in the first log at or behind key, in its first segment
	// at or behind base.
	topic     string
	partition int32
	base      int64
	position  int64
	// seg and cuts are the segment that position is a boundary of, and Log.cuts then: a segment that was cut and filled
	// anew, or another partition's of the same name, is begun at the beginning.
	seg  *segment
	cuts uint64
	buf  []byte
	// rounds counts the times it came around.
	rounds int64
}

// scrub checks about ScrubBytes more bytes. Only what is sealed and below the recovery point is looked at: what lies
// above may still be rewritten.
func (d *Dir) scrub(logs []*Log) {
	left := d.cfg.ScrubBytes
	s := &d.tick.scrub
	for left > 0 && d.failed() == nil {
		l, seg := s.find(logs)
		if l == nil {
			*s = scrubber{buf: s.buf, rounds: s.rounds + 1}
			return // one round at most per step
		}
		n, err := l.scrubSegment(seg, s, left)
		left -= n
		switch {
		case isGone(err):
			s.skip(l, seg) // deleted meanwhile
		case errors.Is(err, errTorn), errors.Is(err, ErrCorrupt):
			_ = l.markCorrupt(fmt.Errorf("scrub segment %d: %w", seg.base, err))
			s.skip(l, seg)
		case err != nil:
			l.logger().Warn("segment could not be scrubbed", "segment", seg.base, "error", err)
			s.skip(l, seg)
		}
		d.metrics.scrubbedBytes.Add(float64(n))
	}
}

// find returns the segment where the scrubber stands, nil at the end of the round. logs are sorted.
func (s *scrubber) find(logs []*Log) (*Log, *segment) {
	for _, l := range logs {
		if l.topic < s.topic || l.topic == s.topic && l.partition < s.partition {
			continue
		}
		if l.topic != s.topic || l.partition != s.partition {
			s.topic, s.partition, s.base, s.seg = l.topic, l.partition, 0, nil
		}
		if l.Corrupt() != nil {
			continue
		}
		l.mu.Lock()
		var found *segment
		for _, seg := range l.mu.segments[:len(l.mu.segments)-1] {
			if seg.base >= s.base && seg.next <= l.mu.recoveryPoint && l.mu.closed == nil {
				found = seg
				break
			}
		}
		l.mu.Unlock()
		if found != nil {
			s.base = found.base
			if cuts := l.cuts.Load(); found != s.seg || cuts != s.cuts {
				s.seg, s.cuts, s.position = found, cuts, 0
			}
			return l, found
		}
	}
	return nil, nil
}

// skip moves behind a segment.
func (s *scrubber) skip(l *Log, seg *segment) {
	s.topic, s.partition, s.base, s.seg = l.topic, l.partition, seg.base+1, nil
}

// scrubSegment checks batches from the scrubber's position on, about limit bytes, and moves it. It returns the bytes
// checked.
func (l *Log) scrubSegment(seg *segment, s *scrubber, limit int64) (int64, error) {
	cuts := s.cuts // from before the size was read: a truncation in between must be noticed
	l.mu.Lock()
	size, epochList := seg.size, l.mu.epochs.list
	l.mu.Unlock()
	h, err := l.dir.files.acquire(&seg.log)
	if err != nil {
		return 0, err
	}
	defer l.dir.files.release(h)
	scan := batchScan{file: h.file, pos: s.position, size: size, buf: s.buf}
	for scan.pos-s.position < limit {
		b, err := scan.next()
		s.buf = scan.buf
		if b != nil {
			header := b.Header()
			err = fits(epochList, &header)
		}
		if err != nil {
			if cuts%2 == 1 || l.cuts.Load() != cuts {
				err = errGone // truncated under us: what was read may be anything
			}
			return scan.pos - s.position, err
		}
		if b == nil {
			n := scan.pos - s.position
			s.skip(l, seg)
			return max(n, 1), l.scrubAborted(seg)
		}
		scan.skip(b)
	}
	n := scan.pos - s.position
	s.position = scan.pos
	return n, nil
}
