package metadata

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func changeTransaction1(t testing.TB, s *Store, c TransactionChange) (uint64, error) {
	t.Helper()
	return answered(t, func(done func(uint64, error)) { s.ChangeTransaction(c, done) })
}

func addToTransaction1(t testing.TB, s *Store, a TransactionAddition) error {
	t.Helper()
	_, err := answered(t, func(done func(none, error)) { s.AddToTransaction(a, func(err error) { done(none{}, err) }) })
	return err
}

func commitInTransaction(t testing.TB, s *Store, c TransactionOffsets) ([]error, error) {
	t.Helper()
	return answered(t, func(done func([]error, error)) { s.CommitTransactionOffsets(c, done) })
}

func markersWritten1(t testing.TB, s *Store, markers ...WrittenMarker) error {
	t.Helper()
	_, err := answered(t, func(done func(none, error)) { s.MarkersWritten(markers, func(err error) { done(none{}, err) }) })
	return err
}

// newTransaction creates a transactional id at its coordinator.
func newTransaction(t testing.TB, s *Store, id string) *Transaction {
	t.Helper()
	first, _, err := s.AllocateProducerIDs(testContext(t))
	require.NoError(t, err)
	_, err = changeTransaction1(t, s, TransactionChange{ID: id, ProducerID: first, LastProducerID: -1, LastProducerEpoch: -1, Timeout: time.Minute, Version: 1, UpdatedAt: 1})
	require.NoError(t, err)
	return s.Image().Transaction(id)
}

// A transaction from its beginning to its end, through a Store: what is answered can be seen (M12), and survives a restart;
// refusals say why.
func TestTransactionThroughStore(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 3))[0].ID
	x := newTransaction(t, s, "x")
	add := TransactionAddition{ID: "x", ProducerID: x.ProducerID, Partitions: []TopicPartitions{{TopicID: id, Partitions: []int32{2, 0}}}, Groups: []string{"g"}, Version: 1, Time: 5}
	require.NoError(t, addToTransaction1(t, s, add))
	x = s.Image().Transaction("x")
	require.Equal(t, []int32{0, 2}, x.Partitions[0].Partitions)
	bad := add
	bad.Partitions = []TopicPartitions{{TopicID: id, Partitions: []int32{-1}}}
	require.ErrorIs(t, addToTransaction1(t, s, bad), ErrUnknownPartition)
	bad.ProducerEpoch, bad.Partitions = 3, nil
	require.ErrorIs(t, addToTransaction1(t, s, bad), ErrProducerFenced)

	commit := TransactionOffsets{OffsetCommit: OffsetCommit{Group: "g", Generation: -1, Time: 6, Offsets: []OffsetEntry{{id, 0, 10, -1, ""}, {id, -1, 1, -1, ""}, {id, 3, 1, -1, ""}}},
		TransactionalID: "x", ProducerID: x.ProducerID}
	entries, err := commitInTransaction(t, s, commit)
	require.NoError(t, err)
	for i, want := range []error{nil, ErrUnknownPartition, ErrUnknownPartition} {
		require.ErrorIs(t, entries[i], want)
	}
	commit.Group = "h"
	_, err = commitInTransaction(t, s, commit)
	require.ErrorIs(t, err, ErrInvalidTransactionState, "which was not added; the Image is not trusted for that")
	commit.TransactionalID = "nobody"
	_, err = commitInTransaction(t, s, commit)
	require.ErrorIs(t, err, ErrInvalidProducerIDMapping)

	stale := ends(x, TransactionPrepareCommit)
	stale.Revision--
	_, err = changeTransaction1(t, s, stale)
	require.ErrorIs(t, err, ErrStale)
	_, err = changeTransaction1(t, s, ends(x, TransactionPrepareCommit))
	require.NoError(t, err)
	o, ok := s.Offset("g", id, 0)
	require.True(t, ok)
	require.Equal(t, int64(10), o.Offset)

	require.NoError(t, s.Close())
	s = openStore(t, cfg)
	require.NoError(t, s.Ready(testContext(t)))
	x = s.Image().Transaction("x")
	require.Equal(t, TransactionPrepareCommit, x.State)
	register(t, s, 1, 2)
	require.NoError(t, markersWritten1(t, s))
	require.NoError(t, markersWritten1(t, s, WrittenMarker{ProducerID: 99, Number: 3, Partitions: x.Partitions}, WrittenMarker{ProducerID: x.ProducerID, Number: x.Number, Partitions: x.Partitions}))
	require.Equal(t, TransactionCompleteCommit, s.Image().Transaction("x").State)
	require.NoError(t, s.Barrier(testContext(t)))
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Barrier(testContext(t)), ErrClosed)
	require.Error(t, markersWritten1(t, s, WrittenMarker{}))
}

