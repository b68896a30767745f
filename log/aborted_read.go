package log

import (
	"errors"
	"fmt"
	"slices"
)

// AbortedTransactions returns the aborted transactions that concern a reader from offset from on who is given records
// below to, sorted by first offset: those with records below to whose marker is at or behind from.
//
// Errors: ErrOffsetOutOfRange if from lies below the start, ErrCorrupt, ErrClosed.
func (l *Log) AbortedTransactions(from, to int64) ([]AbortedTransaction, error) {
	for {
		found, again, err := l.abortedTransactions(from, to)
		if again {
			continue
		}
		if err != nil || len(found) == 0 {
			return nil, err
		}
		slices.SortFunc(found, func(a, b AbortedTransaction) int { return compareInt64(a.FirstOffset, b.FirstOffset) })
		return found, nil
	}
}

// abortedViews is the number of indexes looked at under one lock.
const abortedViews = 4

// abortedTransactions is one try of AbortedTransactions; again says that the log has changed under it.
func (l *Log) abortedTransactions(from, to int64) (found []AbortedTransaction, again bool, _ error) {
	var views [abortedViews]abortedView
	cuts := l.cuts.Load()
	l.mu.Lock()
	switch {
	case l.mu.closed != nil:
		l.mu.Unlock()
		return nil, false, fmt.Errorf("read %s: %w", l, l.mu.closed)
	case from < l.mu.start:
		start, end := l.mu.start, l.mu.end
		l.mu.Unlock()
		return nil, false, outOfRange(l, from, start, end)
	}
	segments := l.mu.segments
	i, n := gatherAborted(segments, segmentAt(segments, from), &views)
	l.mu.Unlock()
	for {
		for k := range views[:n] {
			v := &views[k]
			complete := false
			var err error
			if found, complete, err = l.searchAborted(v, from, to, found); err != nil {
				again, err = l.mendAborted(cuts, v, err)
				return nil, again, err
			}
			if complete {
				return found, false, nil
			}
		}
		if i == len(segments) {
			return found, false, nil
		}
		l.mu.Lock()
		i, n = gatherAborted(segments, i, &views)
		l.mu.Unlock()
	}
}

// gatherAborted copies the next indexes of segments from index i on. It returns the index behind the last looked at, and
// the number copied. Caller holds mu.
func gatherAborted(segments []*segment, i int, views *[abortedViews]abortedView) (next, n int) {
	for ; i < len(segments) && n < len(views); i++ {
		if segments[i].aborted != nil {
			views[n] = segments[i].abortedView()
			n++
		}
	}
	return i, n
}

// searchAborted looks in the index of one segment.
func (l *Log) searchAborted(v *abortedView, from, to int64, found []AbortedTransaction) (_ []AbortedTransaction, complete bool, err error) {
	if v.inFile() == 0 || len(v.tail) > 0 && v.tail[0].last < from {
		return v.search(nil, from, to, found)
	}
	h, err := l.dir.files.acquire(v.file)
	if err != nil {
		return found, false, err
	}
	defer l.dir.files.release(h)
	if !v.checked {
		if err := v.check(h.file); err != nil {
			return found, false, err
		}
		l.abortedChecked(v)
	}
	return v.search(h.file, from, to, found)
}

// abortedChecked notes that the file of an index is what it should be.
func (l *Log) abortedChecked(v *abortedView) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := v.seg.aborted; x != nil && x.sum == v.sum {
		x.checked = true
	}
}

// mendAborted judges an error of searchAborted, and rebuilds the index if it is bad. again says that the reader shall
// try once more.
func (l *Log) mendAborted(cuts uint64, v *abortedView, err error) (again bool, _ error) {
	if now := l.cuts.Load(); now != cuts || now%2 == 1 {
		l.syncing.Lock() // the truncation holds it
		defer l.syncing.Unlock()
		return true, l.usable()
	}
	if !errors.Is(err, errAbortedBad) && !isGone(err) {
		return false, fmt.Errorf("read aborted transactions of segment %d of %s: %w", v.seg.base, l, err)
	}
	if uerr := l.usable(); uerr != nil {
		return false, uerr
	}
	if rerr := l.rebuildAborted(v, err); rerr != nil && !errors.Is(rerr, errSegmentGone) {
		return false, rerr
	}
	return true, nil
}

// rebuildAborted makes the index of aborted transactions of a segment anew from its batches, unless somebody has done so
// already. Caller holds no lock.
func (l *Log) rebuildAborted(v *abortedView, cause error) error {
	l.w.Lock()
	defer l.w.Unlock()
	seg := v.seg
	l.mu.Lock()
	segments, end := l.mu.segments, seg.next
	present := segments[segmentAt(segments, seg.base)] == seg
	changed := seg.aborted == nil || &seg.aborted.file != v.file
	l.mu.Unlock()
	if !present {
		return fmt.Errorf("rebuild aborted transactions of segment %d of %s: %w", seg.base, l, errSegmentGone)
	}
	if changed {
		return nil
	}
	entries, err := l.abortedOf(segments, seg, end)
	if err != nil {
		return err
	}
	l.logger().Warn("index of aborted transactions does not fit its segment and was rebuilt", "segment", seg.base, "entries", len(entries), "reason", cause)
	l.dir.metrics.indexRebuilds.Inc()
	return l.replaceAborted(seg, entries)
}

