package group

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// testTopics are topics by name.
type testTopics struct {
	version uint64
	of      map[string]AssignorTopic
}

func (t *testTopics) Version() uint64 { return t.version }

func (t *testTopics) Topic(name string) (metadata.TopicID, int32, bool) {
	x, ok := t.of[name]
	return x.ID, x.Partitions, ok
}

func (t *testTopics) Name(id metadata.TopicID) (string, bool) {
	for name, x := range t.of {
		if x.ID == id {
			return name, true
		}
	}
	return "", false
}

func (t *testTopics) Names(yield func(string) bool) {
	for name := range t.of {
		if !yield(name) {
			return
		}
	}
}

func (t *testTopics) set(name string, id byte, partitions int32) {
	if t.of == nil {
		t.of = map[string]AssignorTopic{}
	}
	t.version++
	t.of[name] = AssignorTopic{ID: metadata.TopicID{15: id}, Partitions: partitions}
}

// consumerBench is the core of a consumer group and its record.
type consumerBench struct {
	t        testing.TB
	core     *Core
	now      Time
	topics   testTopics
	settings Settings
	record   *metadata.Group
	revision uint64
	pulses   int // heartbeats that were answered at once
	changes  int
	// hold keeps proposals back, refuse answers them with an error.
	hold   bool
	held   []Action
	refuse error
	// got are the answers by waiter.
	got map[any]ConsumerHeartbeatResult
	ids int
	// joins and syncs are the answers to classic members, in order.
	joins []JoinResult
	syncs []SyncResult
	told  func([]Action) // if set, is given what each step decided
	// joined and synced are the same by waiter.
	joined map[any]JoinResult
	synced map[any]SyncResult
}

func newConsumerBench(t testing.TB) *consumerBench {
	b := &consumerBench{t: t, core: NewCore("g"), settings: DefaultSettings(), got: map[any]ConsumerHeartbeatResult{}, joined: map[any]JoinResult{}, synced: map[any]SyncResult{}}
	b.topics.set("a", 1, 4)
	b.step(&Loaded{})
	return b
}

// step feeds the core and commits what it proposes.
func (b *consumerBench) step(ev Event) {
	acts := slices.Clone(b.core.Step(b.now, ev))
	if b.told != nil {
		b.told(acts)
	}
	for _, a := range acts {
		switch a.Kind {
		case ActionPropose:
			b.held = append(b.held, a)
		case ActionConsumer:
			_, twice := b.got[a.Waiter]
			require.False(b.t, twice, "answered twice")
			b.got[a.Waiter] = a.Consumer
		case ActionJoin:
			b.joins, b.joined[a.Waiter] = append(b.joins, a.Join), a.Join
		case ActionSync:
			b.syncs, b.synced[a.Waiter] = append(b.syncs, a.Sync), a.Sync
		case ActionReload:
			b.step(&Loaded{Group: b.record, LastGeneration: b.generation()})
		}
	}
	if !b.hold {
		b.commit()
	}
}

func (b *consumerBench) generation() int32 {
	if b.record == nil {
		return 0
	}
	return b.record.Generation
}

// commit applies the proposals that are held.
func (b *consumerBench) commit() {
	for len(b.held) > 0 {
		a := b.held[0]
		b.held = b.held[1:]
		err := b.refuse
		if err == nil {
			err = b.apply(a.Change)
		}
		b.step(&Changed{Seq: a.Seq, Group: b.record, Err: err})
	}
}

func (b *consumerBench) apply(ch metadata.GroupChange) error {
	g := metadata.Group{Name: "g"}
	if b.record != nil {
		g = *b.record
	}
	if ch.Revision != g.Revision {
		return metadata.ErrStale
	}
	require.GreaterOrEqual(b.t, ch.Generation, g.Generation, "I15")
	b.revision++
	b.changes++
	g.Revision, g.Type, g.State, g.Generation, g.AssignmentEpoch = b.revision, ch.Type, ch.State, ch.Generation, ch.AssignmentEpoch
	g.Protocol, g.Leader = ch.Protocol, ch.Leader
	g.ProtocolType, g.Assignor, g.TopicsHash, g.EmptySince, g.PutOutAt, g.Interrupted = ch.ProtocolType, ch.Assignor, ch.TopicsHash, ch.EmptySince, ch.PutOutAt, ch.Interrupted
	members := map[string]*metadata.GroupMember{}
	for _, m := range g.Members {
		members[m.ID] = m
	}
	for _, id := range ch.Remove {
		delete(members, id)
	}
	for _, m := range ch.Upsert {
		members[m.ID] = m
	}
	for _, a := range ch.Assign {
		m := *members[a.Member]
		m.Assignment = a.Assignment
		members[a.Member] = &m
	}
	g.Members = nil
	for _, m := range members {
		g.Members = append(g.Members, m)
	}
	slices.SortFunc(g.Members, func(x, y *metadata.GroupMember) int { return slices.Compare([]byte(x.ID), []byte(y.ID)) })
	b.record = &g
	return nil
}

