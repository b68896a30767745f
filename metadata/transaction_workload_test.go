package metadata

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// transactionsFSM is groupsFSM at the feature level that has transactions, with a block of producer ids.
func transactionsFSM(t testing.TB) *testFSM {
	f := groupsFSM(t)
	f.must(&setFeatureLevel{expected: GroupsFeatureLevel, level: TransactionsFeatureLevel})
	f.must(&allocateProducerIDs{count: 1000})
	return f
}

// steps is a batch by the present coordinator of a transactional id.
func (f *testFSM) steps(id string, steps ...transactionStep) *transact {
	f.batches++
	by, _ := f.image().Coordinator(TransactionCoordinator, id)
	c := &transact{broker: by, coordinatorEpoch: f.st.coordinatorEpoch, sequence: f.batches, steps: steps}
	if b := f.st.broker(by); b != nil {
		c.epoch = b.Epoch
	}
	return c
}

// step applies one step of the present coordinator of a transactional id, or of a group.
func (f *testFSM) step(id string, step transactionStep) stepOutcome {
	f.t.Helper()
	c := f.steps(id, step)
	if o, ok := step.(*TransactionOffsets); ok {
		c.broker, c.epoch = f.by(o.Group)
	}
	out := f.must(c).([]stepOutcome)
	require.Len(f.t, out, 1)
	return out[0]
}

// alter applies a change on the present revision that must succeed.
func (f *testFSM) alter(c TransactionChange) *Transaction {
	f.t.Helper()
	if t := f.st.transaction(c.ID); t != nil && c.Revision == 0 {
		c.Revision = t.Revision
	}
	if c.Version == 0 {
		c.Version = 1
	}
	out := f.step(c.ID, &c)
	require.NoError(f.t, out.err)
	t := f.st.transaction(c.ID)
	if t != nil {
		require.Equal(f.t, t.Revision, out.revision)
	}
	return t
}

// created makes a transactional id with a producer id.
func (f *testFSM) created(id string, producerID int64) *Transaction {
	f.t.Helper()
	return f.alter(TransactionChange{ID: id, ProducerID: producerID, LastProducerID: -1, LastProducerEpoch: -1, Timeout: 60e9, UpdatedAt: 10})
}

// ongoing makes one with partition 0 of the first topic, and groups, in its transaction of protocol 1.
func (f *testFSM) ongoing(id string, producerID int64, groups ...string) *Transaction {
	f.t.Helper()
	f.created(id, producerID)
	a := TransactionAddition{ID: id, ProducerID: producerID, Partitions: []TopicPartitions{{TopicID: TopicID{1}, Partitions: []int32{0}}}, Groups: groups, Version: 1, Time: 20}
	require.NoError(f.t, f.step(id, &a).err)
	return f.st.transaction(id)
}

// ends is the end of a transaction as a coordinator of protocol 1 decides it.
func ends(t *Transaction, state TransactionState) TransactionChange {
	return TransactionChange{ID: t.ID, Revision: t.Revision, State: state, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch,
		LastProducerID: t.LastProducerID, LastProducerEpoch: t.LastProducerEpoch, MarkerProducerID: t.ProducerID, MarkerEpoch: t.ProducerEpoch,
		Timeout: t.Timeout, Version: 1, UpdatedAt: 30}
}

// ends2 is the end as protocol 2 has it: it gives the producer the next epoch, and does not compare the revision.
func ends2(t *Transaction, state TransactionState) TransactionChange {
	c := ends(t, state)
	c.Revision, c.Version = AnyRevision, 2
	c.LastProducerID, c.LastProducerEpoch = t.ProducerID, t.ProducerEpoch
	c.ProducerEpoch++
	c.MarkerEpoch++
	return c
}

