package group

import (
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

func (c *Core) classicJoin(now Time, ev *Join) {
	k := &c.classic
	s := ev.Settings
	switch {
	case ev.SessionTimeout < s.MinSessionTimeout || ev.SessionTimeout > s.MaxSessionTimeout:
		c.refuse(ev, ErrInvalidSession)
	case !c.admits(ev):
		c.refuse(ev, ErrGroupFull)
	case c.record != nil && c.record.Type != metadata.ClassicGroup && len(c.record.Members) > 0:
		c.refuse(ev, ErrInconsistentProtocol)
	case ev.Member == "" && ev.Instance != "":
		c.joinStatic(now, ev)
	case ev.Member == "":
		c.joinNew(now, ev)
	default:
		if i := slices.IndexFunc(k.pending, func(p pendingMember) bool { return p.id == ev.Member }); i >= 0 && ev.Instance == "" {
			if !c.supports(ev.JoinRequest, nil) {
				c.refuse(ev, ErrInconsistentProtocol)
				return
			}
			k.pending = slices.Delete(k.pending, i, i+1)
			c.add(now, ev, ev.Member)
			return
		}
		c.joinAgain(now, ev)
	}
}

// admits reports whether the group has room. Members that it has may join again also when it is over its size, as long as
// others have not taken their places in this rebalance.
func (c *Core) admits(ev *Join) bool {
	k := &c.classic
	known := c.member(ev.Member)
	if known == nil && ev.Member == "" && ev.Instance != "" {
		known = c.instance(ev.Instance)
	}
	switch k.state {
	case StateEmpty:
		return true
	case StatePreparing:
		return known != nil && known.join != nil || k.joining < ev.Settings.MaxSize
	default:
		return known != nil || len(k.members) < ev.Settings.MaxSize
	}
}

// joinNew is about a dynamic member without an id.
func (c *Core) joinNew(now Time, ev *Join) {
	switch {
	case !c.supports(ev.JoinRequest, nil):
		c.refuse(ev, ErrInconsistentProtocol)
	case ev.RequireKnownMember:
		c.handOut(now, ev.NewID, Instant(ev.SessionTimeout))
		c.answerJoin(ev.Waiter, JoinResult{Err: ErrMemberIDRequired, Member: ev.NewID})
	default:
		c.add(now, ev, ev.NewID)
	}
}

// joinStatic is about a static member without an id: a new one, or one that has been restarted.
func (c *Core) joinStatic(now Time, ev *Join) {
	old := c.instance(ev.Instance)
	switch {
	case !c.supports(ev.JoinRequest, old):
		c.refuse(ev, ErrInconsistentProtocol)
	case old == nil:
		c.add(now, ev, ev.NewID)
	default:
		c.replace(now, ev, old)
	}
}

// joinAgain is about a member that has an id.
func (c *Core) joinAgain(now Time, ev *Join) {
	k := &c.classic
	m, err := c.identify(ev.Member, ev.Instance)
	switch {
	case err != nil && c.knowsNow(ev.Member):
		c.refuse(ev, ErrRebalanceInProgress)
		return
	case err != nil:
		c.refuse(ev, err)
		return
	case !c.supports(ev.JoinRequest, m):
		c.refuse(ev, ErrInconsistentProtocol)
		return
	}
	same := sameProtocols(m.record.Protocols, protocols(ev.Protocols))
	switch {
	case k.state == StatePreparing:
		c.update(ev, m)
		c.park(now, ev, m)
		c.complete(now)
	case k.state == StateCompleting && same:
		// The answer was lost: here it is again.
		c.heard(now, m)
		c.answerJoin(ev.Waiter, c.joined(m))
	case k.state == StateStable && same && m.id != c.leader():
		c.heard(now, m)
		if m.adopted && m.syncBy == 0 {
			c.mustSync(now, m) // one that repeats its join and never syncs would have its share for ever
		}
		c.answerJoin(ev.Waiter, c.joined(m))
	default:
		reason := ReasonMetadata
		if same {
			reason = ReasonLeader // that is how a leader asks for a new assignment
		}
		c.update(ev, m)
		c.prepareWith(now, reason, ev, m)
	}
}

// add makes a new member of a request.
func (c *Core) add(now Time, ev *Join, id string) {
	k := &c.classic
	m := &member{id: id, record: record(ev, id)}
	c.came(ev, m.record)
	c.insert(m)
	k.protocolType = ev.ProtocolType
	if k.state == StatePreparing {
		k.phase.newMembers, k.phase.lastNew = true, now.At
		c.park(now, ev, m)
		c.complete(now)
		return
	}
	c.prepareWith(now, ReasonJoin, ev, m)
}

// came tells that a join has made a member.
func (c *Core) came(ev *Join, m *metadata.GroupMember) {
	c.act(Action{Kind: ActionCame, Who: m, Address: ev.Address})
}

// record is the committed form of a member that joins.
func record(ev *Join, id string) *metadata.GroupMember {
	r := &metadata.GroupMember{
		ID: id, InstanceID: ev.Instance, ClientID: ev.ClientID, ClientHost: ev.ClientHost,
		SessionTimeout: ev.SessionTimeout, RebalanceTimeout: ev.RebalanceTimeout, Protocols: protocols(ev.Protocols),
	}
	if r.RebalanceTimeout <= 0 {
		r.RebalanceTimeout = r.SessionTimeout
	}
	r.SessionTimeout, r.RebalanceTimeout = r.SessionTimeout.Truncate(time.Millisecond), r.RebalanceTimeout.Truncate(time.Millisecond)
	return r
}

func protocols(ps []Protocol) []metadata.GroupProtocol {
	out := make([]metadata.GroupProtocol, len(ps))
	for i, p := range ps {
		out[i] = metadata.GroupProtocol{Name: p.Name, Metadata: p.Metadata}
	}
	return out
}

// update takes over what a member says of itself now. A record that stays the same need not be written again.
func (c *Core) update(ev *Join, m *member) {
	if next := record(ev, m.id); !sameMember(m.record, next) {
		m.record, m.committed = next, false
	}
	if len(c.classic.members) == 1 {
		c.classic.protocolType = ev.ProtocolType
	}
}

// park has a member wait for the generation.
func (c *Core) park(now Time, ev *Join, m *member) {
	k := &c.classic
	if m.join != nil {
		// Its client has asked again, so nobody reads the answer to the first request.
		c.answerJoin(m.join.Waiter, JoinResult{Err: ErrRebalanceInProgress, Member: m.id})
		k.joining--
	}
	k.joins++
	m.join, m.joined = ev, k.joins
	k.joining++
	m.seen = now.At
	m.expires = Never // it waits for us, not we for it
	if c.record == nil || c.record.Member(m.id) == nil {
		m.expires = now.At + newMemberPatience
		c.expiryAt(m.expires)
	}
}

// joined answers a join with the present generation.
func (c *Core) joined(m *member) JoinResult {
	g := c.record
	r := JoinResult{Member: m.id, Generation: g.Generation, ProtocolType: g.ProtocolType, Protocol: g.Protocol, Leader: g.Leader}
	if m.id == g.Leader {
		r.Members = c.roster()
	}
	return r
}

// roster is what the leader is told of the members.
func (c *Core) roster() []JoinedMember {
	g := c.record
	out := make([]JoinedMember, len(g.Members))
	for i, m := range g.Members {
		out[i] = JoinedMember{ID: m.ID, Instance: m.InstanceID, Metadata: metadataUnder(m, g.Protocol)}
	}
	return out
}

// classicDisconnected is about a member that waits in a join whose connection has ended. One that a generation knows has
// its session to come back in. One that is new has nothing to come back for: it holds nobody up any longer, and if it was
// handed its id before (KIP-394), it may join with that again as if it had just got it.
func (c *Core) classicDisconnected(now Time, ev *Disconnected) {
	k := &c.classic
	i := slices.IndexFunc(k.members, func(m *member) bool { return m.join == ev.Join })
	if i < 0 {
		return // answered before, or it has asked again by another connection
	}
	m := k.members[i]
	if c.record != nil && c.record.Member(m.id) != nil {
		c.answerWaiting(m, ErrRebalanceInProgress)
		c.heard(now, m)
		c.tell(now, m)
		return
	}
	c.drop(m, ReasonDisconnected, ErrUnknownMember)
	if ev.Join.RequireKnownMember && !m.static() {
		c.handOut(now, m.id, Instant(m.record.SessionTimeout))
	}
	c.shrunk(now, m.id, ReasonLeave)
}

// handOut notes an id that somebody may join with.
func (c *Core) handOut(now Time, id string, session Instant) {
	k := &c.classic
	if len(k.pending) >= maxPending {
		k.pending = slices.Delete(k.pending, 0, 1)
	}
	p := pendingMember{id: id, expires: now.At + session}
	k.pending = append(k.pending, p)
	c.expiryAt(p.expires)
}
