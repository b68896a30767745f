package group

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// The classic protocol: members join, one of them assigns, all sync, and beat the heart until something changes.
//
//	Empty ──join──▶ PreparingRebalance ──all joined, committed──▶ CompletingRebalance ──leader's sync, committed──▶ Stable
//	                      ▲  │ nobody left: Empty                        │ a member comes, goes or changes            │
//	                      └──┴──────────────────────────────────────────┴────────────────────────────────────────────┘

// classicGroup is what the coordinator of a classic group knows beside its committed record.
//
// Invariants, between two steps, while no change is on its way:
//
//	state is Stable or CompletingRebalance: every member is committed, and so is the generation that the state is about
//	state is Empty: there are no members
//	a member waits in a join only in PreparingRebalance, in a sync only in CompletingRebalance
type classicGroup struct {
	state State
	since Instant // when the group came into state
	// reason of the last rebalance, for people.
	reason Reason
	// protocolType is "" while there are no members.
	protocolType string
	members      []*member // by id
	// joining is how many of them wait in a join.
	joining int
	// removed are the ids of committed members that are gone since the last generation.
	removed []string
	pending []pendingMember // in the order in which they were handed out
	// putOut are ids of members that a seek has put out and that may not know it, see core_seek.go; in that order.
	putOut []pendingMember
	phase  joinPhase
	// generationAt is when the present generation was committed; syncBy is the first of its members' syncBy, Never without any.
	generationAt, syncBy Instant
	joins                uint64 // numbers joins, for the choice of a leader
	// nextExpiry is no later than the first end of a session or of a pending id.
	nextExpiry Instant
}

// member is one member. record is immutable: what is committed of it, or is to be with the next generation.
type member struct {
	id        string
	record    *metadata.GroupMember
	committed bool
	join      *Join  // waits for the generation
	joined    uint64 // number of that join
	sync      *Sync  // waits for the assignment
	// syncBy is when the member is removed unless it has asked for the assignment of this generation, 0 if it has.
	syncBy Instant
	// adopted: the generation goes on under this coordinator, which does not know whether the member has synced.
	adopted bool
	// told is when the member was first answered that a rebalance goes on, 0 if it has not been since that began.
	told    Instant
	expires Instant
	seen    Instant
}

// pendingMember is an id that was handed out with ErrMemberIDRequired and has not joined yet.
type pendingMember struct {
	id      string
	expires Instant
}

// joinPhase is a rebalance that waits for members to join.
type joinPhase struct {
	began    Instant
	deadline Instant // who has not joined by then is removed, but for those that could not know
	// late is until when those are waited for, 0 before the deadline (see givenUpAt).
	late Instant
	// initial: the group was empty. It waits until then, whoever has joined; each member that joins extends that, up to the
	// deadline.
	initial    bool
	until      Instant
	delay      Instant
	newMembers bool // since until was set
	// lastNew is when a member joined that was none before, 0 if none has.
	lastNew Instant
	// complete is when the last known member had joined; Never while one is missing.
	complete Instant
}

const (
	// newMemberPatience is how long a member that waits in its first join may be silent: its client may be gone, and it has
	// no heartbeats yet.
	newMemberPatience = Instant(5 * time.Minute)
	// pendingPatience is how long a rebalance that everybody has joined waits for members that were handed an id: their
	// next join is a round trip away, or never comes (protocol.md trap 24).
	pendingPatience = Instant(time.Second)
	// maxPending bounds the ids of a group that were handed out and not used; the oldest are forgotten first.
	maxPending = 1000
	// A rebalance that begins within stormWindow of the generation before, and that new members have joined, waits until
	// none has for stormQuiet, but no longer than stormMax: members that come one after the other within a second share a
	// generation, or each would have its own and n of them write n²/2 records.
	stormWindow = Instant(time.Second)
	stormQuiet  = Instant(100 * time.Millisecond)
	stormMax    = Instant(time.Second)
	// A member that was told of a rebalance less than tellPatience before its deadline is waited for that long, and one that
	// was not told, because nothing was heard of it, until it is; both no longer than lateMax, for those that have joined
	// wait for their answers: clients give them their rebalance timeout and 5 s.
	tellPatience = Instant(time.Second)
	lateMax      = Instant(3 * time.Second)
	// waitMin is the least time after which a rebalance that nobody has joined looks again.
	waitMin = Instant(time.Second)
)

func (c *Core) classicLoad(now Time, ev *Loaded) {
	k := &c.classic
	*k = classicGroup{state: StateEmpty, since: now.At, syncBy: Never, nextExpiry: Never, generationAt: now.At - stormWindow}
	g := c.record
	if g == nil || g.Type != metadata.ClassicGroup || len(g.Members) == 0 {
		return
	}
	k.protocolType = g.ProtocolType
	for _, m := range g.Members {
		// Each has a full session, whatever it had left at the coordinator before (G6).
		k.members = append(k.members, &member{id: m.ID, record: m, committed: true, adopted: true, seen: now.At})
	}
	c.classicRenew(now)
	k.state = StateStable
	if g.State != metadata.GroupStable {
		k.state = StateCompleting
		for _, m := range k.members {
			c.mustSync(now, m)
		}
	}
	if !g.Interrupted {
		return
	}
	if ev.Resume {
		ch := c.proposal(changeResume)
		ch.Interrupted = false
		c.propose(ch)
		return
	}
	c.prepare(now, ReasonCoordinator, "")
}

// classicRenew gives every member a full session.
func (c *Core) classicRenew(now Time) {
	for _, m := range c.classic.members {
		if m.join == nil {
			m.expires = max(m.expires, now.At+m.session())
			c.expiryAt(m.expires)
		}
	}
}