// M20: very many offsets, and very many partitions, go in one step each, in parts that are applied together.
func TestLargeStepsOfTransactions(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("wide", 6000))[0].ID
	x := newTransaction(t, s, "x")
	all := TopicPartitions{TopicID: id}
	for p := range int32(6000) {
		all.Partitions = append(all.Partitions, p)
	}
	offsets := entriesFor(id, 6001, 3)
	for i := range offsets {
		offsets[i].Metadata = "some words beside it, so that it is long"
	}
	entries, err := commitInTransaction(t, s, TransactionOffsets{OffsetCommit: OffsetCommit{Group: "g", Generation: -1, Offsets: offsets}, TransactionalID: "x", ProducerID: x.ProducerID, Implicit: true})
	require.NoError(t, err)
	require.Len(t, entries, 6001)
	require.ErrorIs(t, entries[6000], ErrUnknownPartition)
	require.NoError(t, entries[5999])
	require.NoError(t, addToTransaction1(t, s, TransactionAddition{ID: "x", ProducerID: x.ProducerID, Partitions: []TopicPartitions{all}, Version: 2}))
	end := ends2(s.Image().Transaction("x"), TransactionPrepareCommit)
	_, err = changeTransaction1(t, s, end)
	require.NoError(t, err)
	require.Equal(t, 6000, s.Image().OffsetCount())
	x = s.Image().Transaction("x")
	require.NoError(t, markersWritten1(t, s, WrittenMarker{ProducerID: x.MarkerProducerID, Epoch: x.MarkerEpoch, Number: x.Number, Partitions: []TopicPartitions{all}}))
	require.Equal(t, TransactionCompleteCommit, s.Image().Transaction("x").State)
	huge := offsets
	for i := range huge {
		huge[i].Metadata = string(make([]byte, 2000))
	}
	_, err = commitInTransaction(t, s, TransactionOffsets{OffsetCommit: OffsetCommit{Group: "g", Generation: -1, Offsets: huge}, TransactionalID: "x", ProducerID: x.ProducerID, Implicit: true})
	require.ErrorIs(t, err, ErrPolicyViolation)
}

// D17: in a cluster at an older level transactions are refused with the mend, here and by a controller.
func TestTransactionsInMixedVersions(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	require.Equal(t, TransactionsFeatureLevel, s.Image().FeatureLevel(), "a new cluster begins there")
	st := *s.fsm.st // as if an older version had formed it
	st.featureLevel = GroupsFeatureLevel
	s.publish(&st, s.Image().Version())
	_, err := changeTransaction1(t, s, TransactionChange{ID: "x", Version: 1})
	require.ErrorIs(t, err, ErrInvalidFeatureLevel)
	require.ErrorContains(t, err, "raise the feature level to 3")
	require.ErrorIs(t, addToTransaction1(t, s, TransactionAddition{ID: "x", Version: 2}), ErrInvalidFeatureLevel)
	require.ErrorIs(t, markersWritten1(t, s, WrittenMarker{}), ErrInvalidFeatureLevel)
	_, err = commitInTransaction(t, s, TransactionOffsets{OffsetCommit: OffsetCommit{Group: "g"}})
	require.ErrorIs(t, err, ErrInvalidFeatureLevel)
	body, err := encodeBody(nil, &transact{})
	require.NoError(t, err)
	out, err := s.proposeGroups(testContext(t), groupProposals{[]groupProposal{{22, body}}})
	require.NoError(t, err)
	require.ErrorIs(t, out.Answers[0].Err.err(), ErrInvalidFeatureLevel, "older brokers would stop at it")
	s.publish(s.fsm.st, s.Image().Version())
	out, err = s.proposeGroups(testContext(t), groupProposals{[]groupProposal{{22, []byte{0xff}}}})
	require.NoError(t, err)
	require.ErrorIs(t, out.Answers[0].Err.err(), ErrInvalidRequest)
}