// beat sends a heartbeat and returns the answer.
func (b *consumerBench) beat(r ConsumerHeartbeatRequest) ConsumerHeartbeatResult {
	b.t.Helper()
	w := b.send(r)
	res, ok := b.got[w]
	require.True(b.t, ok, "no answer")
	return res
}

func (b *consumerBench) send(r ConsumerHeartbeatRequest) any {
	r.Group = "g"
	b.ids++
	w := b.ids
	// What answers a heartbeat at once must answer what the long way would, and do nothing else.
	before := b.changes
	pulse := &ConsumerPulse{Request: &r, Settings: &b.settings, Topics: &b.topics}
	require.Empty(b.t, b.core.Step(b.now, pulse))
	if pulse.Answered {
		b.pulses++
		defer func() {
			require.Equal(b.t, b.got[w], pulse.Result)
			require.Equal(b.t, before, b.changes)
		}()
	}
	b.step(&ConsumerHeartbeat{ConsumerHeartbeatRequest: &r, Waiter: w, NewID: fmt.Sprint("id-", b.ids), Settings: &b.settings, Topics: &b.topics})
	return w
}

func joinRequest(id string, topics ...string) ConsumerHeartbeatRequest {
	return ConsumerHeartbeatRequest{Member: id, RebalanceTimeout: time.Minute, HasTopics: true, Topics: topics, HasOwned: true}
}

func set(id byte, partitions ...int32) []metadata.TopicPartitions {
	return []metadata.TopicPartitions{{TopicID: metadata.TopicID{15: id}, Partitions: partitions}}
}

func plain(s []metadata.TopicPartitions) []metadata.TopicPartitions {
	out := []metadata.TopicPartitions{}
	for _, tp := range s {
		out = append(out, metadata.TopicPartitions{TopicID: tp.TopicID, Partitions: tp.Partitions})
	}
	return out
}

// A heartbeat that says nothing is answered at once while there is nothing to say to its member, and only then; it keeps the member's
// session as any other.
func TestConsumerPulse(t *testing.T) {
	b := newConsumerBench(t)
	require.NoError(t, b.beat(joinRequest("x", "a")).Err)
	quick := func(id string, epoch int32) bool {
		was := b.pulses
		require.NoError(t, b.beat(ConsumerHeartbeatRequest{Member: id, Epoch: epoch, RebalanceTimeout: -1}).Err)
		return b.pulses > was
	}
	require.True(t, quick("x", 1))
	for range 5 {
		b.now.At += Instant(b.settings.ConsumerSessionTimeout) - 1
		b.step(&Tick{})
		pulse := &ConsumerPulse{Request: &ConsumerHeartbeatRequest{Group: "g", Member: "x", Epoch: 1, RebalanceTimeout: -1}, Settings: &b.settings, Topics: &b.topics}
		require.Empty(t, b.core.Step(b.now, pulse))
		require.True(t, pulse.Answered, "its session is not over")
	}
	for _, r := range []ConsumerHeartbeatRequest{
		{Member: "x", Epoch: 1, RebalanceTimeout: 0}, {Member: "x", Epoch: 1, RebalanceTimeout: -1, Rack: "r"}, {Member: "x", Epoch: 1, RebalanceTimeout: -1, HasOwned: true},
		{Member: "x", Epoch: 1, RebalanceTimeout: -1, HasTopics: true}, {Member: "x", Epoch: 2, RebalanceTimeout: -1}, {Member: "z", Epoch: 1, RebalanceTimeout: -1},
		{Member: "x", Epoch: 1, RebalanceTimeout: -1, Instance: "i"}, {Member: "x", Epoch: 1, RebalanceTimeout: -1, ClientHost: "/elsewhere"}, {Member: "x", Epoch: 0, RebalanceTimeout: -1},
		{Member: "x", Epoch: -1, RebalanceTimeout: -1},
	} {
		pulse := &ConsumerPulse{Request: &r, Settings: &b.settings, Topics: &b.topics}
		require.Empty(t, b.core.Step(b.now, pulse))
		require.False(t, pulse.Answered, "%+v", r)
	}
	require.NoError(t, b.beat(joinRequest("y", "a")).Err)
	require.False(t, quick("x", 1), "it has to give up a half")
	require.False(t, quick("x", 1), "it has not said yet that it has")
}

