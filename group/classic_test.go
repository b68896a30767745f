package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// classicBench is the core of a classic group over the real FSM, of which this broker is the only one: what is proposed is
// committed at once.
type classicBench struct {
	t        testing.TB
	fsm      *metadata.Replica
	epoch    int64
	core     *Core
	now      Time
	settings Settings
	joins    map[string]JoinResult // by what the request was called
	syncs    map[string]SyncResult
	errs     map[string]error
	written  int // members in all changes
	ids      int
	told     func([]Action) // if set, is given what each step decided
}

func registration(id metadata.BrokerID, incarnation byte) metadata.Registration {
	return metadata.Registration{
		ID: id, Incarnation: [16]byte{byte(id) + 1, incarnation}, Directories: []metadata.DirectoryID{{byte(id) + 1, 1}}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel, TailsProven: true,
	}
}

func newClassicBench(t testing.TB) *classicBench {
	b := &classicBench{t: t, fsm: metadata.NewReplica(), core: NewCore("g"), settings: DefaultSettings(), joins: map[string]JoinResult{}, syncs: map[string]SyncResult{}, errs: map[string]error{}}
	b.settings.InitialRebalanceDelay = 0
	var err error
	b.epoch, err = b.fsm.Register(registration(0, 1), false)
	require.NoError(t, err)
	b.now.At = Instant(time.Hour)
	b.step(&Loaded{})
	return b
}

func (b *classicBench) record() *metadata.Group { return b.fsm.Image().Group("g") }

// step gives an event to the core and returns the error of its answer.
func (b *classicBench) step(ev Event) (answer error) {
	var proposed *Action
	acts := b.core.Step(b.now, ev)
	if b.told != nil {
		b.told(acts)
	}
	for _, a := range acts {
		switch a.Kind {
		case ActionPropose:
			proposed = &a
		case ActionJoin:
			b.joins[a.Waiter.(string)] = a.Join
		case ActionSync:
			b.syncs[a.Waiter.(string)] = a.Sync
		case ActionLeave:
			b.errs[a.Waiter.(string)] = a.Err
		case ActionAnswer:
			if answer = a.Err; a.Waiter != nil {
				b.errs[a.Waiter.(string)] = a.Err
			}
		case ActionReload:
			require.Fail(b.t, "reload")
		}
	}
	if proposed != nil {
		ch := proposed.Change
		ch.Broker, ch.BrokerEpoch = 0, b.epoch
		b.written += len(ch.Upsert)
		_, err := b.fsm.ChangeGroup(ch)
		require.NoError(b.t, err)
		b.step(&Changed{Seq: proposed.Seq, Group: b.record()})
	}
	return answer
}

// pass lets time go by, with heartbeats of the members named, and the core's deadlines in between.
func (b *classicBench) pass(d time.Duration, alive ...string) {
	for end := b.now.At + Instant(d); b.now.At < end; {
		b.now.At = min(end, b.now.At+Instant(time.Second))
		for _, id := range alive {
			_ = b.beat(id)
		}
		if b.core.Deadline() <= b.now.At {
			b.step(&Tick{})
		}
	}
}

func (b *classicBench) beat(id string) error {
	return b.step(&Heartbeat{&HeartbeatRequest{Group: "g", Member: id, Generation: b.core.generation()}})
}

type joinOption func(*JoinRequest)

func instance(id string) joinOption { return func(r *JoinRequest) { r.Instance = id } }
func handshake(r *JoinRequest)      { r.RequireKnownMember = true }
func version9(r *JoinRequest)       { r.CanSkipAssignment = true }
func says(metadata string) joinOption {
	return func(r *JoinRequest) { r.Protocols[0].Metadata = []byte(metadata) }
}

