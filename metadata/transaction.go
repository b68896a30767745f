package metadata

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"
)

// TransactionState is where a transactional id is between two transactions, or in one.
type TransactionState uint8

// States of a transactional id. Those that Kafka has beside them, Dead and PrepareEpochFence, are of one coordinator's
// memory; here what is about to happen is not a state before it is committed.
const (
	TransactionEmpty          TransactionState = iota // no transaction since the last InitProducerId
	TransactionOngoing                                // something was added
	TransactionPrepareCommit                          // decided; markers are being written
	TransactionPrepareAbort                           // decided; markers are being written
	TransactionCompleteCommit                         // all markers are written
	TransactionCompleteAbort                          // all markers are written
)

// String returns Kafka's name of the state.
func (s TransactionState) String() string {
	switch s {
	case TransactionEmpty:
		return "Empty"
	case TransactionOngoing:
		return "Ongoing"
	case TransactionPrepareCommit:
		return "PrepareCommit"
	case TransactionPrepareAbort:
		return "PrepareAbort"
	case TransactionCompleteCommit:
		return "CompleteCommit"
	case TransactionCompleteAbort:
		return "CompleteAbort"
	}
	return "TransactionState(" + strconv.Itoa(int(s)) + ")"
}

// Prepared reports whether a transaction is decided and not all of its markers are written yet.
func (s TransactionState) Prepared() bool {
	return s == TransactionPrepareCommit || s == TransactionPrepareAbort
}

// Active reports whether there is a transaction that is not complete.
func (s TransactionState) Active() bool { return s == TransactionOngoing || s.Prepared() }

// Transaction is the committed state of one transactional id, and of its transaction if there is one. Immutable.
//
// Invariants: ProducerID ≥ 0 and MarkerProducerID, if not -1, belong to no other transactional id. Partitions ascend by topic
// id and partition, name partitions that exist, and are none unless the state is active; a prepared transaction has at least
// one. Groups ascend and are none unless Ongoing. The pair of MarkerProducerID and MarkerEpoch is -1, -1 unless prepared.
type Transaction struct {
	ID string
	// Revision grows with each change of the transactional id, and never comes back, not even after the id was deleted. It is
	// what a TransactionChange compares.
	Revision uint64
	// Number names the present transaction, or the last one, 0 before the first: the Revision with which it became Ongoing.
	// No two transactions, of whatever id, have the same. Producer id and epoch are no such name: a client of the first
	// protocol keeps them over many transactions, so that by them a report of a marker, or an offset, that was held up would
	// pass for one of a later transaction.
	Number uint64
	State  TransactionState
	// ProducerID and ProducerEpoch are the pair that may write.
	ProducerID    int64
	ProducerEpoch int16
	// LastProducerID and LastProducerEpoch are the pair before the last bump that the producer itself asked for, -1 and -1 if
	// there was none, or somebody else's fenced it: retries of InitProducerId and EndTxn are recognized by them (KIP-360,
	// KIP-588, KIP-890).
	LastProducerID    int64
	LastProducerEpoch int16
	// MarkerProducerID and MarkerEpoch are what the markers of a prepared transaction carry: the id that wrote, and its epoch,
	// or a higher one where the transaction's end bumps it (KIP-890, and all that fences).
	MarkerProducerID int64
	MarkerEpoch      int16
	// Timeout is how long a transaction may be Ongoing. Whole milliseconds.
	Timeout time.Duration
	// Version is the transaction protocol that its client spoke last: 1, or 2 (KIP-890).
	Version int8
	// Partitions are those that were added, while Ongoing; later those of them whose marker is not reported yet.
	Partitions []TopicPartitions
	// Groups are those in which offsets may be committed with the transaction, while Ongoing.
	Groups []string
	// StartedAt is when the present transaction, or the last one, began, UpdatedAt when the id changed last, in unix
	// milliseconds of the clocks of those who proposed. StartedAt is 0 before the first.
	StartedAt, UpdatedAt int64
	// CoordinatorEpoch is the coordinator epoch in which the transaction was prepared last; its markers carry it, and so no
	// marker of an earlier coordinator passes for one of a later (P9).
	CoordinatorEpoch int32
}

// HasPartition reports whether Partitions has a partition.
func (t *Transaction) HasPartition(id TopicID, partition int32) bool {
	return hasPartition(t.Partitions, id, partition)
}

// HasGroup reports whether Groups has a group.
func (t *Transaction) HasGroup(group string) bool {
	_, ok := slices.BinarySearch(t.Groups, group)
	return ok
}

