package group

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

func seekTo(offset int64) *metadata.GroupSeek {
	return &metadata.GroupSeek{Offsets: []OffsetEntry{{TopicID: metadata.TopicID{1}, Offset: offset, LeaderEpoch: -1}}}
}

// A seek puts out the members of the generation and sets the offsets in one change, whatever the members wait for: those who
// joined again already would keep what they have in memory. Who waits for its first generation stays.
func TestSeekPutsMembersOut(t *testing.T) {
	for _, state := range []State{StateStable, StatePreparing, StateCompleting} {
		t.Run(string(state), func(t *testing.T) {
			b := newClassicBench(t)
			require.NoError(t, b.fsm.CreateTopic("orders", metadata.TopicID{1}, nil, [][]metadata.BrokerID{{0}}))
			g := b.two()
			switch state {
			case StatePreparing:
				b.join("new", "")
				b.join("a", "a")
				require.True(t, b.waits("a"))
			case StateCompleting:
				b.join("a", "a", func(r *JoinRequest) { r.Protocols[0].Metadata = []byte("other") })
				b.join("b", "b")
				g = b.joins["b"].Generation
				b.step(&Sync{SyncRequest: &SyncRequest{Member: "b", Generation: g}, Waiter: "sync-b"})
			}
			require.Equal(t, state, b.core.classic.state)
			b.step(&Seek{GroupSeek: seekTo(3), Waiter: "gentle"})
			require.ErrorIs(t, b.errs["gentle"], ErrNonEmpty)
			revision := b.record().Revision
			b.step(&Seek{GroupSeek: seekTo(3), Force: true, Waiter: "seek"})
			require.Contains(t, b.errs, "seek")
			require.NoError(t, b.errs["seek"])
			switch state {
			case StatePreparing:
				require.ErrorIs(t, b.joins["a"].Err, ErrRebalanceInProgress, "it would go on from where it is")
			case StateCompleting:
				require.ErrorIs(t, b.syncs["sync-b"].Err, ErrUnknownMember)
			}
			for _, id := range []string{"a", "b"} {
				require.Nil(t, b.record().Member(id))
				require.ErrorIs(t, b.beat(id), ErrUnknownMember)
			}
			require.Greater(t, b.record().Revision, revision)
			require.Greater(t, b.record().Generation, g)
			if state == StatePreparing {
				b.pass(3 * time.Second)
				require.NoError(t, b.joins["new"].Err)
				require.Len(t, b.record().Members, 1)
				return
			}
			require.Equal(t, StateEmpty, b.core.classic.state)
			b.step(&Seek{GroupSeek: seekTo(4), Waiter: "empty"})
			require.Contains(t, b.errs, "empty")
			require.NoError(t, b.errs["empty"])
		})
	}
}

// Who was put out and does not know it is told in its next join in a way that makes every client forget where it is, once: it may
// have learned from a commit that it is out, and would go on in the partitions that it has. Who was refused a heartbeat or its share
// knows, and who is silent for its session is forgotten.
func TestSeekTellsWhoJoinsAgain(t *testing.T) {
	sought := func() *classicBench {
		b := newClassicBench(t)
		require.NoError(t, b.fsm.CreateTopic("orders", metadata.TopicID{1}, nil, [][]metadata.BrokerID{{0}}))
		b.two()
		b.step(&Seek{GroupSeek: seekTo(3), Force: true, Waiter: "seek"})
		require.NoError(t, b.errs["seek"])
		require.False(t, b.core.Idle(), "it has something to remember")
		return b
	}
	b := sought()
	require.ErrorIs(t, b.step(&Commit{&CommitRequest{Member: "a", Generation: 1}}), ErrUnknownMember)
	require.ErrorIs(t, b.join("a", "a").Err, ErrRebalanceInProgress)
	require.ErrorIs(t, b.join("a", "a").Err, ErrUnknownMember, "once")
	// A heartbeat that is refused as well says nothing: franz-go sends it while it ends its session because of the commit, and looks
	// at no answer. (The hang of TestSeekOfBusyGroup under load.)
	require.ErrorIs(t, b.step(&Commit{&CommitRequest{Member: "b", Generation: 1}}), ErrUnknownMember)
	require.ErrorIs(t, b.beat("b"), ErrUnknownMember)
	require.ErrorIs(t, b.join("b", "b").Err, ErrRebalanceInProgress)
	require.ErrorIs(t, b.join("b", "b").Err, ErrUnknownMember, "once")
	require.Empty(t, b.core.classic.putOut)
	require.NoError(t, b.join("new", "").Err)

	// Who was put out is not taken for an administrator because he gives no generation.
	b = sought()
	require.ErrorIs(t, b.step(&Commit{&CommitRequest{Member: "a", Generation: -1}}), ErrUnknownMember)
	require.NoError(t, b.step(&Commit{&CommitRequest{Generation: -1}}))
	b.pass(time.Duration(unawareFor))
	require.True(t, b.core.Idle(), "not for ever")
	require.ErrorIs(t, b.join("a", "a").Err, ErrUnknownMember)

	b = sought()
	for i := range 3 * maxPending {
		b.core.puttingOut(b.now, &member{id: fmt.Sprint(i), record: &metadata.GroupMember{SessionTimeout: time.Minute}})
	}
	require.Len(t, b.core.classic.putOut, maxPending)
}

