package metadata

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

func orders(partitions ...int32) []TopicPartitions {
	return []TopicPartitions{{TopicID: TopicID{1}, Partitions: partitions}}
}

// offsetsOf is an offset of partition 0 of "orders", committed with a transaction.
func offsetsOf(t *Transaction, group string, offset int64) *TransactionOffsets {
	return &TransactionOffsets{
		OffsetCommit:    OffsetCommit{Group: group, Generation: -1, Time: 40, Offsets: []OffsetEntry{{TopicID{1}, 0, offset, 3, "note"}}},
		TransactionalID: t.ID, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch, number: t.Number,
	}
}

// D17: nothing about transactions counts before the level is raised, and nothing of it is written.
func TestTransactionsNeedFeatureLevel(t *testing.T) {
	f := groupsFSM(t)
	f.must(&allocateProducerIDs{count: 10})
	f.refuses(ErrInvalidFeatureLevel, f.steps("x", &TransactionChange{ID: "x", Version: 1}))
	require.Zero(t, f.st.transactions.len())
	require.Zero(t, f.st.transactionRevision)
	require.Empty(t, f.st.commitSequences)
	f.must(&setFeatureLevel{expected: GroupsFeatureLevel, level: TransactionsFeatureLevel})
	f.created("x", 3)
}

// The life of a transaction of protocol 1, step by step: what the Image shows, and that an older one is never written to.
func TestTransactionLife(t *testing.T) {
	f := transactionsFSM(t)
	x := f.created("x", 7)
	require.Equal(t, TransactionEmpty, x.State)
	require.Same(t, x, f.image().TransactionByProducer(7))
	require.Zero(t, x.Number)
	empty := f.image()

	add := TransactionAddition{ID: "x", ProducerID: 7, Partitions: orders(1, 0, 1), Groups: []string{"g2", "g1"}, Version: 1, Time: 20}
	out := f.step("x", &add)
	require.NoError(t, out.err)
	x = f.st.transaction("x")
	require.Equal(t, TransactionOngoing, x.State)
	require.Equal(t, orders(0, 1), x.Partitions)
	require.Equal(t, []string{"g1", "g2"}, x.Groups)
	require.Equal(t, []int64{20, 20}, []int64{x.StartedAt, x.UpdatedAt})
	require.Equal(t, x.Revision, x.Number)
	require.True(t, x.HasPartition(TopicID{1}, 1) && !x.HasPartition(TopicID{1}, 2) && !x.HasPartition(TopicID{2}, 1))
	require.True(t, x.HasGroup("g1") && !x.HasGroup("g3"))
	require.Equal(t, []*Transaction{x}, slices.Collect(f.image().ActiveTransactions()))

	// M11: added again, by whatever repetition, it changes nothing.
	require.Equal(t, stepOutcome{revision: x.Revision}, f.step("x", &add))
	require.Same(t, x, f.st.transaction("x"))

	c := ends(x, TransactionPrepareCommit)
	f.alter(c)
	x = f.st.transaction("x")
	require.Equal(t, TransactionPrepareCommit, x.State)
	require.Equal(t, []int64{7, 0}, []int64{x.MarkerProducerID, int64(x.MarkerEpoch)})
	require.Equal(t, f.st.coordinatorEpoch, x.CoordinatorEpoch)
	require.Equal(t, orders(0, 1), x.Partitions)
	require.Nil(t, x.Groups)
	require.ErrorIs(t, f.step("x", &c).err, ErrStale, "the same change again")

	prepared := f.image()
	report := writtenMarkers{{ProducerID: 7, Number: x.Number, Partitions: orders(1)}}
	require.NoError(t, f.step("x", report).err)
	require.Equal(t, orders(0), f.st.transaction("x").Partitions)
	require.Equal(t, orders(0, 1), prepared.Transaction("x").Partitions, "an Image is never written to")
	revision := f.st.transaction("x").Revision
	require.NoError(t, f.step("x", report).err, "reported again")
	require.Equal(t, revision, f.st.transaction("x").Revision)
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Number: x.Number, Partitions: orders(0)}}).err)
	x = f.st.transaction("x")
	require.Equal(t, TransactionCompleteCommit, x.State)
	require.Equal(t, []int64{-1, -1}, []int64{x.MarkerProducerID, int64(x.MarkerEpoch)})
	require.Nil(t, x.Partitions)
	require.Zero(t, f.image().ActiveTransactionCount())
	require.Equal(t, int64(20), x.StartedAt)

	require.Equal(t, TransactionEmpty, empty.Transaction("x").State)
	var changed []string
	for old, now := range f.image().ChangedTransactions(empty) {
		changed = append(changed, old.State.String()+" "+now.State.String())
	}
	require.Equal(t, []string{"Empty CompleteCommit"}, changed)

	f.alter(TransactionChange{ID: "x", Delete: true})
	require.Nil(t, f.st.transaction("x"))
	require.Nil(t, f.image().TransactionByProducer(7))
	again := f.created("x", 8)
	require.Greater(t, again.Revision, x.Revision, "a revision never comes back (I15)")
	checkState(t, f.st)
}

