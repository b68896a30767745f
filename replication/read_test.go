package replication

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// protocol.md 4, Fetch: an offset in (HW, end] is empty without error; outside [start, end] it is out of range.
// Answering out of range above the high watermark would reset consumers after a change of the leader.
func TestReadBounds(t *testing.T) {
	b := newBench(t, withReplicas(0, 1)) // broker 1 never fetches: the high watermark stays
	b.append(1, "a", "b", "c").wait(t)
	for offset, want := range map[int64]error{0: nil, 1: nil, 3: nil, 4: log.ErrOffsetOutOfRange, -1: log.ErrOffsetOutOfRange} {
		res := b.p.Read(NewReadRequest(offset, 1000))
		require.ErrorIs(t, res.Err, want, "offset %d", offset)
		require.Zero(t, res.Slice.Len(), "I3: nothing at or above the high watermark")
		require.Equal(t, int64(0), res.HighWatermark)
		require.Equal(t, int64(0), res.LastStableOffset)
		require.Equal(t, int64(0), res.LogStartOffset)
		require.Equal(t, int64(3), res.LogEndOffset)
	}
}

// I3: a read from below the high watermark stops at it.
func TestReadStopsAtTheHighWatermark(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	b.append(1, "a").wait(t)
	b.append(1, "b").wait(t)
	require.NoError(t, b.follow(1, 1).Err)
	require.Equal(t, []string{"a"}, b.read(0))
}

// Fetch limits: whole batches, at least one if asked, none if it does not fit (R22).
func TestReadLimits(t *testing.T) {
	b := newBench(t)
	size := len(batch("a"))
	for range 3 {
		b.produce("a")
	}
	read := func(offset int64, maxBytes int, minOne bool) int {
		r := NewReadRequest(offset, maxBytes)
		r.MinOne = minOne
		res := b.p.Read(r)
		require.NoError(t, res.Err)
		defer res.Slice.Release()
		return res.Slice.Len() / size
	}
	require.Equal(t, 3, read(0, 1<<20, false))
	require.Equal(t, 2, read(0, 2*size+1, false))
	require.Equal(t, 0, read(0, size-1, false))
	require.Equal(t, 1, read(0, size-1, true))
	require.Equal(t, 1, read(0, 0, true))
	require.Equal(t, 0, read(0, 0, false))
	require.Equal(t, 0, read(3, 1000, true))
}

// Fencing by leader epoch: 74 for an older one, 75 for one this broker does not know yet, on every request that carries
// it.
func TestFencing(t *testing.T) {
	b := newBench(t)
	b.produce("a")
	for epoch, want := range map[int32]error{-1: nil, 5: nil, 4: ErrFencedLeaderEpoch, 6: ErrUnknownLeaderEpoch} {
		r := NewReadRequest(0, 1000)
		r.CurrentLeaderEpoch = epoch
		res := b.p.Read(r)
		require.ErrorIs(t, res.Err, want)
		require.Equal(t, int32(5), res.LeaderEpoch)
		res.Slice.Release()
		_, _, _, err := b.p.ListOffset(OffsetLatest, false, epoch)
		require.ErrorIs(t, err, want)
		_, _, err = b.p.EpochEnd(epoch, 5)
		require.ErrorIs(t, err, want)
		_, err = b.p.DeleteRecords(context.Background(), 0, epoch)
		require.ErrorIs(t, err, want)
	}
	b.change(func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = 1, 6 })
	res := b.p.Read(NewReadRequest(0, 1000))
	require.ErrorIs(t, res.Err, ErrNotLeader)
	require.Equal(t, metadata.BrokerID(1), res.LeaderID)
	_, _, err := b.p.EpochEnd(-1, 5)
	require.ErrorIs(t, err, ErrNotLeader, "trap 14: only the leader answers")
	_, _, _, err = b.p.ListOffset(OffsetEarliest, false, -1)
	require.ErrorIs(t, err, ErrNotLeader)
}

