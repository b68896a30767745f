package group

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// simMember is a client of either protocol in a group that is changed over.
type simMember struct {
	name  string
	owns  map[int32]bool // of topic a, what the application works on
	dead  bool
	epoch int32 // generation, or member epoch
	id    string

	classic, eager bool
	instance       string
	session        time.Duration
	call           any  // waits for its answer: a join, a sync or a heartbeat of a consumer
	joins, syncs   bool // which it is
	rejoin         bool
	target         map[int32]bool // not acted upon yet, nil: nothing to do

	full  bool // of a consumer: the next heartbeat says everything
	said  int
	again bool // it has dropped what it was told, and wants to be told once more
}

// migrationSim is one group whose members come with either protocol, cooperative and eager ones among the classic, and its
// coordinators one after the other.
type migrationSim struct {
	t     *testing.T
	r     *rand.Rand
	b     *consumerBench
	all   []*simMember
	names int
	// eager: classic members give up all they have before they join. static: some members have instance ids.
	eager, static bool
	// count of what happened.
	upgrades, downgrades int
	was                  metadata.GroupType
	trace                []string // the last of what clients did, for who reads of a failure
}

func (s *migrationSim) note(m *simMember, format string, args ...any) {
	state := "classic"
	if s.b.core.consumer != nil {
		state = "consumer"
	}
	s.trace = append(s.trace, fmt.Sprintf("%v %s %s epoch %d owns %v target %v: ", time.Duration(s.b.now.At), state, m.name, m.epoch, sortedKeys(m.owns), sortedKeys(m.target))+fmt.Sprintf(format, args...))
	if len(s.trace) > 60 {
		s.trace = s.trace[1:]
	}
}

func (s *migrationSim) partitions() int32 { return s.b.topics.of["a"].Partitions }

func sortedKeys(m map[int32]bool) []int32 { return slices.Sorted(maps.Keys(m)) }

func setOf(ps []int32) map[int32]bool {
	out := map[int32]bool{}
	for _, p := range ps {
		out[p] = true
	}
	return out
}

func partitionsOf(list []metadata.TopicPartitions) (out []int32) {
	for _, tp := range list {
		out = append(out, tp.Partitions...)
	}
	return out
}

// lost is what a client does that learns that it is no member, or of no present generation.
func (m *simMember) lost(id string) {
	m.id, m.epoch, m.owns, m.target, m.rejoin, m.full, m.said = id, 0, map[int32]bool{}, nil, true, true, -1
}

// send lets a client do its next request.
func (s *migrationSim) send(m *simMember) {
	switch {
	case m.call != nil:
	case !m.classic:
		s.beat(m)
	case m.rejoin:
		s.join(m)
	default:
		s.heartbeat(m)
	}
}

func (s *migrationSim) waiter() any { s.names++; return s.names }

func (s *migrationSim) join(m *simMember) {
	if m.target != nil {
		s.act(m)
	}
	if m.eager {
		m.owns = map[int32]bool{}
	}
	protocol := "cooperative-sticky"
	if m.eager {
		protocol = "range"
	}
	protocols := []Protocol{{Name: protocol, Metadata: subscriptionOf("a", sortedKeys(m.owns)...)}}
	if !m.eager && s.r.IntN(2) == 0 {
		protocols = append(protocols, Protocol{Name: "both", Metadata: subscriptionOf("a")})
	}
	m.call, m.joins, m.rejoin = s.waiter(), true, false
	s.note(m, "joins as %q", m.id)
	s.b.step(&Join{JoinRequest: &JoinRequest{
		Group: "g", Member: m.id, Instance: m.instance, SessionTimeout: m.session, RebalanceTimeout: 20 * time.Second, ProtocolType: "consumer",
		Protocols: protocols, RequireKnownMember: true, CanSkipAssignment: true,
	}, NewID: fmt.Sprint(m.name, "-", s.waiter()), Waiter: m.call, Settings: &s.b.settings, Topics: &s.b.topics})
}

// heartbeat is that of a classic member.
func (s *migrationSim) heartbeat(m *simMember) {
	var err error
	for _, a := range slices.Clone(s.b.core.Step(s.b.now, &Heartbeat{&HeartbeatRequest{Group: "g", Member: m.id, Instance: m.instance, Generation: m.epoch}})) {
		require.Equal(s.t, ActionAnswer, a.Kind)
		err = a.Err
	}
	s.answered(m, err)
}

