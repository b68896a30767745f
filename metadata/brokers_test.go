package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// brokers are three brokers with everything that this package sees of them: Raft, forwarding, probes and heartbeats over
// a network that tests cut. Inside a synctest bubble.
type brokers struct {
	*bubbleCluster
	t *testing.T

	mu struct {
		sync.Mutex
		process [3]byte // which incarnation runs
		epochs  [3]int64
		up      [3]bool // its process runs and is reached
		silent  [3]bool // it sends no heartbeats, and answers nevertheless
		beats   [3]HeartbeatReply
		asked   int // probes
		// holding, if it returns true, keeps the call of a method; deliver delivers it.
		holding func(method string, deliver func()) bool
	}
	wg   sync.WaitGroup
	stop chan struct{}
}

func newBrokers(t *testing.T) *brokers {
	bs := &brokers{t: t, stop: make(chan struct{})}
	bs.bubbleCluster = newBubbleCluster(t, func(i int, cfg *Config) {
		cfg.Forwarder = forwarderOf{bs, i}
		cfg.Probe = func(ctx context.Context, b *Broker) error { return bs.probe(ctx, i, b) }
		cfg.LogEnds = func(_ context.Context, b *Broker, partitions []TopicPartition) (ends []LogEnd, err error) {
			for _, tp := range partitions {
				ends = append(ends, LogEnd{TopicPartition: tp, LeaderEpoch: 1, Offset: int64(b.ID)})
			}
			return ends, nil
		}
	})
	// Not before: Raft asks the others from its first moment on, when there are no stores yet.
	bs.mu.Lock()
	bs.mu.up = [3]bool{true, true, true}
	bs.mu.Unlock()
	for i := range bs.stores {
		bs.start(i, 1)
	}
	for i := range bs.stores {
		bs.wg.Go(func() { bs.beat(i) })
	}
	return bs
}

func (bs *brokers) close() {
	close(bs.stop)
	bs.wg.Wait()
	bs.bubbleCluster.close()
}

// reach reports whether two brokers reach each other.
func (bs *brokers) reach(i, j int) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.mu.up[i] && bs.mu.up[j]
}

// kill makes broker i unreachable, as kill -9 would but for its own idea of it.
func (bs *brokers) kill(i int) {
	bs.mu.Lock()
	bs.mu.up[i] = false
	bs.mu.Unlock()
	bs.cut(i)
}

// start registers a new process of broker i.
func (bs *brokers) start(i int, incarnation byte) {
	bs.mu.Lock()
	bs.mu.up[i], bs.mu.process[i] = true, incarnation
	bs.mu.Unlock()
	bs.heal(i)
	r := testRegistration(BrokerID(i+1), incarnation)
	r.PeerAddress = fmt.Sprintf("broker-%d", i+1)
	epoch, err := bs.stores[i].RegisterBroker(testContext(bs.t), r)
	require.NoError(bs.t, err)
	bs.mu.Lock()
	bs.mu.epochs[i] = epoch
	bs.mu.Unlock()
	require.Equal(bs.t, epoch, bs.stores[i].Image().Broker(BrokerID(i+1)).Epoch, "M16: seen here")
}

// epoch is that of broker i's last registration.
func (bs *brokers) epoch(i int) int64 {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.mu.epochs[i]
}

func (bs *brokers) beat(i int) {
	for n := 0; ; n++ {
		bs.mu.Lock()
		send := bs.mu.up[i] && !bs.mu.silent[i]
		bs.mu.Unlock()
		if send {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			r, err := bs.stores[i].Heartbeat(ctx, Heartbeat{Broker: BrokerID(i + 1), Epoch: bs.epoch(i), Applied: bs.stores[i].Image().Version()})
			cancel()
			if err == nil {
				bs.mu.Lock()
				bs.mu.beats[i] = r
				bs.mu.Unlock()
			}
		}
		select {
		case <-time.After(time.Second):
		case <-bs.stop:
			return
		}
	}
}

