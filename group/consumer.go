package group

import (
	"maps"
	"regexp"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// The protocol of consumer groups (KIP-848): there is no leader and no barrier. The coordinator computes a target for each
// member, and every member goes from what it has to its target on its own, one heartbeat after the other: first it gives
// up what it must, then it gets what the others have given up.
//
//	group epoch       grows when a member comes, goes or changes its subscription, or the topics change
//	assignment epoch  the group epoch for which the targets were computed
//	member epoch      the assignment epoch that a member has arrived at
//
// All of it is in the committed record. A heartbeat is judged on a draft, which the heartbeats that come while a proposal
// is on its way share: one proposal carries them all, and their answers wait for it (G5).

// States of members, as GroupMember.State has them.
const (
	memberStable     uint8 = iota // has what it may have now
	memberUnrevoked               // has yet to give up the partitions in Revoking
	memberUnreleased              // waits for partitions that others have yet to give up
)

// staticMemberAway is the member epoch of a static member that said it will come back.
const staticMemberAway int32 = -2

// Topics are the topics that exist, at one moment.
type Topics interface {
	// Version is another one whenever any answer of the other methods would be.
	Version() uint64
	// Topic returns the id and the number of partitions of a topic.
	Topic(name string) (id metadata.TopicID, partitions int32, ok bool)
	// Names calls yield with the name of every topic, for subscriptions by regular expression.
	Names(yield func(name string) bool)
	// Name returns the name of a topic.
	Name(id metadata.TopicID) (string, bool)
}

// consumerGroup is what the coordinator of a consumer group knows beside its committed record.
//
// Invariants, between two steps: every partition that is in Assigned or Revoking of a member has that member in owners, and
// is in one of these lists of one member at most (I18). With no draft and no change on its way the members are those of
// the record.
type consumerGroup struct {
	members   map[string]*consumerMember
	instances map[string]string // instance id: member id
	owners    map[TopicIDPartition]string

	epoch, assignmentEpoch int32
	told                   int32 // the epoch that was logged last
	assignor               string
	topicsHash             uint64
	interrupted            bool

	// The draft: members that differ from the record, those that are gone, and the answers that wait for its commit.
	dirty   map[string]struct{}
	removed map[string]struct{}
	touched bool // the draft is not empty
	beats   []beat
	leaves  []leaveAnswer
	joins   []joinAnswer
	seek    *Seek // offsets that are set with it

	// What the topics' names stand for, under one version of the topics and the present subscriptions.
	resolved   *resolved
	regexps    map[string]*regexp.Regexp
	nextExpiry Instant
	since      Instant
	state      State
	reason     Reason
	// Of the settings that the last event brought.
	assignors []string
	downgrade bool
}

// consumerMember is one member. record is that of the draft.
type consumerMember struct {
	record  *metadata.GroupMember
	seen    Instant
	expires Instant
	// revokeBy is when a member is removed that has not given up what it must; Never while it has nothing to give up.
	revokeBy Instant
}

// beat is a heartbeat whose answer waits.
type beat struct {
	waiter Waiter
	result ConsumerHeartbeatResult
}

// leaveAnswer is a LeaveGroup whose answer waits.
type leaveAnswer struct {
	waiter Waiter
	errs   []error
}

// consumerLoad takes over the committed record: each member has a full session (G6).
func (c *Core) consumerLoad(now Time, ev *Loaded) {
	g := &consumerGroup{
		members: map[string]*consumerMember{}, instances: map[string]string{}, owners: map[TopicIDPartition]string{},
		dirty: map[string]struct{}{}, removed: map[string]struct{}{}, nextExpiry: Never, since: now.At,
		epoch: c.lastGeneration, assignmentEpoch: c.lastGeneration, assignors: Assignors, downgrade: true,
	}
	c.consumer = g
	if r := c.record; r != nil {
		g.epoch, g.assignmentEpoch, g.assignor, g.topicsHash, g.interrupted = r.Generation, r.AssignmentEpoch, r.Assignor, r.TopicsHash, r.Interrupted
		for _, m := range r.Members {
			cm := &consumerMember{record: m, seen: now.At, revokeBy: Never}
			g.members[m.ID] = cm
			if m.InstanceID != "" {
				g.instances[m.InstanceID] = m.ID
			}
			g.own(m, m.ID)
			c.consumerHeard(now, cm, Instant(m.SessionTimeout))
			g.revokeWithin(now, cm)
		}
	}
	g.state = g.stateNow()
	g.compileAll()
	if g.interrupted {
		g.interrupted, g.touched = false, true
		if !ev.Resume {
			c.bump(ReasonCoordinator, "")
		}
	}
}

// consumerRenew gives every member a full session.
func (c *Core) consumerRenew(now Time) {
	if c.consumer == nil {
		return
	}
	for _, m := range c.consumer.sorted() {
		m.expires = max(m.expires, now.At+Instant(m.record.SessionTimeout))
	}
}

func (g *consumerGroup) deadline() Instant {
	return g.nextExpiry
}

// consumerLetGo answers everything that waits with an error.
func (c *Core) consumerLetGo(err error) {
	if c.consumer == nil {
		return
	}
	for _, b := range c.consumer.beats {
		c.act(Action{Kind: ActionConsumer, Waiter: b.waiter, Consumer: ConsumerHeartbeatResult{Err: err}})
	}
	for _, l := range c.consumer.leaves {
		c.act(Action{Kind: ActionLeave, Waiter: l.waiter, Err: err})
	}
	for _, j := range c.consumer.joins {
		c.answerJoin(j.waiter, JoinResult{Err: err, Member: j.result.Member})
	}
	c.consumer.refuseSeek(c, err)
	c.consumer = nil
}

// learn takes over settings.
func (g *consumerGroup) learn(s *Settings) { g.assignors, g.downgrade = s.assignors(), s.Downgrade }

// sorted returns the members by id.
func (g *consumerGroup) sorted() []*consumerMember {
	out := make([]*consumerMember, 0, len(g.members))
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		out = append(out, g.members[id])
	}
	return out
}

