package log

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// loadEpochs reads the epoch file. Entries from the floor on are dropped: the batches tell them again (W19).
func (r *recovery) loadEpochs() error {
	b, err := r.d.readCounted(vfs.Join(r.path, epochsName))
	if err != nil && !absent(err) {
		return err
	}
	var list []epochStart
	if err == nil {
		list, err = decodeEpochs(b)
	}
	for n := len(list); n > 0 && list[n-1].start >= r.floor; n-- {
		list = list[:n-1]
	}
	// Below the recovery point the file is complete (W19); if it is not, it is not our file.
	r.epochsLost = r.floor > r.state.start && (err != nil || len(list) == 0 || list[0].start > r.state.start)
	e := &r.log.mu.epochs
	if r.epochsLost {
		e.changed++
		return nil
	}
	e.list = list
	e.truncateStart(r.state.start)
	return nil
}

// listSnapshots notes the producer snapshots that may be used and removes those above the floor (W19).
func (r *recovery) listSnapshots() {
	for _, name := range slices.Sorted(maps.Keys(r.files)) { // sorted, so that the model can replay its seeds
		offset, suffix, ok := parseOffsetFileName(name)
		if !ok || suffix != snapshotSuffix {
			continue
		}
		if offset > r.floor {
			_ = r.d.cfg.FS.Remove(vfs.Join(r.path, name))
			continue
		}
		r.snapshots = append(r.snapshots, offset)
	}
}

// scan walks the batches from the floor on, every byte checked (L1, L22), and cuts the log at the first misfit.
func (r *recovery) scan() error {
	l := r.log
	if len(r.segments) == 0 {
		seg := newSegment(r.path, r.floor)
		f, err := r.d.cfg.FS.Create(seg.log.path)
		if err != nil {
			return err
		}
		seg.pinned = r.d.files.adopt(&seg.log, f)
		r.segments = []*segment{seg}
		l.mu.segments = r.segments
		r.touched = true
	}
	i := segmentAt(r.segments, r.floor)
	// The producers as of the floor; the scan goes on from there.
	if err := r.producersAtFloor(i); err != nil {
		return err
	}
	if r.epochsLost {
		if err := r.rebuildEpochs(i); err != nil {
			return err
		}
	}
	expected, first := r.floor, i
	for ; i < len(r.segments); i++ {
		seg := r.segments[i]
		if k := i - first; k > 0 && seg.base != expected {
			return r.endAt(i, expected, fmt.Errorf("%w: segment %d begins at %d, expected %d", errTorn, seg.base, seg.base, expected))
		}
		next, torn, err := r.scanSegment(seg, expected)
		if err != nil {
			return err
		}
		expected = next
		if torn != nil {
			return r.endAt(i+1, expected, torn)
		}
		if i+1 < len(r.segments) {
			seg.indexTime()
		}
	}
	return r.endAt(len(r.segments), expected, nil)
}

// producersAtFloor loads the newest snapshot and replays the headers up to the floor.
func (r *recovery) producersAtFloor(i int) error {
	l := r.log
	s := l.loadSnapshot(r.segments[0].base, r.floor)
	at := r.segments[i]
	aborted, flushed, err := r.abortedBefore(at, s)
	if err != nil {
		return err
	}
	s.aborted = func(e abortedEntry) {
		if e.last >= at.base {
			aborted = append(aborted, e)
		}
	}
	if s.offset < r.floor {
		for k := segmentAt(r.segments, s.offset); k <= i; k++ {
			if err := l.replaySegment(s, r.segments[k], s.offset, r.floor); err != nil {
				return err
			}
		}
	}
	l.producers, l.mu.transactions = s.producers, s.transactions
	if r.d.cfg.mutants.has(mutantForgetOpen) {
		l.mu.transactions.open = nil
	}
	if at.aborted = at.newAborted(r.path, aborted, flushed); at.aborted != nil {
		if err := l.flushAborted(at); err != nil {
			return err
		}
	}
	if err := r.abortedUnlisted(i); err != nil {
		return err
	}
	if s.offset < r.floor {
		// Else the next start would replay as much again.
		l.pendingSnapshots = []pendingSnapshot{{r.floor, l.snapshot(r.floor, r.segments[i])}}
	}
	return nil
}

// abortedBefore returns the aborted transactions of the segment that holds the floor whose markers lie below a snapshot,
// and the number of those that its index file holds. The file is believed if it is what the snapshot says.
func (r *recovery) abortedBefore(at *segment, s *replay) (entries []abortedEntry, flushed int, err error) {
	if s.offset <= at.base {
		return nil, 0, nil
	}
	at.aborted = nil
	if s.sumBase == abortedNever {
		return nil, 0, nil
	}
	if s.sumBase == at.base {
		if s.sum.count > 0 {
			at.aborted = &abortedIndex{file: at.abortedRef(r.path), sum: s.sum, flushed: s.sum.count}
		}
		if entries, err = r.log.abortedEntries(at); err == nil {
			return entries, len(entries), nil
		}
		if !errors.Is(err, errAbortedBad) && !isGone(err) {
			return nil, 0, err
		}
		r.log.logger().Warn("index of aborted transactions is missing or bad and is rebuilt from the batches", "segment", at.base, "error", err)
		r.d.metrics.indexRebuilds.Inc()
	}
	entries, err = r.log.abortedOf(r.segments, at, s.offset)
	return entries, 0, err
}

