package replication

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	flushes     []Flushed
	checkpoint  int64 // high watermark checkpoint on disk
	clean       bool  // how it stopped
	wiped       bool  // its disk is new since its last registration
	fresh       int   // index of the metadata that shows its newest disk
	waiters     map[Waiter]simProduce
	hwSeen      int64
	kept        []waiting // of the mutant "old waiter"
	reported    int64     // offset of its last fetch
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
}

type simMessage struct {
	to, from metadata.BrokerID
	life     int64 // broker epoch of the receiver the message is for; a TCP connection does not outlive the process
	request  *FetchRequest
	seq      uint64
	response *FetchResponse
	records  []simRecord
	propose  *Action
	result   *ISRResult
}

// simMutant breaks the protocol on purpose, from outside the core. Nil hooks do nothing.
type simMutant struct {
	name string
	// seeds is how many seeds it may take to be noticed.
	seeds int
	// flushAck restricts it to the mode in which it must be noticed; nil: either.
	flushAck *bool

	noEpochBump   bool // R14
	replay        bool // M16
	noCAS         bool // R11
	noBrokerCheck bool // R12 at the controller
	keepUnclean   bool // I12
	before        func(s *sim, n *simNode, ev Event)
	after         func(s *sim, n *simNode, ev Event, acts []Action) []Action
}

type simOptions struct {
	seed   uint64
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
	delivering *simMessage // the message being handled
	quiet      bool        // the end phase: nothing breaks any more

	// The oracle.
	committed  []simRecord          // what some leader's high watermark has passed
	registry   map[simKey]simRecord // what was ever appended at (offset, epoch) by a leader; with the epoch before it
	leaders    map[int32]simLeader  // I9
	maxHW      map[int32]int64      // per leader epoch
	available  map[int32]int64      // the first high watermark told as "latest" in an epoch
	definite   map[uint64]bool      // values that were refused for good
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
	simOps
)