// The whole way of KIP-848: one member has all, a second comes, the first gives up its half, the second gets it.
func TestConsumerGroupReconciles(t *testing.T) {
	b := newConsumerBench(t)
	res := b.beat(joinRequest("x", "a"))
	require.NoError(t, res.Err)
	require.Equal(t, ConsumerHeartbeatResult{Member: "x", Epoch: 1, HeartbeatInterval: 5 * time.Second, HasAssignment: true, Assignment: givenIn(1, set(1, 0, 1, 2, 3))}, res)
	require.Equal(t, StateStable, b.core.consumer.state)
	require.False(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1, 2, 3)}).HasAssignment)
	changes := b.changes

	res = b.beat(joinRequest("y", "a"))
	require.Equal(t, int32(2), res.Epoch)
	require.Empty(t, res.Assignment, "x has yet to give it up")
	require.True(t, res.HasAssignment)
	require.Equal(t, changes+1, b.changes, "one change carries all of it")

	res = b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1})
	require.Equal(t, int32(1), res.Epoch, "it stays in its epoch until it has given up the rest")
	require.Equal(t, givenIn(1, set(1, 0, 1)), res.Assignment)
	require.Equal(t, StateReconciling, b.core.consumer.state)
	require.False(t, b.beat(ConsumerHeartbeatRequest{Member: "y", Epoch: 2, RebalanceTimeout: -1}).HasAssignment)

	res = b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1)})
	require.Equal(t, int32(2), res.Epoch)
	res = b.beat(ConsumerHeartbeatRequest{Member: "y", Epoch: 2, RebalanceTimeout: -1})
	require.Equal(t, givenIn(2, set(1, 2, 3)), res.Assignment)
	require.Equal(t, StateStable, b.core.consumer.state)

	res = b.beat(ConsumerHeartbeatRequest{Member: "y", Epoch: -1})
	require.Equal(t, int32(-1), res.Epoch)
	res = b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 2, RebalanceTimeout: -1})
	require.Equal(t, int32(3), res.Epoch)
	require.Equal(t, set(1, 0, 1, 2, 3), plain(res.Assignment))
	require.Equal(t, []int32{1, 1, 3, 3}, res.Assignment[0].Epochs, "KIP-1251: each has the epoch in which it was given")
}

// The errors of members in the wrong epoch, and the retry of a heartbeat whose answer was lost.
func TestConsumerEpochs(t *testing.T) {
	b := newConsumerBench(t)
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 3}).Err, ErrGroupNotFound)
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: -1}).Err, ErrGroupNotFound)
	require.Nil(t, b.record)
	b.beat(joinRequest("x", "a"))
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "z", Epoch: 1}).Err, ErrUnknownMember)
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "z", Epoch: -1}).Err, ErrUnknownMember)
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 2}).Err, ErrFencedMemberEpoch)
	b.topics.set("a", 1, 5)
	res := b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1}) // lost
	require.Equal(t, int32(2), res.Epoch)
	require.Equal(t, set(1, 0, 1, 2, 3, 4), plain(res.Assignment))
	again := joinRequest("x", "a")
	again.Epoch, again.Owned = 1, set(1, 0, 1, 2, 3)
	require.Equal(t, res.Assignment, b.beat(again).Assignment)
	again.Owned = set(1, 0, 7)
	require.ErrorIs(t, b.beat(again).Err, ErrFencedMemberEpoch, "it claims what it was never given")
	again.HasOwned = false
	require.ErrorIs(t, b.beat(again).Err, ErrFencedMemberEpoch)
	res = b.beat(joinRequest("x", "a"))
	require.NoError(t, res.Err, "a fenced member joins again")
	require.Equal(t, int32(2), res.Epoch)

	bad := joinRequest("y", "a")
	bad.HasAssignor, bad.Assignor = true, "fairest"
	require.ErrorIs(t, b.beat(bad).Err, ErrUnsupportedAssignor)
	bad = joinRequest("y")
	bad.HasRegex, bad.Regex = true, "a("
	require.ErrorIs(t, b.beat(bad).Err, ErrInvalidRegex)
	b.settings.ConsumerMaxSize = 1
	require.ErrorIs(t, b.beat(joinRequest("y", "a")).Err, ErrGroupFull)
	require.Len(t, b.record.Members, 1)
}

