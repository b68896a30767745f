package group

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// consumerHeartbeat is ConsumerGroupHeartbeat: a member says that it is there, what it wants and what it has, and is told
// what it may have.
func (c *Core) consumerHeartbeat(now Time, ev *ConsumerHeartbeat) {
	result := c.consumerBeat(now, ev)
	if result.Err == nil && c.consumer.touched {
		// What the draft holds may be of other heartbeats: an answer that is the same without it could go out now, but it
		// is a matter of milliseconds.
		c.consumer.beats = append(c.consumer.beats, beat{ev.Waiter, result})
		return
	}
	if result.Err != nil && ev.Epoch == 0 {
		c.shutOut(ev.asMember(), result.Err)
	}
	c.act(Action{Kind: ActionConsumer, Waiter: ev.Waiter, Consumer: result})
}

func (c *Core) consumerBeat(now Time, ev *ConsumerHeartbeat) ConsumerHeartbeatResult {
	g, r := c.consumer, ev.ConsumerHeartbeatRequest
	fail := func(err error) ConsumerHeartbeatResult { return ConsumerHeartbeatResult{Err: err, Member: r.Member} }
	if r.Epoch < 0 {
		return c.consumerGoodbye(now, ev)
	}
	g.learn(ev.Settings)
	if err := r.checkWish(ev.Settings); err != nil {
		return fail(err)
	}
	m, joined, err := c.consumerMember(now, ev)
	if err != nil {
		return fail(err)
	}
	session := Instant(ev.Settings.ConsumerSessionTimeout)
	c.consumerHeard(now, m, session)
	before := m.record
	changed := g.update(m, r)
	switch {
	case joined:
		c.act(Action{Kind: ActionCame, Who: m.record, Address: ev.Address})
		c.bump(ReasonJoin, m.record.ID)
	case changed:
		c.bump(ReasonMetadata, m.record.ID)
	default:
		c.noticeTopics()
	}
	if g.epoch > g.assignmentEpoch {
		g.retarget(c.topics)
	}
	g.reconcile(m, r.Owned, r.HasOwned)
	g.revokeWithin(now, m)

	full := r.Epoch == 0 || r.RebalanceTimeout >= 0 && (r.HasTopics || r.HasRegex) && r.HasOwned
	result := ConsumerHeartbeatResult{Member: m.record.ID, Epoch: m.record.MemberEpoch, HeartbeatInterval: ev.Settings.ConsumerHeartbeatInterval}
	if full || !samePartitions(before.Assigned, m.record.Assigned) {
		result.HasAssignment, result.Assignment = true, m.record.Assigned
	}
	return result
}

// pulse answers a heartbeat of a member that has all it should have, in a group in which nothing happens. What it would take to
// say anything else, also to members in one of the other states, is left to [Core.consumerBeat].
func (c *Core) pulse(now Time, ev *ConsumerPulse) {
	g, r := c.consumer, ev.Request
	ev.Answered = false
	if !c.loaded || c.change != nil || g == nil || g.touched || len(g.beats) > 0 || r.says() {
		return
	}
	// The topics must be those that the targets were computed for.
	if g.epoch != g.assignmentEpoch || g.resolved == nil || g.resolved.version != ev.Topics.Version() || g.resolved.hash != g.topicsHash {
		return
	}
	m := g.members[r.Member]
	if m == nil || m.classical() {
		return
	}
	have := m.record
	if have.State != memberStable || have.MemberEpoch != g.assignmentEpoch || have.MemberEpoch != r.Epoch || !samePartitions(have.Assigned, have.Target) ||
		have.InstanceID != r.Instance || have.ClientID != r.ClientID || have.ClientHost != r.ClientHost {
		return
	}
	g.learn(ev.Settings)
	c.consumerHeard(now, m, Instant(ev.Settings.ConsumerSessionTimeout))
	m.revokeBy = Never
	ev.Answered = true
	ev.Result = ConsumerHeartbeatResult{Member: have.ID, Epoch: have.MemberEpoch, HeartbeatInterval: ev.Settings.ConsumerHeartbeatInterval}
}

// checkWish finds an assignor that there is not, and an expression that is none.
func (r *ConsumerHeartbeatRequest) checkWish(s *Settings) error {
	if there := s.assignors(); r.HasAssignor && r.Assignor != "" && !slices.Contains(there, r.Assignor) {
		return fmt.Errorf("%w: %q, there are %v", ErrUnsupportedAssignor, r.Assignor, there)
	}
	if r.HasRegex && r.Regex != "" {
		_, err := compile(r.Regex)
		return err
	}
	return nil
}

// noticeTopics begins a group epoch if the topics are not those that the targets were computed for.
func (c *Core) noticeTopics() {
	if g := c.consumer; g.epoch == g.assignmentEpoch && g.resolve(c.topics).hash != g.topicsHash {
		c.bump(ReasonTopics, "")
	}
}