func (s *migrationSim) answered(m *simMember, err error) {
	if err != nil {
		s.note(m, "is told %v", err)
	}
	switch {
	case err == nil, errors.Is(err, ErrCoordinatorLoading):
	case errors.Is(err, ErrRebalanceInProgress):
		m.rejoin = true
	case errors.Is(err, ErrUnknownMember):
		m.lost("")
	case errors.Is(err, ErrIllegalGeneration):
		m.lost(m.id)
	default:
		require.NoError(s.t, err, m.name)
	}
}

func (s *migrationSim) beat(m *simMember) {
	req := ConsumerHeartbeatRequest{Member: m.id, Instance: m.instance, Epoch: m.epoch, RebalanceTimeout: -1}
	again := false
	if m.full {
		req.RebalanceTimeout, req.HasTopics, req.Topics = 20*time.Second, true, []string{"a"}
	}
	if m.full || m.said != len(m.owns) {
		again = m.target != nil
		m.target = nil // see simulateConsumers; what it was is asked for again
		req.HasOwned, req.Owned = true, normalized([]metadata.TopicPartitions{{TopicID: metadata.TopicID{15: 1}, Partitions: sortedKeys(m.owns)}})
		m.said = len(m.owns)
	}
	m.call, m.joins, m.syncs, m.again = s.b.send(req), false, false, again
}

// poll takes in the answer that a client waits for.
func (s *migrationSim) poll(m *simMember) {
	switch {
	case m.call == nil:
	case m.joins:
		if res, ok := s.b.joined[m.call]; ok {
			m.call, m.joins = nil, false
			s.joined(m, res)
		}
	case m.syncs:
		if res, ok := s.b.synced[m.call]; ok {
			m.call, m.syncs = nil, false
			if res.Err != nil {
				m.rejoin = true
				s.answered(m, res.Err)
				return
			}
			list, err := readAssignment(res.Assignment)
			require.NoError(s.t, err)
			s.note(m, "is assigned %v", list)
			m.target = map[int32]bool{}
			for _, t := range list {
				for _, p := range t.partitions {
					m.target[p] = true
				}
			}
		}
	default:
		if res, ok := s.b.got[m.call]; ok {
			m.call = nil
			s.beaten(m, res)
		}
	}
}

func (s *migrationSim) beaten(m *simMember, res ConsumerHeartbeatResult) {
	s.note(m, "is answered %v, epoch %d, %v", res.Err, res.Epoch, partitionsOf(res.Assignment))
	switch {
	case s.r.IntN(8) == 0 && s.b.now.At < simQuiet:
		m.full = true // lost
		return
	case errors.Is(res.Err, ErrFencedMemberEpoch), errors.Is(res.Err, ErrUnknownMember):
		m.lost(m.id)
		return
	case errors.Is(res.Err, ErrGroupNotFound) && m.epoch > 0: // a classic one by now; it is started again
		m.lost(m.id)
		return
	case errors.Is(res.Err, ErrCoordinatorLoading), errors.Is(res.Err, ErrUnreleasedInstance):
		m.full = true
		return
	}
	require.NoError(s.t, res.Err, m.name)
	m.epoch, m.full = res.Epoch, m.again && !res.HasAssignment
	if res.HasAssignment {
		m.target = setOf(partitionsOf(res.Assignment))
	}
}

func (s *migrationSim) joined(m *simMember, res JoinResult) {
	if errors.Is(res.Err, ErrMemberIDRequired) {
		m.id, m.rejoin = res.Member, true
		return
	}
	if res.Err != nil {
		m.rejoin = true
		s.answered(m, res.Err)
		return
	}
	m.id, m.epoch = res.Member, res.Generation
	s.note(m, "has joined, leader %s", res.Leader)
	var shares []Assignment
	if res.Leader == m.id && !res.SkipAssignment {
		shares = s.assign(res.Members)
	}
	m.call, m.syncs = s.waiter(), true
	s.b.step(&Sync{SyncRequest: &SyncRequest{Group: "g", Member: m.id, Instance: m.instance, Generation: m.epoch, Assignments: shares}, Waiter: m.call, Topics: &s.b.topics})
}

