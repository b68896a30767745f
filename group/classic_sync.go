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
		m.synced = true
		c.heard(now, m)
		c.synced()
		c.answerSync(ev.Waiter, c.assignment(m))
	case StateCompleting:
		if m.sync != nil {
			// Its client has asked again, so nobody reads the answer to the first request.
			c.answerSync(m.sync.Waiter, SyncResult{Err: ErrRebalanceInProgress})
		}
		m.sync, m.synced = ev, true
		c.heard(now, m)
		c.synced()
		if m.id == c.record.Leader {
			c.assign(ev)
		}
	default:
		c.refuse(ev, ErrUnknownMember)
	}
}

// synced notes whether everybody has asked for its assignment.
func (c *Core) synced() {
	if !slices.ContainsFunc(c.classic.members, func(m *member) bool { return !m.synced }) {
		c.classic.syncBy = Never
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
