package log

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/log/record"
)

// OffsetForTime finds the first record, below the offset limit, whose timestamp in milliseconds is at least ts, exact
// to the record. It returns (-1, -1, -1) if there is none. epoch is the leader epoch of the batch.
func (l *Log) OffsetForTime(ts, limit int64) (offset, timestamp int64, epoch int32, err error) {
	err = l.retryGone(func() error {
		offset, timestamp, epoch, err = l.offsetForTime(ts, limit)
		return err
	})
	return offset, timestamp, epoch, err
}

// retryGone runs fn again while it meets segments that were removed or cut since it looked at the table.
func (l *Log) retryGone(fn func() error) error {
	for {
		cuts := l.cuts.Load()
		if again, err := l.lookAgain(cuts, l.StartOffset(), fn()); !again {
			return err
		}
	}
}

// timeView is what a time lookup copies of a segment under Log.mu.
type timeView struct {
	view
	times     index
	maxOffset int64
	// active says that the segment takes appends: its largest timestamp may not be in the index yet.
	active bool
}

func (l *Log) timeViews(limit int64) (views []timeView, start, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed != nil {
		return nil, 0, 0, fmt.Errorf("look up a time in %s: %w", l, l.mu.closed)
	}
	end = min(limit, l.mu.end)
	for _, seg := range l.mu.segments {
		if seg.base < end && seg.size > 0 && seg.next > l.mu.start {
			views = append(views, timeView{view: seg.view(), times: seg.timeIndex, maxOffset: seg.maxTimestampOffset, active: seg == l.active()})
		}
	}
	return views, l.mu.start, end, nil
}

func (l *Log) offsetForTime(ts, limit int64) (int64, int64, int32, error) {
	views, start, end, err := l.timeViews(limit)
	if err != nil {
		return -1, -1, -1, err
	}
	for i := range views {
		v := &views[i]
		if v.maxTS < ts {
			continue
		}
		from, err := l.timePosition(v, ts)
		if err != nil {
			return -1, -1, -1, err
		}
		p, epoch, found, err := l.firstSince(&v.view, from, ts, start, end)
		if err != nil || found {
			return p.Offset, p.Timestamp, epoch, err
		}
	}
	return -1, -1, -1, nil
}

// timePosition returns where the walk for the first batch with a timestamp ≥ ts begins. When that batch was appended
// the largest timestamp rose to ts or more, and the next index entry, one interval later at most, says so: the batch
// lies in the interval before the first time entry ≥ ts. That entry and the one before must say what their batches say;
// a closed segment must have one, because its last entry holds the largest timestamp of all. If not, the index is
// rebuilt (L6).
func (l *Log) timePosition(v *timeView, ts int64) (indexHit, error) {
	var th *handle
	defer func() {
		if th != nil {
			l.dir.files.release(th)
		}
	}()
	file := func() (_ io.ReaderAt, err error) {
		if th == nil {
			if th, err = l.dir.files.acquire(&v.seg.times); err != nil {
				return nil, err
			}
		}
		return th.file, nil
	}
	begin := indexHit{key: -1}
	n, before, err := v.times.search(ts-1, byKey, file)
	if err == nil && n > 0 {
		err = l.checkTime(v, before)
	}
	if err == nil && n < v.times.count {
		var e indexEntry
		if e, err = v.times.entry(n, file); err == nil {
			err = l.checkTime(v, e)
		}
		if err == nil {
			var hit indexHit
			if hit, err = l.indexPosition(&v.view, int64(e.value)-1, byKey); err == nil {
				return hit, nil
			}
		}
	} else if err == nil && !v.active {
		err = fmt.Errorf("%w: the time index of segment %d ends before its largest timestamp", errIndexBad, v.seg.base)
	} else if err == nil {
		var hit indexHit
		if hit, err = l.indexPosition(&v.view, v.next-v.seg.base, byKey); err == nil {
			return hit, nil
		}
	}
	if errors.Is(err, errIndexBad) || isGone(err) || errors.Is(err, io.ErrUnexpectedEOF) {
		// A bad index costs a walk over the segment's headers, and is rebuilt for the next time.
		return begin, l.rebuildIndex(&v.view)
	}
	return begin, err
}

// checkTime compares a time index entry with the batch that it tells of.
func (l *Log) checkTime(v *timeView, e indexEntry) error {
	h, err := l.dir.files.acquire(&v.seg.log)
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	last := v.seg.base + int64(e.value)
	if last < v.next {
		hdr, _, err := l.locate(&v.view, h, last)
		if err != nil {
			return err
		}
		if hdr.LastOffset() == last && hdr.MaxTimestamp == e.key {
			return nil
		}
	}
	return fmt.Errorf("%w: the time index of segment %d tells of timestamp %d at offset %d", errIndexBad, v.seg.base, e.key, last)
}