// abortedUnlisted makes the indexes of aborted transactions of segments below the floor that the manifest does not list
// yet.
func (r *recovery) abortedUnlisted(i int) error {
	listed := int64(-1)
	if n := len(r.state.sealed); n > 0 {
		listed = r.state.sealed[n-1].base
	}
	for _, seg := range r.segments[:i] {
		if seg.base <= listed {
			continue
		}
		entries, err := r.log.abortedOf(r.segments, seg, seg.next)
		if err != nil {
			return err
		}
		seg.aborted = seg.newAborted(r.path, entries, 0)
		seg.indexesSynced = seg.indexesSynced && len(entries) == 0
	}
	return nil
}

// rebuildEpochs reads the epochs from the headers of all batches below the floor (L7).
func (r *recovery) rebuildEpochs(i int) error {
	l := r.log
	if r.floor > r.state.start {
		l.logger().Warn("epoch file is missing or bad and is rebuilt from the batches")
	}
	for _, seg := range r.segments[:i+1] {
		h, err := r.d.files.acquire(&seg.log)
		if err != nil {
			return err
		}
		var scan headerScan
		scan.start(r.d.counting(h.file), 0, seg.size)
		for {
			ok, serr := scan.next()
			if serr != nil && seg.next <= r.floor && seg.next > seg.base {
				err = fmt.Errorf("%s: rebuild epochs from segment %d: %w", r.name, seg.base, serr)
				break
			}
			if serr != nil || !ok || scan.header.BaseOffset >= r.floor {
				break // what stands above the floor is judged by the scan
			}
			if scan.header.NextOffset() > r.state.start {
				l.mu.epochs.assign(scan.header.LeaderEpoch, max(scan.header.BaseOffset, r.state.start))
			}
			if scan.header.NextOffset() >= r.floor {
				break
			}
		}
		scan.stop()
		r.d.files.release(h)
		if err != nil {
			return err
		}
	}
	return nil
}

// scanSegment checks a segment from the offset expected on. torn says why the log ends inside it. On return the
// segment's size, next and indexes are those of the checked bytes.
func (r *recovery) scanSegment(seg *segment, expected int64) (next int64, torn, err error) {
	l := r.log
	position := int64(0)
	if expected > seg.base {
		var reached int64
		if position, reached, err = r.walkTo(seg, expected); err != nil {
			return 0, nil, err
		}
		if reached != expected {
			return 0, nil, fmt.Errorf("%s: %w: segment %d is readable up to offset %d, was durable up to %d", r.name, ErrCorrupt, seg.base, reached, expected)
		}
	}
	size := seg.size
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return 0, nil, err
	}
	defer r.d.files.release(h)
	if position < size && !r.d.clean && !r.d.cfg.mutants.has(mutantCachedRecovery) {
		// After a failed sync the page cache shows, marked clean, what the disk lacks (W17).
		if err := h.file.DropCache(); err != nil {
			return 0, nil, err
		}
	}
	if err := r.cutIndexes(seg, expected, position); err != nil {
		return 0, nil, err
	}
	seg.size, seg.next = position, expected
	scan := batchScan{file: r.d.counting(h.file), pos: position, size: size}
	interval := DefaultSettings().IndexIntervalBytes
	epoch := l.mu.epochs.last()
	for {
		b, err := scan.next()
		if err != nil {
			if errors.Is(err, errTorn) {
				torn = err
				break
			}
			return 0, nil, err
		}
		if b == nil {
			break
		}
		hdr := b.Header()
		torn = r.misfit(&hdr, seg, expected, epoch)
		if torn != nil && hdr.LeaderEpoch < epoch && expected == r.floor && !r.epochsLost {
			// The epoch file has no checksum: before a durable batch is judged by it, the batches below are asked.
			r.epochsLost = true
			l.mu.epochs.list = nil
			l.mu.epochs.changed++
			if err := r.rebuildEpochs(segmentAt(r.segments, r.floor)); err != nil {
				return 0, nil, err
			}
			epoch = l.mu.epochs.last()
			torn = r.misfit(&hdr, seg, expected, epoch)
		}
		if torn != nil {
			break
		}
		l.mu.epochs.assign(hdr.LeaderEpoch, hdr.BaseOffset)
		epoch = hdr.LeaderEpoch
		seg.indexBatch(&hdr, scan.pos, interval)
		var marker *record.Marker
		if hdr.IsControl() {
			marker = controlMarker(b)
		}
		if step, ok := l.producers.update(&hdr, marker, 0, false); ok {
			if e, aborted := l.mu.transactions.apply(step, 0); aborted {
				l.addAborted(seg, e)
			}
		}
		expected = hdr.NextOffset()
		scan.skip(b)
		r.touched = true
		if x := &seg.offsetIndex; x.count-x.flushed >= indexFlushEntries {
			if err := l.flushIndexes(seg); err != nil {
				return 0, nil, err
			}
		}
	}
	r.stats.BytesScanned += scan.read
	if torn != nil {
		r.stats.BytesTruncated += size - seg.size
	}
	return expected, torn, nil
}

