package txn

import (
	"time"

	"github.com/millrace/millrace/metadata"
)

// InitProducerID gives the producer of a transactional id its producer id and epoch (KIP-98, KIP-360). What its predecessor
// has left open is aborted first; the answer waits for that, for Settings.MaxHold at most, and is
// metadata.ErrConcurrentTransactions then: the next request finds it further.
//
// Errors: metadata.ErrProducerFenced (the pair in the request is neither the present one nor the one before it),
// metadata.ErrConcurrentTransactions, ErrInvalidTimeout, ErrInvalidRequest, ErrNotCoordinator, ErrUnavailable.
func (c *Coordinator) InitProducerID(r InitRequest, done func(InitResult)) {
	settings := c.cfg.Settings()
	if r.Timeout = r.Timeout.Truncate(time.Millisecond); r.ID != "" && (r.Timeout <= 0 || r.Timeout > settings.MaxTimeout) {
		done(InitResult{-1, -1, ErrInvalidTimeout})
		return
	}
	if _, err := c.check(r.ID); err != nil {
		done(InitResult{-1, -1, err})
		return
	}
	c.step(r.ID, &Init{c.request(settings, done), r})
}

// request is what every request carries.
func (c *Coordinator) request(settings Settings, done Waiter) request {
	return request{Waiter: done, Until: c.now() + Instant(settings.MaxHold)}
}

// AddPartitions adds partitions to the transaction of a producer, which begins one if none is open. It is all or nothing;
// partition errors, parallel to the partitions in their order, are only there with VerifyOnly, which asks and adds nothing.
//
// Errors: metadata.ErrInvalidProducerIDMapping, metadata.ErrProducerFenced, metadata.ErrConcurrentTransactions (the one
// before is still being ended), metadata.ErrUnknownTopicID, metadata.ErrUnknownPartition, ErrInvalidRequest,
// ErrNotCoordinator, ErrUnavailable.
func (c *Coordinator) AddPartitions(r AddRequest, done func(partitions []error, err error)) {
	im, err := c.check(r.ID)
	if err != nil {
		done(nil, err)
		return
	}
	if r.VerifyOnly {
		done(verify(im.Transaction(r.ID), &r))
		return
	}
	answer := func(err error) { done(nil, err) }
	c.step(r.ID, &Add{request: c.request(c.cfg.Settings(), answer), ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, Partitions: r.Partitions})
}

func verify(t *metadata.Transaction, r *AddRequest) (errs []error, err error) {
	if err := mayWrite(t, pair{r.ProducerID, r.ProducerEpoch}); err != nil {
		return nil, err
	}
	if t.State.Prepared() {
		return nil, metadata.ErrConcurrentTransactions
	}
	for i := range r.Partitions {
		for _, p := range r.Partitions[i].Partitions {
			var err error
			if !t.HasPartition(r.Partitions[i].TopicID, p) {
				err = ErrAbortable
			}
			errs = append(errs, err)
		}
	}
	return errs, nil
}

// AddOffsets adds a group to the transaction, so that offsets of it can be committed with it. Errors are those of
// AddPartitions.
func (c *Coordinator) AddOffsets(r AddOffsetsRequest, done func(err error)) {
	if _, err := c.check(r.ID); err != nil {
		done(err)
		return
	}
	c.step(r.ID, &Add{request: c.request(c.cfg.Settings(), done), ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch, Groups: []string{r.Group}})
}

// End commits or aborts the open transaction. It is answered when the decision is committed: nothing can change it then, and
// everything follows from it. A request that is made again is answered alike; the opposite one is refused.
//
// Errors: metadata.ErrInvalidProducerIDMapping, metadata.ErrProducerFenced, metadata.ErrInvalidTransactionState (nothing is
// open, or the opposite was decided), metadata.ErrConcurrentTransactions, ErrInvalidRequest, ErrNotCoordinator,
// ErrUnavailable.
func (c *Coordinator) End(r EndRequest, done func(EndResult)) {
	if _, err := c.check(r.ID); err != nil {
		done(EndResult{-1, -1, err})
		return
	}
	c.step(r.ID, &End{c.request(c.cfg.Settings(), done), r})
}

// Abort aborts the open transaction of an id by order of an administrator, and fences its producer. It is answered when that
// is committed.
//
// Errors: metadata.ErrTransactionNotFound, metadata.ErrInvalidTransactionState (nothing is open, or its commit is decided),
// ErrInvalidRequest, ErrNotCoordinator, ErrUnavailable.
func (c *Coordinator) Abort(id string, done func(err error)) {
	if _, err := c.check(id); err != nil {
		done(err)
		return
	}
	c.step(id, &Abort{request: c.request(c.cfg.Settings(), done)})
}

// Describe returns what is committed of a transactional id, for DescribeTransactions. Errors: metadata.ErrTransactionNotFound,
// ErrInvalidRequest, ErrNotCoordinator.
func (c *Coordinator) Describe(id string) (*metadata.Transaction, error) {
	im, err := c.check(id)
	if err != nil {
		return nil, err
	}
	t := im.Transaction(id)
	if t == nil {
		return nil, metadata.ErrTransactionNotFound
	}
	return t, nil
}

// List returns the transactional ids that this broker coordinates and that a filter lets through, by id.
func (c *Coordinator) List(f Filter) ([]*metadata.Transaction, error) {
	im := c.cfg.Store.Image()
	if !c.cfg.Leased() {
		return nil, ErrNotCoordinator
	}
	if !c.registered(im) {
		return nil, ErrUnavailable
	}
	now := c.cfg.Wall().UnixMilli()
	var out []*metadata.Transaction
	for t := range im.Transactions() {
		if _, mine := c.mine(im, t.ID); mine && f.lets(t, now) {
			out = append(out, t)
		}
	}
	return out, nil
}