// A seek in a consumer group (KIP-848): its members are fenced in the very change that sets the offsets, and come back with
// epochs above.
func TestSeekOfConsumerGroup(t *testing.T) {
	b := newConsumerBench(t)
	res := b.beat(joinRequest("m", "a"))
	require.NoError(t, res.Err)
	acts := func(ev Event) (out []Action) {
		out = append(out, b.core.Step(b.now, ev)...)
		return out
	}
	for _, a := range acts(&Seek{GroupSeek: seekTo(3), Waiter: "gentle"}) {
		require.ErrorIs(t, a.Err, ErrNonEmpty)
	}
	ev := &Seek{GroupSeek: seekTo(3), Force: true, Waiter: "seek"}
	var proposed *Action
	for _, a := range acts(ev) {
		if a.Kind == ActionPropose {
			proposed = &a
		}
	}
	require.NotNil(t, proposed)
	require.Same(t, ev.GroupSeek, proposed.Change.Seek)
	require.Equal(t, []string{"m"}, proposed.Change.Remove)
	require.NoError(t, b.apply(proposed.Change))
	answers := acts(&Changed{Seq: proposed.Seq, Group: b.record})
	require.Contains(t, answers, Action{Kind: ActionAnswer, Waiter: "seek"})
	require.Equal(t, 1, ev.putOut)
	require.ErrorIs(t, b.core.consumerCommit(b.now, &CommitRequest{Member: "m", Generation: res.Epoch}), ErrUnknownMember)
	require.ErrorIs(t, b.beat(ConsumerHeartbeatRequest{Member: "m", Epoch: res.Epoch, RebalanceTimeout: -1}).Err, ErrUnknownMember)
	again := b.beat(joinRequest("m", "a"))
	require.NoError(t, again.Err)
	require.Greater(t, again.Epoch, res.Epoch)
}