func (bs *brokers) probe(ctx context.Context, from int, b *Broker) error {
	bs.mu.Lock()
	bs.mu.asked++
	process := bs.mu.process[b.ID-1]
	bs.mu.Unlock()
	if b.Incarnation[1] != process {
		return errors.New("another process answers")
	}
	if bs.reach(from, int(b.ID)-1) {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// forwarderOf carries calls from one broker.
type forwarderOf struct {
	bs   *brokers
	from int
}

func (f forwarderOf) Forward(ctx context.Context, controller BrokerID, address, method string, body []byte) ([]byte, error) {
	to := int(controller) - 1
	if address != fmt.Sprintf("broker-%d", controller) {
		return nil, fmt.Errorf("%w: nobody at %s", ErrNotSent, address)
	}
	if !f.bs.reach(f.from, to) {
		return nil, fmt.Errorf("%w: connection refused", ErrNotSent)
	}
	f.bs.mu.Lock()
	holding := f.bs.mu.holding
	f.bs.mu.Unlock()
	if holding != nil && holding(method, func() { f.bs.stores[to].ServeForward(context.Background(), method, body) }) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return f.bs.stores[to].ServeForward(ctx, method, body)
}

// await waits, in fake time, until a condition holds of broker i's Image.
func (bs *brokers) await(i int, what string, cond func(im *Image) bool) time.Duration {
	bs.t.Helper()
	begun := time.Now()
	for range 3000 {
		if cond(bs.stores[i].Image()) {
			return time.Since(begun)
		}
		time.Sleep(10 * time.Millisecond) // fake time: a step of the simulation
	}
	bs.t.Fatalf("broker %d never sees that %s", i+1, what)
	return 0
}

func unfenced(im *Image) (n int) {
	for _, b := range im.Brokers() {
		if !b.Fenced {
			n++
		}
	}
	return n
}

// catchUp has the leaders take every live replica into their ISRs.
func (bs *brokers) catchUp(topic string) {
	for i, p := range bs.controller().Image().Topic(topic).Partitions {
		im := bs.controller().Image()
		if p.Leader == NoBroker {
			continue
		}
		ch := PartitionChange{TopicID: im.Topic(topic).ID, Partition: int32(i), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range p.Replicas {
			if b := im.Broker(id); !b.Fenced {
				ch.ISR = append(ch.ISR, ISRMember{id, b.Epoch})
			}
		}
		r := bs.stores[p.Leader-1].AlterPartition(testContext(bs.t), p.Leader, bs.epoch(int(p.Leader-1)), []PartitionChange{ch})
		require.NoError(bs.t, r[0].Err)
	}
}

// other returns a broker that is not the controller, and not among those given.
func (bs *brokers) other(not ...int) int {
	lead := bs.controller()
next:
	for i, s := range bs.stores {
		if s == lead {
			continue
		}
		for _, j := range not {
			if i == j {
				continue next
			}
		}
		return i
	}
	bs.t.Fatal("no other broker")
	return 0
}

func (bs *brokers) index(s *Store) int { return int(s.cfg.NodeID) - 1 }

// D15, M12: every operation works on a broker that is not the controller, can be seen there when it returns, and its
// refusals arrive as they were.
func TestForwarding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		i := bs.other()
		s, ctx := bs.stores[i], testContext(t)
		bs.await(i, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		r := s.CreateTopics(ctx, []NewTopic{{Name: "a", Partitions: 3, ReplicationFactor: -1}, {Name: "bad name", Partitions: 1, ReplicationFactor: 1}}, false)
		require.NoError(t, r[0].Err)
		require.Equal(t, int16(3), r[0].ReplicationFactor, "min(3, brokers)")
		require.NotNil(t, s.Image().Topic("a"), "M12")
		require.Equal(t, s.Image().Topic("a").ID, r[0].ID)
		requireMend(t, r[1].Err, ErrInvalidTopic, "bad name")
		again := s.CreateTopics(ctx, []NewTopic{{Name: "a", Partitions: 1, ReplicationFactor: 1}}, false)[0]
		direct := bs.controller().CreateTopics(ctx, []NewTopic{{Name: "a", Partitions: 1, ReplicationFactor: 1}}, false)[0]
		require.Equal(t, direct.Err.Error(), again.Err.Error())
		requireMend(t, again.Err, ErrTopicExists)
		e, ok := errors.AsType[*Error](again.Err)
		require.True(t, ok)
		require.Equal(t, direct.Err, error(e), "the same *Error")

		require.NoError(t, s.CreatePartitions(ctx, []NewPartitions{{Topic: "a", Count: 5}}, false)[0].Err)
		require.Len(t, s.Image().Topic("a").Partitions, 5)
		value := "1"
		changes := []ConfigChange{{Resource{TopicResource, "a"}, []ConfigOp{{"retention.ms", ConfigSet, &value}}}, {Resource{TopicResource, "none"}, nil}}
		errs := s.AlterConfigs(ctx, changes, false, false)
		require.NoError(t, errs[0])
		requireMend(t, errs[1], ErrUnknownTopic)
		require.Equal(t, "1", s.Image().Topic("a").Configs["retention.ms"])
		first, n, err := s.AllocateProducerIDs(ctx)
		require.NoError(t, err)
		second, _, err := bs.stores[bs.other(i)].AllocateProducerIDs(ctx)
		require.NoError(t, err)
		require.Equal(t, first+int64(n), second)

		id, err := s.AssignBrokerID(ctx, DirectoryID{44}, NoBroker, false)
		require.NoError(t, err)
		require.Equal(t, BrokerID(4), id)
		again4, err := bs.stores[bs.other(i)].AssignBrokerID(ctx, DirectoryID{44}, NoBroker, false)
		require.NoError(t, err)
		require.Equal(t, id, again4, "idempotent per directory")
		_, err = s.AssignBrokerID(ctx, DirectoryID{45}, 1, false)
		requireMend(t, err, ErrDuplicateBroker, "broker id 1 is taken")
		_, err = s.AssignBrokerID(ctx, DirectoryID{45}, 1, true)
		requireMend(t, err, ErrDuplicateBroker, "alive")

		requireMend(t, s.SetMaintenance(ctx, 9, true), ErrUnknownBroker)
		require.NoError(t, s.SetMaintenance(ctx, BrokerID(i+1), true))
		require.True(t, s.Image().Broker(BrokerID(i+1)).Draining)
		for _, p := range s.Image().Topic("a").Partitions {
			require.NotEqual(t, BrokerID(i+1), p.Leader)
		}
		require.NoError(t, s.SetMaintenance(ctx, BrokerID(i+1), false))
		results := s.ElectLeaders(ctx, Preferred, nil)
		require.NotEmpty(t, results)
		for _, r := range results {
			require.NoError(t, r.Err)
			require.Equal(t, s.Image().Topic("a").Partitions[r.TopicPartition.Partition].Replicas[0], r.Leader)
		}
		require.Empty(t, s.ElectLeaders(ctx, Preferred, nil))
		requireMend(t, s.ElectLeaders(ctx, Preferred, []TopicPartition{{"a", 0}})[0].Err, ErrElectionNotNeeded)
		requireMend(t, s.ElectLeaders(ctx, Unclean, []TopicPartition{{"a", 9}})[0].Err, ErrUnknownPartition)
		requireMend(t, s.UpdateFeatureLevel(ctx, MaxFeatureLevel+1), ErrInvalidFeatureLevel)
		require.NoError(t, s.UpdateFeatureLevel(ctx, MaxFeatureLevel))
		requireMend(t, s.UnregisterBroker(ctx, BrokerID(i+1)), ErrPolicyViolation)

		moves := s.AlterReassignments(ctx, []Reassignment{
			{TopicPartition{"a", 0}, []BrokerID{1}}, {TopicPartition{"a", 1}, nil}, {TopicPartition{"a", 2}, []BrokerID{1, 1}}, {TopicPartition{"b", 0}, []BrokerID{1}},
		})
		require.NoError(t, moves[0])
		require.Equal(t, []BrokerID{1}, s.Image().Topic("a").Partitions[0].Replicas)
		requireMend(t, moves[1], ErrNoReassignment)
		requireMend(t, moves[2], ErrInvalidAssignment)
		requireMend(t, moves[3], ErrUnknownTopic)

		require.NoError(t, s.DeleteTopics(ctx, []TopicRef{{Name: "a"}})[0].Err)
		require.Nil(t, s.Image().Topic("a"))
		_, err = s.ServeForward(ctx, "create_topics", []byte("{}"))
		require.ErrorIs(t, err, ErrNotController)
		_, err = bs.controller().ServeForward(ctx, "fly", nil)
		requireMend(t, err, ErrInvalidRequest)
		_, err = bs.controller().ServeForward(ctx, "create_topics", []byte("{"))
		require.ErrorIs(t, err, ErrInvalidRequest)
		bs.settle()
	})
}

// D5: a suspected broker that does not answer is fenced within a probe or two; one that answers is not. After a session of
// silence a broker is fenced though it would answer (N10).
func TestFencing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		dead := bs.other()
		reporter := bs.other(dead)
		s := bs.stores[reporter]
		bs.await(reporter, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		require.NoError(t, s.CreateTopics(testContext(t), []NewTopic{{Name: "a", Partitions: 6, ReplicationFactor: 3}}, false)[0].Err)
		id := BrokerID(dead + 1)
		b := s.Image().Broker(id)

		s.Suspect(id, b.Incarnation, "a test") // it lives
		s.Suspect(id, [16]byte{9}, "of another process")
		time.Sleep(time.Second)
		require.False(t, s.Image().Broker(id).Fenced)

		bs.kill(dead)
		s.Suspect(id, b.Incarnation, "gossip")
		took := bs.await(reporter, "it is fenced", func(im *Image) bool { return im.Broker(id).Fenced })
		require.Less(t, took, 500*time.Millisecond)
		for _, p := range s.Image().Topic("a").Partitions {
			require.NotEqual(t, id, p.Leader)
			require.NotEqual(t, NoBroker, p.Leader)
			require.NotContains(t, p.ISR, id)
		}

		// Its restart: fenced until it has caught up, then let in, and given its leaders back once it is in every ISR.
		bs.start(dead, 2)
		bs.await(reporter, "it is back", func(im *Image) bool { return !im.Broker(id).Fenced })
		bs.catchUp("a")
		took = bs.await(reporter, "it leads what prefers it", func(im *Image) bool {
			for _, p := range im.Topic("a").Partitions {
				if p.Leader != p.Replicas[0] {
					return false
				}
			}
			return true
		})
		require.Less(t, took, 5*time.Second)

		bs.mu.Lock()
		bs.mu.silent[dead] = true
		bs.mu.Unlock()
		took = bs.await(reporter, "the silent one is fenced", func(im *Image) bool { return im.Broker(id).Fenced })
		require.Greater(t, took, 7*time.Second)
		require.Less(t, took, 10*time.Second)
		bs.mu.Lock()
		bs.mu.silent[dead] = false
		bs.mu.Unlock()
		bs.await(reporter, "it is heard again", func(im *Image) bool { return !im.Broker(id).Fenced })
		bs.settle()
	})
}

