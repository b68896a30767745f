package metadata

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// balancerSim is a cluster whose state is the real FSM's, with a balancer that has no memory but that state whenever the
// controller changes. Copying is what the simulation makes of it: a replica that is being added comes into the ISR when
// the leader says so.
type balancerSim struct {
	t     *testing.T
	r     *Replica
	rng   *rand.Rand
	core  balancerCore
	in    balancerInput
	ids   byte // of plans and topics
	loses bool // the controller dies before it writes down what it began
	plans []string

	checked *state
}

const simStart = 1_900_000_000_000

func newBalancerSim(t *testing.T, brokers int, seed uint64) *balancerSim {
	s := &balancerSim{t: t, r: NewReplica(), rng: rand.New(rand.NewPCG(seed, 1)), in: balancerInput{nowMillis: simStart, mode: balancerNodeChange, grace: 10 * time.Minute, settles: joinSettles, limit: maxPlannedMoves}}
	for i := range brokers {
		s.register(BrokerID(i+1), "")
	}
	s.run(time.Second)
	return s
}

func (s *balancerSim) register(id BrokerID, rack string) {
	s.t.Helper()
	reg := testRegistration(id, byte(s.rng.IntN(256)))
	reg.Rack = rack
	_, err := s.r.Register(reg, false)
	require.NoError(s.t, err)
}

func (s *balancerSim) topic(name string, partitions, factor int) {
	s.t.Helper()
	p := newPlacement(s.r.Image(), s.rng.IntN(10))
	p.begin(nil)
	var assignments [][]BrokerID
	for _, set := range p.spread(partitions, factor) {
		assignments = append(assignments, set.replicas)
	}
	s.ids++
	require.NoError(s.t, s.r.CreateTopic(name, TopicID{1, s.ids}, nil, assignments))
}

func (s *balancerSim) fence(id BrokerID, on bool) {
	s.t.Helper()
	require.NoError(s.t, s.r.Fence(id, s.r.Image().Broker(id).Epoch, on))
}

func (s *balancerSim) decommission(id BrokerID, on bool) {
	s.t.Helper()
	_, err := s.r.do(&alterBroker{broker: id, epoch: s.r.Image().Broker(id).Epoch, removing: switchOf(on), policy: s.r.policy()})
	require.NoError(s.t, err)
}

// The hands of the balancer.
func (s *balancerSim) reassign(moves []Reassignment) []error {
	out := make([]error, len(moves))
	for i, m := range moves {
		out[i] = s.r.Reassign(m.TopicPartition, m.Replicas)
	}
	return out
}

func (s *balancerSim) elect(partitions []TopicPartition) {
	for _, tp := range partitions {
		_ = s.r.Elect(Preferred, tp, NoBroker)
	}
}

var errControllerDied = errors.New("the controller died")

func (s *balancerSim) remember(c *alterBalance) error {
	if s.loses && len(c.updates) > 0 {
		s.loses = false
		return errControllerDied
	}
	if c.plan != nil {
		s.plans = append(s.plans, c.plan.Trigger)
	}
	_, err := s.r.do(c)
	require.NoError(s.t, err)
	return nil
}

func (s *balancerSim) newID() [16]byte {
	s.ids++
	return [16]byte{2, s.ids, byte(len(s.plans))}
}

// step lets the balancer look, until it has nothing to do, and then brokers copy.
func (s *balancerSim) step() {
	for i := 0; ; i++ {
		if i == 50 {
			s.t.Fatal("the balancer finds something to do for ever")
		}
		im := s.r.Image()
		d := s.core.step(im, s.in)
		if d.idle() {
			break
		}
		if _, err := carryOutBalance(s, im, &d, s.in.nowMillis); err != nil {
			s.core = balancerCore{} // another controller
		}
		s.check()
	}
	s.copy()
	s.check()
}

