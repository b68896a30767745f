package group

import (
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// An administrator sets offsets of a group that has members, which work on all the while: what they have read and not committed
// yet, they would commit over the new offsets, or go on from where they are. So the members are put out, and the offsets set, in
// one change. Whatever a member sends under its old id after that is refused with ErrUnknownMember, to which all clients answer
// alike when they learn it from a heartbeat: they forget what they had, those too that keep their partitions in a rebalance, join
// again, and read the offsets.
//
// franz-go's consumers with a cooperative assignor do not when they learn it from a commit, or from the answer to a join: they join
// without an id, keep their partitions, and go on from where they are. What does make them forget is a join that fails. So a join
// under an id that was put out is answered ErrRebalanceInProgress, once: that client forgets and joins anew; others take it for what
// Apache Kafka says when it could not store a generation, and try again. The others hardly ever see it: Apache Kafka's and
// librdkafka's consumers drop their id and their partitions at the refusal of a commit or a heartbeat. That a heartbeat was refused
// says nothing: while franz-go's consumer ends a session because of a commit, its heartbeats go on, and it looks at no answer.

// Between the refusal and its next join a member of Java's in a group of KIP-848 has neither a member epoch nor forgotten where it
// is, and commits that under its id with epoch -1. Apache Kafka takes that in a group without members for a commit from outside. But
// who is outside - an administrator's tool, a consumer that assigns its partitions itself - gives no id, unless it was a member and has
// left. So from when a member of a consumer group was put out, by a seek, by LeaveGroup of a tool, or by a timeout, commits with an id
// and no epoch are refused, as in a group that has members, for as long as it may not have heard of it (Core.unawareUntil). For as
// long a member that asks for its offsets under an id that is none any more is told to try again, see Coordinator.Fetch. The
// record says when that was, for a coordinator that takes over.

// unawareFor is how long a member may be put out without knowing it, if its session is shorter: a process may have stood still.
const unawareFor = Instant(5 * time.Minute)

// unaware says that a member was put out that may not know it.
func (c *Core) unaware(now Time, m *metadata.GroupMember) {
	c.unawareUntil = max(c.unawareUntil, now.At+max(unawareFor, Instant(m.SessionTimeout)))
	c.putOutAt = max(c.putOutAt, now.Wall)
}

// recallUnaware goes on as the record has it: another coordinator may have put members out. Its clock may differ; one that is ahead
// of this one's makes it no longer than it is for who is put out now.
func (c *Core) recallUnaware(now Time) {
	if !c.loaded {
		return
	}
	if left := unawareLeft(c.record, now.Wall); left > 0 {
		c.unawareUntil = max(c.unawareUntil, now.At+left)
	}
}

// unawareLeft is for how long members may not know that they were put out, as far as the record says.
func unawareLeft(g *metadata.Group, wall int64) Instant {
	if g == nil || g.PutOutAt == 0 {
		return 0
	}
	ago := min(max(0, wall-g.PutOutAt), int64(unawareFor/Instant(time.Millisecond)))
	return unawareFor - Instant(ago)*Instant(time.Millisecond)
}

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
		ch.EmptySince, ch.PutOutAt, ch.Interrupted = now.Wall, now.Wall, false
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
		m := c.member(id)
		if m == nil {
			continue
		}
		switch {
		case m.join != nil:
			c.answerJoin(m.join.Waiter, JoinResult{Err: ErrRebalanceInProgress, Member: m.id})
			m.join = nil
			k.joining--
		case m.sync == nil: // whose sync is refused forgets, too
			c.puttingOut(now, m)
		}
		c.unaware(now, m.record)
		c.drop(m, ReasonForced, ErrUnknownMember)
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

// puttingOut remembers that a member may not know that it is none any more: until it joins, or for as long as its session would have
// lasted, by when it has heard or has given up.
func (c *Core) puttingOut(now Time, m *member) {
	k := &c.classic
	if len(k.putOut) >= maxPending {
		k.putOut = slices.Delete(k.putOut, 0, 1)
	}
	p := pendingMember{id: m.id, expires: now.At + m.session()}
	k.putOut = append(k.putOut, p)
	c.expiryAt(p.expires)
}

// knowsNow forgets an id of putOut, and reports whether it was one.
func (c *Core) knowsNow(id string) bool {
	k := &c.classic
	i := slices.IndexFunc(k.putOut, func(p pendingMember) bool { return p.id == id })
	if i < 0 {
		return false
	}
	if k.putOut = slices.Delete(k.putOut, i, i+1); len(k.putOut) == 0 {
		k.putOut = nil
	}
	return true
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
		c.unaware(now, m.record)
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