// own notes who has the partitions of a member's record; "" for nobody.
func (g *consumerGroup) own(m *metadata.GroupMember, id string) {
	for _, set := range [][]metadata.TopicPartitions{m.Assigned, m.Revoking} {
		for _, tp := range set {
			for _, p := range tp.Partitions {
				if key := (TopicIDPartition{TopicID: tp.TopicID, Partition: p}); id == "" {
					delete(g.owners, key)
				} else {
					g.owners[key] = id
				}
			}
		}
	}
}

// edit replaces a member's record in the draft by what change makes of a copy.
func (g *consumerGroup) edit(m *consumerMember, change func(*metadata.GroupMember)) {
	next := *m.record
	g.own(m.record, "")
	change(&next)
	m.record = &next
	g.own(m.record, next.ID)
	g.dirty[next.ID] = struct{}{}
	g.touched = true
}

// add puts a member into the draft.
func (g *consumerGroup) add(m *consumerMember) {
	id := m.record.ID
	g.members[id] = m
	if m.record.InstanceID != "" {
		g.instances[m.record.InstanceID] = id
	}
	g.own(m.record, id)
	g.dirty[id] = struct{}{}
	g.touched, g.resolved = true, nil
}

// remove takes a member out of the draft. What it had is free from then on.
func (g *consumerGroup) remove(m *consumerMember) {
	id := m.record.ID
	delete(g.members, id)
	if g.instances[m.record.InstanceID] == id {
		delete(g.instances, m.record.InstanceID)
	}
	g.own(m.record, "")
	delete(g.dirty, id)
	g.removed[id] = struct{}{}
	g.touched, g.resolved = true, nil
}

// bump begins a group epoch, for which there will be new targets.
func (c *Core) bump(reason Reason, member string) {
	g := c.consumer
	if g.epoch == g.assignmentEpoch {
		g.epoch++ // else the epoch that has no targets yet will do
	}
	g.touched, g.reason = true, reason
	c.act(Action{Kind: ActionRebalance, Reason: reason, Member: member})
}

// consumerPropose proposes the draft.
func (c *Core) consumerPropose(now Time) {
	g := c.consumer
	if g == nil || !g.touched || c.change != nil {
		return
	}
	if g.downgrade && g.alone() && g.seek == nil { // else with the next draft
		c.downgrade()
		return
	}
	ch := c.proposal(changeConsumer)
	ch.Type, ch.ProtocolType, ch.State, ch.Interrupted = metadata.ConsumerGroup, consumerProtocolType, metadata.GroupStable, g.interrupted
	ch.Generation, ch.AssignmentEpoch, ch.Assignor, ch.TopicsHash = g.epoch, g.assignmentEpoch, g.assignor, g.topicsHash
	ch.Protocol, ch.Leader = "", ""
	if len(g.members) == 0 {
		ch.State = metadata.GroupEmpty
		if c.record == nil || len(c.record.Members) > 0 {
			ch.EmptySince = now.Wall
		}
	} else {
		ch.EmptySince = 0
	}
	for _, id := range slices.Sorted(maps.Keys(g.dirty)) {
		ch.Upsert = append(ch.Upsert, g.members[id].record)
	}
	ch.Remove = g.gone(c.record)
	if g.seek != nil {
		ch.Seek, ch.Time = g.seek.GroupSeek, now.Wall
	}
	clear(g.dirty)
	clear(g.removed)
	g.touched = false
	c.propose(ch)
}

