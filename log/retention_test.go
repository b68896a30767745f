package log

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// clockTest is a log with one batch per segment under a wall clock that the test sets.
type clockTest struct {
	dir  *Dir
	log  *Log
	wall time.Time
	mono time.Time
	out  bytes.Buffer
}

func newClockTest(t *testing.T, s Settings) *clockTest {
	c := &clockTest{wall: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), mono: time.Now()}
	cfg := testConfig(mode{}, vfs.NewMem(1))
	cfg.Wall = func() time.Time { return c.wall }
	cfg.Logger = slog.New(slog.NewTextHandler(&c.out, nil))
	c.dir = openDir(t, cfg)
	t.Cleanup(func() { require.NoError(t, c.dir.Close()) })
	s.FlushAck, s.SegmentBytes = true, 1
	c.log = createLog(t, c.dir, s)
	c.tick(0)
	return c
}

// tick lets both clocks run on; jump only the wall clock.
func (c *clockTest) tick(d time.Duration) {
	c.mono, c.wall = c.mono.Add(d), c.wall.Add(d)
	c.dir.Tick(c.mono)
}

func (c *clockTest) jump(d time.Duration) { c.wall = c.wall.Add(d) }

// add appends a batch dated at the wall clock plus d, in a segment of its own.
func (c *clockTest) add(t *testing.T, d time.Duration) {
	t.Helper()
	appendOne(t, c.log, 0, testBatch(1, 100, c.wall.Add(d).UnixMilli(), noProducer))
	c.log.SetHighWatermark(c.log.EndOffset())
}

var weekly = Settings{Delete: true, RetentionAge: 7 * 24 * time.Hour, RetentionBytes: -1}

// TestRetentionByTime: segments go when their records are older than retention.ms, the active one too, whole segments
// only, and each deletion is logged with its reason (I16).
func TestRetentionByTime(t *testing.T) {
	c := newClockTest(t, weekly)
	c.add(t, 0)
	c.tick(24 * time.Hour)
	c.add(t, 0)
	c.tick(6*24*time.Hour - time.Minute)
	require.Equal(t, int64(0), c.log.StartOffset())
	c.tick(10 * time.Minute)
	require.Equal(t, int64(1), c.log.StartOffset())
	require.Contains(t, c.out.String(), `reason="retention time"`)
	c.tick(24 * time.Hour)
	require.Equal(t, int64(2), c.log.StartOffset())
	require.Equal(t, int64(2), c.log.EndOffset())
	require.Equal(t, int64(0), c.log.SizeBytes())
	c.add(t, 0)
	require.Len(t, readAll(t, c.log, 2, 3, 1000), 1)
}

// TestRetentionBySize: the oldest segments go while the rest has at least retention.bytes.
func TestRetentionBySize(t *testing.T) {
	c := newClockTest(t, Settings{Delete: true, RetentionAge: -1, RetentionBytes: 500})
	for range 10 {
		c.add(t, 0)
	}
	size := c.log.SizeBytes() / 10
	c.tick(10 * time.Minute)
	require.Equal(t, 10-500/size-1, c.log.StartOffset())
	require.GreaterOrEqual(t, c.log.SizeBytes(), int64(500))
	require.Contains(t, c.out.String(), `reason="retention size"`)
}

// TestRetentionStops: never above the high watermark (L17), never from a topic whose policy is compact only.
func TestRetentionStops(t *testing.T) {
	c := newClockTest(t, Settings{Delete: true, RetentionAge: time.Hour, RetentionBytes: -1})
	for range 5 {
		appendOne(t, c.log, 0, testBatch(1, 100, c.wall.UnixMilli(), noProducer))
	}
	c.log.SetHighWatermark(1)
	c.tick(10 * time.Hour)
	require.Equal(t, int64(1), c.log.StartOffset())
	bySize := c.log.Settings()
	bySize.RetentionAge, bySize.RetentionBytes = -1, 0
	c.log.Configure(bySize)
	c.log.SetHighWatermark(2)
	c.tick(time.Hour)
	require.Equal(t, int64(2), c.log.StartOffset())
	require.ErrorIs(t, c.log.TrimPrefix(3), ErrOffsetOutOfRange)
	require.Equal(t, int64(2), c.log.StartOffset())
	s := c.log.Settings()
	s.Delete, s.Compact = false, true
	c.log.Configure(s)
	c.log.SetHighWatermark(5)
	c.tick(10 * time.Hour)
	require.Equal(t, int64(2), c.log.StartOffset())
}

