package metadata

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// groupsFSM is threeBrokers at the feature level that has groups.
func groupsFSM(t testing.TB) *testFSM {
	f := threeBrokers(t)
	f.must(&setFeatureLevel{expected: 1, level: GroupsFeatureLevel})
	return f
}

// by names the present coordinator of a group and its broker epoch.
func (f *testFSM) by(group string) (BrokerID, int64) {
	id, _ := f.image().Coordinator(GroupCoordinator, group)
	if b := f.st.broker(id); b != nil {
		return id, b.Epoch
	}
	return id, 0
}

// change is a change by the present coordinator, on the present revision.
func (f *testFSM) change(g *Group, upsert ...*GroupMember) *changeGroup {
	c := &changeGroup{group: g, upsert: upsert}
	c.broker, c.epoch = f.by(g.Name)
	if old := f.st.group(g.Name); old != nil {
		g.Revision = old.Revision
	}
	if g.Type == 0 {
		g.Type = ClassicGroup
	}
	return c
}

// commits is a batch by the present coordinator of the first commit's group.
func (f *testFSM) commits(commits ...OffsetCommit) *commitOffsets {
	f.batches++
	c := &commitOffsets{coordinatorEpoch: f.st.coordinatorEpoch, sequence: f.batches, commits: commits}
	c.broker, c.epoch = f.by(commits[0].Group)
	return c
}

// commit1 applies one commit in a batch of its own.
func (f *testFSM) commit1(c OffsetCommit) commitOutcome {
	return f.must(f.commits(c)).([]commitOutcome)[0]
}

// ownedBy returns a group name that a broker coordinates.
func (f *testFSM) ownedBy(id BrokerID, prefix string) string {
	for i := range 1000 {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if by, _ := f.by(name); by == id {
			return name
		}
	}
	f.t.Fatalf("broker %d coordinates nothing", id)
	return ""
}

// D6: the coordinator is a function of the committed brokers; keys spread evenly, and only those of the broker that comes or
// goes move. I15: its epoch grows with every such change, and with a new registration of one of them.
func TestCoordinatorFunction(t *testing.T) {
	require.Equal(t, NoBroker, rendezvous(nil, GroupCoordinator, "g"))
	ids := []BrokerID{1, 2, 3, 7}
	count := map[BrokerID]int{}
	for i := range 8000 {
		key := fmt.Sprintf("group-%d", i)
		at := rendezvous(ids, GroupCoordinator, key)
		count[at]++
		without := rendezvous([]BrokerID{1, 2, 3}, GroupCoordinator, key)
		require.True(t, at == 7 || at == without, "%s moved from %d to %d though neither came nor went", key, at, without)
	}
	for _, id := range ids {
		require.InDelta(t, 2000, count[id], 200, "broker %d", id)
	}
	differs := 0
	for i := range 100 {
		key := fmt.Sprint(i)
		if rendezvous(ids, GroupCoordinator, key) != rendezvous(ids, TransactionCoordinator, key) {
			differs++
		}
	}
	require.Greater(t, differs, 50, "groups and transactions of one name are apart")
	// What was decided must not change with a version: brokers of two would say different things.
	require.Equal(t, []BrokerID{2, 7, 1, 1, 1, 3}, func() (out []BrokerID) {
		for _, key := range []string{"", "a", "b", "orders", "default", "connect-cluster"} {
			out = append(out, rendezvous(ids, GroupCoordinator, key))
		}
		return out
	}())

	f := groupsFSM(t)
	epoch := f.st.coordinatorEpoch
	grown := func(what string, change func()) {
		t.Helper()
		change()
		require.Equal(t, epoch+1, f.st.coordinatorEpoch, what)
		epoch = f.st.coordinatorEpoch
		checkState(t, f.st)
	}
	same := func(what string, change func()) {
		t.Helper()
		change()
		require.Equal(t, epoch, f.st.coordinatorEpoch, what)
	}
	alter := func(c alterBroker) func() {
		return func() { c.broker, c.epoch = 1, f.st.broker(1).Epoch; f.must(&c) }
	}
	require.Equal(t, []BrokerID{1, 2, 3}, f.st.coordinators)
	grown("maintenance", alter(alterBroker{draining: pb.Switch_SWITCH_ON}))
	require.Equal(t, []BrokerID{2, 3}, f.st.coordinators)
	same("and decommission", alter(alterBroker{removing: pb.Switch_SWITCH_ON}))
	same("the first ends", alter(alterBroker{draining: pb.Switch_SWITCH_OFF}))
	grown("both end", alter(alterBroker{removing: pb.Switch_SWITCH_OFF}))
	grown("controlled shutdown", alter(alterBroker{leaving: pb.Switch_SWITCH_ON}))
	same("its fence", func() { f.fence(1, true) })
	grown("the only fit one leaves", func() { f.fence(2, true) })
	f.must(&alterBroker{broker: 3, epoch: 3, draining: pb.Switch_SWITCH_ON})
	require.Equal(t, []BrokerID{3}, f.st.coordinators, "an unfit one is better than none")
	f.fence(3, true)
	require.Empty(t, f.st.coordinators)
	id, _ := f.image().Coordinator(GroupCoordinator, "g")
	require.Equal(t, NoBroker, id)
	f.fence(2, false)
	epoch = f.st.coordinatorEpoch
	grown("a new process", func() { f.must(f.again(broker(2, 9))) })

	old := threeBrokers(t)
	require.Zero(t, old.st.coordinatorEpoch, "an older binary would not know the field (D17)")
	old.fence(2, true)
	require.Zero(t, old.st.coordinatorEpoch)
}

