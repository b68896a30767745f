package replication

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/millrace/millrace/metadata"
)

// The simulator runs the cores of one partition's replicas against an ideal controller, a network that delays, drops
// and repeats, and disks that lose what was not synced. One generator decides everything, so a seed replays exactly. It
// knows the promises, not the protocol: see check.

// simRecord is one record: value is unique, so two logs agree exactly if their records do.
type simRecord struct {
	epoch int32
	value uint64
}

// simLog is a log in memory: records[:start] are deleted, records[durable:] are lost by a crash, or not.
type simLog struct {
	records []simRecord
	start   int64
	durable int64
}

func (l *simLog) end() int64 { return int64(len(l.records)) }

func (l *simLog) lastEpoch() int32 {
	if l.end() == 0 {
		return -1
	}
	return l.records[l.end()-1].epoch
}

// epochEnd is what log.EpochEnd answers: it forgets the epochs that ended at or below the log start, but never the last
// one.
func (l *simLog) epochEnd(epoch int32) (int32, int64) {
	for i := l.end() - 1; i >= 0 && (i >= l.start || i == l.end()-1); i-- {
		if e := l.records[i].epoch; e >= 0 && e <= epoch {
			return e, i + 1
		}
	}
	return -1, -1
}

// simNode is one broker.
type simNode struct {
	id   metadata.BrokerID
	up   bool
	core *Core
	log  simLog
	// brokerEpoch of its present registration, -1 while down. registered is the index of the metadata that shows it.
	brokerEpoch int64
	registered  int
	applied     int // index of the metadata applied last, -1
	min         int // min.insync.replicas as it knows it
	flushes     []Flushed
	checkpoint  int64 // high watermark checkpoint on disk
	clean       bool  // how it stopped
	wiped       bool  // its disk is new since its last registration
	fresh       int   // index of the metadata that shows its newest disk
	waiters     map[Waiter]simProduce
	hwSeen      int64
	shownAt     int64     // the high watermark at which readers of committed records looked last
	kept        []waiting // of the mutant "old waiter"
	incarnation int       // numbers its registrations, disk its disks, for the FSM
	disk        int
	reported    int64 // offset of its last fetch
}

type simProduce struct {
	value uint64
	acks  int16
	epoch int32
}

// simRecordState is the committed record of the partition, one entry of the metadata log.
type simState struct {
	leader         metadata.BrokerID
	leaderEpoch    int32
	partitionEpoch int32
	isr, elr       []metadata.BrokerID
	uncleanEpoch   int32
	peers          []Peer
	min            int // min.insync.replicas of the topic
}

type simMessage struct {
	to, from metadata.BrokerID
	life     int64 // broker epoch of the receiver the message is for; a TCP connection does not outlive the process
	request  *FetchRequest
	seq      uint64
	response *FetchResponse
	records  []simRecord
	propose  *Action
	members  []metadata.ISRMember
	result   *ISRResult
}

// simMutant breaks the protocol on purpose, from outside the core. Nil hooks do nothing.
type simMutant struct {
	name string
	// seeds is how many seeds it may take to be noticed.
	seeds int
	// flushAck is the only mode in which it breaks a promise; nil: both.
	flushAck *bool

	noEpochBump bool // R14
	replay      bool // M16
	noCAS       bool // R11
	keepUnclean bool // I12
	// earlyMarkers: a marker counts though it is not below the high watermark (P13).
	earlyMarkers bool
	before       func(s *sim, n *simNode, ev Event)
	after        func(s *sim, n *simNode, ev Event, acts []Action) []Action
}

type simOptions struct {
	seed   uint64
	flush  *bool // millrace.flush.ack; nil: on with even seeds
	steps  int
	mutant *simMutant
	trace  func(format string, args ...any)
}

