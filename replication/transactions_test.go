package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// transactionalBatch makes one batch of a transaction, without a sequence.
func transactionalBatch(producerID int64, values ...string) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = producerID, 0, -1, true
	for i, v := range values {
		b.Add(1000+int64(i), nil, []byte(v), nil)
	}
	return b.Build()
}

func (b *bench) appendTransactional(producerID int64, values ...string) AppendResult {
	b.t.Helper()
	r := newResult()
	b.p.Append(AppendRequest{Records: transactionalBatch(producerID, values...), Acks: 1, Timeout: 10 * time.Second, CurrentLeaderEpoch: -1, Waiter: r})
	res := r.wait(b.t)
	require.NoError(b.t, res.Err)
	return res
}

func (b *bench) mark(producerID int64, commit bool) result {
	r := newResult()
	b.p.AppendMarker(MarkerRequest{ProducerID: producerID, Commit: commit, CurrentLeaderEpoch: -1, Timeout: 10 * time.Second, Waiter: r})
	return r
}

// readCommitted returns the result of a reader of committed records, and the values of the batches it is given.
func (b *bench) readCommitted(offset int64) (ReadResult, []string) {
	b.t.Helper()
	r := NewReadRequest(offset, 1<<20)
	r.Committed = true
	res := b.p.Read(r)
	require.NoError(b.t, res.Err)
	buf := make([]byte, res.Slice.Len())
	if len(buf) > 0 {
		_, err := res.Slice.ReadAt(buf, 0)
		require.NoError(b.t, err)
	}
	res.Slice.Release()
	return res, valuesOf(b.t, buf)
}

// I3, P13: a reader of committed records stops at the first record of an open transaction, and at that of a decided one
// until its marker is below the high watermark. It is told what was aborted in what it reads, sorted (trap 20).
func TestReadCommitted(t *testing.T) {
	b := newBench(t, withReplicas(0, 1)) // broker 1 fetches when told to
	b.append(1, "a").wait(t)             // 0
	b.appendTransactional(8, "b")        // 1
	b.appendTransactional(7, "c")        // 2
	b.append(1, "d").wait(t)             // 3
	require.NoError(t, b.follow(1, 4).Err)
	require.Equal(t, int64(4), b.p.HighWatermark())
	require.Equal(t, []string{"a", "b", "c", "d"}, b.read(0), "read_uncommitted sees all")
	res, values := b.readCommitted(0)
	require.Equal(t, []string{"a"}, values)
	require.Equal(t, int64(1), res.LastStableOffset)
	require.Empty(t, res.Aborted)
	latest, _, _, err := b.p.ListOffset(OffsetLatest, true, -1)
	require.NoError(t, err)
	require.Equal(t, int64(1), latest)
	latest, _, _, err = b.p.ListOffset(OffsetLatest, false, -1)
	require.NoError(t, err)
	require.Equal(t, int64(4), latest)

	seven, eight := b.mark(7, false), b.mark(8, false) // 4, 5
	require.NoError(t, b.follow(1, 4).Err)
	seven.pending(t)
	require.Equal(t, int64(1), b.p.LastStableOffset(), "P13: the markers are not below the high watermark")
	require.NoError(t, b.follow(1, 5).Err)
	require.NoError(t, seven.wait(t).Err)
	require.Equal(t, int64(1), b.p.LastStableOffset())
	require.NoError(t, b.follow(1, 6).Err)
	require.NoError(t, eight.wait(t).Err)
	require.Equal(t, int64(6), b.p.LastStableOffset())
	res, values = b.readCommitted(0)
	require.Len(t, values, 6, "aborted records and markers come along")
	require.Equal(t, []log.AbortedTransaction{{ProducerID: 8, FirstOffset: 1}, {ProducerID: 7, FirstOffset: 2}}, res.Aborted, "sorted, though 7 was aborted first")
	res, _ = b.readCommitted(5)
	require.Equal(t, []log.AbortedTransaction{{ProducerID: 8, FirstOffset: 1}}, res.Aborted, "the other is over")
	require.Empty(t, b.p.Read(NewReadRequest(0, 1<<20)).Aborted)
}

