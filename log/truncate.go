package log

import (
	"fmt"
	"io"
	"slices"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// Truncate removes the records from offset to on: a batch that holds it goes as a whole. When it returns, the log has
// a new log id, ends at or just below to, and that is durable (W13, W14). Epochs that begin at or behind the new end
// are forgotten, also if no record went (R5); producers are as they were at the new end (P2).
//
// Whether records below the high watermark may go is for the caller to decide (R25).
//
// Errors: ErrOffsetOutOfRange below the start, ErrPoisoned, ErrClosed.
func (l *Log) Truncate(to int64) error {
	l.dir.freeing.Add(1)
	defer l.dir.freeing.Add(-1)
	l.syncing.Lock()
	defer l.tellDurable()
	defer l.syncing.Unlock()
	l.mu.Lock()
	start, end, empty := l.mu.start, l.mu.end, l.mu.start == l.mu.end
	l.mu.Unlock()
	if to < start {
		return fmt.Errorf("truncate %s to %d: %w: it starts at %d", l, to, ErrOffsetOutOfRange, start)
	}
	if err := l.usable(); err != nil {
		return err
	}
	if to >= end || empty {
		l.w.Lock()
		defer l.w.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.epochs.truncateEnd(l.mu.end)
		return nil
	}
	// Everything that stays must be durable before anything goes, derived files included: the state below will say
	// that all below the cut is.
	if l.dir.cfg.mutants.has(mutantCutUnsyncedSegments) {
		l.pendingSnapshots = nil
	} else if err := l.advanceLocked(); err != nil {
		return err
	}
	l.w.Lock()
	defer l.w.Unlock()
	// Appends may have come in since; they go too.
	l.mu.Lock()
	segments := l.mu.segments
	l.mu.Unlock()
	i := segmentAt(segments, to)
	cut, position, err := l.findCut(segments[i], to)
	if err != nil {
		return err
	}
	if cut <= start {
		return l.restart(start, segments)
	}
	return l.cut(start, cut, position, segments, i)
}

// restart empties the log: it goes on at start, under a new log id. Caller holds syncing and w.
func (l *Log) restart(start int64, segments []*segment) error {
	logID := l.dir.newLogID()
	intent := state{logID: logID, start: start, recoveryPoint: start, cut: start}
	if err := l.writeState(intent); err != nil {
		return err
	}
	l.cuts.Add(1)
	fsys := l.dir.cfg.FS
	for k := len(segments) - 1; k >= 0; k-- {
		seg := segments[k]
		l.releaseSegment(seg)
		for _, ref := range seg.refs() {
			if err := fsys.Remove(ref.path); err != nil && !isGone(err) {
				return l.dir.fail(fmt.Errorf("truncate %s: unlink %s: %w", l, ref.path, err))
			}
		}
	}
	for _, offset := range l.snapshots {
		_ = fsys.Remove(vfs.Join(l.path, offsetFileName(offset, snapshotSuffix)))
	}
	seg := newSegment(l.path, start)
	f, err := fsys.Create(seg.log.path)
	if err != nil {
		return l.dir.fail(fmt.Errorf("truncate %s: create segment %d: %w", l, start, err))
	}
	seg.pinned = l.dir.files.adopt(&seg.log, f)
	// Replacing the epoch file syncs the directory, and with it the unlinks and the new segment.
	if err := l.dir.replaceFile(l.path, epochsName, encodeEpochs(nil)); err != nil {
		return l.dir.fail(fmt.Errorf("truncate %s: replace %s: %w", l, epochsName, err))
	}
	intent.cut = -1
	if err := l.writeState(intent); err != nil {
		return l.dir.fail(err) // half done: the next start finishes it
	}
	l.snapshots, l.pendingSnapshots = nil, nil
	l.sealed, l.sealedChanged = nil, false
	l.producers = newProducers()
	l.mu.Lock()
	l.mu.transactions = transactions{}
	was := l.mu.end
	l.mu.segments = []*segment{seg}
	l.mu.logID = logID
	l.mu.start, l.mu.end, l.mu.recoveryPoint = start, start, start
	l.mu.highWatermark = start
	l.mu.durable.reset(start)
	l.mu.notified = min(l.mu.notified, start)
	l.mu.epochs.list = nil
	l.mu.epochs.changed++
	l.mu.epochs.written = l.mu.epochs.changed
	l.mu.sizeBytes, l.mu.unsyncedRecords = 0, 0
	l.mu.Unlock()
	l.cuts.Add(1)
	l.logger().Info("log emptied", "start_offset", start, "was", was)
	return nil
}

// StartAt empties the log and lets it go on at start, under a new log id: what a follower does whose leader has no
// records as old as the follower's end any more.
//
// Errors: ErrOffsetOutOfRange below the present start, ErrPoisoned, ErrClosed.
func (l *Log) StartAt(start int64) error {
	l.dir.freeing.Add(1)
	defer l.dir.freeing.Add(-1)
	l.syncing.Lock()
	defer l.tellDurable()
	defer l.syncing.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	old, segments := l.mu.start, l.mu.segments
	l.mu.Unlock()
	if start < old {
		return fmt.Errorf("start %s at %d: %w: it starts at %d", l, start, ErrOffsetOutOfRange, old)
	}
	return l.restart(start, segments)
}

// findCut returns the base offset and position of the batch that holds offset to, or of the segment's end.
func (l *Log) findCut(seg *segment, to int64) (cut, position int64, err error) {
	if to >= seg.next {
		return seg.next, seg.size, nil
	}
	h, err := l.dir.files.acquire(&seg.log)
	if err != nil {
		return 0, 0, l.dir.fail(fmt.Errorf("truncate %s to %d: %w", l, to, err))
	}
	defer l.dir.files.release(h)
	var scan headerScan
	scan.start(h.file, 0, seg.size)
	defer scan.stop()
	if hit, herr := l.indexPosition(&view{seg: seg, size: seg.size, offsets: seg.offsetIndex}, to-1-seg.base, byKey); herr == nil {
		scan.pos = hit.position
		if ok, err := scan.next(); !ok || err != nil || scan.header.LastOffset()-seg.base != hit.key {
			scan.stop()
			scan.start(h.file, 0, seg.size) // the index led astray: walk the whole segment
		} else {
			scan.pos = hit.position
		}
	}
	for {
		ok, err := scan.next()
		if err != nil {
			return 0, 0, l.markCorrupt(fmt.Errorf("truncate segment %d to %d: %w", seg.base, to, err))
		}
		if !ok {
			return seg.next, seg.size, nil
		}
		if scan.header.LastOffset() >= to {
			return scan.header.BaseOffset, scan.at, nil
		}
	}
}

// cut carries out W14 behind the batch boundary: segment i ends at position, all behind it go. Caller holds syncing
// and w.
func (l *Log) cut(start, cut, position int64, segments []*segment, i int) error {
	// A segment that would be empty goes as well, unless it is the first.
	if position == 0 && i > 0 {
		i--
		position = segments[i].size
	}
	kept := segments[:i+1]
	sealed := l.sealed
	for n := len(sealed); n > 0 && sealed[n-1].base >= segments[i].base; n-- {
		sealed = sealed[:n-1]
	}
	logID := l.dir.newLogID()
	if l.dir.cfg.mutants.has(mutantSameID) {
		logID = l.mu.logID
	}
	intent := state{logID: logID, start: start, recoveryPoint: cut, cut: cut, sealed: sealed}
	if l.dir.cfg.mutants.has(mutantCutFirst) {
		if err := l.cutSegment(segments[i], cut, position); err != nil {
			return err
		}
	}
	if l.dir.cfg.mutants.has(mutantNoIntent) {
	} else if err := l.writeState(intent); err != nil {
		return err
	}
	l.cuts.Add(1)
	fsys := l.dir.cfg.FS
	for k := len(segments) - 1; k > i; k-- {
		seg := segments[k]
		l.releaseSegment(seg)
		for _, ref := range seg.refs() {
			if err := fsys.Remove(ref.path); err != nil && !isGone(err) {
				return l.dir.fail(fmt.Errorf("truncate %s: unlink %s: %w", l, ref.path, err))
			}
		}
	}
	seg := segments[i]
	if err := l.cutSegment(seg, cut, position); err != nil {
		return l.dir.fail(fmt.Errorf("truncate segment %d of %s to %d: %w", seg.base, l, cut, err))
	}
	for n := len(l.snapshots); n > 0 && l.snapshots[n-1] > cut; n-- {
		_ = fsys.Remove(vfs.Join(l.path, offsetFileName(l.snapshots[n-1], snapshotSuffix)))
		l.snapshots = l.snapshots[:n-1]
	}
	l.pendingSnapshots = nil
	l.sealed, l.sealedChanged = sealed, len(sealed) != len(kept)-1
	l.mu.Lock()
	l.mu.epochs.truncateEnd(cut)
	epochList, changed := l.mu.epochs.list, l.mu.epochs.changed
	l.mu.Unlock()
	// Replacing the epoch file syncs the directory, and with it the unlinks.
	if err := l.dir.replaceFile(l.path, epochsName, encodeEpochs(epochList)); err != nil {
		return l.dir.fail(fmt.Errorf("truncate %s: replace %s: %w", l, epochsName, err))
	}
	if err := l.replayProducers(kept, cut); err != nil {
		return l.dir.fail(err)
	}
	if err := l.cutAborted(kept, seg, cut); err != nil {
		return l.dir.fail(fmt.Errorf("truncate aborted transactions of segment %d of %s to %d: %w", seg.base, l, cut, err))
	}
	intent.cut = -1
	if l.dir.cfg.mutants.has(mutantIntentStays) {
	} else if err := l.writeState(intent); err != nil {
		return l.dir.fail(err) // half done: the next start finishes it
	}
	l.mu.Lock()
	size := int64(0)
	for _, s := range kept {
		size += s.size
	}
	was := l.mu.end
	l.mu.segments = slices.Clone(kept)
	l.mu.logID = logID
	l.mu.end, l.mu.recoveryPoint = cut, cut
	l.mu.highWatermark = min(l.mu.highWatermark, cut)
	l.mu.durable.reset(cut)
	l.mu.notified = min(l.mu.notified, cut)
	l.mu.epochs.written = changed
	l.mu.sizeBytes, l.mu.unsyncedRecords = size, 0
	l.mu.Unlock()
	l.cuts.Add(1)
	l.logger().Info("log truncated", "to", cut, "was", was, "records", was-cut)
	return nil
}

// cutSegment cuts the files and the indexes of a segment that becomes the active one, and syncs it.
func (l *Log) cutSegment(seg *segment, cut, position int64) error {
	if seg.pinned == nil {
		h, err := l.dir.files.acquire(&seg.log)
		if err != nil {
			return err
		}
		l.mu.Lock()
		seg.pinned = h
		l.mu.Unlock()
	}
	if err := seg.pinned.file.Truncate(position); err != nil {
		return err
	}
	if l.dir.cfg.mutants.has(mutantCutUnsynced) {
	} else if err := l.sync(seg.pinned.file); err != nil {
		return err
	}
	rel := cut - seg.base
	offsets, last, err := l.cutIndex(&seg.offsets, &seg.offsetIndex, rel-1, byKey)
	if err != nil {
		return err
	}
	times, _, err := l.cutIndex(&seg.times, &seg.timeIndex, rel-1, byValue)
	if err != nil {
		return err
	}
	// Maxima and the distance to the last index entry come from the headers behind it.
	fresh := newSegment(l.path, seg.base)
	fresh.offsetIndex, fresh.timeIndex = offsets, times
	if e, ok := times.last(); ok {
		fresh.maxTimestamp, fresh.maxTimestampOffset = e.key, seg.base+int64(e.value)
	}
	var scan headerScan
	scan.start(seg.pinned.file, last.position, position)
	defer scan.stop()
	for {
		ok, err := scan.next()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		h := &scan.header
		if h.MaxTimestamp > fresh.maxTimestamp {
			fresh.maxTimestamp, fresh.maxTimestampOffset = h.MaxTimestamp, h.LastOffset()
		}
		fresh.unindexedBytes += int64(h.Size())
	}
	l.mu.Lock()
	seg.offsetIndex, seg.timeIndex = offsets, times
	seg.size, seg.next = position, cut
	seg.maxTimestamp, seg.maxTimestampOffset = fresh.maxTimestamp, fresh.maxTimestampOffset
	seg.unindexedBytes = fresh.unindexedBytes
	seg.synced = seg.written
	seg.indexesSynced = false
	l.mu.Unlock()
	return nil
}

// cutIndex keeps the entries whose column is ≤ limit, in memory and in the file, and returns the index with its last
// entry in the tail, and where that leads. An index that can not be read is emptied; it is rebuilt when it is missed.
func (l *Log) cutIndex(ref *fileRef, x *index, limit int64, column func(indexEntry) int64) (index, indexHit, error) {
	h, err := l.dir.files.acquire(ref)
	if isGone(err) {
		// Never written: all entries are in the tail.
		t := index{kind: x.kind}
		hit := indexHit{key: -1}
		for _, e := range x.tail {
			if x.count == len(x.tail) && column(e) <= limit {
				t.tail = append(t.tail, e)
				hit = indexHit{position: int64(e.value), key: e.key}
			}
		}
		t.count = len(t.tail)
		return t, hit, nil
	}
	if err != nil {
		return index{}, indexHit{}, err
	}
	defer l.dir.files.release(h)
	n, e, err := x.search(limit, column, func() (io.ReaderAt, error) { return h.file, nil })
	if err != nil {
		n = 0
	}
	t := x.truncated(n)
	if err := h.file.Truncate(int64(t.flushed) * int64(x.kind.entryBytes)); err != nil {
		return index{}, indexHit{}, err
	}
	if err := l.sync(h.file); err != nil {
		return index{}, indexHit{}, err
	}
	hit := indexHit{key: -1}
	if n > 0 {
		hit = indexHit{position: int64(e.value), key: e.key}
		if len(t.tail) == 0 {
			t.tail = []indexEntry{e}
		}
	}
	return t, hit, nil
}

// replayProducers rebuilds the producer state as of offset end: the newest good snapshot at or below it, then the
// headers behind (L8). Caller is the writer.
func (l *Log) replayProducers(segments []*segment, end int64) error {
	r := l.loadSnapshot(segments[0].base, end)
	for i := segmentAt(segments, r.offset); i < len(segments) && segments[i].base < end; i++ {
		if err := l.replaySegment(r, segments[i], r.offset, end); err != nil {
			return err
		}
	}
	r.producers.forgetBelow(&r.transactions, l.StartOffset())
	l.producers = r.producers
	l.mu.Lock()
	r.transactions.settle(l.mu.highWatermark)
	if !l.dir.cfg.mutants.has(mutantKeepTransactions) {
		l.mu.transactions = r.transactions
	}
	l.mu.Unlock()
	return nil
}

// replay is the state of producers and transactions as the batches tell it, from a snapshot on.
type replay struct {
	producers    producers
	transactions transactions
	// offset is that of the snapshot, or the first offset of the log without one.
	offset int64
	// sum is that of the aborted transactions which the index of the segment with base sumBase held.
	sum     abortedSum
	sumBase int64
	// now is the clock at which the producers count as seen.
	now int64
	// aborted, if not nil, is called for each abort marker.
	aborted func(abortedEntry)
}

// batch applies a batch; marker is that of a control batch.
func (r *replay) batch(h *record.Header, marker *record.Marker) {
	step, ok := r.producers.update(h, marker, r.now, false)
	if !ok {
		return
	}
	if e, aborted := r.transactions.apply(step, r.now); aborted && r.aborted != nil {
		r.aborted(e)
	}
}

// replaySegment applies the batches of a segment with base offsets in [from, end).
func (l *Log) replaySegment(r *replay, seg *segment, from, end int64) error {
	if seg.base >= end {
		return nil
	}
	h, err := l.dir.files.acquire(&seg.log)
	if err != nil {
		return fmt.Errorf("replay producers of %s: %w", l, err)
	}
	defer l.dir.files.release(h)
	f := l.dir.counting(h.file)
	var scan headerScan
	scan.start(f, 0, seg.size)
	defer func() { scan.stop() }()
	if from > seg.base {
		if hit, err := l.indexPosition(&view{seg: seg, size: seg.size, offsets: seg.offsetIndex}, from-1-seg.base, byKey); err == nil && hit.key >= 0 {
			scan.pos = hit.position
			if ok, err := scan.next(); !ok || err != nil || scan.header.LastOffset()-seg.base != hit.key {
				scan.stop()
				scan.start(f, 0, seg.size)
			}
		}
	}
	for {
		ok, err := scan.next()
		if err != nil {
			return l.markCorrupt(fmt.Errorf("replay producers of segment %d: %w", seg.base, err))
		}
		if !ok || scan.header.BaseOffset >= end {
			return nil
		}
		if scan.header.BaseOffset >= from {
			var marker *record.Marker
			if scan.header.IsControl() {
				if marker, err = scan.marker(); err != nil {
					return l.markCorrupt(fmt.Errorf("replay producers of segment %d: %w", seg.base, err))
				}
			}
			r.batch(&scan.header, marker)
		}
		if scan.header.NextOffset() >= end {
			return nil // what follows may not be batches
		}
	}
}

// loadSnapshot returns the state of the newest readable snapshot from offset first to end; that of an empty log at offset
// 0 if there is none. first is where the batches begin that are there to be replayed: an older snapshot would leave out
// what followed it and is gone, and a producer that comes back with its next sequence would be refused. One that is not
// known may go on with any (P4).
func (l *Log) loadSnapshot(first, end int64) *replay {
	now := l.dir.clock.Load()
	for i := len(l.snapshots) - 1; i >= 0 && l.snapshots[i] >= first; i-- {
		offset := l.snapshots[i]
		if offset > end {
			continue
		}
		name := vfs.Join(l.path, offsetFileName(offset, snapshotSuffix))
		b, err := vfs.ReadFile(l.dir.cfg.FS, name)
		if err == nil {
			var s snapshot
			l.dir.readBytes.Add(int64(len(b)))
			if s, err = decodeSnapshot(b, offset, now); err == nil {
				return &replay{producers: s.producers, transactions: s.transactions, offset: offset, sum: s.aborted, sumBase: s.abortedBase, now: now}
			}
		}
		l.logger().Warn("producer snapshot is unreadable and removed; the state is replayed from the batches", "offset", offset, "error", err)
		_ = l.dir.cfg.FS.Remove(name)
		l.snapshots = slices.Delete(l.snapshots, i, i+1)
	}
	return &replay{producers: newProducers(), sumBase: abortedUnknown, now: now}
}
