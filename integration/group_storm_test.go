package integration

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// stormSession is the session of every member that speaks the classic protocol here, and what has to wait for one to end
	// has not passed. By KIP-848 the broker sets it, and a member that is silent is given up after it and not before.
	stormSession    = 45 * time.Second
	stormBrokerSays = 6 * time.Second
	stormPartitions = 4
	stormRecords    = 200
)

// storm is a member that does not play by the rules, in a group with two real consumers; or a crowd.
type storm struct {
	name, protocol string
	// first: it is in the group before the others, and says there when they may come.
	first bool
	// once: it does one thing, and then says set. Others go on and on, until the context ends.
	once    bool
	disturb func(ctx context.Context, m *stormMember, there, set func())
	// keeps: it has its share of the partitions for as long as it lives. It ends when the others have read of theirs.
	keeps bool
	// patient: the others would wait for long for one that does not join again, and there must be none.
	patient bool
	crowd   func(*stormRun, context.Context)
}

var storms = []storm{
	// Trap 24: each repetition leaves an id behind that nobody uses.
	{name: "a member repeats the join handshake", protocol: "classic", patient: true, disturb: func(ctx context.Context, m *stormMember, _, _ func()) {
		for ctx.Err() == nil {
			m.id = ""
			_, _ = m.join(ctx, 3*time.Second)
			breathe(ctx, 20*time.Millisecond)
		}
	}},
	{name: "a member never syncs", protocol: "classic", disturb: func(ctx context.Context, m *stormMember, _, _ func()) {
		for ctx.Err() == nil {
			if err := m.joinAs(ctx, 2*time.Second); err != nil {
				m.id = ""
			}
			for range 4 { // it lives, and says so
				_ = m.heartbeat(ctx)
				breathe(ctx, 500*time.Millisecond)
			}
		}
	}},
	{name: "a leader dies between join and sync", protocol: "classic", first: true, once: true, disturb: func(ctx context.Context, m *stormMember, there, set func()) {
		if err := m.joinAs(ctx, 3*time.Second); err != nil || m.leader != m.id {
			m.t.Errorf("it does not lead: %v", err)
		}
		m.cl.Close()
		there()
		set()
	}},
	{name: "a member repeats its joining heartbeat", protocol: "consumer", first: true, keeps: true, disturb: func(ctx context.Context, m *stormMember, there, _ func()) {
		highest := int32(0)
		for ctx.Err() == nil {
			m.generation, m.owned = 0, nil
			if err := m.beat(ctx, 3*time.Second); err == nil {
				there()
				highest = max(highest, m.generation)
			}
			breathe(ctx, 20*time.Millisecond)
		}
		if highest > 6 { // itself, two more, a coordinator that died, and some to spare
			m.t.Errorf("its repetitions began epochs, up to %d", highest)
		}
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		m.leave(bye)
	}},
	{name: "a member never gives up what it must", protocol: "consumer", first: true, once: true, disturb: func(ctx context.Context, m *stormMember, there, set func()) {
		for ctx.Err() == nil {
			err := m.beat(ctx, 3*time.Second)
			switch {
			case err == nil && len(m.owned) == 0:
				m.owned = m.given
			case err == nil && len(m.given) < len(m.owned):
				set()
			case err == nil:
				there()
			case putOut(err):
				if !errors.Is(err, kerr.UnknownMemberID) {
					m.t.Errorf("it was to be put out: %v", err)
				}
				return
			}
			breathe(ctx, 100*time.Millisecond)
		}
	}},
	{name: "a member dies before it takes up what it is given", protocol: "consumer", once: true, disturb: func(ctx context.Context, m *stormMember, _, set func()) {
		for ctx.Err() == nil && len(m.given) == 0 {
			_ = m.beat(ctx, 3*time.Second)
			breathe(ctx, 50*time.Millisecond)
		}
		m.cl.Close()
		set()
	}},
	{name: "two hundred join", protocol: "classic", crowd: (*stormRun).classicCrowd},
	{name: "two hundred join", protocol: "consumer", crowd: (*stormRun).consumerCrowd},
}

func (s storm) String() string { return s.name + " " + s.protocol }

// TestRebalanceStorms: members that do not play by the rules do not stop those that do, and a crowd gets together. In each case
// two real consumers must have read everything long before a session of the disturber would have ended by itself. With three
// brokers that of the coordinator is killed when the trap is set, and half of the records come afterwards.
func TestRebalanceStorms(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for rebalance timeouts")
	}
	for _, c := range []struct {
		name, mode string
		brokers    int
	}{
		{"one broker", "rebalance", 1},
		{"coordinator killed rebalance", "rebalance", 3},
		{"coordinator killed resume", "resume", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			brokers := startCoordinatedCluster(ctx, t, c.brokers, "group.initial.rebalance.delay.ms=100", "millrace.group.failover="+c.mode,
				"group.consumer.session.timeout.ms="+strconv.FormatInt(stormBrokerSays.Milliseconds(), 10), "group.consumer.heartbeat.interval.ms=300")
			// What comes once, and a crowd, must come right before the death: they do no harm any more when a timeout is over.
			crowds := 0
			for _, s := range storms {
				if s.crowd != nil {
					crowds++
				}
			}
			nothing := func() error { return nil }
			ready, set := newMeeting(len(storms)-crowds, nothing), newMeeting(len(storms)-crowds, nothing)
			death := newMeeting(crowds, func() error {
				if c.brokers == 1 {
					return nil
				}
				return brokers.kill(ctx)
			})
			runTogether(t, storms, storm.String, func(t *testing.T, s storm) {
				i := slices.IndexFunc(storms, func(other storm) bool { return other.String() == s.String() })
				r := &stormRun{storm: s, t: t, c: brokers, group: brokers.groups[i], topic: "storm-" + strconv.Itoa(i), ready: ready, set: set, death: death}
				if s.crowd != nil {
					r.isDue = death.seat()
					defer r.isDue()
					s.crowd(r, ctx)
					return
				}
				r.isReady, r.isSet = ready.seat(), set.seat()
				defer r.isSet()
				defer r.isReady()
				r.trap(ctx)
			})
		})
	}
}