// transactionWorkload makes entries of all kinds of steps, at the feature level that has them, most of them successful, some
// refused. It needs an FSM to itself: f is left in the state after them.
func transactionWorkload(f *testFSM, n int) (entries []*raft.Log) {
	seq := uint32(11)
	random := func(n int) int { seq = seq*1664525 + 1013904223; return int(seq>>8) % n }
	do := func(commands ...command) {
		e := f.entry(commands...)
		entries = append(entries, e)
		f.Apply(e)
	}
	do(&initCluster{clusterID: "millrace-x", featureLevel: TransactionsFeatureLevel}, broker(1, 1), broker(2, 1), broker(3, 1), &allocateProducerIDs{count: 1000})
	do(topicCommand(1, "orders", on(1, 2, 3), on(2, 3, 1)), topicCommand(2, "clicks", on(1), on(2), on(3)), topicCommand(3, "gone", on(1)))
	next := int64(0)
	partition := func() []TopicPartitions {
		return []TopicPartitions{{TopicID: TopicID{byte(random(3) + 1)}, Partitions: []int32{int32(random(2))}}, {TopicID: TopicID{1}, Partitions: []int32{1, 0}}}
	}
	for i := range n {
		id := fmt.Sprintf("tx-%d", random(20))
		t := f.st.transaction(id)
		var step transactionStep
		switch {
		case t == nil:
			step = &TransactionChange{ID: id, ProducerID: next, LastProducerID: -1, LastProducerEpoch: -1, Timeout: 60e9, Version: 1, UpdatedAt: int64(i)}
			next++
		case random(12) == 0:
			c := ends(t, TransactionState(random(4)))
			c.Delete = random(3) == 0
			step = &c
		case t.State.Prepared():
			number := t.Number
			if random(5) == 0 {
				number--
			}
			step = writtenMarkers{{ProducerID: t.MarkerProducerID, Epoch: t.MarkerEpoch, Number: number, Partitions: t.Partitions[:1]}, {ProducerID: 999}}
		case t.State == TransactionOngoing && random(3) == 0:
			state := []TransactionState{TransactionPrepareCommit, TransactionPrepareAbort}[random(2)]
			c := ends(t, state)
			if t.Version == 2 {
				if c = ends2(t, state); random(3) == 0 {
					c.ProducerID, c.ProducerEpoch, next = next, 0, next+1
				}
			}
			step = &c
		case random(3) == 0:
			group := fmt.Sprintf("group-%d", random(4))
			if len(t.Groups) > 0 && random(3) > 0 {
				group = t.Groups[0]
			}
			step = &TransactionOffsets{TransactionalID: id, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch, Implicit: random(2) == 0, number: t.Number,
				OffsetCommit: OffsetCommit{Group: group, Generation: -1, Time: int64(i), Offsets: []OffsetEntry{
					{TopicID{1}, int32(random(3)), int64(i), -1, ""}, {TopicID{2}, int32(random(3)), int64(i), 4, "note"}}}}
		case t.State != TransactionOngoing && random(6) == 0:
			step = &TransactionChange{ID: id, Revision: t.Revision, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch + 1, LastProducerID: -1, LastProducerEpoch: -1, Timeout: 30e9, Version: 2, UpdatedAt: int64(i)}
		default:
			step = &TransactionAddition{ID: id, ProducerID: t.ProducerID, ProducerEpoch: t.ProducerEpoch, Partitions: partition(), Groups: []string{fmt.Sprintf("group-%d", random(4))},
				Version: int8(random(2) + 1), Time: int64(i)}
		}
		c := f.steps(id, step)
		if o, ok := step.(*TransactionOffsets); ok {
			c.broker, c.epoch = f.by(o.Group)
		}
		if random(25) == 0 {
			c.sequence -= 2
		}
		do(c)
		switch random(40) {
		case 0:
			do(&deleteTopic{id: TopicID{3}, request: requestID{byte(i)}})
		case 1:
			b := f.st.broker(BrokerID(random(3) + 1))
			do(&alterBroker{broker: b.ID, epoch: b.Epoch, fenced: pb.Switch_SWITCH_ON, fencedIndex: b.fencedIndex})
			b = f.st.broker(b.ID)
			do(&alterBroker{broker: b.ID, epoch: b.Epoch, fenced: pb.Switch_SWITCH_OFF, fencedIndex: b.fencedIndex})
		case 2, 3:
			group := fmt.Sprintf("group-%d", random(4))
			do(f.commits(OffsetCommit{Group: group, Generation: -1, Time: int64(i), Offsets: []OffsetEntry{{TopicID{1}, int32(random(2)), int64(i), -1, ""}}}))
		case 4:
			group := fmt.Sprintf("group-%d", random(4))
			by, epoch := f.by(group)
			do(&deleteOffsets{broker: by, epoch: epoch, group: group, partitions: []TopicIDPartition{{TopicID{1}, 0}, {TopicID{2}, 1}}})
			if g := f.st.group(group); g != nil && random(3) == 0 {
				c := f.change(&Group{Name: group})
				c.delete, c.time = true, int64(i)
				do(c)
			}
		}
	}
	return entries
}
