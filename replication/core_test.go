package replication

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// coreBench drives one core by hand.
type coreBench struct {
	t   *testing.T
	c   *Core
	now Instant
}

func newCoreBench(t *testing.T, r Restart) *coreBench {
	b := &coreBench{t: t, c: NewCore(0)}
	if r.Policy == (Policy{}) {
		r.Policy = Policy{MinInsync: 1, FlushAck: true, LagMax: 30, FetchTimeout: 8, ProposalTimeout: 8, RetryMin: 1, RetryMax: 1}
	}
	b.step(&r)
	return b
}

func (b *coreBench) step(ev Event) []Action { return slices.Clone(b.c.Step(b.now, ev)) }

// kinds returns the kinds of actions, without those that only publish.
func kinds(acts []Action) (ks []string) {
	for _, a := range acts {
		if a.Kind != ActionRole {
			ks = append(ks, a.Kind.String())
		}
	}
	return ks
}

func find(acts []Action, k ActionKind) *Action {
	for i := range acts {
		if acts[i].Kind == k {
			return &acts[i]
		}
	}
	return nil
}

func delta(leader metadata.BrokerID, epoch, partitionEpoch int32, isr ...metadata.BrokerID) *MetadataDelta {
	d := &MetadataDelta{Leader: leader, LeaderEpoch: epoch, PartitionEpoch: partitionEpoch, ISR: isr, UncleanEpoch: -1}
	for id := range metadata.BrokerID(3) {
		d.Replicas = append(d.Replicas, Peer{ID: id, BrokerEpoch: 10 + int64(id)})
	}
	return d
}

// fetch is a fetch of broker id that agrees with the leader's log.
func fetch(id metadata.BrokerID, epoch int32, offset int64) *FetchRequest {
	return &FetchRequest{Waiter: 99, Replica: id, BrokerEpoch: 10 + int64(id), LeaderEpoch: epoch, Offset: offset, LastEpoch: -1, FoundEpoch: -1, FoundEnd: -1}
}

// I12: without proof of a clean stop a checkpointed high watermark counts only up to what is on disk; in no case above
// the end or below the start.
func TestRestartHighWatermark(t *testing.T) {
	f := func(clean bool, start, durable, end, checkpoint, want int64) {
		t.Helper()
		b := newCoreBench(t, Restart{Clean: clean, StartOffset: start, DurableEnd: durable, EndOffset: end, HighWatermark: checkpoint, LastEpoch: 1})
		require.Equal(t, want, b.c.HighWatermark())
	}
	f(true, 0, 10, 10, 7, 7)
	f(true, 0, 10, 10, 12, 10)
	f(true, 5, 10, 10, 2, 5)
	f(false, 0, 6, 10, 8, 6)
	f(true, 0, 6, 10, 8, 8)
}

// I13: a record older than what the core acts on changes nothing.
func TestOldMetadataIsIgnored(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1})
	b.step(delta(0, 4, 9, 0))
	for _, d := range []*MetadataDelta{delta(1, 3, 12, 1), delta(0, 4, 8, 0, 1)} {
		require.Empty(t, b.step(d))
		require.Equal(t, RoleLeader, b.c.Role())
		require.Equal(t, []metadata.BrokerID{0}, b.c.ISR())
	}
}

