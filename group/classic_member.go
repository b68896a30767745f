package group

import "slices"

func (c *Core) classicHeartbeat(now Time, r *HeartbeatRequest) error {
	m, err := c.current(r.Member, r.Instance, r.Generation)
	if err != nil {
		return err
	}
	c.beat(now, m)
	if c.classic.state == StatePreparing {
		c.tell(now, m)
		return ErrRebalanceInProgress
	}
	return nil
}

// beat notes a sign of life of a member.
func (c *Core) beat(now Time, m *member) {
	if m.join == nil {
		c.heard(now, m)
	}
}

// current finds the member that a request of a generation speaks for.
func (c *Core) current(id, instance string, generation int32) (*member, error) {
	m, err := c.identify(id, instance)
	switch {
	case err != nil:
		return nil, err
	case generation != c.generation():
		return nil, ErrIllegalGeneration
	case c.record == nil || c.record.Member(m.id) == nil:
		return nil, ErrUnknownMember // waits for its first generation, which it was not told
	}
	return m, nil
}

// classicCommit says whether a commit may be proposed (protocol.md 7). While a rebalance is prepared, members still commit
// what they had in the generation that is not over yet (G7).
func (c *Core) classicCommit(now Time, r *CommitRequest) error {
	k := &c.classic
	if r.Generation < 0 && len(k.members) == 0 {
		return nil // by somebody who assigns its partitions itself, or an administrator
	}
	if c.record == nil && len(k.members) == 0 {
		return ErrGroupNotFound
	}
	if r.Generation < 0 {
		return ErrUnknownMember
	}
	m, err := c.current(r.Member, r.Instance, r.Generation)
	if err != nil {
		return err
	}
	c.beat(now, m)
	if k.state == StateCompleting {
		return ErrRebalanceInProgress
	}
	if m.adopted {
		c.hasSynced(m) // or it would have nothing to commit
	}
	return nil
}

func (c *Core) classicLeave(now Time, ev *Leave) {
	k := &c.classic
	errs := make([]error, len(ev.Members))
	left := ""
	for i, l := range ev.Members {
		if at := slices.IndexFunc(k.pending, func(p pendingMember) bool { return p.id == l.Member }); at >= 0 && l.Instance == "" {
			k.pending = slices.Delete(k.pending, at, at+1)
			continue
		}
		var m *member
		if l.Instance != "" && l.Member == "" {
			if m = c.instance(l.Instance); m == nil {
				errs[i] = ErrUnknownMember
				continue
			}
		} else if m, errs[i] = c.identify(l.Member, l.Instance); errs[i] != nil {
			continue
		}
		left = m.id
		c.drop(m, ReasonLeave, ErrUnknownMember)
		c.said(l.Reason, ev.Address)
	}
	// The client closes its connection right after the request, so nothing waits for the others (protocol.md trap 37).
	c.act(Action{Kind: ActionLeave, Waiter: ev.Waiter, Errs: errs})
	c.shrunk(now, left, ReasonLeave)
}

// shrunk goes on after members were dropped; who is one of them, or "" if there were none.
func (c *Core) shrunk(now Time, who string, reason Reason) {
	switch {
	case c.classic.state == StatePreparing:
		c.complete(now)
	case who != "":
		c.prepare(now, reason, who)
	}
}

func (c *Core) classicTick(now Time) {
	k := &c.classic
	if now.At >= k.nextExpiry {
		c.expire(now)
	}
	if c.change == nil && now.At >= k.syncBy {
		who := ""
		for _, m := range slices.Clone(k.members) {
			if m.syncBy != 0 && m.syncBy <= now.At {
				who = m.id
				c.drop(m, ReasonSync, ErrUnknownMember)
			}
		}
		c.nextSync()
		c.shrunk(now, who, ReasonSync)
	}
	if c.change == nil {
		c.complete(now)
	}
}

// expire drops the members that were silent for their sessions, and the ids that nobody used.
func (c *Core) expire(now Time) {
	k := &c.classic
	k.nextExpiry = Never
	k.pending = slices.DeleteFunc(k.pending, func(p pendingMember) bool {
		if p.expires <= now.At {
			return true
		}
		c.expiryAt(p.expires)
		return false
	})
	k.putOut = slices.DeleteFunc(k.putOut, func(p pendingMember) bool {
		if p.expires <= now.At {
			return true
		}
		c.expiryAt(p.expires)
		return false
	})
	who := ""
	for _, m := range slices.Clone(k.members) {
		switch {
		case m.sync != nil:
			c.heard(now, m) // it waits for us, not we for it
		case m.expires <= now.At:
			who = m.id
			c.drop(m, ReasonSession, ErrUnknownMember)
		default:
			c.expiryAt(m.expires)
		}
	}
	c.shrunk(now, who, ReasonSession)
}

func (c *Core) classicDeadline() Instant {
	k := &c.classic
	at := min(k.nextExpiry, k.syncBy)
	if k.state != StatePreparing {
		return at
	}
	p := &k.phase
	at = min(at, max(p.deadline, p.late))
	switch {
	case p.initial:
		at = min(at, p.until)
	case p.complete != Never:
		at = min(at, c.joinableAt())
	}
	return at
}
