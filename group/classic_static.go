package group

import (
	"bytes"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// replace puts a new member id in the place of a static member's old one (KIP-345). What still speaks under the old id is
// fenced from then on (G10).
func (c *Core) replace(now Time, ev *Join, old *member) {
	k := &c.classic
	by := &member{id: ev.NewID, record: record(ev, ev.NewID)}
	if k.state == StateStable && old.committed && c.unchanged(old, by) {
		// Nothing to rebalance: the new member gets the old one's share. The others keep working meanwhile.
		by.record.Assignment = old.record.Assignment
		ch := c.proposal(changeReplace)
		ch.Remove, ch.Upsert = []string{old.id}, []*metadata.GroupMember{by.record}
		if ch.Leader == old.id {
			ch.Leader = by.id
		}
		ch.replaces, ch.by, ch.join = old.id, by, ev
		c.propose(ch)
		return
	}
	c.drop(old, ReasonStatic, ErrFencedInstance)
	c.came(ev, by.record)
	c.insert(by)
	k.protocolType = ev.ProtocolType
	if k.state == StatePreparing {
		c.park(now, ev, by)
		c.complete(now)
		return
	}
	c.prepareWith(now, ReasonStatic, ev, by)
}

// unchanged reports whether a static member that returns needs no rebalance: the protocol selected stays the same, and so
// does what the member subscribes to, as far as that can be told. What else it says of itself may differ: a consumer that
// was restarted says that it owns nothing.
func (c *Core) unchanged(old, by *member) bool {
	protocol := c.record.Protocol
	before, after := metadataUnder(old.record, protocol), metadataUnder(by.record, protocol)
	if c.classic.protocolType == consumerProtocolType && !bytes.Equal(before, after) {
		a, errA := subscribedTopics(before)
		b, errB := subscribedTopics(after)
		if errA != nil || errB != nil || !slices.Equal(a, b) {
			return false
		}
	}
	if !offers(by.record, protocol) {
		return false
	}
	record := old.record
	old.record = by.record
	selected := c.selectProtocol()
	old.record = record
	return selected == protocol
}

// replaced answers the returned member: the generation goes on. A leader has nothing to assign, but only a client of
// version 9 knows that a leader may be spared it (KIP-814); to others its old id is named as the leader.
func (c *Core) replaced(now Time, ch *change) {
	old, m := c.member(ch.replaces), ch.by
	if old != nil {
		c.drop(old, ReasonStatic, ErrFencedInstance)
		c.classic.removed = slices.DeleteFunc(c.classic.removed, func(id string) bool { return id == ch.replaces })
	}
	m.record, m.committed = c.record.Member(m.id), true
	c.came(ch.join, m.record)
	c.insert(m)
	c.classic.protocolType = c.record.ProtocolType
	c.heard(now, m)
	r := c.joined(m)
	if r.Leader == m.id {
		if ch.join.CanSkipAssignment {
			r.SkipAssignment = true
		} else {
			r.Leader, r.Members = ch.replaces, nil
		}
	}
	c.answerJoin(ch.join.Waiter, r)
}