// R25: a follower does not cut below its high watermark, unless a leader has been elected uncleanly since it was
// confirmed.
func TestTruncationBelowHighWatermark(t *testing.T) {
	diverge := func(uncleanEpoch int32) (*coreBench, []Action) {
		b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, HighWatermark: 8, LastEpoch: 3})
		d := delta(1, 6, 9, 1)
		d.UncleanEpoch = uncleanEpoch
		send := find(b.step(d), ActionSendFetch)
		return b, b.step(&FetchResponse{Seq: send.Seq, LeaderEpoch: 6, Offset: 10, LastEpoch: 3, DivergingEpoch: 3, DivergingEnd: 5, LocalEpoch: 3, LocalEnd: 10})
	}
	for _, epoch := range []int32{-1, 2, 3} {
		b, acts := diverge(epoch)
		halt := find(acts, ActionHalt)
		require.NotNil(t, halt, "unclean election in epoch %d", epoch)
		require.ErrorIs(t, halt.Err, ErrTruncationBelowHighWatermark)
		require.Equal(t, RoleHalted, b.c.Role())
		require.Equal(t, int64(10), b.c.EndOffset())
		refused := find(b.step(&Produce{Waiter: 5, Acks: 1, LeaderEpoch: -1}), ActionComplete)
		require.ErrorIs(t, refused.Err, ErrTruncationBelowHighWatermark)
		require.ErrorIs(t, find(b.step(fetch(2, 6, 0)), ActionAnswerFetch).Err, ErrTruncationBelowHighWatermark)
		require.ErrorIs(t, find(b.step(&DeleteRecords{Waiter: 6, Offset: -1, LeaderEpoch: -1}), ActionComplete).Err, ErrTruncationBelowHighWatermark)
	}
	b, acts := diverge(5)
	require.Equal(t, []string{"set-hw", "truncate"}, kinds(acts), "the high watermark goes first: a crash in between must not bring it back")
	require.Equal(t, int64(5), find(acts, ActionSetHW).Offset, "what the unclean leader does not have is not committed any more")
	require.Equal(t, int64(5), find(acts, ActionTruncate).Offset)
	acts = b.step(&Truncated{EndOffset: 5, LastEpoch: 3})
	require.Equal(t, int64(5), find(acts, ActionSendFetch).Offset)
}

// A cut that fails halts the replica: nobody knows what its log holds now.
func TestTruncationFails(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, LastEpoch: 3})
	send := find(b.step(delta(1, 6, 9, 1)), ActionSendFetch)
	b.step(&FetchResponse{Seq: send.Seq, LeaderEpoch: 6, Offset: 10, LastEpoch: 3, DivergingEpoch: 3, DivergingEnd: 5, LocalEpoch: 3, LocalEnd: 10})
	require.Empty(t, kinds(b.step(&Tick{})), "no fetch while the log is being cut")
	broken := errors.New("broken")
	require.NotNil(t, find(b.step(&Truncated{Err: broken}), ActionHalt))
	require.Equal(t, RoleHalted, b.c.Role())
}

// R5: an answer that asks to cut nothing must not make a loop of fetches.
func TestDivergenceWithNothingToCut(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, LastEpoch: 3})
	send := find(b.step(delta(1, 6, 9, 1)), ActionSendFetch)
	answer := &FetchResponse{Seq: send.Seq, LeaderEpoch: 6, Offset: 10, LastEpoch: 3, DivergingEpoch: 2, DivergingEnd: 20, LocalEpoch: 2, LocalEnd: 10}
	require.Empty(t, kinds(b.step(answer)))
	b.now++
	require.Equal(t, []string{"send-fetch"}, kinds(b.step(&Tick{})), "later")
}

// After an unclean election the leader's log may begin above what a replica has, and end below it. Whatever the replica
// holds, it begins anew at the leader's start or is cut to it; it never halts, and never keeps records above the start
// that the leader does not have.
func TestUncleanLeaderStartsElsewhere(t *testing.T) {
	f := func(name string, local Restart, leaderStart, leaderEnd int64, want ActionKind) {
		t.Helper()
		local.Clean = true
		b := newCoreBench(t, local)
		d := delta(1, 6, 9, 1)
		d.UncleanEpoch = 6
		send := find(b.step(d), ActionSendFetch)
		acts := b.step(&FetchResponse{Seq: send.Seq, LeaderEpoch: 6, Offset: local.EndOffset, LastEpoch: 3, OutOfRange: true, LogStartOffset: leaderStart, LogEndOffset: leaderEnd, DivergingEpoch: -1})
		require.Nil(t, find(acts, ActionHalt), name)
		require.NotEqual(t, RoleHalted, b.c.Role(), name)
		got := find(acts, want)
		require.NotNil(t, got, "%s: %v", name, kinds(acts))
		require.Equal(t, leaderStart, got.Offset, name)
		start := leaderStart
		if want == ActionTruncate {
			start = local.StartOffset
		}
		acts = b.step(&Truncated{StartOffset: start, EndOffset: leaderStart, LastEpoch: -1})
		require.Equal(t, leaderStart, b.c.HighWatermark(), name)
		require.Equal(t, leaderStart, find(acts, ActionSendFetch).Offset, name)
	}
	f("all of it below the leader's start", Restart{DurableEnd: 20, EndOffset: 20, HighWatermark: 20, LastEpoch: 3}, 25, 30, ActionReset)
	f("just below", Restart{DurableEnd: 24, EndOffset: 24, HighWatermark: 24, LastEpoch: 3}, 25, 25, ActionReset)
	f("around the leader's whole log", Restart{DurableEnd: 40, EndOffset: 40, HighWatermark: 40, LastEpoch: 3}, 25, 30, ActionTruncate)
	f("all of it above", Restart{StartOffset: 50, DurableEnd: 60, EndOffset: 60, HighWatermark: 60, LastEpoch: 3}, 25, 30, ActionReset)
	f("empty, above", Restart{StartOffset: 50, DurableEnd: 50, EndOffset: 50, HighWatermark: 50, LastEpoch: 3}, 25, 30, ActionReset)
}