// P10: the changes that there are, and those that are refused without effect, by the state that they meet.
func TestTransactionChanges(t *testing.T) {
	f := transactionsFSM(t)
	states := map[string]*Transaction{}
	for i, state := range []string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"} {
		pid := int64(i) + 1
		if state == "Empty" {
			states[state] = f.created(state, pid)
			continue
		}
		x := f.ongoing(state, pid)
		switch state {
		case "PrepareCommit", "CompleteCommit":
			x = f.alter(ends(x, TransactionPrepareCommit))
		case "PrepareAbort", "CompleteAbort":
			x = f.alter(ends(x, TransactionPrepareAbort))
		}
		if i > 3 {
			require.NoError(t, f.step(state, writtenMarkers{{ProducerID: pid, Number: x.Number, Partitions: orders(0)}}).err)
		}
		states[state] = f.st.transaction(state)
		require.Equal(t, state, states[state].State.String())
	}
	checkState(t, f.st)
	no := ErrInvalidTransactionState
	for to, want := range map[string]map[string]error{
		"Empty":         {"Empty": nil, "Ongoing": no, "CompleteCommit": nil, "CompleteAbort": nil},
		"Ongoing":       {"Empty": no, "Ongoing": no, "CompleteCommit": no, "CompleteAbort": no},
		"PrepareCommit": {"Empty": no, "Ongoing": nil, "CompleteCommit": no, "CompleteAbort": no},
		"PrepareAbort":  {"Empty": nil, "Ongoing": nil, "CompleteCommit": nil, "CompleteAbort": nil},
		"Complete":      {"Empty": no, "Ongoing": no, "CompleteCommit": no, "CompleteAbort": no},
		"Delete":        {"Empty": nil, "Ongoing": no, "CompleteCommit": nil, "CompleteAbort": nil},
	} {
		for from, x := range states {
			fork := *f
			inner := *f.fsm
			fork.fsm = &inner
			c := ends(x, TransactionState(slices.Index([]string{"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "Complete"}, to)))
			if c.Delete = to == "Delete"; c.Delete {
				c.State = TransactionEmpty
			}
			out := fork.step(x.ID, &c)
			if x.State.Prepared() {
				require.ErrorIs(t, out.err, ErrConcurrentTransactions, "%s → %s", from, to)
			} else {
				require.Equal(t, want[from], out.err, "%s → %s", from, to)
			}
			if out.err != nil {
				require.Same(t, x, fork.st.transaction(x.ID), "refused, and has an effect")
			}
			checkState(t, fork.st)
		}
	}
	require.ErrorIs(t, f.step("new", &TransactionChange{ID: "new", State: TransactionPrepareAbort, Version: 1}).err, no)
	require.ErrorIs(t, f.step("new", &TransactionChange{ID: "new", Delete: true}).err, ErrTransactionNotFound)
	require.ErrorIs(t, f.step("new", &TransactionChange{ID: "new", Revision: 3, Version: 1}).err, ErrStale)
	require.ErrorIs(t, f.step("Empty", &TransactionChange{ID: "Empty", Version: 1}).err, ErrStale, "it is there already")
}

// I15, P5: a producer's pair never goes back, and an id is never another's, nor one that nobody allocated; a marker never
// fences the pair that comes after it.
func TestTransactionPairs(t *testing.T) {
	f := transactionsFSM(t)
	f.created("other", 5)
	x := f.ongoing("x", 7)
	abort := func(change func(c *TransactionChange)) error {
		c := ends(x, TransactionPrepareAbort)
		change(&c)
		fork := *f
		inner := *f.fsm
		fork.fsm = &inner
		return fork.step("x", &c).err
	}
	for name, bad := range map[string]func(c *TransactionChange){
		"another's id":          func(c *TransactionChange) { c.ProducerID = 5 },
		"not allocated":         func(c *TransactionChange) { c.ProducerID = 1000 },
		"negative epoch":        func(c *TransactionChange) { c.ProducerEpoch = -1 },
		"markers of another id": func(c *TransactionChange) { c.MarkerProducerID = 5 },
		"markers fence it":      func(c *TransactionChange) { c.MarkerEpoch = 1 },
		"markers of the past":   func(c *TransactionChange) { c.MarkerEpoch = -1 },
		"no such protocol":      func(c *TransactionChange) { c.Version = 3 },
	} {
		require.ErrorIs(t, abort(bad), ErrInvalidRequest, name)
	}
	require.NoError(t, abort(func(c *TransactionChange) { c.ProducerEpoch, c.MarkerEpoch = 1, 1 }))
	require.NoError(t, abort(func(c *TransactionChange) { c.ProducerID, c.ProducerEpoch, c.MarkerEpoch = 999, 0, math.MaxInt16 }))

	// P6: at the end of the epochs the id changes with the end, and both are this transactional id's until the markers are
	// written: the old one by its markers, the new one by what it adds next.
	c := ends(x, TransactionPrepareAbort)
	c.ProducerID, c.ProducerEpoch, c.MarkerEpoch, c.LastProducerID, c.LastProducerEpoch = 8, 0, math.MaxInt16, 7, math.MaxInt16-1
	f.alter(c)
	require.Equal(t, "x", f.image().TransactionByProducer(7).ID)
	require.Equal(t, "x", f.image().TransactionByProducer(8).ID)
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Epoch: math.MaxInt16, Number: x.Number, Partitions: orders(0)}}).err)
	require.Nil(t, f.image().TransactionByProducer(7))
	require.Equal(t, TransactionCompleteAbort, f.image().TransactionByProducer(8).State)
	back := TransactionChange{ID: "x", ProducerID: 8, ProducerEpoch: 3, LastProducerID: -1, LastProducerEpoch: -1}
	f.alter(back)
	back.ProducerEpoch, back.Revision, back.Version = 2, f.st.transaction("x").Revision, 1
	require.ErrorIs(t, f.step("x", &back).err, ErrInvalidRequest, "an epoch that goes back")
	checkState(t, f.st)
}