// KIP-320, KIP-595: a reader whose last batch is not in this log is told where the logs part.
func TestReadDivergingEpoch(t *testing.T) {
	b := newBench(t)
	b.produce("a")
	b.produce("b")
	b.change(func(p *metadata.Partition) { p.LeaderEpoch = 8 })
	b.produce("c")
	read := func(offset int64, last int32) ReadResult {
		r := NewReadRequest(offset, 1000)
		r.LastFetchedEpoch = last
		res := b.p.Read(r)
		require.NoError(t, res.Err)
		res.Slice.Release()
		return res
	}
	require.Equal(t, int32(-1), read(2, 5).DivergingEpoch)
	require.Equal(t, int32(-1), read(3, 8).DivergingEpoch)
	res := read(3, 5)
	require.Equal(t, int32(5), res.DivergingEpoch)
	require.Equal(t, int64(2), res.DivergingEnd, "epoch 5 ended at 2 here")
	require.Zero(t, res.Slice.Len())
	res = read(3, 7)
	require.Equal(t, int32(5), res.DivergingEpoch, "an epoch that never wrote here: the largest below it")
	r := NewReadRequest(1, 1000)
	r.LastFetchedEpoch = 3
	require.ErrorIs(t, b.p.Read(r).Err, log.ErrOffsetOutOfRange, "nothing as old is known here")
}

// R4, KIP-279: the largest epoch ≤ the one asked for, and its end.
func TestEpochEnd(t *testing.T) {
	b := newBench(t)
	b.produce("a")
	b.produce("b")
	b.change(func(p *metadata.Partition) { p.LeaderEpoch = 8 })
	f := func(epoch, wantEpoch int32, wantEnd int64) {
		t.Helper()
		e, end, err := b.p.EpochEnd(-1, epoch)
		require.NoError(t, err)
		require.Equal(t, wantEpoch, e)
		require.Equal(t, wantEnd, end)
	}
	f(8, 8, 2) // begins at its election, before its first append
	b.produce("c")
	f(5, 5, 2)
	f(6, 5, 2)
	f(8, 8, 3)
	f(4, -1, -1)
	f(9, -1, -1)
	f(-1, -1, -1)
}

func TestListOffset(t *testing.T) {
	b := newBench(t)
	f := func(spec, wantOffset, wantTime int64, wantEpoch int32) {
		t.Helper()
		for _, committed := range []bool{false, true} {
			offset, ts, epoch, err := b.p.ListOffset(spec, committed, -1)
			require.NoError(t, err)
			require.Equal(t, []int64{wantOffset, wantTime, int64(wantEpoch)}, []int64{offset, ts, int64(epoch)})
		}
	}
	f(OffsetEarliest, 0, -1, 5)
	f(OffsetLatest, 0, -1, 5)
	f(OffsetMaxTimestamp, -1, -1, -1)
	f(0, -1, -1, -1)
	b.produce("a", "b", "c") // dated 1000, 1001, 1002
	b.change(func(p *metadata.Partition) { p.LeaderEpoch = 6 })
	b.produce("d") // 1000
	f(OffsetEarliest, 0, -1, 5)
	f(OffsetEarliestLocal, 0, -1, 5)
	f(OffsetLatest, 4, -1, 6)
	f(OffsetLatestTiered, -1, -1, -1)
	f(OffsetMaxTimestamp, 2, 1002, 5)
	f(1001, 1, 1001, 5) // exact to the record
	f(1003, -1, -1, -1)
	_, _, _, err := b.p.ListOffset(-7, false, -1)
	require.ErrorIs(t, err, ErrUnknownOffsetSpec)
}

// R7, I4: a new leader does not say what is latest until its high watermark has reached the start of its epoch;
// earliest is known.
func TestOffsetNotAvailable(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	b.append(1, "a").wait(t)
	b.change(func(p *metadata.Partition) { p.LeaderEpoch = 6 })
	for _, spec := range []int64{OffsetLatest, OffsetMaxTimestamp, 1000} {
		_, _, _, err := b.p.ListOffset(spec, false, -1)
		require.ErrorIs(t, err, ErrOffsetNotAvailable)
	}
	_, _, _, err := b.p.ListOffset(OffsetEarliest, false, -1)
	require.NoError(t, err)
	eventually(t, "durable", func() bool { return b.p.log.DurableEnd() == 1 })
	b.follow(1, 1)
	offset, _, _, err := b.p.ListOffset(OffsetLatest, false, -1)
	require.NoError(t, err)
	require.Equal(t, int64(1), offset)
}

