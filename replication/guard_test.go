package replication

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// nowhere is a waiter that allocates nothing.
type nowhere struct{ n atomic.Int64 }

func (w *nowhere) Appended(int, AppendResult) { w.n.Add(1) }

// dataplane.md 12: counts, not times. An append through core and driver allocates nothing of its own; what is left is
// the log's.
func TestAppendAllocations(t *testing.T) {
	b := newBench(t, withoutFlush, withFS(vfs.OS(), t.TempDir()))
	w := new(nowhere)
	rec := batch("0123456789")
	owner := &countingBuffer{}
	run := func() {
		b.p.Append(AppendRequest{Records: rec, Owner: owner, Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: w, Index: 3})
	}
	for range 100 {
		run()
	}
	through := testing.AllocsPerRun(500, run)
	sets, out := []log.Set{{Records: rec, Owner: owner}}, make([]log.Appended, 1)
	below := testing.AllocsPerRun(500, func() { require.NoError(t, b.p.log.Append(5, sets, out)) })
	if through > below {
		t.Errorf("an append makes %v allocations, %v of them in the log", through, below)
	}
}

// A read allocates nothing of its own either.
func TestReadAllocations(t *testing.T) {
	b := newBench(t, withoutFlush, withFS(vfs.OS(), t.TempDir()))
	for range 10 {
		b.produce("0123456789")
	}
	r := NewReadRequest(5, 1<<20)
	through := testing.AllocsPerRun(500, func() {
		res := b.p.Read(r)
		res.Slice.Release()
	})
	below := testing.AllocsPerRun(500, func() {
		s, err := b.p.log.Read(5, 10, 1<<20, false)
		require.NoError(t, err)
		s.Release()
	})
	if through > below {
		t.Errorf("a read makes %v allocations, %v of them in the log", through, below)
	}
	r.Offset = 10
	if n := testing.AllocsPerRun(500, func() { b.p.Read(r) }); n > 0 {
		t.Errorf("an empty read makes %v allocations", n)
	}
}

// dataplane.md 8: a fetch of many partitions parks with few allocations, and an append costs a parked fetch nothing on
// the heap.
func TestParkAllocations(t *testing.T) {
	b := newBench(t, withoutFlush, withFS(vfs.OS(), t.TempDir()))
	wake := func() {}
	r := NewReadRequest(0, 1<<20)
	n := testing.AllocsPerRun(100, func() {
		w := NewFetchWaiter(1, wake)
		for range 100 {
			b.p.Park(w, r)
		}
		w.Cancel()
	})
	if n > 16 {
		t.Errorf("parking on 100 partitions makes %v allocations", n)
	}
}

// Concurrent appenders of one partition are combined: far fewer writes than appends while one is under way.
func TestAppendsAreCombined(t *testing.T) {
	gate := &writeGate{FS: vfs.NewMem(1), held: make(chan struct{})}
	b := newBench(t, withoutFlush, withFS(gate, "data"))
	b.produce("a")
	before := gate.writes.Load()
	gate.on.Store(true)
	w := new(nowhere)
	send := func() {
		b.p.Append(AppendRequest{Records: batch("x"), Owner: &countingBuffer{}, Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: w})
	}
	var wg sync.WaitGroup
	wg.Go(send)
	eventually(t, "the first write is under way", func() bool { return gate.writes.Load() == before+1 })
	for range 100 {
		send() // the first appender will write them: nobody blocks
	}
	gate.on.Store(false)
	close(gate.held)
	wg.Wait()
	require.Equal(t, int64(101), w.n.Load())
	require.Equal(t, before+2, gate.writes.Load(), "one write for the first, one for all that waited")
}

// writeGate holds vectored writes and counts writes to segments.
type writeGate struct {
	vfs.FS
	on     atomic.Bool
	held   chan struct{}
	writes atomic.Int64
}

func (g *writeGate) Create(name string) (vfs.File, error) {
	f, err := g.FS.Create(name)
	if err != nil || len(name) < 4 || name[len(name)-4:] != ".log" {
		return f, err
	}
	return writeGatedFile{f, g}, nil
}

type writeGatedFile struct {
	vfs.File
	g *writeGate
}

func (f writeGatedFile) wait() {
	f.g.writes.Add(1)
	if f.g.on.Load() {
		<-f.g.held
	}
}

func (f writeGatedFile) WriteAt(p []byte, off int64) (int, error) {
	f.wait()
	return f.File.WriteAt(p, off)
}