// KIP-98, KIP-890: who may add to a transaction, by Kafka's order of reasons; and with which error, at a coordinator and at
// the leader of a partition.
func TestAdditions(t *testing.T) {
	f := transactionsFSM(t)
	x := f.created("x", 7)
	x = f.alter(TransactionChange{ID: "x", ProducerID: 7, ProducerEpoch: 4, LastProducerID: 7, LastProducerEpoch: 3})
	add := func(change func(a *TransactionAddition)) error {
		a := TransactionAddition{ID: "x", ProducerID: 7, ProducerEpoch: 4, Partitions: orders(0), Version: 1, Time: 20}
		change(&a)
		fork := *f
		inner := *f.fsm
		fork.fsm = &inner
		out := fork.step(a.ID, &a)
		checkState(t, fork.st)
		if out.err != nil {
			require.Same(t, x, fork.st.transaction("x"))
		}
		return out.err
	}
	for _, c := range []struct {
		want   error
		change func(a *TransactionAddition)
	}{
		{nil, func(*TransactionAddition) {}},
		{ErrInvalidProducerIDMapping, func(a *TransactionAddition) { a.ID = "unknown" }},
		{ErrInvalidProducerIDMapping, func(a *TransactionAddition) { a.ProducerID = 8 }},
		{ErrInvalidProducerIDMapping, func(a *TransactionAddition) { a.ProducerID, a.ProducerEpoch = 8, 3 }},
		{ErrProducerFenced, func(a *TransactionAddition) { a.ProducerEpoch = 3 }},
		{ErrProducerFenced, func(a *TransactionAddition) { a.ProducerEpoch = 5 }},
		{ErrInvalidProducerEpoch, func(a *TransactionAddition) { a.ProducerEpoch, a.Version = 3, 2 }},
		{ErrInvalidRequest, func(a *TransactionAddition) { a.Version = 0 }},
		{ErrInvalidRequest, func(a *TransactionAddition) { a.Version = 3 }},
		{ErrUnknownPartition, func(a *TransactionAddition) { a.Partitions = orders(0, 2) }},
		{ErrUnknownTopicID, func(a *TransactionAddition) {
			a.Partitions = append(orders(0), TopicPartitions{TopicID: TopicID{9}, Partitions: []int32{0}})
		}},
	} {
		require.Equal(t, c.want, add(c.change))
	}

	// Who proposes: the coordinator alone in protocol 1, any registered broker in protocol 2.
	a := TransactionAddition{ID: "x", ProducerID: 7, ProducerEpoch: 4, Partitions: orders(0), Version: 1, Time: 20}
	c := f.steps("x", &a)
	c.broker = c.broker%3 + 1
	c.epoch = f.st.broker(c.broker).Epoch
	require.ErrorIs(t, f.must(c).([]stepOutcome)[0].err, ErrNotCoordinator)
	a.Version = 2
	c.sequence++
	require.NoError(t, f.must(c).([]stepOutcome)[0].err)
	require.Equal(t, int8(2), f.st.transaction("x").Version)
	c.sequence, c.epoch = c.sequence+1, c.epoch+100
	f.refuses(ErrNotCoordinator, c)

	// P7, and two at once: a leader adds while the coordinator prepares. Whoever is first, nothing is lost: the end by
	// revision is refused and looks again; an addition behind the end is fenced, or waits for the markers.
	x = f.st.transaction("x")
	late := TransactionAddition{ID: "x", ProducerID: 7, ProducerEpoch: 4, Partitions: orders(1), Version: 2, Time: 30}
	require.NoError(t, f.step("x", &late).err)
	stale := ends(x, TransactionPrepareCommit)
	require.ErrorIs(t, f.step("x", &stale).err, ErrStale)
	end := ends2(x, TransactionPrepareCommit)
	require.NoError(t, f.step("x", &end).err, "which does not compare the revision")
	require.Equal(t, orders(0, 1), f.st.transaction("x").Partitions)
	require.ErrorIs(t, f.step("x", &late).err, ErrInvalidProducerEpoch)
	late.ProducerEpoch = 5
	require.ErrorIs(t, f.step("x", &late).err, ErrConcurrentTransactions)
}