// A follower whose log ends before the leader's begins starts over there (retention has taken what is between).
func TestFollowerBehindTheLeadersStart(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, HighWatermark: 10, LastEpoch: 3})
	send := find(b.step(delta(1, 6, 9, 1)), ActionSendFetch)
	acts := b.step(&FetchResponse{Seq: send.Seq, LeaderEpoch: 6, Offset: 10, LastEpoch: 3, OutOfRange: true, LogStartOffset: 50, LogEndOffset: 80, DivergingEpoch: -1})
	require.Equal(t, int64(50), find(acts, ActionReset).Offset)
	acts = b.step(&Truncated{StartOffset: 50, EndOffset: 50, LastEpoch: -1})
	require.Equal(t, int64(50), find(acts, ActionSetHW).Offset)
	require.Equal(t, int64(50), find(acts, ActionSendFetch).Offset)
}

// R6, R8, R21, I19: what a follower takes from an answer.
func TestFollowerAppends(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1})
	seq := find(b.step(delta(1, 6, 9, 0, 1)), ActionSendFetch).Seq
	answer := func(base, next, hw int64) *FetchResponse {
		return &FetchResponse{Seq: seq, LeaderEpoch: 6, Offset: b.c.EndOffset(), LastEpoch: b.c.lastEpoch, BaseOffset: base, NextOffset: next, HighWatermark: hw, DivergingEpoch: -1}
	}
	next := func(acts []Action) {
		t.Helper()
		send := find(acts, ActionSendFetch)
		require.NotNil(t, send)
		seq = send.Seq
	}
	require.Equal(t, []string{"replicate"}, kinds(b.step(answer(0, 4, 9))))
	require.Equal(t, int64(0), b.c.HighWatermark(), "R8: not before the append")
	acts := b.step(&Appended{BaseOffset: 0, NextOffset: 4, LastEpoch: 6})
	require.Equal(t, int64(4), find(acts, ActionSetHW).Offset, "R8: not above the own end")
	require.Nil(t, find(acts, ActionSendFetch), "I2: the next fetch reports the records, so they are synced first")
	next(b.step(&Flushed{DurableEnd: 4}))
	acts = b.step(answer(4, 4, 9))
	require.Equal(t, int32(6), find(acts, ActionSendFetch).LastEpoch, "R6: an empty answer takes nothing away")
	next(acts)
	require.Empty(t, kinds(b.step(answer(3, 6, 9))), "R21: not at the end of the log")
	b.now++
	next(b.step(&Tick{}))
	b.step(answer(4, 6, 9))
	require.Empty(t, kinds(b.step(&Appended{Err: errors.New("bad checksum")})), "I19: a bad batch is asked for again, later")
	require.Equal(t, int64(4), b.c.EndOffset())
	b.now++
	next(b.step(&Tick{}))
	failed := answer(4, 4, 9)
	failed.Failed = true
	require.Empty(t, kinds(b.step(failed)))
	b.now++
	next(b.step(&Tick{}))
	b.now += 8
	acts = b.step(&Tick{})
	require.Equal(t, []string{"send-fetch"}, kinds(acts), "no answer: ask again")
	require.Empty(t, kinds(b.step(answer(4, 6, 9))), "R27: and the answer to the first is too late")
}

