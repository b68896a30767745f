package group

import (
	"bytes"
	"slices"

	"github.com/millrace/millrace/metadata"
)

func (c *Core) classicSync(now Time, ev *Sync) {
	k := &c.classic
	m, err := c.identify(ev.Member, ev.Instance)
	switch {
	case err != nil:
		c.refuse(ev, err)
		return
	case c.record == nil || !m.committed && c.record.Member(m.id) == nil:
		c.refuse(ev, ErrUnknownMember) // waits for its first generation, which it was not told
		return
	case ev.Generation != c.record.Generation:
		c.refuse(ev, ErrIllegalGeneration)
		return
	case ev.HasProtocolType && ev.ProtocolType != c.record.ProtocolType || ev.HasProtocol && ev.Protocol != c.record.Protocol:
		c.refuse(ev, ErrInconsistentProtocol)
		return
	}
	switch k.state {
	case StatePreparing:
		c.beat(now, m)
		c.tell(now, m)
		c.refuse(ev, ErrRebalanceInProgress)
	case StateStable:
		c.hasSynced(m)
		c.heard(now, m)
		c.answerSync(ev.Waiter, c.assignment(m))
	case StateCompleting:
		if m.sync != nil {
			// Its client has asked again, so nobody reads the answer to the first request.
			c.answerSync(m.sync.Waiter, SyncResult{Err: ErrRebalanceInProgress})
		}
		m.sync = ev
		c.hasSynced(m)
		c.heard(now, m)
		if m.id == c.record.Leader {
			c.assign(ev)
		}
	default:
		c.refuse(ev, ErrUnknownMember)
	}
}

// mustSync gives a member the time of a rebalance to ask for its assignment.
func (c *Core) mustSync(now Time, m *member) {
	m.syncBy = now.At + c.rebalanceTimeout()
	c.classic.syncBy = min(c.classic.syncBy, m.syncBy)
}

// hasSynced notes that a member has asked for its assignment.
func (c *Core) hasSynced(m *member) {
	m.adopted, m.syncBy = false, 0
	c.nextSync()
}

// nextSync finds the first end of a member's time to sync.
func (c *Core) nextSync() {
	k := &c.classic
	k.syncBy = Never
	for _, m := range k.members {
		if m.syncBy != 0 {
			k.syncBy = min(k.syncBy, m.syncBy)
		}
	}
}

// assign proposes the leader's assignments. Members whose share is what the record says already are not named.
func (c *Core) assign(ev *Sync) {
	ch := c.proposal(changeAssign)
	ch.State = metadata.GroupStable
	ch.AssignmentEpoch = ch.Generation
	given := slices.Clone(ev.Assignments)
	slices.SortStableFunc(given, func(a, b Assignment) int { return compareIDs(a.Member, b.Member) })
	for _, m := range c.record.Members {
		var share []byte
		if i, ok := slices.BinarySearchFunc(given, m.ID, func(a Assignment, id string) int { return compareIDs(a.Member, id) }); ok {
			share = given[i].Bytes
		}
		if !bytes.Equal(share, m.Assignment) {
			ch.Assign = append(ch.Assign, metadata.MemberAssignment{Member: m.ID, Assignment: share})
		}
	}
	c.propose(ch)
}

func compareIDs(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (c *Core) assigned(now Time) {
	c.setState(now, StateStable)
	for _, m := range c.classic.members {
		if m.sync == nil {
			continue
		}
		w := m.sync.Waiter
		m.sync = nil
		c.heard(now, m)
		c.answerSync(w, c.assignment(m))
	}
}

func (c *Core) assignment(m *member) SyncResult {
	share := m.record.Assignment
	if share == nil {
		share = []byte{}
	}
	return SyncResult{ProtocolType: c.record.ProtocolType, Protocol: c.record.Protocol, Assignment: share}
}