// M11, KIP-890: an end by pair is recognized when it comes again, whatever has become of its transaction; the opposite one is
// refused, and so is one of an older pair.
func TestEndByPair(t *testing.T) {
	f := transactionsFSM(t)
	x := f.ongoing("x", 7)
	commit, abort := ends2(x, TransactionPrepareCommit), ends2(x, TransactionPrepareAbort)
	require.NoError(t, f.step("x", &commit).err)
	check := func(when string) {
		t.Helper()
		before := f.st.transaction("x")
		require.Equal(t, stepOutcome{revision: before.Revision}, f.step("x", &commit), when)
		require.Equal(t, stepOutcome{revision: before.Revision, err: ErrInvalidTransactionState}, f.step("x", &abort), when)
		require.Same(t, before, f.st.transaction("x"))
	}
	check("prepared")
	x = f.st.transaction("x")
	require.Equal(t, []int64{7, 1, 7, 0, 7, 1}, []int64{x.ProducerID, int64(x.ProducerEpoch), x.LastProducerID, int64(x.LastProducerEpoch), x.MarkerProducerID, int64(x.MarkerEpoch)})
	next := ends2(x, TransactionPrepareAbort)
	require.ErrorIs(t, f.step("x", &next).err, ErrConcurrentTransactions, "the next pair, too early")
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Epoch: 1, Number: x.Number, Partitions: orders(0)}}).err)
	check("complete")

	// The next transaction, of the next pair: what comes late can't meet it (P8).
	require.NoError(t, f.step("x", &TransactionAddition{ID: "x", ProducerID: 7, ProducerEpoch: 1, Partitions: orders(1), Version: 2}).err)
	require.ErrorIs(t, f.step("x", &commit).err, ErrProducerFenced)
	require.ErrorIs(t, f.step("x", &abort).err, ErrProducerFenced)
	require.Equal(t, TransactionOngoing, f.st.transaction("x").State)

	// A producer may abort what it has not begun, and not commit it.
	y := f.created("y", 9)
	nothing := ends2(y, TransactionPrepareCommit)
	require.ErrorIs(t, f.step("y", &nothing).err, ErrInvalidTransactionState)
	nothing.State = TransactionPrepareAbort
	require.NoError(t, f.step("y", &nothing).err)
	y = f.st.transaction("y")
	require.Equal(t, TransactionCompleteAbort, y.State)
	require.Equal(t, []int64{1, 30}, []int64{int64(y.ProducerEpoch), y.StartedAt})

	// A fence by somebody else leaves no pair to recognize.
	z := f.ongoing("z", 11)
	mine := ends2(z, TransactionPrepareAbort)
	fence := ends2(z, TransactionPrepareAbort)
	fence.LastProducerID, fence.LastProducerEpoch, fence.Revision = -1, -1, z.Revision
	require.NoError(t, f.step("z", &fence).err)
	require.ErrorIs(t, f.step("z", &mine).err, ErrProducerFenced)
	strange := mine
	strange.LastProducerID, strange.MarkerProducerID = 500, 500
	require.ErrorIs(t, f.step("z", &strange).err, ErrInvalidProducerIDMapping)
	strange.ID = "unknown"
	require.ErrorIs(t, f.step("unknown", &strange).err, ErrInvalidProducerIDMapping)
	for name, bad := range map[string]func(c *TransactionChange){
		"protocol 1":  func(c *TransactionChange) { c.Version = 1 },
		"no bump":     func(c *TransactionChange) { c.ProducerEpoch = c.LastProducerEpoch },
		"not an end":  func(c *TransactionChange) { c.State = TransactionEmpty },
		"a deletion,": func(c *TransactionChange) { c.Delete = true },
	} {
		c := ends2(f.st.transaction("x"), TransactionPrepareCommit)
		bad(&c)
		require.Contains(t, []error{ErrInvalidRequest, ErrStale}, f.step("x", &c).err, name)
	}
	checkState(t, f.st)
}

// P9: a report of a marker that was held up takes nothing out of a later transaction, though the producer's pair, and even
// the partition, are the same.
func TestLateMarkerReport(t *testing.T) {
	f := transactionsFSM(t)
	first := f.ongoing("x", 7)
	f.alter(ends(first, TransactionPrepareCommit))
	report := writtenMarkers{{ProducerID: 7, Number: first.Number, Partitions: orders(0)}}
	require.NoError(t, f.step("x", report).err)
	require.NoError(t, f.step("x", &TransactionAddition{ID: "x", ProducerID: 7, Partitions: orders(0), Version: 1}).err)
	second := f.st.transaction("x")
	require.Greater(t, second.Number, first.Number)
	require.NoError(t, f.step("x", report).err, "while it is open")
	require.Same(t, second, f.st.transaction("x"))
	prepared := f.alter(ends(second, TransactionPrepareCommit))
	require.NoError(t, f.step("x", report).err, "and while it waits for its own marker")
	require.Same(t, prepared, f.st.transaction("x"))
	for name, wrong := range map[string]WrittenMarker{
		"another epoch":    {ProducerID: 7, Epoch: 1, Number: second.Number, Partitions: orders(0)},
		"another producer": {ProducerID: 8, Number: second.Number, Partitions: orders(0)},
		"another place":    {ProducerID: 7, Number: second.Number, Partitions: append(orders(1), TopicPartitions{TopicID: TopicID{9}, Partitions: []int32{0}})},
	} {
		require.NoError(t, f.step("x", writtenMarkers{wrong}).err)
		require.Same(t, prepared, f.st.transaction("x"), name)
	}
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Number: second.Number, Partitions: orders(0)}}).err)
	require.Equal(t, TransactionCompleteCommit, f.st.transaction("x").State)
}