// R9: a refused proposal is forgotten and not repeated at once; one whose outcome is unknown keeps counting and is
// repeated.
func TestISRProposals(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1})
	b.step(delta(0, 4, 9, 0))
	b.step(&Flushed{DurableEnd: 0})
	p := find(b.step(fetch(1, 4, 0)), ActionPropose)
	require.Equal(t, []metadata.BrokerID{0, 1}, p.ISR)
	require.Equal(t, int32(9), p.PartitionEpoch)
	b.step(&ISRResult{Seq: p.Seq, Outcome: ProposalRefused})
	require.False(t, b.c.leading.proposal.open())
	require.Nil(t, find(b.step(fetch(1, 4, 0)), ActionPropose))
	b.now += 8
	p = find(b.step(fetch(1, 4, 0)), ActionPropose)
	require.NotNil(t, p)
	b.step(&ISRResult{Seq: p.Seq, Outcome: ProposalUnknown})
	b.now += 8
	again := find(b.step(&Tick{}), ActionPropose)
	require.Equal(t, p.ISR, again.ISR)
	b.step(&ISRResult{Seq: p.Seq, Outcome: ProposalCommitted, PartitionEpoch: 10, ISR: p.ISR})
	require.True(t, b.c.leading.proposal.open(), "the answer to an earlier copy is not the answer to this one")
	b.step(&ISRResult{Seq: again.Seq, Outcome: ProposalRefused})
	require.True(t, b.c.leading.proposal.open(), "an earlier copy may be applied yet")
	b.step(delta(0, 4, 10, 0, 1))
	require.False(t, b.c.leading.proposal.open(), "the record has moved on: no copy can be applied any more")
	require.Equal(t, []metadata.BrokerID{0, 1}, b.c.ISR())
}

// R9, R12: who may not join.
func TestISRExpansionRefusals(t *testing.T) {
	cases := map[string]struct {
		change func(*MetadataDelta, *FetchRequest)
	}{
		"fenced":                    {func(d *MetadataDelta, f *FetchRequest) { d.Replicas[1].Fenced = true }},
		"registered anew meanwhile": {func(d *MetadataDelta, f *FetchRequest) { f.BrokerEpoch = 50 }},
		"behind the epoch's start":  {func(d *MetadataDelta, f *FetchRequest) { f.Offset = 9 }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, LastEpoch: 3})
			d, f := delta(0, 4, 9, 0), fetch(1, 4, 10)
			c.change(d, f)
			b.step(d)
			acts := b.step(f)
			require.NoError(t, find(acts, ActionAnswerFetch).Err)
			require.Nil(t, find(acts, ActionPropose))
		})
	}
}

// R18: lag is time since a follower last had all that was there when it fetched, not the number of records it is
// behind.
func TestLagIsTime(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1, Policy: Policy{MinInsync: 1, LagMax: 30, FetchTimeout: 8, ProposalTimeout: 8, RetryMin: 1, RetryMax: 1}})
	b.step(delta(0, 4, 9, 0, 1))
	end := int64(0)
	for range 50 { // a burst: every fetch finds more than it asked for, but always has what the last one found
		b.now += 10
		b.step(&Produce{Waiter: 1, Acks: 1, LeaderEpoch: -1, Deadline: Never})
		end += 100
		b.step(&Appended{Waiter: 1, Acks: 1, BaseOffset: end - 100, NextOffset: end, Deadline: Never})
		b.step(fetch(1, 4, end-100))
		require.Nil(t, find(b.step(&Tick{}), ActionPropose))
	}
	b.now += 15
	require.Nil(t, find(b.step(&Tick{}), ActionPropose))
	b.now += 20
	require.Equal(t, []metadata.BrokerID{0}, find(b.step(&Tick{}), ActionPropose).ISR)
}

// R16: a leader that stood still finds fetches which were sent before; they do not prove that nobody has been elected
// since. Only one that answers to it afterwards does (S4 seed 5301: a zombie served for a whole session).
func TestFetchFromBeforeAPauseProvesNothing(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true})
	b.now = 100
	b.step(delta(0, 1, 1, 0, 1))
	require.Equal(t, Instant(-Never), b.c.FetchedSince(), "nobody has fetched")
	b.step(fetch(1, 1, 0))
	require.Equal(t, Instant(-Never), b.c.FetchedSince(), "the first may have been sent at any time")
	b.now = 110
	b.step(fetch(1, 1, 0))
	require.Equal(t, Instant(100), b.c.FetchedSince())
	b.now = 9000 // the process stood still, with a fetch in its socket
	b.step(fetch(1, 1, 0))
	require.Equal(t, Instant(110), b.c.FetchedSince())
	b.now = 9001
	b.step(&StillFetching{Replica: 1, BrokerEpoch: 11, At: 9000})
	require.Equal(t, Instant(110), b.c.FetchedSince(), "the same request again")
	b.step(&StillFetching{Replica: 1, BrokerEpoch: 11, At: 9001})
	require.Equal(t, Instant(9000), b.c.FetchedSince())
}

