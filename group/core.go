package group

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// Core is the protocol of one group: a state machine without goroutine, clock, lock or I/O. A driver feeds it events with
// [Core.Step] and carries out the actions it answers with, in order; a simulator does the same with many cores and one
// random generator.
//
// What the core knows is the committed record and, on top of it, what need not survive: who waits, whose session ends
// when, which ids were handed out but never used. A change of the record is proposed first and takes effect when it is
// committed (G5); one is on its way at a time, and requests that could lead to another wait in a queue meanwhile.
// Heartbeats and commits do not wait: they are judged by the last committed record.
type Core struct {
	name   string
	loaded bool
	// record is the committed one, nil when there is none. lastGeneration is its generation, or without a record the one
	// that a group of this name had last: the next is above it (I15).
	record         *metadata.Group
	lastGeneration int32

	// change is the proposal on its way, nil when there is none. seq numbers proposals.
	change *change
	seq    uint64
	queue  []Event

	classic classicGroup
	// consumer is the group's state while it is a consumer group (KIP-848), else nil.
	consumer *consumerGroup
	// topics are those that the last event knew of.
	topics Topics

	// unawareUntil is until when members that were put out may not know it, 0 if there are none. Java's of KIP-848 that have just learned
	// of it commit where they are under their id, without an epoch, which would count in a group without members: over the offsets
	// of a seek, or of the member that has read their partitions since.
	unawareUntil Instant
	// putOutAt is when the last of them was put out, for the record: in it from the change on that takes the member out.
	putOutAt int64

	// wake is no later than the first deadline.
	wake    Instant
	actions []Action // of the step under way
}

// NewCore returns the core of a group. Its first event must be [Loaded].
func NewCore(name string) *Core { return &Core{name: name, wake: Never} }

// Step takes one event at the time now, which never goes back, and returns what to do about it.
func (c *Core) Step(now Time, ev Event) []Action { return c.AppendStep(nil, now, ev) }

// AppendStep is Step, and appends what to do to acts. The core keeps no list of its own: an Action is large, and most groups
// of a broker are at rest.
func (c *Core) AppendStep(acts []Action, now Time, ev Event) []Action {
	c.actions = acts
	if c.unawareUntil != 0 && c.unawareUntil <= now.At {
		c.unawareUntil = 0
	}
	c.learnTopics(ev)
	switch ev := ev.(type) {
	case *Loaded:
		c.load(now, ev)
	case *LetGo:
		c.letGo(ev.Err)
	case *Changed:
		c.changed(now, ev)
	case *Extend:
		if c.unawareUntil != 0 {
			c.unawareUntil += ev.By
		}
		c.classicExtend(ev.By)
		c.consumerExtend(ev.By)
	case *Heartbeat, *Commit, *CommitTransaction:
		c.handle(now, ev)
	case *ConsumerPulse:
		c.pulse(now, ev)
	case *Tick:
		if c.change != nil {
			c.retry(now)
		} else if c.loaded {
			c.handle(now, ev)
		}
	default:
		if c.change != nil {
			c.enqueue(now, ev)
			break
		}
		c.handle(now, ev)
	}
	c.drain(now)
	c.consumerPropose(now)
	c.wake = c.deadline()
	acts, c.actions = c.actions, nil
	return acts
}

