package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// prepareWith begins a rebalance with the member whose join is the reason.
func (c *Core) prepareWith(now Time, reason Reason, ev *Join, m *member) {
	c.begin(now, reason, m.id)
	k := &c.classic
	if k.phase.initial {
		p := &k.phase
		p.delay = Instant(ev.Settings.InitialRebalanceDelay)
		p.until = min(now.At+p.delay, p.deadline)
	} else if reason == ReasonJoin {
		k.phase.lastNew = now.At
	}
	c.park(now, ev, m)
	c.complete(now)
}

// prepare begins a rebalance.
func (c *Core) prepare(now Time, reason Reason, who string) {
	c.begin(now, reason, who)
	c.complete(now)
}

func (c *Core) begin(now Time, reason Reason, who string) {
	k := &c.classic
	initial := k.state == StateEmpty
	for _, m := range k.members {
		m.told, m.syncBy = 0, 0
		if m.sync != nil {
			c.answerSync(m.sync.Waiter, SyncResult{Err: ErrRebalanceInProgress})
			m.sync = nil
			c.heard(now, m)
			m.told = now.At
		}
	}
	k.syncBy = Never
	k.phase = joinPhase{began: now.At, deadline: now.At + c.rebalanceTimeout(), initial: initial, complete: Never}
	k.reason = reason
	c.setState(now, StatePreparing)
	c.act(Action{Kind: ActionRebalance, Reason: reason, Member: who})
}

// complete ends the join phase if nothing is left to wait for.
func (c *Core) complete(now Time) {
	k := &c.classic
	p := &k.phase
	if k.state != StatePreparing || c.change != nil {
		return
	}
	if len(k.members) == 0 {
		c.empty(now)
		return
	}
	if p.initial {
		switch {
		case now.At < p.until && now.At < p.deadline:
			return
		case p.newMembers && now.At < p.deadline && p.delay > 0:
			p.newMembers = false
			p.until = min(now.At+p.delay, p.deadline)
			return
		}
	} else if k.joining < len(k.members) {
		if now.At < p.deadline {
			p.complete = Never
			return
		}
		if at := c.givenUpAt(); now.At < at {
			p.late = at
			return
		}
	} else if now.At < p.deadline {
		p.complete = min(p.complete, now.At)
		if now.At < c.joinableAt() {
			return
		}
	}
	if k.joining < len(k.members) {
		for _, m := range slices.Clone(k.members) {
			// Static members are given up by their sessions only: they are expected back.
			if m.join == nil && !m.static() {
				c.drop(m, ReasonLate, ErrUnknownMember)
			}
		}
	}
	switch {
	case len(k.members) == 0:
		c.empty(now)
	case k.joining == 0:
		// Only static members are left, and none is back: there is nobody to lead.
		p.deadline, p.late, p.complete = now.At+max(c.rebalanceTimeout(), waitMin), 0, Never
	default:
		c.generate(now)
	}
}

// givenUpAt is when members that have not joined are removed: at the deadline, unless there are some that could not know
// better. A client that learns of rebalances only every so often, and whose rebalance timeout is no longer than that, would
// be thrown out of every one; it comes back as a new member, which begins a rebalance that finds the next member silent.
// kafkajs beats its heart after each fetch, which waits 5 s: with a rebalance timeout of 5 s two of its members can put each
// other out for as long as nothing is produced. Apache Kafka has no such patience.
func (c *Core) givenUpAt() Instant {
	p := &c.classic.phase
	at := p.deadline
	last := p.deadline + min(lateMax, p.deadline-p.began)
	for _, m := range c.classic.members {
		switch {
		case m.join != nil || m.static():
		case m.told == 0:
			return last // or its session ends before
		default:
			at = max(at, min(m.told+tellPatience, last))
		}
	}
	return at
}

// tell notes that a member is about to be answered that a rebalance goes on.
func (c *Core) tell(now Time, m *member) {
	if m.told != 0 {
		return
	}
	m.told = now.At
	if p := &c.classic.phase; p.late != 0 {
		p.late = c.givenUpAt()
	}
}

// joinableAt is when a rebalance that every member has joined may end.
func (c *Core) joinableAt() Instant {
	k := &c.classic
	p := &k.phase
	at := p.complete
	if len(k.pending) > 0 {
		at = p.complete + pendingPatience
	}
	if p.lastNew != 0 && p.began-k.generationAt < stormWindow {
		at = max(at, min(p.lastNew+stormQuiet, p.began+stormMax))
	}
	return at
}

// generate proposes the next generation with the members that have joined, and the static ones.
func (c *Core) generate(now Time) {
	k := &c.classic
	ch := c.proposal(changeGeneration)
	ch.Type, ch.State = metadata.ClassicGroup, metadata.GroupCompleting
	ch.Generation++
	ch.ProtocolType, ch.Protocol, ch.Leader = k.protocolType, c.selectProtocol(), c.electLeader()
	ch.EmptySince, ch.Interrupted = 0, false
	for _, m := range k.members {
		if !m.committed {
			ch.Upsert = append(ch.Upsert, m.record)
		}
	}
	ch.Remove = c.gone()
	c.propose(ch)
}

// gone are the committed members that are members no more.
func (c *Core) gone() []string {
	var out []string
	for _, id := range c.classic.removed {
		if c.member(id) == nil {
			out = append(out, id)
		}
	}
	return out
}

// electLeader keeps the leader if it has joined, else takes the member that joined first.
func (c *Core) electLeader() string {
	if m := c.member(c.leader()); m != nil && m.join != nil {
		return m.id
	}
	var first *member
	for _, m := range c.classic.members {
		if m.join != nil && (first == nil || m.joined < first.joined) {
			first = m
		}
	}
	return first.id
}

// empty ends a rebalance that has no members left.
func (c *Core) empty(now Time) {
	if c.record == nil || len(c.record.Members) == 0 {
		c.classic.removed = nil
		c.setState(now, StateEmpty)
		return
	}
	ch := c.proposal(changeGeneration)
	ch.State = metadata.GroupEmpty
	ch.Generation++
	ch.Protocol, ch.Leader = "", ""
	ch.EmptySince, ch.Interrupted = now.Wall, false
	ch.Remove = c.gone()
	c.propose(ch)
}

func (c *Core) generationCommitted(now Time) {
	k := &c.classic
	k.removed = nil
	k.generationAt = now.At
	c.act(Action{Kind: ActionGeneration, Generation: c.generation(), Members: len(k.members)})
	if len(k.members) == 0 {
		c.setState(now, StateEmpty)
		return
	}
	c.setState(now, StateCompleting)
	for _, m := range k.members {
		m.adopted = false
		if m.join == nil {
			continue
		}
		c.mustSync(now, m)
		w := m.join.Waiter
		m.join = nil
		k.joining--
		c.heard(now, m)
		c.answerJoin(w, c.joined(m))
	}
}
