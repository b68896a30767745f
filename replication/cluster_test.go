package replication

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// TestFollowersReplicate: acks=all is answered once all in-sync followers have synced the record, whose logs are then
// the leader's (I2, I5), and the followers hear of the high watermark without another record.
func TestFollowersReplicate(t *testing.T) {
	for _, wal := range []bool{false, true} {
		t.Run(fmt.Sprintf("wal=%v", wal), func(t *testing.T) {
			c := newCluster(t, 3, wal)
			c.create("orders", 4, nil)
			for i := range 40 {
				res := produce(t, c.leader("orders", i%4), fmt.Sprint("v", i))
				require.Equal(t, int64(i/4), res.BaseOffset)
			}
			for part := range 4 {
				for _, n := range c.nodes {
					p := c.replica(n.id, "orders", part)
					require.Equal(t, int64(10), p.log.DurableEnd())
					eventually(t, "the follower knows the high watermark", func() bool { return p.HighWatermark() == 10 })
				}
			}
		})
	}
}

// A broker that restarts follows again and catches up with what it missed; while it is away, the others commit once the
// leader has taken it out of the ISR, and it comes back in when it has everything (R9, R18).
func TestFollowerReturns(t *testing.T) {
	c := newCluster(t, 3, true, func(cfg *Config) { cfg.ReplicaLagMax = 100 * time.Millisecond })
	c.create("orders", 1, map[string]string{"min.insync.replicas": "2"})
	l := c.leader("orders", 0)
	produce(t, l, "a")
	c.nodes[2].stop()
	for i := range 20 {
		produce(t, l, fmt.Sprint("b", i)) // waits for the shrink
	}
	require.Equal(t, []metadata.BrokerID{0, 1}, c.record("orders", 0).ISR)
	c.nodes[2].start()
	eventually(t, "the replica is in sync again", func() bool { return len(c.record("orders", 0).ISR) == 3 })
	produce(t, l, "c")
	require.Equal(t, int64(22), c.replica(2, "orders", 0).log.DurableEnd())
	require.Equal(t, readValues(t, l, 0), followerValues(t, c.replica(2, "orders", 0), 22))
}

// followerValues reads what a consumer gets from a follower once it may have everything below end (KIP-392).
func followerValues(t testing.TB, p *Partition, end int64) []string {
	t.Helper()
	eventually(t, "the follower knows the high watermark", func() bool { return p.HighWatermark() >= end })
	var values []string
	for offset := int64(0); offset < end; {
		r := NewReadRequest(offset, 1<<20)
		r.FromFollower = true
		res := p.Read(r)
		require.NoError(t, res.Err)
		buf := make([]byte, res.Slice.Len())
		_, err := res.Slice.ReadAt(buf, 0)
		require.NoError(t, err)
		values = append(values, decodeValues(t, buf)...)
		offset = res.Slice.NextOffset()
		res.Slice.Release()
	}
	return values
}

// KIP-392: a follower serves consumers below its own high watermark, says "not yet" above its end, never "out of range",
// and nothing at all to a consumer that did not ask for a follower.
func TestReadFromFollower(t *testing.T) {
	c := newCluster(t, 2, true)
	c.create("orders", 1, nil)
	l := c.leader("orders", 0)
	produce(t, l, "a", "b")
	f := c.replica(1, "orders", 0)
	require.Equal(t, []string{"a", "b"}, followerValues(t, f, 2))
	require.ErrorIs(t, f.Read(NewReadRequest(0, 100)).Err, ErrNotLeader)
	r := NewReadRequest(7, 100)
	r.FromFollower = true
	require.ErrorIs(t, f.Read(r).Err, ErrOffsetNotAvailable)
	require.ErrorIs(t, l.Read(r).Err, log.ErrOffsetOutOfRange, "the leader knows")
	r.Offset = -1
	require.ErrorIs(t, f.Read(r).Err, log.ErrOffsetOutOfRange)
	woken := make(chan struct{}, 1)
	w := NewFetchWaiter(1, func() { woken <- struct{}{} })
	r.Offset = 2
	f.Park(w, r)
	produce(t, l, "c")
	<-woken // by the high watermark that the follower was told
	w.Cancel()
}