// A fetch of committed records that waits is woken when the last stable offset moves past it, not by the high watermark;
// with the bytes that became readable.
func TestParkedCommittedFetch(t *testing.T) {
	b := newBench(t)
	size := len(transactionalBatch(7, "a"))
	b.appendTransactional(7, "a")
	eventually(t, "it is committed", func() bool { return b.p.HighWatermark() == 1 })
	park := func(offset int64, minBytes int) chan struct{} {
		w, woken := waiter(minBytes)
		t.Cleanup(w.Cancel)
		r := NewReadRequest(offset, 1<<20)
		r.Committed = true
		b.p.Park(w, r)
		return woken
	}
	asleep := func(c chan struct{}) {
		t.Helper()
		select {
		case <-c:
			t.Fatal("woken in vain")
		default:
		}
	}
	first, much, later := park(0, 1), park(0, 3*size), park(5, 1)
	b.appendTransactional(7, "b")
	b.produce("c")
	require.Equal(t, int64(3), b.p.HighWatermark())
	require.Equal(t, int64(0), b.p.LastStableOffset())
	asleep(first)
	asleep(much)
	require.NoError(t, b.mark(7, true).wait(t).Err)
	<-first
	<-much
	asleep(later)
	require.Equal(t, int64(4), b.p.LastStableOffset())
	// Parked below the last stable offset: woken at once.
	<-park(3, 1)
	b.produce("d", "e")
	<-later
	// Who waits is woken when the leader goes.
	gone := park(6, 1)
	asleep(gone)
	b.change(func(p *metadata.Partition) { p.LeaderEpoch++ })
	<-gone
}

// The bytes that become stable are counted by what the high watermark passed before.
func TestUnstableBytes(t *testing.T) {
	var u unstableBytes
	require.Equal(t, int64(10), u.passed(5, 5, 10), "nothing is open")
	require.Zero(t, u.passed(5, 7, 20))
	require.Zero(t, u.passed(5, 9, 30))
	require.Equal(t, int64(20), u.passed(7, 10, 40))
	require.Equal(t, int64(30), u.passed(8, 11, 50), "into the middle of one: all of it")
	require.Equal(t, int64(40+50+60), u.passed(12, 12, 60), "its bytes were counted")
	require.Empty(t, u.marks)
	for i := range int64(3 * maxUnstableMarks) {
		require.Zero(t, u.passed(12, 13+i, 1))
	}
	require.LessOrEqual(t, len(u.marks), maxUnstableMarks)
	require.Equal(t, int64(3*maxUnstableMarks+1), u.passed(1<<40, 1<<40, 1), "coarser, but none is lost")
}

// A marker is appended with acks=all, in the leader epoch that its sender knows, behind what was appended before; it is
// fenced by epochs, and counts as no record.
func TestAppendMarker(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	b.appendTransactional(7, "a")
	done := b.mark(7, true)
	done.pending(t)
	require.NoError(t, b.follow(1, 2).Err)
	require.Equal(t, int64(1), done.wait(t).BaseOffset)
	require.Equal(t, int64(1), b.p.topic.metrics.messagesIn.Load())
	try := func(m MarkerRequest) error {
		r := newResult()
		m.Waiter, m.Timeout = r, 10*time.Second
		b.p.AppendMarker(m)
		return r.wait(t).Err
	}
	require.ErrorIs(t, try(MarkerRequest{ProducerID: 7, CurrentLeaderEpoch: 4}), ErrFencedLeaderEpoch)
	require.ErrorIs(t, try(MarkerRequest{ProducerID: 7, CurrentLeaderEpoch: 6}), ErrUnknownLeaderEpoch)
	b.p.AppendMarker(MarkerRequest{ProducerID: 7, ProducerEpoch: 3, CoordinatorEpoch: 9, CurrentLeaderEpoch: 5, Waiter: newResult()})
	require.ErrorIs(t, try(MarkerRequest{ProducerID: 7, ProducerEpoch: 2, CoordinatorEpoch: 9, CurrentLeaderEpoch: -1}), log.ErrInvalidProducerEpoch)
	require.ErrorIs(t, try(MarkerRequest{ProducerID: 7, ProducerEpoch: 3, CoordinatorEpoch: 8, CurrentLeaderEpoch: -1}), log.ErrCoordinatorFenced)
	require.Equal(t, []log.ProducerState{{
		ProducerID: 7, ProducerEpoch: 3, LastSequence: -1, LastOffset: -1, LastTimestamp: b.p.Producers()[0].LastTimestamp, CoordinatorEpoch: 9, CurrentTxnFirstOffset: -1,
	}}, b.p.Producers())
	b.change(func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = 1, 6 })
	require.ErrorIs(t, try(MarkerRequest{ProducerID: 7, CurrentLeaderEpoch: -1}), ErrNotLeader)
}

// P7: whether a transaction may begin is asked at its place in the log, behind the marker that was appended before, also
// when both waited in the queue together.
func TestMayBeginBehindMarker(t *testing.T) {
	b := newBench(t)
	b.appendTransactional(7, "a")
	over := errors.New("the transaction is over")
	b.p.hold()
	marked, late, plain := b.mark(7, true), newResult(), newResult()
	b.p.Append(AppendRequest{Records: transactionalBatch(7, "late"), Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, MayBegin: func() error { return over }, Waiter: late})
	b.p.Append(AppendRequest{Records: batch("b"), Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, MayBegin: func() error { return over }, Waiter: plain})
	b.p.release()
	require.NoError(t, marked.wait(t).Err)
	require.ErrorIs(t, late.wait(t).Err, over)
	require.NoError(t, plain.wait(t).Err, "it begins nothing")
	require.Equal(t, int64(3), b.p.LastStableOffset(), "nothing is open that nobody would end")
}

