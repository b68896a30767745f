package txn

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Membership is what Produce asks about its transactional batches: is the partition part of the producer's open transaction?
// It is answered from an Image, without allocating.
type Membership struct {
	ID            string
	ProducerID    int64
	ProducerEpoch int16
}

// Has reports whether a partition is part of the open transaction in an Image.
func (m Membership) Has(im *metadata.Image, topic metadata.TopicID, partition int32) bool {
	return m.check(im, topic, partition) == nil
}

// check says why a partition is no part of the open transaction.
func (m Membership) check(im *metadata.Image, topic metadata.TopicID, partition int32) error {
	t := im.Transaction(m.ID)
	switch {
	case t == nil || t.ProducerID != m.ProducerID:
		return metadata.ErrInvalidProducerIDMapping
	case t.ProducerEpoch != m.ProducerEpoch:
		return metadata.ErrInvalidProducerEpoch
	case t.State.Prepared():
		return metadata.ErrConcurrentTransactions
	case t.State != metadata.TransactionOngoing || !t.HasPartition(topic, partition):
		return metadata.ErrInvalidTransactionState
	}
	return nil
}

func (m Membership) hasAll(im *metadata.Image, partitions []metadata.TopicPartitions) bool {
	for i := range partitions {
		for _, p := range partitions[i].Partitions {
			if !m.Has(im, partitions[i].TopicID, p) {
				return false
			}
		}
	}
	return true
}

// EnlisterStore is what an Enlister needs of *metadata.Store.
type EnlisterStore interface {
	Image() *metadata.Image
	Watch() *metadata.Watcher
	AddToTransaction(addition metadata.TransactionAddition, done func(err error))
}

// Enlister lets partitions into the transactions of producers of the second protocol (KIP-890) when their first batch comes:
// the leader of the partition proposes it, at whichever broker that is, before it appends.
//
// A producer that has just ended a transaction is ahead of its markers. What it writes next waits for them here, a moment at
// most, instead of being refused (protocol.md trap 29).
type Enlister struct {
	store   EnlisterStore
	wall    func() time.Time
	maxHold time.Duration
	logger  *slog.Logger
	stop    chan struct{}
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		waiting  []*enlistment
		watching bool // a goroutine does
		closed   bool
	}
}

// enlistment is a request under way.
type enlistment struct {
	EnlistRequest
	until    time.Time
	attempts int
	done     func(error)
}

// EnlistRequest asks for partitions of one producer to be let in.
type EnlistRequest struct {
	Membership
	// Partitions is kept until the answer: the caller must not write to it any more.
	Partitions []metadata.TopicPartitions
}

// NewEnlister returns one that holds requests for maxHold at most. A nil wall is time.Now, a nil logger none. It must be
// closed before the Store is.
func NewEnlister(store EnlisterStore, maxHold time.Duration, wall func() time.Time, logger *slog.Logger) *Enlister {
	if wall == nil {
		wall = time.Now
	}
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &Enlister{store: store, wall: wall, maxHold: maxHold, logger: logger, stop: make(chan struct{})}
}

// Enlist lets partitions in and calls done once that is committed and seen here; at once if it is. done is called exactly
// once, from any goroutine, and must not block.
//
// Errors: metadata.ErrInvalidProducerIDMapping, metadata.ErrProducerFenced or metadata.ErrInvalidProducerEpoch (another pair
// writes under the id by now), metadata.ErrConcurrentTransactions (the transaction before is still being ended),
// metadata.ErrUnknownTopicID, metadata.ErrUnknownPartition, ErrUnavailable, ErrUnverified.
func (e *Enlister) Enlist(r EnlistRequest, done func(error)) {
	if r.hasAll(e.store.Image(), r.Partitions) {
		done(nil)
		return
	}
	e.attempt(&enlistment{EnlistRequest: r, until: time.Now().Add(e.maxHold), done: done})
}

// attempt proposes the addition, unless the transaction before is seen to be in its way.
func (e *Enlister) attempt(r *enlistment) {
	// To propose it all the same would be refused, and cost each of a transaction's leaders a command: most producers are that
	// much ahead of their markers. Another pair than the Image's is for the metadata to judge.
	if t := e.store.Image().Transaction(r.ID); t != nil && t.State.Prepared() && (t.ProducerID == r.ProducerID && t.ProducerEpoch == r.ProducerEpoch || r.attempts > 0) {
		e.wait(r)
		return
	}
	e.store.AddToTransaction(metadata.TransactionAddition{
		ID: r.ID, ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, Partitions: r.Partitions, Version: 2, Time: e.wall().UnixMilli(),
	}, func(err error) {
		if !errors.Is(err, metadata.ErrConcurrentTransactions) {
			r.done(fromMetadata(err))
			return
		}
		r.attempts++
		e.wait(r)
	})
}

// wait has a request tried again when its transactional id has changed.
func (e *Enlister) wait(r *enlistment) {
	e.mu.Lock()
	closed := e.mu.closed
	if !closed {
		e.mu.waiting = append(e.mu.waiting, r)
		if !e.mu.watching {
			e.mu.watching = true
			e.running.Go(e.watch) // only while somebody waits: who writes without transactions pays nothing
		}
	}
	e.mu.Unlock()
	if closed {
		r.done(ErrUnverified)
	}
}

// watch looks at those that wait whenever there is newer metadata, until none is left.
func (e *Enlister) watch() {
	w := e.store.Watch()
	defer w.Close()
	timer := time.NewTimer(e.maxHold)
	defer timer.Stop()
	for {
		select {
		case <-w.C():
		case <-timer.C:
		case <-e.stop:
		}
		ready, over, left := e.sort(time.Now())
		for _, r := range over {
			r.done(metadata.ErrConcurrentTransactions)
		}
		for _, r := range ready {
			e.attempt(r)
		}
		if left < 0 {
			return
		}
		timer.Reset(left)
	}
}

// sort takes out those that can be tried again and those that have waited too long, and returns how long the others still may;
// negative if there are none, and the watch ends.
func (e *Enlister) sort(now time.Time) (ready, over []*enlistment, left time.Duration) {
	im := e.store.Image()
	left = -1
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := e.mu.waiting[:0]
	for _, r := range e.mu.waiting {
		t := im.Transaction(r.ID)
		switch {
		case t == nil || !t.State.Prepared():
			ready = append(ready, r)
		case e.mu.closed || !r.until.After(now):
			over = append(over, r)
		default:
			if d := r.until.Sub(now); left < 0 || d < left {
				left = d
			}
			kept = append(kept, r)
		}
	}
	clear(e.mu.waiting[len(kept):])
	if e.mu.waiting = kept; len(kept) == 0 {
		e.mu.waiting, e.mu.watching = nil, false
	}
	return ready, over, left
}

// Close answers everything that waits, and waits for its goroutine.
func (e *Enlister) Close() {
	e.mu.Lock()
	was := e.mu.closed
	e.mu.closed = true
	e.mu.Unlock()
	if !was {
		close(e.stop)
	}
	e.running.Wait()
}