// flushed modes of a seed: even seeds run with flush.ack, odd ones without.
func newSim(opt simOptions) *sim {
	s := &sim{
		rng: rand.New(rand.NewPCG(opt.seed, 0x6d696c6c)), opt: opt, mutant: opt.mutant, flushAck: opt.seed%2 == 0, last: metadata.NoBroker, lag: 1000, timeout: 80,
		registry: map[simKey]simRecord{}, leaders: map[int32]simLeader{}, maxHW: map[int32]int64{}, available: map[int32]int64{}, definite: map[uint64]bool{},
	}
	if s.mutant == nil {
		s.mutant = &simMutant{}
	}
	if s.mutant.flushAck != nil {
		s.flushAck = *s.mutant.flushAck
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
	for _, op := range []int{opCrash, opStop, opFence, opElect} {
		s.weights[op] = (s.weights[op] + 1) / 3
	}
	s.weights[opWipe] /= 8
	for _, w := range s.weights {
		s.totalCount += w
	}
}

// populate makes the brokers, all stopped, and a partition on them that has no leader yet.
func (s *sim) populate(replicas int) {
	st := simState{leader: metadata.NoBroker, uncleanEpoch: -1}
	for i := range replicas {
		id := metadata.BrokerID(i)
		st.peers = append(st.peers, Peer{ID: id, BrokerEpoch: -1, Fenced: true})
		st.isr = append(st.isr, id)
		s.nodes = append(s.nodes, &simNode{id: id, brokerEpoch: -1, clean: true, applied: -1, waiters: map[Waiter]simProduce{}})
	}
	s.meta = append(s.meta, st)
}

func (s *sim) policy() Policy {
	return Policy{MinInsync: s.min, FlushAck: s.flushAck, LagMax: s.lag, FetchTimeout: s.timeout}
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

// step feeds an event to a running node and carries out the actions.
func (s *sim) step(n *simNode, ev Event) {
	if !n.up || s.err != nil {
		return
	}
	if s.mutant.before != nil {
		s.mutant.before(s, n, ev)
	}
	acts := slices.Clone(n.core.Step(s.now, ev))
	if s.opt.trace != nil {
		s.tracef("%5d broker %d %T %+v", s.now, n.id, ev, ev)
		for _, a := range acts {
			s.tracef("        %v w=%d off=%d epoch=%d/%d div=%d,%d seq=%d isr=%v err=%v", a.Kind, a.Waiter, a.Offset, a.LeaderEpoch, a.PartitionEpoch, a.DivergingEpoch, a.DivergingEnd, a.Seq, a.ISR, a.Err)
		}
	}
	if s.mutant.after != nil {
		acts = s.mutant.after(s, n, ev, acts)
	}
	for _, a := range acts {
		if s.onAction != nil {
			s.onAction(n, ev, a)
		}
		s.act(n, ev, a)
	}
	s.observe(n)
}

func (s *sim) act(n *simNode, ev Event, a Action) {
	if s.err != nil {
		return
	}
	switch a.Kind {
	case ActionAppend:
		p := n.waiters[a.Waiter]
		p.epoch = a.LeaderEpoch
		n.waiters[a.Waiter] = p
		base := n.log.end()
		rec := simRecord{a.LeaderEpoch, p.value}
		key := simKey{base, a.LeaderEpoch}
		if old, ok := s.registry[key]; ok && old != rec {
			s.failf("I5: broker %d appends another record at offset %d of epoch %d", n.id, base, a.LeaderEpoch)
			return
		}
		s.registry[key] = rec
		n.log.records = append(n.log.records, rec)
		s.step(n, &Appended{Waiter: a.Waiter, Acks: p.acks, BaseOffset: base, NextOffset: n.log.end(), Deadline: ev.(*Produce).Deadline})
	case ActionReplicate:
		r := ev.(*FetchResponse)
		msg := s.delivering
		if r.BaseOffset != n.log.end() {
			s.step(n, &Appended{Err: errors.New("unexpected offset")})
			return
		}
		n.log.records = append(n.log.records, msg.records...)
		s.step(n, &Appended{BaseOffset: r.BaseOffset, NextOffset: n.log.end(), LastEpoch: n.log.lastEpoch()})
	case ActionFlush:
		s.flush(n)
	case ActionSetHW:
		if n.core.Role() == RoleFollower {
			n.checkpoint = min(n.checkpoint, a.Offset)
		}
		if n.core.Role() == RoleLeader {
			s.commit(n)
		}
	case ActionTruncate, ActionReset:
		s.cut(n, a)
	case ActionTrim:
		// Durable before it counts (W15).
		n.log.durable = max(n.log.durable, a.Offset)
		n.log.start = max(n.log.start, a.Offset)
		s.step(n, &StartMoved{StartOffset: n.log.start})
	case ActionSendFetch:
		s.sendFetch(n, a)
	case ActionAnswerFetch:
		s.answerFetch(n, ev.(*FetchRequest), a)
	case ActionPropose:
		s.net = append(s.net, simMessage{to: metadata.NoBroker, from: n.id, life: n.brokerEpoch, propose: &a})
	case ActionComplete:
		s.completed(n, a)
	case ActionHalt:
		s.failf("R25: broker %d halted at %d: %v\n%s", n.id, a.Offset, a.Err, s.dump())
	}
}

func (s *sim) cut(n *simNode, a Action) {
	if a.Kind == ActionReset {
		n.log = simLog{start: a.Offset, durable: a.Offset, records: make([]simRecord, a.Offset)}
		for i := range n.log.records {
			n.log.records[i].epoch = -1
		}
	} else {
		n.log.records = n.log.records[:a.Offset]
		n.log.durable = a.Offset
	}
	s.checkElectable(n, "was truncated")
	s.step(n, &Truncated{StartOffset: n.log.start, EndOffset: n.log.end(), LastEpoch: n.log.lastEpoch()})
}

func (s *sim) produce(n *simNode) {
	if !n.up {
		return
	}
	s.nextID++
	p := simProduce{value: s.nextID, acks: []int16{-1, -1, -1, 1}[s.rng.IntN(4)]}
	w := Waiter(s.nextID)
	n.waiters[w] = p
	epoch := int32(-1)
	if s.rng.IntN(3) == 0 {
		epoch = s.meta[s.rng.IntN(len(s.meta))].leaderEpoch
	}
	deadline := Never
	if s.rng.IntN(4) == 0 {
		deadline = s.now + Instant(s.rng.IntN(300))
	}
	s.step(n, &Produce{Waiter: w, Acks: p.acks, LeaderEpoch: epoch, Deadline: deadline})
}

// completed judges an answer to a produce request.
func (s *sim) completed(n *simNode, a Action) {
	p, ok := n.waiters[a.Waiter]
	if !ok {
		if a.Waiter != 0 && a.Waiter < trimWaiters {
			s.failf("broker %d answers request %d twice, or never had it", n.id, a.Waiter)
		}
		return
	}
	delete(n.waiters, a.Waiter)
	switch {
	case a.Err == nil && p.acks == -1:
		s.acked++
		if s.givenUp(n) {
			return
		}
		if n.core.LeaderEpoch() != p.epoch {
			s.failf("R23: broker %d acknowledges in epoch %d what it appended in epoch %d", n.id, n.core.LeaderEpoch(), p.epoch)
		}
		if a.Offset >= int64(len(s.committed)) || s.committed[a.Offset] != (simRecord{p.epoch, p.value}) {
			s.failf("I1: broker %d acknowledges value %d at offset %d, which is not committed there\n%s", n.id, p.value, a.Offset, s.dump())
			return
		}
		holders := 0
		for _, r := range s.nodes {
			// A disk that is gone held what its broker had reported, and the leader may not know yet: that is what the
			// other min.insync.replicas - 1 are for.
			if r.wiped || r.fresh > n.applied || a.Offset < s.stable(r) && (a.Offset < r.log.start || r.log.records[a.Offset] == s.committed[a.Offset]) {
				holders++
			}
		}
		if holders < s.min && s.flushAck {
			s.failf("I2: broker %d acknowledges offset %d, stable on %d replicas, min.insync.replicas %d\n%s", n.id, a.Offset, holders, s.min, s.dump())
		}
	case a.Err == nil && p.acks == 1:
		if s.flushAck && a.Offset >= n.log.durable {
			s.failf("I2: broker %d acknowledges offset %d with acks=1, durable end %d", n.id, a.Offset, n.log.durable)
		}
	case errors.Is(a.Err, ErrNotLeader), errors.Is(a.Err, ErrNotEnoughReplicas), errors.Is(a.Err, ErrFencedLeaderEpoch), errors.Is(a.Err, ErrUnknownLeaderEpoch):
		if p.epoch != 0 || p.value != 0 && s.appendedValue(n, p.value) {
			s.failf("I17: broker %d refuses value %d for good (%v), but has appended it", n.id, p.value, a.Err)
		}
	}
}

func (s *sim) appendedValue(n *simNode, value uint64) bool {
	return slices.ContainsFunc(n.log.records, func(r simRecord) bool { return r.value == value })
}

// stable is the offset below which a node's log survives what may happen to it now.
func (s *sim) stable(n *simNode) int64 {
	if s.flushAck || !n.up {
		return n.log.durable
	}
	return n.log.end()
}

func (s *sim) flush(n *simNode) {
	if n.up && n.log.durable < n.log.end() {
		n.flushes = append(n.flushes, Flushed{LogGeneration: n.core.Generation(), DurableEnd: n.log.end()})
	}
}

// flushed completes a flush: the device has it now. A flush of a log that was cut meanwhile reports all the same, late
// (W7).
func (s *sim) flushed(n *simNode) {
	if !n.up || len(n.flushes) == 0 {
		return
	}
	if s.quiet { // the device has caught up
		n.flushes = n.flushes[len(n.flushes)-1:]
	}
	i := s.rng.IntN(len(n.flushes))
	f := n.flushes[i]
	n.flushes = slices.Delete(n.flushes, i, i+1)
	if f.LogGeneration == n.core.Generation() {
		n.log.durable = max(n.log.durable, f.DurableEnd)
	}
	s.step(n, &f)
}

func (s *sim) trim(n *simNode) {
	if n.up && n.core.Role() == RoleLeader && n.core.HighWatermark() > n.log.start {
		s.nextID++
		to := n.log.start + s.rng.Int64N(n.core.HighWatermark()-n.log.start+1)
		s.step(n, &DeleteRecords{Waiter: trimWaiters + Waiter(s.nextID), LeaderEpoch: -1, Offset: to, Deadline: s.now + 500})
	}
}

// trimWaiters separates the waiters of DeleteRecords from those of Produce.
const trimWaiters = Waiter(1 << 40)

// deliver delivers one message, or a copy of it.
func (s *sim) deliver(keep bool) {
	if len(s.net) == 0 {
		return
	}
	i := s.rng.IntN(len(s.net))
	var m simMessage
	if keep {
		m = s.net[i]
	} else {
		m = s.take(i)
	}
	s.handle(m)
}

// handle lets a message arrive.
func (s *sim) handle(m simMessage) {
	if m.propose != nil {
		s.propose(m)
		return
	}
	n := s.nodes[m.to]
	if !n.up || (m.life != n.brokerEpoch && m.request == nil) {
		return
	}
	switch {
	case m.request != nil:
		ev := *m.request
		ev.Waiter = Waiter(m.seq)
		ev.FoundEpoch, ev.FoundEnd = -1, -1
		if ev.LastEpoch >= 0 {
			ev.FoundEpoch, ev.FoundEnd = n.log.epochEnd(ev.LastEpoch)
		}
		s.delivering = &m
		s.step(n, &ev)
	case m.response != nil:
		ev := *m.response
		if ev.DivergingEpoch >= 0 {
			ev.LocalEpoch, ev.LocalEnd = n.log.epochEnd(ev.DivergingEpoch)
		}
		s.delivering = &m
		s.step(n, &ev)
	case m.result != nil:
		s.step(n, m.result)
	}
	s.delivering = nil
}

func (s *sim) take(i int) simMessage {
	m := s.net[i]
	s.net[i] = s.net[len(s.net)-1]
	s.net = s.net[:len(s.net)-1]
	return m
}

func (s *sim) sendFetch(n *simNode, a Action) {
	n.reported = a.Offset
	s.net = append(s.net, simMessage{to: a.Broker, from: n.id, life: n.brokerEpoch, seq: a.Seq, request: &FetchRequest{
		Replica: n.id, BrokerEpoch: n.brokerEpoch, LeaderEpoch: a.LeaderEpoch, Offset: a.Offset, LastEpoch: a.LastEpoch, StartOffset: n.log.start,
	}})
}

func (s *sim) answerFetch(n *simNode, q *FetchRequest, a Action) {
	r := &FetchResponse{
		Seq: uint64(q.Waiter), LeaderEpoch: q.LeaderEpoch, Offset: q.Offset, LastEpoch: q.LastEpoch, BaseOffset: q.Offset, NextOffset: q.Offset,
		HighWatermark: n.core.HighWatermark(), LogStartOffset: n.log.start, LogEndOffset: n.log.end(), DivergingEpoch: a.DivergingEpoch, DivergingEnd: a.DivergingEnd,
	}
	m := simMessage{to: q.Replica, from: n.id, life: q.BrokerEpoch, response: r}
	switch {
	case errors.Is(a.Err, errOutOfRange):
		r.OutOfRange = true
	case a.Err != nil:
		r.Failed = true
	case a.DivergingEpoch < 0:
		k := min(n.log.end(), q.Offset+1+s.rng.Int64N(4))
		m.records = slices.Clone(n.log.records[q.Offset:k])
		r.NextOffset = k
	}
	s.net = append(s.net, m)
}

// metadata lets a node apply the committed metadata up to some later index. Before its own registration is there it
// does nothing (M16).
func (s *sim) metadata(n *simNode) {
	if !n.up || n.applied >= len(s.meta)-1 {
		return
	}
	n.applied += 1 + s.rng.IntN(len(s.meta)-1-n.applied)
	if n.applied < n.registered && !s.mutant.replay {
		return
	}
	st := &s.meta[n.applied]
	s.step(n, &MetadataDelta{Leader: st.leader, LeaderEpoch: st.leaderEpoch, PartitionEpoch: st.partitionEpoch, Replicas: st.peers, ISR: st.isr, UncleanEpoch: st.uncleanEpoch})
}

// stop ends a process: cleanly with everything synced, or by a crash that keeps some prefix of what was not.
func (s *sim) stop(n *simNode, clean bool) {
	if !n.up {
		return
	}
	if clean {
		n.log.durable = n.log.end()
		n.checkpoint = n.core.HighWatermark()
	} else {
		n.log.records = n.log.records[:n.log.durable+s.rng.Int64N(n.log.end()-n.log.durable+1)]
		n.log.durable = n.log.end() // recovery syncs what it found before it reports it (L4)
	}
	n.up, n.clean, n.brokerEpoch = false, clean, -1
	n.flushes = n.flushes[:0]
	clear(n.waiters)
	s.tracef("broker %d stops clean=%v end=%d", n.id, clean, n.log.end())
	if s.flushAck || clean {
		s.checkElectable(n, "restarted")
	}
}

// wipe gives a stopped node an empty disk (L11), unless it is the last that could be elected.
func (s *sim) wipe(n *simNode) {
	if n.up || n.wiped {
		return
	}
	st := s.state()
	for _, id := range slices.Concat(st.isr, st.elr) {
		if other := s.nodes[id]; other != n && !other.wiped {
			n.log, n.checkpoint, n.wiped, n.clean = simLog{}, 0, true, false
			return
		}
	}
}

// start runs a stopped node's process and registers it.
func (s *sim) start(n *simNode) {
	if n.up {
		return
	}
	n.up = true
	n.core = NewCore(n.id)
	n.applied, n.hwSeen = -1, 0
	s.nextLife++
	n.brokerEpoch = s.nextLife
	if s.mutant.replay {
		n.applied = -1
	}
	s.register(n)
	if n.wiped {
		n.fresh = n.registered
	}
	s.step(n, &Restart{Clean: n.clean, StartOffset: n.log.start, DurableEnd: n.log.durable, EndOffset: n.log.end(), LastEpoch: n.log.lastEpoch(), HighWatermark: n.checkpoint, Policy: s.policy()})
	n.wiped = false
}