// stormRun is a storm over a cluster.
type stormRun struct {
	storm
	t            *testing.T
	c            *coordinatedCluster
	group, topic string
	// The traps meet before what comes once, and when it has come. Then the crowds come, and meet for the death.
	ready, set, death     *meeting
	isReady, isSet, isDue func()
}

// trap has two real consumers read everything while a member disturbs.
func (r *stormRun) trap(ctx context.Context) {
	t, leader := r.t, r.c.id
	if len(r.c.others) > 0 {
		leader = r.c.others[0]
	}
	id := r.c.topic(ctx, t, r.topic, stormPartitions, leader)
	r.c.produce(ctx, t, r.topic, 0, stormRecords/2)
	disturbing, stop := context.WithCancel(ctx)
	consuming, end := context.WithCancel(ctx)
	var work, disturber sync.WaitGroup
	defer work.Wait()
	defer end()
	defer disturber.Wait()
	defer stop()
	there, set := make(chan struct{}), make(chan struct{})
	disturb := func() {
		m := newStormMember(r, r.topic, id)
		disturber.Go(func() {
			r.disturb(disturbing, m, sync.OnceFunc(func() { close(there) }), sync.OnceFunc(func() { close(set) }))
		})
		if r.first {
			await(ctx, t, there, "it does not come into the group")
		}
	}
	got := &stormReadings{seen: map[string]bool{}}
	consume := func(i int) (given <-chan struct{}) {
		c := make(chan struct{})
		first := sync.OnceFunc(func() { close(c) })
		rebalance := 3 * time.Second
		if r.patient {
			rebalance = stormSession
		}
		opts := []kgo.Opt{
			kgo.ConsumerGroup(r.group), kgo.ConsumeTopics(r.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.RebalanceTimeout(rebalance), kgo.HeartbeatInterval(300 * time.Millisecond), kgo.FetchMaxWait(300 * time.Millisecond),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, to map[string][]int32) {
				if len(to) > 0 {
					first()
				}
			}),
		}
		if r.protocol == "consumer" {
			opts = append(opts, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		}
		cl := r.c.client(t, opts...)
		work.Go(func() {
			for consuming.Err() == nil {
				cl.PollFetches(consuming).EachRecord(func(record *kgo.Record) { got.add(i, string(record.Value)) })
			}
		})
		return c
	}
	both := func() {
		for i := range 2 { // each begins a rebalance
			await(ctx, t, consume(i), "a consumer is given nothing")
		}
	}
	meet := func() {
		r.isReady()
		require.NoError(t, r.ready.wait(ctx))
	}
	switch {
	case !r.once:
		disturb()
		both()
		meet()
	case r.first:
		meet()
		disturb()
		consume(0)
		consume(1)
		await(ctx, t, set, "the trap is not set")
	default:
		both()
		meet()
		disturb()
		await(ctx, t, set, "the trap is not set")
	}
	r.isSet()
	require.NoError(t, r.death.wait(ctx))
	since := time.Now()
	r.c.produce(ctx, t, r.topic, stormRecords/2, stormRecords)
	if r.keeps {
		require.Eventually(t, got.both, stormSession*2/3, 20*time.Millisecond, "the consumers do not get their shares")
		stop()
	}
	require.Eventually(t, func() bool { return got.count() == stormRecords }, stormSession*2/3, 20*time.Millisecond, "the consumers wait for the one that does not play by the rules")
	require.Eventually(t, func() bool {
		listed, err := r.c.adm.ListGroups(ctx)
		return err == nil && listed[r.group].State == "Stable"
	}, stormSession*2/3, 20*time.Millisecond, "the group does not settle")
	t.Logf("everything is read, and the group is stable, %s after the death", time.Since(since).Round(10*time.Millisecond))
}

// await waits for what has to come before a session ends.
func await(ctx context.Context, t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, stormSession*2/3)
	defer cancel()
	select {
	case <-c:
	case <-ctx.Done():
		t.Fatal(what)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// stormReadings are what the two consumers have read.
type stormReadings struct {
	mu    sync.Mutex
	seen  map[string]bool
	begun [2]bool // consumer: it has read of the second half
}

func (s *stormReadings) add(consumer int, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ := strconv.Atoi(value)
	s.seen[value] = true
	s.begun[consumer] = s.begun[consumer] || n >= stormRecords/2
}

// both says whether both have read of the second half.
func (s *stormReadings) both() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun == [2]bool{true, true}
}

func (s *stormReadings) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}
