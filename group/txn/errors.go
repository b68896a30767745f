package txn

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// Sentinels of this package; answers match them with errors.Is. Only transport/kafka/errors.go maps them to Kafka's codes.
// Besides, answers match sentinels of package metadata that say what Apply says: ErrProducerFenced,
// ErrInvalidProducerEpoch, ErrInvalidProducerIDMapping, ErrInvalidTransactionState, ErrConcurrentTransactions,
// ErrTransactionNotFound, ErrUnknownTopicID, ErrUnknownPartition.
//
// All but ErrUnavailable are definite: nothing was changed. After ErrUnavailable the same request may be made again; what
// came of the first one is found out then.
var (
	// ErrNotCoordinator: another broker coordinates the transactional id, or nobody does. Ask FindCoordinator again.
	ErrNotCoordinator = errors.New("not the coordinator of the transactional id")
	// ErrUnavailable: the metadata quorum has not answered in time, or this broker does not know all it needs to know yet. Try
	// again; it is what COORDINATOR_LOAD_IN_PROGRESS says, which all clients repeat their request upon.
	ErrUnavailable = errors.New("the coordinator can't decide at the moment")
	// ErrInvalidRequest: an empty transactional id.
	ErrInvalidRequest = errors.New("invalid transactional id")
	// ErrInvalidTimeout: the transaction timeout is not positive, or above transaction.max.timeout.ms.
	ErrInvalidTimeout = errors.New("invalid transaction timeout")
	// ErrAbortable: the partition is no part of the transaction (AddRequest.VerifyOnly), which can still be aborted.
	ErrAbortable = errors.New("partition is not part of the transaction")
	// ErrUnverified: it could not be found out whether a partition is part of a transaction. Try again; nothing was appended.
	ErrUnverified = errors.New("transaction not verified")
)

// fromMetadata gives the sentinels of package metadata that have a namesake here its name. Others are left as they are.
func fromMetadata(err error) error {
	for _, x := range sameErrors {
		if errors.Is(err, x.theirs) {
			return x.ours
		}
	}
	return err
}

var sameErrors = []struct{ theirs, ours error }{
	{metadata.ErrNotCoordinator, ErrNotCoordinator},
	{metadata.ErrStaleBrokerEpoch, ErrNotCoordinator},
	{metadata.ErrClosed, ErrNotCoordinator},
	{metadata.ErrFailed, ErrNotCoordinator},
	{metadata.ErrBusy, ErrUnavailable},
	{metadata.ErrNotController, ErrUnavailable},
	{metadata.ErrTimeout, ErrUnavailable},
	{metadata.ErrStale, ErrUnavailable},
}