// L13: with a full disk nothing is begun, and what is open can be ended.
func TestTransactionsWithAFullDisk(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 1))[0].ID
	x := newTransaction(t, s, "x")
	add := TransactionAddition{ID: "x", ProducerID: x.ProducerID, Partitions: []TopicPartitions{{TopicID: id, Partitions: []int32{0}}}, Version: 1}
	require.NoError(t, addToTransaction1(t, s, add))
	s.full.Store(true)
	require.ErrorIs(t, addToTransaction1(t, s, add), ErrBusy)
	_, err := commitInTransaction(t, s, TransactionOffsets{OffsetCommit: OffsetCommit{Group: "g", Generation: -1}, TransactionalID: "x", ProducerID: x.ProducerID, Implicit: true})
	require.ErrorIs(t, err, ErrBusy)
	x = s.Image().Transaction("x")
	_, err = changeTransaction1(t, s, ends(x, TransactionPrepareAbort))
	require.NoError(t, err)
	require.NoError(t, markersWritten1(t, s, WrittenMarker{ProducerID: x.ProducerID, Number: x.Number, Partitions: x.Partitions}))
	require.Equal(t, TransactionCompleteAbort, s.Image().Transaction("x").State)
}

// idOf returns a transactional id that broker i coordinates.
func (bs *brokers) idOf(i int, prefix string) string {
	for n := range 1000 {
		id := fmt.Sprintf("%s-%d", prefix, n)
		if at, _ := bs.stores[i].Image().Coordinator(TransactionCoordinator, id); at == BrokerID(i+1) {
			return id
		}
	}
	bs.t.Fatalf("broker %d coordinates nothing", i+1)
	return ""
}

// P9, P10, M11: a step that is held up on the way, for longer than its broker waits, has no effect behind what was done
// after it: not at the coordinator, nor, of another protocol's pair, from the leader of a partition.
func TestHeldStepsOfTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, topic := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		bs.await(at, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		s, id := bs.stores[at], bs.idOf(at, "x")
		x := newTransaction(t, s, id)
		add := func(partition int32) error {
			return addToTransaction1(t, s, TransactionAddition{ID: id, ProducerID: x.ProducerID, Partitions: []TopicPartitions{{TopicID: topic, Partitions: []int32{partition}}}, Version: 1})
		}
		release := bs.hold(opProposeGroups.binary.method)
		require.ErrorIs(t, add(0), ErrTimeout, "it may have been applied, or not")
		late := release()
		require.NoError(t, add(1))
		x = s.Image().Transaction(id)
		_, err := changeTransaction1(t, s, ends(x, TransactionPrepareAbort))
		require.NoError(t, err)
		require.NoError(t, markersWritten1(t, s, WrittenMarker{ProducerID: x.ProducerID, Number: x.Number, Partitions: x.Partitions}))
		late()
		bs.settle()
		require.Equal(t, TransactionCompleteAbort, s.Image().Transaction(id).State)

		leader, implicit := bs.stores[bs.other(at)], TransactionAddition{ID: id, ProducerID: x.ProducerID, Partitions: []TopicPartitions{{TopicID: topic, Partitions: []int32{0}}}, Version: 2}
		release = bs.hold(opProposeGroups.binary.method)
		require.ErrorIs(t, addToTransaction1(t, leader, implicit), ErrTimeout)
		late = release()
		_, err = changeTransaction1(t, s, ends2(s.Image().Transaction(id), TransactionPrepareAbort)) // its client gave up
		require.NoError(t, err)
		late()
		bs.settle()
		require.Equal(t, TransactionCompleteAbort, s.Image().Transaction(id).State)
	})
}