// copy brings one of the replicas that are being added of each partition into the ISR, if its broker and a leader live.
func (s *balancerSim) copy() {
	for tp, p := range s.r.Image().Reassignments() {
		if p.Leader == NoBroker || s.rng.IntN(3) == 0 {
			continue
		}
		for _, id := range p.Adding {
			if slices.Contains(p.ISR, id) || s.r.Image().Broker(id).Fenced {
				continue
			}
			ch := PartitionChange{TopicID: s.r.Image().Topic(tp.Topic).ID, Partition: tp.Partition, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
			for _, member := range append(slices.Clone(p.ISR), id) {
				ch.ISR = append(ch.ISR, ISRMember{ID: member, Epoch: -1})
			}
			_, err := s.r.AlterPartition(p.Leader, s.r.Image().Broker(p.Leader).Epoch, ch)
			require.NoError(s.t, err)
			break
		}
	}
}

// check is what holds at every moment: nothing moves that is not in the plan, nothing is in the plan without a reason, and
// not too much moves at a time.
func (s *balancerSim) check() {
	im := s.r.Image()
	if im.st == s.checked {
		return
	}
	s.checked = im.st
	plan := im.st.balance.planOrNil()
	to := make(map[BrokerID]int)
	for tp, p := range im.Reassignments() {
		planned := plan != nil && (plan.Cancelled || slices.ContainsFunc(plan.Moves, func(m balancerMove) bool {
			return m.partition() == tp && slices.Equal(m.Replicas, p.target())
		}))
		if !planned {
			s.t.Fatalf("%v moves to %v and nobody has planned it", tp, p.target())
		}
		if !plan.Cancelled && !im.Balances(im.Topic(tp.Topic).ID, tp.Partition) {
			s.t.Fatalf("%v moves to %v unthrottled", tp, p.target())
		}
		for _, id := range p.Adding {
			if to[id]++; to[id] > movesPerBroker {
				s.t.Fatalf("%d moves to broker %d at once", to[id], id)
			}
		}
	}
	if plan == nil {
		return
	}
	for i := range plan.Moves {
		if m := &plan.Moves[i]; m.Reason == "" || m.State.final() != (m.EndedMillis != 0) {
			s.t.Fatalf("move %+v", m)
		}
	}
}

// run lets time pass, a second at a time.
func (s *balancerSim) run(d time.Duration) {
	for end := s.in.nowMillis + d.Milliseconds(); s.in.nowMillis < end; s.in.nowMillis += 1000 {
		s.step()
	}
}

// settle runs until no move is under way.
func (s *balancerSim) settle() {
	s.t.Helper()
	s.run(joinSettles + time.Second)
	for i := 0; s.plan().running(); i++ {
		if i == 2000 {
			s.t.Fatalf("the plan does not end: %+v", s.plan())
		}
		s.run(time.Second)
	}
}

func (s *balancerSim) plan() *balancePlan { return s.r.Image().st.balance.planOrNil() }

// replicas counts the replicas and the preferred leaders of each broker.
func (s *balancerSim) replicas() (replicas, leaders map[BrokerID]int) {
	replicas, leaders = make(map[BrokerID]int), make(map[BrokerID]int)
	for t := range s.r.Image().Topics() {
		for _, p := range t.Partitions {
			leaders[p.Replicas[0]]++
			for _, id := range p.Replicas {
				replicas[id]++
			}
		}
	}
	return replicas, leaders
}

func (s *balancerSim) requireEven(brokers ...BrokerID) {
	s.t.Helper()
	replicas, leaders := s.replicas()
	total, partitions := 0, 0
	for _, n := range replicas {
		total += n
	}
	for _, n := range leaders {
		partitions += n
	}
	for _, id := range brokers {
		even := float64(total) / float64(len(brokers))
		require.InDelta(s.t, even, replicas[id], max(even/10, 1), "replicas %v", replicas)
		even = float64(partitions) / float64(len(brokers))
		require.InDelta(s.t, even, leaders[id], max(even/10, 1), "leaders %v", leaders)
	}
	require.Len(s.t, replicas, len(brokers))
}

// A broker that joins gets its share of replicas and of leaders, and nobody without a reason.
func TestBalancerJoin(t *testing.T) {
	s := newBalancerSim(t, 3, 1)
	s.topic("orders", 12, 3)
	s.topic("pay", 7, 2)
	s.topic("one", 5, 1)
	s.run(time.Minute)
	require.Nil(t, s.plan(), "nobody asked")
	s.register(4, "")
	s.run(joinSettles - time.Second)
	require.Nil(t, s.plan(), "it may be gone again in a moment")
	s.settle()
	require.Equal(t, []string{"broker 4 joined"}, s.plans)
	s.requireEven(1, 2, 3, 4)
	for _, m := range s.plan().Moves {
		require.Equal(t, MoveDone, m.State, m.Trouble)
	}
	s.run(time.Hour)
	require.Len(t, s.plans, 1)
	// Brokers that come together make one plan; a restart makes none.
	s.register(5, "")
	s.run(2 * time.Second)
	s.register(6, "")
	s.settle()
	require.Equal(t, "brokers 5, 6 joined", s.plans[len(s.plans)-1])
	s.requireEven(1, 2, 3, 4, 5, 6)
	s.fence(5, true)
	s.run(time.Minute)
	s.fence(5, false)
	s.run(time.Minute)
	require.Len(t, s.plans, 2)
}

// Brokers of a cluster that forms have not joined: there is nothing yet that they could lack.
func TestBalancerForming(t *testing.T) {
	s := newBalancerSim(t, 1, 13)
	s.register(2, "")
	s.register(3, "")
	s.step()
	s.topic("orders", 6, 1)
	s.register(4, "")
	s.settle()
	require.Equal(t, []string{"broker 4 joined"}, s.plans)
}

// A broker that is away while a plan is made gets its part when it is back.
func TestBalancerPlansForThoseWhoAreAway(t *testing.T) {
	s := newBalancerSim(t, 3, 14)
	s.topic("orders", 16, 2)
	s.fence(2, true)
	s.register(4, "")
	s.settle()
	s.fence(2, false)
	s.settle()
	s.requireEven(1, 2, 3, 4)
}

// What is too much for one plan is left to the next, which follows by itself.
func TestBalancerJoinInSeveralPlans(t *testing.T) {
	s := newBalancerSim(t, 3, 11)
	s.in.limit = 5
	s.topic("orders", 12, 3)
	s.register(4, "")
	for range 4 {
		s.settle()
	}
	s.requireEven(1, 2, 3, 4)
	require.Greater(t, len(s.plans), 1)
	require.LessOrEqual(t, len(s.plans), 4)
	for _, trigger := range s.plans {
		require.Equal(t, "broker 4 joined", trigger)
	}
	n := len(s.plans)
	s.run(time.Hour)
	require.Len(t, s.plans, n)
}

// A plan outlives its controller, also one that dies between beginning a move and writing that down.
func TestBalancerSurvivesItsController(t *testing.T) {
	s := newBalancerSim(t, 3, 2)
	s.topic("orders", 20, 3)
	s.register(4, "")
	s.run(joinSettles + 2*time.Second)
	require.True(t, s.plan().running())
	id := s.plan().ID
	for i := range 400 {
		s.core = balancerCore{}
		s.loses = i%2 == 0
		s.run(time.Second)
	}
	s.loses = false
	s.settle()
	require.Equal(t, id, s.plan().ID)
	s.requireEven(1, 2, 3, 4)
	for _, m := range s.plan().Moves {
		require.Equal(t, MoveDone, m.State, m.Trouble)
	}
}

// A broker that is decommissioned ends without a replica, and the others even; maintenance leaves replicas where they are.
func TestBalancerDrain(t *testing.T) {
	s := newBalancerSim(t, 5, 3)
	s.topic("orders", 15, 3)
	s.topic("one", 6, 1)
	b := s.r.Image().Broker(2)
	require.NoError(t, s.r.Maintain(2, b.Epoch, true))
	s.run(time.Hour)
	require.Nil(t, s.plan())
	require.NoError(t, s.r.Maintain(2, b.Epoch, false))

	s.decommission(2, true)
	s.settle()
	require.Equal(t, []string{"broker 2 is being decommissioned"}, s.plans)
	replicas, _ := s.replicas()
	require.Zero(t, replicas[2])
	for id, n := range replicas {
		require.InDelta(t, 51.0/4, n, 1.3, "broker %d", id)
	}
	require.NoError(t, s.r.Image().CheckDecommission(2))
	s.run(time.Hour)
	require.Len(t, s.plans, 1)
	// Taken back, it is one that joins.
	s.decommission(2, false)
	s.settle()
	s.requireEven(1, 2, 3, 4, 5)
}

// What has nowhere to go is named, with the mend, and goes as soon as there is room.
func TestBalancerDecommissionWithoutRoom(t *testing.T) {
	s := newBalancerSim(t, 3, 4)
	s.topic("orders", 2, 3)
	s.topic("pay", 1, 3)
	s.topic("one", 3, 1)
	s.decommission(2, true)
	s.settle()
	require.Equal(t, []string{"broker 2 can't be emptied: orders-0, orders-1, pay-0 have 3 replicas and only 2 other brokers can take replicas"}, s.plan().Cannot)
	err := s.r.Image().CheckDecommission(2)
	require.ErrorIs(t, err, ErrPolicyViolation)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "broker 2 cannot be decommissioned: 3 partitions have nowhere to go", e.What)
	require.Equal(t, "orders-0, orders-1, pay-0 have 3 replicas and only 2 other brokers can take replicas", e.Why)
	require.Equal(t, "millrace start … --join HOST   on a new machine, or   millrace topic alter orders pay --replicas 2", e.Fix)
	replicas, _ := s.replicas()
	require.Equal(t, 3, replicas[2], "what could go has gone")
	n := len(s.plans)
	s.run(10 * time.Minute)
	require.Len(t, s.plans, n, "it is not said again and again")
	s.register(4, "")
	s.settle()
	replicas, _ = s.replicas()
	require.Zero(t, replicas[2])
	require.Empty(t, s.plan().Cannot)
	require.NoError(t, s.r.Image().CheckDecommission(2))
}