// join sends JoinGroup; the answer, once there is one, is in joins under name. The id of a new member is name too, with a
// number if it had been used.
func (b *classicBench) join(name, id string, opts ...joinOption) JoinResult {
	r := &JoinRequest{
		Group: "g", Member: id, ClientID: "c", SessionTimeout: 10 * time.Second, RebalanceTimeout: 30 * time.Second,
		ProtocolType: "test", Protocols: []Protocol{{Name: "p", Metadata: []byte("m")}},
	}
	for _, o := range opts {
		o(r)
	}
	delete(b.joins, name)
	newID := name
	if b.core.member(name) != nil || r.Instance != "" {
		b.ids++
		newID = fmt.Sprint(name, "-", b.ids)
	}
	b.step(&Join{JoinRequest: r, Waiter: name, NewID: newID, Settings: &b.settings})
	return b.joins[name]
}

// waits reports whether the request of that name has no answer yet.
func (b *classicBench) waits(name string) bool {
	_, answered := b.joins[name]
	return !answered
}

func (b *classicBench) sync(name, id string, generation int32, shares ...string) SyncResult {
	r := &SyncRequest{Group: "g", Member: id, Generation: generation}
	for i := 0; i+1 < len(shares); i += 2 {
		r.Assignments = append(r.Assignments, Assignment{Member: shares[i], Bytes: []byte(shares[i+1])})
	}
	delete(b.syncs, name)
	b.step(&Sync{SyncRequest: r, Waiter: name})
	return b.syncs[name]
}

// two forms a stable group of the members a, which leads, and b.
func (b *classicBench) two(opts ...joinOption) int32 {
	b.join("a", "", opts...)
	b.join("b", "")
	b.join("a", "a", opts...)
	b.pass(time.Second) // a storm is not at hand
	require.Equal(b.t, "a", b.joins["b"].Leader)
	g := b.joins["b"].Generation
	b.sync("b", "b", g)
	require.NoError(b.t, b.sync("a", "a", g, "a", "1", "b", "2").Err)
	require.Equal(b.t, "2", string(b.syncs["b"].Assignment))
	return g
}

// G9, KIP-394: a new member gets an id first, and the group is told of it only when it joins with that.
func TestMemberIDRequired(t *testing.T) {
	b := newClassicBench(t)
	r := b.join("a", "", handshake)
	require.ErrorIs(t, r.Err, ErrMemberIDRequired)
	require.Equal(t, "a", r.Member)
	require.Nil(t, b.record())
	r = b.join("a", r.Member, handshake)
	require.NoError(t, r.Err)
	require.EqualValues(t, 1, r.Generation)
	require.Equal(t, "a", r.Leader)
	require.Len(t, r.Members, 1)
	require.ErrorIs(t, b.join("x", "never-heard-of", handshake).Err, ErrUnknownMember)
}

// protocol.md trap 24: a member that repeats the handshake and never joins does not hold the others up, and what it is
// handed is bounded.
func TestRepeatedHandshakeHoldsNobodyUp(t *testing.T) {
	b := newClassicBench(t)
	b.two()
	for i := range 3 * maxPending {
		require.ErrorIs(t, b.join(fmt.Sprint("loop", i), "", handshake).Err, ErrMemberIDRequired)
	}
	require.Len(t, b.core.classic.pending, maxPending)
	require.Equal(t, StateStable, b.core.classic.state, "a handshake is no reason for a rebalance")
	b.join("a", "a", says("new"))
	b.join("b", "b")
	require.True(t, b.waits("b"))
	b.pass(2 * time.Second)
	require.NoError(t, b.joins["b"].Err)
	require.Equal(t, StateCompleting, b.core.classic.state)
}

// A member that joins and never syncs is given up after the rebalance timeout, though its heartbeats come.
func TestMemberThatNeverSyncs(t *testing.T) {
	b := newClassicBench(t)
	b.join("a", "")
	b.join("b", "")
	b.join("a", "a")
	b.pass(time.Second)
	g := b.joins["a"].Generation
	b.sync("a", "a", g, "a", "1", "b", "2")
	require.Equal(t, StateStable, b.core.classic.state)
	b.pass(29*time.Second, "a", "b")
	require.NotNil(t, b.core.member("b"))
	b.pass(2*time.Second, "a", "b")
	require.Nil(t, b.core.member("b"))
	require.ErrorIs(t, b.beat("a"), ErrRebalanceInProgress)
	require.Equal(t, g+1, b.join("a", "a").Generation)
}