// AnyRevision as the Revision of a TransactionChange that ends a transaction of protocol 2: it is not compared, because
// something may have been added that the coordinator can't see yet. What is compared is the producer's pair, which must be
// the LastProducerID and LastProducerEpoch of the change: in that protocol a pair has one transaction, so that the change
// can't meet another one than it was meant for.
const AnyRevision uint64 = math.MaxUint64

// TransactionChange is one change of a transactional id: a compare-and-set on Revision, in force only while the broker that
// proposes it coordinates the id. The scalar fields are those after the change. What was added, when it began, its number
// and the coordinator epoch are for the state to know.
//
// The changes that there are, by State:
//
//   - TransactionEmpty: a new id, or another pair for one that is Empty or complete. What is known of the last transaction is
//     forgotten, but for its Number.
//   - TransactionPrepareCommit, of an Ongoing one: the pending offsets of its groups become committed ones in the same step.
//     With no partition left to mark, it is complete in the same step.
//   - TransactionPrepareAbort, of an Ongoing one: its pending offsets are dropped. Of one that is Empty or complete too, as a
//     producer of protocol 2 may abort what it has not begun: it is complete at once.
//   - Delete, of one that is Empty or complete (P10).
//
// A change of a prepared one is refused with ErrConcurrentTransactions, any other with ErrInvalidTransactionState.
type TransactionChange struct {
	ID string
	// Revision is that of the Transaction the change was decided on; 0 says that there must be none. See AnyRevision.
	Revision uint64
	State    TransactionState
	// ProducerID and ProducerEpoch: the same id with an epoch that is not lower, or an id that was allocated and that no
	// transactional id has.
	ProducerID        int64
	ProducerEpoch     int16
	LastProducerID    int64
	LastProducerEpoch int16
	// MarkerProducerID and MarkerEpoch, of the two that prepare: the id before the change, and its epoch or a higher one.
	MarkerProducerID int64
	MarkerEpoch      int16
	Timeout          time.Duration
	Version          int8  // 1 or 2
	UpdatedAt        int64 // the coordinator's clock in unix milliseconds
	Delete           bool
}

// TransactionAddition adds partitions and groups to the transaction of a producer, and begins one if there is none. With
// Version 1 its coordinator proposes it; with Version 2 any registered broker may, because the leaders of partitions do when
// their first record comes (KIP-890). It must not be written to once it was given away.
type TransactionAddition struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Partitions    []TopicPartitions // in any order
	Groups        []string          // in any order
	Version       int8              // 1 or 2
	Time          int64             // the proposer's clock in unix milliseconds
}

// TransactionOffsets commits offsets of a group with a producer's transaction: they are pending until it is decided. The
// group's coordinator proposes it. It must not be written to once it was given away.
type TransactionOffsets struct {
	OffsetCommit
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	// Implicit adds the group to the transaction, and begins one if there is none (KIP-890). Otherwise the group must have been
	// added.
	Implicit bool

	// number is that of the transaction, if not Implicit. Store fills it in.
	number uint64
}

// WrittenMarker reports that the marker of a prepared transaction is committed in partitions.
type WrittenMarker struct {
	// ProducerID and Epoch are what the marker carried.
	ProducerID int64
	Epoch      int16
	// Number is that of the Transaction that the marker was written for, as the Image showed it. A report with another one has
	// no effect.
	Number     uint64
	Partitions []TopicPartitions // in any order
}

// PendingOffset is an offset that is committed with a transaction which is not decided yet.
type PendingOffset struct {
	ProducerID int64
	CommittedOffset
}

// Transaction returns what there is of a transactional id, or nil.
func (im *Image) Transaction(id string) *Transaction { return im.st.transaction(id) }

// TransactionByProducer returns the transactional id that has a producer id now, or whose markers under way carry it; nil
// if there is none.
func (im *Image) TransactionByProducer(producerID int64) *Transaction {
	return im.st.transactionByProducer(producerID)
}

// Transactions yields all transactional ids, ascending.
func (im *Image) Transactions() iter.Seq[*Transaction] {
	return func(yield func(*Transaction) bool) {
		im.st.transactions.all()(func(_ string, t *Transaction) bool { return yield(t) })
	}
}

// TransactionCount is the number of transactional ids.
func (im *Image) TransactionCount() int { return im.st.transactions.len() }