// DeleteRecords answers when every live replica's log begins at the new start (L17), which followers learn and report.
func TestDeleteRecordsOnAllReplicas(t *testing.T) {
	c := newCluster(t, 3, false)
	c.create("orders", 1, nil)
	l := c.leader("orders", 0)
	for i := range 10 {
		produce(t, l, fmt.Sprint(i))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	low, err := l.DeleteRecords(ctx, 6, -1)
	require.NoError(t, err)
	require.Equal(t, int64(6), low)
	for _, n := range c.nodes {
		require.Equal(t, int64(6), c.replica(n.id, "orders", 0).StartOffset())
	}
}

// A follower that comes when the leader has deleted what it lacks begins anew where the leader's log begins, also in the
// middle of a batch.
func TestFollowerBeginsAnew(t *testing.T) {
	c := newCluster(t, 2, false, func(cfg *Config) { cfg.ReplicaLagMax = 50 * time.Millisecond })
	c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	l := c.leader("orders", 0)
	produce(t, l, "a")
	c.nodes[1].stop()
	produce(t, l, "b", "c", "d", "e")
	eventually(t, "the leader is alone", func() bool { return len(c.record("orders", 0).ISR) == 1 })
	require.NoError(t, l.log.TrimPrefix(3)) // as retention would
	c.nodes[1].start()
	eventually(t, "the replica is in sync again", func() bool { return len(c.record("orders", 0).ISR) == 2 })
	f := c.replica(1, "orders", 0)
	require.Equal(t, int64(5), f.EndOffset())
	eventually(t, "the follower's log begins where the leader's does", func() bool { return f.StartOffset() == 3 })
}

// R16, M19: with a lapsed lease produce requests and reads are refused for good; a partition whose other electable replicas
// all fetch is served on.
func TestLease(t *testing.T) {
	c := newCluster(t, 2, true, func(cfg *Config) { cfg.SessionTimeout = 200 * time.Millisecond; cfg.FetchWait = 20 * time.Millisecond })
	c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	m := c.nodes[0].m
	l := c.leader("orders", 0)
	acks1 := func() error {
		r := newResult()
		l.Append(AppendRequest{Records: batch("x"), Acks: 1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: r})
		return r.wait(t).Err
	}
	produce(t, l, "a")
	require.NoError(t, acks1(), "no lease was ever given")
	m.RenewLease(m.Now() + Instant(time.Hour))
	m.RenewLease(m.Now()) // an earlier end takes nothing back
	require.NoError(t, acks1())
	m.lease.until.Store(int64(m.Now()))
	eventually(t, "the follower fetches in the present epoch", func() bool { return acks1() == nil })
	c.net.link(0, 1, false)
	eventually(t, "the lease has lapsed", func() bool { return acks1() != nil })
	require.ErrorIs(t, acks1(), ErrLeaseLapsed)
	require.ErrorIs(t, acks1(), ErrNotLeader)
	require.ErrorIs(t, l.Read(NewReadRequest(0, 100)).Err, ErrLeaseLapsed)
	_, _, _, err := l.ListOffset(OffsetLatest, false, -1)
	require.ErrorIs(t, err, ErrLeaseLapsed)
	_, _, err = l.EpochEnd(-1, 7)
	require.ErrorIs(t, err, ErrLeaseLapsed, "who has read in a newer epoch would take it for lost (KIP-320)")
	before := l.EndOffset()
	all := newResult()
	l.Append(AppendRequest{Records: batch("all"), Acks: -1, Timeout: 20 * time.Second, CurrentLeaderEpoch: -1, Waiter: all})
	require.ErrorIs(t, all.wait(t).Err, ErrLeaseLapsed, "it would be judged by what this log has, which may be less than a newer leader's")
	require.Equal(t, before, l.EndOffset())
	c.net.link(0, 1, true)
	eventually(t, "the follower fetches again", func() bool { return acks1() == nil })
	m.RenewLease(m.Now() + Instant(time.Hour))
	require.NoError(t, acks1())
}

// The clock of leases counts time during which the machine was suspended, and is not fooled by a look that took long.
func TestClockCountsSuspension(t *testing.T) {
	var boot Instant
	var c clock
	c.init(func() (Instant, bool) { return boot, true })
	c.start = c.start.Add(-time.Second) // as if it had run for a second
	boot = Instant(time.Second)
	require.Less(t, c.now(), Instant(1500*time.Millisecond))
	c.looked.Store(0)
	boot = Instant(21 * time.Second)
	require.Greater(t, c.now(), Instant(20*time.Second))
	c.looked.Store(0)
	boot = Instant(2 * time.Second)
	require.Greater(t, c.now(), Instant(20*time.Second), "it never goes back")
}

// R20: what is produced while a broker drains is held until its followers have everything, and then until it is known
// who leads; nothing is lost or refused without need.
func TestDrain(t *testing.T) {
	c := newCluster(t, 2, true)
	c.create("orders", 1, nil)
	m, l := c.nodes[0].m, c.leader("orders", 0)
	c.net.link(0, 1, false)
	one := newResult()
	l.Append(AppendRequest{Records: batch("a"), Acks: 1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: one})
	require.NoError(t, one.wait(t).Err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	require.ErrorIs(t, m.Drain(ctx), context.DeadlineExceeded, "the follower lacks a record of acks=1")
	cancel()
	held := newResult()
	l.Append(AppendRequest{Records: batch("b"), Acks: -1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: held})
	c.net.link(0, 1, true)
	require.NoError(t, m.Drain(c.ctx()))
	require.Equal(t, int64(1), c.replica(1, "orders", 0).log.DurableEnd())
	held.pending(t)
	m.Resume()
	require.NoError(t, held.wait(t).Err)

	require.NoError(t, m.Drain(c.ctx()))
	held = newResult()
	l.Append(AppendRequest{Records: batch("c"), Acks: -1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: held})
	d := &MetadataDelta{Leader: 1, LeaderEpoch: l.LeaderEpoch() + 1, PartitionEpoch: 99, Replicas: []Peer{{ID: 0}, {ID: 1}}, ISR: []metadata.BrokerID{0, 1}, UncleanEpoch: -1}
	l.apply(d) // the leadership moves
	res := held.wait(t)
	require.ErrorIs(t, res.Err, ErrNotLeader)
	require.NotErrorIs(t, res.Err, ErrTimeout, "definite: nothing was appended")
	require.Equal(t, int64(2), l.EndOffset())
}

// A leadership that goes to another replica by plan holds producers back for a moment, and only those of its partition; when
// nothing comes of it they are served after all, without being asked again.
func TestDrainFor(t *testing.T) {
	c := newCluster(t, 2, true)
	c.create("orders", 2, nil)
	m, l := c.nodes[0].m, c.leader("orders", 0)
	if l.m != m {
		m = l.m
	}
	appendOne := func(p *Partition) result {
		r := newResult()
		p.Append(AppendRequest{Records: batch("a"), Acks: -1, Timeout: 10 * time.Second, CurrentLeaderEpoch: -1, Waiter: r})
		return r
	}
	require.NoError(t, appendOne(l).wait(t).Err)
	tps := []metadata.TopicPartition{{Topic: "orders", Partition: 0}, {Topic: "nobody's", Partition: 3}}
	require.NoError(t, m.DrainFor(c.ctx(), tps, time.Hour))
	held := appendOne(l)
	held.pending(t)
	require.NoError(t, appendOne(c.leader("orders", 1)).wait(t).Err, "the other partition goes on")
	require.NoError(t, m.DrainFor(c.ctx(), tps, time.Millisecond))
	require.NoError(t, held.wait(t).Err, "held for a moment, then appended")

	c.net.link(0, 1, false)
	lagging := newResult()
	l.Append(AppendRequest{Records: batch("b"), Acks: 1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: lagging})
	require.NoError(t, lagging.wait(t).Err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, m.DrainFor(ctx, tps, time.Hour), context.DeadlineExceeded)
	r := newResult()
	l.Append(AppendRequest{Records: batch("c"), Acks: 1, Timeout: time.Second, CurrentLeaderEpoch: -1, Waiter: r})
	require.NoError(t, r.wait(t).Err, "nobody is held for an election that would cut")

	// While the broker itself leaves, an older hand-over's end lets nothing through.
	c.net.link(0, 1, true)
	require.NoError(t, m.DrainFor(c.ctx(), tps, 5*time.Millisecond))
	require.NoError(t, m.Drain(c.ctx()))
	held = appendOne(l)
	time.AfterFunc(20*time.Millisecond, m.Resume)
	require.NoError(t, held.wait(t).Err)
}

// KIP-73: what replicas outside the ISR are sent is held to the rate, what those in it are sent is not.
func TestThrottle(t *testing.T) {
	var now Instant
	th := throttle{leader: true, now: func() Instant { return now }}
	th.setRates(1000, 0)
	p := &Partition{m: &Manager{}, topic: &topicState{}}
	p.view.Store(&view{isr: []metadata.BrokerID{0, 1}})
	require.Equal(t, 500, th.take(p, 2, 500), "the topic names no replicas")
	p.topic.throttled.Store(throttledOf(map[string]string{leaderThrottledReplicas: "0:0,1:7,garbage,x:1"}, throttledReplicas{}))
	require.Equal(t, 500, th.take(p, 1, 500), "in the ISR")
	require.Equal(t, 0, th.take(p, 2, 500))
	now += Instant(time.Second)
	require.Equal(t, 5000, th.take(p, 2, 5000), "a batch larger than a second's share passes")
	th.spent(p, 2, 5000)
	now += Instant(3 * time.Second)
	require.Equal(t, 0, th.take(p, 2, 500))
	now += Instant(2 * time.Second)
	require.Equal(t, 500, th.take(p, 2, 500))
	th.setRates(0, 0)
	require.Equal(t, math.MaxInt, th.take(p, 2, math.MaxInt))
	require.True(t, parseThrottled("*").all)
	require.Equal(t, 1e6, rateOf(map[string]string{leaderThrottledRate: "1000000"}, leaderThrottledRate))
}

// A follower that is throttled on either side still arrives, in its own time.
func TestThrottledFollowerArrives(t *testing.T) {
	for _, key := range []string{leaderThrottledReplicas, followerThrottledReplicas} {
		t.Run(key, func(t *testing.T) {
			c := newCluster(t, 2, false, func(cfg *Config) {
				cfg.ReplicaLagMax = 50 * time.Millisecond
				cfg.FetchPartitionBytes = 200
				cfg.BrokerConfig = func() map[string]string {
					return map[string]string{leaderThrottledRate: "4000", followerThrottledRate: "4000"}
				}
			})
			c.create("orders", 1, map[string]string{"min.insync.replicas": "1", key: "*"})
			l := c.leader("orders", 0)
			produce(t, l, "a")
			c.nodes[1].stop()
			for range 12 {
				produce(t, l, string(make([]byte, 100)))
			}
			eventually(t, "the leader is alone", func() bool { return len(c.record("orders", 0).ISR) == 1 })
			c.nodes[1].start()
			eventually(t, "the replica is in sync again", func() bool { return len(c.record("orders", 0).ISR) == 2 })
			require.Equal(t, int64(13), c.replica(1, "orders", 0).EndOffset())
		})
	}
}

// Issue 4: 3,000 idle replicas need no goroutine, no connection and no fetch of their own, and at most 60 KiB each.
func TestManyPartitions(t *testing.T) {
	if testing.Short() {
		t.Skip("a count of bytes")
	}
	const partitions = 1000
	c := newCluster(t, 3, true, func(cfg *Config) { cfg.TickInterval = 100 * time.Millisecond; cfg.FetchWait = 50 * time.Millisecond })
	c.create("warm", 3, nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	c.create("orders", partitions, nil)
	eventually(t, "all replicas are followed", func() bool {
		for _, n := range c.nodes {
			for p := range n.m.Partitions() {
				if s := p.Status(); s.Role == RoleLeader && (len(s.Followers) != 2 || s.Followers[0].Position < 0 || s.Followers[1].Position < 0) {
					return false
				}
			}
		}
		return true
	})
	eventually(t, "the workers that opened them are gone", func() bool { return runtime.NumGoroutine() <= goroutines+6 })
	c.net.mu.Lock()
	opened, open := c.net.mu.opened, len(c.net.mu.fetchers)
	c.net.mu.Unlock()
	require.LessOrEqual(t, open, 6, "one fetcher per pair of brokers")
	require.Equal(t, open, opened)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perReplica := int64(after.HeapAlloc-before.HeapAlloc) / (3 * partitions)
	t.Logf("%d bytes of heap per idle replica, the memory file system's share included", perReplica)
	require.Less(t, perReplica, int64(60<<10))
	c.net.mu.Lock()
	calls, changed := c.net.mu.calls, c.net.mu.changed
	c.net.mu.Unlock()
	eventually(t, "some polls have passed", func() bool {
		c.net.mu.Lock()
		defer c.net.mu.Unlock()
		return c.net.mu.calls >= calls+24
	})
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	require.Less(t, c.net.mu.changed-changed, 50, "polls of idle partitions send no positions")
}

// L9, I19: a replica whose log is damaged leads no more, leaves the ISR through the controller, and is copied anew; the
// other replicas are not touched, and nothing is cut.
func TestDamagedReplicaIsCopiedAnew(t *testing.T) {
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprintf("leads=%v", leads), func(t *testing.T) {
			c := newCluster(t, 3, false)
			c.create("orders", 1, map[string]string{"min.insync.replicas": "3"})
			var want []string
			for i := range 10 {
				want = append(want, fmt.Sprint("v", i))
				produce(t, c.leader("orders", 0), want[i])
			}
			id := metadata.BrokerID(1)
			if leads {
				id = 0
			}
			n := c.nodes[id]
			p := c.replica(id, "orders", 0)
			flip(t, n, "data/orders-0/00000000000000000000.log", 90)
			_, err := p.log.ReadChecked(0, 10, 1<<20, true) // the scrubber, or a follower's complaint
			require.ErrorIs(t, err, log.ErrCorrupt)
			eventually(t, "the replica is made anew and in sync", func() bool {
				q, err := n.m.Partition("orders", 0)
				rec := c.record("orders", 0)
				return err == nil && q != p && q.EndOffset() == 10 && len(rec.ISR) == 3 && (!leads || rec.Leader != 0)
			})
			eventually(t, "the leader knows what is committed", func() bool { return c.leader("orders", 0).HighWatermark() == 10 })
			require.Equal(t, want, readValues(t, c.leader("orders", 0), 0))
			require.Equal(t, want, followerValues(t, c.replica(id, "orders", 0), 10))
			// What the record says, the leader has yet to act upon: until then too few are in sync for it.
			eventually(t, "the leader counts all three", func() bool {
				s := c.leader("orders", 0).Status()
				return s.Role == RoleLeader && len(s.ISR) == 3
			})
			produce(t, c.leader("orders", 0), "more")
		})
	}
}

// flip turns one bit of a file round.
func flip(t *testing.T, n *node, name string, at int64) {
	t.Helper()
	f, err := n.fs.Open(name)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

// L9: a damaged leader is found by the follower that refuses its records and asks for them again.
func TestFollowersComplaintIsHeard(t *testing.T) {
	c := newCluster(t, 3, false, func(cfg *Config) { cfg.ReplicaLagMax = 60 * time.Millisecond; cfg.FetchRetryMin = time.Millisecond })
	c.create("orders", 1, map[string]string{"min.insync.replicas": "1"})
	l := c.leader("orders", 0)
	produce(t, l, "a")
	c.nodes[2].stop()
	produce(t, l, "b")
	eventually(t, "two are left", func() bool { return len(c.record("orders", 0).ISR) == 2 })
	flip(t, c.nodes[0], "data/orders-0/00000000000000000000.log", int64(len(batch("a")))+64)
	c.nodes[2].start()
	eventually(t, "another leads and all are in sync", func() bool {
		rec := c.record("orders", 0)
		return rec.Leader == 1 && len(rec.ISR) == 3
	})
	eventually(t, "the leader knows what is committed", func() bool { return c.leader("orders", 0).HighWatermark() == 2 })
	require.Equal(t, []string{"a", "b"}, readValues(t, c.leader("orders", 0), 0))
	require.Equal(t, []string{"a", "b"}, followerValues(t, c.replica(0, "orders", 0), 2))
}

// L9, I20: a damaged leader is found by the consumer that can't get past its records, when the read is one that looks.
func TestConsumersComplaintIsHeard(t *testing.T) {
	for name, check := range map[string]func(*ReadRequest){
		"all":   func(r *ReadRequest) { r.Checked = true },
		"first": func(r *ReadRequest) { r.CheckFirst = true },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, false)
			c.create("orders", 1, nil)
			l := c.leader("orders", 0)
			for _, value := range []string{"a", "b"} {
				produce(t, l, value)
			}
			eventually(t, "both are committed", func() bool { return l.HighWatermark() == 2 })
			flip(t, c.nodes[0], "data/orders-0/00000000000000000000.log", int64(len(batch("a")))+64)
			read := NewReadRequest(1, 1<<20)
			res := l.Read(read)
			require.NoError(t, res.Err)
			require.NotZero(t, res.Slice.Len(), "nobody looks at it unless asked to")
			res.Slice.Release()
			check(&read)
			res = l.Read(read)
			require.ErrorIs(t, res.Err, log.ErrCorrupt)
			require.Zero(t, res.Slice.Len())
			eventually(t, "another leads and all are in sync", func() bool {
				rec := c.record("orders", 0)
				return rec.Leader > 0 && len(rec.ISR) == 3
			})
			eventually(t, "the leader knows what is committed", func() bool { return c.leader("orders", 0).HighWatermark() == 2 })
			require.Equal(t, []string{"a", "b"}, readValues(t, c.leader("orders", 0), 0))
			require.Equal(t, []string{"a", "b"}, followerValues(t, c.replica(0, "orders", 0), 2))
		})
	}
}