// firstSince walks headers from a hit to the first batch with a timestamp ≥ ts and looks into it.
func (l *Log) firstSince(v *view, from indexHit, ts, start, end int64) (p record.Position, epoch int32, found bool, err error) {
	none := record.Position{Offset: -1, Timestamp: -1}
	h, err := l.dir.files.acquire(&v.seg.log)
	if err != nil {
		return none, -1, false, err
	}
	defer l.dir.files.release(h)
	var scan headerScan
	scan.start(h.file, from.position, v.size)
	defer func() { scan.stop() }()
	for first := true; ; first = false {
		ok, err := scan.next()
		if err != nil && first && from.position > 0 || ok && first && from.key >= 0 && scan.header.LastOffset()-v.seg.base != from.key {
			// The index led astray.
			if err := l.rebuildIndex(v); err != nil {
				return none, -1, false, err
			}
			from = indexHit{key: -1}
			scan.stop()
			scan.start(h.file, 0, v.size)
			continue
		}
		if err != nil {
			return none, -1, false, fmt.Errorf("%w: walk segment %d: %w", errSuspect, v.seg.base, err)
		}
		if !ok || scan.header.BaseOffset >= end {
			return none, -1, false, nil
		}
		if scan.header.MaxTimestamp < ts || scan.header.NextOffset() <= start {
			continue
		}
		b, err := l.readBatch(h, &scan)
		if err != nil {
			return none, -1, false, err
		}
		p, found, err := firstRecordSince(b, ts, start)
		if err != nil {
			return none, -1, false, fmt.Errorf("look up a time in %s: %w", l, err)
		}
		if found && p.Offset >= end {
			return none, -1, false, nil
		}
		if found {
			return p, b.LeaderEpoch(), true, nil
		}
	}
}

// firstRecordSince is Batch.FirstSince for the records at or behind start.
func firstRecordSince(b record.Batch, ts, start int64) (p record.Position, found bool, err error) {
	if b.BaseOffset() >= start {
		return b.FirstSince(ts, 0)
	}
	err = eachPosition(b, start, func(at record.Position) {
		if !found && at.Timestamp >= ts {
			p, found = at, true
		}
	})
	return p, found, err
}

// latestRecord is Batch.LatestTimestamp for the records at or behind start.
func latestRecord(b record.Batch, start int64) (p record.Position, found bool, err error) {
	err = eachPosition(b, start, func(at record.Position) {
		if !found || at.Timestamp > p.Timestamp {
			p, found = at, true
		}
	})
	return p, found, err
}

func eachPosition(b record.Batch, start int64, fn func(record.Position)) error {
	return b.Each(0, func(r record.Record) error {
		at := record.Position{Offset: b.BaseOffset() + int64(r.OffsetDelta), Timestamp: b.BaseTimestamp() + r.TimestampDelta}
		if b.TimestampType() == record.LogAppendTime {
			at.Timestamp = b.MaxTimestamp()
		}
		if at.Offset >= start {
			fn(at)
		}
		return nil
	})
}

// readBatch reads the batch whose header the scan returned last, and checks it.
func (l *Log) readBatch(h *handle, scan *headerScan) (record.Batch, error) {
	b := make(record.Batch, scan.header.Size())
	if err := readFull(h.file, b, scan.at); err != nil {
		return nil, fmt.Errorf("read batch at offset %d of %s: %w", scan.header.BaseOffset, l, err)
	}
	if err := b.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", errSuspect, err)
	}
	return b, nil
}

// MaxTimestamp finds the record with the largest timestamp below the offset limit, the first of several (KIP-734). It
// returns (-1, -1, -1) if there is none.
func (l *Log) MaxTimestamp(limit int64) (offset, timestamp int64, epoch int32, err error) {
	err = l.retryGone(func() error {
		offset, timestamp, epoch, err = l.maxTimestamp(limit)
		return err
	})
	return offset, timestamp, epoch, err
}

func (l *Log) maxTimestamp(limit int64) (int64, int64, int32, error) {
	views, start, end, err := l.timeViews(limit)
	if err != nil {
		return -1, -1, -1, err
	}
	bestTS, bestOffset := int64(-1), int64(-1)
	var best *timeView
	for i := range views {
		v := &views[i]
		ts, at := v.maxTS, v.maxOffset
		if v.next > end || v.seg.base < start {
			if ts, at, err = l.maxBetween(v, start, end); err != nil {
				return -1, -1, -1, err
			}
		}
		if ts > bestTS {
			bestTS, bestOffset, best = ts, at, v
		}
	}
	if best == nil {
		return -1, -1, -1, nil
	}
	h, err := l.dir.files.acquire(&best.seg.log)
	if err != nil {
		return -1, -1, -1, err
	}
	defer l.dir.files.release(h)
	hdr, position, err := l.locate(&best.view, h, bestOffset)
	if err != nil {
		return -1, -1, -1, err
	}
	b, err := l.readBatch(h, &headerScan{header: hdr, at: position})
	if err != nil {
		return -1, -1, -1, err
	}
	p, found, err := b.LatestTimestamp(0)
	if err == nil && found && p.Offset < start {
		p, found, err = latestRecord(b, start)
	}
	if err != nil || !found {
		return -1, -1, -1, err
	}
	return p.Offset, p.Timestamp, b.LeaderEpoch(), nil
}

// maxBetween finds the batch with the largest timestamp among those of a segment wholly in [start, end), by a walk over
// its headers: only the first and the last segment of a lookup may need it.
func (l *Log) maxBetween(v *timeView, start, end int64) (ts, lastOffset int64, err error) {
	h, err := l.dir.files.acquire(&v.seg.log)
	if err != nil {
		return -1, -1, err
	}
	defer l.dir.files.release(h)
	var scan headerScan
	scan.start(h.file, 0, v.size)
	defer scan.stop()
	ts, lastOffset = -1, -1
	for {
		ok, err := scan.next()
		if err != nil {
			return -1, -1, fmt.Errorf("%w: walk segment %d: %w", errSuspect, v.seg.base, err)
		}
		if !ok || scan.header.NextOffset() > end {
			return ts, lastOffset, nil
		}
		if scan.header.NextOffset() > start && scan.header.MaxTimestamp > ts {
			ts, lastOffset = scan.header.MaxTimestamp, scan.header.LastOffset()
		}
	}
}
