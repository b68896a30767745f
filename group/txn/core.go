package txn

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// Core is the coordinator of one transactional id: a state machine without goroutine, clock, lock or I/O. A driver feeds
// it events with [Core.Step] and carries out the actions it answers with, in order; a simulator does the same with many
// cores and one random generator.
//
// The core knows the committed record and decides on it; what it decides is a compare-and-set on the record's revision, so
// that of two decisions, at one coordinator or two, the first that is committed wins and the other is made anew (P10).
// Nothing that it has in memory is needed by its successor: who waits, until when, and what is on its way.
type Core struct {
	id     string
	loaded bool
	record *metadata.Transaction // the committed one, nil when there is none

	// change is the proposal on its way, allocating the request that waits for a producer id; at most one of them.
	// Requests wait in the queue meanwhile.
	change     *change
	allocating Event
	// spare is a new producer id for the decision at hand, -1: none. It is given away once, made or not (P5).
	spare int64
	seq   uint64
	// queue holds requests in their order: behind change and allocating, and while markers are being written.
	queue []Event

	// deadline is when the open transaction's time is over, Never if none is open; number is that transaction's. failed
	// counts aborts that could not be made.
	deadline Instant
	number   uint64
	failed   int

	wake    Instant
	actions []Action // reused by every step
}

// change is a proposal on its way.
type change struct {
	metadata.TransactionChange
	seq uint64
	// decidedOn is the revision of the record that it was decided on, 0 for none.
	decidedOn uint64
	// by is the request or Abort that it was made for. An Init whose change only aborts goes on when that is done.
	by     Event
	reason Reason // "" if it ends no transaction
}

// NewCore returns the core of a transactional id. Its first event must be [Seen].
func NewCore(id string) *Core { return &Core{id: id, spare: -1, deadline: Never, wake: Never} }

// Step takes one event at the time now, which never goes back, and returns what to do about it. The list is valid until
// the next Step.
func (c *Core) Step(now Time, ev Event) []Action {
	clear(c.actions)
	c.actions = c.actions[:0]
	switch ev := ev.(type) {
	case *Seen:
		c.see(now, ev)
	case *LetGo:
		c.letGo(ev.Err)
	case *Changed:
		c.changed(now, ev)
	case *Allocated:
		c.allocated(now, ev)
	case *Tick:
		c.tick(now, ev.RetryMax)
	default:
		switch {
		case !c.loaded:
			c.refuse(ev, ErrUnavailable)
		case c.busy():
			c.hold(now, ev)
		default:
			c.handle(now, ev)
		}
	}
	c.drain(now)
	c.wake = c.nextDeadline()
	return c.actions
}

// busy tells whether something is on its way that requests have to wait for.
func (c *Core) busy() bool { return c.change != nil || c.allocating != nil }

// handle decides on a request by the committed record. Nothing is on its way.
func (c *Core) handle(now Time, ev Event) {
	switch ev := ev.(type) {
	case *Init:
		c.init(now, ev)
	case *Add:
		c.add(now, ev)
	case *End:
		c.end(now, ev)
	case *Abort:
		c.abort(now, ev)
	}
	c.spare = -1
}

// drain takes up the requests that waited, in their order, until one of them leads to a change. Those that have to wait on
// line up again in the same order.
func (c *Core) drain(now Time) {
	for n := len(c.queue); n > 0 && !c.busy(); n-- {
		ev := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.handle(now, ev)
	}
	if len(c.queue) == 0 {
		c.queue = nil
	}
}

// hold lets a request wait, but not for ever.
func (c *Core) hold(now Time, ev Event) {
	if r := requestOf(ev); r.Until <= now.At || len(c.queue) >= heldMax {
		c.refuse(ev, metadata.ErrConcurrentTransactions)
		return
	}
	c.queue = append(c.queue, ev)
}

func requestOf(ev Event) *request {
	switch ev := ev.(type) {
	case *Init:
		return &ev.request
	case *Add:
		return &ev.request
	case *End:
		return &ev.request
	case *Abort:
		return &ev.request
	}
	panic("txn: not a request")
}