// D17: nothing about groups counts before the level is raised, whatever is proposed.
func TestGroupsNeedFeatureLevel(t *testing.T) {
	f := threeBrokers(t)
	id, epoch := f.by("g")
	f.refuses(ErrInvalidFeatureLevel, &changeGroup{broker: id, epoch: epoch, group: &Group{Name: "g", Type: ClassicGroup}})
	f.refuses(ErrInvalidFeatureLevel, &commitOffsets{broker: id, epoch: epoch, commits: []OffsetCommit{{Group: "g", Generation: -1}}})
	f.refuses(ErrInvalidFeatureLevel, &deleteOffsets{broker: id, epoch: epoch, group: "g"})
	snapshot := snapshotBytes(t, f.st, f.index)
	require.Equal(t, snapshot, snapshotBytes(t, f.st, f.index))
	require.Zero(t, f.st.groups.len())
	require.NotContains(t, string(snapshot), "g-", "and nothing of it is written")
}

// G5: a change counts only if the registration that proposes it coordinates the group where it is applied, and only on the
// revision that it was decided on. A refusal leaves nothing.
func TestChangeGroupFence(t *testing.T) {
	f := groupsFSM(t)
	c := f.change(&Group{Name: "g", State: GroupCompleting, Generation: 1}, &GroupMember{ID: "b"}, &GroupMember{ID: "a"})
	for name, wrong := range map[string]func(c *changeGroup){
		"another broker": func(c *changeGroup) { c.broker = c.broker%3 + 1; c.epoch = f.st.broker(c.broker).Epoch },
		"a stranger":     func(c *changeGroup) { c.broker = 99 },
		"a zombie":       func(c *changeGroup) { c.epoch-- },
	} {
		w := *c
		wrong(&w)
		before := stateHash(f.st, 0)
		f.refuses(ErrNotCoordinator, &w)
		require.Equal(t, before, stateHash(f.st, 0), name)
	}
	revision := f.must(c).(uint64)
	f.refuses(ErrStale, c)
	require.Equal(t, []string{"a", "b"}, f.memberIDs("g"))

	old := f.image().Group("g")
	f.must(f.change(&Group{Name: "g", State: GroupStable, Generation: 1}))
	require.Equal(t, []string{"a", "b"}, f.memberIDs("g"), "members stay when none is named")
	require.Same(t, old.Members[0], f.image().Group("g").Members[0])
	require.Greater(t, f.image().Group("g").Revision, revision)

	assign := f.change(&Group{Name: "g", State: GroupStable, Generation: 1})
	assign.assign = []MemberAssignment{{"a", []byte("x")}, {"b", []byte("y")}}
	f.must(assign)
	require.Equal(t, []byte("y"), f.image().Group("g").Member("b").Assignment)
	require.Nil(t, old.Member("b").Assignment, "an Image is never written to")

	for name, bad := range map[string]func(c *changeGroup){
		"assignment of a stranger": func(c *changeGroup) { c.assign = []MemberAssignment{{Member: "z"}} },
		"a member twice":           func(c *changeGroup) { c.upsert = []*GroupMember{{ID: "z"}, {ID: "z"}} },
	} {
		c := f.change(&Group{Name: "g", Generation: 1})
		bad(c)
		before := stateHash(f.st, 0)
		f.refuses(ErrInvalidRequest, c)
		require.Equal(t, before, stateHash(f.st, 0), name)
	}
	f.refuses(ErrStale, f.change(&Group{Name: "g", Generation: 0})) // back

	swap := f.change(&Group{Name: "g", Generation: 2, EmptySince: 77}, &GroupMember{ID: "c"}, &GroupMember{ID: "b", ClientID: "new"})
	swap.remove = []string{"a", "nobody"}
	f.must(swap)
	require.Equal(t, []string{"b", "c"}, f.memberIDs("g"))
	require.Equal(t, "new", f.image().Group("g").Member("b").ClientID)
	require.Zero(t, f.image().Group("g").EmptySince, "it has members")

	del := f.change(&Group{Name: "g"})
	del.delete, del.time = true, 5
	f.refuses(ErrGroupNotEmpty, del)
	del.remove = []string{"b", "c"}
	f.must(del)
	require.Nil(t, f.image().Group("g"))
	require.Equal(t, int32(2), f.image().LastGeneration("g"))
	f.refuses(ErrStale, del)
	none := f.change(&Group{Name: "other"})
	none.delete = true
	f.refuses(ErrGroupNotFound, none)
	f.refuses(ErrStale, f.change(&Group{Name: "g", Generation: 1}))
	require.Greater(t, f.must(f.change(&Group{Name: "g", Generation: 3})).(uint64), revision, "no revision comes back with the name")
	checkState(t, f.st)
}

