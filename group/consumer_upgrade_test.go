package group

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// joinAs is join of a classic consumer for which the coordinator would make that id.
func (b *consumerBench) joinAs(newID, id string, owned ...int32) *JoinResult {
	n := len(b.joins)
	b.step(&Join{JoinRequest: &JoinRequest{
		Group: "g", Member: id, SessionTimeout: 30 * time.Second, RebalanceTimeout: time.Minute, ProtocolType: "consumer",
		Protocols: []Protocol{{Name: "cooperative-sticky", Metadata: subscriptionOf("a", owned...)}},
	}, NewID: newID, Waiter: newID, Settings: &b.settings, Topics: &b.topics})
	if len(b.joins) == n {
		return nil
	}
	return &b.joins[n]
}

func shareOf(member string, partitions ...int32) Assignment {
	return Assignment{member, appendAssignment(nil, []namedPartitions{{"a", partitions}})}
}

// twoClassic makes a classic group of x, which leads and has the partitions 0 and 1, and y with 2 and 3. It returns the
// generation, and is in it for the time of one heartbeat.
func (b *consumerBench) twoClassic() int32 {
	b.settings.InitialRebalanceDelay = 0
	first := b.joinAs("x", "")
	require.NoError(b.t, first.Err)
	require.NoError(b.t, b.sync("x", first.Generation, shareOf("x", 0, 1)).Err)
	b.now.At += Instant(10 * time.Second) // no storm
	require.Nil(b.t, b.joinAs("y", ""))
	second := b.joinAs("x", "x", 0, 1)
	require.NoError(b.t, second.Err)
	require.NoError(b.t, b.sync("x", second.Generation, shareOf("x", 0, 1), shareOf("y", 2, 3)).Err)
	require.NoError(b.t, b.sync("y", second.Generation).Err)
	b.now.At += Instant(10 * time.Second)
	require.NoError(b.t, b.heartbeat("x", second.Generation))
	require.NoError(b.t, b.heartbeat("y", second.Generation))
	return second.Generation
}

// D12: an application is changed over by restarting its consumers one by one. One that has left is not there any more when
// the group changes its protocol, though the rebalance that its leave began is not over: what it had is free at once, and not
// only after its session.
func TestUpgradeForgetsWhoHasLeft(t *testing.T) {
	b := newConsumerBench(t)
	generation := b.twoClassic()
	b.step(&Leave{LeaveRequest: &LeaveRequest{Group: "g", Members: []LeavingMember{{Member: "x"}}}, Waiter: "leave"})
	require.Equal(t, StatePreparing, b.core.classic.state, "y has yet to join")

	joined := b.beat(joinRequest("new", "a"))
	require.NoError(t, joined.Err)
	require.Equal(t, metadata.ConsumerGroup, b.record.Type)
	require.Nil(t, b.record.Member("x"))
	require.NotNil(t, b.record.Member("y"))
	require.Equal(t, set(1, 0, 1), plain(joined.Assignment))
	require.ErrorIs(t, b.heartbeat("x", generation), ErrUnknownMember)
	require.ErrorIs(t, b.heartbeat("y", generation), ErrRebalanceInProgress)
}

// I18: a group that changes its protocol between a generation and its assignments. Members of cooperative assignors own what
// they said they own, and nobody else is given that.
func TestUpgradeBeforeTheAssignment(t *testing.T) {
	b := newConsumerBench(t)
	b.settings.InitialRebalanceDelay = 0
	first := b.joinAs("x", "")
	require.NoError(t, b.sync("x", first.Generation, shareOf("x", 0, 1, 2, 3)).Err)
	b.now.At += Instant(10 * time.Second)
	require.Nil(t, b.joinAs("y", ""))
	second := b.joinAs("x", "x", 0, 1, 2, 3)
	require.NoError(t, second.Err)
	require.Equal(t, metadata.GroupCompleting, b.record.State, "x has yet to assign, and works on")

	joined := b.beat(joinRequest("new", "a"))
	require.NoError(t, joined.Err)
	require.Equal(t, metadata.ConsumerGroup, b.record.Type)
	require.Empty(t, joined.Assignment, "x has all of it")
	require.NoError(t, b.commitAs("x", second.Generation))
	require.ErrorIs(t, b.heartbeat("x", second.Generation), ErrRebalanceInProgress)
	res := b.joinAs("x", "x", 0, 1, 2, 3)
	require.Equal(t, second.Generation, res.Generation, "it has yet to give up two")
	kept, err := readAssignment(b.sync("x", res.Generation).Assignment)
	require.NoError(t, err)
	require.Len(t, kept[0].partitions, 2)
	res = b.joinAs("x", "x", kept[0].partitions...)
	require.Greater(t, res.Generation, second.Generation)
}