// replaceAborted gives a segment an index with other entries. Caller is the writer.
func (l *Log) replaceAborted(seg *segment, entries []abortedEntry) error {
	old, fresh := seg.aborted, seg.newAborted(l.path, entries, 0)
	l.mu.Lock()
	seg.aborted = fresh
	seg.indexesSynced = false
	l.mu.Unlock()
	if old.sumOf() != fresh.sumOf() {
		l.sealedChanged = true // the manifest knows another
	}
	if old != nil {
		// Unlinked, not emptied: a reader may be in it.
		l.dir.files.forget(&old.file)
		if err := l.dir.cfg.FS.Remove(old.file.path); err != nil && !isGone(err) {
			return l.dir.fail(fmt.Errorf("remove index of aborted transactions of segment %d of %s: %w", seg.base, l, err))
		}
	}
	return l.flushAborted(seg)
}

// abortedOf returns the aborted transactions whose markers stand in a segment below offset end, as the batches tell:
// the newest good snapshot at or below its base, then the headers behind. Caller is the writer.
func (l *Log) abortedOf(segments []*segment, seg *segment, end int64) (entries []abortedEntry, err error) {
	r := l.loadSnapshot(segments[0].base, seg.base)
	r.aborted = func(e abortedEntry) {
		if e.last >= seg.base {
			entries = append(entries, e)
		}
	}
	for i := segmentAt(segments, r.offset); i < len(segments) && segments[i].base < end; i++ {
		if err := l.replaySegment(r, segments[i], r.offset, end); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// abortedEntries returns all entries of an index, checked. Caller is the writer.
func (l *Log) abortedEntries(seg *segment) (entries []abortedEntry, err error) {
	if seg.aborted == nil {
		return nil, nil
	}
	v := seg.abortedView()
	if n := v.inFile(); n > 0 {
		h, err := l.dir.files.acquire(v.file)
		if err != nil {
			return nil, err
		}
		defer l.dir.files.release(h)
		entries = make([]abortedEntry, 0, v.sum.count)
		if err := readAborted(h.file, 0, n, func(e abortedEntry) error { entries = append(entries, e); return nil }); err != nil {
			return nil, err
		}
	}
	entries = append(entries, v.tail...)
	if sumAborted(entries) != v.sum && !l.dir.cfg.mutants.has(mutantAbortedTrusted) {
		return nil, errAbortedBad
	}
	return entries, nil
}

// scrubAborted compares the index of aborted transactions of a sealed segment with its sum, and mends it.
func (l *Log) scrubAborted(seg *segment) error {
	cuts := l.cuts.Load()
	l.mu.Lock()
	if seg.aborted == nil {
		l.mu.Unlock()
		return nil
	}
	v := seg.abortedView()
	l.mu.Unlock()
	h, err := l.dir.files.acquire(v.file)
	if err == nil {
		err = v.check(h.file)
		l.dir.files.release(h)
	}
	if err == nil {
		return nil
	}
	_, err = l.mendAborted(cuts, &v, err)
	return err
}

// cutAborted drops the entries of a segment that has become the active one whose markers are at or behind cut. Caller
// holds w.
func (l *Log) cutAborted(segments []*segment, seg *segment, cut int64) error {
	x := seg.aborted
	if x == nil || l.dir.cfg.mutants.has(mutantAbortedKept) {
		return nil
	}
	entries, err := l.abortedEntries(seg)
	if err != nil {
		if !errors.Is(err, errAbortedBad) && !isGone(err) {
			return err
		}
		if entries, err = l.abortedOf(segments, seg, cut); err != nil {
			return err
		}
		return l.replaceAborted(seg, entries)
	}
	n := 0
	for n < len(entries) && entries[n].last < cut {
		n++
	}
	if n == 0 {
		return l.replaceAborted(seg, nil)
	}
	flushed := min(x.flushed, n)
	l.mu.Lock()
	x.sum, x.flushed, x.tail = sumAborted(entries[:n]), flushed, slices.Clone(entries[min(max(n-indexTailEntries/2, 0), flushed):n])
	l.mu.Unlock()
	h, err := l.dir.files.acquire(&x.file)
	if isGone(err) {
		return nil // never written
	}
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	if err := h.file.Truncate(int64(flushed) * abortedEntryBytes); err != nil {
		return err
	}
	return l.sync(h.file)
}
