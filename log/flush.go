package log

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/log/vfs"
)

// sync is fdatasync with its duration observed.
func (l *Log) sync(f vfs.File) error { return l.dir.sync(f) }

func (d *Dir) sync(f vfs.File) error {
	began := time.Now()
	err := f.Sync()
	if d.cfg.mutants.has(mutantIgnoreSyncError) {
		err = nil
	}
	d.metrics.fsync.Observe(time.Since(began).Seconds())
	return err
}

// dirtySegment is a segment to sync, with the version that the sync will cover.
type dirtySegment struct {
	seg     *segment
	version uint64
	handle  *handle
}

// Flush makes everything appended before the call durable, by the direct path.
func (l *Log) Flush() error {
	l.syncing.Lock()
	err := l.syncSegments()
	l.syncing.Unlock()
	if err == nil {
		l.tellDurable()
	}
	return err
}

// syncSegments is the direct sync (W5): the end is read first, then every dirty segment is synced in ascending order,
// then the directory if it got new files, then the durable end moves. Caller holds syncing.
func (l *Log) syncSegments() error {
	if err := l.usable(); err != nil {
		return err
	}
	var scratch [4]dirtySegment
	dirty := scratch[:0]
	l.mu.Lock()
	end, logID := l.mu.end, l.mu.logID
	for _, seg := range l.mu.segments {
		if l.dir.cfg.mutants.has(mutantActiveOnly) && seg != l.active() {
			continue
		}
		if seg.written != seg.synced {
			dirty = append(dirty, dirtySegment{seg: seg, version: seg.written, handle: seg.pinned})
		}
	}
	dirChanged, dirSynced := l.mu.dirChanged, l.mu.dirSynced
	l.mu.unsyncedRecords = 0
	l.mu.Unlock()

	for _, d := range dirty {
		if err := l.sync(d.handle.file); err != nil {
			return l.dir.fail(fmt.Errorf("sync segment %d of %s: %w", d.seg.base, l, err))
		}
	}
	if dirChanged != dirSynced && !l.dir.cfg.mutants.has(mutantSegmentName) {
		if err := l.dir.cfg.FS.SyncDir(l.path); err != nil {
			return l.dir.fail(fmt.Errorf("sync directory of %s: %w", l, err))
		}
	}

	// Of two syncs of one file only one is told of a failure, and the pages are clean for the other. The writer, which
	// undoes a failed write, is the only one who syncs beside this: its outcome must be known before this one counts.
	if l.cuttingBack.Load() {
		l.waitWriter()
	}
	if err := l.usable(); err != nil {
		return err // no further answer (W17)
	}

	var unpin []*handle
	l.mu.Lock()
	if l.dir.cfg.mutants.has(mutantLateEnd) {
		end = l.mu.end
	}
	for _, d := range dirty {
		if l.dir.cfg.mutants.has(mutantLateClean) {
			d.version = d.seg.written
		}
		d.seg.synced = max(d.seg.synced, d.version)
	}
	for _, seg := range l.mu.segments[:len(l.mu.segments)-1] {
		if seg.pinned != nil && seg.synced == seg.written {
			unpin = append(unpin, seg.pinned)
			seg.pinned = nil
		}
	}
	l.mu.dirSynced = max(l.mu.dirSynced, dirChanged)
	l.mu.durable.complete(0, end)
	l.mu.Unlock()
	for _, h := range unpin {
		l.dir.files.release(h)
	}
	l.dir.commit.flushed(l, logID, end)
	return nil
}

// waitWriter waits until the writer has let go. Caller holds syncing at most.
func (l *Log) waitWriter() {
	l.w.Lock()
	defer l.w.Unlock()
}

// advance makes everything durable, syncs the derived files, and moves the recovery point to where the end was (W19).
// Sealed segments are added to the manifest.
func (l *Log) advance() error {
	l.syncing.Lock()
	err := l.advanceLocked()
	l.syncing.Unlock()
	if err == nil {
		l.tellDurable()
	}
	return err
}

