package replication

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// The answer points of wal.md 5, on a file system whose sync waits until it is let go.
func TestAcksAnswerPoints(t *testing.T) {
	for _, flush := range []bool{true, false} {
		t.Run(fmt.Sprintf("flush.ack=%v", flush), func(t *testing.T) {
			gate := newSyncGate(vfs.NewMem(1))
			opts := []benchOption{withFS(gate, "data")}
			if !flush {
				opts = append(opts, withoutFlush)
			}
			b := newBench(t, opts...)
			gate.close()
			none := b.append(0, "a")
			require.NoError(t, none.wait(t).Err, "acks=0 never waits for a sync")
			one, all := b.append(1, "b"), b.append(-1, "c")
			if !flush {
				require.Equal(t, int64(1), one.wait(t).BaseOffset, "acks=1 is answered after the append")
				require.Equal(t, int64(2), all.wait(t).BaseOffset, "with one replica acks=all too")
				require.Equal(t, []string{"a", "b", "c"}, b.read(0))
				gate.open()
				return
			}
			one.pending(t)
			all.pending(t)
			require.Empty(t, b.read(0), "I3: consumers see only synced records")
			require.Equal(t, int64(3), b.p.EndOffset())
			gate.open()
			require.Equal(t, int64(1), one.wait(t).BaseOffset)
			require.Equal(t, int64(2), all.wait(t).BaseOffset)
			require.Equal(t, []string{"a", "b", "c"}, b.read(0))
		})
	}
}

// I17: what is refused for good never gets an offset.
func TestAppendRefusals(t *testing.T) {
	b := newBench(t, withReplicas(0, 1), withMinInsync(2))
	ask := func(epoch int32, acks int16) error {
		r := newResult()
		b.p.Append(AppendRequest{Records: batch("x"), Acks: acks, CurrentLeaderEpoch: epoch, Waiter: r})
		return r.wait(t).Err
	}
	require.ErrorIs(t, ask(4, 1), ErrFencedLeaderEpoch)
	require.ErrorIs(t, ask(6, 1), ErrUnknownLeaderEpoch)
	require.ErrorIs(t, ask(-1, 2), ErrInvalidAcks)
	b.change(func(p *metadata.Partition) { p.ISR = []metadata.BrokerID{0} })
	require.ErrorIs(t, ask(5, -1), ErrNotEnoughReplicas)
	b.change(func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = 1, 6 })
	require.ErrorIs(t, ask(-1, 1), ErrNotLeader)
	require.Equal(t, int64(0), b.p.EndOffset(), "nothing was appended")
}

// R23: a request that waits when the leader epoch changes has no definite answer: never success, never "not leader".
func TestEpochChangeFailsWaiters(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	r := b.append(-1, "a")
	r.pending(t)
	b.change(func(p *metadata.Partition) { p.LeaderEpoch = 6 })
	res := r.wait(t)
	require.ErrorIs(t, res.Err, ErrLeadershipLost)
	require.ErrorIs(t, res.Err, ErrTimeout)
	require.NotErrorIs(t, res.Err, ErrNotLeader)
	require.Equal(t, int32(6), res.LeaderEpoch)
}

// R19, at completion.
func TestISRShrinksAfterAppend(t *testing.T) {
	b := newBench(t, withReplicas(0, 1), withMinInsync(2))
	r := b.append(-1, "a")
	eventually(t, "the record is durable", func() bool { return b.p.log.DurableEnd() == 1 })
	r.pending(t)
	b.change(func(p *metadata.Partition) { p.ISR = []metadata.BrokerID{0} })
	require.ErrorIs(t, r.wait(t).Err, ErrNotEnoughReplicasAfterAppend)
	require.Equal(t, int64(0), b.p.HighWatermark(), "R10: below min.insync.replicas nothing is committed")
}

// A produce request times out on its own clock; what it appended stays.
func TestProduceTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, withReplicas(0, 1))
		start := time.Now()
		long, short := newResult(), newResult()
		b.p.Append(AppendRequest{Records: batch("a"), Acks: -1, Timeout: 30 * time.Second, CurrentLeaderEpoch: -1, Waiter: long})
		b.p.Append(AppendRequest{Records: batch("b"), Acks: -1, Timeout: 2 * time.Second, CurrentLeaderEpoch: -1, Waiter: short})
		require.ErrorIs(t, (<-short).Err, ErrTimeout)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.ErrorIs(t, (<-long).Err, ErrTimeout)
		require.Equal(t, 30*time.Second, time.Since(start))
		require.Equal(t, int64(2), b.p.EndOffset())
		zero := newResult()
		b.p.Append(AppendRequest{Records: batch("c"), Acks: -1, CurrentLeaderEpoch: -1, Waiter: zero})
		require.ErrorIs(t, (<-zero).Err, ErrTimeout, "a timeout of zero is over at once")
	})
}

