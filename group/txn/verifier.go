package txn

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// VerifierStore is what a Verifier needs of *metadata.Store.
type VerifierStore interface {
	Image() *metadata.Image
	WhenCurrent(done func(err error))
}

// Verifier keeps late batches of producers of the first protocol from opening a transaction that nobody ends (P7, KIP-890):
// before the first batch of a transaction is appended to a partition, its leader makes sure that the partition was added.
//
// That is asked twice. Verify, before the append is queued, sees to it that the metadata here is no older than the request.
// MayBegin, at the batch's place in the log, has the last word: markers are appended there by what the same metadata says, so
// that nothing can open a transaction behind its own marker.
type Verifier struct{ store VerifierStore }

// NewVerifier returns one that goes by a Store.
func NewVerifier(store VerifierStore) *Verifier { return &Verifier{store} }

// Verify calls done once the metadata here is good enough for MayBegin to say no: at once if it says yes, else after it has
// caught up with what was committed when Verify was called; whoever asks while the quorum is being asked shares the next
// question. An error is ErrUnverified: try again. done is called exactly once and must not block.
func (v *Verifier) Verify(r EnlistRequest, done func(error)) {
	if r.hasAll(v.store.Image(), r.Partitions) {
		done(nil)
		return
	}
	v.store.WhenCurrent(func(err error) {
		if err != nil {
			err = errors.Join(ErrUnverified, err)
		}
		done(err)
	})
}

// MayBegin says whether a batch may open a transaction in a partition; it neither blocks nor waits. Errors:
// metadata.ErrInvalidTransactionState (the partition is not part of an open transaction),
// metadata.ErrInvalidProducerIDMapping, metadata.ErrInvalidProducerEpoch, metadata.ErrConcurrentTransactions (the transaction
// is being ended).
func (v *Verifier) MayBegin(m Membership, topic metadata.TopicID, partition int32) error {
	if mutated(mutantLateProduce) {
		return nil
	}
	return m.check(v.store.Image(), topic, partition)
}