func (f *testFSM) memberIDs(group string) (ids []string) {
	for _, m := range f.image().Group(group).Members {
		ids = append(ids, m.ID)
	}
	return ids
}

// D6: the groups of a broker that is fenced as dead are marked, of one that comes back without good-bye too; those of others
// and of a planned move are not. The mark changes the revision, so that a coordinator that was away for a moment sees it.
func TestInterruptedGroups(t *testing.T) {
	f := groupsFSM(t)
	names := map[BrokerID]string{}
	for id := BrokerID(1); id <= 3; id++ {
		names[id] = f.ownedBy(id, "g")
		f.must(f.change(&Group{Name: names[id], Generation: 1}, &GroupMember{ID: "m"}))
	}
	empty := f.ownedBy(1, "empty")
	f.must(f.change(&Group{Name: empty, Generation: 1, EmptySince: 4}))
	interrupted := func() (out []BrokerID) {
		for id := BrokerID(1); id <= 3; id++ {
			if f.image().Group(names[id]).Interrupted {
				out = append(out, id)
			}
		}
		return out
	}
	unmark := func() {
		for _, name := range names {
			f.must(f.change(&Group{Name: name, Generation: 1}))
		}
		require.Empty(t, interrupted())
	}
	revision := f.image().Group(names[1]).Revision
	out := f.must(&alterBroker{broker: 1, epoch: f.st.broker(1).Epoch, fenced: pb.Switch_SWITCH_ON}).(failover)
	require.Equal(t, 1, out.Interrupted)
	require.Equal(t, []BrokerID{1}, interrupted())
	require.False(t, f.image().Group(empty).Interrupted, "nobody is there to be told")
	require.Greater(t, f.image().Group(names[1]).Revision, revision)
	f.fence(1, false)
	require.Equal(t, []BrokerID{1}, interrupted(), "the mark stays until a coordinator takes it off")
	unmark()

	require.Equal(t, 1, f.must(f.again(broker(2, 5))).(registered).Interrupted, "crashed and started before anybody noticed")
	require.Equal(t, []BrokerID{2}, interrupted())
	unmark()

	f.must(&alterBroker{broker: 3, epoch: f.st.broker(3).Epoch, leaving: pb.Switch_SWITCH_ON})
	require.Empty(t, interrupted())
	by, _ := f.by(names[3])
	require.NotEqual(t, BrokerID(3), by, "moved already")
	f.fence(3, true)
	f.must(f.again(broker(3, 5)))
	require.Empty(t, interrupted(), "a planned stop resumes")

	f.must(&alterBroker{broker: 2, epoch: f.st.broker(2).Epoch, draining: pb.Switch_SWITCH_ON})
	f.fence(2, true)
	require.Empty(t, interrupted(), "in maintenance it coordinated nothing")
}