// advanceLocked is advance for a caller that holds syncing, but not w.
func (l *Log) advanceLocked() error {
	if err := l.usable(); err != nil {
		return err
	}
	l.w.Lock()
	plan, err := l.planAdvance()
	l.w.Unlock()
	if err != nil || plan == nil {
		return err
	}
	return l.carryOut(plan)
}

// advancePlan is what planAdvance captured under w: the log as it was at end.
type advancePlan struct {
	end       int64
	snapshots []pendingSnapshot
	epochs    []epochStart
	// epochsVersion is the version of epochs, 0 if the file is up to date.
	epochsVersion uint64
	indexes       []*segment
	sealed        []sealedSegment
	sealedChanged bool
}

// planAdvance captures the state of the log at its end, nil if the recovery point is there already. Caller holds
// syncing and w.
func (l *Log) planAdvance() (*advancePlan, error) {
	l.mu.Lock()
	end, rp := l.mu.end, l.mu.recoveryPoint
	segments := l.mu.segments
	epochsDirty := l.mu.epochs.changed != l.mu.epochs.written
	l.mu.Unlock()
	if rp == end && !epochsDirty && !l.sealedChanged && len(l.pendingSnapshots) == 0 {
		return nil, nil
	}
	p := &advancePlan{end: end}
	for _, seg := range segments {
		if seg.indexesSynced {
			continue
		}
		if err := l.flushIndexes(seg); err != nil {
			return nil, err
		}
		p.indexes = append(p.indexes, seg)
	}
	if !l.dir.noSpace.Load() { // on a full disk the one at the end must do
		p.snapshots = slices.Clone(l.pendingSnapshots)
	}
	if rp != end && (len(p.snapshots) == 0 || p.snapshots[len(p.snapshots)-1].offset != end) {
		p.snapshots = append(p.snapshots, pendingSnapshot{end, l.snapshot(end, segments[len(segments)-1])})
	}
	if epochsDirty {
		l.mu.Lock()
		p.epochs, p.epochsVersion = l.mu.epochs.list, l.mu.epochs.changed
		l.mu.Unlock()
	}
	p.sealed = l.sealed
	if p.sealedChanged = l.sealedChanged; p.sealedChanged {
		p.sealed = sealedOf(segments)
	}
	return p, nil
}

// sealedOf returns the manifest of all segments but the last.
func sealedOf(segments []*segment) []sealedSegment {
	sealed := make([]sealedSegment, 0, len(segments)-1)
	for _, seg := range segments[:len(segments)-1] {
		sealed = append(sealed, seg.sealedEntry())
	}
	return sealed
}

// carryOut syncs segments, derived files and directory in that order, replaces the state file if the manifest has
// changed, and publishes the recovery point. Caller holds syncing.
func (l *Log) carryOut(p *advancePlan) error {
	if err := l.syncSegments(); err != nil {
		return err
	}
	fail := func(what string, err error) error {
		return l.dir.failUnlessFull(what+" of "+l.String(), err)
	}
	for _, seg := range p.indexes {
		if err := l.syncIndexes(seg); err != nil {
			return fail(fmt.Sprintf("sync indexes of segment %d", seg.base), err)
		}
	}
	if err := l.writeSnapshots(p.snapshots); err != nil {
		return fail("write producer snapshot", err)
	}
	if p.epochsVersion != 0 {
		if err := l.dir.replaceFile(l.path, epochsName, encodeEpochs(p.epochs)); err != nil {
			return fail("replace "+epochsName, err)
		}
	} else if l.dir.cfg.mutants.has(mutantSegmentName) {
	} else if err := l.dir.cfg.FS.SyncDir(l.path); err != nil {
		return fail("sync directory", err)
	}

	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	start, logID := l.mu.start, l.mu.logID
	l.mu.Unlock()
	if p.sealedChanged {
		if err := l.writeState(state{logID: logID, start: start, recoveryPoint: max(p.end, start), cut: -1, sealed: p.sealed}); err != nil {
			return err
		}
		l.sealed = p.sealed
	}
	l.pendingSnapshots = slices.DeleteFunc(l.pendingSnapshots, func(s pendingSnapshot) bool { return s.offset <= p.end })
	l.mu.Lock()
	for _, seg := range p.indexes {
		if seg != l.active() && seg.next <= p.end && seg.indexesFlushed() {
			seg.indexesSynced = true
		}
	}
	if p.sealedChanged {
		l.sealedChanged = len(p.sealed) != len(l.mu.segments)-1
	}
	if p.epochsVersion != 0 {
		l.mu.epochs.written = max(l.mu.epochs.written, p.epochsVersion)
	}
	l.mu.recoveryPoint = max(l.mu.recoveryPoint, p.end)
	bases := make(map[int64]bool, len(l.mu.segments))
	for _, seg := range l.mu.segments {
		bases[seg.base] = true
	}
	l.mu.Unlock()
	l.dropSnapshots(bases)
	return nil
}

