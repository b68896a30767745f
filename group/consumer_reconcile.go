package group

import "github.com/millrace/millrace/metadata"

// reconcile takes a member one step towards its target. owned is what the member says it has, nil if it does not say.
func (g *consumerGroup) reconcile(m *consumerMember, owned []metadata.TopicPartitions, says bool) {
	r := m.record
	switch {
	case r.State == memberUnrevoked && (!says || len(intersect(r.Revoking, owned)) > 0):
		return // it has not given up yet what it must
	case r.State == memberStable && r.MemberEpoch == g.assignmentEpoch && samePartitions(r.Assigned, r.Target):
		return
	}
	if len(r.Revoking) > 0 {
		g.edit(m, func(next *metadata.GroupMember) { next.Revoking = nil }) // given up: anybody may have them now
		r = m.record
	}
	keeps := intersect(r.Assigned, r.Target)
	revoke := without(r.Assigned, keeps)
	if says && len(intersect(revoke, owned)) == 0 {
		// It never took any of it up: that is free at once, because many clients only say what they own when that has changed,
		// and would never say that they have given it up. One that takes it up afterwards all the same can't commit it: it has
		// another epoch by then (KIP-1251). Who has a part of it stays in its epoch, in which it may commit the rest as well,
		// if that was on its way to it: so none of it is free before it says so.
		revoke = nil
	}
	if len(revoke) > 0 {
		// It stays in its epoch until it has given them up, so that its commits of them are still its own (G7).
		g.step(m, memberUnrevoked, r.MemberEpoch, r.PreviousMemberEpoch, keeps, revoke)
		return
	}
	gets := without(r.Target, keeps)
	free := g.freeFor(r.ID, gets)
	state := memberStable
	if len(without(gets, free)) > 0 {
		state = memberUnreleased
	}
	epoch, previous := g.assignmentEpoch, r.PreviousMemberEpoch
	if epoch != r.MemberEpoch {
		previous = r.MemberEpoch
	}
	g.step(m, state, epoch, previous, union(keeps, givenIn(epoch, free)), nil)
}

// step writes a member's new place into the draft, if it is another one.
func (g *consumerGroup) step(m *consumerMember, state uint8, epoch, previous int32, assigned, revoking []metadata.TopicPartitions) {
	r := m.record
	if r.State == state && r.MemberEpoch == epoch && r.PreviousMemberEpoch == previous && sameWithEpochs(r.Assigned, assigned) && samePartitions(r.Revoking, revoking) {
		return
	}
	g.edit(m, func(next *metadata.GroupMember) {
		next.State, next.MemberEpoch, next.PreviousMemberEpoch, next.Assigned, next.Revoking = state, epoch, previous, assigned, revoking
	})
}

// freeFor returns what of a set nobody else has.
func (g *consumerGroup) freeFor(id string, set []metadata.TopicPartitions) (out []metadata.TopicPartitions) {
	for _, tp := range set {
		out = appendTopic(out, pick(tp, func(p int32) bool {
			owner := g.owners[TopicIDPartition{TopicID: tp.TopicID, Partition: p}]
			return owner == "" || owner == id || mutated(mutantGivenTwice)
		}))
	}
	return out
}
