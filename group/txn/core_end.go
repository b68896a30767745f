package txn

import "github.com/millrace/millrace/metadata"

// add lets partitions and groups into the transaction. Apply judges it (it may come from anywhere, KIP-890); here it is
// only kept back while the transaction before is not over.
func (c *Core) add(now Time, ev *Add) {
	r := c.record
	if err := mayWrite(r, pair{ev.ProducerID, ev.ProducerEpoch}); err != nil {
		c.answer(ev.Waiter, err)
		return
	}
	switch {
	case r.State.Prepared():
		c.hold(now, ev)
	case r.State == metadata.TransactionOngoing && containsAll(r, ev.Partitions, ev.Groups):
		c.answer(ev.Waiter, nil)
	default:
		c.act(Action{Kind: ActionAdd, Add: ev, Addition: metadata.TransactionAddition{
			ID: c.id, ProducerID: ev.ProducerID, ProducerEpoch: ev.ProducerEpoch, Partitions: ev.Partitions, Groups: ev.Groups, Version: 1, Time: now.Wall,
		}})
	}
}

// mayWrite says whether a pair is the one that writes under an id.
func mayWrite(r *metadata.Transaction, p pair) error {
	switch {
	case r == nil || r.ProducerID != p.id:
		return metadata.ErrInvalidProducerIDMapping
	case r.ProducerEpoch != p.epoch:
		return metadata.ErrProducerFenced
	}
	return nil
}

func containsAll(r *metadata.Transaction, partitions []metadata.TopicPartitions, groups []string) bool {
	for i := range partitions {
		for _, p := range partitions[i].Partitions {
			if !r.HasPartition(partitions[i].TopicID, p) {
				return false
			}
		}
	}
	for _, g := range groups {
		if !r.HasGroup(g) {
			return false
		}
	}
	return true
}

// end is EndTxn. The decision is made when it is committed, before any marker is written (P9), and the producer is told
// then. What it is told to a request that it makes again is the same; the opposite is refused (P8, KAFKA-19999).
func (c *Core) end(now Time, ev *End) {
	r := c.record
	p := pair{ev.ProducerID, ev.ProducerEpoch}
	if ev.Version < 2 {
		c.endFirst(now, ev, p)
		return
	}
	// Every end gives the producer its next epoch (KIP-890): with the present pair it ends the present transaction, with
	// the one before it asks again for the end that gave it the present one.
	if r != nil && p == before(r) {
		c.endAgain(ev)
		return
	}
	if err := mayWrite(r, p); err != nil {
		c.refuse(ev, err)
		return
	}
	if r.State.Prepared() {
		c.hold(now, ev) // the producer has begun the next one
		return
	}
	// What is no transaction here may be one: the leader of a partition has begun it, and this broker can't see it yet. So
	// Apply decides.
	c.decide(now, ev)
}

// endAgain answers an end of the second protocol that gave its producer the present pair.
func (c *Core) endAgain(ev *End) {
	switch r := c.record; {
	case r.State == metadata.TransactionOngoing, r.State == metadata.TransactionEmpty:
		c.refuse(ev, metadata.ErrProducerFenced) // the present pair is in use, or was given to somebody by InitProducerId
	case committed(r) != ev.Commit:
		c.refuse(ev, metadata.ErrInvalidTransactionState)
	default:
		c.answerEnd(ev, EndResult{ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch})
	}
}

// endFirst is EndTxn of the first protocol, in which a request cannot say which transaction it means (P8).
func (c *Core) endFirst(now Time, ev *End, p pair) {
	r := c.record
	if err := mayWrite(r, p); err != nil {
		c.refuse(ev, err)
		return
	}
	switch {
	case r.State == metadata.TransactionOngoing:
		c.decide(now, ev)
	case r.State != metadata.TransactionEmpty && committed(r) == ev.Commit:
		c.answerEnd(ev, EndResult{ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch})
	default:
		c.refuse(ev, metadata.ErrInvalidTransactionState)
	}
}

// committed tells what was decided of a transaction that is no longer open.
func committed(r *metadata.Transaction) bool {
	return r.State == metadata.TransactionPrepareCommit || r.State == metadata.TransactionCompleteCommit
}

// decide proposes the end.
func (c *Core) decide(now Time, ev *End) {
	r := c.record
	state, reason := metadata.TransactionPrepareAbort, ReasonAbort
	if ev.Commit {
		state, reason = metadata.TransactionPrepareCommit, ReasonCommit
	}
	ch := c.proposal(now, ev, state)
	ch.reason = reason
	ch.Version = 1
	ch.MarkerProducerID, ch.MarkerEpoch = r.ProducerID, r.ProducerEpoch
	if ev.Version >= 2 {
		p, ok := c.next(ev)
		if !ok {
			return
		}
		ch.Version, ch.Revision = 2, metadata.AnyRevision
		ch.setPair(p, present(r))
		ch.MarkerEpoch++
	}
	c.propose(ch)
}