// A broker that is away longer than the grace time is replaced, wherever the controller is by then; what only it has waits
// for it, and when it is back it gets a share again.
func TestBalancerDeath(t *testing.T) {
	s := newBalancerSim(t, 4, 5)
	s.topic("orders", 12, 2)
	s.topic("one", 4, 1)
	s.fence(3, true)
	for range 9 {
		s.run(time.Minute)
		s.core = balancerCore{}
	}
	require.Nil(t, s.plan())
	s.run(2 * time.Minute)
	s.settle()
	require.Equal(t, []string{"broker 3 has been dead for more than 10m0s"}, s.plans)
	replicas, _ := s.replicas()
	require.Equal(t, 1, replicas[3], "the partition that nobody else has")
	require.Len(t, s.plan().Cannot, 1)
	require.Contains(t, s.plan().Cannot[0], "one-")
	require.Contains(t, s.plan().Cannot[0], "no live copy")
	s.run(time.Hour)
	require.Len(t, s.plans, 1)
	s.fence(3, false)
	s.settle()
	require.Equal(t, "broker 3 joined", s.plans[len(s.plans)-1])
	s.requireEven(1, 2, 3, 4)
}

// One that comes back while it is being replaced stops that.
func TestBalancerDeadBrokerComesBack(t *testing.T) {
	s := newBalancerSim(t, 4, 6)
	s.topic("orders", 40, 2)
	s.fence(3, true)
	s.run(10*time.Minute + 2*time.Second)
	require.True(t, s.plan().running())
	s.fence(3, false)
	s.run(2 * time.Second)
	waiting := slices.ContainsFunc(s.plan().Moves, func(m balancerMove) bool { return m.State == MoveWaiting && m.From == 3 })
	require.False(t, waiting)
	require.Equal(t, "broker 3 may keep replicas again", s.plans[1])
	s.settle()
	s.settle()
	s.requireEven(1, 2, 3, 4)
}

