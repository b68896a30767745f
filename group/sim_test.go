package group

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// The simulator runs the cores of one group at three brokers, over the real FSM behind an ideal log, with members of all
// kinds, a network that loses and delays, brokers that crash, are fenced, leave and come back, and metadata that arrives
// late. One generator decides everything, so a seed replays exactly. It knows the promises, not the protocol: see
// sim_check_test.go.

const (
	simGroup      = "g"
	simPartitions = 4
	simSession    = Instant(10 * time.Second)
	simRebalance  = Instant(20 * time.Second)
)

var simTopicID = metadata.TopicID{1}

// simNode is one broker.
type simNode struct {
	id          metadata.BrokerID
	up          bool
	incarnation int
	epoch       int64 // broker epoch
	applied     int   // index into sim.images
	core        *Core
	loadedIn    int32 // coordinator epoch, -1: not loaded
	waiters     map[*simCall]bool
	// results are outcomes of proposals that this broker learns once it has applied their entries.
	results []simResult
}

type simResult struct {
	index    int
	seq      uint64
	revision uint64
	err      error
	commit   *simCall
	entries  []error
}

// simCall is a request of a client that a broker works on. It is the Waiter of its event.
type simCall struct {
	client  *simClient
	seq     int // of the client's request; an answer to an older one is dropped
	node    *simNode
	done    bool
	commit  metadata.OffsetCommit
	applied int // the Image that the commit is in
	sync    *SyncRequest
	since   Instant
}

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
	rng      *rand.Rand
	opt      simOptions
	mutant   *simMutant
	fsm      *metadata.Replica
	images   []*metadata.Image
	nodes    []*simNode
	clients  []*simClient
	net      []simMessage
	late     []simMessage // not on its way yet
	now      Instant
	settings Settings
	ids      int
	weights  [simOps]int
	total    int
	quiet    bool
	deaf     bool // the request at hand says nothing of whether its sender lives
	err      error
	oracle   oracle
	// count of what happened, for the test to see that something did.
	generations, commits, moves, seeks int
}

const (
	opClient = iota
	opDeliver
	opDrop
	opMetadata
	opTick
	opJump
	opPause
	opCrash
	opStart
	opFence
	opUnfence
	opLeave
	opDrain
	opOffline
	simOps
)

func newSim(opt simOptions) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(opt.seed, 0x67726f75)), opt: opt, mutant: opt.mutant, now: Instant(time.Hour)}
	if s.mutant == nil {
		s.mutant = &simMutant{}
	}
	s.settings = DefaultSettings()
	s.settings.MinSessionTimeout = 0
	s.settings.InitialRebalanceDelay = []time.Duration{0, 0, 100 * time.Millisecond, 3 * time.Second}[s.rng.IntN(4)]
	s.settings.ResumeAfterFailure = s.rng.IntN(3) == 0
	s.oracle.init()
	// Swarm: each seed has its own taste.
	for op := range s.weights {
		s.weights[op] = []int{0, 0, 1, 1, 2, 4}[s.rng.IntN(6)]
	}
	s.weights[opClient] = 60 + s.rng.IntN(60)
	s.weights[opDeliver] = 100 + s.rng.IntN(100)
	s.weights[opMetadata] = 20 + s.rng.IntN(60)
	s.weights[opTick] = 10 + s.rng.IntN(20)
	s.weights[opStart], s.weights[opUnfence] = 1+s.rng.IntN(4), 1+s.rng.IntN(4)
	for _, w := range s.weights {
		s.total += w
	}
	s.fsm = metadata.NewReplica()
	for i := range 3 {
		n := &simNode{id: metadata.BrokerID(i)}
		s.nodes = append(s.nodes, n)
		s.start(n)
	}
	assignment := make([][]metadata.BrokerID, simPartitions)
	for i := range assignment {
		assignment[i] = []metadata.BrokerID{0}
	}
	if err := s.fsm.CreateTopic("t", simTopicID, nil, assignment); err != nil {
		s.failf("create the topic: %v", err)
	}
	s.committed(nil)
	for range 1 + s.rng.IntN(5) {
		s.clients = append(s.clients, s.newClient())
	}
	return s
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
		s.now += Instant(s.rng.IntN(40)) * Instant(time.Millisecond)
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
	switch op {
	case opClient:
		s.clients[s.rng.IntN(len(s.clients))].act(s)
	case opDeliver:
		s.deliver()
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
	case opJump:
		s.now += Instant(s.rng.IntN(4000)) * Instant(time.Millisecond)
		if len(s.late) > 0 && s.rng.IntN(2) == 0 {
			s.net, s.late = append(s.net, s.late[0]), s.late[1:]
		}
	case opPause:
		c := s.clients[s.rng.IntN(len(s.clients))]
		c.pausedUntil = s.now + Instant(s.rng.IntN(25))*Instant(time.Second)
		s.tracef("client %d paused", c.n)
	case opCrash:
		s.crash(n)
	case opStart:
		s.start(n)
	case opFence:
		s.fence(n, true)
	case opUnfence:
		s.fence(n, false)
	case opLeave:
		s.leave(n)
	case opDrain:
		if b := s.fsm.Image().Broker(n.id); n.up {
			s.try(s.fsm.Maintain(n.id, b.Epoch, !b.Draining))
		}
	case opOffline:
		s.offline()
	}
}