// writeSnapshots writes producer snapshots, and remembers those written also if not all were: a truncation must remove
// what lies above it. Caller holds syncing, but not w.
//
// One that is there is left as it is: the state as of an offset is what it was, and a file that is written over is torn
// when the process ends meanwhile. The end of the log gets one when it is flushed, and another when a segment then begins
// there.
func (l *Log) writeSnapshots(list []pendingSnapshot) (err error) {
	var written []int64
	l.w.Lock()
	there := slices.Clone(l.snapshots)
	l.w.Unlock()
	for _, s := range list {
		if slices.Contains(there, s.offset) {
			continue
		}
		if err = l.dir.writeFile(vfs.Join(l.path, offsetFileName(s.offset, snapshotSuffix)), s.data); err != nil {
			break
		}
		written = append(written, s.offset)
	}
	l.w.Lock()
	defer l.w.Unlock()
	for _, offset := range written {
		if i, known := slices.BinarySearch(l.snapshots, offset); !known {
			l.snapshots = slices.Insert(l.snapshots, i, offset)
		}
	}
	return err
}

// syncIndexes syncs the index files of a segment; a segment without entries has none.
func (l *Log) syncIndexes(seg *segment) error {
	l.mu.Lock() // the writer may add the first abort meanwhile, which is of no concern here
	refs, aborted := seg.refs()[1:], seg.aborted
	l.mu.Unlock()
	for _, ref := range refs {
		if aborted != nil && ref == &aborted.file && l.dir.cfg.mutants.has(mutantAbortedTrusted) {
			continue
		}
		h, err := l.dir.files.acquire(ref)
		if isGone(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = l.sync(h.file)
		l.dir.files.release(h)
		if err != nil {
			return err
		}
	}
	return nil
}

// writeState replaces the state file; the topic and partition are filled in.
func (l *Log) writeState(s state) error {
	s.topic, s.partition, s.topicID = l.topic, l.partition, l.topicID
	if err := l.dir.replaceFile(l.path, stateName, s.encode()); err != nil {
		return l.dir.failUnlessFull("replace "+stateName+" of "+l.String(), err)
	}
	return nil
}

// keptSnapshots is the number of producer snapshots kept beside those at the bases of segments: the checkpoint on disk
// may still name the recovery point before the newest.
const keptSnapshots = 2

// dropSnapshots removes snapshots that no recovery will ask for. Caller is the writer. Failures leave a file behind,
// nothing else.
func (l *Log) dropSnapshots(bases map[int64]bool) {
	extra := 0
	kept := l.snapshots[:0:0]
	for i := len(l.snapshots) - 1; i >= 0; i-- {
		offset := l.snapshots[i]
		if !bases[offset] {
			if extra++; extra > keptSnapshots {
				_ = l.dir.cfg.FS.Remove(vfs.Join(l.path, offsetFileName(offset, snapshotSuffix)))
				continue
			}
		}
		kept = append(kept, offset)
	}
	slices.Reverse(kept)
	l.snapshots = kept
}
