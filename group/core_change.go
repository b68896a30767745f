package group

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// changeKind says what a proposal does.
type changeKind uint8

const (
	changeGeneration changeKind = iota + 1 // a new generation with its members, or none
	changeAssign                           // the assignments of the generation
	changeReplace                          // a static member has a new id
	changeResume                           // the mark of a dead coordinator is taken off
	changeSeek                             // the members are put out, and offsets set
	changeDelete                           // the group goes
	changeConsumer                         // a consumer group's draft
	changeDowngrade                        // a consumer group becomes a classic one
)

// change is a proposal on its way.
type change struct {
	metadata.GroupChange
	kind changeKind
	seq  uint64
	// attempts counts proposals of the same change; the next is made at retryAt if there is no answer of use.
	attempts int
	retryAt  Instant
	// reload: refused because the record was another one; the next Loaded decides.
	reload bool
	waiter Waiter // of changeDelete and changeSeek
	// replaces and by are the ids of changeReplace, join the request that waits for it.
	replaces string
	by       *member
	join     *Join
}

const (
	retryMin = Instant(200 * time.Millisecond)
	retryMax = Instant(5 * time.Second)
	// rebaseMax bounds how often one change is decided anew.
	rebaseMax = 20
)

// proposal returns a change that leaves all as it is.
func (c *Core) proposal(kind changeKind) *change {
	ch := &change{kind: kind, retryAt: Never}
	ch.Group, ch.Type, ch.State, ch.Generation = c.name, metadata.ClassicGroup, metadata.GroupEmpty, c.lastGeneration
	if r := c.record; r != nil {
		ch.Revision, ch.Type, ch.State = r.Revision, r.Type, r.State
		ch.Generation, ch.AssignmentEpoch = r.Generation, r.AssignmentEpoch
		ch.ProtocolType, ch.Protocol, ch.Leader, ch.Assignor = r.ProtocolType, r.Protocol, r.Leader, r.Assignor
		ch.TopicsHash, ch.EmptySince, ch.PutOutAt, ch.Interrupted = r.TopicsHash, r.EmptySince, r.PutOutAt, r.Interrupted
	}
	ch.PutOutAt = max(ch.PutOutAt, c.putOutAt)
	return ch
}

func (c *Core) propose(ch *change) {
	c.seq++
	ch.seq = c.seq
	ch.attempts++
	ch.retryAt = Never
	c.change = ch
	c.act(Action{Kind: ActionPropose, Seq: ch.seq, Change: ch.GroupChange})
}

// retry proposes again what may or may not have been committed: the revision it expects lets it happen only once (M11).
func (c *Core) retry(now Time) {
	if ch := c.change; ch.retryAt <= now.At {
		c.propose(ch)
	}
}

// made tells whether g is the record after the change. Only the group's coordinator changes it, one change at a time; if
// another broker was coordinator in between and did the same, it is as good.
func (ch *change) made(g *metadata.Group) bool {
	switch {
	case ch.Seek != nil:
		return false // the record does not tell whether the offsets are those
	case ch.Delete:
		return g == nil
	case g == nil || g.Revision <= ch.Revision:
		return false
	case g.Generation != ch.Generation || g.State != ch.State || g.Leader != ch.Leader || g.Protocol != ch.Protocol || g.Interrupted != ch.Interrupted:
		return false
	}
	for _, m := range ch.Upsert {
		if got := g.Member(m.ID); got == nil || !sameMember(got, m) || ch.kind == changeConsumer && !sameConsumer(got, m) {
			return false
		}
	}
	for _, a := range ch.Assign {
		if got := g.Member(a.Member); got == nil || !bytes.Equal(got.Assignment, a.Assignment) {
			return false
		}
	}
	return !slices.ContainsFunc(ch.Remove, func(id string) bool {
		return g.Member(id) != nil && !slices.ContainsFunc(ch.Upsert, func(m *metadata.GroupMember) bool { return m.ID == id })
	})
}

// rebase has a change that was refused decided anew on another record without members, which is what a group without
// members may turn into without its coordinator: offsets committed from outside make a record, expiry takes it away. It
// reports false if that is not what happened.
func (ch *change) rebase(old, g *metadata.Group, last int32) bool {
	if old != nil && len(old.Members) > 0 || g != nil && len(g.Members) > 0 || ch.kind != changeGeneration || ch.attempts > rebaseMax {
		return false
	}
	ch.Revision, ch.Generation = 0, last+1
	if g != nil {
		ch.Revision, ch.Generation = g.Revision, g.Generation+1
	}
	ch.Remove = nil
	return true
}

func (c *Core) changed(now Time, ev *Changed) {
	ch := c.change
	if ch == nil || ev.Seq != ch.seq {
		return
	}
	switch {
	case ev.Err == nil && ev.Group == nil && !ch.Delete:
		// Made, and gone again: nobody was left in it.
		ch.reload, ch.retryAt = true, Never
		c.act(Action{Kind: ActionReload})
	case ev.Err == nil:
		c.change = nil
		c.record = ev.Group
		if ev.Group != nil {
			c.lastGeneration = ev.Group.Generation
		}
		switch ch.kind {
		case changeConsumer:
			c.consumerChanged(now, ch)
		case changeDowngrade:
			c.downgraded(now)
		default:
			c.classicChanged(now, ch)
		}
	case lost(ev.Err):
		// It may coordinate again by now, or still by what it knows.
		c.letGo(ErrNotCoordinator)
		c.act(Action{Kind: ActionReload})
	case errors.Is(ev.Err, metadata.ErrStale):
		ch.reload, ch.retryAt = true, Never
		c.act(Action{Kind: ActionReload})
	case errors.Is(ev.Err, metadata.ErrTimeout), errors.Is(ev.Err, metadata.ErrBusy), errors.Is(ev.Err, metadata.ErrNotController):
		ch.retryAt = now.At + min(retryMax, retryMin<<min(ch.attempts-1, 10))
	case ch.kind == changeResume:
		c.change = nil // the mark stays until the next generation takes it off
	case ch.kind == changeSeek:
		c.change = nil // who gave the order is told, and the members work on
		c.act(Action{Kind: ActionAnswer, Waiter: ch.waiter, Err: ev.Err})
	default:
		// It will never be made: whoever asked is told, and the group is as it was.
		g, last, err := c.record, c.lastGeneration, ev.Err
		if ch.Seek != nil {
			c.consumer.refuseSeek(c, err)
			err = ErrCoordinatorLoading // of the others, who did nothing wrong
		}
		c.letGo(err)
		c.load(now, &Loaded{Group: g, LastGeneration: last, Resume: true})
	}
}

// abandon gives up the change on its way, if there is one: it may still be made, but nobody is told.
func (c *Core) abandon(err error) {
	if ch := c.change; ch != nil {
		c.change = nil
		if ch.waiter != nil {
			c.act(Action{Kind: ActionAnswer, Waiter: ch.waiter, Err: err})
		}
		if ch.join != nil {
			c.refuse(ch.join, err)
		}
	}
	queue := c.queue
	c.queue = nil
	for _, ev := range queue {
		c.refuse(ev, err)
	}
}