func (c *Core) classicExtend(by Instant) {
	k := &c.classic
	for _, m := range k.members {
		if m.expires != Never {
			m.expires += by
		}
		if m.told != 0 {
			m.told += by
		}
		if m.syncBy != 0 {
			m.syncBy += by
		}
	}
	for i := range k.pending {
		k.pending[i].expires += by
	}
	for i := range k.putOut {
		k.putOut[i].expires += by
	}
	if k.state == StatePreparing {
		k.phase.deadline += by
		if k.phase.late != 0 {
			k.phase.late += by
		}
		k.phase.until += by
	}
	if k.syncBy != Never {
		k.syncBy += by
	}
}

func (c *Core) classicLetGo(err error) {
	for _, m := range c.classic.members {
		c.answerWaiting(m, err)
	}
}

// answerWaiting answers what a member waits for with an error.
func (c *Core) answerWaiting(m *member, err error) {
	if m.join != nil {
		c.answerJoin(m.join.Waiter, JoinResult{Err: err, Member: m.id})
		m.join = nil
		c.classic.joining--
	}
	if m.sync != nil {
		c.answerSync(m.sync.Waiter, SyncResult{Err: err})
		m.sync = nil
	}
}

func (c *Core) setState(now Time, s State) {
	if c.classic.state != s {
		c.classic.state, c.classic.since = s, now.At
	}
}

func (m *member) session() Instant { return Instant(m.record.SessionTimeout) }

func (m *member) static() bool { return m.record.InstanceID != "" }

// heard begins a member's session anew.
func (c *Core) heard(now Time, m *member) {
	m.seen = now.At
	m.expires = now.At + m.session()
	c.expiryAt(m.expires)
}

func (c *Core) expiryAt(at Instant) { c.classic.nextExpiry = min(c.classic.nextExpiry, at) }

func (c *Core) find(id string) (int, bool) {
	return slices.BinarySearchFunc(c.classic.members, id, func(m *member, id string) int { return cmp.Compare(m.id, id) })
}

func (c *Core) member(id string) *member {
	if i, ok := c.find(id); ok {
		return c.classic.members[i]
	}
	return nil
}

// instance returns the static member of that instance id, or nil.
func (c *Core) instance(id string) *member {
	for _, m := range c.classic.members {
		if m.record.InstanceID == id {
			return m
		}
	}
	return nil
}

// identify finds the member that a request speaks for.
func (c *Core) identify(id, instance string) (*member, error) {
	m := c.member(id)
	if instance == "" {
		if m == nil {
			return nil, ErrUnknownMember
		}
		return m, nil
	}
	switch {
	case m != nil && m.record.InstanceID == instance:
		return m, nil
	case c.instance(instance) != nil:
		return nil, ErrFencedInstance // another member is that instance now (G10)
	default:
		return nil, ErrUnknownMember
	}
}

func (c *Core) insert(m *member) {
	i, _ := c.find(m.id)
	c.classic.members = slices.Insert(c.classic.members, i, m)
}

// went tells that a member is gone.
func (c *Core) went(m *metadata.GroupMember, reason Reason) {
	c.act(Action{Kind: ActionWent, Who: m, Reason: reason})
}

// drop takes a member out for a reason; what it waits for is answered with err.
func (c *Core) drop(m *member, reason Reason, err error) {
	k := &c.classic
	c.answerWaiting(m, err)
	if i, ok := c.find(m.id); ok {
		k.members = slices.Delete(k.members, i, i+1)
	}
	if c.record != nil && c.record.Member(m.id) != nil {
		k.removed = append(k.removed, m.id)
	}
	if len(k.members) == 0 {
		k.protocolType = ""
	}
	c.went(m.record, reason)
}

func (c *Core) rebalanceTimeout() Instant {
	var longest time.Duration
	for _, m := range c.classic.members {
		longest = max(longest, m.record.RebalanceTimeout)
	}
	return Instant(longest)
}

// generation is the present one.
func (c *Core) generation() int32 {
	if c.record != nil {
		return c.record.Generation
	}
	return c.lastGeneration
}

// leader is the id of the member that assigns in the present generation.
func (c *Core) leader() string {
	if c.record != nil {
		return c.record.Leader
	}
	return ""
}

// classicChanged carries out a change that has been committed.
func (c *Core) classicChanged(now Time, ch *change) {
	c.adopt()
	switch ch.kind {
	case changeGeneration:
		c.generationCommitted(now)
	case changeAssign:
		c.assigned(now)
	case changeReplace:
		c.replaced(now, ch)
	case changeSeek:
		c.sought(now, ch)
	case changeDelete:
		c.act(Action{Kind: ActionAnswer, Waiter: ch.waiter})
	}
}

// adopt shares the committed members with the record, which the Image holds anyhow.
func (c *Core) adopt() {
	g := c.record
	if g == nil {
		return
	}
	for _, r := range g.Members {
		if m := c.member(r.ID); m != nil && (m.committed || sameMember(m.record, r)) {
			m.record, m.committed = r, true
		}
	}
}

// sameMember compares what members say of themselves; their assignments do not count.
func sameMember(a, b *metadata.GroupMember) bool {
	return a == b || a.ID == b.ID && a.InstanceID == b.InstanceID && a.ClientID == b.ClientID && a.ClientHost == b.ClientHost &&
		a.SessionTimeout == b.SessionTimeout && a.RebalanceTimeout == b.RebalanceTimeout && sameProtocols(a.Protocols, b.Protocols)
}

func sameProtocols(a, b []metadata.GroupProtocol) bool {
	return slices.EqualFunc(a, b, func(x, y metadata.GroupProtocol) bool {
		return x.Name == y.Name && bytes.Equal(x.Metadata, y.Metadata)
	})
}