// L17: records of an open transaction are not deleted, nor what is behind them.
func TestDeleteRecordsStopsAtOpenTransaction(t *testing.T) {
	b := newBench(t)
	b.produce("a")
	b.appendTransactional(7, "b")
	b.produce("c")
	ctx := context.Background()
	_, err := b.p.DeleteRecords(ctx, 2, -1)
	require.ErrorIs(t, err, log.ErrOffsetOutOfRange)
	low, err := b.p.DeleteRecords(ctx, -1, -1)
	require.NoError(t, err)
	require.Equal(t, int64(1), low)
	require.NoError(t, b.mark(7, false).wait(t).Err)
	low, err = b.p.DeleteRecords(ctx, -1, -1)
	require.NoError(t, err)
	require.Equal(t, int64(4), low)
	require.Equal(t, int64(4), b.p.LastStableOffset())
}

// An open transaction is not lost by a restart, whatever the power cut leaves.
func TestOpenTransactionSurvives(t *testing.T) {
	for _, wal := range []bool{true, false} {
		mem := vfs.NewMem(1)
		open := func() *bench { return makeBench(t, withFS(mem, "data"), func(c *benchConfig) { c.wal = wal }) }
		b := open()
		b.produce("a")
		b.appendTransactional(7, "b")
		b.appendTransactional(8, "c")
		require.NoError(t, b.mark(8, false).wait(t).Err)
		b.close()
		mem = mem.CrashClone(vfs.CrashLose)
		b = open()
		require.Equal(t, int64(1), b.p.LastStableOffset())
		require.Equal(t, int64(4), b.p.HighWatermark())
		o, ok := b.p.OldestTransaction()
		require.True(t, ok)
		require.Equal(t, int64(7), o.ProducerID)
		require.NoError(t, b.mark(7, true).wait(t).Err)
		res, _ := b.readCommitted(0)
		require.Equal(t, []log.AbortedTransaction{{ProducerID: 8, FirstOffset: 2}}, res.Aborted)
		require.Equal(t, int64(5), res.LastStableOffset)
		b.close()
	}
}

// valuesOf returns the values of the records in batches, in their order; a marker stands for itself.
func valuesOf(t tb, b []byte) (values []string) {
	t.Helper()
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		require.NoError(t, err)
		b = rest
		if batch.IsControl() {
			values = append(values, fmt.Sprint("marker at ", batch.BaseOffset()))
			continue
		}
		require.NoError(t, batch.Each(1<<20, func(r record.Record) error {
			values = append(values, string(r.Value))
			return nil
		}))
	}
	return values
}

// refTransactions are the transactions as the bytes of a log tell them.
type refTransactions struct {
	open     map[int64]int64 // first offset by producer
	aborted  []log.AbortedTransaction
	outcomes map[int64]bool // of each transactional batch by base offset: was it committed; absent while open
}

