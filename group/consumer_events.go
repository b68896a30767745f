package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// enqueue keeps an event until the change on its way is settled. Of a member of a consumer group only the last heartbeat
// is kept: who sends another one no longer waits for the answer to the one before.
func (c *Core) enqueue(now Time, ev Event) {
	if beat, ok := ev.(*ConsumerHeartbeat); ok {
		i := slices.IndexFunc(c.queue, func(other Event) bool {
			o, ok := other.(*ConsumerHeartbeat)
			return ok && o.Member == beat.Member && beat.Member != ""
		})
		if i >= 0 {
			c.refuse(c.queue[i], ErrCoordinatorLoading)
			c.queue = slices.Delete(c.queue, i, i+1)
		}
		if c.consumer != nil {
			if m := c.consumer.members[beat.Member]; m != nil && beat.Epoch >= 0 {
				c.consumerHeard(now, m, Instant(beat.Settings.ConsumerSessionTimeout)) // heard now, whenever it is answered
			}
		}
	}
	c.queue = append(c.queue, ev)
}

// consumerEnter is the first heartbeat of a consumer group: one that does not exist yet, or has no members.
func (c *Core) consumerEnter(now Time, ev *ConsumerHeartbeat) {
	switch {
	case ev.Epoch != 0 && c.record == nil, ev.Epoch != 0 && c.record.Type != metadata.ConsumerGroup:
		// Also who was a member until the group became a classic one: Apache Kafka 4.4 answers the same (69), whatever the member
		// was, and its client ends with it. To join again it must begin with epoch 0, which may turn the group back.
		c.refuse(ev, ErrGroupNotFound)
		return
	case c.members() > 0:
		if ev.Epoch != 0 { // it is none of them, and need not know that the group is a classic one again
			c.refuse(ev, ErrUnknownMember)
			return
		}
		if !ev.Settings.Upgrade {
			c.refuse(ev, ErrGroupNotFound)
			return
		}
		// What refuses the member has to be found before the group is changed: it would be changed back without it, with a
		// rebalance and new sessions for all, whenever it tries again.
		if c.members() >= ev.Settings.ConsumerMaxSize && c.member(ev.Member) == nil && (ev.Instance == "" || c.instance(ev.Instance) == nil) {
			c.refuse(ev, ErrGroupFull)
			return
		}
		if err := ev.checkWish(ev.Settings); err != nil {
			c.refuse(ev, err)
			return
		}
		if c.upgrade(now) != nil {
			c.refuse(ev, ErrGroupNotFound) // a classic group that is not of consumers
			return
		}
		c.consumerHandle(now, ev)
		return
	}
	c.classic = classicGroup{}
	c.consumerLoad(now, &Loaded{Group: c.record, LastGeneration: c.lastGeneration})
	c.consumerHandle(now, ev)
}

// consumerHandle takes an event of a consumer group. It reports false for those that are the same for all groups, and for
// a join that makes a group without members a classic one.
func (c *Core) consumerHandle(now Time, ev Event) bool {
	g := c.consumer
	switch ev := ev.(type) {
	case *ConsumerHeartbeat:
		c.consumerHeartbeat(now, ev)
	case *Leave:
		c.consumerLeave(now, ev)
	case *Commit:
		c.act(Action{Kind: ActionAnswer, Err: c.consumerCommit(now, ev.CommitRequest)})
	case *CommitTransaction:
		c.act(Action{Kind: ActionAnswer, Err: c.transactionCommit(now, ev.CommitRequest)})
	case *Heartbeat:
		c.act(Action{Kind: ActionAnswer, Err: c.consumerClassicHeartbeat(now, ev.HeartbeatRequest)})
	case *Sync:
		c.consumerClassicSync(now, ev)
	case *Tick:
		c.consumerTick(now)
	case *Seek:
		c.consumerSeek(now, ev)
	case *Join:
		switch {
		case len(g.members) > 0:
			c.consumerClassicJoin(now, ev)
		case g.touched:
			c.afterDraft(now, ev)
		default:
			c.consumer = nil
			c.classicLoad(now, &Loaded{})
			return false
		}
	case *Delete:
		if !g.touched {
			return false
		}
		c.afterDraft(now, ev)
	}
	return true
}

// afterDraft has an event wait until the draft is committed.
func (c *Core) afterDraft(now Time, ev Event) {
	c.consumerPropose(now)
	c.queue = slices.Insert(c.queue, 0, ev)
}

// sameConsumer compares what only members of consumer groups have.
func sameConsumer(a, b *metadata.GroupMember) bool {
	return a.MemberEpoch == b.MemberEpoch && a.PreviousMemberEpoch == b.PreviousMemberEpoch && a.State == b.State && a.Rack == b.Rack &&
		slices.Equal(a.Subscription, b.Subscription) && a.SubscriptionRegex == b.SubscriptionRegex && a.ServerAssignor == b.ServerAssignor &&
		sameWithEpochs(a.Assigned, b.Assigned) && samePartitions(a.Revoking, b.Revoking) && samePartitions(a.Target, b.Target)
}

// learnTopics takes the topics from the events that bring them.
func (c *Core) learnTopics(ev Event) {
	var topics Topics
	switch ev := ev.(type) {
	case *Loaded:
		topics = ev.Topics
	case *Join:
		topics = ev.Topics
	case *Sync:
		topics = ev.Topics
	case *ConsumerHeartbeat:
		topics = ev.Topics
	}
	if topics != nil {
		c.topics = topics
	}
}