// G10: an instance id belongs to one member; who said it will be back gets all it had, without a rebalance.
func TestConsumerStaticMembers(t *testing.T) {
	b := newConsumerBench(t)
	static := func(id string) ConsumerHeartbeatRequest {
		r := joinRequest(id, "a")
		r.Instance = "i"
		return r
	}
	b.beat(static("x"))
	require.ErrorIs(t, b.beat(static("y")).Err, ErrUnreleasedInstance)
	require.Equal(t, int32(-2), b.beat(ConsumerHeartbeatRequest{Member: "x", Instance: "i", Epoch: -2}).Epoch)
	res := b.beat(static("y"))
	require.Equal(t, int32(1), res.Epoch, "no rebalance")
	require.Equal(t, set(1, 0, 1, 2, 3), plain(res.Assignment))
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Instance: "i", Epoch: 1}).Err, ErrFencedInstance)
	b.beat(ConsumerHeartbeatRequest{Member: "y", Instance: "i", Epoch: -2})
	b.now.At += Instant(b.settings.ConsumerSessionTimeout) + 1
	b.step(&Tick{})
	require.Empty(t, b.record.Members, "it did not come back in time")
	require.NotZero(t, b.core.consumer.epoch)
}

// A member is given up after its session, or when it does not give up in time what it must.
func TestConsumerTimeouts(t *testing.T) {
	b := newConsumerBench(t)
	b.beat(joinRequest("x", "a"))
	b.beat(joinRequest("y", "a"))
	b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1}) // is to give up two
	for range 3 {
		b.now.At += Instant(30 * time.Second)
		b.step(&Tick{})
		b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1})
		b.beat(ConsumerHeartbeatRequest{Member: "y", Epoch: 2, RebalanceTimeout: -1})
	}
	require.Nil(t, b.record.Member("x"), "it never gave them up")
	require.Equal(t, b.core.Deadline(), b.core.consumer.nextExpiry)
	b.now.At = b.core.Deadline()
	b.step(&Extend{By: 1})
	b.step(&Tick{})
	require.NotNil(t, b.record.Member("y"))
	b.now.At += Instant(time.Minute)
	b.step(&Tick{})
	require.Nil(t, b.record.Member("y"))
	require.Equal(t, metadata.GroupEmpty, b.record.State)
}

// Subscriptions by expression match whole names, and follow the topics that come.
func TestConsumerRegex(t *testing.T) {
	b := newConsumerBench(t)
	r := joinRequest("x")
	r.HasTopics, r.HasRegex, r.Regex = false, true, "a|b.*"
	require.Equal(t, set(1, 0, 1, 2, 3), plain(b.beat(r).Assignment))
	b.topics.set("ab", 2, 1)
	require.False(t, b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1}).HasAssignment)
	b.topics.set("bc", 3, 1)
	res := b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1})
	require.Equal(t, int32(2), res.Epoch)
	require.Equal(t, append(set(1, 0, 1, 2, 3), set(3, 0)...), plain(res.Assignment))

	// I23: expressions that nobody uses any more are forgotten.
	for i := range 20 {
		again := ConsumerHeartbeatRequest{Member: "x", Epoch: b.core.consumer.epoch, RebalanceTimeout: -1, HasRegex: true, Regex: fmt.Sprintf("a|b.*|c%d", i)}
		strange := again
		strange.Member, strange.Regex = "stranger", fmt.Sprintf("s%d", i)
		require.ErrorIs(t, b.beat(strange).Err, ErrUnknownMember)
		require.NoError(t, b.beat(again).Err)
		require.Len(t, b.core.consumer.regexps, 1)
	}
	require.Equal(t, append(set(1, 0, 1, 2, 3), set(3, 0)...), plain(b.core.consumer.members["x"].record.Assigned))
}

