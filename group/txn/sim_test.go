package txn

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// The simulator runs the cores of two transactional ids at three brokers, over the real FSM behind an ideal log, with the
// partitions' leaders that let batches in and write markers as package replication does, with producers of both protocols,
// several under one id, a network that loses and delays, brokers that crash, are fenced, leave and come back, and metadata
// that arrives late. One generator decides everything, so a seed replays exactly. It knows the promises, not the protocol:
// see sim_check_test.go.

const (
	simPartitions = 3
	simGroup      = "g"
	simTimeout    = 20 * time.Second
)

var (
	simTopicID = metadata.TopicID{1}
	simIDs     = []string{"a", "b"}
)

// simNode is one broker.
type simNode struct {
	id          metadata.BrokerID
	up          bool
	incarnation int
	epoch       int64 // broker epoch
	applied     int   // index into sim.images
	cores       map[string]*simCore
	followed    int32 // as Coordinator.followed
	markers     map[simMarker]simMarkerState
	// later is what this broker does once it has applied an image.
	later []simLater
}

type simCore struct {
	core  *Core
	epoch int32 // as entry.epoch
}

type simLater struct {
	index int
	do    func()
}

type simMarker struct {
	number    uint64
	partition int32
}

type simMarkerState uint8

const (
	simMarkerBusy simMarkerState = iota + 1
	simMarkerWritten
)

type simMessage struct {
	deliver  func()
	reliable bool // not lost: its sender has to hear of it
}

type simOptions struct {
	seed   uint64
	steps  int
	mutant *simMutant
	trace  func(format string, args ...any)
}

type sim struct {
	rng     *rand.Rand
	opt     simOptions
	mutant  *simMutant
	fsm     *metadata.Replica
	images  []*metadata.Image
	nodes   []*simNode
	logs    [simPartitions]*simLog
	clients []*simClient
	net     []simMessage
	now     Instant
	hold    Instant
	slack   int // messages that are on their way at least
	// nextID and lastID are the block of producer ids at hand.
	nextID, lastID int64
	instances      int
	calls          []*simCall // not answered yet
	weights        [simOps]int
	total          int
	quiet          bool
	err            error
	oracle         oracle
	// counts of what happened, for the test to see that something did.
	commits, aborts, fences, timeouts, rotations int
}

const (
	opClient = iota
	opDeliver
	opDrop
	opMetadata
	opTick
	opMarkers
	opJump
	opPause
	opCrash
	opStart
	opFence
	opUnfence
	opLeave
	opISR
	opElect
	opOrder
	opForget
	simOps
)

func newSim(opt simOptions) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(opt.seed, 0x74786e)), opt: opt, mutant: opt.mutant, now: Instant(time.Hour)}
	if s.mutant == nil {
		s.mutant = &simMutant{}
	}
	s.hold = []Instant{0, Instant(200 * time.Millisecond), Instant(5 * time.Second)}[s.rng.IntN(3)]
	s.slack = []int{0, 2, 6, 12}[s.rng.IntN(4)]
	s.oracle.init()
	// Swarm: each seed has its own taste.
	for op := range s.weights {
		s.weights[op] = []int{0, 0, 1, 1, 2, 4}[s.rng.IntN(6)]
	}
	s.weights[opClient] = 100 + s.rng.IntN(100)
	s.weights[opDeliver] = 150 + s.rng.IntN(200)
	s.weights[opMetadata] = 60 + s.rng.IntN(150)
	s.weights[opTick] = 10 + s.rng.IntN(20)
	s.weights[opMarkers] = 10 + s.rng.IntN(60)
	s.weights[opStart], s.weights[opUnfence], s.weights[opISR] = 1+s.rng.IntN(4), 1+s.rng.IntN(4), 1+s.rng.IntN(4)
	for _, w := range s.weights {
		s.total += w
	}
	s.fsm = metadata.NewReplica()
	s.fsm.Settings.MinInsyncReplicas = 1
	for i := range 3 {
		n := &simNode{id: metadata.BrokerID(i)}
		s.nodes = append(s.nodes, n)
		s.start(n)
	}
	s.must(s.fsm.CreateTopic("t", simTopicID, nil, [][]metadata.BrokerID{{0, 1, 2}, {1, 2, 0}, {2, 0, 1}}))
	for i := range s.logs {
		s.logs[i] = &simLog{partition: int32(i), epoch: -1, producers: map[int64]*simProducer{}}
	}
	if s.rng.IntN(3) == 0 {
		s.age()
	}
	s.committed()
	for range 2 + s.rng.IntN(3) {
		s.clients = append(s.clients, s.newClient(simIDs[s.rng.IntN(len(simIDs))]))
	}
	return s
}