// assign is what the leader does: as cooperative assignors do, it gives nobody what another one still has. Eager members have
// nothing.
func (s *migrationSim) assign(members []JoinedMember) []Assignment {
	n := s.partitions()
	owner := map[int32]int{}
	shares := make([]map[int32]bool, len(members))
	for i, m := range members {
		said, err := readSubscription(m.Metadata)
		require.NoError(s.t, err)
		shares[i] = map[int32]bool{}
		for _, t := range said.owned {
			for _, p := range t.partitions {
				_, twice := owner[p]
				require.False(s.t, twice, "partition %d has two owners", p)
				owner[p] = i
				if len(shares[i]) < (int(n)+len(members)-1)/len(members) {
					shares[i][p] = true
				}
			}
		}
	}
	for p := range n {
		if _, owned := owner[p]; owned {
			continue
		}
		least := 0
		for i := range shares {
			if len(shares[i]) < len(shares[least]) {
				least = i
			}
		}
		shares[least][p] = true
	}
	out := make([]Assignment, len(members))
	for i, m := range members {
		out[i] = shareOf(m.ID, sortedKeys(shares[i])...)
	}
	return out
}

// act has the application give up what it was told to, and take up the rest.
func (s *migrationSim) act(m *simMember) {
	if m.target == nil {
		return
	}
	for p := range m.owns {
		if !m.target[p] {
			delete(m.owns, p)
			m.said = -1
			if m.classic {
				m.rejoin = true // as cooperative members do
			}
		}
	}
	for p := range m.target {
		if !m.owns[p] {
			m.owns[p], m.said = true, -1
		}
	}
	m.target = nil
}

// member reports whether the coordinator takes a client for a member.
func (s *migrationSim) member(m *simMember) bool {
	if c := s.b.core; c.consumer != nil {
		return c.consumer.members[m.id] != nil
	} else {
		return c.member(m.id) != nil && c.record != nil && c.record.Member(m.id) != nil
	}
}

// check is I18.
func (s *migrationSim) check() {
	owners := map[int32]*simMember{}
	for _, m := range s.all {
		if m.dead || m.id == "" || !s.member(m) {
			continue
		}
		for p := range m.owns {
			if o := owners[p]; o != nil {
				require.Fail(s.t, "two owners", "%d: %+v and %+v", p, *o, *m)
			}
			owners[p] = m
		}
	}
	if g := s.b.record; g != nil && g.Type != s.was {
		if len(g.Members) > 0 {
			switch g.Type {
			case metadata.ConsumerGroup:
				s.upgrades++
			case metadata.ClassicGroup:
				s.downgrades++
			}
		}
		s.was = g.Type
	}
}

func (s *migrationSim) alive() (out []*simMember) {
	for _, m := range s.all {
		if !m.dead {
			out = append(out, m)
		}
	}
	return out
}

func (s *migrationSim) come(classicOnly bool) {
	m := &simMember{name: fmt.Sprint("m", len(s.all)), session: 10 * time.Second, classic: classicOnly || s.r.IntN(2) == 0}
	m.eager = s.eager
	if s.static && s.r.IntN(2) == 0 {
		m.instance = fmt.Sprint("i", s.r.IntN(4))
		if slices.ContainsFunc(s.alive(), func(o *simMember) bool { return o.instance == m.instance }) {
			m.instance = ""
		}
	}
	m.lost("")
	if !m.classic {
		m.id = m.name
	}
	s.all = append(s.all, m)
}

func (s *migrationSim) leave(m *simMember) {
	m.dead = true
	s.note(m, "leaves")
	switch {
	case s.r.IntN(3) == 0 || m.id == "": // without a word
	case m.classic:
		s.b.step(&Leave{LeaveRequest: &LeaveRequest{Group: "g", Members: []LeavingMember{{Member: m.id}}}, Waiter: s.waiter()})
	case m.call == nil:
		s.b.send(ConsumerHeartbeatRequest{Member: m.id, Epoch: -1})
	}
}

