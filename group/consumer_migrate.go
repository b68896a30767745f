package group

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// A group changes its protocol while its members work on: to that of consumer groups with the first member that speaks it,
// and back when the last such member has gone (KIP-848, "live migration").

var errNotConsumers = errors.New("not a group of consumers")

// upgrade makes a consumer group of a classic one with members. Its members go on as classic members of it, each with the
// partitions that it has by the last generation, and those that it has not given up yet. Who has left since that generation
// is not taken along. Who waits for a generation, be it the first one, joins again.
func (c *Core) upgrade(now Time) error {
	r := c.record
	if r == nil {
		r = &metadata.Group{Generation: c.lastGeneration}
	}
	if c.classic.protocolType != consumerProtocolType || len(r.Members) > 0 && r.Protocol == "" {
		return errNotConsumers
	}
	var members []*metadata.GroupMember
	var gone []string
	var owned [][]metadata.TopicPartitions // by member, what it said when it joined
	given := distinct{}
	for _, m := range r.Members {
		if c.member(m.ID) == nil {
			gone = append(gone, m.ID)
			continue
		}
		said, err := readSubscription(metadataUnder(m, r.Protocol))
		if err != nil {
			return err
		}
		next := *m
		next.Subscription = slices.Compact(slices.Sorted(slices.Values(said.topics)))
		next.MemberEpoch, next.PreviousMemberEpoch, next.State, next.Assignment = r.Generation, r.Generation, memberStable, nil
		if r.State == metadata.GroupStable {
			list, err := readAssignment(m.Assignment)
			if err != nil {
				return err
			}
			next.Assigned = given.of(identified(list, c.topics)) // a leader may have given one to two of them
		}
		members, owned = append(members, &next), append(owned, identified(said.owned, c.topics))
	}
	for i, m := range members {
		// With a cooperative assignor a member works on with what it had, until it has seen an assignment without it; and nobody
		// is given what another one has yet to give up. It says in its next join what it has by then.
		m.Assigned = givenIn(r.Generation, union(m.Assigned, given.of(owned[i])))
		m.Target = m.Assigned
	}
	c.classicLetGo(ErrRebalanceInProgress)
	c.classic = classicGroup{}
	c.consumerLoad(now, &Loaded{LastGeneration: r.Generation})
	g := c.consumer
	g.epoch, g.assignmentEpoch, g.interrupted = r.Generation, r.Generation, false
	for _, id := range gone {
		g.remove(g.members[id])
	}
	for _, m := range members {
		cm := &consumerMember{record: m, revokeBy: Never}
		g.add(cm)
		c.consumerHeard(now, cm, Instant(m.SessionTimeout))
	}
	return nil
}

// distinct are partitions that somebody has.
type distinct map[TopicIDPartition]bool

// of returns those of a set that nobody had, and notes them.
func (d distinct) of(set []metadata.TopicPartitions) (out []metadata.TopicPartitions) {
	for _, tp := range set {
		out = appendTopic(out, pick(tp, func(p int32) bool {
			key := TopicIDPartition{TopicID: tp.TopicID, Partition: p}
			had := d[key]
			d[key] = true
			return !had
		}))
	}
	return out
}

// alone reports whether a group has members and all of them speak the classic protocol.
func (g *consumerGroup) alone() bool {
	return len(g.members) > 0 && !slices.ContainsFunc(g.sorted(), func(m *consumerMember) bool { return !m.classical() })
}

// downgrade proposes to make a classic group of a consumer group whose members all speak the classic protocol. They keep
// what they have until the generation that follows at once.
func (c *Core) downgrade() {
	g := c.consumer
	members := g.sorted()
	ch := c.proposal(changeDowngrade)
	ch.Type, ch.State, ch.ProtocolType, ch.Interrupted = metadata.ClassicGroup, metadata.GroupStable, consumerProtocolType, false
	ch.Generation, ch.AssignmentEpoch, ch.Assignor, ch.TopicsHash, ch.EmptySince = g.epoch, 0, "", 0, 0
	if c.record != nil && ch.Generation <= c.record.Generation {
		ch.Generation = c.record.Generation + 1
	}
	for _, p := range members[0].record.Protocols {
		if !slices.ContainsFunc(members, func(m *consumerMember) bool { return !offers(m.record, p.Name) }) {
			ch.Protocol = p.Name
			break
		}
	}
	ch.Leader = members[0].record.ID
	for _, m := range members {
		r := m.record
		next := &metadata.GroupMember{
			ID: r.ID, InstanceID: r.InstanceID, Rack: r.Rack, ClientID: r.ClientID, ClientHost: r.ClientHost,
			SessionTimeout: r.SessionTimeout, RebalanceTimeout: r.RebalanceTimeout, Protocols: r.Protocols,
		}
		if c.topics != nil {
			next.Assignment = appendAssignment(nil, named(r.Assigned, c.topics))
		}
		ch.Upsert = append(ch.Upsert, next)
	}
	ch.Remove = g.gone(c.record)
	clear(g.dirty)
	clear(g.removed)
	g.touched = false
	c.propose(ch)
}

// downgraded goes on as a classic group: with a rebalance, because who has gone has left partitions behind.
func (c *Core) downgraded(now Time) {
	c.consumerAnswer()
	c.consumer = nil
	c.classicLoad(now, &Loaded{})
	c.prepare(now, ReasonLeave, "")
}