// handle takes an event that no change on its way keeps waiting.
func (c *Core) handle(now Time, ev Event) {
	if !c.loaded {
		c.refuse(ev, ErrCoordinatorLoading)
		return
	}
	if ev, ok := ev.(*Commit); ok && ev.Generation < 0 && (ev.Member != "" || ev.Instance != "") && c.unawareUntil != 0 && c.members() == 0 {
		c.act(Action{Kind: ActionAnswer, Err: ErrUnknownMember})
		return
	}
	if c.consumer != nil && c.consumerHandle(now, ev) {
		return
	}
	switch ev := ev.(type) {
	case *ConsumerHeartbeat:
		c.consumerEnter(now, ev)
	case *Join:
		c.classicJoin(now, ev)
	case *Disconnected:
		c.classicDisconnected(now, ev)
	case *Sync:
		c.classicSync(now, ev)
	case *Heartbeat:
		c.act(Action{Kind: ActionAnswer, Err: c.classicHeartbeat(now, ev.HeartbeatRequest)})
	case *Leave:
		c.classicLeave(now, ev)
	case *Commit:
		c.act(Action{Kind: ActionAnswer, Err: c.classicCommit(now, ev.CommitRequest)})
	case *CommitTransaction:
		c.act(Action{Kind: ActionAnswer, Err: c.transactionCommit(now, ev.CommitRequest)})
	case *Delete:
		c.delete(now, ev)
	case *Seek:
		c.seek(now, ev)
	case *Tick:
		c.classicTick(now)
	}
}

// drain takes the events that waited for a change, until one of them leads to the next.
func (c *Core) drain(now Time) {
	for len(c.queue) > 0 && c.change == nil {
		ev := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.handle(now, ev)
	}
	if len(c.queue) == 0 {
		c.queue = nil
	}
}

// refuse answers an event with an error.
func (c *Core) refuse(ev Event, err error) {
	switch ev := ev.(type) {
	case *Join:
		c.shutOut(record(ev, ev.Member), err)
		c.answerJoin(ev.Waiter, JoinResult{Err: err, Member: ev.Member})
	case *Sync:
		c.answerSync(ev.Waiter, SyncResult{Err: err})
	case *ConsumerHeartbeat:
		if ev.Epoch == 0 {
			c.shutOut(ev.asMember(), err)
		}
		c.act(Action{Kind: ActionConsumer, Waiter: ev.Waiter, Consumer: ConsumerHeartbeatResult{Err: err, Member: ev.Member}})
	case *Leave:
		c.act(Action{Kind: ActionLeave, Waiter: ev.Waiter, Err: err})
	case *Heartbeat, *Commit, *CommitTransaction:
		c.act(Action{Kind: ActionAnswer, Err: err})
	case *Delete:
		c.act(Action{Kind: ActionAnswer, Waiter: ev.Waiter, Err: err})
	case *Seek:
		c.act(Action{Kind: ActionAnswer, Waiter: ev.Waiter, Err: err})
	}
}

// shutOut tells that somebody was not let in, if people can do something about why.
func (c *Core) shutOut(who *metadata.GroupMember, err error) {
	if errors.Is(err, ErrInconsistentProtocol) || errors.Is(err, ErrFencedInstance) || errors.Is(err, ErrUnreleasedInstance) || errors.Is(err, ErrUnsupportedAssignor) ||
		errors.Is(err, ErrGroupFull) || errors.Is(err, ErrInvalidSession) || errors.Is(err, ErrGroupNotFound) {
		c.act(Action{Kind: ActionRefused, Who: who, Err: err})
	}
}

// asMember is what the first heartbeat of a member says of it.
func (ev *ConsumerHeartbeat) asMember() *metadata.GroupMember {
	return &metadata.GroupMember{ID: ev.Member, InstanceID: ev.Instance, ClientID: ev.ClientID, ClientHost: ev.ClientHost, ServerAssignor: ev.Assignor}
}

// load takes over the committed record.
func (c *Core) load(now Time, ev *Loaded) {
	c.loadRecord(now, ev)
	c.recallUnaware(now)
}