func transactionsOf(t tb, b []byte) *refTransactions {
	t.Helper()
	ref := &refTransactions{open: map[int64]int64{}, outcomes: map[int64]bool{}}
	batches := map[int64][]int64{}
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		require.NoError(t, err)
		b = rest
		id := batch.ProducerID()
		switch first, open := ref.open[id]; {
		case batch.IsControl():
			m, _, err := record.ParseMarker(batch)
			require.NoError(t, err)
			for _, base := range batches[id] {
				ref.outcomes[base] = m.Commit
			}
			if open && !m.Commit {
				ref.aborted = append(ref.aborted, log.AbortedTransaction{ProducerID: id, FirstOffset: first})
			}
			delete(ref.open, id)
			delete(batches, id)
		case batch.IsTransactional():
			if !open {
				ref.open[id] = batch.BaseOffset()
			}
			batches[id] = append(batches[id], batch.BaseOffset())
		}
	}
	slices.SortFunc(ref.aborted, func(a, b log.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	return ref
}

// require demands that a replica whose high watermark is its end knows just these transactions.
func (ref *refTransactions) require(t tb, p *Partition, end int64) {
	t.Helper()
	stable := end
	for _, first := range ref.open {
		stable = min(stable, first)
	}
	require.Equal(t, stable, p.LastStableOffset())
	for _, s := range p.Producers() {
		first, ok := ref.open[s.ProducerID]
		if !ok {
			first = -1
		}
		require.Equal(t, first, s.CurrentTxnFirstOffset, "producer %d", s.ProducerID)
	}
	aborted, err := p.log.AbortedTransactions(p.StartOffset(), end)
	require.NoError(t, err)
	require.Equal(t, ref.aborted, aborted)
}

// conclusions are what readers of committed records were shown: for each transactional batch whether it counts.
type conclusions struct {
	sync.Mutex
	byPartition []map[int64]bool
	reads       int
}

func newConclusions() *conclusions {
	c := &conclusions{byPartition: make([]map[int64]bool, powerPartitions)}
	for i := range c.byPartition {
		c.byPartition[i] = map[int64]bool{}
	}
	return c
}

// check compares them with what the log says in the end.
func (c *conclusions) check(t testing.TB, part int, ref *refTransactions) {
	t.Helper()
	c.Lock()
	defer c.Unlock()
	for base, counts := range c.byPartition[part] {
		committed, decided := ref.outcomes[base]
		require.True(t, decided, "a reader was shown the batch at %d of partition %d, which is in no decided transaction", base, part)
		require.Equal(t, committed, counts, "a reader took the batch at %d of partition %d for committed: %v", base, part, counts)
	}
	require.Positive(t, c.reads)
}

// readCommitted reads committed records from replicas, leaders or not, again and again.
func (r *powerRun) readCommitted(rng *rand.Rand) {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-pause.C:
		}
		part := rng.IntN(powerPartitions)
		l := r.lifeOf(metadata.BrokerID(rng.IntN(3)))
		if l == nil {
			continue
		}
		p, err := l.m.Partition("orders", int32(part))
		if err != nil {
			continue
		}
		q := NewReadRequest(rng.Int64N(p.LastStableOffset()+1), 1<<16)
		q.Committed, q.FromFollower = true, true
		res := p.Read(q)
		if res.Err != nil || res.Slice.Len() == 0 {
			res.Slice.Release()
			continue
		}
		buf := make([]byte, res.Slice.Len())
		_, err = res.Slice.ReadAt(buf, 0)
		res.Slice.Release()
		if err == nil && l.gate.TryRLock() {
			if !l.dead {
				r.conclude(part, res, buf)
			}
			l.gate.RUnlock()
		}
	}
}

// conclude goes through an answer as a client does.
func (r *powerRun) conclude(part int, res ReadResult, b []byte) {
	c := r.concluded
	c.Lock()
	defer c.Unlock()
	c.reads++
	if res.LastStableOffset > res.HighWatermark || res.HighWatermark > res.LogEndOffset {
		r.t.Errorf("last stable offset %d, high watermark %d, end %d", res.LastStableOffset, res.HighWatermark, res.LogEndOffset)
	}
	aborted, skipping := res.Aborted, map[int64]bool{}
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			r.t.Errorf("read committed: %v", err)
			return
		}
		b = rest
		for len(aborted) > 0 && aborted[0].FirstOffset <= batch.BaseOffset() {
			skipping[aborted[0].ProducerID] = true
			aborted = aborted[1:]
		}
		switch {
		case batch.IsControl():
			delete(skipping, batch.ProducerID())
		case batch.IsTransactional():
			counts := !skipping[batch.ProducerID()]
			if was, ok := c.byPartition[part][batch.BaseOffset()]; ok && was != counts {
				r.t.Errorf("the batch at %d of partition %d counts: %v, a reader before took it so: %v", batch.BaseOffset(), part, counts, was)
			}
			c.byPartition[part][batch.BaseOffset()] = counts
		}
	}
}

// BenchmarkReadCommitted reads 1 MiB at once from a log of transactions of three batches each, a tenth of them aborted, at
// both isolation levels.
func BenchmarkReadCommitted(b *testing.B) {
	bench := newBench(b, withFS(vfs.OS(), b.TempDir()+"/data"), func(c *benchConfig) { c.settings.SegmentBytes = 16 << 20 })
	value := string(make([]byte, 16<<10))
	const transactions = 2000
	for i := range transactions {
		for range 3 {
			bench.appendTransactional(7, value)
		}
		require.NoError(b, bench.mark(7, i%10 > 0).wait(b).Err)
	}
	end := bench.p.LastStableOffset()
	require.Equal(b, int64(4*transactions), end)
	for _, committed := range []bool{false, true} {
		b.Run(fmt.Sprintf("committed=%v", committed), func(b *testing.B) {
			b.ReportAllocs()
			offset := int64(0)
			for b.Loop() {
				r := NewReadRequest(offset, 1<<20)
				r.Committed = committed
				res := bench.p.Read(r)
				if res.Err != nil || res.Slice.Len() == 0 || committed && res.Slice.Len() > 900<<10 && len(res.Aborted) == 0 {
					b.Fatal(res.Err, res.Slice.Len(), len(res.Aborted), offset)
				}
				offset = res.Slice.NextOffset()
				res.Slice.Release()
				if offset >= end-100 {
					offset = 0
				}
			}
		})
	}
}
