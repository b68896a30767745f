package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// oracle knows what was promised.
type oracle struct {
	// generations are the committed ones.
	generations map[int32]*simGeneration
	acked       [simPartitions]simAck // last acknowledged commit
	// sought are the last seeks, with the generation that they ended, -1 if none.
	sought [simPartitions]simAck
	// reset are the Images from which on earlier commits do not count: of a seek or an expiry.
	reset     [simPartitions]int
	left      map[string]bool
	putOut    map[string]Instant // when a seek put that member out
	lastHeard map[string]Instant // when a coordinator last had a request of that member
}

// simGeneration is what a generation was.
type simGeneration struct {
	identities []string // sorted
	leaders    []string // member ids that led it: a static leader that returns has a new one
	members    map[string]bool
	shares     map[string]string // of members, as told
	owners     [simPartitions]string
}

type simAck struct {
	offset     int64
	generation int32
}

func (o *oracle) init() {
	o.generations, o.left, o.putOut, o.lastHeard = map[int32]*simGeneration{}, map[string]bool{}, map[string]Instant{}, map[string]Instant{}
}

// heard notes a request that reaches a coordinator which has the member. One that does not know yet that it is none any more
// hears for nobody, and what comes late may be of a generation that is over.
func (s *sim) heard(n *simNode, member string) {
	s.step(n, nil)
	if id, _ := s.fsm.Image().Coordinator(metadata.GroupCoordinator, simGroup); id != n.id || s.deaf {
		return
	}
	if n.up && n.core.member(member) != nil {
		s.oracle.lastHeard[member] = s.now
	}
}

func identityOf(m *metadata.GroupMember) string {
	if m.InstanceID != "" {
		return m.InstanceID
	}
	return m.ID
}

// checkRecord looks at each committed change of the group.
func (s *sim) checkRecord(old, g *metadata.Group, by *simNode) {
	if g == nil {
		if old != nil && len(old.Members) > 0 {
			s.failf("a group with members was deleted")
		}
		return
	}
	if old != nil && g.Revision == old.Revision {
		return
	}
	if old != nil && g.Generation < old.Generation {
		s.failf("I15: generation %d after %d", g.Generation, old.Generation)
	}
	if len(g.Members) == 0 && (old == nil || len(old.Members) == 0) {
		return
	}
	gen := s.oracle.generations[g.Generation]
	if gen == nil {
		s.generations++
		gen = &simGeneration{members: map[string]bool{}, shares: map[string]string{}}
		for _, m := range g.Members {
			gen.identities = append(gen.identities, identityOf(m))
		}
		slices.Sort(gen.identities)
		s.oracle.generations[g.Generation] = gen
		s.checkEvicted(old, g, by)
	}
	var identities []string
	for _, m := range g.Members {
		identities = append(identities, identityOf(m))
		gen.members[m.ID] = true
	}
	slices.Sort(identities)
	if !slices.Equal(identities, gen.identities) {
		s.failf("I15: generation %d is of %v, and of %v", g.Generation, gen.identities, identities)
	}
	gen.leaders = append(gen.leaders, g.Leader)
	if old != nil && old.Interrupted && !g.Interrupted && g.Generation == old.Generation && !s.settings.ResumeAfterFailure {
		s.failf("D6: the coordinator died and generation %d goes on", g.Generation)
	}
}

// checkEvicted asserts that a member which a new generation lacks went, was silent for its session, or did not join in time
// (G6, G8).
func (s *sim) checkEvicted(old, g *metadata.Group, by *simNode) {
	if old == nil || by == nil || !by.up {
		return
	}
	for _, m := range old.Members {
		if g.Member(m.ID) != nil || s.oracle.left[m.ID] {
			continue
		}
		k := &by.core.classic
		silent := s.now - s.oracle.lastHeard[m.ID]
		if silent >= simSession || k.phase.deadline <= s.now || k.reason == ReasonSync || m.InstanceID != "" && slices.ContainsFunc(g.Members, func(o *metadata.GroupMember) bool { return o.InstanceID == m.InstanceID }) {
			continue
		}
		s.failf("G6: member %s was heard %.1f s ago and is not in generation %d, reason %s", m.ID, float64(silent)/1e9, g.Generation, k.reason)
	}
}