// offline is what a consumer without a group, an administrator and the expiry do: offsets from outside the group.
func (s *sim) offline() {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	if !n.up {
		return
	}
	if s.rng.IntN(3) == 0 {
		s.seek(n)
		return
	}
	if ids := slices.Sorted(maps.Keys(s.oracle.putOut)); len(ids) > 0 && s.rng.IntN(3) > 0 {
		s.lateCommit(n, ids[s.rng.IntN(len(ids))])
		return
	}
	if s.rng.IntN(2) == 0 {
		_ = s.fsm.ExpireOffsets(n.id, n.epoch, s.wall()+8*24*3600*1000, 1000)
		s.committed(nil)
		im := s.fsm.Image()
		for p := range s.oracle.acked {
			if _, ok := im.Offset(simGroup, simTopicID, int32(p)); !ok {
				if g := im.Group(simGroup); s.oracle.acked[p].offset > 0 && g != nil && len(g.Members) > 0 {
					s.failf("G11: an offset of a group with members expired")
				}
				s.oracle.acked[p], s.oracle.reset[p] = simAck{}, len(s.images)-1
			}
		}
		return
	}
	commit := metadata.OffsetCommit{Group: simGroup, Generation: -1, Time: s.wall(), Offsets: []metadata.OffsetEntry{{TopicID: simTopicID, Partition: 0, Offset: 1, LeaderEpoch: -1}}}
	_, err := s.fsm.CommitOffsets(n.id, n.epoch, commit)
	if r := s.fsm.Image().Group(simGroup); err == nil && r != nil && len(r.Members) > 0 {
		s.failf("a commit from outside was taken by a group with members")
	}
	if err == nil {
		s.oracle.acked[0], s.oracle.reset[0] = simAck{}, len(s.images)
	}
	s.committed(nil)
}

// seek is an administrator who sets an offset of the group, whoever is in it.
func (s *sim) seek(n *simNode) {
	s.ids++
	to := metadata.OffsetEntry{TopicID: simTopicID, Partition: int32(s.rng.IntN(simPartitions)), Offset: int64(s.ids), LeaderEpoch: -1}
	s.tracef("broker %d is told to seek partition %d to %d", n.id, to.Partition, to.Offset)
	s.step(n, &Seek{GroupSeek: &metadata.GroupSeek{Offsets: []metadata.OffsetEntry{to}}, Force: s.rng.IntN(4) > 0, Waiter: &simSeek{to: to}})
}

