package txn

import (
	"time"

	"github.com/millrace/millrace/metadata"
)

// epochLast is the last epoch that a producer is given. One more is left for the markers that fence it (P6).
const epochLast = 1<<15 - 2

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// pair is a producer id with an epoch.
type pair struct {
	id    int64
	epoch int16
}

var noPair = pair{-1, -1}

func present(r *metadata.Transaction) pair { return pair{r.ProducerID, r.ProducerEpoch} }

// before is the pair that the present one has replaced, if whoever had it may be told the present one.
func before(r *metadata.Transaction) pair { return pair{r.LastProducerID, r.LastProducerEpoch} }

// next is the pair after the present one. It reports false if a new producer id has to be fetched first.
func (c *Core) next(ev Event) (pair, bool) {
	r := c.record
	if r.ProducerEpoch < epochLast {
		return pair{r.ProducerID, r.ProducerEpoch + 1}, true
	}
	id, ok := c.fresh(ev)
	return pair{id, 0}, ok
}

// proposal returns a change that leaves all as it is but for the state.
func (c *Core) proposal(now Time, by Event, state metadata.TransactionState) *change {
	ch := &change{by: by}
	ch.ID, ch.State, ch.Version, ch.UpdatedAt = c.id, state, 1, now.Wall
	if r := c.record; r != nil {
		ch.Revision, ch.Timeout, ch.Version, ch.decidedOn = r.Revision, r.Timeout, r.Version, r.Revision
		ch.setPair(present(r), before(r))
	} else {
		ch.setPair(noPair, noPair)
	}
	ch.MarkerProducerID, ch.MarkerEpoch = -1, -1
	return ch
}

func (ch *change) setPair(p, last pair) {
	ch.ProducerID, ch.ProducerEpoch = p.id, p.epoch
	ch.LastProducerID, ch.LastProducerEpoch = last.id, last.epoch
}

// init is InitProducerId. A producer that starts anew gets the next epoch, which fences all before it. One that says what
// it has gets the next epoch only if that is the present pair (KIP-360), and the present pair if what it has came right
// before it: then this is the same request again, or its transaction has timed out (KIP-588), and nobody else was given
// the present pair.
func (c *Core) init(now Time, ev *Init) {
	r := c.record
	has, anew := pair{ev.ProducerID, ev.ProducerEpoch}, ev.ProducerID == noPair.id
	if r == nil {
		// A producer whose id was forgotten may have a pair, too.
		id, ok := c.fresh(ev)
		if !ok {
			return
		}
		ch := c.proposal(now, ev, metadata.TransactionEmpty)
		ch.setPair(pair{id, 0}, noPair)
		ch.Timeout = ev.Timeout
		c.propose(ch)
		return
	}
	again := !anew && has == before(r)
	if !anew && !again && has != present(r) {
		c.refuse(ev, metadata.ErrProducerFenced)
		return
	}
	switch r.State {
	case metadata.TransactionPrepareCommit, metadata.TransactionPrepareAbort:
		c.hold(now, ev)
	case metadata.TransactionOngoing:
		if again {
			// Somebody has begun with the present pair: this request is older than that.
			c.refuse(ev, metadata.ErrProducerFenced)
			return
		}
		last := noPair
		if !anew {
			last = present(r)
		}
		c.fence(now, ev, last, ReasonFence)
	default:
		c.begin(now, ev, again, anew)
	}
}

// begin gives a producer its pair while no transaction is open.
func (c *Core) begin(now Time, ev *Init, again, anew bool) {
	r := c.record
	if again {
		if r.State == metadata.TransactionEmpty && r.Timeout == ev.Timeout {
			c.answerInit(ev, InitResult{ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch})
			return
		}
		ch := c.proposal(now, ev, metadata.TransactionEmpty)
		ch.Timeout = ev.Timeout
		c.propose(ch)
		return
	}
	p, ok := c.next(ev)
	if !ok {
		return
	}
	last := noPair
	if !anew {
		last = present(r)
	}
	ch := c.proposal(now, ev, metadata.TransactionEmpty)
	ch.setPair(p, last)
	ch.Timeout = ev.Timeout
	c.propose(ch)
}

// fence aborts the open transaction with markers of an epoch that nobody writes with, which keeps out whoever has written
// until now. last is the pair that may still be exchanged for the next one. One epoch is spent on it, not two (KAFKA-19367).
func (c *Core) fence(now Time, by Event, last pair, reason Reason) {
	p, ok := c.next(by)
	if !ok {
		return
	}
	r := c.record
	ch := c.proposal(now, by, metadata.TransactionPrepareAbort)
	ch.setPair(p, last)
	ch.MarkerProducerID, ch.MarkerEpoch = r.ProducerID, r.ProducerEpoch+1
	ch.reason = reason
	c.propose(ch)
}

// abort ends the open transaction because its time is over, or by order.
func (c *Core) abort(now Time, ev *Abort) {
	r := c.record
	open := r != nil && r.State == metadata.TransactionOngoing
	switch {
	case ev.late:
		if open && r.Number == c.number {
			c.fence(now, ev, present(r), ReasonTimeout)
		}
	case open:
		c.fence(now, ev, present(r), ReasonOrder)
	case r == nil:
		c.answer(ev.Waiter, metadata.ErrTransactionNotFound)
	case r.State == metadata.TransactionPrepareAbort:
		c.answer(ev.Waiter, nil) // it is on its way
	default:
		c.answer(ev.Waiter, metadata.ErrInvalidTransactionState)
	}
}
