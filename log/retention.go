package log

import "time"

// retain deletes old segments by time and by size. Never from a topic whose cleanup.policy lacks delete, never above
// the last stable offset (L17); each deletion is logged with its reason (I16).
func (l *Log) retain(wallMillis int64) {
	s := l.settings.Load()
	if l.usable() != nil {
		return
	}
	l.mu.Lock()
	start, below := l.mu.start, l.belowStartLocked()
	l.mu.Unlock()
	if below {
		l.trimTo(start, "below the start offset")
	}
	if !s.Delete {
		return
	}
	if s.RetentionAge >= 0 {
		l.retainByTime(wallMillis, s.RetentionAge)
	}
	if s.RetentionBytes >= 0 {
		l.retainBySize(s.RetentionBytes)
	}
}

// recordMillis is the time that counts for a segment's age. It is the largest record time, as in Kafka, but records
// dated after they came (a wrong clock, or a date far in the future) count from when they came: they would pin the
// segment for ever otherwise (L15). A segment without record times counts from its last append as well.
func (s *segment) recordMillis() int64 {
	if s.maxTimestamp < 0 {
		return s.appendedMillis
	}
	return min(s.maxTimestamp, s.appendedMillis)
}

// retainByTime deletes the leading segments whose records are all older than the given age. If that is all of them the
// active one is rolled, so that it can go too.
func (l *Log) retainByTime(wallMillis int64, age time.Duration) {
	horizon := wallMillis - age.Milliseconds()
	l.mu.Lock()
	segments, stable := l.mu.segments, l.lastStableLocked()
	start := int64(-1)
	var expired *segment
	for i, seg := range segments {
		if seg.size == 0 || seg.recordMillis() >= horizon || seg.next > stable {
			break
		}
		start = seg.next
		if i == len(segments)-1 {
			expired = seg
		}
	}
	l.mu.Unlock()
	if expired != nil {
		l.rollActive(expired, "retention")
	}
	if start >= 0 {
		l.trimTo(start, "retention time")
	}
}

// retainBySize deletes leading segments while the others have at least the given size.
func (l *Log) retainBySize(bytes int64) {
	l.mu.Lock()
	segments, stable := l.mu.segments, l.lastStableLocked()
	excess := l.mu.sizeBytes - bytes
	start := int64(-1)
	for _, seg := range segments[:len(segments)-1] {
		if excess < seg.size || seg.next > stable {
			break
		}
		excess -= seg.size
		start = seg.next
	}
	l.mu.Unlock()
	if start >= 0 {
		l.trimTo(start, "retention size")
	}
}

func (l *Log) trimTo(start int64, reason string) {
	if _, err := l.trimPrefix(start, reason); err != nil {
		l.logger().Warn("retention failed", "reason", reason, "start_offset", start, "error", err)
	}
}