// lateCommit is one of a member that a seek has put out, which has just learned of it: under its id, and without a generation. Whoever
// coordinates by then refuses it, for as long as there are such members; if it got through, the seek would be undone.
func (s *sim) lateCommit(n *simNode, id string) {
	im := s.fsm.Image()
	_, is := im.Coordinator(metadata.GroupCoordinator, simGroup)
	_, sees := s.images[n.applied].Coordinator(metadata.GroupCoordinator, simGroup)
	if is != sees || s.now-s.oracle.putOut[id] >= unawareFor-Instant(time.Second) { // the record counts in milliseconds
		return
	}
	if err, ok := s.step(n, &Commit{&CommitRequest{Group: simGroup, Member: id, Generation: -1}}); !ok || err != nil {
		return
	}
	commit := metadata.OffsetCommit{Group: simGroup, Member: id, Generation: -1, Time: s.wall(), Offsets: []metadata.OffsetEntry{{TopicID: simTopicID, Offset: 1, LeaderEpoch: -1}}}
	if _, err := s.fsm.CommitOffsets(n.id, n.epoch, commit); err == nil {
		s.failf("G1: %s, which was put out by a seek, commits over it", id)
	}
}

// simSeek is an order to seek, until it is answered.
type simSeek struct {
	to   metadata.OffsetEntry
	done bool
}

// soughtAnswer is the answer to an order to seek.
func (s *sim) soughtAnswer(w *simSeek, err error) {
	if w.done {
		s.failf("a seek was answered twice")
	}
	w.done = true
	if err != nil {
		return
	}
	s.seeks++
	if at := s.oracle.sought[w.to.Partition]; at.offset < w.to.Offset {
		s.failf("G3: a seek to %d is acknowledged and was not made", w.to.Offset)
	}
}

// change applies a change as it is proposed, and notes what a seek promises.
func (s *sim) change(ch metadata.GroupChange) (uint64, error) {
	before := s.fsm.Image()
	record := before.Group(simGroup)
	if ch.Seek == nil {
		return s.fsm.ChangeGroup(ch)
	}
	seek := *ch.Seek
	seek.Prior = func(prior []metadata.CommittedOffset) {
		o, ok := before.Offset(simGroup, simTopicID, seek.Offsets[0].Partition)
		if len(prior) != 1 || ok != (prior[0].Offset >= 0) || ok && prior[0] != o {
			s.failf("a seek reports %v of before, not %v", prior, o)
		}
	}
	ch.Seek = &seek
	revision, err := s.fsm.ChangeGroup(ch)
	if err != nil {
		return revision, err
	}
	to := seek.Offsets[0]
	s.oracle.reset[to.Partition] = len(s.images)
	s.oracle.sought[to.Partition] = simAck{offset: to.Offset, generation: -1}
	s.oracle.acked[to.Partition] = simAck{offset: to.Offset, generation: -1}
	if record != nil && len(record.Members) > 0 {
		s.oracle.sought[to.Partition].generation, s.oracle.acked[to.Partition].generation = record.Generation, record.Generation
		for _, m := range record.Members {
			s.oracle.left[m.ID] = true
			s.oracle.putOut[m.ID] = s.now
		}
	}
	return revision, nil
}

func (s *sim) wall() int64 { return int64(s.now / Instant(time.Millisecond)) }

func (s *sim) at() Time { return Time{At: s.now, Wall: s.wall()} }

// try takes a change of a broker, which may be refused.
func (s *sim) try(err error) {
	if err == nil {
		s.committed(nil)
	}
}