// age gives an id a producer whose epochs are about to end (P6).
func (s *sim) age() {
	by, _ := s.fsm.Image().Coordinator(metadata.TransactionCoordinator, "a")
	change := metadata.TransactionChange{
		ID: "a", ProducerID: s.producerID(), LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1, Timeout: simTimeout, Version: 1,
	}
	revision, err := s.fsm.ChangeTransaction(by, s.nodes[by].epoch, change)
	s.must(err)
	change.Revision, change.ProducerEpoch = revision, int16(epochLast-s.rng.IntN(6))
	_, err = s.fsm.ChangeTransaction(by, s.nodes[by].epoch, change)
	s.must(err)
}

func (s *sim) must(err error) {
	if err != nil {
		s.failf("%v", err)
	}
}

func (s *sim) failf(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *sim) tracef(format string, args ...any) {
	if s.opt.trace != nil {
		s.opt.trace("%8.3f "+format, append([]any{float64(s.now-Instant(time.Hour)) / 1e9}, args...)...)
	}
}

func (s *sim) run() error {
	for i := 0; i < s.opt.steps && s.err == nil; i++ {
		s.now += Instant(s.rng.IntN(30)) * Instant(time.Millisecond)
		s.operation()
	}
	if s.err == nil {
		s.heal()
	}
	return s.err
}

func (s *sim) operation() {
	pick, op := s.rng.IntN(s.total), 0
	for pick >= s.weights[op] {
		pick -= s.weights[op]
		op++
	}
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	b := s.fsm.Image().Broker(n.id)
	switch op {
	case opClient:
		s.clients[s.rng.IntN(len(s.clients))].act(s)
	case opDeliver:
		if len(s.net) > s.slack {
			s.deliver()
		}
	case opDrop:
		if len(s.net) > 0 {
			if i := s.rng.IntN(len(s.net)); !s.net[i].reliable {
				s.net = slices.Delete(s.net, i, i+1)
			}
		}
	case opMetadata:
		s.metadata(n, 1+s.rng.IntN(3))
	case opTick:
		s.tick(n)
	case opMarkers:
		s.writeMarkers(n)
	case opJump:
		s.now += Instant(s.rng.IntN(6000)) * Instant(time.Millisecond)
	case opPause:
		c := s.clients[s.rng.IntN(len(s.clients))]
		c.pausedUntil = s.now + Instant(s.rng.IntN(30))*Instant(time.Second)
		s.tracef("%v paused", c)
	case opCrash:
		s.crash(n)
	case opStart:
		s.start(n)
	case opFence:
		if !b.Fenced {
			s.try(s.fsm.Fence(n.id, b.Epoch, true))
		}
	case opUnfence:
		s.unfence(n)
	case opLeave:
		if n.up {
			s.try(s.fsm.Leave(n.id, n.epoch))
		}
	case opISR:
		s.expand()
	case opElect:
		s.try(s.fsm.Elect(metadata.Preferred, metadata.TopicPartition{Topic: "t", Partition: int32(s.rng.IntN(simPartitions))}, metadata.NoBroker))
	case opOrder:
		id := simIDs[s.rng.IntN(len(simIDs))]
		s.ask(nil, n, id, &Abort{})
	case opForget:
		s.forget(n)
	}
}

func (s *sim) wall() int64 { return int64(s.now / Instant(time.Millisecond)) }

func (s *sim) at() Time { return Time{At: s.now, Wall: s.wall()} }

// try takes a change of a broker or a partition, which may be refused.
func (s *sim) try(err error) {
	if err == nil {
		s.committed()
	}
}

// committed makes the FSM's state the next Image, checks it against the one before, and returns its index.
func (s *sim) committed() int {
	im := s.fsm.Image()
	if len(s.images) > 0 {
		old := s.images[len(s.images)-1]
		if old.Version() == im.Version() {
			return len(s.images) - 1
		}
		s.checkImage(old, im)
	}
	s.images = append(s.images, im)
	return len(s.images) - 1
}

func (s *sim) start(n *simNode) {
	if n.up {
		return
	}
	n.incarnation++
	var err error
	n.epoch, err = s.fsm.Register(metadata.Registration{
		ID: n.id, Incarnation: incarnationOf(n), Directories: []metadata.DirectoryID{{byte(n.id) + 1, 1}}, Version: "sim",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel, TailsProven: true,
	}, false)
	s.must(err)
	s.committed()
	n.up, n.cores, n.followed, n.markers, n.later = true, map[string]*simCore{}, -1, map[simMarker]simMarkerState{}, nil
	n.applied = s.rng.IntN(len(s.images)) // it replays; M16
	s.tracef("broker %d started, epoch %d", n.id, n.epoch)
}