// follow lets broker id fetch from an offset in the present leader epoch.
func (b *bench) follow(id metadata.BrokerID, offset int64) ReadResult {
	b.t.Helper()
	r := NewReadRequest(offset, 1<<20)
	r.ReplicaID, r.BrokerEpoch, r.LogStartOffset, r.CurrentLeaderEpoch = id, 100+int64(id), 0, b.rec.LeaderEpoch
	res := b.p.Read(r)
	res.Slice.Release()
	return res
}

// The leader's side of replication in the driver: followers read up to the end, their fetch moves the high watermark
// and answers acks=all.
func TestFollowerFetch(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	r := b.append(-1, "a")
	eventually(t, "durable", func() bool { return b.p.log.DurableEnd() == 1 })
	res := b.follow(1, 0)
	require.NoError(t, res.Err)
	require.Positive(t, res.Slice.Len(), "a follower reads above the high watermark")
	r.pending(t)
	require.Equal(t, int64(1), b.follow(1, 1).HighWatermark)
	require.NoError(t, r.wait(t).Err)
	require.ErrorIs(t, b.follow(1, 2).Err, log.ErrOffsetOutOfRange)
	require.ErrorIs(t, b.follow(2, 1).Err, ErrNotReplica)
	old := NewReadRequest(1, 1000)
	old.ReplicaID, old.BrokerEpoch, old.CurrentLeaderEpoch = 1, 99, 5
	require.ErrorIs(t, b.p.Read(old).Err, ErrStaleBrokerEpoch, "R12")
}

// L17: DeleteRecords stops at the high watermark, moves the start at once, keeps batches whole.
func TestDeleteRecords(t *testing.T) {
	b := newBench(t)
	b.produce("a", "b")
	b.produce("c")
	_, err := b.p.DeleteRecords(context.Background(), 4, -1)
	require.ErrorIs(t, err, log.ErrOffsetOutOfRange)
	_, err = b.p.DeleteRecords(context.Background(), -2, -1)
	require.ErrorIs(t, err, log.ErrOffsetOutOfRange)
	low, err := b.p.DeleteRecords(context.Background(), 1, -1)
	require.NoError(t, err)
	require.Equal(t, int64(1), low)
	require.ErrorIs(t, b.p.Read(NewReadRequest(0, 1000)).Err, log.ErrOffsetOutOfRange)
	require.Equal(t, []string{"b", "c"}, b.read(1))
	low, err = b.p.DeleteRecords(context.Background(), 0, -1)
	require.NoError(t, err)
	require.Equal(t, int64(1), low, "never back (I4)")
	low, err = b.p.DeleteRecords(context.Background(), -1, -1)
	require.NoError(t, err)
	require.Equal(t, int64(3), low)
	require.Equal(t, int64(3), b.p.StartOffset())
	require.Equal(t, int64(3), b.produce("d").BaseOffset)
}

// With a second replica DeleteRecords waits until that has moved its start too.
func TestDeleteRecordsWaitsForReplicas(t *testing.T) {
	b := newBench(t, withReplicas(0, 1), withoutFlush)
	b.append(1, "a").wait(t)
	b.follow(1, 1)
	type answer struct {
		low int64
		err error
	}
	done := make(chan answer, 1)
	go func() {
		low, err := b.p.DeleteRecords(context.Background(), 1, -1)
		done <- answer{low, err}
	}()
	eventually(t, "the leader has trimmed", func() bool { return b.p.StartOffset() == 1 })
	b.follow(1, 1)
	require.Empty(t, done)
	r := NewReadRequest(1, 1000)
	r.ReplicaID, r.BrokerEpoch, r.LogStartOffset, r.CurrentLeaderEpoch = 1, 101, 1, 5
	require.NoError(t, b.p.Read(r).Err)
	require.Equal(t, answer{1, nil}, <-done)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	b.append(1, "b").wait(t)
	b.follow(1, 2)
	_, err := b.p.DeleteRecords(ctx, 2, -1)
	require.ErrorIs(t, err, ErrTimeout)
}

// waiter returns a FetchWaiter and the channel its wake sends to.
func waiter(minBytes int) (*FetchWaiter, chan struct{}) {
	woken := make(chan struct{}, 2)
	return NewFetchWaiter(minBytes, func() { woken <- struct{}{} }), woken
}

