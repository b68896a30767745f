package log

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// ackers are producers with one set each in flight, on one partition each, acknowledged when it is on stable storage.
type ackers struct {
	dir  *Dir
	logs []*Log
	// durable holds a signal per log for a higher durable end.
	waiters []*durableWaiter
	// flush asks the syncer of a partition, if there is one per partition.
	flush []chan struct{}
	done  sync.WaitGroup
}

type durableWaiter struct {
	mu   sync.Mutex
	cond *sync.Cond
	end  int64
}

func (w *durableWaiter) wait(offset int64) {
	w.mu.Lock()
	for w.end < offset {
		w.cond.Wait()
	}
	w.mu.Unlock()
}

// newAckers opens a directory on the real file system. With perPartition every partition has a syncer of its own, as
// brokers without a shared log do it; else our committer makes the sets durable.
func newAckers(b testing.TB, partitions int, perPartition, wal bool) *ackers {
	cfg := Default()
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.ReserveBytes, cfg.BallastBytes = 0, 0
	cfg.WAL = wal && !perPartition
	if _, bench := b.(*testing.B); bench {
		cfg.WALInitialBytes = cfg.WALFileBytes / 2 // a directory in use, whose ring has grown
	}
	dir, err := OpenDir(vfs.Join(b.TempDir(), "data"), cfg)
	require.NoError(b, err)
	if cfg.WAL {
		waitKeeper(dir)
	}
	a := &ackers{dir: dir}
	s := DefaultSettings()
	s.FlushAck = !perPartition
	for i := range partitions {
		l, err := dir.Create("topic", testID(1), int32(i), 0, s)
		require.NoError(b, err)
		w := &durableWaiter{}
		w.cond = sync.NewCond(&w.mu)
		l.Notify(func(end int64) {
			w.mu.Lock()
			w.end = end
			w.cond.Broadcast()
			w.mu.Unlock()
		})
		a.logs, a.waiters = append(a.logs, l), append(a.waiters, w)
		if perPartition {
			c := make(chan struct{}, 1)
			a.flush = append(a.flush, c)
			a.done.Go(func() {
				for range c {
					_ = l.Flush()
				}
			})
		}
	}
	return a
}

func (a *ackers) close(b testing.TB) {
	for _, c := range a.flush {
		close(c)
	}
	a.done.Wait()
	require.NoError(b, a.dir.Close())
}

// run acknowledges total sets of the given bytes and returns the time it took.
func (a *ackers) run(b testing.TB, total, bytes int) time.Duration {
	batch := plainBatch(1, bytes)
	var left atomic.Int64
	left.Store(int64(total))
	began := time.Now()
	var group sync.WaitGroup
	for i, l := range a.logs {
		group.Go(func() {
			set := append([]byte(nil), batch...)
			var out [1]Appended
			for left.Add(-1) >= 0 {
				if err := l.Append(1, []Set{{Records: set}}, out[:]); err != nil {
					b.Error(err)
					return
				}
				if a.flush != nil {
					select {
					case a.flush[i] <- struct{}{}:
					default:
					}
				}
				a.waiters[i].wait(out[0].NextOffset)
			}
		})
	}
	group.Wait()
	return time.Since(began)
}

// BenchmarkCommitters compares acknowledgements per second, with fdatasync before each, of 100 producers on 100
// partitions: our committer against one syncer per partition, in turn in the same run. The goal is a ratio of 2.
func BenchmarkCommitters(b *testing.B) {
	for _, bytes := range []int{100, 1024} {
		b.Run(fmt.Sprint(bytes, "B"), func(b *testing.B) {
			const acks = 3000
			ours, direct, theirs := newAckers(b, 100, false, true), newAckers(b, 100, false, false), newAckers(b, 100, true, false)
			var spent [3]time.Duration
			rounds := 0
			for b.Loop() {
				spent[0] += ours.run(b, 4*acks, bytes)
				spent[1] += direct.run(b, acks, bytes)
				spent[2] += theirs.run(b, acks, bytes)
				rounds++
			}
			b.StopTimer()
			rate := func(i, n int) float64 { return float64(n*rounds) / spent[i].Seconds() }
			b.ReportMetric(rate(0, 4*acks), "acks/s")
			b.ReportMetric(rate(1, acks), "acks/s-wal-off")
			b.ReportMetric(rate(2, acks), "acks/s-syncer-per-partition")
			b.ReportMetric(rate(0, 4*acks)/rate(2, acks), "ratio")
			ours.close(b)
			direct.close(b)
			theirs.close(b)
		})
	}
}

// BenchmarkAppendDurable is one producer on one partition through the write-ahead log: allocations per acknowledged
// set are the figure to watch.
func BenchmarkAppendDurable(b *testing.B) {
	a := newAckers(b, 1, false, true)
	defer a.close(b)
	set := plainBatch(1, 100)
	var out [1]Appended
	b.ReportAllocs()
	for b.Loop() {
		if err := a.logs[0].Append(1, []Set{{Records: set}}, out[:]); err != nil {
			b.Fatal(err)
		}
		a.waiters[0].wait(out[0].NextOffset)
	}
}