// committed makes the FSM's state the next Image and checks it against the one before.
func (s *sim) committed(by *simNode) int {
	im := s.fsm.Image()
	if len(s.images) > 0 {
		old := s.images[len(s.images)-1]
		if old.Version() == im.Version() {
			return len(s.images) - 1
		}
		b0, _ := old.Coordinator(metadata.GroupCoordinator, simGroup)
		if b1, e1 := im.Coordinator(metadata.GroupCoordinator, simGroup); b0 != b1 {
			s.moves++
			s.tracef("coordinator %d -> %d, epoch %d", b0, b1, e1)
		}
		s.checkRecord(old.Group(simGroup), im.Group(simGroup), by)
		if im.Group(simGroup) == nil {
			clear(s.oracle.putOut) // the seeks are gone with it
		}
		if im.Group(simGroup) == nil && im.LastGeneration(simGroup) == 0 {
			clear(s.oracle.generations) // the retention time of its numbers is over
			for p := range s.oracle.sought {
				s.oracle.sought[p].generation = -1
			}
		}
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
		ID: n.id, Incarnation: [16]byte{byte(n.id) + 1, byte(n.incarnation), byte(n.incarnation >> 8)},
		Directories: []metadata.DirectoryID{{byte(n.id) + 1, 1}}, Version: "sim",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel, TailsProven: true,
	}, false)
	if err != nil {
		s.failf("register broker %d: %v", n.id, err)
	}
	s.committed(nil)
	n.up, n.core, n.loadedIn, n.results = true, NewCore(simGroup), -1, nil
	n.waiters = map[*simCall]bool{}
	n.applied = s.rng.IntN(len(s.images)) // it replays; M16
	s.tracef("broker %d started, epoch %d", n.id, n.epoch)
}

func (s *sim) crash(n *simNode) {
	if n.up {
		for _, c := range s.clients {
			if c.node == n && c.waiting {
				c.waiting, c.node = false, nil // the connection breaks
				c.seq++
				if c.state == clientJoined {
					c.outside()
				}
			}
		}
		n.up, n.core, n.waiters = false, nil, nil
		s.tracef("broker %d crashed", n.id)
	}
}

func (s *sim) fence(n *simNode, on bool) {
	b := s.fsm.Image().Broker(n.id)
	if b.Fenced != on && (on || n.up && b.Epoch == n.epoch) {
		s.try(s.fsm.Fence(n.id, b.Epoch, on))
		s.tracef("broker %d fenced=%v", n.id, on)
	}
}

// leave is a controlled shutdown, up to its end.
func (s *sim) leave(n *simNode) {
	if n.up {
		s.try(s.fsm.Leave(n.id, n.epoch))
		s.tracef("broker %d leaves", n.id)
	}
}

// metadata lets a broker apply some of what is committed.
func (s *sim) metadata(n *simNode, entries int) {
	if !n.up {
		return
	}
	n.applied = min(n.applied+entries, len(s.images)-1)
	for i := 0; i < len(n.results); {
		r := n.results[i]
		if r.index > n.applied {
			i++
			continue
		}
		n.results = slices.Delete(n.results, i, i+1)
		s.outcome(n, r)
	}
	s.step(n, nil)
	if b := s.images[n.applied].Broker(n.id); b != nil && b.Leaving && b.Epoch == n.epoch && s.rng.IntN(3) == 0 {
		s.crash(n)
	}
}

func (s *sim) tick(n *simNode) {
	if n.up && n.core.Deadline() <= s.now {
		s.step(n, &Tick{})
	}
}

func (s *sim) send(deliver func()) { s.net = append(s.net, simMessage{deliver: deliver}) }

// slow sends what arrives late, if at all.
func (s *sim) slow(deliver func()) { s.late = append(s.late, simMessage{deliver: deliver}) }

// sure sends what the controller's client keeps until it has an answer or has given up.
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

// step is Coordinator.with: the core first goes by the present metadata, then takes the event. It reports false if this
// broker does not coordinate the group.
func (s *sim) step(n *simNode, ev Event) (answer error, ok bool) {
	im := s.images[n.applied]
	b := im.Broker(n.id)
	mine := b != nil && b.Incarnation == [16]byte{byte(n.id) + 1, byte(n.incarnation), byte(n.incarnation >> 8)}
	id, epoch := im.Coordinator(metadata.GroupCoordinator, simGroup)
	if !mine || id != n.id {
		n.loadedIn = -1
		s.core(n, &LetGo{Err: ErrNotCoordinator})
		return ErrNotCoordinator, false
	}
	if epoch != n.loadedIn {
		n.loadedIn = epoch
		s.core(n, &Loaded{Group: im.Group(simGroup), LastGeneration: im.LastGeneration(simGroup), Resume: s.settings.ResumeAfterFailure})
	}
	if ev != nil && n.up {
		answer = s.core(n, ev)
	}
	return answer, true
}