// I8, G12, D11: offsets of a transaction are invisible until it is prepared to commit, and then committed all in the very
// same command; an abort leaves nothing of them.
func TestOffsetsOfATransaction(t *testing.T) {
	f := transactionsFSM(t)
	x := f.ongoing("x", 7, "g", "h")
	require.Equal(t, stepOutcome{}, f.step("x", offsetsOf(x, "g", 5)))
	require.NotNil(t, f.st.group("g"), "the group is there, so that somebody has it to delete")
	o := offsetsOf(x, "h", 6)
	o.Offsets = append(o.Offsets, OffsetEntry{TopicID{1}, 1, 8, -1, ""}, OffsetEntry{TopicID{9}, 0, 1, -1, ""}, OffsetEntry{TopicID{1}, 2, 1, -1, ""}, OffsetEntry{TopicID{1}, 1, -5, -1, ""})
	require.Equal(t, []error{nil, nil, ErrUnknownTopicID, ErrUnknownPartition, ErrInvalidRequest}, f.step("x", o).entries)
	require.Same(t, x, f.st.transaction("x"), "its revision is as it was: its end is not made stale")
	checkState(t, f.st)

	im := f.image()
	pid, pending := im.PendingOffset("g", TopicID{1}, 0)
	require.True(t, pending)
	require.Equal(t, int64(7), pid)
	_, visible := im.Offset("g", TopicID{1}, 0)
	require.False(t, visible)
	require.Zero(t, im.OffsetCount())
	require.Equal(t, map[TopicIDPartition]PendingOffset{
		{TopicID{1}, 0}: {7, CommittedOffset{Offset: 6, LeaderEpoch: 3, Metadata: "note", CommittedAt: 40}},
		{TopicID{1}, 1}: {7, CommittedOffset{Offset: 8, LeaderEpoch: -1, CommittedAt: 40}},
	}, maps.Collect(im.PendingOffsets("h")))

	fork := *f
	inner := *f.fsm
	fork.fsm = &inner
	fork.alter(ends(x, TransactionPrepareAbort))
	require.Zero(t, fork.st.pending.len())
	require.Zero(t, fork.st.offsetCount)
	checkState(t, fork.st)

	f.alter(ends(x, TransactionPrepareCommit))
	require.Zero(t, f.st.pending.len())
	got, _ := f.image().Offset("h", TopicID{1}, 0)
	require.Equal(t, CommittedOffset{Offset: 6, LeaderEpoch: 3, Metadata: "note", CommittedAt: 40}, got)
	require.Equal(t, 3, f.image().OffsetCount())
	_, pending = im.PendingOffset("g", TopicID{1}, 0)
	require.True(t, pending, "an Image is never written to")
	checkState(t, f.st)

	// A transaction of offsets alone is complete in the command that decides it.
	y := f.created("y", 8)
	only := offsetsOf(y, "g", 9)
	only.Implicit = true
	require.NoError(t, f.step("y", only).err)
	y = f.st.transaction("y")
	require.Equal(t, []string{"g"}, y.Groups)
	require.Equal(t, int8(2), y.Version)
	end := ends2(y, TransactionPrepareCommit)
	require.NoError(t, f.step("y", &end).err)
	require.Equal(t, TransactionCompleteCommit, f.st.transaction("y").State)
	got, _ = f.image().Offset("g", TopicID{1}, 0)
	require.Equal(t, int64(9), got.Offset)
}

// G1, G14: the fence of a commit is that of a member, and that of a producer; nothing that is refused begins a transaction or
// adds a group.
func TestOffsetsOfATransactionFence(t *testing.T) {
	f := transactionsFSM(t)
	f.must(f.change(&Group{Name: "g", State: GroupStable, Generation: 4}, &GroupMember{ID: "m", InstanceID: "i"}))
	x := f.ongoing("x", 7, "g")
	good := offsetsOf(x, "g", 5)
	good.Member, good.Generation = "m", 4
	for _, c := range []struct {
		want   error
		change func(o *TransactionOffsets)
	}{
		{nil, func(o *TransactionOffsets) {}},
		{ErrIllegalGeneration, func(o *TransactionOffsets) { o.Generation = 3 }},
		{ErrUnknownMember, func(o *TransactionOffsets) { o.Member = "z" }},
		{nil, func(o *TransactionOffsets) { o.Member, o.Generation = "", -1 }}, // before KIP-447
		{ErrUnknownMember, func(o *TransactionOffsets) { o.Member = "" }},
		{ErrIllegalGeneration, func(o *TransactionOffsets) { o.Generation = -1 }},
		{ErrFencedInstance, func(o *TransactionOffsets) { o.Member, o.Instance = "z", "i" }},
		{ErrGroupNotFound, func(o *TransactionOffsets) { o.Group, o.Implicit = "nowhere", true }},
		{ErrInvalidTransactionState, func(o *TransactionOffsets) { o.Group = "not added" }},
		{ErrStale, func(o *TransactionOffsets) { o.number-- }},
		{ErrInvalidProducerIDMapping, func(o *TransactionOffsets) { o.TransactionalID = "y" }},
		{ErrInvalidProducerIDMapping, func(o *TransactionOffsets) { o.ProducerID = 8 }},
		{ErrProducerFenced, func(o *TransactionOffsets) { o.ProducerEpoch = 1 }},
	} {
		o := *good
		c.change(&o)
		before := f.st
		require.Equal(t, c.want, f.step("x", &o).err)
		if c.want != nil {
			require.Same(t, before.transactions.root, f.st.transactions.root)
			require.Same(t, before.pending.root, f.st.pending.root)
			require.Same(t, before.groups.root, f.st.groups.root)
		}
	}
	c := f.steps("x", good)
	c.broker, c.epoch = f.by("g")
	c.broker = c.broker%3 + 1
	c.epoch = f.st.broker(c.broker).Epoch
	require.ErrorIs(t, f.must(c).([]stepOutcome)[0].err, ErrNotCoordinator)

	// The generation moves on: what is pending stays, and is committed by the end, as in Kafka.
	f.must(f.change(&Group{Name: "g", State: GroupStable, Generation: 5}))
	require.ErrorIs(t, f.step("x", good).err, ErrIllegalGeneration)
	x = f.alter(ends(x, TransactionPrepareCommit))
	got, _ := f.image().Offset("g", TopicID{1}, 0)
	require.Equal(t, int64(5), got.Offset)
	require.ErrorIs(t, f.step("x", good).err, ErrConcurrentTransactions)
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Number: x.Number, Partitions: orders(0)}}).err)
	good.Generation = 5
	require.ErrorIs(t, f.step("x", good).err, ErrInvalidTransactionState, "no transaction, and none asked for")

	// None of whose offsets can be kept begins nothing.
	none := *good
	none.Implicit, none.Offsets = true, []OffsetEntry{{TopicID{9}, 0, 1, -1, ""}}
	require.Equal(t, []error{ErrUnknownTopicID}, f.step("x", &none).entries)
	require.Equal(t, TransactionCompleteCommit, f.st.transaction("x").State)
}