// gone are the committed members that the draft has no more.
func (g *consumerGroup) gone(record *metadata.Group) (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(g.removed)) {
		if record != nil && record.Member(id) != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// consumerChanged goes on with the draft that is committed now.
func (c *Core) consumerChanged(now Time, ch *change) {
	g := c.consumer
	c.consumerAnswer()
	if ch.Generation != g.told {
		g.told = ch.Generation
		c.act(Action{Kind: ActionGeneration, Generation: ch.Generation, Members: len(g.members)})
	}
	if s := g.stateNow(); s != g.state {
		g.state, g.since = s, now.At
	}
	for _, r := range c.record.Members { // shared with the Image, which holds them anyhow
		if m := g.members[r.ID]; m != nil {
			m.record = r
		}
	}
}

// consumerAnswer answers what waited for the draft.
func (c *Core) consumerAnswer() {
	g := c.consumer
	for _, b := range g.beats {
		c.act(Action{Kind: ActionConsumer, Waiter: b.waiter, Consumer: b.result})
	}
	for _, j := range g.joins {
		c.answerJoin(j.waiter, j.result)
	}
	for _, l := range g.leaves {
		c.act(Action{Kind: ActionLeave, Waiter: l.waiter, Errs: l.errs})
	}
	if g.seek != nil {
		c.act(Action{Kind: ActionAnswer, Waiter: g.seek.Waiter})
	}
	g.beats, g.joins, g.leaves, g.seek = nil, nil, nil, nil
}

// stateNow is the group's state for people and tools.
func (g *consumerGroup) stateNow() State {
	switch {
	case len(g.members) == 0:
		return StateEmpty
	case g.epoch > g.assignmentEpoch:
		return StateAssigning
	}
	for _, m := range g.sorted() {
		if m.record.State != memberStable || m.record.MemberEpoch != g.assignmentEpoch {
			return StateReconciling
		}
	}
	return StateStable
}

// consumerHeard begins a member's session anew.
func (c *Core) consumerHeard(now Time, m *consumerMember, session Instant) {
	m.seen, m.expires = now.At, now.At+session
	c.consumer.nextExpiry = min(c.consumer.nextExpiry, m.expires)
}

// revokeWithin begins or ends the time that a member has for giving up partitions.
func (g *consumerGroup) revokeWithin(now Time, m *consumerMember) {
	switch {
	case m.record.State != memberUnrevoked:
		m.revokeBy = Never
	case m.revokeBy == Never:
		m.revokeBy = now.At + Instant(m.record.RebalanceTimeout)
		g.nextExpiry = min(g.nextExpiry, m.revokeBy)
	}
}

// consumerTick removes members that were silent for their session, or have not given up in time what they must.
func (c *Core) consumerTick(now Time) {
	g := c.consumer
	if now.At < g.nextExpiry {
		return
	}
	g.nextExpiry = Never
	for _, m := range g.sorted() {
		switch {
		case m.expires <= now.At:
			g.remove(m)
			c.unaware(now, m.record)
			c.went(m.record, ReasonSession)
			c.bump(ReasonSession, m.record.ID)
		case m.revokeBy <= now.At:
			g.remove(m)
			c.unaware(now, m.record)
			c.went(m.record, ReasonRevoke)
			c.bump(ReasonRevoke, m.record.ID)
		default:
			g.nextExpiry = min(g.nextExpiry, m.expires, m.revokeBy)
		}
	}
}

// consumerExtend gives all members as much more time.
func (c *Core) consumerExtend(by Instant) {
	if c.consumer == nil {
		return
	}
	for _, m := range c.consumer.sorted() {
		m.expires += by
		if m.revokeBy != Never {
			m.revokeBy += by
		}
	}
}

// consumerLeave takes members out by order: LeaveGroup from an administrator's tool.
func (c *Core) consumerLeave(now Time, ev *Leave) {
	g := c.consumer
	errs := make([]error, len(ev.Members))
	for i, l := range ev.Members {
		id := l.Member
		if l.Instance != "" {
			switch holder := g.instances[l.Instance]; {
			case holder == "":
				id = ""
			case id != "" && id != holder:
				errs[i] = ErrFencedInstance
				continue
			default:
				id = holder
			}
		}
		m := g.members[id]
		if m == nil {
			errs[i] = ErrUnknownMember
			continue
		}
		g.remove(m)
		if !m.classical() { // which leaves so by itself
			c.unaware(now, m.record)
		}
		c.went(m.record, ReasonLeave)
		c.said(l.Reason, ev.Address)
		c.bump(ReasonLeave, id)
	}
	if !g.touched {
		c.act(Action{Kind: ActionLeave, Waiter: ev.Waiter, Errs: errs})
		return
	}
	g.leaves = append(g.leaves, leaveAnswer{ev.Waiter, errs})
}

// consumerCommit says whether a commit may be proposed; which partitions are the member's own, and since when, is for Apply to say.
func (c *Core) consumerCommit(now Time, r *CommitRequest) error {
	g := c.consumer
	m := g.members[r.Member]
	switch {
	case r.Generation < 0 && len(g.members) == 0:
		return nil
	case m == nil:
		return ErrUnknownMember
	case m.classical():
		// In an older generation, too: it may not have heard yet that its join was answered.
		_, err := g.classicMember(r.Member, r.Instance, m.record.MemberEpoch)
		switch {
		case err != nil:
			return err
		case r.Generation < 0 || r.Generation > m.record.MemberEpoch:
			return ErrIllegalGeneration
		}
		c.consumerHeard(now, m, Instant(m.record.SessionTimeout))
	case r.Generation < 0:
		// One that was put out and has joined again since says so, of what it had before. Java's consumer would commit that in its new epoch
		// if it were told that this one is stale.
		return ErrUnknownMember
	case r.Generation > m.record.MemberEpoch:
		return ErrStaleMemberEpoch
	}
	return nil
}