// core gives an event to the core and carries out its actions.
func (s *sim) core(n *simNode, ev Event) (answer error) {
	if s.mutant.before != nil {
		s.mutant.before(s, n, ev)
	}
	acts := slices.Clone(n.core.Step(s.at(), ev))
	if s.mutant.after != nil {
		acts = s.mutant.after(s, n, ev, acts)
	}
	s.checkCore(n)
	for _, a := range acts {
		switch a.Kind {
		case ActionPropose:
			s.propose(n, a)
		case ActionReload:
			n.loadedIn = -1
			s.step(n, nil)
		case ActionJoin:
			s.answered(n, a.Waiter, func(c *simClient) { c.joined(s, a.Join) })
			s.checkJoin(n, a.Waiter.(*simCall), a.Join)
		case ActionSync:
			s.checkSync(n, a.Waiter.(*simCall), a.Sync)
			s.answered(n, a.Waiter, func(c *simClient) { c.synced(s, a.Sync, n) })
		case ActionLeave:
			s.answered(n, a.Waiter, func(c *simClient) {})
		case ActionAnswer:
			if w, ok := a.Waiter.(*simSeek); ok {
				s.soughtAnswer(w, a.Err)
			} else if a.Waiter == nil {
				answer = a.Err
			}
		case ActionRebalance:
			s.tracef("broker %d: rebalance, %s %s", n.id, a.Reason, a.Member)
		}
	}
	return answer
}

// answered sends an answer on its way to the client.
func (s *sim) answered(n *simNode, w Waiter, fn func(*simClient)) {
	call := w.(*simCall)
	if call.done {
		s.failf("a request was answered twice")
	}
	call.done = true
	delete(n.waiters, call)
	s.send(func() {
		if c := call.client; c.seq == call.seq && c.waiting {
			c.waiting = false
			fn(c)
		}
	})
}

// propose sends a proposal to the controller. It or its answer may get lost, which the proposer learns as a timeout.
func (s *sim) propose(n *simNode, a Action) {
	ch := a.Change
	ch.Broker, ch.BrokerEpoch = n.id, n.epoch
	life := n.incarnation
	s.tracef("broker %d proposes %s", n.id, describeChange(&ch))
	lost := s.quiet == false && s.rng.IntN(10) == 0
	s.sure(func() {
		r := simResult{seq: a.Seq, err: metadata.ErrTimeout}
		if !lost || s.rng.IntN(2) == 0 {
			change := ch
			if s.mutant.change != nil {
				s.mutant.change(s, &change)
			}
			r.revision, r.err = s.change(change)
			r.index = s.committed(n)
			s.tracef("change of broker %d: %s: %v", n.id, describeChange(&ch), r.err)
		}
		if lost {
			r.err = metadata.ErrTimeout
			if s.rng.IntN(2) == 0 {
				r.index = 0
			}
		}
		if n.up && n.incarnation == life {
			n.results = append(n.results, r)
		}
	})
}

func describeChange(ch *metadata.GroupChange) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rev %d gen %d state %d leader %s", ch.Revision, ch.Generation, ch.State, ch.Leader)
	for _, m := range ch.Upsert {
		fmt.Fprintf(&b, " +%s", m.ID)
	}
	for _, id := range ch.Remove {
		fmt.Fprintf(&b, " -%s", id)
	}
	return b.String()
}