// What a coordinator knew of who has not synced dies with it, and where the generation goes on there is no other one to begin
// with. A member that joins again, and still does not sync, is given up all the same; one that has synced, before or since, is
// not, nor is one that commits what it reads.
func TestMemberThatNeverSyncsAfterTakeover(t *testing.T) {
	b := newClassicBench(t)
	g := b.two()
	for _, id := range []string{"c", "d"} {
		b.join(id, "")
	}
	for _, id := range []string{"a", "b"} {
		b.join(id, id)
	}
	b.pass(time.Second)
	g++
	b.sync("a", "a", g, "a", "1", "b", "2", "c", "3", "d", "4")
	require.Equal(t, g, b.record().Generation)
	require.Equal(t, StateStable, b.core.classic.state)
	b.core = NewCore("g")
	b.step(&Loaded{Group: b.record(), LastGeneration: g, Resume: true})
	all := []string{"a", "b", "c", "d"}
	b.pass(time.Minute, all...)
	require.Len(t, b.core.classic.members, 4, "whoever says nothing may have synced")

	for range 3 {
		require.Equal(t, g, b.join("b", "b").Generation)
		b.pass(9*time.Second, all...)
	}
	b.join("c", "c")
	require.Equal(t, "3", string(b.sync("c", "c", g).Assignment))
	b.join("c", "c") // it came late, and its client does not wait for it any more
	b.join("d", "d")
	require.NoError(t, b.step(&Commit{&CommitRequest{Group: "g", Member: "d", Generation: g}}))
	require.NotNil(t, b.core.member("b"))
	b.pass(4*time.Second, all...)
	require.Nil(t, b.core.member("b"))
	require.Equal(t, ReasonSync, b.core.classic.reason)
	for _, id := range []string{"a", "c", "d"} {
		b.join(id, id)
	}
	require.Equal(t, g+1, b.joins["c"].Generation)
	require.Len(t, b.record().Members, 3)
}

// Each member has its own time for it.
func TestTimeToSyncAfterTakeover(t *testing.T) {
	b := newClassicBench(t)
	g := b.two()
	b.join("c", "")
	b.join("a", "a")
	b.join("b", "b")
	b.pass(time.Second)
	g++
	b.sync("a", "a", g, "a", "1", "b", "2", "c", "3")
	b.core = NewCore("g")
	b.step(&Loaded{Group: b.record(), LastGeneration: g})
	all := []string{"a", "b", "c"}
	b.join("b", "b")
	b.pass(29*time.Second, all...)
	b.join("c", "c")
	b.pass(2*time.Second, all...)
	require.Nil(t, b.core.member("b"))
	require.NotNil(t, b.core.member("c"), "it has just asked")
}

// A leader that dies between join and sync: its session ends, the others are told to join again and one of them leads.
func TestLeaderDiesBeforeSync(t *testing.T) {
	b := newClassicBench(t)
	b.join("a", "")
	b.join("b", "")
	b.join("a", "a")
	b.pass(time.Second)
	g := b.joins["b"].Generation
	require.Equal(t, "a", b.joins["b"].Leader)
	b.sync("b", "b", g)
	b.pass(11 * time.Second)
	require.ErrorIs(t, b.syncs["b"].Err, ErrRebalanceInProgress)
	r := b.join("b", "b")
	require.NoError(t, r.Err)
	require.Equal(t, g+1, r.Generation)
	require.Equal(t, "b", r.Leader)
	require.Len(t, r.Members, 1)
}