// KIP-447: the coordinator of a group may not have heard yet that the group was added at the transaction's coordinator. It
// finds out before it refuses, and an offset that was meant for one transaction does not get into the next.
func TestOffsetsAtAnotherCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, topic := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		far := bs.other(at)
		for _, i := range []int{at, far} {
			bs.await(i, "there is a topic", func(im *Image) bool { return im.Topic("orders") != nil })
		}
		s, id, group := bs.stores[at], bs.idOf(at, "x"), bs.groupOf(far, "g")
		x := newTransaction(t, s, id)
		for round := range int64(20) {
			partitions := []TopicPartitions{{TopicID: topic, Partitions: []int32{0}}}
			require.NoError(t, addToTransaction1(t, s, TransactionAddition{ID: id, ProducerID: x.ProducerID, Partitions: partitions, Groups: []string{group}, Version: 1}))
			_, err := commitInTransaction(t, bs.stores[far], TransactionOffsets{OffsetCommit: OffsetCommit{Group: group, Generation: -1, Offsets: entriesFor(topic, 1, round)}, TransactionalID: id, ProducerID: x.ProducerID})
			require.NoError(t, err, "round %d", round)
			x = s.Image().Transaction(id)
			_, err = changeTransaction1(t, s, ends(x, TransactionPrepareCommit))
			require.NoError(t, err, "the offsets did not make its revision another one")
			require.NoError(t, markersWritten1(t, s, WrittenMarker{ProducerID: x.ProducerID, Number: x.Number, Partitions: partitions}))
			o, _ := s.Offset(group, topic, 0)
			require.Equal(t, round, o.Offset)
		}
		// What the group's coordinator saw last is the transaction before: a held offset of it is refused.
		require.NoError(t, addToTransaction1(t, s, TransactionAddition{ID: id, ProducerID: x.ProducerID, Groups: []string{group}, Version: 1}))
		require.NoError(t, bs.stores[far].Barrier(testContext(t)))
		require.Equal(t, TransactionOngoing, bs.stores[far].Image().Transaction(id).State)
		release := bs.hold(opProposeGroups.binary.method)
		_, err := commitInTransaction(t, bs.stores[far], TransactionOffsets{OffsetCommit: OffsetCommit{Group: group, Generation: -1, Offsets: entriesFor(topic, 1, 99)}, TransactionalID: id, ProducerID: x.ProducerID})
		require.ErrorIs(t, err, ErrTimeout)
		late := release()
		_, err = changeTransaction1(t, s, ends(s.Image().Transaction(id), TransactionPrepareAbort))
		require.NoError(t, err)
		require.NoError(t, addToTransaction1(t, s, TransactionAddition{ID: id, ProducerID: x.ProducerID, Groups: []string{group}, Version: 1}))
		late()
		bs.settle()
		_, pending := s.Image().PendingOffset(group, topic, 0)
		require.False(t, pending)
	})
}

