package txn

import (
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// InitRequest is InitProducerId with a transactional id.
type InitRequest struct {
	ID      string
	Timeout time.Duration
	// ProducerID and ProducerEpoch are what the producer has (version 3 and later, KIP-360), -1 and -1 if it starts anew.
	ProducerID    int64
	ProducerEpoch int16
}

// InitResult answers InitProducerId; -1 and -1 with an error.
type InitResult struct {
	ProducerID    int64
	ProducerEpoch int16
	Err           error
}

// AddRequest is AddPartitionsToTxn of one transactional id.
type AddRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	// Partitions is kept until the answer: the caller must not write to it any more.
	Partitions []metadata.TopicPartitions
	// VerifyOnly asks which of the partitions are part of the transaction, and adds none (KIP-890). A partition that is not
	// has ErrAbortable.
	VerifyOnly bool
}

// AddOffsetsRequest is AddOffsetsToTxn.
type AddOffsetsRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Group         string
}

// EndRequest is EndTxn.
type EndRequest struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
	Commit        bool
	// Version is the client's transaction protocol: 2 (EndTxn 5 and later) gives the producer a new epoch with every end
	// (KIP-890), 1 leaves it its own.
	Version int8
}

// EndResult answers EndTxn: the pair that the producer goes on with. With an error it is -1 and -1.
type EndResult struct {
	ProducerID    int64
	ProducerEpoch int16
	Err           error
}

// Filter is what ListTransactions asks for.
type Filter struct {
	// States and ProducerIDs: one of them, any if empty.
	States      []metadata.TransactionState
	ProducerIDs []int64
	// LongerThan, if positive, leaves transactions that have not been open for that long, and those that are not open.
	LongerThan time.Duration
	// Match, if not nil, is asked for each id.
	Match func(id string) bool
}

// lets tells whether a transactional id is asked for. now is in unix milliseconds.
func (f *Filter) lets(t *metadata.Transaction, now int64) bool {
	switch {
	case len(f.States) > 0 && !slices.Contains(f.States, t.State):
		return false
	case len(f.ProducerIDs) > 0 && !slices.Contains(f.ProducerIDs, t.ProducerID):
		return false
	case f.LongerThan > 0 && (!t.State.Active() || millis(now-t.StartedAt) <= f.LongerThan):
		return false
	}
	return f.Match == nil || f.Match(t.ID)
}
