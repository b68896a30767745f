package log

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/log/vfs"
)

// maxPendingSnapshots bounds the producer snapshots that wait in memory for the next advance.
const maxPendingSnapshots = 4

// rollReason says why the active segment must be closed before a set of the given size, last offset and number of
// batches is appended behind the run; "" if it need not. Caller is the writer.
func (l *Log) rollReason(bytes, lastOffset int64, batches int, now int64) string {
	seg, s := l.active(), l.settings.Load()
	size := seg.size + l.run.bytes
	if size == 0 {
		return ""
	}
	staged := len(l.run.headers)
	switch {
	case size+bytes > s.SegmentBytes:
		return "size"
	case lastOffset-seg.base > maxRelativeOffset:
		return "offset range" // an index entry holds 31 bits (L16)
	case seg.size > 0 && seg.ageLimit > 0 && now-seg.firstAppend >= seg.ageLimit:
		return "age"
	case seg.offsetIndex.bytes()+int64(staged)*offsetEntryBytes > s.SegmentIndexBytes,
		seg.timeIndex.bytes()+int64(staged+1)*timeEntryBytes > s.SegmentIndexBytes:
		return l.indexFull(seg, s, bytes)
	}
	return ""
}

// indexFull looks closer: not every batch gets an index entry.
func (l *Log) indexFull(seg *segment, s *Settings, bytes int64) string {
	entries := int64(len(l.run.headers))
	if s.IndexIntervalBytes > 0 {
		entries = min(entries, (seg.unindexedBytes+l.run.bytes+bytes)/s.IndexIntervalBytes+1)
	}
	if seg.offsetIndex.bytes()+entries*offsetEntryBytes > s.SegmentIndexBytes ||
		seg.timeIndex.bytes()+(entries+1)*timeEntryBytes > s.SegmentIndexBytes {
		return "index full"
	}
	return ""
}

// roll closes the active segment and begins one at base, which is the end of the log. The new segment is published
// before the old one takes its place among the sealed (L16). Syncing the old one is left to a worker; until then it
// counts as dirty. Caller is the writer.
func (l *Log) roll(base int64, reason string) error {
	old := l.active()
	if old.base == base {
		return nil
	}
	// A last time index entry for the largest timestamp of the segment, as Kafka writes it.
	l.mu.Lock()
	old.indexTime()
	l.mu.Unlock()
	if err := l.flushIndexes(old); err != nil {
		return err
	}
	seg := newSegment(l.path, base)
	if err := l.createSegment(seg); err != nil {
		return err
	}
	if n := len(l.pendingSnapshots); n >= maxPendingSnapshots {
		// The disk is full or slow: the older ones would only make a replay after a truncation shorter.
		l.pendingSnapshots = slices.Delete(l.pendingSnapshots, 0, n-maxPendingSnapshots+1)
	}
	l.pendingSnapshots = append(l.pendingSnapshots, pendingSnapshot{base, l.snapshot(base, nil)})
	l.sealedChanged = true

	l.mu.Lock()
	segments := make([]*segment, 0, len(l.mu.segments)+1)
	l.mu.segments = append(append(segments, l.mu.segments...), seg)
	l.mu.dirChanged++
	old.offsetIndex.sealed()
	old.timeIndex.sealed()
	old.aborted.seal()
	l.mu.Unlock()
	l.dir.metrics.rolls.WithLabelValues(reason).Inc()
	l.logger().Debug("segment rolled", "segment", base, "reason", reason)
	l.dir.requestAdvance(l)
	return nil
}

// createSegment creates the log file of an empty segment.
func (l *Log) createSegment(seg *segment) error {
	f, err := l.dir.cfg.FS.Create(seg.log.path)
	if err != nil {
		if errors.Is(err, vfs.ErrNoSpace) {
			l.dir.sawFull()
			return fmt.Errorf("%s: create segment %d: %w: %w", l, seg.base, ErrNoSpace, err)
		}
		if errors.Is(err, vfs.ErrTooManyFiles) {
			return fmt.Errorf("%s: create segment %d: %w: %w", l, seg.base, ErrNoSpace, err) // refused, as when the disk is full: it passes
		}
		return l.dir.fail(fmt.Errorf("create segment %d of %s: %w", seg.base, l, err))
	}
	seg.pinned = l.dir.files.adopt(&seg.log, f)
	return nil
}

// flushIndexes writes the index entries that are only in memory. A full disk is no error: they stay in memory. Caller
// is the writer.
func (l *Log) flushIndexes(seg *segment) error {
	if err := l.flushIndex(&seg.offsets, &seg.offsetIndex, seg.base); err != nil {
		return err
	}
	if err := l.flushIndex(&seg.times, &seg.timeIndex, seg.base); err != nil {
		return err
	}
	return l.flushAborted(seg)
}

func (l *Log) flushIndex(ref *fileRef, x *index, base int64) error {
	p, at := x.pending(l.flushBuffer[:0])
	l.flushBuffer = p[:0]
	if len(p) == 0 {
		return nil
	}
	err := l.writeIndex(ref, p, at)
	switch {
	case errors.Is(err, vfs.ErrNoSpace):
		l.dir.sawFull()
		return nil
	case err != nil:
		return l.dir.fail(fmt.Errorf("write %s of segment %d of %s: %w", x.kind.name, base, l, err))
	}
	l.mu.Lock()
	x.flushed = x.count
	l.mu.Unlock()
	return nil
}

func (l *Log) writeIndex(ref *fileRef, p []byte, at int64) error {
	h, err := l.dir.files.acquire(ref)
	if isGone(err) {
		f, cerr := l.dir.cfg.FS.Create(ref.path)
		if cerr != nil {
			return cerr
		}
		l.mu.Lock()
		l.mu.dirChanged++
		l.mu.Unlock()
		h, err = l.dir.files.adopt(ref, f), nil
	}
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	_, err = h.file.WriteAt(p, at)
	return err
}
