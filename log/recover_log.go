package log

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sort"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// recovery opens one partition after a stop, clean or not (wal.md 4, steps 4 to 7). It reads the batches above the
// recovery point and, below it, little more than file sizes: a log of 10 GiB opens as fast as one of 100 MiB.
type recovery struct {
	d          *Dir
	name, path string
	redo       redoSource
	state      state
	// foreign says why the directory does not belong to the partition of its name (L21), "" if it does.
	foreign string
	// files are the sizes of the files by name.
	files map[string]int64
	log   *Log
	// floor: everything below is in synced segments; the scan begins here.
	floor    int64
	segments []*segment
	// durableEnd is the largest durable end that a record of the write-ahead log tells of.
	durableEnd int64
	// end is where the scan ended.
	end int64
	// touched says that files were changed, or bytes scanned that may only be in the page cache.
	touched bool
	// epochsLost says that the epoch file is missing or bad.
	epochsLost bool
	snapshots  []int64
	stats      RecoveryStats
}

// readFiles reads the state file and lists the directory. keep is false for a directory that Create did not finish: it
// has no state and no records.
func (r *recovery) readFiles() (keep bool, err error) {
	entries, err := r.d.cfg.FS.List(r.path)
	if err != nil {
		return false, err
	}
	r.files = make(map[string]int64, len(entries))
	records := false
	for _, e := range entries {
		if e.Dir {
			continue
		}
		r.files[e.Name] = e.Size
		if _, suffix, ok := parseOffsetFileName(e.Name); ok && suffix == logSuffix && e.Size > 0 {
			records = true
		}
	}
	meta, metaErr := r.d.readCounted(vfs.Join(r.path, metadataName))
	if metaErr != nil && !absent(metaErr) {
		return false, metaErr
	}
	var metaID [16]byte
	metaOK := false
	if metaErr == nil {
		if metaID, err = decodePartitionMetadata(meta); err == nil {
			metaOK = true
			r.state.topicID = metaID
		}
	}
	b, err := r.d.readCounted(vfs.Join(r.path, stateName))
	if absent(err) {
		if records {
			return true, fmt.Errorf("%w: %s is missing", ErrCorrupt, stateName)
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s, err := decodeState(b)
	if err != nil {
		return true, err
	}
	r.state = s
	switch {
	case partitionDirName(s.topic, s.partition) != r.name:
		r.foreign = fmt.Sprintf("its state file is of %s", partitionDirName(s.topic, s.partition))
	case metaOK && metaID != s.topicID:
		r.foreign = fmt.Sprintf("%s has topic id %s, %s has %s", metadataName, topicIDString(metaID), stateName, topicIDString(s.topicID))
	case !metaOK:
		// It says nothing that the state file does not say.
		if err := r.d.replaceFile(r.path, metadataName, encodePartitionMetadata(s.topicID)); err != nil {
			return true, err
		}
	}
	return true, nil
}

// run recovers the log. Errors that match ErrCorrupt take the partition offline.
func (r *recovery) run() error {
	l := r.log
	l.mu.logID, l.mu.start, l.mu.notified = r.state.logID, r.state.start, -1
	l.mu.highWatermark = r.state.start
	if err := r.openSegments(); err != nil {
		return err
	}
	if r.state.cut >= 0 {
		if err := r.finishCut(); err != nil {
			return err
		}
	}
	if err := r.redoRecords(); err != nil {
		return err
	}
	if err := r.checkSealed(); err != nil {
		return err
	}
	if err := r.loadEpochs(); err != nil {
		return err
	}
	r.listSnapshots()
	l.snapshots = r.snapshots
	l.mu.segments = r.segments
	if err := r.scan(); err != nil {
		return err
	}
	return r.settle()
}

// openSegments makes the table of segments from the names of the files. Segments wholly below the start are left over
// from an interrupted trim and go (W15).
func (r *recovery) openSegments() error {
	var bases []int64
	for name := range r.files {
		if base, suffix, ok := parseOffsetFileName(name); ok && suffix == logSuffix {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	for i, base := range bases {
		seg := newSegment(r.path, base)
		seg.size = r.files[offsetFileName(base, logSuffix)]
		if i+1 < len(bases) && bases[i+1] <= r.state.start {
			r.log.logger.Info("segment deleted", "segment", base, "bytes", seg.size, "reason", "below the start offset", "start_offset", r.state.start)
			for _, name := range [...]string{seg.log.path, seg.offsets.path, seg.times.path} {
				if err := r.d.cfg.FS.Remove(name); err != nil && !absent(err) {
					return err
				}
			}
			r.touched = true
			continue
		}
		seg.offsetIndex = offsetIndexKind.loaded(r.files[offsetFileName(base, indexSuffix)])
		seg.timeIndex = timeIndexKind.loaded(r.files[offsetFileName(base, timeIndexSuffix)])
		r.segments = append(r.segments, seg)
	}
	// Of a sealed segment the manifest knows what would have to be read otherwise.
	for _, g := range r.state.sealed {
		if seg := r.segment(g.base); seg != nil {
			seg.next, seg.maxTimestamp, seg.maxTimestampOffset, seg.appendedMillis = g.next, g.maxTimestamp, g.maxTimestampOffset, g.appendedMillis
			seg.indexesSynced = true
		}
	}
	return nil
}

func (r *recovery) segment(base int64) *segment {
	i := sort.Search(len(r.segments), func(i int) bool { return r.segments[i].base >= base })
	if i < len(r.segments) && r.segments[i].base == base {
		return r.segments[i]
	}
	return nil
}

// finishCut finishes a truncation that was interrupted (W14): everything at or behind the cut goes.
func (r *recovery) finishCut() error {
	cut := r.state.cut
	r.touched = true
	// At or below the start nothing stays: what lies below it is not served, and the log goes on in a new segment.
	for n := len(r.segments); n > 0 && (r.segments[n-1].base >= cut || cut <= r.state.start); n-- {
		if err := r.unlink(r.segments[n-1]); err != nil {
			return err
		}
		r.segments = r.segments[:n-1]
	}
	if len(r.segments) > 0 {
		seg := r.segments[len(r.segments)-1]
		seg.next, seg.maxTimestamp, seg.maxTimestampOffset = seg.base, -1, -1
		position, _, err := r.walkTo(seg, cut)
		if err != nil {
			return err
		}
		if err := r.cutFile(seg, position); err != nil {
			return err
		}
	}
	if cut <= r.state.start {
		// An empty log has no epochs and knows no producers: what was known of them goes too.
		for _, name := range slices.Sorted(maps.Keys(r.files)) {
			if _, suffix, ok := parseOffsetFileName(name); name != epochsName && !(ok && suffix == snapshotSuffix) {
				continue
			}
			if err := r.d.cfg.FS.Remove(vfs.Join(r.path, name)); err != nil && !absent(err) {
				return err
			}
			delete(r.files, name)
		}
	}
	if err := r.d.cfg.FS.SyncDir(r.path); err != nil {
		return err
	}
	r.floor = cut
	r.state.cut, r.state.recoveryPoint = -1, cut
	for n := len(r.state.sealed); n > 0 && (len(r.segments) == 0 || r.state.sealed[n-1].base >= r.segments[len(r.segments)-1].base); n-- {
		r.state.sealed = r.state.sealed[:n-1]
	}
	if err := r.d.replaceFile(r.path, stateName, r.state.encode()); err != nil {
		return err
	}
	r.log.logger.Info("interrupted truncation finished", "to", cut)
	return nil
}

// unlink removes the files of a segment.
func (r *recovery) unlink(seg *segment) error {
	r.log.releaseSegment(seg)
	for _, name := range [...]string{seg.log.path, seg.offsets.path, seg.times.path} {
		if err := r.d.cfg.FS.Remove(name); err != nil && !absent(err) {
			return err
		}
	}
	return nil
}

// cutFile cuts a segment's log file and syncs it.
func (r *recovery) cutFile(seg *segment, position int64) error {
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer r.d.files.release(h)
	if err := h.file.Truncate(position); err != nil {
		return err
	}
	seg.size = position
	return h.file.Sync()
}

// walkTo returns the position of the first batch that ends behind offset, the end of the file if there is none, and the
// offset behind the batch before it (the base if there is none). It starts from the index if that is sound. A bad
// header ends the walk: its position is returned, and reached tells that it is too early.
func (r *recovery) walkTo(seg *segment, offset int64) (position, reached int64, err error) {
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return 0, 0, err
	}
	defer r.d.files.release(h)
	from, err := r.indexHit(seg, offset-1-seg.base)
	if err != nil {
		return 0, 0, err
	}
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, seg.size)
	defer func() { scan.stop() }()
	reached = seg.base
	for first := true; ; first = false {
		position = scan.pos
		if reached == offset && !(first && from.key >= 0) {
			// What follows was not durable: a torn block may look like a header with a lower offset.
			return position, reached, nil
		}
		ok, err := scan.next()
		if first && from.key >= 0 && (err != nil || !ok || scan.header.LastOffset()-seg.base != from.key) {
			// The index does not fit: forget it and walk from the beginning.
			seg.offsetIndex, seg.timeIndex = index{kind: offsetIndexKind}, index{kind: timeIndexKind}
			from = indexHit{key: -1}
			scan.stop()
			scan.start(r.d.counting(h.file), 0, seg.size)
			continue
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return 0, 0, err
		}
		// A base offset is outside of its batch's checksum: a torn one can point anywhere.
		if err != nil || !ok || scan.header.LastOffset() >= offset || scan.header.BaseOffset < reached {
			return position, reached, nil
		}
		reached = scan.header.NextOffset()
	}
}

// indexHit returns the last sound entry of the offset index with a relative offset ≤ limit, the beginning of the
// segment if there is none, and forgets the entries behind it. Of the file only what lies below the recovery point was
// synced (W19); behind that a crash may have left anything, also bytes that look like an entry. So an entry counts if
// the batch that it leads to says the same, and if it rises from the one before; if not, the search goes on ever
// further in front.
func (r *recovery) indexHit(seg *segment, limit int64) (indexHit, error) {
	x := &seg.offsetIndex
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return indexHit{}, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	n, e, _, err := r.soundEntry(&seg.offsets, x, limit, byKey, func(e indexEntry) (bool, error) {
		if int64(e.value)+record.HeaderBytes > seg.size {
			return false, nil
		}
		var scan headerScan
		scan.start(f, int64(e.value), seg.size)
		defer scan.stop()
		ok, err := scan.next()
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return false, err
		}
		return err == nil && ok && scan.header.LastOffset()-seg.base == e.key, nil
	})
	if err != nil {
		return indexHit{}, err
	}
	*x = x.truncated(n)
	if n == 0 {
		return indexHit{key: -1}, nil
	}
	x.tail = []indexEntry{e}
	return indexHit{position: int64(e.value), key: e.key}, nil
}

// soundEntry returns the last entry that passes the check among the first ones whose column is ≤ limit, and the number
// of entries up to it.
//
// first says that the first entry looked at was sound: then no entry behind it can be missing either.
func (r *recovery) soundEntry(ref *fileRef, x *index, limit int64, column func(indexEntry) int64, check func(indexEntry) (bool, error)) (n int, e indexEntry, first bool, err error) {
	none := indexEntry{}
	if x.count == 0 || limit < 0 {
		return 0, none, false, nil
	}
	h, err := r.d.files.acquire(ref)
	if isGone(err) {
		return 0, none, false, nil
	}
	if err != nil {
		return 0, none, false, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	count := x.count
	for step := 1; count > 0; step *= 2 {
		n, e, err := x.kind.searchFile(f, count, limit, column)
		switch {
		case errors.Is(err, errIndexBad):
			count -= step
			continue
		case errors.Is(err, io.ErrUnexpectedEOF):
			count -= step // shorter than the directory said
			continue
		case err != nil:
			return 0, none, false, err
		case n == 0:
			return 0, none, false, nil
		}
		sound := true
		if n > 1 {
			var p [timeEntryBytes]byte
			if err := readFull(f, p[:x.kind.entryBytes], int64(n-2)*int64(x.kind.entryBytes)); err != nil {
				return 0, none, false, err
			}
			before := x.kind.get(p[:])
			sound = before.key < e.key && before.value < e.value
		}
		if sound {
			if sound, err = check(e); err != nil {
				return 0, none, false, err
			}
		}
		if sound {
			return n, e, step == 1, nil
		}
		count = n - step
	}
	return 0, none, false, nil
}

// redoRecords writes the records of the write-ahead log into the segments again (step 5). They are not compared with
// what is there: the page cache may show, marked clean, what the disk lacks (W3).
func (r *recovery) redoRecords() error {
	if r.redo == nil {
		return nil
	}
	return r.redo.redo(r.state.logID, func(rec redoRecord) error {
		r.durableEnd = max(r.durableEnd, rec.durableEnd, rec.next)
		if rec.next <= r.floor {
			return nil
		}
		seg := r.segment(rec.segment)
		if seg == nil {
			seg = newSegment(r.path, rec.segment)
			f, err := r.d.cfg.FS.Create(seg.log.path)
			if err != nil {
				return fmt.Errorf("redo segment %d: %w", rec.segment, err)
			}
			seg.pinned = r.d.files.adopt(&seg.log, f)
			i := sort.Search(len(r.segments), func(i int) bool { return r.segments[i].base > rec.segment })
			r.segments = slices.Insert(r.segments, i, seg)
		}
		h, err := r.d.files.acquire(&seg.log)
		if err != nil {
			return err
		}
		defer r.d.files.release(h)
		if r.d.cfg.mutants.has(mutantSkipSame) {
			there := make([]byte, len(rec.data))
			if _, err := h.file.ReadAt(there, rec.position); err == nil && slices.Equal(there, rec.data) {
				return nil
			}
		}
		if _, err := h.file.WriteAt(rec.data, rec.position); err != nil {
			if errors.Is(err, vfs.ErrNoSpace) {
				return fmt.Errorf("redo %d bytes of segment %d: the disk is full, free some space and start again: %w", len(rec.data), rec.segment, err)
			}
			return fmt.Errorf("redo %d bytes of segment %d: %w", len(rec.data), rec.segment, err)
		}
		seg.size = max(seg.size, rec.position+int64(len(rec.data)))
		r.touched = true
		return nil
	})
}

// checkSealed compares the segments below the floor with the manifest (L10): a missing or short one is corruption, not
// a new start. Those the manifest does not list yet must touch each other.
func (r *recovery) checkSealed() error {
	corrupt := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", r.name, ErrCorrupt, fmt.Sprintf(format, args...))
	}
	for _, g := range r.state.sealed {
		if g.next <= r.state.start && r.segment(g.base) == nil {
			continue // trimmed
		}
		seg := r.segment(g.base)
		if seg == nil {
			return corrupt("segment %d with the offsets up to %d is missing", g.base, g.next)
		}
		if seg.size != g.sizeBytes {
			return corrupt("segment %d has %d bytes, should have %d", g.base, seg.size, g.sizeBytes)
		}
	}
	if len(r.segments) == 0 {
		if r.floor > r.state.start {
			return corrupt("no segment is there, offsets %d to %d are missing", r.state.start, r.floor)
		}
		return nil
	}
	if first := r.segments[0].base; first > r.state.start {
		return corrupt("the first segment begins at %d, offsets from %d on are missing", first, r.state.start)
	}
	listed := int64(-1)
	if n := len(r.state.sealed); n > 0 {
		listed = r.state.sealed[n-1].base
	}
	for i, seg := range r.segments[:len(r.segments)-1] {
		following := r.segments[i+1].base
		if following > r.floor {
			break // the scan checks what lies above
		}
		if seg.base <= listed {
			if seg.next != following {
				return corrupt("segment %d ends at %d, the next begins at %d", seg.base, seg.next, following)
			}
			continue
		}
		if err := r.measure(seg); err != nil {
			return err
		}
		if seg.next != following {
			return corrupt("segment %d ends at %d, the next begins at %d", seg.base, seg.next, following)
		}
		if seg.size == 0 {
			return corrupt("segment %d is empty, the next begins at %d", seg.base, following)
		}
	}
	return nil
}

// measure finds the end and the maxima of a sealed segment that is not in the manifest, from its indexes and the
// headers behind the last entry.
func (r *recovery) measure(seg *segment) error {
	from, err := r.indexHit(seg, maxRelativeOffset)
	if err != nil {
		return err
	}
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer r.d.files.release(h)
	if from.key >= 0 {
		complete, err := r.loadLastTime(seg, maxRelativeOffset)
		if err != nil {
			return err
		}
		if !complete {
			r.forgetIndexes(seg)
			from = indexHit{key: -1}
		}
	}
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, seg.size)
	defer func() { scan.stop() }()
	for first := true; ; first = false {
		ok, err := scan.next()
		if first && from.key >= 0 && (err != nil || !ok || scan.header.LastOffset()-seg.base != from.key) {
			r.forgetIndexes(seg)
			from = indexHit{key: -1}
			scan.stop()
			scan.start(r.d.counting(h.file), 0, seg.size)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: segment %d below the recovery point: %w", r.name, seg.base, err)
		}
		if !ok {
			seg.indexesSynced = seg.offsetIndex.count > 0
			return nil
		}
		seg.next = scan.header.NextOffset()
		if ts := scan.header.MaxTimestamp; ts > seg.maxTimestamp {
			seg.maxTimestamp, seg.maxTimestampOffset = ts, scan.header.LastOffset()
		}
	}
}