// refuse answers a request with an error.
func (c *Core) refuse(ev Event, err error) {
	switch ev := ev.(type) {
	case *Init:
		c.answerInit(ev, InitResult{Err: err})
	case *End:
		c.answerEnd(ev, EndResult{Err: err})
	case *Add:
		c.answer(ev.Waiter, err)
	case *Abort:
		if ev.late {
			c.abortFailed()
			return
		}
		c.answer(ev.Waiter, err)
	}
}

func (c *Core) answerInit(ev *Init, r InitResult) {
	if r.Err != nil {
		r.ProducerID, r.ProducerEpoch = -1, -1
	}
	c.act(Action{Kind: ActionInit, Waiter: ev.Waiter, Init: r})
}

func (c *Core) answerEnd(ev *End, r EndResult) {
	if r.Err != nil {
		r.ProducerID, r.ProducerEpoch = -1, -1
	}
	c.act(Action{Kind: ActionEnd, Waiter: ev.Waiter, End: r})
}

func (c *Core) answer(w Waiter, err error) {
	c.act(Action{Kind: ActionAnswer, Waiter: w, Err: err})
}

func (c *Core) act(a Action) { c.actions = append(c.actions, a) }

// see takes over the committed record.
func (c *Core) see(now Time, ev *Seen) {
	r := ev.Transaction
	c.loaded, c.record = true, r
	if r == nil || r.State != metadata.TransactionOngoing {
		c.deadline, c.failed = Never, 0
		return
	}
	if c.deadline != Never && c.number == r.Number {
		return
	}
	// The clock of whoever began the transaction is asked only where ours could not be (I22).
	left := r.Timeout
	if ev.Taken {
		left -= min(max(0, millis(now.Wall-r.StartedAt)), r.Timeout)
	}
	c.deadline, c.number, c.failed = now.At+Instant(left), r.Number, 0
}

// letGo forgets everything.
func (c *Core) letGo(err error) {
	if ch := c.change; ch != nil {
		c.change = nil // it may still be made, but nobody is told
		c.refuse(ch.by, err)
	}
	if ev := c.allocating; ev != nil {
		c.allocating = nil
		c.refuse(ev, err)
	}
	queue := c.queue
	c.queue = nil
	for _, ev := range queue {
		c.refuse(ev, err)
	}
	c.loaded, c.record, c.deadline, c.failed = false, nil, Never, 0
}

// propose sends a change on its way.
func (c *Core) propose(ch *change) {
	c.seq++
	ch.seq = c.seq
	c.change = ch
	c.act(Action{Kind: ActionPropose, Seq: ch.seq, Change: ch.TransactionChange})
}

// changed takes the outcome of a proposal. One whose outcome is unknown is not made again by itself: whoever asked is told
// to ask again, and either the record shows it by then, or one of the two is refused for its revision.
func (c *Core) changed(now Time, ev *Changed) {
	ch := c.change
	if ch == nil || ev.Seq != ch.seq {
		return
	}
	c.change = nil
	switch {
	case ev.Err == nil:
		c.failed = 0
		if ch.reason != "" {
			c.act(Action{Kind: ActionEnded, Reason: ch.reason})
		}
		c.made(now, ch)
	case lost(ev.Err):
		c.refuse(ch.by, ErrNotCoordinator)
		c.letGo(ErrNotCoordinator)
		c.act(Action{Kind: ActionReload}) // it may coordinate again by now, or still by what it knows
	case c.revision() != ch.decidedOn && judged(ev.Err):
		// The record was another one already when it came to be applied.
		r := requestOf(ch.by)
		if r.attempts++; r.attempts > attemptsMax {
			c.refuse(ch.by, metadata.ErrConcurrentTransactions)
			return
		}
		c.handle(now, ch.by)
	default:
		c.refuse(ch.by, fromMetadata(ev.Err))
	}
}

func (c *Core) revision() uint64 {
	if c.record == nil {
		return 0
	}
	return c.record.Revision
}