// G1, G7: commits are fenced when they are applied; of a consumer group, KIP-1251 lets a member that has not heard of its
// present epoch commit what it has held since the one it knows, whichever protocol it speaks.
func TestCommitFenceOfConsumerGroups(t *testing.T) {
	f := groupsFSM(t)
	f.must(topicCommand(2, "clicks", on(1), on(2), on(3)))
	f.must(f.change(&Group{Name: "g", Type: ConsumerGroup, State: GroupStable, Generation: 9, AssignmentEpoch: 9}, &GroupMember{
		ID: "m", MemberEpoch: 7, PreviousMemberEpoch: 6,
		Assigned: []TopicPartitions{{TopicID{1}, []int32{0, 1}, []int32{3, 7}}, {TopicID: TopicID{2}, Partitions: []int32{2}}},
		Revoking: []TopicPartitions{{TopicID{2}, []int32{0}, []int32{5}}},
	}, &GroupMember{
		ID: "old", MemberEpoch: 7, PreviousMemberEpoch: 6, Protocols: []GroupProtocol{{Name: "range"}},
		Assigned: []TopicPartitions{{TopicID{2}, []int32{1}, []int32{6}}}, Revoking: []TopicPartitions{{TopicID{1}, []int32{2}, []int32{4}}},
	}))
	of := func(topic byte, partition int32) []OffsetEntry {
		return []OffsetEntry{{TopicID{topic}, partition, 1, -1, ""}}
	}
	for _, c := range []struct {
		name       string
		member     string
		generation int32
		offsets    []OffsetEntry
		want       error
	}{
		{"present epoch", "m", 7, of(1, 1), nil},
		{"present epoch, of what it does not own", "m", 7, of(2, 1), nil},
		{"held since 3", "m", 5, of(1, 0), nil},
		{"held since before epochs", "m", 0, of(2, 2), nil},
		{"to be given up", "m", 6, of(2, 0), nil},
		{"given later", "m", 6, of(1, 1), ErrStaleMemberEpoch},
		{"one of two given later", "m", 6, slices.Concat(of(1, 0), of(1, 1)), ErrStaleMemberEpoch},
		{"not its own", "m", 6, of(2, 1), ErrStaleMemberEpoch},
		{"before it was given", "m", 2, of(1, 0), ErrStaleMemberEpoch},
		{"from the future", "m", 8, of(1, 0), ErrStaleMemberEpoch},
		{"group epoch", "m", 9, of(1, 0), ErrStaleMemberEpoch},
		{"no epoch", "m", -1, of(1, 0), ErrStaleMemberEpoch},
		{"a stranger", "x", 7, of(1, 0), ErrUnknownMember},
		{"from outside", "", -1, of(1, 0), ErrUnknownMember},
		{"classic member", "old", 7, of(1, 0), nil},
		{"classic member, held since 6", "old", 6, of(2, 1), nil},
		{"classic member, to be given up", "old", 5, of(1, 2), nil},
		{"classic member, given later", "old", 5, of(2, 1), ErrIllegalGeneration},
		{"classic member, one of two given later", "old", 5, slices.Concat(of(1, 2), of(2, 1)), ErrIllegalGeneration},
		{"classic member, not its own", "old", 6, of(1, 0), ErrIllegalGeneration},
		{"classic member, from the future", "old", 8, of(2, 1), ErrIllegalGeneration},
		{"classic member, no generation", "old", -1, of(2, 1), ErrIllegalGeneration},
	} {
		before := f.st.offsets
		out := f.commit1(OffsetCommit{Group: "g", Member: c.member, Generation: c.generation, Offsets: c.offsets})
		require.Equal(t, c.want, out.err, c.name)
		if c.want != nil {
			require.Equal(t, before.root, f.st.offsets.root, "%s: no trace", c.name)
		}
	}
	gone := f.change(&Group{Name: "g", Type: ConsumerGroup, Generation: 10, EmptySince: 1})
	gone.remove = []string{"m", "old"}
	f.must(gone)
	require.NoError(t, f.commit1(OffsetCommit{Group: "g", Generation: -1, Offsets: of(1, 0)}).err, "nobody is there")
	require.NoError(t, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: -1, Offsets: of(1, 0)}).err)
	require.Equal(t, ErrUnknownMember, f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 7, Offsets: of(1, 0)}).err)
	checkState(t, f.st)
}

// I18, M11: a batch of commits that was held up on its way undoes nothing: not behind a later one of its lane, not after
// another broker coordinated in between, not after its own process was replaced.
func TestLateBatchOfCommits(t *testing.T) {
	f := groupsFSM(t)
	at := func(offset int64) OffsetCommit {
		return OffsetCommit{Group: "g", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, offset, -1, ""}}}
	}
	held, later := f.commits(at(10)), f.commits(at(20))
	f.must(later)
	f.refuses(ErrStale, held)
	f.refuses(ErrStale, later)
	other := *held
	other.lane = 1
	f.must(&other) // lanes are apart
	f.must(f.commits(at(20)))

	held = f.commits(at(30))
	first, _ := f.by("g")
	f.fence(first, true)
	require.Equal(t, ErrStale, f.refusal(held), "the epoch is another one")
	f.must(f.commits(at(40)))
	f.fence(first, false)
	again, _ := f.by("g")
	require.Equal(t, first, again)
	f.refuses(ErrStale, held)
	o, _ := f.image().Offset("g", TopicID{1}, 0)
	require.Equal(t, int64(40), o.Offset)

	held = f.commits(at(50))
	f.must(f.again(broker(first, 9)))
	f.refuses(ErrNotCoordinator, held)
	fresh := f.commits(at(60))
	fresh.sequence = 1
	f.must(fresh) // a new process begins at 1 again
	f.must(&deleteTopic{id: TopicID{1}})
	if !f.st.broker(first).Fenced {
		f.fence(first, true)
	}
	f.must(&unregisterBroker{broker: first, epoch: f.st.broker(first).Epoch})
	for _, s := range f.st.commitSequences {
		require.NotEqual(t, first, s.Broker, "forgotten with its broker")
	}
	checkState(t, f.st)
}