// loadLastTime takes the maxima of a segment from the last sound time index entry with a relative offset ≤ limit,
// forgets the entries behind it, and puts it into the tail, where appends look for it. The offset index must be sound.
// If entries may be missing, complete is false: the maxima hold only up to the batch that the entry tells of.
func (r *recovery) loadLastTime(seg *segment, limit int64) (complete bool, err error) {
	x := &seg.timeIndex
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return false, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	n, e, complete, err := r.soundEntry(&seg.times, x, limit, byValue, func(e indexEntry) (bool, error) {
		v := view{seg: seg, size: seg.size, offsets: seg.offsetIndex}
		hit, err := r.log.indexPosition(&v, int64(e.value)-1, byKey)
		if err == nil {
			var hdr record.Header
			if hdr, _, err = locateFrom(f, hit, seg.size, seg.base, math.MaxInt64, seg.base+int64(e.value)); err == nil {
				return hdr.LastOffset()-seg.base == int64(e.value) && hdr.MaxTimestamp == e.key, nil
			}
		}
		if errors.Is(err, errIndexBad) || errors.Is(err, ErrCorrupt) {
			err = nil
		}
		return false, err
	})
	if err != nil {
		return false, err
	}
	*x = x.truncated(n)
	if n > 0 {
		x.tail = []indexEntry{e}
		seg.maxTimestamp, seg.maxTimestampOffset = e.key, seg.base+int64(e.value)
	}
	return complete, nil
}

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
	p, from := l.loadSnapshot(r.floor)
	if from < r.floor {
		for k := segmentAt(r.segments, from); k <= i; k++ {
			seg := r.segments[k]
			if err := l.replaySegment(&p, seg, from, r.floor, 0); err != nil {
				return err
			}
		}
	}
	l.producers = p
	if from < r.floor {
		// Else the next start would replay as much again.
		l.pendingSnapshots = []pendingSnapshot{{r.floor, p.encode(r.floor)}}
	}
	return nil
}