func (c *Core) loadRecord(now Time, ev *Loaded) {
	old := c.record
	if ch := c.change; ch != nil {
		switch {
		case ch.made(ev.Group):
			// Committed, though its proposer could not be told.
			c.changed(now, &Changed{Seq: ch.seq, Group: ev.Group})
			return
		case sameRevision(ev.Group, old) && !ch.reload:
			c.consumerRenew(now)
			c.classicRenew(now) // still on its way
			return
		case ch.rebase(old, ev.Group, ev.LastGeneration):
			c.record, c.lastGeneration, ch.reload = ev.Group, ev.LastGeneration, false
			c.propose(ch)
			return
		}
		c.letGo(ErrCoordinatorLoading)
	}
	switch {
	case !c.loaded:
	case sameRevision(ev.Group, old):
		c.consumerRenew(now)
		c.classicRenew(now) // nobody changed anything meanwhile, but the members may have been heard elsewhere
		return
	case (old == nil || len(old.Members) == 0) && (ev.Group == nil || len(ev.Group.Members) == 0):
		c.record, c.lastGeneration = ev.Group, ev.LastGeneration
		if c.consumer != nil {
			c.consumerLoad(now, ev)
		}
		return // it had no committed members and has none; those who are about to join still do
	default:
		// Somebody else coordinated the group for a while.
		c.letGo(ErrCoordinatorLoading)
	}
	c.loaded, c.record, c.lastGeneration = true, ev.Group, ev.LastGeneration
	if ev.Group != nil && ev.Group.Type == metadata.ConsumerGroup && len(ev.Group.Members) > 0 {
		c.consumerLoad(now, ev)
		return
	}
	c.classicLoad(now, ev)
}

func sameRevision(a, b *metadata.Group) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Revision == b.Revision
}

// letGo forgets the group.
func (c *Core) letGo(err error) {
	c.abandon(err)
	c.classicLetGo(err)
	c.consumerLetGo(err)
	c.loaded, c.record, c.lastGeneration, c.classic, c.unawareUntil, c.putOutAt = false, nil, 0, classicGroup{}, 0, 0
}

func (c *Core) delete(now Time, ev *Delete) {
	switch {
	case c.members() > 0:
		c.refuse(ev, ErrNonEmpty)
	case c.record == nil:
		c.refuse(ev, ErrGroupNotFound)
	default:
		ch := c.proposal(changeDelete)
		ch.Delete, ch.Time = true, now.Wall
		ch.waiter = ev.Waiter
		c.propose(ch)
	}
}

// members is the number of members, those too that are not committed yet.
func (c *Core) members() int {
	if c.consumer != nil {
		return len(c.consumer.members)
	}
	return len(c.classic.members)
}

// Changing reports whether a change of the record is on its way.
func (c *Core) Changing() bool { return c.change != nil }

// Idle reports whether the core could be thrown away and made anew from the record without anybody noticing.
func (c *Core) Idle() bool {
	return c.change == nil && len(c.queue) == 0 && c.members() == 0 && len(c.classic.pending) == 0 && len(c.classic.putOut) == 0 && c.unawareUntil == 0
}

// Deadline is no later than the moment at which the core needs a [Tick]. It grows without notice when members are heard.
func (c *Core) Deadline() Instant { return c.wake }

func (c *Core) deadline() Instant {
	switch {
	case c.change != nil:
		return c.change.retryAt
	case !c.loaded:
		return Never
	}
	at := Never
	if c.unawareUntil != 0 {
		at = c.unawareUntil
	}
	if c.consumer != nil {
		return min(at, c.consumer.deadline())
	}
	return min(at, c.classicDeadline())
}

// Record returns the committed record that the core goes by.
func (c *Core) Record() *metadata.Group { return c.record }

func (c *Core) act(a Action) { c.actions = append(c.actions, a) }

// said adds to the last action, ActionWent, what the member said of it, and from where.
func (c *Core) said(note, address string) {
	a := &c.actions[len(c.actions)-1]
	a.Note, a.Address = note, address
}

func (c *Core) answerJoin(w Waiter, r JoinResult) {
	if r.Err != nil {
		r.Generation = -1
	}
	c.act(Action{Kind: ActionJoin, Waiter: w, Join: r})
}

func (c *Core) answerSync(w Waiter, r SyncResult) {
	c.act(Action{Kind: ActionSync, Waiter: w, Sync: r})
}

// lost tells whether an error means that this broker may not change the group any more.
func lost(err error) bool {
	return errors.Is(err, metadata.ErrNotCoordinator) || errors.Is(err, metadata.ErrStaleBrokerEpoch) || errors.Is(err, metadata.ErrClosed) || errors.Is(err, metadata.ErrFailed)
}