// Java's member of a consumer group commits where it is under its id, without an epoch, once it has learned that it was put out: that is
// refused, however it was put out. Who has left by itself may be a consumer that assigns its partitions itself now.
func TestMembersPutOutCommitNothing(t *testing.T) {
	for name, c := range map[string]struct {
		put     func(b *consumerBench)
		refused error
	}{
		"seek": {func(b *consumerBench) { b.step(&Seek{GroupSeek: seekTo(3), Force: true}) }, ErrUnknownMember},
		"LeaveGroup of a tool": {func(b *consumerBench) {
			b.step(&Leave{LeaveRequest: &LeaveRequest{Members: []LeavingMember{{Member: "m"}}}})
		}, ErrUnknownMember},
		"its session ended": {func(b *consumerBench) {
			b.now.At += Instant(b.settings.ConsumerSessionTimeout)
			b.step(&Tick{})
		}, ErrUnknownMember},
		"it left": {func(b *consumerBench) {
			require.NoError(t, b.beat(ConsumerHeartbeatRequest{Member: "m", Epoch: -1, RebalanceTimeout: -1}).Err)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newConsumerBench(t)
			b.now.Wall = 1_700_000_000_000
			require.NoError(t, b.beat(joinRequest("m", "a")).Err)
			c.put(b)
			require.Empty(t, b.record.Members)
			fenced := &Commit{&CommitRequest{Member: "m", Generation: -1}}
			commit := func(ev *Commit) error { return b.core.Step(b.now, ev)[0].Err }
			require.ErrorIs(t, commit(fenced), c.refused)
			require.ErrorIs(t, commit(&Commit{&CommitRequest{Instance: "i", Generation: -1}}), c.refused)
			require.NoError(t, commit(&Commit{&CommitRequest{Generation: -1}}), "of an administrator's tool")
			require.Equal(t, c.refused == nil, b.core.Idle())

			// A coordinator that takes over, whose clock is another one, knows.
			was, old := b.now, b.core
			for wall, refused := range map[int64]error{
				-time.Hour.Milliseconds(): c.refused, 0: c.refused, time.Minute.Milliseconds(): c.refused, time.Duration(unawareFor).Milliseconds(): nil, time.Hour.Milliseconds(): nil,
			} {
				b.now, b.core = Time{At: was.At % 77, Wall: was.Wall + wall}, NewCore("g")
				b.step(&Loaded{Group: b.record, LastGeneration: b.generation()})
				require.ErrorIs(t, commit(fenced), refused, "clock %d ms further", wall)
				b.now.At += unawareFor
				b.step(&Tick{})
				require.True(t, b.core.Idle(), "not for ever, clock %d ms further", wall)
			}
			b.now, b.core = was, old
			for end := b.now.At + unawareFor; b.now.At < end; {
				b.now.At = min(b.core.Deadline(), end)
				b.step(&Tick{})
			}
			require.True(t, b.core.Idle(), "not for ever")
			require.NoError(t, commit(fenced))
		})
	}
}

// A seek of which nobody knows whether it was made is not taken for made because the record looks like it: another coordinator
// may have put the members out for a reason of its own. Whoever gave the order is told to give it again.
func TestSeekOfUnknownOutcome(t *testing.T) {
	b := newClassicBench(t)
	b.two()
	var proposed Action
	for _, a := range b.core.Step(b.now, &Seek{GroupSeek: seekTo(3), Force: true, Waiter: "seek"}) {
		if a.Kind == ActionPropose {
			proposed = a
		}
	}
	b.core.Step(b.now, &Changed{Seq: proposed.Seq, Err: metadata.ErrTimeout})
	ch := &change{GroupChange: proposed.Change, kind: changeSeek}
	like := &metadata.Group{Name: "g", Revision: proposed.Change.Revision + 1, Generation: proposed.Change.Generation, State: proposed.Change.State}
	require.False(t, ch.made(like))
	acts := b.core.Step(b.now, &Loaded{Group: like})
	require.Contains(t, acts, Action{Kind: ActionAnswer, Waiter: "seek", Err: ErrCoordinatorLoading})
}

