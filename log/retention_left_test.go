package log

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireLeft checks what RetentionLeft says, to a second.
func (c *clockTest) requireLeft(t *testing.T, offset int64, want time.Duration, wantBy Doom) {
	t.Helper()
	left, by := c.log.RetentionLeft(offset)
	require.Equal(t, wantBy, by)
	if by != DoomNone {
		require.InDelta(t, want.Seconds(), left.Seconds(), 1)
	}
}

// RetentionLeft by time comes true: a record goes when it said, and not before. What is dated in the future counts from when it
// came (L15), what is dated in the past goes at once, and nothing goes before what is in front of it.
func TestRetentionLeftByTime(t *testing.T) {
	const week, interval = 7 * 24 * time.Hour, 10 * time.Minute
	c := newClockTest(t, weekly)
	c.requireLeft(t, 0, 0, DoomNone)
	c.add(t, 0)
	c.add(t, 30*24*time.Hour)
	c.tick(24 * time.Hour)
	c.add(t, -30*24*time.Hour)
	c.requireLeft(t, 0, 6*24*time.Hour, DoomTime)
	c.requireLeft(t, 1, 6*24*time.Hour, DoomTime)
	c.requireLeft(t, 2, 6*24*time.Hour, DoomTime) // behind the others
	left, _ := c.log.RetentionLeft(2)
	c.tick(left - interval)
	require.Equal(t, int64(0), c.log.StartOffset())
	c.tick(2 * interval)
	require.Equal(t, int64(3), c.log.StartOffset())

	c.add(t, -30*24*time.Hour)
	c.requireLeft(t, 3, 0, DoomTime)
	s := weekly
	s.Delete, s.Compact = false, true
	c.log.Configure(s)
	c.requireLeft(t, 3, 0, DoomNone)
	s = weekly
	s.RetentionAge = -1
	c.log.Configure(s)
	c.requireLeft(t, 3, 0, DoomNone)
}

// RetentionLeft by size is as long as the log takes to grow by what is missing, at the rate of the last minutes; it comes true if
// that goes on, and there is none in a log that does not grow.
func TestRetentionLeftBySize(t *testing.T) {
	c := newClockTest(t, Settings{Delete: true, RetentionAge: -1, RetentionBytes: 1 << 40})
	c.add(t, 0)
	size := c.log.SizeBytes()
	s := c.log.Settings()
	s.RetentionBytes = 60 * size
	c.log.Configure(s)
	c.requireLeft(t, 0, 0, DoomNone) // at what rate is not known yet
	minute := func() { c.tick(time.Minute); c.add(t, 0) }
	for range 20 {
		minute()
	}
	// 21 batches, one a minute; the first goes when there are 60 behind it.
	left, by := c.log.RetentionLeft(0)
	require.Equal(t, DoomSize, by)
	require.InDelta(t, 40, left.Minutes(), 8, "its rate is that of five to ten minutes and of what came since the last tick")
	c.requireLeft(t, 5, left+5*left/40, DoomSize)
	for range 37 {
		minute()
	}
	require.Equal(t, int64(0), c.log.StartOffset())
	left, _ = c.log.RetentionLeft(0)
	require.InDelta(t, 3, left.Minutes(), 0.5)
	for range 3 + 6 { // and the interval at which retention looks
		minute()
	}
	require.Positive(t, c.log.StartOffset())

	// The sooner of both rules.
	s.RetentionAge = 70 * time.Minute
	c.log.Configure(s)
	at := c.log.EndOffset() - 1
	_, by = c.log.RetentionLeft(at)
	require.Equal(t, DoomSize, by)
	s.RetentionAge = 10 * time.Minute
	c.log.Configure(s)
	c.requireLeft(t, at, 10*time.Minute, DoomTime)

	// Nothing is appended any more: nothing drives it out.
	s.RetentionAge = -1
	c.log.Configure(s)
	c.tick(time.Hour)
	c.tick(time.Hour)
	c.requireLeft(t, at, 0, DoomNone)
}