// rebuildEpochs reads the epochs from the headers of all batches below the floor (L7).
func (r *recovery) rebuildEpochs(i int) error {
	l := r.log
	if r.floor > r.state.start {
		l.logger.Warn("epoch file is missing or bad and is rebuilt from the batches")
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
		if torn = r.misfit(&hdr, seg, expected, epoch); torn != nil {
			break
		}
		l.mu.epochs.assign(hdr.LeaderEpoch, hdr.BaseOffset)
		epoch = hdr.LeaderEpoch
		seg.indexBatch(&hdr, scan.pos, interval)
		l.producers.update(&hdr, 0, false)
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

// cutIndexes drops the index entries of a segment from offset and position on: the scan makes them anew (W19).
func (r *recovery) cutIndexes(seg *segment, expected, position int64) error {
	rel := expected - seg.base
	if position == 0 {
		r.forgetIndexes(seg)
		return r.truncateIndexes(seg)
	}
	from, err := r.indexHit(seg, rel-1)
	if err != nil {
		return err
	}
	if from.key >= 0 {
		complete, err := r.loadLastTime(seg, rel-1)
		if err != nil {
			return err
		}
		if !complete {
			// Go back to the batch of the last sound time entry; the walk below makes the entries behind it anew.
			e, ok := seg.timeIndex.last()
			if from = (indexHit{key: -1}); ok {
				if from, err = r.indexHit(seg, int64(e.value)); err != nil {
					return err
				}
			}
		}
	}
	if from.key < 0 {
		// No entry is left: walk the headers from the beginning, to make the indexes complete.
		r.forgetIndexes(seg)
	}
	if err := r.truncateIndexes(seg); err != nil {
		return err
	}
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer r.d.files.release(h)
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, position)
	defer scan.stop()
	seg.unindexedBytes = 0
	interval := DefaultSettings().IndexIntervalBytes
	for first := from.key >= 0; ; first = false {
		ok, err := scan.next()
		if err != nil {
			return fmt.Errorf("%s: segment %d below the recovery point: %w", r.name, seg.base, err)
		}
		if !ok {
			return nil
		}
		if first { // it has its entry
			seg.unindexedBytes = int64(scan.header.Size())
			if scan.header.MaxTimestamp > seg.maxTimestamp {
				seg.maxTimestamp, seg.maxTimestampOffset = scan.header.MaxTimestamp, scan.header.LastOffset()
			}
			continue
		}
		seg.indexBatch(&scan.header, scan.at, interval)
	}
}

// forgetIndexes empties both indexes of a segment, and the maxima that came from them.
func (r *recovery) forgetIndexes(seg *segment) {
	seg.offsetIndex, seg.timeIndex = index{kind: offsetIndexKind}, index{kind: timeIndexKind}
	seg.maxTimestamp, seg.maxTimestampOffset = -1, -1
}

// truncateIndexes makes the index files as long as the indexes say.
func (r *recovery) truncateIndexes(seg *segment) error {
	for _, f := range [...]struct {
		ref *fileRef
		x   *index
	}{{&seg.offsets, &seg.offsetIndex}, {&seg.times, &seg.timeIndex}} {
		name := offsetFileName(seg.base, indexSuffix)
		if f.x.kind.entryBytes == timeEntryBytes {
			name = offsetFileName(seg.base, timeIndexSuffix)
		}
		want := int64(f.x.flushed) * int64(f.x.kind.entryBytes)
		if have, ok := r.files[name]; !ok || have == want {
			continue
		}
		if err := r.log.truncateFile(f.ref, want); err != nil {
			return err
		}
		r.files[name] = want
		r.touched = true
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
		r.log.logger.Warn("torn tail cut off", "end_offset", end, "bytes", r.stats.BytesTruncated, "reason", torn)
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