// P1: a retried batch is answered with the original offset, and not before the original is acknowledged.
func TestDuplicateWaitsForTheOriginal(t *testing.T) {
	gate := newSyncGate(vfs.NewMem(1))
	b := newBench(t, withFS(gate, "data"))
	send := func() result {
		bd := record.NewBuilder(record.CodecNone)
		bd.ProducerID, bd.ProducerEpoch, bd.BaseSequence = 9, 0, 0
		bd.Add(1, nil, []byte("once"), nil)
		r := newResult()
		b.p.Append(AppendRequest{Records: bd.Build(), Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: r})
		return r
	}
	gate.close()
	first, again := send(), send()
	first.pending(t)
	again.pending(t)
	gate.open()
	require.Equal(t, int64(0), first.wait(t).BaseOffset)
	res := again.wait(t)
	require.NoError(t, res.Err)
	require.Equal(t, int64(0), res.BaseOffset)
	require.Equal(t, int64(1), b.p.EndOffset())
	require.Equal(t, int64(0), send().wait(t).BaseOffset, "and at once when the original is acknowledged")
}

// Appends of many goroutines are combined, each keeps its order, each is answered once.
func TestConcurrentAppends(t *testing.T) {
	b := newBench(t, withoutFlush)
	const producers, each = 20, 200
	var wg sync.WaitGroup
	for g := range producers {
		wg.Go(func() {
			last := int64(-1)
			for i := range each {
				res := b.append(-1, fmt.Sprint(g, ":", i)).wait(t)
				if res.Err != nil || res.BaseOffset <= last {
					t.Errorf("producer %d, append %d: %+v after offset %d", g, i, res, last)
					return
				}
				last = res.BaseOffset
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	order := map[string]int{}
	for _, v := range b.read(0) {
		seen[v]++
		var g, i int
		_, err := fmt.Sscanf(v, "%d:%d", &g, &i)
		require.NoError(t, err)
		require.Equal(t, order[fmt.Sprint(g)], i, "order of producer %d", g)
		order[fmt.Sprint(g)]++
	}
	require.Len(t, seen, producers*each)
}

// An appender that has drained for others long enough hands the queue over; nothing is lost on the way, also when the
// manager closes.
func TestHandOver(t *testing.T) {
	b := newBench(t, withoutFlush)
	var wg sync.WaitGroup
	var mu sync.Mutex
	left := 100 * appendRounds
	wg.Add(left + 1)
	// Each result asks for one more append from inside the drain: to one caller it would never end.
	var chain chainWaiter
	chain = func() {
		mu.Lock()
		more := left > 0
		left--
		mu.Unlock()
		if more {
			b.p.Append(AppendRequest{Records: batch("x"), Acks: 1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: chain})
		}
		wg.Done()
	}
	b.p.Append(AppendRequest{Records: batch("x"), Acks: 1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: chain})
	mu.Lock()
	require.Positive(t, left, "the first caller did not stay for all")
	mu.Unlock()
	wg.Wait()
	require.Equal(t, int64(100*appendRounds+1), b.p.EndOffset())
}

// Once the manager is closed nobody takes a queue over any more; whoever appends answers all that come.
func TestHandOverAfterClose(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.m.Close())
	left := 10 * appendRounds
	var chain chainWaiter
	chain = func() {
		if left > 0 {
			left--
			b.p.Append(AppendRequest{Records: batch("x"), Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
		}
	}
	b.p.Append(AppendRequest{Records: batch("x"), Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
	require.Zero(t, left)
	require.Zero(t, b.p.EndOffset())
}

type chainWaiter func()

func (c chainWaiter) Appended(int, AppendResult) { c() }

// Owners of records are kept while their batch is queued and let go after it is written.
func TestOwnersAreReleased(t *testing.T) {
	b := newBench(t, withoutFlush)
	owner := &countingBuffer{}
	var chained bool
	var chain chainWaiter
	chain = func() {
		if !chained {
			chained = true
			b.p.Append(AppendRequest{Records: batch("y"), Owner: owner, Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
			require.Equal(t, 1, owner.uses, "queued behind the append that is being answered")
		}
	}
	b.p.Append(AppendRequest{Records: batch("x"), Owner: owner, Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
	require.Zero(t, owner.uses)
	require.Equal(t, []string{"x", "y"}, b.read(0))
}

// Without an owner the caller's bytes are its own again after the call, also when the batch is queued behind another
// append.
func TestQueuedBytesAreCopied(t *testing.T) {
	b := newBench(t, withoutFlush)
	var chained bool
	var chain chainWaiter
	chain = func() {
		if !chained {
			chained = true
			bytes := batch("y")
			b.p.Append(AppendRequest{Records: bytes, Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
			clear(bytes)
		}
	}
	b.p.Append(AppendRequest{Records: batch("x"), Acks: 1, CurrentLeaderEpoch: -1, Waiter: chain})
	require.Equal(t, []string{"x", "y"}, b.read(0))
}

type countingBuffer struct{ uses int }

func (c *countingBuffer) Retain()  { c.uses++ }
func (c *countingBuffer) Release() { c.uses-- }

// L2: a failed sync ends the partition without a definite answer, and the broker through OnFailure.
func TestPoisonedDirectory(t *testing.T) {
	mem := vfs.NewMem(1)
	b := newBench(t, withFS(mem, "data"))
	b.produce("a")
	mem.FailSync(1)
	r := b.append(-1, "b")
	eventually(t, "the directory is poisoned", func() bool { return b.dir.Failed() != nil })
	r.pending(t)
	b.m.tick(time.Now())
	b.m.fail(<-b.m.failed)
	require.ErrorIs(t, r.wait(t).Err, ErrStorage)
	require.ErrorIs(t, <-b.fail, ErrStorage)
	require.ErrorIs(t, b.append(-1, "c").wait(t).Err, ErrStorage)
	require.ErrorIs(t, b.p.Read(NewReadRequest(0, 1000)).Err, ErrStorage)
	_, _, _, err := b.p.ListOffset(OffsetLatest, false, -1)
	require.ErrorIs(t, err, ErrStorage)
	dirs := b.m.LogDirs()
	require.ErrorIs(t, dirs[0].Err, ErrStorage)
}

// The committer never waits for the partition: a report that finds the lock taken is taken in by whoever holds it, even
// when it comes after the holder's last look inside.
func TestReportWhileLocked(t *testing.T) {
	b := newBench(t)
	b.p.log.Notify(func(int64) {}) // the reports are made by hand
	waits := b.append(-1, "a")
	eventually(t, "durable", func() bool { return b.p.log.DurableEnd() == 1 })
	waits.pending(t)
	var late chainWaiter = func() { b.p.flushed.Store(true) } // what notifyFlushed does when its TryLock fails, at the latest moment
	b.p.Append(AppendRequest{Records: batch("x"), Acks: 2, CurrentLeaderEpoch: -1, Waiter: late})
	require.NoError(t, waits.wait(t).Err)
}

// The log's definite errors reach the producer as they are.
func TestLogErrorsPassThrough(t *testing.T) {
	b := newBench(t)
	bd := record.NewBuilder(record.CodecNone)
	bd.ProducerID, bd.ProducerEpoch, bd.BaseSequence = 9, 0, 5
	bd.Add(1, nil, []byte("x"), nil)
	first := newResult()
	b.p.Append(AppendRequest{Records: bd.Build(), Acks: 1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: first})
	require.NoError(t, first.wait(t).Err, "no state: any first sequence")
	gap := newResult()
	bd.Reset()
	bd.ProducerID, bd.ProducerEpoch, bd.BaseSequence = 9, 0, 8
	bd.Add(1, nil, []byte("x"), nil)
	b.p.Append(AppendRequest{Records: bd.Build(), Acks: 1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: gap})
	err := gap.wait(t).Err
	require.ErrorIs(t, err, log.ErrOutOfOrderSequence)
	require.Contains(t, err.Error(), "orders-0")
}

// Closing the manager answers what waits, without a definite error.
func TestCloseAnswersWaiters(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	r := b.append(-1, "a")
	require.NoError(t, b.m.Close())
	err := r.wait(t).Err
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, b.append(-1, "b").wait(t).Err, ErrNotLeader, "nothing is appended after it")
}

// syncGate is a file system whose syncs can be held.
type syncGate struct {
	vfs.FS
	mu   sync.Mutex
	cond *sync.Cond
	shut bool
}

func newSyncGate(fsys vfs.FS) *syncGate {
	g := &syncGate{FS: fsys}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *syncGate) close() { g.set(true) }
func (g *syncGate) open()  { g.set(false) }
func (g *syncGate) set(shut bool) {
	g.mu.Lock()
	g.shut = shut
	g.mu.Unlock()
	g.cond.Broadcast()
}

func (g *syncGate) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return gatedFile{f, g}, nil
}

func (g *syncGate) Create(name string) (vfs.File, error)   { return g.wrap(g.FS.Create(name)) }
func (g *syncGate) Open(name string) (vfs.File, error)     { return g.wrap(g.FS.Open(name)) }
func (g *syncGate) OpenRead(name string) (vfs.File, error) { return g.wrap(g.FS.OpenRead(name)) }

type gatedFile struct {
	vfs.File
	gate *syncGate
}

func (f gatedFile) Sync() error {
	f.gate.mu.Lock()
	for f.gate.shut {
		f.gate.cond.Wait()
	}
	f.gate.mu.Unlock()
	return f.File.Sync()
}