// misfit says why a checked batch can not stand here.
func (r *recovery) misfit(h *record.Header, seg *segment, expected int64, epoch int32) error {
	switch {
	case h.BaseOffset != expected:
		return fmt.Errorf("%w at position %d of segment %d: batch begins at %d, expected %d", errTorn, seg.size, seg.base, h.BaseOffset, expected)
	case h.LeaderEpoch < epoch:
		return fmt.Errorf("%w at position %d of segment %d: leader epoch falls from %d to %d", errTorn, seg.size, seg.base, epoch, h.LeaderEpoch)
	case h.LastOffset()-seg.base > maxRelativeOffset:
		return fmt.Errorf("%w at position %d of segment %d: offset %d is too far from the base", errTorn, seg.size, seg.base, h.LastOffset())
	}
	return nil
}

// endAt makes [.., end) the log: segments from index i on are unlinked, the last that stays is cut to its checked size
// (L1). An end below what was durable is corruption (L9), and nothing is cut then.
func (r *recovery) endAt(i int, end int64, torn error) error {
	if end < r.floor || end < r.durableEnd {
		return fmt.Errorf("%s: %w: the log ends at %d, but was durable up to %d: %w", r.name, ErrCorrupt, end, max(r.floor, r.durableEnd), torn)
	}
	if torn != nil {
		for k := len(r.segments) - 1; k >= i; k-- {
			r.stats.BytesTruncated += r.segments[k].size
			if err := r.unlink(r.segments[k]); err != nil {
				return err
			}
		}
		r.segments = r.segments[:i]
		last := r.segments[i-1]
		if err := r.cutFile(last, last.size); err != nil {
			return err
		}
		r.touched = true
		r.d.metrics.truncatedBytes.Add(float64(r.stats.BytesTruncated))
		r.log.logger().Warn("torn tail cut off", "end_offset", end, "bytes", r.stats.BytesTruncated, "reason", torn)
	}
	r.end = end
	return nil
}

// settle publishes the recovered log and makes durable what was found, so that nothing reported can be lost by the
// next power cut (L4).
func (r *recovery) settle() error {
	l := r.log
	active := r.segments[len(r.segments)-1]
	for k, seg := range r.segments {
		l.mu.sizeBytes += seg.size
		if seg.size > 0 && k < len(r.segments)-1 && seg.next == seg.base {
			return fmt.Errorf("%s: %w: segment %d was not measured", r.name, ErrCorrupt, seg.base)
		}
		if seg.appendedMillis == 0 {
			seg.appendedMillis = r.d.wallMillis.Load()
		}
	}
	if active.pinned == nil {
		h, err := r.d.files.acquire(&active.log)
		if err != nil {
			return err
		}
		active.pinned = h
	}
	if active.size > 0 {
		s := l.settings.Load()
		active.firstAppend, active.ageLimit = 0, r.d.ageLimit(s)
	}
	active.indexesSynced = false
	l.producers.forgetBelow(&l.mu.transactions, r.state.start) // the scan may have found the markers of some
	l.mu.segments = r.segments
	l.mu.end, l.mu.recoveryPoint = r.end, min(r.floor, r.end)
	l.mu.durable.reset(r.end)
	l.sealed = r.state.sealed
	l.sealedChanged = len(l.sealed) != len(r.segments)-1
	if r.d.cfg.mutants.has(mutantServeCached) {
		r.touched = false
	}
	if r.touched {
		// Sync the last segments whatever wrote them, then derive a recovery point at the end.
		for _, seg := range r.segments {
			if seg.next > r.floor || seg == active {
				if err := r.pinDirty(seg); err != nil {
					return err
				}
			}
		}
		l.mu.dirChanged++
		l.mu.durable.reset(l.mu.recoveryPoint)
	}
	if err := l.Flush(); err != nil {
		return err
	}
	return l.advance()
}

// pinDirty marks a segment dirty, so that the next sync covers it.
func (r *recovery) pinDirty(seg *segment) error {
	if seg.pinned == nil {
		h, err := r.d.files.acquire(&seg.log)
		if err != nil {
			return err
		}
		seg.pinned = h
	}
	seg.written++
	return nil
}