func incarnationOf(n *simNode) [16]byte {
	return [16]byte{byte(n.id) + 1, byte(n.incarnation), byte(n.incarnation >> 8)}
}

func (s *sim) crash(n *simNode) {
	if !n.up {
		return
	}
	s.calls = slices.DeleteFunc(s.calls, func(c *simCall) bool { return c.node == n })
	n.up, n.cores, n.markers, n.later = false, nil, nil, nil
	s.tracef("broker %d crashed", n.id)
}

func (s *sim) unfence(n *simNode) {
	if b := s.fsm.Image().Broker(n.id); b.Fenced && n.up && b.Epoch == n.epoch {
		s.try(s.fsm.Fence(n.id, b.Epoch, false))
	}
}

// expand has each leader take all that live into its ISR.
func (s *sim) expand() {
	im := s.fsm.Image()
	for i, p := range im.Topic("t").Partitions {
		leader := im.Broker(p.Leader)
		if leader == nil || len(p.ISR) == len(p.Replicas) {
			continue
		}
		ch := metadata.PartitionChange{TopicID: simTopicID, Partition: int32(i), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch}
		for _, id := range p.Replicas {
			if b := im.Broker(id); !b.Fenced && !b.Leaving {
				ch.ISR = append(ch.ISR, metadata.ISRMember{ID: id, Epoch: b.Epoch})
			}
		}
		_, err := s.fsm.AlterPartition(leader.ID, leader.Epoch, ch)
		s.try(err)
	}
}

// metadata lets a broker apply some of what is committed.
func (s *sim) metadata(n *simNode, entries int) {
	if !n.up {
		return
	}
	n.applied = min(n.applied+entries, len(s.images)-1)
	s.lead(n)
	for i := 0; n.up && i < len(n.later); {
		if n.later[i].index > n.applied {
			i++
			continue
		}
		do := n.later[i].do
		n.later = slices.Delete(n.later, i, i+1)
		do()
	}
	s.follow(n)
	if b := s.image(n).Broker(n.id); n.up && b != nil && b.Leaving && b.Epoch == n.epoch && s.rng.IntN(3) == 0 {
		s.crash(n)
	}
}

func (s *sim) image(n *simNode) *metadata.Image { return s.images[n.applied] }

// registered says whether a broker's Image is about this process (M16).
func (s *sim) registered(n *simNode) bool {
	b := s.image(n).Broker(n.id)
	return n.up && b != nil && b.Incarnation == incarnationOf(n)
}

// follow is Coordinator.follow.
func (s *sim) follow(n *simNode) {
	if !s.registered(n) {
		return
	}
	im := s.image(n)
	for _, id := range simIDs {
		t := im.Transaction(id)
		if by, _ := im.Coordinator(metadata.TransactionCoordinator, id); n.cores[id] != nil || by == n.id && t != nil && t.State == metadata.TransactionOngoing {
			s.step(n, id, nil)
		}
	}
	_, n.followed = im.Coordinator(metadata.TransactionCoordinator, "")
}

func (s *sim) tick(n *simNode) {
	if !n.up {
		return
	}
	for _, id := range simIDs {
		if c := n.cores[id]; c != nil && c.core.Deadline() <= s.now {
			s.step(n, id, &Tick{RetryMax: Instant(10 * time.Second)})
		}
	}
}

// forget is Coordinator.expire, of ids that were not used for a while.
func (s *sim) forget(n *simNode) {
	if !s.registered(n) {
		return
	}
	for _, id := range simIDs {
		if t := s.image(n).Transaction(id); t != nil && !t.State.Active() && s.wall()-t.UpdatedAt > 10_000 {
			_, _ = s.fsm.ChangeTransaction(n.id, n.epoch, forget(t, s.wall()))
			s.committed()
		}
	}
}

func (s *sim) send(deliver func()) { s.net = append(s.net, simMessage{deliver: deliver}) }

// sure sends what its sender has to hear of.
func (s *sim) sure(deliver func()) { s.net = append(s.net, simMessage{deliver, true}) }

func (s *sim) deliver() {
	if len(s.net) == 0 {
		return
	}
	i := s.rng.IntN(len(s.net))
	m := s.net[i]
	s.net = slices.Delete(s.net, i, i+1)
	m.deliver()
}

