package metadata

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// balancedStore is a store that runs the balancer, with registered brokers.
func balancedStore(t *testing.T, brokers int) (*Store, *prometheus.Registry) {
	cfg := testConfig(t, t.TempDir())
	cfg.Balance = true
	cfg.joinSettles = 1
	registry := prometheus.NewRegistry()
	cfg.Registerer = registry
	s := openStore(t, cfg)
	for i := range brokers {
		register(t, s, BrokerID(i+1), 1)
	}
	await(t, s, func(im *Image) bool { return len(im.balanceSeen().Takers) == brokers })
	return s, registry
}

// await waits for an Image.
func await(t testing.TB, s *Store, ok func(*Image) bool) {
	t.Helper()
	ctx := testContext(t)
	w := s.Watch()
	defer w.Close()
	for !ok(s.Image()) {
		select {
		case <-w.C():
		case <-ctx.Done():
			t.Fatalf("it does not come: %+v", s.Image().st.balance)
		}
	}
}

// copying brings replicas that are being added into the ISR, as their leaders would, until stop is called.
func copying(t *testing.T, s *Store) (stop func()) {
	ctx, cancel := context.WithCancel(testContext(t))
	var done sync.WaitGroup
	done.Go(func() {
		w := s.Watch()
		defer w.Close()
		for {
			select {
			case <-w.C():
			case <-ctx.Done():
				return
			}
			im := s.Image()
			for tp, p := range im.Reassignments() {
				ch := PartitionChange{TopicID: im.Topic(tp.Topic).ID, Partition: tp.Partition, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
				members := slices.Clone(p.ISR)
				for _, id := range p.Adding {
					if !slices.Contains(members, id) {
						members = append(members, id)
					}
				}
				for _, id := range members {
					ch.ISR = append(ch.ISR, ISRMember{ID: id, Epoch: -1})
				}
				s.AlterPartition(ctx, p.Leader, im.Broker(p.Leader).Epoch, []PartitionChange{ch}) // a later Image brings it again
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

func replicasOf(im *Image) map[BrokerID]int {
	count := make(map[BrokerID]int)
	for topic := range im.Topics() {
		for _, p := range topic.Partitions {
			for _, id := range p.Replicas {
				count[id]++
			}
		}
	}
	return count
}

// The balancer of a Store, with Raft under it: it moves what it has a reason to, says what it does, and does what it is told.
func TestStoreBalances(t *testing.T) {
	s, registry := balancedStore(t, 3)
	ctx := testContext(t)
	create(t, s, NewTopic{Name: "orders", Partitions: 8, ReplicationFactor: 2})

	plan, err := s.PlanBalance(ctx)
	require.NoError(t, err)
	require.Empty(t, plan.ID, "%+v", plan)
	require.Equal(t, [2]int{5, 6}, plan.Spread)
	ran, err := s.RunBalance(ctx)
	require.NoError(t, err)
	require.Empty(t, ran.Moves)
	status, err := s.BalanceStatus(ctx)
	require.NoError(t, err)
	require.Equal(t, "node-change", status.Mode)
	require.False(t, status.Running)
	require.EqualValues(t, 50<<20, status.ThrottleBytesPerSecond)

	stop := copying(t, s)
	register(t, s, 4, 1)
	await(t, s, func(im *Image) bool { p := im.st.balance.Plan; return p != nil && !p.running() })
	require.Equal(t, map[BrokerID]int{1: 4, 2: 4, 3: 4, 4: 4}, replicasOf(s.Image()))
	status, err = s.BalanceStatus(ctx)
	require.NoError(t, err)
	require.Equal(t, "broker 4 joined", status.Trigger)
	require.NotEmpty(t, status.ID)
	require.Equal(t, [2]int{4, 4}, status.Spread)
	require.Equal(t, [2]int{4, 4}, status.SpreadAfter)
	for _, m := range status.Moves {
		require.Equal(t, MoveDone, m.State)
		require.NotEmpty(t, m.Reason)
		require.False(t, m.Ended.Before(m.Began))
	}

	require.NoError(t, s.Decommission(ctx, 2, true))
	// The controller lets go of a broker that is empty, which the balancer looks at again.
	await(t, s, func(im *Image) bool { return im.Broker(2) == nil && !im.st.balance.Plan.running() })
	stop()

	// Nobody copies any more: what is under way stays so until it is cancelled, and is not taken up again.
	require.NoError(t, s.Decommission(ctx, 3, true))
	await(t, s, func(im *Image) bool {
		return slices.ContainsFunc(im.st.balance.Plan.Moves, func(m balancerMove) bool { return m.State == MoveMoving })
	})
	status, err = s.BalanceStatus(ctx)
	require.NoError(t, err)
	require.True(t, status.Running)
	require.Less(t, status.Spread[0], status.SpreadAfter[1])
	families, err := registry.Gather()
	require.NoError(t, err)
	gauges := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "millrace_rebalance_moves" {
				gauges[m.Label[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	require.Len(t, slices.Collect(maps.Keys(gauges)), 5)
	require.NotZero(t, gauges["moving"])
	n, err := s.CancelBalance(ctx)
	require.NoError(t, err)
	require.NotZero(t, n)
	for tp := range s.Image().Reassignments() {
		t.Fatalf("%v is still being moved", tp)
	}
	again, err := s.CancelBalance(ctx)
	require.NoError(t, err)
	require.Zero(t, again)
	s.balancer.mu.Lock()
	d := s.balancer.core.step(s.Image(), s.balancerInput(s.Image()))
	s.balancer.mu.Unlock()
	require.True(t, d.idle(), "%+v", d)
	status, err = s.BalanceStatus(ctx)
	require.NoError(t, err)
	for _, m := range status.Moves {
		require.Equal(t, MoveCancelled, m.State)
		require.Equal(t, "by order", m.Trouble)
	}
}

// Progress is what the brokers say: bytes, a rate and the time that is left.
func TestBalancerProgress(t *testing.T) {
	r := NewReplica()
	for i := range 2 {
		_, err := r.Register(testRegistration(BrokerID(i+1), 1), false)
		require.NoError(t, err)
	}
	require.NoError(t, r.CreateTopic("orders", TopicID{1}, nil, [][]BrokerID{{1}, {1}}))
	im := r.Image()
	plan := &balancePlan{Moves: []balancerMove{
		{Topic: TopicID{1}, Name: "orders", Partition: 0, From: 1, To: 2, State: MoveMoving},
		{Topic: TopicID{1}, Name: "orders", Partition: 1, From: 1, To: 2, State: MoveWaiting},
	}}
	p := progress{sizes: make(map[progressKey]moveProgress), rate: -1}
	zero := TopicPartition{"orders", 0}
	one := TopicPartition{"orders", 1}
	start := millisTime(simStart)
	ask := func(seconds int, moved int64) BalancerStatus {
		p.note(im, plan, map[progressKey]int64{{zero, 1}: 1000, {one, 1}: 500, {zero, 2}: moved}, start.Add(time.Duration(seconds)*time.Second))
		out := BalancerStatus{Running: true, BalancerPlan: BalancerPlan{Moves: []BalancerMove{
			{TopicPartition: zero, To: 2, State: MoveMoving, BytesMoved: -1, BytesTotal: -1, BytesPerSecond: -1},
			{TopicPartition: one, To: 2, State: MoveWaiting, BytesMoved: -1, BytesTotal: -1, BytesPerSecond: -1},
		}}}
		p.fill(&out)
		return out
	}
	out := ask(0, 0)
	require.EqualValues(t, 1500, out.BytesRemaining)
	require.EqualValues(t, -1, out.ETA, "no rate yet")
	out = ask(2, 200)
	require.EqualValues(t, 1300, out.BytesRemaining)
	require.EqualValues(t, 100, out.Moves[0].BytesPerSecond)
	require.Equal(t, 13*time.Second, out.ETA)
	require.EqualValues(t, 0, out.Moves[1].BytesMoved)
	require.EqualValues(t, 500, out.Moves[1].BytesTotal)
	var empty progress
	empty.fill(&out)
	require.EqualValues(t, -1, out.BytesRemaining)
}