// Heartbeats that come while a change is on its way share the next one, and are told nothing before it is committed (G5);
// one that is refused is not told of it.
func TestConsumerDraft(t *testing.T) {
	b := newConsumerBench(t)
	b.hold = true
	w := b.send(joinRequest("x", "a"))
	require.Empty(t, b.got)
	for i := range 5 {
		b.send(joinRequest(fmt.Sprint("m", i), "a"))
	}
	b.send(joinRequest("m1", "a")) // its client asked again
	require.Len(t, b.got, 1)
	require.Len(t, b.held, 1)
	b.hold = false
	b.commit()
	require.NoError(t, b.got[w].Err)
	require.Equal(t, 2, b.changes)
	require.Len(t, b.record.Members, 6)

	for _, err := range []error{metadata.ErrNotCoordinator, metadata.ErrInvalidRequest} {
		before := b.record
		b.refuse = err
		w = b.send(joinRequest("z", "a"))
		require.Error(t, b.got[w].Err)
		b.refuse = nil
		b.step(&Loaded{Group: b.record, LastGeneration: b.record.Generation})
		require.Nil(t, b.record.Member("z"))
		require.Same(t, before, b.record)
		require.Len(t, b.core.consumer.members, 6)
	}
}

// D6: a group whose coordinator died begins a new epoch, in which everybody keeps what it has; or goes on, if so set.
func TestConsumerFailover(t *testing.T) {
	for _, resume := range []bool{false, true} {
		b := newConsumerBench(t)
		b.beat(joinRequest("x", "a"))
		g := *b.record
		g.Interrupted, g.Revision = true, 99
		b.record, b.revision = &g, 99
		b.core = NewCore("g")
		b.step(&Loaded{Group: &g, LastGeneration: g.Generation, Resume: resume})
		require.False(t, b.record.Interrupted)
		res := b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: 1, RebalanceTimeout: -1})
		require.NoError(t, res.Err)
		require.False(t, res.HasAssignment)
		require.Equal(t, !resume, res.Epoch == 2)
	}
}

// A group without members may speak the other protocol next; one with members may not.
func TestConsumerAndClassic(t *testing.T) {
	b := newConsumerBench(t)
	b.beat(joinRequest("x", "a"))
	s := DefaultSettings()
	join := &Join{JoinRequest: &JoinRequest{Group: "g", SessionTimeout: 10 * time.Second, ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}}}, NewID: "n", Settings: &s}
	acts := b.core.Step(b.now, join)
	require.Equal(t, ErrInconsistentProtocol, acts[len(acts)-1].Join.Err)
	b.beat(ConsumerHeartbeatRequest{Member: "x", Epoch: -1})
	require.Equal(t, metadata.GroupEmpty, b.record.State)
	acts = b.core.Step(b.now, join)
	require.NotEqual(t, ActionJoin, acts[0].Kind, "it waits for the generation")
	require.Nil(t, b.core.consumer)
	require.NoError(t, b.beat(joinRequest("y", "a")).Err, "and this one does not wait for it, as in Kafka")
	require.ErrorIs(t, b.joins[0].Err, ErrRebalanceInProgress, "it joins again, a group of consumers")
	require.Equal(t, metadata.ConsumerGroup, b.record.Type)
}

// simConsumer is a client: what it knows, and what it has told the application that it owns.
type simConsumer struct {
	id     string
	epoch  int32
	owns   map[TopicIDPartition]bool
	target map[TopicIDPartition]bool // of the last answer
	full   bool                      // the next heartbeat says everything
	said   int                       // how much it owned when it last said so
	dead   bool
}

func keysOf(s []metadata.TopicPartitions) map[TopicIDPartition]bool {
	out := map[TopicIDPartition]bool{}
	for _, tp := range s {
		for _, p := range tp.Partitions {
			out[TopicIDPartition{TopicID: tp.TopicID, Partition: p}] = true
		}
	}
	return out
}

func (s *simConsumer) owned() (out []metadata.TopicPartitions) {
	for key := range s.owns {
		out = append(out, metadata.TopicPartitions{TopicID: key.TopicID, Partitions: []int32{key.Partition}})
	}
	return normalized(out)
}