// refusal returns the error of a command that must be refused.
func (f *testFSM) refusal(c command) error {
	f.t.Helper()
	_, err := f.do(c)
	require.Error(f.t, err)
	return err
}

// A batch is of many groups; each commit is for itself, also when some of the groups have moved away (G2).
func TestBatchOfManyGroups(t *testing.T) {
	f := groupsFSM(t)
	a, b := f.ownedBy(1, "a"), f.ownedBy(2, "b")
	commits := []OffsetCommit{
		{Group: a, Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 1, -1, ""}, {TopicID{1}, 2, 1, -1, ""}, {TopicID{1}, 1, 2, 4, "x"}}},
		{Group: b, Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 1, -1, ""}}},
		{Group: a, Generation: 5, Member: "m", Offsets: []OffsetEntry{{TopicID{1}, 0, 9, -1, ""}}},
		{Group: a, Generation: -1},
	}
	out := f.must(f.commits(commits...)).([]commitOutcome)
	require.Equal(t, []error{nil, ErrUnknownPartition, nil}, out[0].entries)
	require.NoError(t, out[0].err)
	require.Equal(t, ErrNotCoordinator, out[1].err)
	require.Equal(t, ErrUnknownMember, out[2].err, "the first made the group")
	require.Equal(t, commitOutcome{}, out[3])
	require.Nil(t, f.image().Group(b))
	require.Equal(t, 2, f.image().OffsetCount())
	require.Equal(t, []error{ErrUnknownTopicID}, f.commit1(OffsetCommit{Group: "none", Generation: -1, Offsets: []OffsetEntry{{TopicID{8}, 0, 1, -1, ""}}}).entries)
	require.Nil(t, f.image().Group("none"), "nothing was committed")
	checkState(t, f.st)
}

// M21: offsets die with their topic id: at once to readers, and a new topic of the name does not inherit them; what is left
// of them goes when offsets expire, also of a group with members.
func TestOffsetsDieWithTheirTopic(t *testing.T) {
	f := groupsFSM(t)
	f.must(topicCommand(2, "kept", on(1)))
	f.commit1(OffsetCommit{Group: "g", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 5, -1, ""}, {TopicID{2}, 0, 6, -1, ""}, {TopicID{1}, 1, 7, -1, ""}}})
	f.must(&deleteTopic{id: TopicID{1}})
	_, ok := f.image().Offset("g", TopicID{1}, 0)
	require.False(t, ok)
	require.Equal(t, map[TopicIDPartition]CommittedOffset{{TopicID{2}, 0}: {Offset: 6, LeaderEpoch: -1}}, entriesOfSeq(f.image().Offsets("g")))
	f.must(topicCommand(3, "orders", on(1)))
	_, ok = f.image().Offset("g", TopicID{3}, 0)
	require.False(t, ok)
	require.Equal(t, 3, f.image().OffsetCount())
	f.must(f.change(&Group{Name: "g", Generation: 1}, &GroupMember{ID: "m"}))
	require.Equal(t, expired{Offsets: 2}, f.expire("g", 0, 1000))
	require.Equal(t, 1, f.image().OffsetCount())
	require.Equal(t, expired{}, f.expire("g", math.MaxInt64, 1000))
	checkState(t, f.st)
}

// expire does what a coordinator of the group proposes at a time.
func (f *testFSM) expire(group string, now, retention int64) (out expired) {
	id, epoch := f.by(group)
	for _, c := range f.image().expirations(id, now, retention, nil) {
		c.epoch = epoch
		did := f.must(c).(expired)
		out.Offsets += did.Offsets
		out.Groups += did.Groups
	}
	return out
}