// A controller that dies is fenced by its successor, at once; the others have a full session with the new one (M9).
func TestControllerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		old := bs.index(bs.controller())
		a := bs.other()
		b := bs.other(a)
		bs.await(a, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		require.NoError(t, bs.stores[a].CreateTopics(testContext(t), []NewTopic{{Name: "a", Partitions: 6, ReplicationFactor: 3}}, false)[0].Err)
		bs.kill(old)
		// No word from gossip: that there is a new controller is reason enough to ask the old one.
		took := bs.await(a, "the old controller is fenced", func(im *Image) bool { return im.Broker(BrokerID(old + 1)).Fenced })
		require.Less(t, took, 3*time.Second)
		require.Equal(t, 2, unfenced(bs.stores[a].Image()))
		for _, p := range bs.stores[a].Image().Topic("a").Partitions {
			require.NotEqual(t, BrokerID(old+1), p.Leader)
		}
		// Operations begun while there was no controller succeed.
		require.NoError(t, bs.stores[b].CreateTopics(testContext(t), []NewTopic{{Name: "b", Partitions: 1, ReplicationFactor: 3}}, false)[0].Err)
		p := bs.stores[b].Image().Topic("b").Partitions[0]
		require.Len(t, p.Replicas, 3, "the fenced one gets its replica, outside the ISR")
		require.Len(t, p.ISR, 2)
		time.Sleep(20 * time.Second)
		require.Equal(t, 2, unfenced(bs.stores[a].Image()), "nobody else was fenced")
		require.Error(t, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return bs.stores[old].SetMaintenance(ctx, 1, true)
		}(), "the old one can do nothing")
		bs.start(old, 2)
		bs.await(a, "it is back", func(im *Image) bool { return unfenced(im) == 3 })
		bs.settle()
	})
}

