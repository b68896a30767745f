package group

import "github.com/millrace/millrace/metadata"

// An administrator sets offsets of a group that has members, which work on all the while: what they have read and not committed
// yet, they would commit over the new offsets, or go on from where they are. So the members are put out, and the offsets set, in
// one change. Whatever a member sends under its old id after that is refused with ErrUnknownMember, to which all clients answer
// alike: they forget what they had, those too that keep their partitions in a rebalance, join again, and read the offsets.

// seek proposes it for a group that is no consumer group at work.
func (c *Core) seek(now Time, ev *Seek) {
	if !ev.Force && c.members() > 0 {
		c.refuse(ev, ErrNonEmpty)
		return
	}
	ch := c.proposal(changeSeek)
	ch.Seek, ch.Time, ch.waiter = ev.GroupSeek, now.Wall, ev.Waiter
	if g := c.record; g != nil && len(g.Members) > 0 {
		ch.State, ch.Protocol, ch.Leader = metadata.GroupEmpty, "", ""
		ch.Generation++
		ch.EmptySince, ch.Interrupted = now.Wall, false
		for _, m := range g.Members {
			ch.Remove = append(ch.Remove, m.ID)
		}
	}
	ev.putOut = len(ch.Remove)
	c.propose(ch)
}

// sought goes on after it: without the members that it put out. Those that wait for their first generation have read nothing yet,
// and stay.
func (c *Core) sought(now Time, ch *change) {
	c.act(Action{Kind: ActionAnswer, Waiter: ch.waiter})
	if c.consumer != nil || len(ch.Remove) == 0 {
		return // it had no members
	}
	k := &c.classic
	for _, id := range ch.Remove {
		if m := c.member(id); m != nil {
			c.drop(m, ReasonForced, ErrUnknownMember)
		}
	}
	k.removed, k.syncBy, k.reason = nil, Never, ReasonForced
	c.act(Action{Kind: ActionRebalance, Reason: ReasonForced})
	c.act(Action{Kind: ActionGeneration, Generation: c.generation()})
	if len(k.members) == 0 {
		c.setState(now, StateEmpty)
		return
	}
	c.complete(now)
}

// consumerSeek puts the members of a consumer group out, and has the offsets set with the draft.
func (c *Core) consumerSeek(now Time, ev *Seek) {
	g := c.consumer
	switch {
	case !ev.Force && len(g.members) > 0:
		c.refuse(ev, ErrNonEmpty)
		return
	case len(g.members) == 0 && !g.touched:
		c.seek(now, ev)
		return
	case g.seek != nil: // of the same draft: who gives two orders at once has to see which one holds
		c.refuse(ev, ErrCoordinatorLoading)
		return
	}
	ev.putOut = len(g.members)
	for _, m := range g.sorted() {
		g.remove(m)
		c.went(m.record, ReasonForced)
	}
	c.bump(ReasonForced, "")
	g.seek = ev
}

// refuseSeek answers the seek of a draft, if there is one, with an error.
func (g *consumerGroup) refuseSeek(c *Core, err error) {
	if g != nil && g.seek != nil {
		c.act(Action{Kind: ActionAnswer, Waiter: g.seek.Waiter, Err: err})
		g.seek = nil
	}
}