// R24: a replica that was removed and added in one step of the metadata starts over.
func TestFollowerIsKeyedByBrokerEpoch(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, LastEpoch: 3})
	b.step(delta(0, 4, 9, 0, 1))
	b.step(fetch(1, 4, 10))
	require.Equal(t, int64(10), b.c.follower(1).position)
	d := delta(0, 4, 10, 0, 1)
	d.Replicas[1].BrokerEpoch = 60
	b.step(d)
	require.ErrorIs(t, find(b.step(fetch(1, 4, 10)), ActionAnswerFetch).Err, ErrStaleBrokerEpoch)
	f := fetch(1, 4, 4)
	f.BrokerEpoch = 60
	b.step(f)
	require.Equal(t, int64(4), b.c.follower(1).position)
	d = delta(0, 4, 11, 0)
	d.Replicas = d.Replicas[:1]
	b.step(d)
	require.Nil(t, b.c.follower(1))
	require.ErrorIs(t, find(b.step(f), ActionAnswerFetch).Err, ErrNotReplica)
	b.now = 1000
	b.step(delta(0, 4, 12, 0, 1))
	require.Equal(t, int64(-1), b.c.follower(1).position)
	require.Nil(t, find(b.step(&Tick{}), ActionPropose), "it has the full time to catch up")
}

// wal.md 5: switching flush.ack on asks for one flush and moves nothing back; switching it off answers acks=1 that
// waited for a flush.
func TestFlushAckIsSwitched(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1, Policy: Policy{MinInsync: 1}})
	b.step(delta(0, 4, 9, 0))
	append := func(acks int16) []Action {
		w := Waiter(b.c.EndOffset() + 1)
		b.step(&Produce{Waiter: w, Acks: acks, LeaderEpoch: -1, Deadline: Never})
		return b.step(&Appended{Waiter: w, Acks: acks, BaseOffset: b.c.EndOffset(), NextOffset: b.c.EndOffset() + 1, Deadline: Never})
	}
	require.Equal(t, []string{"set-hw", "complete"}, kinds(append(-1)))
	on, off := Policy{MinInsync: 1, FlushAck: true}, Policy{MinInsync: 1}
	require.Equal(t, []string{"flush"}, kinds(b.step(&Configure{Policy: on})))
	require.Equal(t, int64(1), b.c.HighWatermark(), "I4")
	require.Empty(t, kinds(append(1)))
	require.Empty(t, kinds(append(-1)))
	require.Equal(t, []string{"complete", "set-hw", "complete"}, kinds(b.step(&Configure{Policy: off})))
	require.Empty(t, kinds(b.step(&Flushed{DurableEnd: 3})))
	require.Empty(t, kinds(b.step(&Configure{Policy: on})), "all is durable already")
}

// What waits for a trim is told when it fails; retention that overtakes the durable end moves all bounds along.
func TestStartMoved(t *testing.T) {
	b := newCoreBench(t, Restart{Clean: true, DurableEnd: 10, EndOffset: 10, LastEpoch: 3})
	b.step(delta(0, 4, 9, 0))
	require.Equal(t, int64(4), find(b.step(&DeleteRecords{Waiter: 7, LeaderEpoch: -1, Offset: 4, LastStableOffset: 10, Deadline: Never}), ActionTrim).Offset)
	broken := errors.New("broken")
	require.ErrorIs(t, find(b.step(&StartMoved{Err: broken}), ActionComplete).Err, broken)
	require.ErrorIs(t, find(b.step(&DeleteRecords{Waiter: 8, LeaderEpoch: 3, Offset: 4, Deadline: Never}), ActionComplete).Err, ErrFencedLeaderEpoch)
	require.ErrorIs(t, find(b.step(&DeleteRecords{Waiter: 8, LeaderEpoch: -1, Offset: 11, LastStableOffset: 20, Deadline: Never}), ActionComplete).Err, log.ErrOffsetOutOfRange)
	b.step(&StartMoved{StartOffset: 3})
	require.Equal(t, int64(3), b.c.StartOffset())
	b.step(&StartMoved{StartOffset: 2})
	require.Equal(t, int64(3), b.c.StartOffset(), "never back")
}