func (f writeGatedFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	f.wait()
	return f.File.WritevAt(bufs, off)
}

// benchPartitions makes n led partitions on one directory of the real file system.
func benchPartitions(b *testing.B, n int, flush bool) []*Partition {
	opts := []benchOption{withFS(vfs.OS(), b.TempDir()), withWAL, func(c *benchConfig) {
		c.tune = func(c *log.Config) {
			c.WALFileBytes, c.WALInitialBytes = log.Default().WALFileBytes, log.Default().WALFileBytes
		}
	}}
	if !flush {
		opts = append(opts, withoutFlush)
	}
	bench := newBench(b, opts...)
	ps := []*Partition{bench.p}
	settings := bench.p.Settings()
	for i := int32(1); i < int32(n); i++ {
		l, err := bench.dir.Create("orders", bench.p.topic.id, i, 0, logSettings(settings))
		require.NoError(b, err)
		p := newPartition(bench.m, bench.p.topic, i, l, Restart{Clean: true, LastEpoch: -1, Policy: bench.m.cfg.policy(settings, 1)})
		p.apply(&MetadataDelta{Leader: 0, LeaderEpoch: 5, Replicas: []Peer{{ID: 0}}, ISR: []metadata.BrokerID{0}})
		ps = append(ps, p)
	}
	return ps
}

// BenchmarkAppend measures acknowledged appends of 100 producers, each with one batch in flight, acks=all.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1024, 16 << 10} {
		for _, flush := range []bool{false, true} {
			for _, n := range []int{1, 100} {
				b.Run(fmt.Sprintf("size=%d/flush.ack=%v/partitions=%d", size, flush, n), func(b *testing.B) {
					ps := benchPartitions(b, n, flush)
					const producers = 100
					bd := record.NewBuilder(record.CodecNone)
					bd.Add(1, nil, make([]byte, size), nil)
					proto := bd.Build()
					b.SetBytes(int64(len(proto)))
					b.ReportAllocs()
					b.ResetTimer()
					var left atomic.Int64
					left.Store(int64(b.N))
					var wg sync.WaitGroup
					for g := range producers {
						wg.Go(func() {
							p := ps[g%n]
							rec := append(record.Batch(nil), proto...)
							done := newResult()
							owner := ownedForever{}
							for left.Add(-1) >= 0 {
								p.Append(AppendRequest{Records: rec, Owner: owner, Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: done})
								if r := <-done; r.Err != nil {
									b.Error(r.Err)
									return
								}
							}
						})
					}
					wg.Wait()
					b.StopTimer()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
				})
			}
		}
	}
}

// ownedForever is the owner of bytes that nobody frees.
type ownedForever struct{}

func (ownedForever) Retain()  {}
func (ownedForever) Release() {}

// BenchmarkStep measures the core alone: one batch through Produce and Appended to its answer.
func BenchmarkStep(b *testing.B) {
	for _, replicas := range []int{1, 3} {
		b.Run(fmt.Sprintf("replicas=%d", replicas), func(b *testing.B) {
			c := NewCore(0)
			c.Step(0, &Restart{LastEpoch: -1, Policy: Policy{MinInsync: 1}})
			d := &MetadataDelta{Leader: 0, LeaderEpoch: 1}
			for id := range metadata.BrokerID(replicas) {
				d.Replicas, d.ISR = append(d.Replicas, Peer{ID: id, BrokerEpoch: 1}), append(d.ISR, id)
			}
			c.Step(0, d)
			b.ReportAllocs()
			produce, appended, fetch := &Produce{}, &Appended{}, &FetchRequest{}
			offset := int64(0)
			for b.Loop() {
				*produce = Produce{Waiter: 1, Acks: -1, LeaderEpoch: -1, Deadline: Never}
				c.Step(0, produce)
				*appended = Appended{Waiter: 1, Acks: -1, BaseOffset: offset, NextOffset: offset + 1, Deadline: Never}
				c.Step(0, appended)
				offset++
				for id := range metadata.BrokerID(replicas - 1) {
					*fetch = FetchRequest{Replica: id + 1, BrokerEpoch: 1, LeaderEpoch: 1, Offset: offset, LastEpoch: 1, FoundEpoch: 1, FoundEnd: offset}
					c.Step(0, fetch)
				}
			}
			if c.HighWatermark() != offset || c.Waiting() != 0 {
				b.Fatalf("high watermark %d after %d appends", c.HighWatermark(), offset)
			}
		})
	}
}
