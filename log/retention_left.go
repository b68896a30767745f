package log

import (
	"math"
	"time"
)

const (
	// growthWindow is over how long the rate of appends is taken, at least, once a log has been open for that long; at most it is
	// twice that.
	growthWindow = 5 * time.Minute
	// growthLeast is how long a log must have been watched before there is a rate.
	growthLeast = 10 * time.Second
)

// growth tells at what rate a log is appended to. Bytes are counted from the opening of the log, times are on the clock of Dir.Tick.
type growth struct {
	bytes int64
	// before and last are two ticks, before ≤ last; the rate is taken from before on.
	before, last growthMark
	marked       bool
}

type growthMark struct{ clock, bytes int64 }

// mark is called at each tick.
func (g *growth) mark(clock int64) {
	switch now := (growthMark{clock, g.bytes}); {
	case !g.marked:
		g.marked, g.before, g.last = true, now, now
	case clock-g.last.clock >= int64(growthWindow):
		g.before, g.last = g.last, now
	}
}

// rate returns bytes in a second; false: not known yet.
func (g *growth) rate(clock int64) (float64, bool) {
	over := time.Duration(clock - g.before.clock)
	if !g.marked || over < growthLeast {
		return 0, false
	}
	return float64(g.bytes-g.before.bytes) / over.Seconds(), true
}

// Doom is by which rule retention deletes a record first.
type Doom int8

const (
	// DoomNone: by none, as things are: no rule holds for the topic, or nothing is appended to it.
	DoomNone Doom = iota
	// DoomTime: retention.ms.
	DoomTime
	// DoomSize: retention.bytes, at the rate at which the log grows.
	DoomSize
)

// RetentionLeft says how long retention leaves the record at an offset alone as things are: until all records of its segment and of
// those before are older than retention.ms, exact to Config.RetentionInterval unless more comes into the segment; or until there is
// so much behind its segment that retention.bytes does without, at the rate at which the last 5 to 10 minutes have made the log
// grow. 0 is any moment. With DoomNone the time means nothing.
func (l *Log) RetentionLeft(offset int64) (left time.Duration, by Doom) {
	s := l.settings.Load()
	if !s.Delete {
		return 0, DoomNone
	}
	wall, clock := l.dir.wallMillis.Load(), l.dir.clock.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	newest, upTo, active := int64(math.MinInt64), int64(0), false
	for i, seg := range l.mu.segments {
		if seg.size > 0 {
			newest = max(newest, seg.recordMillis())
		}
		upTo += seg.size
		if active = i == len(l.mu.segments)-1; active || offset < seg.next {
			break
		}
	}
	if newest == math.MinInt64 {
		return 0, DoomNone // nothing is there
	}
	if s.RetentionAge >= 0 {
		ms := newest - (wall - s.RetentionAge.Milliseconds())
		if ms = max(ms, 0); ms > math.MaxInt64/int64(time.Millisecond) {
			ms = math.MaxInt64 / int64(time.Millisecond)
		}
		left, by = time.Duration(ms)*time.Millisecond, DoomTime
	}
	if s.RetentionBytes < 0 {
		return left, by
	}
	must := s.RetentionBytes - (l.mu.sizeBytes - upTo) // bytes that have to come
	if active {
		must += max(s.SegmentBytes-l.active().size, 0) // it is never deleted before it is rolled
	}
	if must <= 0 {
		return 0, DoomSize
	}
	if rate, ok := l.mu.growth.rate(clock); ok && rate > 0 {
		if seconds := float64(must) / rate; by == DoomNone || seconds < left.Seconds() {
			left, by = time.Duration(min(seconds, float64(math.MaxInt64/int64(time.Second)))*float64(time.Second)), DoomSize
		}
	}
	return left, by
}