// M12: after a barrier a broker shows what could be seen on any other before; one that is cut off from the quorum says in time
// that it can't.
func TestBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bs, _ := newGroupBrokers(t)
		defer bs.close()
		at := bs.other()
		far := bs.other(at)
		x := newTransaction(t, bs.stores[at], bs.idOf(at, "x"))
		for range 30 {
			c := TransactionChange{ID: x.ID, Revision: x.Revision, ProducerID: x.ProducerID, ProducerEpoch: x.ProducerEpoch + 1, LastProducerID: -1, LastProducerEpoch: -1, Version: 1}
			_, err := changeTransaction1(t, bs.stores[at], c)
			require.NoError(t, err)
			x = bs.stores[at].Image().Transaction(x.ID)
			seen := bs.stores[at].Image().Version()
			for _, s := range bs.stores {
				require.NoError(t, s.Barrier(testContext(t)))
				require.GreaterOrEqual(t, s.Image().Version(), seen)
				require.Equal(t, x.Revision, s.Image().Transaction(x.ID).Revision)
			}
		}
		// Those that come together share questions.
		var asked atomic.Int64
		bs.mu.Lock()
		bs.mu.holding = func(m string, _ func()) bool {
			if m == opBarrier.name {
				asked.Add(1)
			}
			return false
		}
		bs.mu.Unlock()
		outcomes := make(chan error, 500)
		for range cap(outcomes) {
			bs.stores[far].barriers.wait(func(err error) { outcomes <- err })
		}
		for range cap(outcomes) {
			require.NoError(t, <-outcomes)
		}
		require.LessOrEqual(t, asked.Load(), int64(5))
		require.Positive(t, asked.Load())
		bs.mu.Lock()
		bs.mu.holding = nil
		bs.mu.Unlock()

		bs.kill(far)
		begun := time.Now()
		require.Error(t, bs.stores[far].Barrier(testContext(t)))
		require.LessOrEqual(t, time.Since(begun), 2*outboxTimeout)
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		require.ErrorIs(t, bs.stores[far].Barrier(ctx), context.Canceled)
	})
}

// A Replica judges as a Store does; a step that was sent earlier comes too late, or not.
func TestReplicaOfTransactions(t *testing.T) {
	r := NewReplica()
	epoch, err := r.Register(testRegistration(1, 1), false)
	require.NoError(t, err)
	require.NoError(t, r.CreateTopic("orders", TopicID{1}, nil, [][]BrokerID{{1}}))
	pid, count, err := r.AllocateProducerIDs()
	require.NoError(t, err)
	require.Equal(t, producerIDBlock, count)
	_, err = r.ChangeTransaction(1, epoch, TransactionChange{ID: "x", ProducerID: pid, LastProducerID: -1, LastProducerEpoch: -1, Version: 1})
	require.NoError(t, err)
	late := r.Place(1, epoch, "x")
	add := TransactionAddition{ID: "x", ProducerID: pid, Partitions: orders(0), Groups: []string{"g"}, Version: 1}
	require.NoError(t, r.AddToTransaction(1, epoch, add))
	require.ErrorIs(t, r.AddToTransactionAt(late, add), ErrStale)
	x := r.Image().Transaction("x")
	entries, err := r.CommitTransactionOffsets(1, epoch, *offsetsOf(x, "g", 4))
	require.NoError(t, err)
	require.Nil(t, entries)
	late = r.Place(1, epoch, "x")
	_, err = r.Clone().ChangeTransactionAt(late, ends(x, TransactionPrepareAbort))
	require.NoError(t, err, "in another future")
	_, err = r.ChangeTransactionAt(late, ends(x, TransactionPrepareCommit))
	require.NoError(t, err)
	require.NoError(t, r.MarkersWritten(1, epoch, []WrittenMarker{{ProducerID: pid, Number: x.Number, Partitions: orders(0)}}))
	require.Equal(t, TransactionCompleteCommit, r.Image().Transaction("x").State)
	o, _ := r.Image().Offset("g", TopicID{1}, 0)
	require.Equal(t, int64(4), o.Offset)
	require.ErrorIs(t, r.AddToTransaction(1, epoch+1, add), ErrNotCoordinator)
	require.NoError(t, r.DeleteTopic(TopicID{1}))
	require.ErrorIs(t, r.AddToTransaction(1, epoch, add), ErrUnknownTopicID)
}