// I18: of several offsets of one partition the one that was committed last counts, whatever the order in which their
// transactions end, and so does a commit without a transaction; as in Kafka, where it is their order in the log.
func TestOrderOfPendingOffsets(t *testing.T) {
	f := transactionsFSM(t)
	x, y := f.ongoing("x", 7, "g"), f.ongoing("y", 8, "g")
	commit := func(who *Transaction, offset int64) {
		require.NoError(t, f.step(who.ID, offsetsOf(who, "g", offset)).err)
	}
	is := func(want int64) {
		t.Helper()
		checkState(t, f.st)
		got, _ := f.image().Offset("g", TopicID{1}, 0)
		require.Equal(t, want, got.Offset)
	}
	holder := func(want int64) {
		t.Helper()
		pid, ok := f.image().PendingOffset("g", TopicID{1}, 0)
		require.Equal(t, want >= 0, ok)
		if ok {
			require.Equal(t, want, pid)
		}
	}
	again := func(who *Transaction) *Transaction {
		now := f.st.transaction(who.ID)
		require.NoError(t, f.step(who.ID, writtenMarkers{{ProducerID: who.ProducerID, Number: now.Number, Partitions: orders(0)}}).err)
		require.NoError(t, f.step(who.ID, &TransactionAddition{ID: who.ID, ProducerID: who.ProducerID, Partitions: orders(0), Groups: []string{"g"}, Version: 1}).err)
		return f.st.transaction(who.ID)
	}
	commit(x, 10)
	commit(y, 20)
	holder(7)
	f.alter(ends(y, TransactionPrepareCommit))
	is(20)
	holder(7) // it may still be unstable for who reads: its transaction is open
	f.alter(ends(x, TransactionPrepareCommit))
	is(20)
	holder(-1)

	x, y = again(x), again(y)
	commit(y, 30)
	commit(x, 40)
	f.alter(ends(y, TransactionPrepareCommit))
	is(30)
	f.alter(ends(x, TransactionPrepareCommit))
	is(40)

	x, y = again(x), again(y)
	commit(x, 50)
	require.Equal(t, commitOutcome{}, f.commit1(OffsetCommit{Group: "g", Generation: -1, Offsets: []OffsetEntry{{TopicID{1}, 0, 60, -1, ""}}}))
	is(60)
	holder(7)
	f.alter(ends(x, TransactionPrepareCommit))
	is(60)
	commit(y, 70)
	commit(y, 65)
	f.alter(ends(y, TransactionPrepareAbort))
	is(60)
}