// ActiveTransactions yields those that are Ongoing or prepared, by ascending id.
func (im *Image) ActiveTransactions() iter.Seq[*Transaction] {
	return func(yield func(*Transaction) bool) {
		im.st.active.all()(func(_ string, t *Transaction) bool { return yield(t) })
	}
}

// ActiveTransactionCount is how many ActiveTransactions yields.
func (im *Image) ActiveTransactionCount() int { return im.st.active.len() }

// ChangedTransactions yields what differs between an older Image of the same Store and this one, by ascending id: (nil, new)
// for a created one, (old, nil) for a deleted one, (old, new) for a changed one. The cost is linear in the change, not in
// the Image. With a nil since every one is new.
func (im *Image) ChangedTransactions(since *Image) iter.Seq2[*Transaction, *Transaction] {
	return func(yield func(old, new *Transaction) bool) {
		var before tree[string, *Transaction]
		if since != nil {
			before = since.st.transactions
		}
		diffTrees(before, im.st.transactions, func(_ string, c change[*Transaction]) bool { return yield(c.before, c.after) })
	}
}

// PendingOffset reports whether an offset of the group is pending in that partition, and whose transaction it belongs to;
// that with the lowest producer id if there are several. Those of deleted topics are not there.
func (im *Image) PendingOffset(group string, id TopicID, partition int32) (producerID int64, ok bool) {
	return im.st.pendingOffset(group, TopicIDPartition{id, partition})
}

// PendingOffsets yields all pending offsets of a group, by ascending topic id, partition and producer id, but for those of
// deleted topics.
func (im *Image) PendingOffsets(group string) iter.Seq2[TopicIDPartition, PendingOffset] {
	return im.st.pendingOffsets(group)
}

// hasPartition reports whether an ascending list has a partition.
func hasPartition(topics []TopicPartitions, id TopicID, partition int32) bool {
	i, ok := findTopic(topics, id)
	if !ok {
		return false
	}
	_, ok = slices.BinarySearch(topics[i].Partitions, partition)
	return ok
}

func findTopic(topics []TopicPartitions, id TopicID) (int, bool) {
	return slices.BinarySearchFunc(topics, id, func(t TopicPartitions, id TopicID) int { return compareTopicIDs(t.TopicID, id) })
}

// addPartitions returns an ascending list with partitions more, which may come in any order and be there already. The list
// itself is left as it is; it is returned when nothing was added.
func addPartitions(topics, more []TopicPartitions) []TopicPartitions {
	shared := true
	var own []bool // of the topics whose Partitions are a copy, once the list is one
	for _, m := range more {
		for _, p := range m.Partitions {
			if hasPartition(topics, m.TopicID, p) {
				continue
			}
			if shared {
				topics, own, shared = slices.Clone(topics), make([]bool, len(topics)), false
			}
			i, found := findTopic(topics, m.TopicID)
			if !found {
				topics, own = slices.Insert(topics, i, TopicPartitions{TopicID: m.TopicID}), slices.Insert(own, i, true)
			} else if !own[i] {
				topics[i].Partitions, own[i] = slices.Clone(topics[i].Partitions), true
			}
			at, _ := slices.BinarySearch(topics[i].Partitions, p)
			topics[i].Partitions = slices.Insert(topics[i].Partitions, at, p)
		}
	}
	return topics
}

// withoutPartitions returns an ascending list without some partitions, nil if none is left. The list itself is left as it
// is; it is returned when nothing was taken out.
func withoutPartitions(topics, gone []TopicPartitions) []TopicPartitions {
	for _, g := range gone {
		i, found := findTopic(topics, g.TopicID)
		if !found {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(topics[i].Partitions), func(p int32) bool { return slices.Contains(g.Partitions, p) })
		if len(left) == len(topics[i].Partitions) {
			continue
		}
		topics = slices.Clone(topics)
		if topics[i].Partitions = left; len(left) == 0 {
			topics = slices.Delete(topics, i, i+1)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	return topics
}

// ascend says whether a list is in the order that Transaction promises.
func ascend(topics []TopicPartitions) bool {
	for i, t := range topics {
		unordered := i > 0 && compareTopicIDs(topics[i-1].TopicID, t.TopicID) >= 0
		if unordered || len(t.Partitions) == 0 || t.Epochs != nil || !strictlyAscending(t.Partitions) {
			return false
		}
	}
	return true
}

func strictlyAscending[T cmp.Ordered](s []T) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] >= s[i] {
			return false
		}
	}
	return true
}