// I18: and behind the assignments, what a member is to give up by them, and has not given up yet: cooperative assignors give
// that to nobody before it has joined again.
func TestUpgradeBeforeTheRevocation(t *testing.T) {
	b := newConsumerBench(t)
	b.settings.InitialRebalanceDelay = 0
	first := b.joinAs("x", "")
	require.NoError(t, b.sync("x", first.Generation, shareOf("x", 0, 1, 2, 3)).Err)
	b.now.At += Instant(10 * time.Second)
	require.Nil(t, b.joinAs("y", ""))
	second := b.joinAs("x", "x", 0, 1, 2, 3)
	require.NoError(t, b.sync("x", second.Generation, shareOf("x", 0, 1), shareOf("y")).Err)
	require.NoError(t, b.sync("y", second.Generation).Err)

	joined := b.beat(joinRequest("new", "a"))
	require.NoError(t, joined.Err)
	require.Empty(t, joined.Assignment, "2 and 3 are on their way out of x's hands")
	res := b.joinAs("x", "x", 0, 1) // as the protocol has it
	require.NoError(t, res.Err)
	require.ErrorIs(t, b.heartbeat("y", second.Generation), ErrRebalanceInProgress)
	got := b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: joined.Epoch, RebalanceTimeout: -1})
	require.NotEmpty(t, got.Assignment)
}

// An id that was handed out and never used (KIP-394) makes no classic group: a consumer of the other protocol may come.
func TestHandedOutIDKeepsNoConsumerOut(t *testing.T) {
	b := newConsumerBench(t)
	b.step(&Join{JoinRequest: &JoinRequest{
		Group: "g", SessionTimeout: 30 * time.Second, ProtocolType: "consumer", RequireKnownMember: true,
		Protocols: []Protocol{{Name: "range", Metadata: subscriptionOf("a")}},
	}, NewID: "never", Waiter: "never", Settings: &b.settings, Topics: &b.topics})
	require.ErrorIs(t, b.joins[0].Err, ErrMemberIDRequired)
	joined := b.beat(joinRequest("new", "a"))
	require.NoError(t, joined.Err)
	require.Equal(t, set(1, 0, 1, 2, 3), plain(joined.Assignment))
	res := b.join("never")
	require.NoError(t, res.Err, "and who comes with the id after all may join, too")
}

// I18: of what a member has to give up it says that it has a part. The rest may be on its way to it: nobody gets that
// before the member has gone on from its epoch, in which its commits of it count.
func TestNothingIsGivenAwayInTheOldEpoch(t *testing.T) {
	b := newConsumerBench(t)
	a := b.beat(joinRequest("m1", "a"))
	require.Equal(t, set(1, 0, 1, 2, 3), plain(a.Assignment))
	other := b.beat(joinRequest("m2", "a"))
	require.Empty(t, other.Assignment)

	next := b.beat(ConsumerHeartbeatRequest{Member: "m1", Epoch: a.Epoch, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1, 2)})
	require.NoError(t, next.Err)
	require.Equal(t, a.Epoch, next.Epoch)
	require.Equal(t, set(1, 0, 1), plain(next.Assignment))
	got := b.beat(ConsumerHeartbeatRequest{Member: "m2", Epoch: other.Epoch, RebalanceTimeout: -1})
	require.Empty(t, plain(got.Assignment), "m1 may have taken up partition 3 by now")

	next = b.beat(ConsumerHeartbeatRequest{Member: "m1", Epoch: a.Epoch, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1)})
	require.Equal(t, other.Epoch, next.Epoch)
	got = b.beat(ConsumerHeartbeatRequest{Member: "m2", Epoch: other.Epoch, RebalanceTimeout: -1})
	require.Equal(t, set(1, 2, 3), plain(got.Assignment))
}