func TestParkWakesAtTheHighWatermark(t *testing.T) {
	gate := newSyncGate(vfs.NewMem(1))
	b := newBench(t, withFS(gate, "data"))
	w, woken := waiter(1)
	b.p.Park(w, NewReadRequest(0, 1000))
	gate.close()
	r := b.append(-1, "a")
	require.Empty(t, woken, "I3: appended, not committed")
	gate.open()
	<-woken
	r.wait(t)
	require.Equal(t, []string{"a"}, b.read(0))
	w.Cancel()
	b.produce("b")
	require.Empty(t, woken, "woken once")
	require.Zero(t, b.p.committed.parked.Load())
}

func TestParkCountsBytes(t *testing.T) {
	b := newBench(t)
	size := len(batch("a"))
	b.produce("a")
	t.Run("what is there already", func(t *testing.T) {
		w, woken := waiter(size)
		b.p.Park(w, NewReadRequest(0, 1000))
		require.Len(t, woken, 1)
		w.Cancel()
	})
	t.Run("until the minimum is reached", func(t *testing.T) {
		w, woken := waiter(3 * size)
		b.p.Park(w, NewReadRequest(0, 1000))
		b.produce("b")
		require.Empty(t, woken)
		b.produce("c")
		<-woken
		w.Cancel()
	})
	t.Run("no more than the partition may give", func(t *testing.T) {
		w, woken := waiter(2 * size)
		b.p.Park(w, NewReadRequest(3, size))
		for range 4 {
			b.produce("d")
		}
		require.Empty(t, woken)
		w.Cancel()
	})
	t.Run("over several partitions", func(t *testing.T) {
		other := newBench(t)
		w, woken := waiter(2 * size)
		b.p.Park(w, NewReadRequest(b.p.EndOffset(), 1000))
		other.p.Park(w, NewReadRequest(0, 1000))
		b.produce("e")
		require.Empty(t, woken)
		other.produce("e")
		<-woken
		w.Cancel()
	})
	t.Run("a cancelled waiter hears nothing", func(t *testing.T) {
		w, woken := waiter(1)
		b.p.Park(w, NewReadRequest(b.p.EndOffset(), 1000))
		w.Cancel()
		w.Cancel()
		b.produce("f")
		require.Empty(t, woken)
	})
	require.Zero(t, b.p.committed.parked.Load())
}

// Whatever makes the answer another one wakes a parked fetch at once.
func TestParkWakesOnChanges(t *testing.T) {
	cases := map[string]func(b *bench){
		"leadership lost":   func(b *bench) { b.change(func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = 1, 6 }) },
		"new leader epoch":  func(b *bench) { b.change(func(p *metadata.Partition) { p.LeaderEpoch = 6 }) },
		"deleted":           func(b *bench) { b.p.remove(ErrDeleted) },
		"storage failed":    func(b *bench) { b.p.fail(ErrStorage) },
		"start moved ahead": func(b *bench) { _, err := b.p.DeleteRecords(context.Background(), 1, -1); require.NoError(b.t, err) },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.produce("a")
			w, woken := waiter(1 << 20)
			b.p.Park(w, NewReadRequest(0, 1<<20))
			require.Empty(t, woken)
			change(b)
			<-woken
			w.Cancel()
		})
	}
}

// A fetch that cannot wait is woken inside Park.
func TestParkRefused(t *testing.T) {
	b := newBench(t)
	b.produce("a")
	_, err := b.p.DeleteRecords(context.Background(), 1, -1)
	require.NoError(t, err)
	fenced := NewReadRequest(1, 1000)
	fenced.CurrentLeaderEpoch = 4
	for name, r := range map[string]ReadRequest{"fenced": fenced, "below the start": NewReadRequest(0, 1000)} {
		w, woken := waiter(1)
		b.p.Park(w, r)
		require.Len(t, woken, 1, name)
		w.Cancel()
	}
}

// A follower waits for the end of the log, not for the high watermark.
func TestParkFollower(t *testing.T) {
	b := newBench(t, withReplicas(0, 1))
	w, woken := waiter(1)
	r := NewReadRequest(0, 1000)
	r.ReplicaID, r.BrokerEpoch, r.CurrentLeaderEpoch = 1, 101, 5
	b.p.Park(w, r)
	consumer, consumerWoken := waiter(1)
	b.p.Park(consumer, NewReadRequest(0, 1000))
	b.append(1, "a").wait(t)
	<-woken
	require.Empty(t, consumerWoken)
	b.follow(1, 1)
	<-consumerWoken
	w.Cancel()
	consumer.Cancel()
}
