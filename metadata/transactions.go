package metadata

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// The steps of transactions. They are answered by callback, exactly once, from any goroutine, also when the Store closes;
// neither they nor the callbacks may block for more than a moment. Arguments are encoded before the call returns, or, where
// their type says so, must not be written to any more. The steps of one transactional id that one broker proposes are applied
// in the order of the calls; reports of markers are not in that order, and need not be.
//
// A step that is held up on its way has no effect any more once a later one of this broker, or a change of the coordinators,
// was applied: ErrTimeout says that it may have been made, may still be made, or never will.
//
// The errors of all of them, beside their own: ErrNotCoordinator when this broker does not coordinate the transactional id,
// or the group, where the step would be applied, or is not the registered process of its id any more, ErrBusy and
// ErrNotController when it was not proposed in time, ErrInvalidFeatureLevel while the cluster's feature level has no
// transactions yet, ErrPolicyViolation when it is too large, ErrClosed, ErrFailed. They are definite: nothing was changed.
// ErrTimeout is not (M11).

// ChangeTransaction proposes a change of a transactional id, and calls done once it is applied here: Image shows it then, and
// when it was refused, it shows what was in the way. revision is that of the id after the change, to which it may have been
// made more since.
//
// A change with AnyRevision recognizes that it has been made already, and succeeds again.
//
// Errors: ErrStale when the id has another revision, ErrConcurrentTransactions when its transaction is prepared,
// ErrInvalidTransactionState when the change does not follow on its state, or, with AnyRevision, when the producer's
// transaction had the other end; ErrTransactionNotFound of a deletion; ErrInvalidProducerIDMapping and ErrProducerFenced with
// AnyRevision, when the pair is not the present one; ErrInvalidRequest of pairs that can't be, and those above.
func (s *Store) ChangeTransaction(change TransactionChange, done func(revision uint64, err error)) {
	if err := s.coordinatesTransaction(change.ID); err != nil {
		done(0, err)
		return
	}
	s.outbox.step(change.ID, &change, 0, func(revision uint64, _ []error, err error) { done(revision, err) })
}

// AddToTransaction adds partitions and groups to a producer's transaction, all or none of them, and begins one if there is
// none. What is there already is added again without effect.
//
// Errors: ErrInvalidProducerIDMapping when the id is unknown, or has another producer id; when it has another epoch,
// ErrProducerFenced with Version 1 and ErrInvalidProducerEpoch with Version 2; ErrConcurrentTransactions while the markers of
// the transaction before are written; ErrUnknownTopicID and ErrUnknownPartition of any partition, ErrInvalidRequest of
// another version, and those above.
func (s *Store) AddToTransaction(addition TransactionAddition, done func(err error)) {
	err := s.transactionsReady()
	if err == nil && addition.Version == 1 {
		err = s.coordinatesTransaction(addition.ID)
	}
	if err == nil && slices.ContainsFunc(addition.Partitions, func(t TopicPartitions) bool {
		return slices.ContainsFunc(t.Partitions, func(p int32) bool { return p < 0 })
	}) {
		err = ErrUnknownPartition
	}
	if err != nil {
		done(err)
		return
	}
	s.outbox.step(addition.ID, &addition, 0, func(_ uint64, _ []error, err error) { done(err) })
}

// CommitTransactionOffsets commits offsets with a producer's transaction, in the name of a member of their group, and calls
// done once they are pending here, with the errors of the entries, nil if none has one, or an error of the whole. They become
// committed offsets when the transaction is committed, whatever has become of the group's generation by then, as in Kafka.
//
// Errors of the whole: ErrInvalidProducerIDMapping, ErrProducerFenced (any other epoch), ErrConcurrentTransactions while the
// transaction is prepared, ErrInvalidTransactionState when the group was not added to a transaction and Implicit does not ask
// for it; those of CommitOffsets, and those above. Errors of an entry are those of CommitOffsets.
func (s *Store) CommitTransactionOffsets(commit TransactionOffsets, done func(entries []error, err error)) {
	err := s.transactionsReady()
	if err == nil {
		err = s.coordinates(commit.Group)
	}
	if err != nil {
		done(nil, err)
		return
	}
	if slices.ContainsFunc(commit.Offsets, func(o OffsetEntry) bool { return o.Partition < 0 }) {
		withoutUnknown(commit.Offsets, done, func(good []OffsetEntry, done func([]error, error)) {
			commit.Offsets = good
			s.CommitTransactionOffsets(commit, done)
		})
		return
	}
	if commit.Implicit {
		s.outbox.commitStep(&commit, done)
		return
	}
	// The transaction is named by its number, so that an offset that is held up does not get into the next one.
	if t := s.Image().Transaction(commit.TransactionalID); t != nil && t.State == TransactionOngoing && t.HasGroup(commit.Group) &&
		t.ProducerID == commit.ProducerID && t.ProducerEpoch == commit.ProducerEpoch {
		commit.number = t.Number
		s.outbox.commitStep(&commit, func(entries []error, err error) {
			if errors.Is(err, ErrStale) {
				s.commitToPresent(commit, done) // what this broker saw was the transaction before
				return
			}
			done(entries, err)
		})
		return
	}
	s.barriers.wait(func(err error) { // it was begun at its coordinator, and this broker may not have heard of it yet
		if err != nil {
			done(nil, err)
			return
		}
		s.commitToPresent(commit, done)
	})
}