// consumerMember finds the member that a heartbeat speaks for, or makes it.
func (c *Core) consumerMember(now Time, ev *ConsumerHeartbeat) (m *consumerMember, joined bool, err error) {
	g, r := c.consumer, ev.ConsumerHeartbeatRequest
	id := r.Member
	if r.Instance != "" {
		holder, taken := g.instances[r.Instance]
		switch {
		case r.Epoch > 0 && !taken:
			return nil, false, ErrUnknownMember
		case r.Epoch > 0 && holder != id:
			return nil, false, ErrFencedInstance
		case r.Epoch == 0 && taken && holder != id:
			old := g.members[holder]
			if old.record.MemberEpoch != staticMemberAway && !old.classical() {
				// Its holder is alive, or its session is not over (G10). One that speaks the classic protocol does not say that
				// it goes: it is fenced, as by a member of its own protocol.
				return nil, false, ErrUnreleasedInstance
			}
			return c.comeBack(ev, old), false, nil
		}
	}
	m = g.members[id]
	switch {
	case m == nil && r.Epoch > 0:
		return nil, false, ErrUnknownMember
	case m == nil:
		if len(g.members) >= ev.Settings.ConsumerMaxSize {
			return nil, false, ErrGroupFull
		}
		if id == "" {
			id = ev.NewID
		}
		m = &consumerMember{revokeBy: Never, record: &metadata.GroupMember{
			ID: id, InstanceID: r.Instance, Rack: r.Rack, ClientID: r.ClientID, ClientHost: r.ClientHost, SessionTimeout: ev.Settings.ConsumerSessionTimeout,
		}}
		g.add(m)
		return m, true, nil
	case r.Epoch == 0:
		// It joins again, and has nothing: what it had to give up is given up. A retry of a join that was answered comes
		// here too.
		if m.record.MemberEpoch != 0 || len(m.record.Revoking) > 0 {
			g.edit(m, func(next *metadata.GroupMember) {
				next.State, next.MemberEpoch, next.PreviousMemberEpoch = memberStable, 0, 0
				next.Assigned, next.Revoking = intersect(next.Assigned, next.Target), nil
			})
		}
		return m, false, nil
	case r.Epoch > m.record.MemberEpoch:
		return nil, false, ErrFencedMemberEpoch
	case r.Epoch < m.record.MemberEpoch:
		// Perhaps the answer that carried its epoch was lost. Then it has nothing that it might not have.
		if r.Epoch != m.record.PreviousMemberEpoch || !r.HasOwned || len(without(r.Owned, m.record.Assigned)) > 0 {
			return nil, false, ErrFencedMemberEpoch
		}
	}
	return m, false, nil
}

// comeBack lets a static member that said it would be back have what it had, under its new id.
func (c *Core) comeBack(ev *ConsumerHeartbeat, old *consumerMember) *consumerMember {
	g, r := c.consumer, ev.ConsumerHeartbeatRequest
	id := r.Member
	if id == "" {
		id = ev.NewID
	}
	c.went(old.record, ReasonStatic)
	m := g.succeed(old, id)
	c.act(Action{Kind: ActionCame, Who: m.record, Address: ev.Address})
	return m
}

// succeed puts a new member in the place of a static one, with all that it has, and under another id.
func (g *consumerGroup) succeed(old *consumerMember, id string) *consumerMember {
	next := *old.record
	next.ID, next.MemberEpoch, next.PreviousMemberEpoch, next.State, next.Revoking = id, 0, 0, memberStable, nil
	g.remove(old)
	if other := g.members[id]; other != nil { // a client that takes another's id as well: what that had is nobody's now
		g.remove(other)
	}
	m := &consumerMember{record: &next, revokeBy: Never}
	g.add(m)
	return m
}

// update takes over what a member says of itself, and reports whether its subscription is another one.
func (g *consumerGroup) update(m *consumerMember, r *ConsumerHeartbeatRequest) (subscription bool) {
	next := *m.record
	next.ClientID, next.ClientHost = r.ClientID, r.ClientHost
	if len(next.Protocols) > 0 {
		next.Protocols, next.Assignment, subscription = nil, nil, true // it has been changed over under its old id
	}
	if r.RebalanceTimeout >= 0 {
		next.RebalanceTimeout = r.RebalanceTimeout
	}
	if r.HasTopics {
		topics := slices.Compact(slices.Sorted(slices.Values(r.Topics)))
		if !slices.Equal(topics, next.Subscription) {
			next.Subscription, subscription = topics, true
		}
	}
	if r.HasRegex && r.Regex != next.SubscriptionRegex {
		_ = g.compile(r.Regex) // it was checked
		next.SubscriptionRegex, subscription = r.Regex, true
	}
	if r.HasAssignor && r.Assignor != next.ServerAssignor {
		next.ServerAssignor, subscription = r.Assignor, true
	}
	if r.Rack != "" {
		next.Rack = r.Rack
	}
	old := m.record
	if !subscription && next.ClientID == old.ClientID && next.ClientHost == old.ClientHost && next.RebalanceTimeout == old.RebalanceTimeout && next.Rack == old.Rack {
		return false
	}
	g.edit(m, func(record *metadata.GroupMember) { *record = next })
	if subscription {
		g.resolved = nil
	}
	return subscription
}

// consumerGoodbye is a heartbeat of a member that leaves: for good, or as a static member that will be back.
func (c *Core) consumerGoodbye(now Time, ev *ConsumerHeartbeat) ConsumerHeartbeatResult {
	g, r := c.consumer, ev.ConsumerHeartbeatRequest
	id := r.Member
	if r.Instance != "" {
		switch holder, taken := g.instances[r.Instance]; {
		case !taken:
			return ConsumerHeartbeatResult{Err: ErrUnknownMember, Member: id}
		case holder != id:
			return ConsumerHeartbeatResult{Err: ErrFencedInstance, Member: id}
		}
	}
	m := g.members[id]
	if m == nil {
		return ConsumerHeartbeatResult{Err: ErrUnknownMember, Member: id}
	}
	if r.Epoch == staticMemberAway && m.record.InstanceID != "" {
		g.edit(m, func(next *metadata.GroupMember) {
			next.MemberEpoch, next.Revoking, next.State = staticMemberAway, nil, memberStable
		})
		c.consumerHeard(now, m, Instant(ev.Settings.ConsumerSessionTimeout))
		m.revokeBy = Never
	} else {
		g.remove(m)
		c.went(m.record, ReasonLeave)
		c.said("", ev.Address)
		c.bump(ReasonLeave, id)
	}
	return ConsumerHeartbeatResult{Member: id, Epoch: r.Epoch}
}