// P12: a deleted topic is taken out of every transaction by the very command that deletes it, and one that waited for no other
// marker is complete; another topic of that name is another one. Its offsets are not committed.
func TestTopicDeletedInTransaction(t *testing.T) {
	f := transactionsFSM(t)
	f.must(topicCommand(2, "clicks", on(1), on(2)))
	both := append(orders(0), TopicPartitions{TopicID: TopicID{2}, Partitions: []int32{0, 1}})
	add := func(id string, pid int64, partitions []TopicPartitions) *Transaction {
		f.created(id, pid)
		require.NoError(t, f.step(id, &TransactionAddition{ID: id, ProducerID: pid, Partitions: partitions, Groups: []string{"g"}, Version: 1}).err)
		return f.st.transaction(id)
	}
	open, mixed, only, other := add("open", 1, both), add("mixed", 2, both), add("only", 3, both[1:]), add("other", 4, orders(1))
	o := offsetsOf(open, "g", 5)
	o.Offsets = append(o.Offsets, OffsetEntry{TopicID{2}, 0, 7, -1, ""})
	require.NoError(t, f.step("open", o).err)
	f.alter(ends(mixed, TransactionPrepareCommit))
	f.alter(ends(only, TransactionPrepareAbort))

	f.must(&deleteTopic{id: TopicID{2}, request: requestID{1}})
	f.must(topicCommand(3, "clicks", on(1), on(2)))
	checkState(t, f.st)
	require.Equal(t, orders(0), f.st.transaction("open").Partitions)
	require.Equal(t, orders(0), f.st.transaction("mixed").Partitions)
	require.Equal(t, TransactionPrepareCommit, f.st.transaction("mixed").State)
	require.Equal(t, TransactionCompleteAbort, f.st.transaction("only").State)
	require.Same(t, other, f.st.transaction("other"))
	require.Greater(t, f.st.transaction("open").Revision, open.Revision)

	_, pending := f.image().PendingOffset("g", TopicID{2}, 0)
	require.False(t, pending)
	require.Len(t, maps.Collect(f.image().PendingOffsets("g")), 1)
	f.alter(ends(f.st.transaction("open"), TransactionPrepareCommit))
	require.Equal(t, 1, f.image().OffsetCount())
	f.must(&deleteTopic{id: TopicID{1}, request: requestID{1}})
	require.Equal(t, TransactionCompleteCommit, f.st.transaction("open").State)
	require.Equal(t, TransactionOngoing, f.st.transaction("other").State, "it may still go on elsewhere")
	require.Nil(t, f.st.transaction("other").Partitions)
	checkState(t, f.st)
}

// Offsets that are deleted, with or without their group, are deleted where they are pending too: an end that comes later
// brings nothing back. Offsets and groups with something pending do not expire (G11).
func TestGroupDeletedInTransaction(t *testing.T) {
	f := transactionsFSM(t)
	x, y := f.ongoing("x", 7, "g"), f.ongoing("y", 8, "g")
	begin := func(who *Transaction, offset int64) {
		o := offsetsOf(who, "g", offset)
		o.Offsets = append(o.Offsets, OffsetEntry{TopicID{1}, 1, offset, -1, ""})
		require.NoError(t, f.step(who.ID, o).err)
	}
	begin(x, 5)
	begin(y, 6)
	by, epoch := f.by("g")
	f.must(&deleteOffsets{broker: by, epoch: epoch, group: "g", partitions: []TopicIDPartition{{TopicID{1}, 0}, {TopicID{1}, 5}}})
	checkState(t, f.st)
	_, pending := f.image().PendingOffset("g", TopicID{1}, 0)
	require.False(t, pending)
	_, pending = f.image().PendingOffset("g", TopicID{1}, 1)
	require.True(t, pending)

	f.commit1(OffsetCommit{Group: "g", Generation: -1, Time: 1, Offsets: []OffsetEntry{{TopicID{1}, 0, 1, -1, ""}, {TopicID{1}, 1, 1, -1, ""}}})
	commands := f.image().expirations(by, 1e6, 10, nil)
	require.Len(t, commands, 1)
	commands[0].epoch = epoch
	require.Equal(t, expired{Offsets: 1}, f.must(commands[0]), "that of partition 1 has another one pending")
	require.Empty(t, f.image().expirations(by, 1e6, 10, nil), "and so the group stays")

	c := f.change(&Group{Name: "g"})
	c.delete = true
	f.must(c)
	require.Zero(t, f.st.pending.len())
	checkState(t, f.st)
	f.alter(ends(x, TransactionPrepareCommit))
	require.Nil(t, f.st.group("g"))
	require.Zero(t, f.st.offsetCount)
	begin(y, 9) // the group is still in this transaction, and is made again
	f.must(&deleteOffsets{broker: by, epoch: epoch, group: "g", partitions: []TopicIDPartition{{TopicID{1}, 1}, {TopicID{1}, 0}}})
	require.Zero(t, f.st.pending.len())
	checkState(t, f.st)
	for _, c := range f.image().expirations(by, 2e6, 10, nil) {
		c.epoch = epoch
		f.must(c)
	}
	require.Nil(t, f.st.group("g"), "nothing is pending any more")
}

// M11, P9: a batch that was held up has no effect once a later one of its lane was applied, or coordinators have changed: it
// could begin a transaction behind the end of its own, which nobody would end.
func TestHeldBatchOfSteps(t *testing.T) {
	f := transactionsFSM(t)
	f.created("x", 7)
	held := f.steps("x", &TransactionAddition{ID: "x", ProducerID: 7, Partitions: orders(0), Version: 1})
	require.NoError(t, f.step("x", &TransactionAddition{ID: "x", ProducerID: 7, Partitions: orders(1), Version: 1}).err)
	f.alter(ends(f.st.transaction("x"), TransactionPrepareAbort))
	require.NoError(t, f.step("x", writtenMarkers{{ProducerID: 7, Number: f.st.transaction("x").Number, Partitions: orders(1)}}).err)
	x := f.st.transaction("x")
	require.Equal(t, TransactionCompleteAbort, x.State)
	f.refuses(ErrStale, held)
	require.Same(t, x, f.st.transaction("x"))

	held = f.steps("x", &TransactionAddition{ID: "x", ProducerID: 7, Partitions: orders(0), Version: 1})
	held.lane++ // of which no later one comes
	b := f.st.broker(held.broker%3 + 1)
	f.must(&alterBroker{broker: b.ID, epoch: b.Epoch, fenced: pb.Switch_SWITCH_ON, fencedIndex: b.fencedIndex})
	f.refuses(ErrStale, held)
	held.coordinatorEpoch, held.epoch = f.st.coordinatorEpoch, held.epoch+1
	f.refuses(ErrNotCoordinator, held) // of another process of that broker
	require.Same(t, x, f.st.transaction("x"))
}