// The coordinator tells what was committed until the very moment of the seek, and how many members it has put out; it refuses
// what can't be, and does nothing then.
func TestCoordinatorSeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		id := metadata.TopicID{1}
		require.NoError(t, x.do(func(r *metadata.Replica) error {
			return r.CreateTopic("orders", id, nil, [][]metadata.BrokerID{{0}, {0}})
		}))
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		seek := func(force bool, offsets ...OffsetEntry) (SeekResult, error) {
			var result SeekResult
			err := ErrNotCoordinator
			c.Seek(SeekRequest{Group: "g", Force: force, Offsets: offsets}, func(r SeekResult, e error) { result, err = r, e })
			return result, err
		}
		at := func(partition int32) int64 {
			out, err := c.Fetch(FetchRequest{Group: "g", Partitions: []TopicIDPartition{{TopicID: id, Partition: partition}}})
			require.NoError(t, err)
			return out[0].Offset
		}
		entry := func(partition int32, offset int64) OffsetEntry {
			return OffsetEntry{TopicID: id, Partition: partition, Offset: offset, LeaderEpoch: -1}
		}
		r, err := seek(false, entry(0, 5), entry(1, 6))
		require.NoError(t, err, "a group that is not there yet")
		require.Equal(t, int64(-1), r.Prior[0].Offset)
		m := join(c, "g", "")
		require.NoError(t, m.Err)
		c.Sync(SyncRequest{Group: "g", Member: m.Member, Generation: m.Generation}, func(SyncResult) {})
		commit := func(offset int64) (err error) {
			c.Commit(CommitRequest{Group: "g", Member: m.Member, Generation: m.Generation, Offsets: []OffsetEntry{entry(0, offset)}}, func(_ []error, e error) { err = e })
			return err
		}
		require.NoError(t, commit(9))
		_, err = seek(false, entry(0, 1))
		require.ErrorIs(t, err, ErrNonEmpty)
		for name, tc := range map[string]struct {
			offsets []OffsetEntry
			want    error
		}{
			"none":      {nil, metadata.ErrInvalidRequest},
			"twice":     {[]OffsetEntry{entry(0, 1), entry(0, 2)}, metadata.ErrInvalidRequest},
			"negative":  {[]OffsetEntry{entry(0, -2)}, metadata.ErrInvalidRequest},
			"partition": {[]OffsetEntry{entry(0, 1), entry(2, 2)}, metadata.ErrUnknownPartition},
			"topic":     {[]OffsetEntry{entry(0, 1), {TopicID: metadata.TopicID{7}}}, metadata.ErrUnknownTopicID},
			"text":      {[]OffsetEntry{{TopicID: id, Metadata: string(make([]byte, 5000))}}, ErrMetadataTooLarge},
		} {
			_, err := seek(true, tc.offsets...)
			require.ErrorIs(t, err, tc.want, name)
		}
		require.Equal(t, int64(9), at(0))
		r, err = seek(true, entry(0, 2), entry(1, -1))
		require.NoError(t, err)
		require.Equal(t, 1, r.Members)
		require.Equal(t, []int64{9, 6}, []int64{r.Prior[0].Offset, r.Prior[1].Offset})
		require.ErrorIs(t, commit(10), ErrUnknownMember)
		require.Equal(t, []int64{2, -1}, []int64{at(0), at(1)})
		require.NoError(t, c.Close())
	})
}

// A member of a consumer group that asks for offsets just after a seek has put it out is told to try again, not that it is none:
// Java's consumer would throw that at its program. Once its session would have ended it is told so.
func TestSeekAndFetchOfMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newIdeal(t, 1)
		id := metadata.TopicID{1}
		require.NoError(t, x.do(func(r *metadata.Replica) error {
			return r.CreateTopic("orders", id, nil, [][]metadata.BrokerID{{0}})
		}))
		c := x.coordinators(t, 1, nil)[0]
		synctest.Wait()
		beat := func(epoch int32) (got ConsumerHeartbeatResult) {
			r := ConsumerHeartbeatRequest{Group: "g", Member: "m", Epoch: epoch, RebalanceTimeout: -1}
			if epoch == 0 {
				r = joinRequest("m", "orders")
				r.Group = "g"
			}
			c.ConsumerHeartbeat(r, func(result ConsumerHeartbeatResult) { got = result })
			synctest.Wait()
			return got
		}
		fetch := func(member string, epoch int32) error {
			_, err := c.Fetch(FetchRequest{Group: "g", Member: member, MemberEpoch: epoch, Partitions: []TopicIDPartition{{TopicID: id}}})
			return err
		}
		member := beat(0)
		require.NoError(t, member.Err)
		require.NoError(t, fetch("m", member.Epoch))
		require.ErrorIs(t, fetch("stranger", member.Epoch), ErrUnknownMember)
		c.Seek(SeekRequest{Group: "g", Force: true, Offsets: []OffsetEntry{{TopicID: id, Offset: 3, LeaderEpoch: -1}}}, func(_ SeekResult, err error) { require.NoError(t, err) })
		synctest.Wait()
		require.ErrorIs(t, fetch("m", member.Epoch), ErrCoordinatorLoading)
		require.ErrorIs(t, beat(member.Epoch).Err, ErrUnknownMember, "by which it learns of it")
		again := beat(0)
		require.NoError(t, again.Err)
		require.NoError(t, fetch("m", again.Epoch))
		require.ErrorIs(t, fetch("m", member.Epoch), ErrStaleMemberEpoch)
		require.NoError(t, beat(-1).Err)
		require.ErrorIs(t, fetch("m", again.Epoch), ErrCoordinatorLoading, "others may not know yet")
		time.Sleep(time.Hour) // of the bubble
		synctest.Wait()
		require.ErrorIs(t, fetch("m", again.Epoch), ErrUnknownMember)
		require.NoError(t, c.Close())
	})
}