// In the mode off only orders move anything: a decommission is one.
func TestBalancerOff(t *testing.T) {
	s := newBalancerSim(t, 3, 7)
	s.in.mode = balancerOff
	s.topic("orders", 9, 2)
	s.register(4, "")
	s.fence(1, true)
	s.run(time.Hour)
	require.Nil(t, s.plan())
	s.fence(1, false)
	s.decommission(2, true)
	s.settle()
	replicas, _ := s.replicas()
	require.Zero(t, replicas[2])
	s.in.mode = balancerNodeChange
	s.settle()
	require.Equal(t, "broker 4 joined", s.plans[len(s.plans)-1])
}

// In the mode continuous replicas that become uneven are made even; a tenth is even enough.
func TestBalancerContinuous(t *testing.T) {
	s := newBalancerSim(t, 3, 8)
	s.in.mode = balancerContinuous
	s.topic("orders", 9, 1)
	require.NoError(t, s.r.CreateTopic("pinned", TopicID{9}, nil, [][]BrokerID{{1}, {1}, {1}, {1}, {1}, {1}}))
	s.run(2 * evennessCheck)
	s.settle()
	require.Equal(t, []string{"replicas were uneven by more than a tenth"}, s.plans)
	s.requireEven(1, 2, 3)
	s.run(time.Hour)
	require.Len(t, s.plans, 1)
}

