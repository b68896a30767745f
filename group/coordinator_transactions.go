package group

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// CommitTransactionRequest is TxnOffsetCommit: a commit that takes effect with the transaction of a producer.
type CommitTransactionRequest struct {
	CommitRequest
	TransactionalID string
	ProducerID      int64
	ProducerEpoch   int16
	// Implicit (version 5 and later): the group is added to the transaction, which is begun if there is none (KIP-890).
	Implicit bool
}

// CommitTransaction is TxnOffsetCommit: one error or nil for each offset, or an error for all. What is acknowledged is
// committed with the transaction, or dropped with it, in the same step that decides it (I8). Until then it is seen by nobody,
// and Fetch with RequireStable says that there is something (KIP-447).
//
// Errors beside those of Commit: metadata.ErrInvalidProducerIDMapping, metadata.ErrProducerFenced,
// metadata.ErrInvalidTransactionState (the group was not added), metadata.ErrConcurrentTransactions.
func (c *Coordinator) CommitTransaction(r CommitTransactionRequest, done func([]error, error)) {
	if err := c.step(r.Group, &CommitTransaction{&r.CommitRequest}); err != nil {
		done(nil, err)
		return
	}
	if mutated(mutantOffsetsNow) {
		c.commit(&r.CommitRequest, done)
		return
	}
	c.propose(&r.CommitRequest, func(commit metadata.OffsetCommit, done func([]error, error)) {
		c.cfg.Store.CommitTransactionOffsets(metadata.TransactionOffsets{
			OffsetCommit: commit, TransactionalID: r.TransactionalID, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, Implicit: r.Implicit,
		}, done)
	}, func(errs []error, err error) {
		if errors.Is(err, ErrGroupNotFound) {
			err = ErrIllegalGeneration // a generation of a group that is no more
		}
		done(errs, err)
	})
}
