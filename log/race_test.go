package log

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// TestReadersDuringRolls: four readers follow a log that rolls every few batches and is trimmed behind them. None sees
// a gap, a torn batch or an end that goes back (L16, L17). Meant for -race as well.
func TestReadersDuringRolls(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		cfg := testConfig(m, vfs.NewMem(1))
		cfg.OpenFiles = 2
		d := openDir(t, cfg)
		defer d.Close()
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1024, IndexIntervalBytes: 200})
		const total = 2000
		var slowest [4]atomic.Int64
		var group sync.WaitGroup
		for i := range slowest {
			group.Go(func() {
				next := int64(0)
				for next < total {
					end := l.EndOffset()
					if end == next {
						continue
					}
					s, err := l.Read(next, end, 700+100*i, true)
					if !assertNoError(t, err) || s.Len() == 0 {
						t.Errorf("nothing at %d although the end is %d: %v", next, end, err)
						return
					}
					p := make([]byte, s.Len())
					_, err = s.ReadAt(p, 0)
					assertNoError(t, err)
					for len(p) > 0 {
						b, rest, err := record.Next(p)
						if !assertNoError(t, err) || b.BaseOffset() != next || b.Check() != nil {
							t.Errorf("batch at %d, expected %d", b.BaseOffset(), next)
							return
						}
						next, p = b.NextOffset(), rest
					}
					s.Release()
					slowest[i].Store(next)
				}
			})
		}
		for l.EndOffset() < total {
			appendOne(t, l, 0, plainBatch(2, 30))
			if end := l.EndOffset(); end%200 == 0 {
				start := end
				for i := range slowest {
					start = min(start, slowest[i].Load())
				}
				l.SetHighWatermark(end)
				require.NoError(t, l.TrimPrefix(start))
			}
		}
		group.Wait()
		require.Positive(t, l.active().base, "it rolled")
	})
}

func assertNoError(t *testing.T, err error) bool {
	if err != nil {
		t.Error(err)
		return false
	}
	return true
}

// TestOffsetOverflow: a segment is rolled before a relative offset would exceed 31 bits (L16).
func TestOffsetOverflow(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, Settings{FlushAck: true, IndexIntervalBytes: 1})
	huge := func(delta int32) []byte {
		b := record.NewBuilder(record.CodecNone)
		b.Add(1000, nil, []byte("x"), nil)
		b.Extend(delta)
		return b.Build()
	}
	appendOne(t, l, 0, huge(1<<30))
	appendOne(t, l, 0, huge(1<<30-2)) // the last offset that fits is 2^31-1
	require.Equal(t, 1, l.SegmentCount())
	appendOne(t, l, 0, huge(1<<30))
	require.Equal(t, 2, l.SegmentCount())
	appendOne(t, l, 0, huge(1<<31-1))
	require.Equal(t, 3, l.SegmentCount())
	end := l.EndOffset()
	require.Len(t, readAll(t, l, 0, end, 1), 4)
	require.NoError(t, d.Close())
	require.NoError(t, fsys.Remove("data/"+cleanName))
	d = openDir(t, testConfig(mode{}, fsys))
	l = lookup(t, d)
	require.Equal(t, end, l.EndOffset())
	require.Len(t, readAll(t, l, 0, end, 1), 4)
	require.NoError(t, d.Close())
}

// TestIndexFull: a full index rolls the segment.
func TestIndexFull(t *testing.T) {
	d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
	defer d.Close()
	l := createLog(t, d, Settings{FlushAck: true, IndexIntervalBytes: 1, SegmentIndexBytes: 240})
	for i := range 100 {
		appendOne(t, l, 0, testBatch(1, 10, int64(1000+i), noProducer))
	}
	require.Greater(t, l.SegmentCount(), 3)
	l.mu.Lock()
	for _, seg := range l.mu.segments {
		require.LessOrEqual(t, seg.timeIndex.bytes(), int64(240))
		require.LessOrEqual(t, seg.offsetIndex.bytes(), int64(240))
	}
	l.mu.Unlock()
}

// TestDescriptorsBounded: reading all segments of a log keeps no more than OpenFiles files open besides the active one.
func TestDescriptorsBounded(t *testing.T) {
	cfg := testConfig(mode{}, vfs.NewMem(1))
	cfg.OpenFiles = 5
	d := openDir(t, cfg)
	defer d.Close()
	l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 300, IndexIntervalBytes: 100})
	for range 100 {
		appendOne(t, l, 0, plainBatch(1, 100))
	}
	require.NoError(t, l.Flush())
	require.Len(t, readAll(t, l, 0, 100, 1), 100)
	d.syncer.waitAdvanced()
	d.files.mu.Lock()
	defer d.files.mu.Unlock()
	require.LessOrEqual(t, d.files.mu.length, 5)
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for _, seg := range l.mu.segments {
		for _, ref := range []*fileRef{&seg.log, &seg.offsets, &seg.times} {
			if ref.handle != nil {
				open++
			}
		}
	}
	require.LessOrEqual(t, open, 6)
}