// 200 members that come within a second, one after the other, share a few generations: what is written stays linear.
func TestStormOfJoins(t *testing.T) {
	const n = 200
	b := newClassicBench(t)
	in := map[string]int32{}    // the generation each was told
	rejoin := map[string]bool{} // told to join again
	settle := func() {
		for changed := true; changed; {
			changed = false
			for name, r := range b.joins {
				if r.Err == nil && in[name] != r.Generation {
					in[name] = r.Generation
					b.sync(name, name, r.Generation)
					changed = true
				}
			}
			for name, r := range b.syncs {
				if r.Err != nil {
					delete(b.syncs, name)
					rejoin[name] = true
				}
			}
			for name := range rejoin {
				delete(rejoin, name)
				b.join(name, name)
				changed = true
			}
			if b.core.Deadline() <= b.now.At {
				b.step(&Tick{})
				changed = true
			}
		}
	}
	for i := range n {
		b.now.At += Instant(5 * time.Millisecond)
		name := fmt.Sprintf("m%03d", i)
		b.join(name, "")
		for name := range in {
			if b.beat(name) != nil && !b.waits(name) && b.core.member(name) != nil && b.core.member(name).join == nil {
				rejoin[name] = true
			}
		}
		settle()
	}
	b.pass(2 * time.Second)
	settle()
	g := b.record()
	require.Len(t, g.Members, n)
	require.LessOrEqual(t, g.Generation, int32(8))
	require.LessOrEqual(t, b.written, 2*n, "members written")
}

// KIP-345: a static member that returns within its session causes no rebalance; what still speaks under its old id is fenced.
func TestStaticMemberReturns(t *testing.T) {
	for _, leads := range []bool{true, false} {
		b := newClassicBench(t)
		first := b.join("s", "", instance("i"))
		old := first.Member
		if leads {
			b.sync("s", old, first.Generation, old, "share")
		} else {
			b.join("a", "")
			b.join("s", old, instance("i"))
			b.pass(time.Second)
			g := b.joins["a"].Generation
			b.sync("s", old, g, old, "share", "a", "x")
			b.sync("a", "a", g)
		}
		g := b.core.generation()
		r := b.join("s", "", instance("i"))
		require.NoError(t, r.Err)
		require.Equal(t, g, r.Generation, "no rebalance")
		require.NotEqual(t, old, r.Member)
		require.Equal(t, StateStable, b.core.classic.state)
		require.NotEqual(t, r.Member, r.Leader, "a client before version 9 must not assign")
		require.Empty(t, r.Members)
		require.Equal(t, "share", string(b.sync("s", r.Member, g).Assignment))
		require.ErrorIs(t, b.step(&Heartbeat{&HeartbeatRequest{Member: old, Instance: "i", Generation: g}}), ErrFencedInstance)
		require.ErrorIs(t, b.step(&Commit{&CommitRequest{Member: old, Instance: "i", Generation: g}}), ErrFencedInstance)
		require.Nil(t, b.record().Member(old))

		r9 := b.join("s", "", instance("i"), version9)
		require.Equal(t, r9.Member, r9.Leader)
		require.True(t, r9.SkipAssignment)
		require.NotEmpty(t, r9.Members)
	}
}

// The commit matrix of protocol.md 7.
func TestCommitMatrix(t *testing.T) {
	b := newClassicBench(t)
	commit := func(member string, generation int32) error {
		return b.step(&Commit{&CommitRequest{Group: "g", Member: member, Generation: generation}})
	}
	require.NoError(t, commit("", -1), "from outside")
	require.ErrorIs(t, commit("x", 5), ErrGroupNotFound)
	g := b.two()
	require.ErrorIs(t, commit("", -1), ErrUnknownMember, "the group has members")
	require.ErrorIs(t, commit("x", g), ErrUnknownMember)
	require.ErrorIs(t, commit("a", g-1), ErrIllegalGeneration)
	require.NoError(t, commit("a", g))
	b.join("a", "a", says("new"))
	require.NoError(t, commit("b", g), "G7: the generation is not over yet")
	b.join("b", "b")
	require.ErrorIs(t, commit("b", g), ErrIllegalGeneration)
	require.ErrorIs(t, commit("b", g+1), ErrRebalanceInProgress)
}