type sim struct {
	rng        *rand.Rand
	opt        simOptions
	mutant     *simMutant
	flushAck   bool
	lag        Instant // Policy.LagMax and FetchTimeout
	timeout    Instant
	min        int
	nodes      []*simNode
	now        Instant
	net        []simMessage
	meta       []simState
	nextID     uint64 // values and waiters
	nextLife   int64  // broker epochs
	last       metadata.BrokerID
	delivering *simMessage       // the message being handled
	fsm        *metadata.Replica // the controller; nil in scenarios, whose controller does what the script says
	skew       int32             // leader epochs that the mutant "same epoch after restart" has swallowed
	quiet      bool              // the end phase: nothing breaks any more

	// The oracle.
	committed  []simRecord          // what some leader's high watermark has passed
	registry   map[simKey]simRecord // what was ever appended at (offset, epoch) by a leader; with the epoch before it
	leaders    map[int32]simLeader  // I9
	maxHW      map[int32]int64      // per leader epoch
	available  map[int32]int64      // the first high watermark told as "latest" in an epoch
	definite   map[uint64]bool      // values that were refused for good
	shown      map[int64]simKind    // what readers of committed records have concluded, by offset
	acked      int
	weights    [simOps]int
	totalCount int
	err        error
	// onAction is told each action before it is carried out.
	onAction func(n *simNode, ev Event, a Action)
}

type simKey struct {
	offset int64
	epoch  int32
}

type simLeader struct {
	id   metadata.BrokerID
	life int64
}

// Operations the generator picks from.
const (
	opProduce = iota
	opDeliver
	opDrop
	opRepeat
	opFlush
	opFlushed
	opMetadata
	opTick
	opCrash
	opStop
	opStart
	opFence
	opUnfence
	opElect
	opWipe
	opTrim
	opCheckpoint
	opMinInsync
	simOps
)

// flushed modes of a seed: even seeds run with flush.ack, odd ones without.
func newSim(opt simOptions) *sim {
	s := &sim{
		rng: rand.New(rand.NewPCG(opt.seed, 0x6d696c6c)), opt: opt, mutant: opt.mutant, flushAck: opt.seed%2 == 0, last: metadata.NoBroker, lag: 1000, timeout: 80,
		registry: map[simKey]simRecord{}, leaders: map[int32]simLeader{}, maxHW: map[int32]int64{}, available: map[int32]int64{}, definite: map[uint64]bool{}, shown: map[int64]simKind{},
	}
	if s.mutant == nil {
		s.mutant = &simMutant{}
	}
	if opt.flush != nil {
		s.flushAck = *opt.flush
	}
	replicas := 3
	if s.rng.IntN(8) == 0 {
		replicas = 1 + s.rng.IntN(2)
	}
	s.min = 1 + s.rng.IntN(replicas)
	s.swarm()
	s.populate(replicas)
	return s
}

// swarm draws the weights of the operations.
func (s *sim) swarm() {
	// Swarm: each seed has its own taste.
	for op := range s.weights {
		s.weights[op] = []int{0, 1, 1, 2, 4, 8}[s.rng.IntN(6)]
	}
	for _, op := range []int{opProduce, opMetadata, opStart} {
		s.weights[op] = 4 + s.rng.IntN(20)
	}
	s.weights[opDeliver] = 10 + s.rng.IntN(60)
	s.weights[opFlush], s.weights[opFlushed] = 4+s.rng.IntN(20), 4+s.rng.IntN(20)
	s.weights[opTick] = 1 + s.rng.IntN(6)
	for _, op := range []int{opCrash, opStop, opFence, opElect, opMinInsync} {
		s.weights[op] = (s.weights[op] + 1) / 3
	}
	s.weights[opWipe] /= 8
	for _, w := range s.weights {
		s.totalCount += w
	}
}

// populate makes the brokers, all stopped, and a partition on them that has no leader yet.
func (s *sim) populate(replicas int) {
	st := simState{leader: metadata.NoBroker, uncleanEpoch: -1, min: s.min}
	for i := range replicas {
		id := metadata.BrokerID(i)
		st.peers = append(st.peers, Peer{ID: id, BrokerEpoch: -1, Fenced: true})
		st.isr = append(st.isr, id)
		s.nodes = append(s.nodes, &simNode{id: id, brokerEpoch: -1, clean: true, applied: -1, waiters: map[Waiter]simProduce{}})
	}
	s.meta = append(s.meta, st)
}

// policy is the configuration that node n goes by.
func (s *sim) policy(n *simNode) Policy {
	return Policy{MinInsync: n.min, FlushAck: s.flushAck, LagMax: s.lag, FetchTimeout: s.timeout, ProposalTimeout: s.timeout, RetryMin: s.timeout / 8, RetryMax: s.timeout}
}

