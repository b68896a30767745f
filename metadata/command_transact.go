package metadata

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// transact is a batch of steps of transactions from one broker, of as many transactional ids as there were when it was made.
// Each step is refused or accepted for itself, and they are looked at in their order.
type transact struct {
	broker BrokerID
	epoch  int64 // of the broker's registration
	// coordinatorEpoch is the one in which the batch was made, lane and sequence its place among the broker's others, as of
	// commitOffsets. A batch that was held up while another broker coordinated, or until a later one of its lane was applied,
	// has no effect: it could begin a transaction behind the end of the one that it belongs to, which nobody would end.
	coordinatorEpoch int32
	lane             uint32
	sequence         uint64
	steps            []transactionStep
}

// transactionStep is one of *TransactionChange, *TransactionAddition, *TransactionOffsets and writtenMarkers.
type transactionStep interface {
	message() *pb.TransactionStep
	// apply judges the step, which a broker with a present registration proposes, and makes it.
	apply(d *draft, by BrokerID) stepOutcome
}

// stepOutcome is what became of one step of a batch.
type stepOutcome struct {
	revision uint64 // of the transactional id, after a TransactionChange
	err      error
	// entries are the errors of offsets; nil if none has one.
	entries []error
}

func (c *transact) kind() pb.CommandType { return pb.CommandType_COMMAND_TRANSACT }

func (c *transact) message() proto.Message {
	m := &pb.Transact{Broker: int32(c.broker), BrokerEpoch: c.epoch, CoordinatorEpoch: c.coordinatorEpoch, Lane: c.lane, Sequence: c.sequence}
	for _, s := range c.steps {
		m.Steps = append(m.Steps, s.message())
	}
	return m
}

func decodeTransact(body []byte) (command, error) {
	var m pb.Transact
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	c := &transact{broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, coordinatorEpoch: m.CoordinatorEpoch, lane: m.Lane, sequence: m.Sequence}
	if len(m.Steps) > 0 {
		c.steps = make([]transactionStep, len(m.Steps))
	}
	for i, from := range m.Steps {
		step, err := decodeTransactionStep(from)
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		c.steps[i] = step
	}
	return c, nil
}

func decodeTransactionStep(m *pb.TransactionStep) (transactionStep, error) {
	switch step := m.Step.(type) {
	case *pb.TransactionStep_Change:
		return decodeTransactionChange(step.Change)
	case *pb.TransactionStep_Addition:
		return decodeTransactionAddition(step.Addition)
	case *pb.TransactionStep_Offsets:
		return decodeTransactionOffsets(step.Offsets)
	case *pb.TransactionStep_Markers:
		return decodeWrittenMarkers(step.Markers)
	}
	return nil, errors.New("nothing to do")
}

// apply returns a []stepOutcome, parallel to the steps. ErrStale says that the batch comes too late: it has no effect.
func (c *transact) apply(d *draft, _ position) (any, error) {
	b := d.st.broker(c.broker)
	switch {
	case d.st.featureLevel < TransactionsFeatureLevel:
		return nil, ErrInvalidFeatureLevel
	case b == nil || b.Epoch != c.epoch:
		return nil, ErrNotCoordinator
	case c.coordinatorEpoch != d.st.coordinatorEpoch:
		return nil, ErrStale
	case !d.nextSequence(commitSequence{Broker: c.broker, Epoch: c.epoch, Lane: c.lane, Sequence: c.sequence}):
		return nil, ErrStale
	}
	out := make([]stepOutcome, len(c.steps))
	for i, step := range c.steps {
		out[i] = step.apply(d, c.broker)
	}
	return out, nil
}