// R20: a broker that is asked to stop is relieved of its leaderships and leaves the ISRs in one command; it may stop when
// nobody else could lead what is left, and is told what it waits for until then.
func TestControlledShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		leaving := bs.other()
		s, ctx := bs.stores[leaving], testContext(t)
		id := BrokerID(leaving + 1)
		bs.await(leaving, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		mate := BrokerID(bs.other(leaving) + 1)
		require.NoError(t, s.CreateTopics(ctx, []NewTopic{
			{Name: "a", Partitions: 6, ReplicationFactor: 3},
			{Name: "alone", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{id}}},
			{Name: "behind", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{id, mate}}},
		}, false)[0].Err)
		behind := s.Image().Topic("behind")
		r := s.AlterPartition(ctx, id, bs.epoch(leaving), []PartitionChange{{TopicID: behind.ID, ISR: []ISRMember{{id, -1}}}})
		require.NoError(t, r[0].Err)

		bs.mu.Lock()
		bs.mu.silent[leaving] = true // this test sends its heartbeats
		bs.mu.Unlock()
		version := s.Image().Version()
		beat := Heartbeat{Broker: id, Epoch: bs.epoch(leaving), Applied: version, Shutdown: true}
		reply, err := s.Heartbeat(ctx, beat)
		require.NoError(t, err)
		require.False(t, reply.MayStop)
		require.Contains(t, reply.Waiting, "behind-0")
		bs.await(leaving, "it is leaving", func(im *Image) bool { return im.Broker(id).Leaving })
		for _, p := range s.Image().Topic("a").Partitions {
			require.NotEqual(t, id, p.Leader)
			require.NotContains(t, p.ISR, id)
		}
		p := s.Image().Topic("behind").Partitions[0]
		require.Equal(t, id, p.Leader)
		// The other replica has caught up.
		r = s.AlterPartition(ctx, id, bs.epoch(leaving), []PartitionChange{{
			TopicID: behind.ID, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: []ISRMember{{id, -1}, {mate, -1}},
		}})
		require.NoError(t, r[0].Err)
		require.Equal(t, mate, r[0].Partition.Leader)
		reply, err = s.Heartbeat(ctx, beat)
		require.NoError(t, err)
		require.Empty(t, reply.Waiting)
		require.True(t, reply.MayStop, "a partition with one replica keeps nobody")
		bs.await(leaving, "alone stays with it", func(im *Image) bool { return im.Topic("alone").Partitions[0].Leader == id })
		_, err = s.Heartbeat(ctx, Heartbeat{Broker: id, Epoch: 99})
		requireMend(t, err, ErrStaleBrokerEpoch)
		bs.start(leaving, 2)
		require.False(t, s.Image().Broker(id).Leaving)
		bs.settle()
	})
}