// G11: offsets expire from when the group became empty, never while it has members, those of simple consumers from their
// commit; a commit's own time counts where it has one; at last the group goes, and then the memory of its generation.
func TestOffsetExpiry(t *testing.T) {
	const retention = 100
	f := groupsFSM(t)
	f.must(f.change(&Group{Name: "g", Generation: 4, ProtocolType: "consumer"}, &GroupMember{ID: "m"}))
	entry := func(p int32) []OffsetEntry { return []OffsetEntry{{TopicID{1}, p, 1, -1, ""}} }
	f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 4, Time: 10, Offsets: entry(0)})
	f.commit1(OffsetCommit{Group: "g", Member: "m", Generation: 4, Time: 20, ExpiresAt: 5000, Offsets: entry(1)})
	require.Equal(t, expired{}, f.expire("g", 1<<40, retention), "8 days later, or whatever a clock says: it has a member")
	leave := f.change(&Group{Name: "g", Generation: 4, ProtocolType: "consumer", EmptySince: 1000})
	leave.remove = []string{"m"}
	f.must(leave)
	require.Equal(t, expired{}, f.expire("g", 1099, retention))
	stale := f.image().expirations(leave.broker, 1100, retention, nil)
	require.Len(t, stale, 1)
	f.must(f.change(&Group{Name: "g", Generation: 5}, &GroupMember{ID: "m"}))
	stale[0].epoch = leave.epoch
	require.Equal(t, expired{}, f.must(stale[0]), "somebody joined between the look and the command")
	leave = f.change(&Group{Name: "g", Generation: 5, EmptySince: 1000})
	leave.remove = []string{"m"}
	f.must(leave)
	require.Equal(t, expired{Offsets: 1}, f.expire("g", 1100, retention))
	require.Equal(t, expired{}, f.expire("g", 4999, retention))
	require.Equal(t, expired{Offsets: 1, Groups: 1}, f.expire("g", 5000, retention), "the last one takes the group along")
	require.Nil(t, f.image().Group("g"))
	require.Equal(t, int32(5), f.image().LastGeneration("g"))
	f.expire("g", 5099, retention)
	require.Equal(t, int32(5), f.image().LastGeneration("g"))
	f.expire("g", 5100, retention)
	require.Zero(t, f.image().LastGeneration("g"))

	f.commit1(OffsetCommit{Group: "simple", Generation: -1, Time: 10, Offsets: entry(0)})
	f.commit1(OffsetCommit{Group: "simple", Generation: -1, Time: 60, Offsets: entry(1)})
	require.Equal(t, expired{}, f.expire("simple", 109, retention))
	require.Equal(t, expired{Offsets: 1}, f.expire("simple", 110, retention))
	require.Equal(t, expired{Offsets: 1, Groups: 1}, f.expire("simple", 160, retention))
	require.Zero(t, f.st.offsetCount)

	other := f.ownedBy(2, "other")
	f.commit1(OffsetCommit{Group: other, Generation: -1, Time: 10, Offsets: entry(0)})
	require.Empty(t, f.image().expirations(1, 1<<40, retention, nil), "not its group")
	c := f.image().expirations(2, 1<<40, retention, nil)[0]
	c.broker, c.epoch = 1, f.st.broker(1).Epoch
	require.Equal(t, expired{}, f.must(c))
	checkState(t, f.st)
}

// A change that nobody could apply is refused before it is proposed: one without a type, or of a generation that can't be
// counted any more.
func TestImpossibleGroupChanges(t *testing.T) {
	good := GroupChange{Group: "g", Type: ClassicGroup, Generation: 1<<31 - 1}
	require.NoError(t, good.check())
	for name, edit := range map[string]func(*GroupChange){
		"no name":    func(c *GroupChange) { c.Group = "" },
		"no type":    func(c *GroupChange) { c.Type = 0; c.Delete = true },
		"no state":   func(c *GroupChange) { c.State = GroupStable + 1 },
		"generation": func(c *GroupChange) { c.Generation++ },
		"member":     func(c *GroupChange) { c.Upsert = []*GroupMember{{}} },
		"seek":       func(c *GroupChange) { c.Seek = &GroupSeek{Offsets: []OffsetEntry{{Offset: -2}}} },
		"deleted":    func(c *GroupChange) { c.Seek, c.Delete = &GroupSeek{Offsets: []OffsetEntry{{}}}, true },
	} {
		c := good
		edit(&c)
		require.ErrorIs(t, c.check(), ErrInvalidRequest, name)
		body, err := encodeBody(nil, newChangeGroup(&c))
		require.NoError(t, err)
		_, err = decodeChangeGroup(body)
		require.Error(t, err, "%s: no broker could apply it", name)
	}
}