// commitToPresent commits offsets with the transaction that the Image shows now.
func (s *Store) commitToPresent(commit TransactionOffsets, done func(entries []error, err error)) {
	if t := s.Image().Transaction(commit.TransactionalID); t != nil {
		commit.number = t.Number
	}
	s.outbox.commitStep(&commit, func(entries []error, err error) {
		if errors.Is(err, ErrStale) {
			err = ErrInvalidTransactionState // it has ended meanwhile
		}
		done(entries, err)
	})
}

// MarkersWritten reports that markers are committed in the logs of partitions, and calls done once it is applied here. A
// transaction of which no marker is missing is complete then. A report of what is not missing any more is no error.
//
// Errors: those above.
func (s *Store) MarkersWritten(markers []WrittenMarker, done func(err error)) {
	err := s.transactionsReady()
	if err == nil && len(markers) == 0 {
		done(nil)
		return
	}
	if err != nil {
		done(err)
		return
	}
	s.outbox.step(markerKey(markers[0].ProducerID), writtenMarkers(markers), 0, func(_ uint64, _ []error, err error) { done(err) })
}

// markerKey spreads reports over the lanes.
func markerKey(producerID int64) string { return fmt.Sprintf("producer %d", producerID) }

// transactionsReady refuses transactions while the cluster is at an older feature level.
func (s *Store) transactionsReady() error {
	level := s.Image().FeatureLevel()
	if level >= TransactionsFeatureLevel {
		return nil
	}
	return &Error{
		Kind: ErrInvalidFeatureLevel,
		What: "there are no transactions in this cluster yet",
		Why:  fmt.Sprintf("its feature level is %d; they came with level %d", level, TransactionsFeatureLevel),
		Fix:  fmt.Sprintf("when all brokers are upgraded, raise the feature level to %d", TransactionsFeatureLevel),
	}
}

// coordinatesTransaction refuses what would be refused in Apply, as far as this broker can tell.
func (s *Store) coordinatesTransaction(id string) error {
	if err := s.transactionsReady(); err != nil {
		return err
	}
	broker, _ := s.Image().Coordinator(TransactionCoordinator, id)
	if broker == s.cfg.NodeID {
		return nil
	}
	e := &Error{
		Kind: ErrNotCoordinator,
		What: fmt.Sprintf("broker %d does not coordinate the transactional id %s", s.cfg.NodeID, quoteShort(id)),
		Why:  fmt.Sprintf("broker %d does", broker),
		Fix:  "ask for the coordinator and try again there",
	}
	if broker == NoBroker {
		e.Why = "no broker is fit to at the moment"
	}
	return e
}

// commitStep queues offsets.
func (o *outbox) commitStep(commit *TransactionOffsets, done func([]error, error)) {
	o.step(commit.TransactionalID, commit, len(commit.Offsets), func(_ uint64, entries []error, err error) { done(entries, err) })
}

// step queues a step. A step that does not fit into a batch is sent in one of its own, in parts that are applied together. One
// that can't be read is refused here: the controller would refuse the whole batch for it, with what others have in it.
func (o *outbox) step(key string, step transactionStep, entries int, done func(uint64, []error, error)) {
	m := step.message()
	if _, err := decodeTransactionStep(m); err != nil {
		done(0, nil, fmt.Errorf("%w: %w", ErrInvalidRequest, err))
		return
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		err = unencodable("a step of the transaction of "+quoteShort(key), err)
	} else if len(encoded) > maxChangeBytes {
		err = &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("a step of the transaction of %s takes %d bytes", quoteShort(key), len(encoded)),
			Why:  fmt.Sprintf("one may take at most %d", maxChangeBytes),
			Fix:  "add fewer partitions, or commit fewer offsets, at once",
		}
	}
	if err != nil {
		done(0, nil, err)
		return
	}
	body := make([]byte, 0, len(encoded)+8)
	body = protowire.AppendTag(body, stepField, protowire.BytesType)
	body = protowire.AppendBytes(body, encoded)
	if err := o.transactionLane(key).put(&outboxItem{kind: pb.CommandType_COMMAND_TRANSACT, body: body, entries: entries, deadline: time.Now().Add(outboxTimeout), done: done}); err != nil {
		done(0, nil, err)
	}
}

func (o *outbox) transactionLane(key string) *outboxLane {
	return &o.transactions[transactionLaneOf(key)-firstTransactionLane]
}

// transactionLaneOf returns the number of the lane of a transactional id.
func transactionLaneOf(key string) uint32 {
	return firstTransactionLane + uint32(mix(hashKey(TransactionCoordinator, key))%transactionLanes)
}

// sendTransactions sends the steps that wait, as one batch.
func (o *outbox) sendTransactions(l *outboxLane) bool {
	items := l.take(1<<20, batchBytes)
	if len(items) == 0 {
		return false
	}
	now := time.Now()
	if items = fresh(items, now); len(items) == 0 {
		return true
	}
	answers, err := o.sendBatch(l, now.Add(outboxTimeout), pb.CommandType_COMMAND_TRANSACT, func(broker BrokerID, epoch int64, coordinatorEpoch int32) []byte {
		return batchBody(&transact{broker: broker, epoch: epoch, coordinatorEpoch: coordinatorEpoch, lane: l.number, sequence: l.sequence}, items)
	})
	if err != nil {
		for _, item := range items {
			item.done(0, nil, err)
		}
		return true
	}
	o.answer(items, answers)
	return true
}