// A request appended in an epoch that ended before the log answered is not acknowledged (R23); one that is gone is
// refused.
func TestRemoved(t *testing.T) {
	b := newCoreBench(t, Restart{LastEpoch: -1})
	b.step(delta(0, 4, 9, 0))
	b.step(&Produce{Waiter: 1, Acks: -1, LeaderEpoch: -1, Deadline: Never})
	b.step(&Appended{Waiter: 1, Acks: -1, NextOffset: 1, Deadline: Never})
	require.ErrorIs(t, find(b.step(&Removed{Err: ErrDeleted}), ActionComplete).Err, ErrDeleted)
	require.ErrorIs(t, find(b.step(&Appended{Waiter: 2, Acks: 1, NextOffset: 2}), ActionComplete).Err, ErrLeadershipLost)
	require.ErrorIs(t, find(b.step(&Produce{Waiter: 3, Acks: 1, LeaderEpoch: -1}), ActionComplete).Err, ErrNotLeader)
	require.Empty(t, b.step(delta(0, 9, 20, 0)), "gone is gone")
}

// The queue of waiting requests against a plain sorted list.
func TestWaitQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q waitQueue
		var model []waiting
		next, id := int64(0), Waiter(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				next += rapid.Int64Range(0, 3).Draw(t, "step")
				id++
				w := waiting{waiter: id, next: max(next-rapid.Int64Range(0, 6).Draw(t, "duplicate of"), 0), deadline: Instant(rapid.Int64Range(1, 50).Draw(t, "deadline"))}
				q.push(w)
				i := 0
				for i < len(model) && model[i].next <= w.next {
					i++
				}
				model = slices.Insert(model, i, w)
			},
			"pop": func(t *rapid.T) {
				reached := rapid.Int64Range(0, next+1).Draw(t, "reached")
				for {
					w, ok := q.pop(reached)
					if len(model) == 0 || model[0].next > reached {
						if ok {
							t.Fatalf("popped %+v", w)
						}
						return
					}
					if !ok || w != model[0] {
						t.Fatalf("popped %+v, want %+v", w, model[0])
					}
					model = model[1:]
				}
			},
			"expire": func(t *rapid.T) {
				now := Instant(rapid.Int64Range(0, 50).Draw(t, "now"))
				var got, want []waiting
				q.expire(now, func(w waiting) { got = append(got, w) })
				model = slices.DeleteFunc(model, func(w waiting) bool {
					if w.deadline <= now {
						want = append(want, w)
						return true
					}
					return false
				})
				if !slices.Equal(got, want) {
					t.Fatalf("expired %+v, want %+v", got, want)
				}
			},
			"": func(t *rapid.T) {
				if q.len() != len(model) {
					t.Fatalf("%d wait, want %d", q.len(), len(model))
				}
				for _, w := range model {
					if q.deadline() > w.deadline {
						t.Fatalf("the earliest deadline is %d, %+v is due before", q.deadline(), w)
					}
				}
				if len(model) == 0 && q.deadline() != Never {
					t.Fatal("nothing waits, but has a deadline")
				}
			},
		})
	})
}

// The bytes that a moving high watermark makes readable add up to what was appended, whatever the steps.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pace
		next, appended, passed, rounds, observed := int64(0), int64(0), int64(0), 0, 0
		for range rapid.IntRange(1, 3000).Draw(t, "rounds") {
			r := paceRound{base: next, next: next + 3, bytes: 100, at: Instant(next)}
			next += 3
			appended += r.bytes
			rounds++
			p.add(r)
			if next%97 == 0 {
				passed += p.passed(next-5, Instant(next), func(d Instant) {
					observed++
					if d < 0 {
						t.Fatal("negative age")
					}
				})
			}
		}
		passed += p.passed(next, Instant(next), func(Instant) { observed++ })
		if passed != appended {
			t.Fatalf("%d bytes passed of %d", passed, appended)
		}
		if observed > rounds || len(p.rounds) > 3*paceRounds {
			t.Fatalf("%d observations of %d rounds, %d remembered", observed, rounds, len(p.rounds))
		}
	})
}