// TestClockJumps: a jump of the wall clock by more than ten minutes, ahead or back, deletes nothing while it may be a
// mistake, and warns; it does not stop retention for ever (L15, I22).
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 10 * 365 * 24 * time.Hour, -10 * 365 * 24 * time.Hour} {
		c := newClockTest(t, weekly)
		c.add(t, 0)
		c.jump(jump)
		c.tick(6 * time.Minute)
		require.Equal(t, int64(0), c.log.StartOffset(), "jump %v", jump)
		require.Contains(t, c.out.String(), "wall clock jumped")
		c.jump(-jump)
		for range 20 { // oscillating
			c.tick(6 * time.Minute)
			c.jump(jump)
			c.tick(6 * time.Minute)
			c.jump(-jump)
			require.Equal(t, int64(0), c.log.StartOffset(), "jump %v", jump)
		}
		c.tick(time.Minute) // the last jump is noticed
		c.tick(8 * 24 * time.Hour)
		require.Equal(t, int64(1), c.log.StartOffset(), "retention goes on after a steady time")
	}
}

// TestFutureRecords: a record dated 2099 counts from when it came; it does not pin its segment and all behind it (L15).
func TestFutureRecords(t *testing.T) {
	c := newClockTest(t, weekly)
	c.add(t, 73*365*24*time.Hour)
	c.add(t, 0)
	c.tick(7*24*time.Hour - time.Minute)
	require.Equal(t, int64(0), c.log.StartOffset())
	c.tick(10 * time.Minute)
	require.Equal(t, int64(2), c.log.StartOffset())
}

// TestRollByAge: a segment with records is rolled segment.ms after its first append by the monotonic clock, whatever
// the wall clock does (L15).
func TestRollByAge(t *testing.T) {
	c := newClockTest(t, Settings{RetentionAge: -1, RetentionBytes: -1, SegmentAge: time.Hour})
	s := c.log.Settings()
	s.SegmentBytes = 1 << 20
	c.log.Configure(s)
	c.tick(3 * time.Hour)
	c.add(t, 0)
	c.jump(-5 * time.Hour)
	c.tick(59 * time.Minute)
	c.add(t, 0)
	c.jump(100 * time.Hour)
	c.tick(0)
	require.Equal(t, 1, c.log.SegmentCount())
	c.tick(2 * time.Minute)
	require.Equal(t, 2, c.log.SegmentCount())
	c.tick(3 * time.Hour)
	require.Equal(t, 2, c.log.SegmentCount(), "an empty segment is not rolled")
}

// TestSlowReaderKeepsSegment: a slice stays readable after retention, deletion of the partition and unlinking (L17).
func TestSlowReaderKeepsSegment(t *testing.T) {
	for name, fsys := range map[string]func(t *testing.T) (vfs.FS, string){
		"memory": func(*testing.T) (vfs.FS, string) { return vfs.NewMem(1), "data" },
		"disk":   func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() + "/data" },
	} {
		t.Run(name, func(t *testing.T) {
			fsys, path := fsys(t)
			cfg := testConfig(mode{}, fsys)
			cfg.OpenFiles = 1
			d, err := OpenDir(path, cfg)
			require.NoError(t, err)
			l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 200, FileDeleteDelay: time.Minute})
			var want []byte
			for i := range 6 {
				b := plainBatch(1, 100+i)
				appendOne(t, l, 0, b)
				if i == 1 {
					want = b
				}
			}
			l.SetHighWatermark(l.EndOffset())
			s, err := l.Read(1, 6, 1<<20, true)
			require.NoError(t, err)
			require.NoError(t, l.TrimPrefix(4))
			_, err = l.Read(1, 6, 1<<20, true)
			require.ErrorIs(t, err, ErrOffsetOutOfRange)
			require.Equal(t, want, sliceBytes(t, s))
			kept, err := l.Read(4, 6, 1<<20, true)
			require.NoError(t, err)
			require.NoError(t, d.Delete(l))
			_, err = l.Read(4, 6, 1<<20, true)
			require.ErrorIs(t, err, ErrClosed)
			now := time.Now()
			d.Tick(now)
			d.Tick(now.Add(2 * time.Minute))
			entries, err := fsys.List(path)
			require.NoError(t, err)
			for _, e := range entries {
				require.NotContains(t, e.Name, "topic-0")
			}
			require.Equal(t, want, sliceBytes(t, s))
			require.NotEmpty(t, sliceBytes(t, kept))
			s.Release()
			kept.Release()
			require.NoError(t, d.Close())
		})
	}
}