// checkCore asserts the invariants of a core.
func (s *sim) checkCore(n *simNode) {
	c := n.core
	k := &c.classic
	joining := 0
	for i, m := range k.members {
		if m.join != nil {
			joining++
		}
		if i > 0 && k.members[i-1].id >= m.id {
			s.failf("members out of order")
		}
		if c.change == nil && m.join != nil && k.state != StatePreparing {
			s.failf("%s waits in a join in state %s", m.id, k.state)
		}
		if c.change == nil && m.sync != nil && k.state != StateCompleting {
			s.failf("%s waits in a sync in state %s", m.id, k.state)
		}
		if c.change == nil && (k.state == StateStable || k.state == StateCompleting) && (!m.committed || c.record.Member(m.id) != m.record) {
			s.failf("%s is not committed in state %s", m.id, k.state)
		}
	}
	if joining != k.joining {
		s.failf("%d members join, counted %d", joining, k.joining)
	}
	if c.loaded && k.state == StateEmpty && len(k.members) > 0 {
		s.failf("an empty group with members")
	}
	if c.loaded && c.change == nil && k.state == StatePreparing && c.Deadline() == Never {
		s.failf("nothing ends the rebalance")
	}
}

// checkJoin asserts that what a member is told of a generation is committed (G5).
func (s *sim) checkJoin(n *simNode, call *simCall, r JoinResult) {
	if r.Err != nil {
		return
	}
	gen := s.oracle.generations[r.Generation]
	switch {
	case gen == nil || !gen.members[r.Member]:
		s.failf("G5: %s is told generation %d, which is not committed", r.Member, r.Generation)
	case !slices.Contains(gen.leaders, r.Leader):
		s.failf("G5: %s is told leader %s, committed %v", r.Member, r.Leader, gen.leaders)
	case r.Leader != r.Member && len(r.Members) > 0:
		s.failf("%s does not lead but is told the members", r.Member)
	}
}

// checkSync asserts that a member is told one assignment in one generation, and that it is committed (G5).
func (s *sim) checkSync(n *simNode, call *simCall, r SyncResult) {
	if r.Err != nil {
		return
	}
	gen := s.oracle.generations[call.sync.Generation]
	member := call.sync.Member
	if gen == nil || !gen.members[member] {
		s.failf("G5: %s syncs generation %d, which is not committed", member, call.sync.Generation)
		return
	}
	if share, told := gen.shares[member]; told && share != string(r.Assignment) {
		s.failf("I18: %s is told two assignments in generation %d: %v and %v", member, call.sync.Generation, []byte(share), r.Assignment)
	}
	gen.shares[member] = string(r.Assignment)
	for i := n.applied; i >= 0; i-- {
		if g := s.images[i].Group(simGroup); g != nil && g.Generation == call.sync.Generation && g.State == metadata.GroupStable {
			if m := g.Member(member); m != nil && string(m.Assignment) == string(r.Assignment) {
				return
			}
		}
	}
	s.failf("G5: %s is told an assignment of generation %d that is not committed", member, call.sync.Generation)
}

// checkOwned asserts that a partition has one owner in a generation (I18).
func (s *sim) checkOwned(c *simClient) {
	gen := s.oracle.generations[c.generation]
	for _, p := range c.owned {
		if gen == nil {
			return
		}
		if owner := gen.owners[p]; owner != "" && owner != c.identity() {
			s.failf("I18: partition %d is owned by %s and %s in generation %d", p, owner, c.identity(), c.generation)
		}
		gen.owners[p] = c.identity()
	}
}

// checkCommit asserts that a commit that was applied is that of the partition's owner in the present generation (I18, G1).
func (s *sim) checkCommit(commit metadata.OffsetCommit, identity string) {
	g := s.fsm.Image().Group(simGroup)
	p := commit.Offsets[0].Partition
	switch {
	case s.oracle.sought[p].offset > 0 && commit.Generation <= s.oracle.sought[p].generation:
		s.failf("G1: a commit of generation %d was taken, which a seek has ended", commit.Generation)
	case g == nil || g.Generation != commit.Generation || g.Member(commit.Member) == nil:
		s.failf("G1: a commit of %s in generation %d was taken", commit.Member, commit.Generation)
	case s.oracle.generations[commit.Generation] == nil:
	case s.oracle.generations[commit.Generation].owners[p] != identity:
		s.failf("I18: %s commits partition %d of %s", identity, p, s.oracle.generations[commit.Generation].owners[p])
	}
}

// checkFetch asserts that whoever has been given a partition finds what was acknowledged in generations before (G4, I18).
func (s *sim) checkFetch(c *simClient, n *simNode) {
	if !n.up {
		return
	}
	for _, p := range c.owned {
		acked := s.oracle.acked[p]
		if acked.offset == 0 || acked.generation >= c.generation {
			continue
		}
		if o, ok := s.images[n.applied].Offset(simGroup, simTopicID, p); !ok || o.Offset < acked.offset {
			s.failf("G4: partition %d was committed at %d, %s finds %d", p, acked.offset, c.id, o.Offset)
		}
	}
}