// judged tells whether an error is Apply's word on a change that does not fit the record it met.
func judged(err error) bool {
	for _, x := range []error{
		metadata.ErrStale, metadata.ErrConcurrentTransactions, metadata.ErrInvalidTransactionState, metadata.ErrProducerFenced,
		metadata.ErrInvalidProducerEpoch, metadata.ErrInvalidProducerIDMapping, metadata.ErrTransactionNotFound,
	} {
		if errors.Is(err, x) {
			return true
		}
	}
	return false
}

// made answers who asked for a change that is committed.
func (c *Core) made(now Time, ch *change) {
	switch by := ch.by.(type) {
	case *Init:
		if ch.State == metadata.TransactionPrepareAbort {
			c.hold(now, by) // the way is free once the markers are written
			return
		}
		c.answerInit(by, InitResult{ProducerID: ch.ProducerID, ProducerEpoch: ch.ProducerEpoch})
	case *End:
		switch r, p := c.record, (pair{by.ProducerID, by.ProducerEpoch}); {
		case by.Version >= 2 && r != nil && before(r) == p:
			c.answerEnd(by, EndResult{ProducerID: r.ProducerID, ProducerEpoch: r.ProducerEpoch}) // perhaps of an earlier attempt, with another id
		case by.Version >= 2 && ch.ProducerID != p.id && (r == nil || r.ProducerID != ch.ProducerID):
			c.handle(now, by)
		default:
			c.answerEnd(by, EndResult{ProducerID: ch.ProducerID, ProducerEpoch: ch.ProducerEpoch})
		}
	case *Abort:
		if !by.late {
			c.answer(by.Waiter, nil)
		}
	}
}

// fresh returns a producer id that nobody had. It reports false if one has to be fetched first; ev is handled again then.
func (c *Core) fresh(ev Event) (int64, bool) {
	if id := c.spare; id >= 0 {
		c.spare = -1
		return id, true
	}
	c.seq++
	c.allocating = ev
	c.act(Action{Kind: ActionAllocate, Seq: c.seq})
	return -1, false
}

func (c *Core) allocated(now Time, ev *Allocated) {
	by := c.allocating
	if by == nil || ev.Seq != c.seq {
		return
	}
	c.allocating = nil
	if ev.Err != nil {
		c.refuse(by, fromMetadata(ev.Err))
		return
	}
	c.spare = ev.ProducerID
	c.handle(now, by)
}

// tick answers those that have waited for too long, and ends the transaction whose time is over.
func (c *Core) tick(now Time, retryMax Instant) {
	kept := c.queue[:0]
	for _, ev := range c.queue {
		if requestOf(ev).Until > now.At {
			kept = append(kept, ev)
			continue
		}
		c.refuse(ev, metadata.ErrConcurrentTransactions)
	}
	clear(c.queue[len(kept):])
	c.queue = kept
	if c.deadline <= now.At && !c.busy() {
		c.handle(now, &Abort{late: true})
	}
	if c.deadline <= now.At {
		// Tried, and perhaps again: the deadline moves with each attempt, so that the driver is not asked in vain.
		c.deadline = now.At + max(retryMin, min(retryMax, retryMin<<min(c.failed, 10)))
	}
}

// abortFailed notes that a transaction could not be ended in time.
func (c *Core) abortFailed() { c.failed++ }

// Idle reports whether the core could be thrown away and made anew from the record without anybody noticing.
func (c *Core) Idle() bool { return !c.busy() && len(c.queue) == 0 && c.deadline == Never }

// Deadline is no later than the moment at which the core needs a [Tick].
func (c *Core) Deadline() Instant { return c.wake }

func (c *Core) nextDeadline() Instant {
	at := c.deadline
	for _, ev := range c.queue {
		at = min(at, requestOf(ev).Until)
	}
	return at
}

// Record returns the committed record that the core goes by.
func (c *Core) Record() *metadata.Transaction { return c.record }

// lost tells whether an error means that this broker may not change the transaction any more.
func lost(err error) bool {
	return errors.Is(err, metadata.ErrNotCoordinator) || errors.Is(err, metadata.ErrStaleBrokerEpoch) || errors.Is(err, metadata.ErrClosed) || errors.Is(err, metadata.ErrFailed)
}