// G8: a broker that goes and comes all the time is let in later and later after it is heard from again, and not at all while it
// falls silent in between.
func TestFlapping(t *testing.T) {
	now := time.Now()
	const beat, s = 2 * time.Second, time.Second
	ss := newSessions(9*s, beat, nil, now)
	b := &Broker{ID: 1, Epoch: 1}
	require.True(t, ss.heard(b, 1, now))
	fence := func() {
		b.Fenced = true
		ss.fencedNow(b, now)
	}
	// serves lets so much time pass with heartbeats, and returns after which the fence was lifted, -1 if it was not.
	serves := func(d time.Duration) time.Duration {
		back := time.Duration(-1)
		for passed := time.Duration(0); passed <= d; passed += 100 * time.Millisecond {
			if (b.Fenced || passed%beat == 0) && ss.heard(b, 1, now) && b.Fenced {
				back, b.Fenced = passed, false
				ss.unfencedNow(b, now)
			}
			now = now.Add(100 * time.Millisecond)
		}
		return back
	}
	var waits []time.Duration
	for range 8 {
		fence()
		now = now.Add(8 * s) // the penalty does not pass while it is silent
		waits = append(waits, serves(20*s))
	}
	require.Equal(t, []time.Duration{0, 0, 2 * s, 4 * s, 8 * s, 16 * s, 20 * s, 20 * s}, waits)
	require.Empty(t, ss.returning([]*Broker{b}, 0, now), "it gets no leaders back at once")

	fence()
	for range 5 {
		now = now.Add(8 * s)
		require.EqualValues(t, -1, serves(8*s), "it is not heard from for long enough")
	}
	now = now.Add(8 * s)
	require.Equal(t, 20*s, serves(20*s))
	fence()
	now = now.Add(6 * time.Minute)
	require.Zero(t, serves(s), "forgotten")
}