// step is Coordinator.with: the core first goes by the present metadata, then takes the event.
func (s *sim) step(n *simNode, id string, ev Event) {
	im := s.image(n)
	c := n.cores[id]
	if c == nil {
		c = &simCore{core: NewCore(id), epoch: -1}
		n.cores[id] = c
	}
	by, epoch := im.Coordinator(metadata.TransactionCoordinator, id)
	switch t := im.Transaction(id); {
	case !s.registered(n) || by != n.id:
		c.epoch = -1
		s.core(n, id, c, &LetGo{Err: ErrNotCoordinator})
		if call := callOf(ev); call != nil {
			s.answered(call, ErrNotCoordinator, noPair)
		}
		ev = nil
	case epoch != c.epoch || t != c.core.Record():
		taken := c.epoch == -1 && n.followed != epoch
		c.epoch = epoch
		s.core(n, id, c, &Seen{Transaction: t, Taken: taken})
	}
	if ev != nil && n.up {
		s.core(n, id, c, ev)
	}
	if n.up && c.core.Idle() && n.cores[id] == c {
		delete(n.cores, id)
	}
}

// core gives an event to the core and carries out its actions.
func (s *sim) core(n *simNode, id string, c *simCore, ev Event) {
	if s.mutant.before != nil && !s.mutant.before(s, ev) {
		return
	}
	acts := slices.Clone(c.core.Step(s.at(), ev))
	if s.mutant.after != nil {
		acts = s.mutant.after(s, c.core, acts)
	}
	for _, a := range acts {
		switch a.Kind {
		case ActionPropose:
			ch, seq := a.Change, a.Seq
			s.propose(n, id, func(at metadata.ReplicaBatch) error {
				if s.mutant.change != nil {
					s.mutant.change(s, &ch)
				}
				if s.mutant.anybody {
					if by, _ := s.fsm.Image().Coordinator(metadata.TransactionCoordinator, id); by >= 0 {
						at = s.fsm.Place(by, s.fsm.Image().Broker(by).Epoch, id)
					}
				}
				_, err := s.fsm.ChangeTransactionAt(at, ch)
				s.tracef("broker %d changes %s: %v %d/%d -> %v", n.id, id, ch.State, ch.ProducerID, ch.ProducerEpoch, err)
				return err
			}, func(err error) { s.step(n, id, &Changed{Seq: seq, Err: err}) })
		case ActionAllocate:
			seq := a.Seq
			s.to(n, func() {
				ev := &Allocated{Seq: seq, ProducerID: -1, Err: ErrUnavailable}
				if s.quiet || s.rng.IntN(4) > 0 {
					ev.ProducerID, ev.Err = s.producerID(), nil
					s.rotations++
				}
				s.step(n, id, ev)
			})
		case ActionAdd:
			add, addition := a.Add, a.Addition
			s.propose(n, id, func(at metadata.ReplicaBatch) error { return s.fsm.AddToTransactionAt(at, addition) }, func(err error) {
				if add.attempts++; errors.Is(err, metadata.ErrConcurrentTransactions) && add.attempts <= attemptsMax {
					s.step(n, id, add)
					return
				}
				s.answered(add.Waiter.(*simCall), fromMetadata(err), noPair)
			})
		case ActionInit:
			s.answered(a.Waiter.(*simCall), a.Init.Err, pair{a.Init.ProducerID, a.Init.ProducerEpoch})
		case ActionEnd:
			s.answered(a.Waiter.(*simCall), a.End.Err, pair{a.End.ProducerID, a.End.ProducerEpoch})
		case ActionAnswer:
			s.answered(a.Waiter.(*simCall), a.Err, noPair)
		case ActionReload:
			c.epoch = -1
			s.step(n, id, nil)
		case ActionEnded:
			switch a.Reason {
			case ReasonFence:
				s.fences++
			case ReasonTimeout:
				s.timeouts++
			}
		}
	}
}

func (s *sim) producerID() int64 {
	if s.nextID == s.lastID {
		first, n, err := s.fsm.AllocateProducerIDs()
		s.must(err)
		s.nextID, s.lastID = first, first+int64(n)
		if len(s.images) > 0 {
			s.committed()
		}
	}
	s.nextID++
	return s.nextID - 1
}

// to does something at a broker later, if the same process still runs then.
func (s *sim) to(n *simNode, do func()) {
	life := n.incarnation
	s.sure(func() {
		if n.up && n.incarnation == life {
			do()
		}
	})
}

// propose sends a step of a transaction to the controller. It or its answer may get lost, which the proposer learns as a
// timeout; else it learns the outcome when it has applied what led to it.
func (s *sim) propose(n *simNode, key string, apply func(metadata.ReplicaBatch) error, done func(error)) {
	at := s.fsm.Place(n.id, n.epoch, key)
	life := n.incarnation
	lost := !s.quiet && s.rng.IntN(10) == 0
	s.sure(func() {
		err, index := error(metadata.ErrTimeout), 0
		if !lost || s.rng.IntN(2) == 0 {
			err = apply(at)
			index = s.committed()
		}
		if lost {
			err, index = metadata.ErrTimeout, 0
		}
		if n.up && n.incarnation == life {
			n.later = append(n.later, simLater{index, func() { done(err) }})
		}
	})
}
