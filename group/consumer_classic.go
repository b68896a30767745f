package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// Members of a consumer group that speak the classic protocol, while the consumers of an application are changed over one
// by one. The coordinator assigns; to such a member it looks like a group that another member leads. It is told to join
// again whenever there is a step for it to take, and says in its join what it still has: nothing, or with a cooperative
// assignor its list.

// classical reports whether a member of a consumer group speaks the classic protocol.
func (m *consumerMember) classical() bool { return len(m.record.Protocols) > 0 }

// joinAnswer is a join whose answer waits.
type joinAnswer struct {
	waiter Waiter
	result JoinResult
}

func (c *Core) consumerClassicJoin(now Time, ev *Join) {
	g := c.consumer
	s := ev.Settings
	g.learn(s)
	var said classicSubscription
	if len(ev.Protocols) > 0 {
		var err error
		if said, err = readSubscription(ev.Protocols[0].Metadata); err != nil {
			c.refuse(ev, ErrInconsistentProtocol)
			return
		}
	}
	id, fresh := ev.Member, false
	holder := ""
	if ev.Instance != "" {
		holder = g.instances[ev.Instance]
	}
	switch {
	case ev.SessionTimeout < s.MinSessionTimeout || ev.SessionTimeout > s.MaxSessionTimeout:
		c.refuse(ev, ErrInvalidSession)
		return
	case ev.ProtocolType != consumerProtocolType || !g.speaksWith(ev):
		c.refuse(ev, ErrInconsistentProtocol)
		return
	case id != "" && ev.Instance != "" && holder == "":
		c.refuse(ev, ErrUnknownMember)
		return
	case id != "" && holder != "" && holder != id:
		c.refuse(ev, ErrFencedInstance)
		return
	case id == "" && ev.Instance == "" && ev.RequireKnownMember:
		c.answerJoin(ev.Waiter, JoinResult{Err: ErrMemberIDRequired, Member: ev.NewID})
		return
	case id == "" && holder != "": // a static member that was restarted
		id = ev.NewID
		c.went(g.members[holder].record, ReasonStatic)
		c.came(ev, g.succeed(g.members[holder], id).record)
	case id == "":
		id, fresh = ev.NewID, true
	case g.members[id] == nil && said.owns():
		// It was given up, and others may have by now what it says it has. Told that it is a member, it would work on with
		// that until it is told what it may have, and commit it: it has to drop it first, as in a classic group.
		c.refuse(ev, ErrUnknownMember)
		return
	default:
		fresh = g.members[id] == nil // an id that it was handed, or of a member that was given up
	}
	if fresh {
		if len(g.members) >= s.ConsumerMaxSize {
			c.refuse(ev, ErrGroupFull)
			return
		}
		r := record(ev, id)
		g.add(&consumerMember{record: r, revokeBy: Never})
		c.came(ev, r)
	}
	m := g.members[id]
	subscription := slices.Compact(slices.Sorted(slices.Values(said.topics)))
	changed := !slices.Equal(subscription, m.record.Subscription) || m.record.SubscriptionRegex != ""
	if next := record(ev, id); changed || !sameMember(m.record, next) {
		g.edit(m, func(r *metadata.GroupMember) {
			r.ClientID, r.ClientHost, r.SessionTimeout, r.RebalanceTimeout, r.Protocols = next.ClientID, next.ClientHost, next.SessionTimeout, next.RebalanceTimeout, next.Protocols
			r.Subscription, r.SubscriptionRegex, r.ServerAssignor = subscription, "", ""
		})
		g.resolved = nil
	}
	c.consumerHeard(now, m, Instant(m.record.SessionTimeout))
	switch {
	case fresh:
		c.bump(ReasonJoin, id)
	case changed:
		c.bump(ReasonMetadata, id)
	default:
		c.noticeTopics()
	}
	if g.epoch > g.assignmentEpoch {
		g.retarget(c.topics)
	}
	g.reconcile(m, identified(said.owned, c.topics), true)
	m.revokeBy = Never
	result := JoinResult{Member: id, Generation: m.record.MemberEpoch, ProtocolType: consumerProtocolType, Protocol: ev.Protocols[0].Name}
	if g.touched {
		g.joins = append(g.joins, joinAnswer{ev.Waiter, result})
		return
	}
	c.answerJoin(ev.Waiter, result)
}

// speaksWith reports whether a classic member has a protocol in common with all other classic members: some day they may
// be on their own again.
func (g *consumerGroup) speaksWith(ev *Join) bool {
	if len(ev.Protocols) == 0 {
		return false
	}
	others := slices.DeleteFunc(g.sorted(), func(m *consumerMember) bool { return !m.classical() || m.record.ID == ev.Member })
	return slices.ContainsFunc(ev.Protocols, func(p Protocol) bool {
		return !slices.ContainsFunc(others, func(m *consumerMember) bool { return !offers(m.record, p.Name) })
	})
}

// classicMember finds the classic member that a request speaks for.
func (g *consumerGroup) classicMember(id, instance string, generation int32) (*consumerMember, error) {
	m := g.members[id]
	if instance != "" {
		switch holder := g.instances[instance]; {
		case holder == "":
			return nil, ErrUnknownMember
		case holder != id:
			return nil, ErrFencedInstance
		}
	}
	switch {
	case m == nil || !m.classical():
		return nil, ErrUnknownMember
	case generation != m.record.MemberEpoch:
		return nil, ErrIllegalGeneration
	}
	return m, nil
}

// behind reports whether there is a step for a classic member to take, so that it has to join again.
func (g *consumerGroup) behind(m *consumerMember) bool {
	r := m.record
	switch {
	case g.epoch > r.MemberEpoch, r.State == memberUnrevoked:
		return true
	case r.State == memberUnreleased:
		return len(g.freeFor(r.ID, without(r.Target, r.Assigned))) > 0
	}
	return false
}

func (c *Core) consumerClassicHeartbeat(now Time, r *HeartbeatRequest) error {
	g := c.consumer
	m, err := g.classicMember(r.Member, r.Instance, r.Generation)
	if err != nil {
		return err
	}
	c.consumerHeard(now, m, Instant(m.record.SessionTimeout))
	if !g.behind(m) {
		return nil
	}
	if m.revokeBy == Never { // it has that long to join again
		m.revokeBy = now.At + Instant(m.record.RebalanceTimeout)
		g.nextExpiry = min(g.nextExpiry, m.revokeBy)
	}
	return ErrRebalanceInProgress
}

func (c *Core) consumerClassicSync(now Time, ev *Sync) {
	g := c.consumer
	m, err := g.classicMember(ev.Member, ev.Instance, ev.Generation)
	if err != nil {
		c.refuse(ev, err)
		return
	}
	protocol := m.record.Protocols[0].Name
	if ev.HasProtocolType && ev.ProtocolType != consumerProtocolType || ev.HasProtocol && ev.Protocol != protocol {
		c.refuse(ev, ErrInconsistentProtocol)
		return
	}
	c.consumerHeard(now, m, Instant(m.record.SessionTimeout))
	c.answerSync(ev.Waiter, SyncResult{ProtocolType: consumerProtocolType, Protocol: protocol, Assignment: appendAssignment(nil, named(m.record.Assigned, c.topics))})
}