// A seek sets the offsets of a group and puts its members out in one step, or does nothing: no commit of the members counts
// from then on (G1), nor what a transaction had pending of these partitions. It tells what there was until then.
func TestSeekGroup(t *testing.T) {
	f := transactionsFSM(t)
	f.must(topicCommand(5, "logs", on(1), on(2), on(3)))
	entry := func(p int32, offset int64) OffsetEntry { return OffsetEntry{TopicID{5}, p, offset, -1, ""} }
	f.must(f.change(&Group{Name: "g", State: GroupStable, Generation: 4}, &GroupMember{ID: "m"}))
	commit := OffsetCommit{Group: "g", Member: "m", Generation: 4, Time: 10, ExpiresAt: 99, Offsets: []OffsetEntry{entry(0, 7), entry(1, 8)}}
	require.NoError(t, f.commit1(commit).err)
	x := f.ongoing("x", 7, "g")
	pending := offsetsOf(x, "g", 50)
	pending.Member, pending.Generation = "m", 4
	pending.Offsets = []OffsetEntry{entry(0, 50), entry(1, 51), entry(2, 52)}
	require.Equal(t, stepOutcome{}, f.step("x", pending))

	seek := func(offsets ...OffsetEntry) *changeGroup {
		c := f.change(&Group{Name: "g", Generation: 5, EmptySince: 20})
		c.remove, c.seek, c.time = []string{"m"}, offsets, 20
		return c
	}
	for want, bad := range map[error]OffsetEntry{ErrUnknownTopicID: {TopicID: TopicID{9}}, ErrUnknownPartition: entry(1000, 1)} {
		f.refuses(want, seek(entry(0, 1), bad))
	}
	stale := seek(entry(0, 1))
	stale.group.Revision--
	f.refuses(ErrStale, stale)
	require.Len(t, f.st.group("g").Members, 1)

	did := f.must(seek(entry(0, 1), entry(1, -1), entry(2, -1))).(sought)
	checkState(t, f.st)
	require.Equal(t, f.st.group("g").Revision, did.revision)
	require.Equal(t, []int64{7, 8, -1}, []int64{did.prior[0].Offset, did.prior[1].Offset, did.prior[2].Offset})
	require.Empty(t, f.st.group("g").Members)
	require.ErrorIs(t, f.commit1(commit).err, ErrUnknownMember)
	f.alter(ends(f.st.transaction("x"), TransactionPrepareCommit))
	is := func() map[TopicIDPartition]CommittedOffset { return entriesOfSeq(f.image().Offsets("g")) }
	require.Equal(t, map[TopicIDPartition]CommittedOffset{{TopicID{5}, 0}: {Offset: 1, LeaderEpoch: -1, CommittedAt: 20}}, is())

	c := f.change(&Group{Name: "g", Generation: 5})
	c.seek = []OffsetEntry{entry(0, -1)}
	f.must(c)
	require.Empty(t, is())
	checkState(t, f.st)
}

// A deletion of offsets takes what it names, on the revision it was decided on.
func TestDeleteOffsetsCommand(t *testing.T) {
	f := groupsFSM(t)
	f.commit1(OffsetCommit{Group: "g", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 5, -1, ""}, {TopicID{1}, 1, 6, -1, ""}}})
	id, epoch := f.by("g")
	c := &deleteOffsets{broker: id, epoch: epoch, group: "g", revision: f.st.group("g").Revision, partitions: []TopicIDPartition{{TopicID{1}, 1}, {TopicID{4}, 1}}}
	zombie := *c
	zombie.epoch++
	f.refuses(ErrNotCoordinator, &zombie)
	old := f.image()
	f.must(c)
	require.Equal(t, 1, f.image().OffsetCount())
	_, ok := old.Offset("g", TopicID{1}, 1)
	require.True(t, ok, "an Image is never written to")
	c.revision++
	f.refuses(ErrStale, c)
	c.revision, c.partitions = 0, []TopicIDPartition{{TopicID{1}, 0}}
	f.must(c)
	f.must(c)
	require.Zero(t, f.image().OffsetCount())
	require.NotNil(t, f.image().Group("g"))
	c.group = f.ownedBy(id, "x")
	f.refuses(ErrGroupNotFound, c)
	checkState(t, f.st)
}

// The difference of two Images shows groups that changed, and no offsets.
func TestChangedGroups(t *testing.T) {
	f := groupsFSM(t)
	for _, name := range []string{"a", "b", "c"} {
		f.must(f.change(&Group{Name: name, Generation: 1}))
	}
	before := f.image()
	f.must(f.change(&Group{Name: "b", Generation: 2}))
	del := f.change(&Group{Name: "c"})
	del.delete = true
	f.must(del)
	f.must(f.change(&Group{Name: "d", Generation: 1}))
	f.commit1(OffsetCommit{Group: "a", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 5, -1, ""}}})
	var seen []string
	for old, now := range f.image().ChangedGroups(before) {
		switch {
		case old == nil:
			seen = append(seen, "+"+now.Name)
		case now == nil:
			seen = append(seen, "-"+old.Name)
		default:
			seen = append(seen, now.Name)
		}
	}
	require.Equal(t, []string{"b", "-c", "+d"}, seen)
	n := 0
	for range f.image().ChangedGroups(nil) {
		n++
	}
	require.Equal(t, 3, n)
	require.Equal(t, 3, f.image().GroupCount())
}

