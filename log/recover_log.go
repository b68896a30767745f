package log

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

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
			r.log.logger().Info("segment deleted", "segment", base, "bytes", seg.size, "reason", "below the start offset", "start_offset", r.state.start)
			if err := r.unlink(seg); err != nil {
				return err
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
			if g.aborted.count > 0 {
				seg.aborted = &abortedIndex{file: seg.abortedRef(r.path), sum: g.aborted, flushed: g.aborted.count}
			}
		}
	}
	return r.removeOrphans()
}

// removeOrphans removes the indexes of aborted transactions of segments that are gone: an unlink was interrupted. A new
// segment of that base must not begin with them.
func (r *recovery) removeOrphans() error {
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if base, suffix, ok := parseOffsetFileName(name); !ok || suffix != txnIndexSuffix || r.segment(base) != nil {
			continue
		}
		if err := r.d.cfg.FS.Remove(vfs.Join(r.path, name)); err != nil && !absent(err) {
			return err
		}
		delete(r.files, name)
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
		seg.next, seg.maxTimestamp, seg.maxTimestampOffset, seg.aborted = seg.base, -1, -1, nil
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
	r.log.logger().Info("interrupted truncation finished", "to", cut)
	return nil
}

// unlink removes the files of a segment.
func (r *recovery) unlink(seg *segment) error {
	r.log.releaseSegment(seg)
	aborted := seg.abortedRef(r.path)
	for _, name := range [...]string{seg.log.path, seg.offsets.path, seg.times.path, aborted.path} {
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