// outcome tells a broker how its proposal ended.
func (s *sim) outcome(n *simNode, r simResult) {
	if !n.up {
		return
	}
	if call := r.commit; call != nil {
		call.done = true
		delete(n.waiters, call)
		if r.err == nil && r.entries != nil {
			r.err = errors.Join(r.entries...)
		}
		s.send(func() {
			if c := call.client; c.seq == call.seq && c.waiting {
				c.waiting = false
				c.committed(s, call, fromMetadata(r.err))
			}
		})
		return
	}
	g := s.images[n.applied].Group(simGroup)
	if r.err == nil && g != nil && g.Revision != r.revision {
		n.loadedIn = -1
		s.step(n, nil)
		return
	}
	s.step(n, &Changed{Seq: r.seq, Group: g, Err: r.err})
}

// heal ends all faults and asserts that every good member gets its share (I20).
func (s *sim) heal() {
	s.quiet = true
	s.net, s.late = append(s.net, s.late...), nil
	s.tracef("healing")
	calm := 0
	for round := 0; round < 900 && s.err == nil; round++ {
		s.now += Instant(200 * time.Millisecond)
		for _, n := range s.nodes {
			s.start(n)
			if b := s.fsm.Image().Broker(n.id); b.Leaving {
				s.crash(n)
				s.start(n)
			} else if b.Draining {
				s.try(s.fsm.Maintain(n.id, b.Epoch, false))
			}
			s.fence(n, false)
		}
		for range 3 {
			for _, n := range s.nodes {
				s.metadata(n, len(s.images))
				s.tick(n)
			}
			for i := len(s.net); i > 0 && s.err == nil; i-- {
				s.deliver()
			}
			for _, c := range s.clients {
				c.pausedUntil = min(c.pausedUntil, s.now)
				c.act(s)
			}
		}
		if s.healed() {
			if calm++; calm > 30 {
				s.settled()
				return
			}
		} else {
			calm = 0
		}
	}
	if s.err == nil {
		s.failf("I20: no stable generation of all members\n%s", s.dump())
	}
}

// healed reports whether all good members are in one generation and hold all partitions.
func (s *sim) healed() bool {
	g := s.fsm.Image().Group(simGroup)
	owned := 0
	good := 0
	for _, c := range s.clients {
		if c.kind == clientLooper || c.fenced || c.left {
			continue
		}
		good++
		if c.state != clientStable || g == nil || c.generation != g.Generation {
			return false
		}
		owned += len(c.owned)
	}
	return good == 0 || owned == simPartitions
}

// settled asserts that nothing is left over.
func (s *sim) settled() {
	for _, n := range s.nodes {
		for call := range n.waiters {
			if s.now-call.since > 3*simRebalance {
				s.failf("broker %d never answered a request of client %d", n.id, call.client.n)
			}
		}
	}
}

func (s *sim) dump() string {
	var b strings.Builder
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "broker %d up=%v applied=%d/%d", n.id, n.up, n.applied, len(s.images)-1)
		if n.up {
			k := &n.core.classic
			fmt.Fprintf(&b, " loaded=%v state=%s members=%d joining=%d pending=%d change=%v deadline=%.3f", n.core.loaded, k.state, len(k.members), k.joining, len(k.pending), n.core.change != nil, float64(n.core.Deadline()-Instant(time.Hour))/1e9)
			for _, m := range k.members {
				fmt.Fprintf(&b, " %s(join=%v sync=%v synced=%v)", m.id, m.join != nil, m.sync != nil, m.syncBy == 0)
			}
		}
		b.WriteByte('\n')
	}
	for _, c := range s.clients {
		fmt.Fprintf(&b, "client %d kind=%d id=%s instance=%s gen=%d state=%d waiting=%v owned=%v fenced=%v left=%v\n", c.n, c.kind, c.id, c.instance, c.generation, c.state, c.waiting, c.owned, c.fenced, c.left)
	}
	if g := s.fsm.Image().Group(simGroup); g != nil {
		fmt.Fprintf(&b, "record gen=%d state=%d leader=%s members=%d interrupted=%v\n", g.Generation, g.State, g.Leader, len(g.Members), g.Interrupted)
	}
	return b.String()
}