// G6, D6: after a planned move, or with resume, nothing changes but that everybody has a full session; after a death there
// is one new generation with the same ids.
func TestTakeover(t *testing.T) {
	for _, c := range []struct{ interrupted, resume, rebalances bool }{{false, false, false}, {true, true, false}, {true, false, true}} {
		b := newClassicBench(t)
		g := b.two()
		b.settings.InitialRebalanceDelay = 3 * time.Second // of a group that was empty, which this one was not
		if c.interrupted {
			require.NoError(t, b.fsm.Fence(0, b.epoch, true))
			require.NoError(t, b.fsm.Fence(0, b.epoch, false))
			require.True(t, b.record().Interrupted)
		}
		b.now.At += Instant(time.Hour)
		b.core = NewCore("g")
		b.step(&Loaded{Group: b.record(), LastGeneration: g, Resume: c.resume})
		b.pass(9 * time.Second)
		require.Len(t, b.core.classic.members, 2, "a full session")
		if !c.rebalances {
			require.NoError(t, b.beat("a"))
			require.NoError(t, b.beat("b"))
			require.Equal(t, g, b.record().Generation)
			require.False(t, b.record().Interrupted)
			continue
		}
		require.ErrorIs(t, b.beat("a"), ErrRebalanceInProgress)
		require.ErrorIs(t, b.beat("b"), ErrRebalanceInProgress)
		b.join("a", "a")
		require.True(t, b.waits("a"))
		b.join("b", "b")
		require.Equal(t, g+1, b.joins["a"].Generation, "no initial delay")
		require.Len(t, b.record().Members, 2)
		require.False(t, b.record().Interrupted)
	}
}

// Bad input gets the errors of protocol.md 7 and changes nothing.
func TestRefusals(t *testing.T) {
	b := newClassicBench(t)
	g := b.two()
	revision := b.record().Revision
	require.ErrorIs(t, b.join("x", "", func(r *JoinRequest) { r.SessionTimeout = time.Second }).Err, ErrInvalidSession)
	require.ErrorIs(t, b.join("x", "", func(r *JoinRequest) { r.ProtocolType = "connect" }).Err, ErrInconsistentProtocol)
	require.ErrorIs(t, b.join("x", "", func(r *JoinRequest) { r.Protocols[0].Name = "other" }).Err, ErrInconsistentProtocol)
	require.ErrorIs(t, b.join("x", "", func(r *JoinRequest) { r.Protocols = nil }).Err, ErrInconsistentProtocol)
	b.settings.MaxSize = 2
	require.ErrorIs(t, b.join("x", "").Err, ErrGroupFull)
	require.ErrorIs(t, b.sync("x", "x", g).Err, ErrUnknownMember)
	require.ErrorIs(t, b.sync("a", "a", g+1).Err, ErrIllegalGeneration)
	b.step(&Sync{SyncRequest: &SyncRequest{Member: "a", Generation: g, HasProtocol: true, Protocol: "other"}, Waiter: "p"})
	require.ErrorIs(t, b.syncs["p"].Err, ErrInconsistentProtocol)
	require.ErrorIs(t, b.beat("x"), ErrUnknownMember)
	b.step(&Delete{Waiter: "delete"})
	require.ErrorIs(t, b.errs["delete"], ErrNonEmpty)
	require.Equal(t, revision, b.record().Revision)
	require.Equal(t, StateStable, b.core.classic.state)
}

// FuzzSubscription: no bytes of a member make the one reader of them fail otherwise than with an error.
func FuzzSubscription(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		topics, err := subscribedTopics(b)
		if err == nil && len(topics) > len(b) {
			t.Fatalf("%d topics of %d bytes", len(topics), len(b))
		}
	})
}