// A snapshot of groups whose checksums are right and whose contents no sequence of commands could have made is refused.
func TestSnapshotOfImpossibleGroups(t *testing.T) {
	header := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: 2, GroupRevision: 9}}}
	footer := func(n uint64) *pb.SnapshotRecord {
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Footer{Footer: &pb.SnapshotFooter{Records: n}}}
	}
	group := func(name string, change func(g *pb.Group)) *pb.SnapshotRecord {
		g := &pb.Group{Name: name, Type: 1, Revision: 3}
		if change != nil {
			change(g)
		}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Group{Group: g}}
	}
	two := func(g *pb.Group) { g.Members = 2 }
	members := func(ids ...string) *pb.SnapshotRecord {
		m := &pb.SnapshotMembers{}
		for _, id := range ids {
			m.Members = append(m.Members, &pb.GroupMember{Id: id})
		}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Members{Members: m}}
	}
	offsets := func(name string, partitions ...uint32) *pb.SnapshotRecord {
		m := &pb.OffsetColumns{TopicIds: append([]byte{1}, make([]byte, 15)...), Counts: []uint32{uint32(len(partitions))}, Partitions: partitions,
			Offsets: make([]int64, len(partitions)), CommittedAt: make([]int64, len(partitions))}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Offsets{Offsets: &pb.SnapshotOffsets{Group: name, Offsets: m}}}
	}
	last := func(name string, generation int32) *pb.SnapshotRecord {
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_LastGenerations{LastGenerations: &pb.SnapshotLastGenerations{
			Groups: []string{name}, Generations: []int32{generation}, DeletedAt: []int64{1}}}}
	}
	sequences := func(brokers ...int32) *pb.SnapshotRecord {
		m := &pb.SnapshotCommitSequences{Brokers: brokers}
		for range brokers {
			m.Epochs, m.Lanes, m.Sequences = append(m.Epochs, 1), append(m.Lanes, 0), append(m.Sequences, 1)
		}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_CommitSequences{CommitSequences: m}}
	}
	good := []*pb.SnapshotRecord{header, group("a", two), members("x"), members("y"), group("b", nil), offsets("a", 1, 2), offsets("a", 3), offsets("b", 0), last("c", 1), sequences(1, 2), footer(10)}
	st, _, err := readSnapshot(bytes.NewReader(framed(t, good...)))
	require.NoError(t, err, "the good one")
	checkState(t, st)
	for want, records := range map[string][]*pb.SnapshotRecord{
		"group \"b\" out of order":         {header, group("b", nil), group("b", nil)},
		"without name":                     {header, group("", nil)},
		"of type 9":                        {header, group("a", func(g *pb.Group) { g.Type = 9 })},
		"in state 7":                       {header, group("a", func(g *pb.Group) { g.State = 7 })},
		"generation -1":                    {header, group("a", func(g *pb.Group) { g.Generation = -1 })},
		"revision 10 of 9":                 {header, group("a", func(g *pb.Group) { g.Revision = 10 })},
		"revision 0":                       {header, group("a", func(g *pb.Group) { g.Revision = 0 })},
		"and is empty":                     {header, group("a", func(g *pb.Group) { g.Members, g.EmptySince = 1, 5 })},
		"lacks 1":                          {header, group("a", two), members("x"), group("b", nil)},
		"1 members too many":               {header, group("a", two), members("x", "y", "z")},
		"member \"x\" out of order":        {header, group("a", two), members("x", "x")},
		"without id":                       {header, group("a", two), members("")},
		"members too many":                 {header, members("x")},
		"which is not there":               {header, group("a", nil), offsets("b", 1)},
		"group \"a\" out of order":         {header, group("a", nil), group("b", nil), offsets("b", 1), offsets("a", 1)},
		"no offsets":                       {header, group("a", nil), offsets("a")},
		"AAAAAAAAAAAA out of order":        {header, group("a", nil), offsets("a", 2, 1)},
		"partition 4294967295":             {header, group("a", nil), offsets("a", math.MaxUint32)},
		"last generation 1 of group \"a\"": {header, group("a", nil), last("a", 1)},
		"last generation 0":                {header, last("a", 0)},
		"broker 1 out of order":            {header, sequences(1, 1)},
		"sequences twice":                  {header, sequences(1), sequences(2)},
		"commit sequences in columns":      {header, sequences()},
	} {
		_, _, err := readSnapshot(bytes.NewReader(framed(t, append(records, footer(uint64(len(records))))...)))
		require.ErrorContains(t, err, want)
	}
}