// A step that no broker could read is refused by itself: those of others that are sent with it are made.
func TestUnreadableStepIsRefusedAlone(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	topic := createTopics(t, s, newTopic("orders", 1))[0].ID
	first, _, err := s.AllocateProducerIDs(testContext(t))
	require.NoError(t, err)
	var ids []string // of one lane, that of the empty id
	for i := 0; len(ids) < 2; i++ {
		if id := fmt.Sprint("t", i); transactionLaneOf(id) == transactionLaneOf("") {
			ids = append(ids, id)
		}
	}
	create := func(i int) chan error {
		done := make(chan error, 1)
		s.ChangeTransaction(TransactionChange{
			ID: ids[i], State: TransactionEmpty, ProducerID: first + int64(i), LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1,
			Timeout: time.Minute, Version: 2,
		}, func(_ uint64, err error) { done <- err })
		return done
	}
	lane := s.outbox.transactionLane("")
	bad := TransactionOffsets{OffsetCommit: OffsetCommit{Group: "billing", Generation: -1, Offsets: entriesFor(topic, 1, 5)}, Implicit: true}
	for name, unreadable := range map[string]func(done func(error)){
		"offsets of no id": func(done func(error)) {
			s.CommitTransactionOffsets(bad, func(_ []error, err error) { done(err) })
		},
		"an addition to no id": func(done func(error)) {
			s.AddToTransaction(TransactionAddition{Version: 2}, done)
		},
		"an addition of protocol -1": func(done func(error)) {
			s.AddToTransaction(TransactionAddition{ID: ids[0], Version: -1}, done)
		},
		"offsets of no group": func(done func(error)) {
			commit := bad
			commit.Group, commit.TransactionalID = "", ids[0]
			s.CommitTransactionOffsets(commit, func(_ []error, err error) { done(err) })
		},
		"a marker in partition -1": func(done func(error)) {
			s.outbox.step("", writtenMarkers{{Partitions: []TopicPartitions{{TopicID: topic, Partitions: []int32{-1}}}}}, 0, func(_ uint64, _ []error, err error) { done(err) })
		},
		"a change to producer -1": func(done func(error)) {
			s.ChangeTransaction(TransactionChange{ID: ids[0], ProducerID: -1, Version: 2}, func(_ uint64, err error) { done(err) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.publishing.Lock() // the lane has a call under way until it is released
			busy := create(0)
			require.Eventually(t, func() bool { lane.mu.Lock(); defer lane.mu.Unlock(); return len(lane.waiting) == 0 }, 10*time.Second, time.Millisecond)
			refused := make(chan error, 1)
			unreadable(func(err error) { refused <- err })
			good := create(1)
			s.publishing.Unlock()
			require.NoError(t, <-busy)
			require.ErrorIs(t, <-refused, ErrInvalidRequest)
			require.NoError(t, <-good)
			for _, id := range ids {
				done := make(chan error, 1)
				s.ChangeTransaction(TransactionChange{ID: id, Revision: s.Image().Transaction(id).Revision, Delete: true, ProducerID: first, Version: 2, LastProducerID: -1, LastProducerEpoch: -1, MarkerProducerID: -1, MarkerEpoch: -1}, func(_ uint64, err error) { done <- err })
				require.NoError(t, <-done)
			}
		})
	}
}

// AddToTransaction leaves what it is given as it is.
func TestAdditionLeavesPartitionsAlone(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	all := []int32{1, 2, 3}
	done := make(chan error, 1)
	s.AddToTransaction(TransactionAddition{ID: "t", Version: 2, Partitions: []TopicPartitions{{TopicID: TopicID{1}, Partitions: all[:2]}}}, func(err error) { done <- err })
	require.Error(t, <-done)
	require.Equal(t, []int32{1, 2, 3}, all)
}