// M5: a snapshot of transactions that no sequence of commands could have made is refused.
func TestSnapshotRefusesTransactions(t *testing.T) {
	header := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{FeatureLevel: 3, GroupRevision: 9, TransactionRevision: 9}}}
	topic := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Topic{Topic: &pb.SnapshotTopic{TopicId: append([]byte{1}, make([]byte, 15)...), Name: "orders", Partitions: 1}}}
	partitions := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Partitions{Partitions: encodePartitions([]*Partition{led(Partition{Leader: 1, Replicas: []BrokerID{1}, ISR: []BrokerID{1}, Directories: []DirectoryID{{1}}})})}}
	group := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Group{Group: &pb.Group{Name: "g", Type: 1, Revision: 1}}}
	tx := func(changes ...func(x *Transaction)) *pb.SnapshotRecord {
		m := &pb.SnapshotTransactions{}
		for i, change := range changes {
			x := Transaction{ID: fmt.Sprint("x", i), Revision: 9, Number: 9, State: TransactionOngoing, ProducerID: int64(i), LastProducerID: -1, LastProducerEpoch: -1,
				MarkerProducerID: -1, MarkerEpoch: -1, Partitions: orders(0), Groups: []string{"g", "h"}}
			change(&x)
			m.Transactions = append(m.Transactions, x.message())
		}
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Transactions{Transactions: m}}
	}
	same := func(*Transaction) {}
	pending := func(name string, producer int64, order uint64, partitions ...uint32) *pb.SnapshotRecord {
		m := &pb.OffsetColumns{TopicIds: append([]byte{1}, make([]byte, 15)...), Counts: []uint32{uint32(len(partitions))}, Partitions: partitions,
			Offsets: make([]int64, len(partitions)), CommittedAt: make([]int64, len(partitions))}
		orders := slices.Repeat([]uint64{order}, len(partitions))
		return &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Pending{Pending: &pb.SnapshotPending{Group: name, ProducerId: producer, Offsets: m, Orders: orders}}}
	}
	before := []*pb.SnapshotRecord{header, topic, partitions, group}
	read := func(records ...*pb.SnapshotRecord) error {
		records = append(slices.Clone(before), records...)
		st, _, err := readSnapshot(bytes.NewReader(framed(t, append(records, &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Footer{Footer: &pb.SnapshotFooter{Records: uint64(len(records))}}})...)))
		if err == nil {
			checkState(t, st)
		}
		return err
	}
	require.NoError(t, read(tx(same, same), pending("g", 0, 9, 0, 1), pending("g", 0, 3, 2), pending("g", 1, 9, 0)), "the good one")
	for want, records := range map[string][]*pb.SnapshotRecord{
		"no transactions":                {tx()},
		"without id":                     {tx(func(x *Transaction) { x.ID = "" })},
		"\"x0\" out of order":            {tx(same), tx(same)},
		"revision 10 of 9":               {tx(func(x *Transaction) { x.Revision = 10 })},
		"revision 0 of 9":                {tx(func(x *Transaction) { x.Revision = 0 })},
		"number 9, has revision 8":       {tx(func(x *Transaction) { x.Revision = 8 })},
		"in state 6":                     {tx(func(x *Transaction) { x.State = 6 })},
		"in state Empty is out of order": {tx(func(x *Transaction) { x.State = TransactionEmpty })},
		"in state PrepareCommit is":      {tx(func(x *Transaction) { x.State, x.MarkerProducerID = TransactionPrepareCommit, 0 })},
		"in state Ongoing is":            {tx(func(x *Transaction) { x.Groups = []string{"h", "g"} })},
		"with markers of producer 0":     {tx(func(x *Transaction) { x.MarkerProducerID = 0 })},
		"with markers of producer -1":    {tx(func(x *Transaction) { x.State, x.Groups = TransactionPrepareAbort, nil })},
		"that are not there":             {tx(func(x *Transaction) { x.Partitions = orders(0, 1) })},
		"share producer id 0":            {tx(same, func(x *Transaction) { x.ProducerID = 0 })},
		"producer ids -1":                {tx(func(x *Transaction) { x.ProducerID = -1 })},
		"producer epoch -2":              {tx(func(x *Transaction) { x.ProducerEpoch = -2 })},
		"group \"h\", which is not":      {tx(same), pending("h", 0, 1, 0)},
		"by producer 5":                  {tx(same), pending("g", 5, 1, 0)},
		"group \"g\" out of order":       {tx(same, same), pending("g", 1, 1, 0), pending("g", 0, 1, 0)},
		"in columns of 0":                {tx(same), pending("g", 0, 1)},
		"out of order, or of a later":    {tx(same), pending("g", 0, 10, 0)},
		"AAAAAAA out of order":           {tx(same), pending("g", 0, 1, 1, 0)},
	} {
		require.ErrorContains(t, read(records...), want)
	}
}