// A move ends, with what became of it, when its topic is deleted or somebody else moves the partition.
func TestBalancerMovesThatCannotBeMade(t *testing.T) {
	s := newBalancerSim(t, 3, 9)
	s.topic("orders", 12, 1)
	s.topic("pay", 12, 1)
	s.register(4, "")
	s.run(joinSettles + time.Second)
	require.True(t, s.plan().running())
	_, err := s.r.do(&deleteTopic{id: s.r.Image().Topic("pay").ID, request: requestID{1}})
	require.NoError(t, err)
	var other TopicPartition
	for i := range s.plan().Moves {
		if m := &s.plan().Moves[i]; m.State == MoveWaiting && m.Name == "orders" {
			other = m.partition()
			// By hand, to where the plan does not want it.
			to := BrokerID(1)
			if m.From == 1 {
				to = 2
			}
			p := s.r.Image().Topic("orders").Partitions[m.Partition]
			require.NoError(t, s.r.Reassign(other, []BrokerID{to}))
			require.NoError(t, s.finish(other, p, to))
			break
		}
	}
	require.NotEmpty(t, other.Topic)
	s.settle()
	for _, m := range s.plan().Moves {
		switch {
		case m.partition() == other:
			require.Equal(t, MoveCancelled, m.State)
			require.Equal(t, "its replicas were changed meanwhile", m.Trouble)
		case m.State == MoveDone:
		default:
			require.Equal(t, "pay", m.Name)
			require.Equal(t, "its topic was deleted", m.Trouble)
		}
	}
}

// Two moves of one partition are made one after the other, and the second not at all when the first was not.
func TestBalancerMovesOfOnePartition(t *testing.T) {
	for _, first := range []MoveState{MoveWaiting, MoveMoving, MoveDone, MoveFailed, MoveCancelled} {
		r := NewReplica()
		for i := range 4 {
			_, err := r.Register(testRegistration(BrokerID(i+1), 1), false)
			require.NoError(t, err)
		}
		require.NoError(t, r.CreateTopic("orders", TopicID{1}, nil, [][]BrokerID{{1, 2}}))
		if first == MoveMoving || first == MoveDone {
			require.NoError(t, r.Reassign(TopicPartition{"orders", 0}, []BrokerID{3, 2}))
		}
		if first == MoveDone {
			p := r.Image().Topic("orders").Partitions[0]
			_, err := r.AlterPartition(1, r.Image().Broker(1).Epoch, PartitionChange{TopicID: TopicID{1}, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
				ISR: []ISRMember{{1, -1}, {2, -1}, {3, -1}}})
			require.NoError(t, err)
		}
		plan := &balancePlan{Moves: []balancerMove{
			{Topic: TopicID{1}, Name: "orders", From: 1, To: 3, Replicas: []BrokerID{3, 2}, State: first},
			{Topic: TopicID{1}, Name: "orders", From: 2, To: 4, Replicas: []BrokerID{3, 4}, State: MoveWaiting},
		}}
		var d balancerDecision
		new(balancerCore).follow(r.Image(), plan, balancerInput{nowMillis: simStart}, func(*Broker) bool { return false }, &d)
		switch first {
		case MoveWaiting:
			require.Equal(t, []int{0}, d.begin)
		case MoveMoving:
			require.True(t, d.idle(), "%+v", d)
		case MoveDone:
			require.Equal(t, []int{1}, d.begin)
		default:
			require.Equal(t, []moveUpdate{{move: 1, state: MoveCancelled, trouble: "a move of the same partition before it was not made", beganMillis: simStart, endedMillis: simStart}}, d.updates)
		}
	}
}