// R24, L12: a reassignment copies to the new replica, held to the balancer's rate, and the replica that goes is deleted
// by the committed record; moved back, it starts from nothing.
func TestReassignment(t *testing.T) {
	c := newCluster(t, 3, true)
	var id metadata.TopicID
	c.store.must(func(r *metadata.Replica) error {
		id = metadata.TopicID{15: 77}
		return r.CreateTopic("moved", id, nil, [][]metadata.BrokerID{{0, 1}})
	})
	c.await()
	for i := range 5 {
		produce(t, c.leader("moved", 0), fmt.Sprint(i))
	}
	tp := metadata.TopicPartition{Topic: "moved"}
	for _, replicas := range [][]metadata.BrokerID{{1, 2}, {0, 2}, {0, 1}} {
		c.store.must(func(r *metadata.Replica) error { return r.Reassign(tp, replicas) })
		eventually(t, "the move is complete", func() bool {
			rec := c.record("moved", 0)
			return !rec.Reassigning() && len(rec.ISR) == 2
		})
		c.await()
		rec := c.record("moved", 0)
		require.Equal(t, replicas, rec.Replicas)
		for _, n := range c.nodes {
			_, found := n.dir.Lookup(id, 0)
			require.Equal(t, n.id == replicas[0] || n.id == replicas[1], found, "broker %d", n.id)
		}
		produce(t, c.leader("moved", 0), "more")
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "more", "more", "more"}, readValues(t, c.leader("moved", 0), 0))
}