// I18, I15, G5, I20: whatever members come, go, die and lose, no partition ever has two owners among the members that are
// alive and within their epochs, and in the end each has one.
func TestConsumerSimulation(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		simulateConsumers(t, uint64(seed))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func simulateConsumers(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	b := newConsumerBench(t)
	b.topics.set("b", 2, 3)
	var all []*simConsumer
	check := func() {
		owners := map[TopicIDPartition]string{}
		for _, s := range all {
			if m := b.core.consumer; s.dead || m == nil || m.members[s.id] == nil {
				continue // gone, or fenced: it will learn, and its commits are refused
			}
			for key := range s.owns {
				require.Empty(t, owners[key], "seed %d: %v has two owners", seed, key)
				owners[key] = s.id
			}
		}
	}
	beat := func(s *simConsumer, lossy bool) {
		req := ConsumerHeartbeatRequest{Member: s.id, Epoch: s.epoch, RebalanceTimeout: -1}
		if s.full {
			req.RebalanceTimeout, req.HasTopics, req.Topics = time.Minute, true, []string{"a", "b"}
		}
		if s.full || s.said != len(s.owns) {
			// What it has been given and has not taken up it does not take up any more: the coordinator may give it to
			// somebody else on these words. A client that does so all the same is refused when it commits.
			req.HasOwned, req.Owned, s.target = true, s.owned(), maps.Clone(s.owns)
		}
		res := b.beat(req)
		if lossy && r.IntN(4) == 0 {
			s.full = true // no answer came
			return
		}
		switch {
		case errors.Is(res.Err, ErrFencedMemberEpoch), errors.Is(res.Err, ErrUnknownMember):
			s.epoch, s.owns, s.target, s.full = 0, map[TopicIDPartition]bool{}, nil, true
			return
		case errors.Is(res.Err, ErrCoordinatorLoading):
			return
		}
		require.NoError(t, res.Err, "seed %d", seed)
		require.GreaterOrEqual(t, res.Epoch, s.epoch)
		s.epoch, s.full = res.Epoch, false
		if req.HasOwned {
			s.said = len(s.owns)
		}
		if res.HasAssignment {
			s.target = keysOf(res.Assignment)
		}
	}
	act := func(s *simConsumer) { // the application gives up first, and takes up then
		for key := range s.owns {
			if !s.target[key] {
				delete(s.owns, key)
				s.said = -1
			}
		}
		for key := range s.target {
			if !s.owns[key] {
				s.owns[key] = true
				s.said = -1
			}
		}
	}
	for range 120 {
		b.now.At += Instant(time.Second)
		switch alive := slices.DeleteFunc(slices.Clone(all), func(s *simConsumer) bool { return s.dead }); {
		case len(alive) < 1 || r.IntN(12) == 0 && len(alive) < 5:
			all = append(all, &simConsumer{id: fmt.Sprint("m", len(all)), owns: map[TopicIDPartition]bool{}, full: true, said: -1})
		case r.IntN(25) == 0:
			s := alive[r.IntN(len(alive))]
			s.dead = true
			if r.IntN(2) == 0 {
				b.beat(ConsumerHeartbeatRequest{Member: s.id, Epoch: -1})
			}
		case r.IntN(25) == 0:
			b.topics.set("b", 2, b.topics.of["b"].Partitions+1)
		case r.IntN(30) == 0:
			g := b.record
			if g == nil {
				break
			}
			b.core = NewCore("g") // another broker
			next := *g
			b.revision++
			next.Interrupted, next.Revision = r.IntN(2) == 0, b.revision
			b.record = &next
			b.step(&Loaded{Group: b.record, LastGeneration: b.record.Generation, Resume: r.IntN(2) == 0})
		case r.IntN(3) == 0:
			act(alive[r.IntN(len(alive))])
		default:
			beat(alive[r.IntN(len(alive))], true)
		}
		b.step(&Tick{})
		check()
	}
	for range 100 {
		b.now.At += Instant(2 * time.Second)
		b.step(&Tick{})
		for _, s := range all {
			if !s.dead {
				beat(s, false)
				act(s)
				check()
			}
		}
	}
	total := 0
	for _, s := range all {
		if !s.dead {
			total += len(s.owns)
		}
	}
	alive := slices.ContainsFunc(all, func(s *simConsumer) bool { return !s.dead })
	if alive {
		require.Equal(t, int(b.topics.of["a"].Partitions+b.topics.of["b"].Partitions), total, "seed %d: everything has an owner", seed)
		require.Equal(t, StateStable, b.core.consumer.state)
	}
}