// What was cancelled is not taken up again, until something else happens.
func TestBalancerCancelled(t *testing.T) {
	s := newBalancerSim(t, 4, 12)
	s.topic("orders", 20, 2)
	s.decommission(2, true)
	s.run(3 * time.Second)
	require.True(t, s.plan().running())
	stopped := *s.plan()
	stopped.Cancelled, stopped.Moves = true, slices.Clone(stopped.Moves)
	for i := range stopped.Moves {
		if m := &stopped.Moves[i]; !m.State.final() {
			m.State, m.EndedMillis = MoveCancelled, s.in.nowMillis
		}
	}
	_, err := s.r.do((&balancerDecision{plan: &stopped}).command(s.r.Image(), s))
	require.NoError(t, err)
	for tp := range s.r.Image().Reassignments() {
		require.NoError(t, s.r.Reassign(tp, nil))
	}
	s.run(time.Hour)
	require.Len(t, s.plans, 1)
	s.register(5, "")
	s.settle()
	replicas, _ := s.replicas()
	require.Zero(t, replicas[2])
}

// finish completes a reassignment that was not the balancer's.
func (s *balancerSim) finish(tp TopicPartition, p *Partition, to BrokerID) error {
	now := s.r.Image().Topic(tp.Topic).Partitions[tp.Partition]
	_, err := s.r.AlterPartition(now.Leader, s.r.Image().Broker(now.Leader).Epoch, PartitionChange{
		TopicID: s.r.Image().Topic(tp.Topic).ID, Partition: tp.Partition, LeaderEpoch: now.LeaderEpoch, PartitionEpoch: now.PartitionEpoch,
		ISR: []ISRMember{{ID: p.Leader, Epoch: -1}, {ID: to, Epoch: -1}},
	})
	return err
}

// Whatever happens, and whenever controllers change, moves come to an end, no partition loses a replica by them, brokers
// that must be empty are, or it is said why not, and then all is quiet.
func TestBalancerSimulation(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 20
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { simulateBalancer(t, seed) })
	}
}

func simulateBalancer(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 99))
	s := newBalancerSim(t, 2+rng.IntN(4), seed)
	factors := make(map[string]int)
	next := BrokerID(10)
	for i := range 30 {
		brokers := s.r.Image().Brokers()
		b := brokers[rng.IntN(len(brokers))]
		switch rng.IntN(10) {
		case 0, 1:
			name := fmt.Sprint("t", i)
			places := newPlacement(s.r.Image(), 0)
			if places.checkFactor(name, 1) == nil {
				factors[name] = 1 + rng.IntN(min(len(places.brokers), 3))
				s.topic(name, 1+rng.IntN(8), factors[name])
			}
		case 2:
			if len(brokers) < 9 {
				s.register(next, []string{"", "a", "b"}[rng.IntN(3)])
				next++
			}
		case 3:
			s.fence(b.ID, true)
		case 4:
			s.fence(b.ID, false)
		case 5:
			s.decommission(b.ID, rng.IntN(2) == 0)
		case 6:
			require.NoError(t, s.r.Maintain(b.ID, b.Epoch, rng.IntN(3) == 0))
		case 7:
			for name := range factors {
				_, err := s.r.do(&deleteTopic{id: s.r.Image().Topic(name).ID, request: requestID{byte(i)}})
				require.NoError(t, err)
				delete(factors, name)
				break
			}
		}
		if rng.IntN(3) == 0 {
			s.core = balancerCore{}
		}
		s.loses = rng.IntN(4) == 0
		s.run(time.Duration(1+rng.IntN(200)) * time.Second)
	}
	s.loses = false
	// Everybody comes back; then it must come to rest.
	for _, b := range s.r.Image().Brokers() {
		s.fence(b.ID, false)
		require.NoError(t, s.r.Maintain(b.ID, b.Epoch, false))
	}
	for range 6 {
		s.settle()
		s.run(2 * planAgain)
	}
	require.False(t, s.plan().running())
	plans := len(s.plans)
	s.run(time.Hour)
	require.Len(t, s.plans, plans, "plans without a reason: %v", s.plans)
	for range s.r.Image().Reassignments() {
		t.Fatal("a partition is still being moved")
	}
	replicas, _ := s.replicas()
	for topic := range s.r.Image().Topics() {
		for i, p := range topic.Partitions {
			require.Len(t, p.Replicas, factors[topic.Name], "%s-%d", topic.Name, i)
		}
	}
	for _, b := range s.r.Image().Brokers() {
		if b.Removing && replicas[b.ID] > 0 {
			require.Error(t, s.r.Image().CheckDecommission(b.ID))
			require.NotEmpty(t, s.plan().Cannot)
		}
	}
	checkState(t, s.r.fsm.st)
}
