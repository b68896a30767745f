package txn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// VerifierStore is what a Verifier needs of *metadata.Store.
type VerifierStore interface {
	Image() *metadata.Image
	Barrier(ctx context.Context) error
}

// Verifier keeps late batches of producers of the first protocol from opening a transaction that nobody ends (P7, KIP-890):
// before the first batch of a transaction is appended to a partition, its leader makes sure that the partition was added.
//
// That is asked twice. Verify, before the append is queued, sees to it that the metadata here is no older than the request.
// MayBegin, at the batch's place in the log, has the last word: markers are appended there by what the same metadata says, so
// that nothing can open a transaction behind its own marker.
type Verifier struct {
	store   VerifierStore
	timeout time.Duration
	// lifetime ends with Close.
	lifetime context.Context
	end      context.CancelFunc
	running  sync.WaitGroup

	mu struct {
		sync.Mutex
		waiting []func(error)
		asking  bool // a goroutine does
		closed  bool
	}
}

// NewVerifier returns one that waits for the metadata quorum for timeout at most. It must be closed before the Store is.
func NewVerifier(store VerifierStore, timeout time.Duration) *Verifier {
	v := &Verifier{store: store, timeout: timeout}
	v.lifetime, v.end = context.WithCancel(context.Background())
	return v
}

// Verify calls done once the metadata here is good enough for MayBegin to say no: at once if it says yes, else after it has
// caught up with what was committed when Verify was called. Requests that come while the quorum is being asked share the next
// question. An error is ErrUnverified: try again. done is called exactly once and must not block.
func (v *Verifier) Verify(r EnlistRequest, done func(error)) {
	if r.hasAll(v.store.Image(), r.Partitions) {
		done(nil)
		return
	}
	v.mu.Lock()
	closed := v.mu.closed
	if !closed {
		v.mu.waiting = append(v.mu.waiting, done)
		if !v.mu.asking {
			v.mu.asking = true
			v.running.Go(v.ask)
		}
	}
	v.mu.Unlock()
	if closed {
		done(ErrUnverified)
	}
}

// ask asks until nobody waits.
func (v *Verifier) ask() {
	for {
		v.mu.Lock()
		waiting := v.mu.waiting
		v.mu.waiting = nil
		if len(waiting) == 0 {
			v.mu.asking = false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		ctx, cancel := context.WithTimeout(v.lifetime, v.timeout)
		err := v.store.Barrier(ctx)
		cancel()
		if err != nil {
			err = errors.Join(ErrUnverified, err)
		}
		for _, done := range waiting {
			done(err)
		}
	}
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

// Close answers everything that waits, and waits for its goroutine.
func (v *Verifier) Close() {
	v.mu.Lock()
	v.mu.closed = true
	v.mu.Unlock()
	v.end()
	v.running.Wait()
}
