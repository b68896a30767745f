package log

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/log/vfs"
)

// TrimPrefix moves the start of the log to start, which must not exceed the last stable offset (L17), and unlinks the
// segments that lie wholly below it. The new start is durable before the first unlink, and never lies in unsynced
// bytes (W15). A start at or below the present one is nothing to do.
//
// Errors: ErrOffsetOutOfRange above the last stable offset, ErrPoisoned, ErrClosed.
func (l *Log) TrimPrefix(start int64) error {
	_, err := l.trimPrefix(start, "delete records")
	return err
}

// trimPrefix returns the bytes that were unlinked.
func (l *Log) trimPrefix(start int64, reason string) (freed int64, err error) {
	l.syncing.Lock()
	defer l.tellDurable()
	defer l.syncing.Unlock()
	if err := l.usable(); err != nil {
		return 0, err
	}
	l.mu.Lock()
	old, limit, recoveryPoint := l.mu.start, l.lastStableLocked(), l.mu.recoveryPoint
	below := l.belowStartLocked()
	l.mu.Unlock()
	if start <= old && !below {
		return 0, nil
	}
	start = max(start, old)
	if start > limit {
		return 0, fmt.Errorf("trim %s to %d: %w: stable up to %d", l, start, ErrOffsetOutOfRange, limit)
	}
	if recoveryPoint < start && !l.dir.cfg.mutants.has(mutantStartUnsynced) {
		err := l.advanceLocked()
		if errors.Is(err, ErrNoSpace) && recoveryPoint > old {
			// What can go without an advance makes room for it.
			if freed, err = l.trimLocked(old, recoveryPoint, reason); err == nil {
				err = l.advanceLocked()
			}
		}
		if errors.Is(err, ErrNoSpace) {
			l.dir.freeing.Add(1)
			err = l.advanceLocked()
			l.dir.freeing.Add(-1)
		}
		if err != nil {
			return freed, err
		}
	}
	n, err := l.trimLocked(old, start, reason)
	return freed + n, err
}

// trimLocked is trimPrefix for a start that does not exceed the recovery point. Caller holds syncing.
func (l *Log) trimLocked(old, start int64, reason string) (freed int64, err error) {
	l.dir.freeing.Add(1)
	defer l.dir.freeing.Add(-1)
	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	segments, logID := l.mu.segments, l.mu.logID
	recoveryPoint := max(l.mu.recoveryPoint, start)
	drop := 0
	for drop < len(segments)-1 && segments[drop+1].base <= start {
		drop++
	}
	l.mu.Unlock()
	sealed := l.sealed
	for len(sealed) > 0 && sealed[0].base < segments[drop].base {
		sealed = sealed[1:]
	}
	if l.dir.cfg.mutants.has(mutantUnlinkFirst) {
		for _, seg := range segments[:drop] {
			l.unlinkSegment(seg)
		}
	}
	if err := l.writeState(state{logID: logID, start: start, recoveryPoint: recoveryPoint, cut: -1, sealed: sealed}); err != nil {
		return 0, err
	}
	l.sealed = sealed
	l.mu.Lock()
	l.mu.start = start
	l.mu.segments = append([]*segment(nil), segments[drop:]...)
	l.mu.epochs.truncateStart(start)
	for _, seg := range segments[:drop] {
		freed += seg.size
	}
	l.mu.sizeBytes -= freed
	l.mu.Unlock()
	for _, seg := range segments[:drop] {
		l.logger().Info("segment deleted", "segment", seg.base, "next_offset", seg.next, "bytes", seg.size, "reason", reason, "start_offset", start)
		l.dir.metrics.deletedSegments.WithLabelValues(reason).Inc()
		l.dir.metrics.deletedBytes.WithLabelValues(reason).Add(float64(seg.size))
		l.unlinkSegment(seg)
	}
	l.dropSnapshotsBelow(segments[drop].base)
	if drop == 0 && start > old {
		l.logger().Info("start offset moved", "start_offset", start, "was", old, "reason", reason)
	}
	return freed, nil
}

// belowStartLocked says whether the first segment lies wholly below the start: it did not when the start was moved, for
// lack of a second. Caller holds mu.
func (l *Log) belowStartLocked() bool {
	return len(l.mu.segments) > 1 && l.mu.segments[1].base <= l.mu.start
}

// unlinkSegment removes the files of a segment that the table names no more. A file that stays lies below the start,
// or above the end, of what the state file says: the next recovery removes it.
func (l *Log) unlinkSegment(seg *segment) {
	l.releaseSegment(seg)
	for _, ref := range seg.refs() {
		if err := l.dir.cfg.FS.Remove(ref.path); err != nil && !isGone(err) {
			l.logger().Warn("file of a deleted segment could not be unlinked", "file", ref.path, "error", err)
		}
	}
}

// dropSnapshotsBelow removes the producer snapshots below offset, except the newest at or below it.
func (l *Log) dropSnapshotsBelow(offset int64) {
	n := 0
	for n+1 < len(l.snapshots) && l.snapshots[n+1] <= offset {
		n++
	}
	for _, s := range l.snapshots[:n] {
		_ = l.dir.cfg.FS.Remove(vfs.Join(l.path, offsetFileName(s, snapshotSuffix)))
	}
	l.snapshots = l.snapshots[n:]
}