func (s *sim) state() *simState { return &s.meta[len(s.meta)-1] }

func (s *sim) failf(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

func (s *sim) tracef(format string, args ...any) {
	if s.opt.trace != nil {
		s.opt.trace(format, args...)
	}
}

// run plays a seed to its end and returns the first broken promise.
func (s *sim) run() error {
	s.form()
	for _, n := range s.nodes {
		s.start(n)
	}
	for i := 0; i < s.opt.steps && s.err == nil; i++ {
		s.now += Instant(s.rng.IntN(20))
		s.operation()
	}
	if s.err == nil {
		s.heal()
	}
	return s.err
}

func (s *sim) operation() {
	pick := s.rng.IntN(s.totalCount)
	op := 0
	for pick >= s.weights[op] {
		pick -= s.weights[op]
		op++
	}
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	switch op {
	case opProduce:
		if l := s.state().leader; l >= 0 && s.rng.IntN(4) > 0 {
			n = s.nodes[l]
		}
		s.produce(n)
	case opDeliver:
		s.deliver(false)
	case opDrop:
		if len(s.net) > 0 {
			s.take(s.rng.IntN(len(s.net)))
		}
	case opRepeat:
		s.deliver(true)
	case opFlush:
		s.flush(n)
	case opFlushed:
		s.flushed(n)
	case opMetadata:
		s.metadata(n)
	case opTick:
		s.step(n, &Tick{})
	case opCrash:
		s.stop(n, false)
	case opStop:
		s.stop(n, true)
	case opStart:
		s.start(n)
	case opFence:
		s.fence(n, true)
	case opUnfence:
		s.fence(n, false)
	case opElect:
		s.elect()
	case opWipe:
		s.wipe(n)
	case opTrim:
		s.trim(n)
	case opMinInsync:
		s.alterMinInsync()
	case opCheckpoint:
		if n.up {
			n.checkpoint = min(n.core.HighWatermark(), n.log.durable)
		}
	}
}

// heal ends all faults and asserts that everything comes back (I20).
func (s *sim) heal() {
	s.quiet = true
	for round := 0; round < 400 && s.err == nil; round++ {
		s.now += 10
		s.orderElection()
		for _, n := range s.nodes {
			s.start(n)
			s.fence(n, false)
			for n.applied < len(s.meta)-1 && s.err == nil {
				s.metadata(n)
			}
			s.step(n, &Tick{})
			s.flush(n)
			s.flushed(n)
		}
		for i := len(s.net); i > 0 && s.err == nil; i-- {
			s.deliver(false)
		}
		if s.healed() {
			return
		}
	}
	if s.err == nil && s.mutant.name == "" {
		st := s.state()
		s.failf("I20: not healed: leader %d epoch %d isr %v of %d replicas\n%s", st.leader, st.leaderEpoch, st.isr, len(s.nodes), s.dump())
	}
}

func (s *sim) healed() bool {
	st := s.state()
	if st.leader < 0 || len(st.isr) != len(s.nodes) {
		return false
	}
	l := s.nodes[st.leader]
	if l.core.Role() != RoleLeader || l.core.HighWatermark() != l.log.end() || l.core.Waiting() != 0 {
		return false
	}
	for _, n := range s.nodes {
		if n != l && (n.core.Role() != RoleFollower || n.log.end() != l.log.end()) {
			return false
		}
		for i := max(n.log.start, l.log.start); i < l.log.end(); i++ {
			if n.log.records[i] != l.log.records[i] {
				s.failf("I5: after healing offset %d differs between brokers %d and %d\n%s", i, l.id, n.id, s.dump())
				return true
			}
		}
	}
	return true
}

func (s *sim) dump() string {
	var b strings.Builder
	for _, n := range s.nodes {
		fmt.Fprintf(&b, "broker %d up=%v", n.id, n.up)
		if n.up {
			fmt.Fprintf(&b, " role=%v epoch=%d isr=%v hw=%d waiting=%d leading=%+v following=%+v", n.core.Role(), n.core.LeaderEpoch(), n.core.ISR(), n.core.HighWatermark(), n.core.Waiting(), n.core.leading, n.core.following)
		}
		fmt.Fprintf(&b, " start=%d durable=%d end=%d\n", n.log.start, n.log.durable, n.log.end())
	}
	return b.String()
}