// G14: the offsets of a transaction are judged by the core of a consumer group as those of others are.
func TestTransactionCommitOfConsumerGroup(t *testing.T) {
	b := newConsumerBench(t)
	joined := b.beat(joinRequest("m1", "a"))
	commit := func(id string, epoch int32) error {
		acts := b.core.Step(b.now, &CommitTransaction{&CommitRequest{Group: "g", Member: id, Generation: epoch}})
		require.Len(t, acts, 1)
		require.Equal(t, ActionAnswer, acts[0].Kind)
		return acts[0].Err
	}
	require.NoError(t, commit("m1", joined.Epoch))
	require.NoError(t, commit("", -1), "a client from before KIP-447")
	require.ErrorIs(t, commit("m2", joined.Epoch), ErrUnknownMember)
	require.ErrorIs(t, commit("m1", joined.Epoch+1), ErrStaleMemberEpoch)
}

// KIP-345, KIP-848: a static consumer is restarted with the other protocol. With the classic one it did not say that it goes;
// its successor takes its place all the same, with what it had, and it is fenced.
func TestStaticMemberIsChangedOver(t *testing.T) {
	b := newConsumerBench(t)
	b.settings.InitialRebalanceDelay = 0
	b.step(&Join{JoinRequest: &JoinRequest{
		Group: "g", Instance: "i", SessionTimeout: 30 * time.Second, RebalanceTimeout: time.Minute, ProtocolType: "consumer",
		Protocols: []Protocol{{Name: "range", Metadata: subscriptionOf("a")}},
	}, NewID: "old", Waiter: "old", Settings: &b.settings, Topics: &b.topics})
	res := b.joins[0]
	require.NoError(t, res.Err)
	b.step(&Sync{SyncRequest: &SyncRequest{Group: "g", Member: "old", Instance: "i", Generation: res.Generation, Assignments: []Assignment{shareOf("old", 0, 1, 2, 3)}}, Waiter: "s", Topics: &b.topics})
	require.NoError(t, b.syncs[0].Err)

	full := joinRequest("other", "a")
	b.settings.ConsumerMaxSize = 1
	before := b.changes
	require.ErrorIs(t, b.beat(full).Err, ErrGroupFull)
	require.Equal(t, metadata.ClassicGroup, b.record.Type)
	require.Equal(t, before, b.changes, "and nothing has happened to the group")

	r := joinRequest("new", "a")
	r.Instance = "i"
	joined := b.beat(r)
	require.NoError(t, joined.Err)
	require.Equal(t, set(1, 0, 1, 2, 3), plain(joined.Assignment))
	acts := b.core.Step(b.now, &Heartbeat{&HeartbeatRequest{Group: "g", Member: "old", Instance: "i", Generation: res.Generation}})
	require.ErrorIs(t, acts[0].Err, ErrFencedInstance)
	r.Member = "newer"
	require.ErrorIs(t, b.beat(r).Err, ErrUnreleasedInstance, "new is alive")
}

// I18: a classic member that was given up comes back with its id, in the middle of a cooperative rebalance, and still has what
// others have been given. It has to drop that before it is a member again.
func TestMemberThatWasGivenUpDropsWhatItHad(t *testing.T) {
	b := newConsumerBench(t)
	b.beat(joinRequest("new", "a"))
	require.ErrorIs(t, b.join("gone", 0, 1).Err, ErrUnknownMember)
	require.NoError(t, b.join("gone").Err)
}

// I20: a static member that comes back under the id of another one puts that one out, and no partition is left with neither.
func TestStaticMemberUnderAnothersID(t *testing.T) {
	b := newConsumerBench(t)
	static := joinRequest("s1", "a")
	static.Instance = "i"
	require.NoError(t, b.beat(static).Err)
	other := b.beat(joinRequest("other", "a"))
	next := b.beat(ConsumerHeartbeatRequest{Member: "s1", Instance: "i", Epoch: 1, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1, 2, 3)})
	require.NoError(t, b.beat(ConsumerHeartbeatRequest{Member: "s1", Instance: "i", Epoch: next.Epoch, RebalanceTimeout: -1, HasOwned: true, Owned: set(1, 0, 1)}).Err)
	require.Equal(t, set(1, 2, 3), plain(b.beat(ConsumerHeartbeatRequest{Member: "other", Epoch: other.Epoch, RebalanceTimeout: -1}).Assignment))
	require.NoError(t, b.beat(ConsumerHeartbeatRequest{Member: "s1", Instance: "i", Epoch: -2}).Err)

	static.Member = "other"
	require.NoError(t, b.beat(static).Err)
	require.Len(t, b.record.Members, 1)
	third := b.beat(joinRequest("third", "a"))
	require.NoError(t, third.Err)
	require.Equal(t, set(1, 2, 3), plain(third.Assignment), "nobody has them")
}