// failover has another broker take over: who waited for an answer gets none.
func (s *migrationSim) failover() {
	g := s.b.record
	if g == nil {
		return
	}
	s.b.held = nil
	s.b.core = NewCore("g")
	next := *g
	s.b.revision++
	next.Interrupted, next.Revision = s.r.IntN(2) == 0 && len(g.Members) > 0, s.b.revision
	s.b.record = &next
	s.note(&simMember{}, "another coordinator, interrupted %v", next.Interrupted)
	s.b.step(&Loaded{Group: s.b.record, LastGeneration: s.b.record.Generation, Resume: s.r.IntN(2) == 0, Topics: &s.b.topics})
	for _, m := range s.all {
		if m.call != nil {
			if m.call, m.full = nil, true; m.joins || m.syncs {
				m.rejoin, m.joins, m.syncs = true, false, false
			}
		}
	}
}

const simQuiet = Instant(400 * time.Second)

func simulateMigration(t *testing.T, seed uint64) (upgrades, downgrades int) {
	s := &migrationSim{t: t, r: rand.New(rand.NewPCG(seed, 2)), b: newConsumerBench(t), eager: seed%3 == 1, static: seed%4 == 2}
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(s.trace, "\n"))
			for _, m := range s.b.record.Members {
				t.Logf("%s: epoch %d, state %d, assigned %v, revoking %v, target %v", m.ID, m.MemberEpoch, m.State, partitionsOf(m.Assigned), partitionsOf(m.Revoking), partitionsOf(m.Target))
			}
		}
	}()
	s.b.settings.InitialRebalanceDelay = 0
	s.was = metadata.ClassicGroup
	s.b.topics.set("a", 1, 5)
	s.come(true)
	round := func(m *simMember) {
		s.poll(m)
		switch s.r.IntN(3) {
		case 0:
			s.act(m)
		default:
			s.send(m)
		}
		s.poll(m)
	}
	for s.b.now.At < simQuiet {
		s.b.now.At += Instant(time.Duration(s.r.IntN(1500)) * time.Millisecond)
		alive := s.alive()
		switch {
		case len(alive) == 0 || s.r.IntN(25) == 0 && len(alive) < 5:
			s.come(false)
		case s.r.IntN(40) == 0:
			s.leave(alive[s.r.IntN(len(alive))])
		case s.r.IntN(100) == 0:
			s.b.topics.set("a", 1, s.partitions()+1)
		case s.r.IntN(60) == 0:
			s.failover()
		case s.r.IntN(15) == 0:
			s.b.hold = !s.b.hold
			if !s.b.hold {
				s.b.commit()
			}
		default:
			for range 1 + s.r.IntN(4) {
				round(alive[s.r.IntN(len(alive))])
				s.check()
			}
		}
		s.b.step(&Tick{})
		s.check()
	}
	s.b.hold = false
	s.b.commit()
	for _, m := range s.alive() { // as leaders do that see new partitions
		m.rejoin = true
	}
	for range 200 {
		s.b.now.At += Instant(500 * time.Millisecond)
		s.b.step(&Tick{})
		for _, m := range s.alive() {
			s.poll(m)
			s.act(m)
			s.send(m)
			s.poll(m)
			s.act(m)
			s.check()
		}
	}
	total, consumers := 0, 0
	for _, m := range s.alive() {
		total += len(m.owns)
		if !m.classic {
			consumers++
		}
	}
	if len(s.alive()) > 0 {
		require.Equal(t, int(s.partitions()), total, "everything has an owner")
		want := metadata.ClassicGroup
		if consumers > 0 {
			want = metadata.ConsumerGroup
		}
		require.Equal(t, want, s.b.record.Type)
		require.Len(t, s.b.record.Members, len(s.alive()))
	}
	return s.upgrades, s.downgrades
}

// I18, I20: whatever members of either protocol come, go, die and lose while a group is changed over and back, no partition
// has two owners among those that are members, and in the end each has one.
func TestMigrationSimulation(t *testing.T) {
	seeds := 250
	if testing.Short() {
		seeds = 50
	}
	upgrades, downgrades := 0, 0
	for seed := range seeds {
		up, down := simulateMigration(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		upgrades, downgrades = upgrades+up, downgrades+down
	}
	require.Greater(t, upgrades, seeds/2)
	require.Greater(t, downgrades, seeds/2)
}