// L12: the tombstone of a deleted topic stays until every registered broker has acted on the deletion.
func TestPruneTombstones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		i := bs.other()
		away := bs.other(i)
		s := bs.stores[i]
		bs.await(i, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		id := createTopics(t, s, newTopic("a", 1))[0].ID
		bs.kill(away)
		require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: "a"}})[0].Err)
		require.True(t, s.Image().Tombstone(id))
		time.Sleep(5 * time.Minute)
		require.True(t, s.Image().Tombstone(id), "one broker has not heard of it")
		bs.start(away, 2)
		time.Sleep(3 * time.Minute)
		require.False(t, s.Image().Tombstone(id))
		bs.settle()
	})
}

// Leaders go back to where they belong when they are uneven. Where the leader dies an eligible replica follows it; where
// there is none the partition waits for an order, which elects the live replica with the most of it (R15).
func TestPeriodicElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs := newBrokers(t)
		defer bs.close()
		lead := bs.controller()
		self := lead.cfg.NodeID
		a, b := BrokerID(bs.other()+1), BrokerID(0)
		b = BrokerID(bs.other(int(a)-1) + 1)
		bs.await(int(self)-1, "all serve", func(im *Image) bool { return unfenced(im) == 3 })
		yes := "true"
		require.NoError(t, lead.CreateTopics(testContext(t), []NewTopic{
			{Name: "even", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{self, a}, {self, b}}},
			{Name: "waits", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{a, self}}},
			{Name: "hurries", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{a, self, b}}, Configs: map[string]*string{"unclean.leader.election.enable": &yes}},
		}, false)[0].Err)
		for _, name := range []string{"waits", "hurries"} { // only a has all records
			topic := lead.Image().Topic(name)
			r := bs.stores[a-1].AlterPartition(testContext(t), a, bs.epoch(int(a-1)), []PartitionChange{{TopicID: topic.ID, ISR: []ISRMember{{a, -1}}}})
			require.NoError(t, r[0].Err)
			if name == "hurries" { // min.insync 2 of 3: both others are eligible until a has taken one of them back
				for _, isr := range [][]ISRMember{{{a, -1}, {b, -1}}, {{a, -1}}} {
					p := lead.Image().Topic(name).Partitions[0]
					r = bs.stores[a-1].AlterPartition(testContext(t), a, bs.epoch(int(a-1)), []PartitionChange{{TopicID: topic.ID, PartitionEpoch: p.PartitionEpoch, ISR: isr}})
					require.NoError(t, r[0].Err)
				}
				require.Equal(t, []BrokerID{b}, r[0].Partition.ELR)
			}
		}
		require.NoError(t, lead.SetMaintenance(testContext(t), self, true))
		require.NoError(t, lead.SetMaintenance(testContext(t), self, false))
		require.NotEqual(t, self, lead.Image().Topic("even").Partitions[0].Leader)
		time.Sleep(310 * time.Second)
		require.Equal(t, self, lead.Image().Topic("even").Partitions[0].Leader)
		require.Equal(t, self, lead.Image().Topic("even").Partitions[1].Leader)

		bs.kill(int(a) - 1)
		lead.Suspect(a, lead.Image().Broker(a).Incarnation, "a test")
		bs.await(int(self)-1, "a is fenced", func(im *Image) bool { return im.Broker(a).Fenced })
		require.Equal(t, b, lead.Image().Topic("hurries").Partitions[0].Leader, "the eligible one first")
		require.Equal(t, NoBroker, lead.Image().Topic("waits").Partitions[0].Leader)
		requireMend(t, lead.ElectLeaders(testContext(t), Preferred, []TopicPartition{{"waits", 0}})[0].Err, ErrPreferredLeaderUnfit)
		results := lead.ElectLeaders(testContext(t), Unclean, nil)
		require.Len(t, results, 1)
		require.NoError(t, results[0].Err)
		require.Equal(t, self, results[0].Leader)
		p := lead.Image().Topic("waits").Partitions[0]
		require.Equal(t, p.LeaderEpoch, p.UncleanEpoch)
		bs.start(int(a)-1, 2)
	})
}
