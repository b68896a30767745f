package replication

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// Role is what a replica does at present.
type Role uint8

// Roles.
const (
	// RoleNone: no leader is known, or none of the committed metadata has been applied yet.
	RoleNone Role = iota
	// RoleLeader appends, counts followers, moves the high watermark.
	RoleLeader
	// RoleFollower fetches from the leader.
	RoleFollower
	// RoleHalted: storage failed, or going on would break a promise. Left only by a restart.
	RoleHalted
	// RoleRemoved: the partition is no longer here.
	RoleRemoved
)

var roleNames = [...]string{"none", "leader", "follower", "halted", "removed"}

// String returns the name of the role.
func (r Role) String() string { return roleNames[r] }

// Core is the protocol of one replica of one partition: a state machine without goroutine, clock, lock or I/O. A driver
// feeds it events with [Core.Step] and carries out the actions it answers with, in order; a simulator does the same
// with many cores and one random generator.
//
// Invariants, between two steps:
//
//	start ≤ highWatermark, durable ≤ end
//	a leader's highWatermark ≤ position of every member of the maximal ISR (R9), itself included
//	highWatermark never falls in the life of one core (I4)
//	every waiter was parked in the present leader epoch (R23)
type Core struct {
	self   metadata.BrokerID
	policy Policy

	// The log as last reported. generation counts the cuts of this log, so that a flush of what was cut does not count
	// (W7).
	start      int64 // first offset
	durable    int64 // on stable storage below
	end        int64 // next offset to be assigned
	lastEpoch  int32 // leader epoch of the last batch, -1 when empty
	generation uint64

	// highWatermark is exclusive: the first offset not known to be committed.
	highWatermark int64
	// highWatermarkEpoch is the leader epoch in which it was last confirmed; after a restart the epoch of the last
	// batch, which is not later.
	highWatermarkEpoch int32

	// The committed record of the partition.
	role           Role
	leader         metadata.BrokerID
	leaderEpoch    int32
	partitionEpoch int32
	replicas       []Peer
	isr, elr       []metadata.BrokerID // committed
	uncleanEpoch   int32
	haltErr        error
	seq            uint64 // numbers fetches and proposals; never reused in the life of the core

	leading   leading
	following following

	actions []Action // reused by every step
}

// NewCore returns the core of a replica on broker self. Its first event must be [Restart].
func NewCore(self metadata.BrokerID) *Core {
	return &Core{self: self, leader: metadata.NoBroker, leaderEpoch: -1, partitionEpoch: -1, lastEpoch: -1, uncleanEpoch: -1, highWatermarkEpoch: -1}
}

// Step takes one event at the time now, which never goes back, and returns what to do about it. The list is valid until
// the next Step; a driver that has to deliver an event in answer to an action (see [Appended]) copies or finishes the
// list first.
func (c *Core) Step(now Instant, ev Event) []Action {
	c.actions = c.actions[:0]
	if c.role == RoleHalted || c.role == RoleRemoved {
		c.refuse(ev)
		return c.actions
	}
	switch ev := ev.(type) {
	case *Produce:
		c.produce(ev)
	case *Appended:
		c.appended(now, ev)
	case *Flushed:
		c.flushed(now, ev)
	case *FetchRequest:
		c.fetchRequest(now, ev)
	case *StillFetching:
		c.stillFetching(now, ev)
	case *FetchResponse:
		c.fetchResponse(now, ev)
	case *Truncated:
		c.truncated(now, ev)
	case *MetadataDelta:
		c.metadataDelta(now, ev)
	case *ISRResult:
		c.isrResult(now, ev)
	case *DeleteRecords:
		c.deleteRecords(ev)
	case *StartMoved:
		c.startMoved(ev)
	case *Tick:
		c.tick(now)
	case *Configure:
		c.configure(now, ev)
	case *Restart:
		c.restart(ev)
	case *StorageFailed:
		c.halt(ev.Err)
	case *Removed:
		c.failWaiters(ev.Err)
		c.leave(RoleRemoved)
	}
	return c.actions
}

// Role returns what the replica does.
func (c *Core) Role() Role { return c.role }

// Leader returns the committed leader, [metadata.NoBroker] when there is none.
func (c *Core) Leader() metadata.BrokerID { return c.leader }

// LeaderEpoch returns the leader epoch the replica acts in, -1 before any metadata.
func (c *Core) LeaderEpoch() int32 { return c.leaderEpoch }

// HighWatermark returns the first offset not known to be committed.
func (c *Core) HighWatermark() int64 { return c.highWatermark }

// StartOffset, EndOffset and DurableEnd return the log's bounds as last reported.
func (c *Core) StartOffset() int64 { return c.start }

// EndOffset returns the next offset to be assigned.
func (c *Core) EndOffset() int64 { return c.end }

// DurableEnd returns the offset below which all is on stable storage.
func (c *Core) DurableEnd() int64 { return c.durable }

// Generation returns the number of cuts the log has seen: what a [Flushed] event must carry to count.
func (c *Core) Generation() uint64 { return c.generation }

// ISR returns the committed in-sync replicas; the caller must not change the slice.
func (c *Core) ISR() []metadata.BrokerID { return c.isr }

// OffsetAvailable says whether a leader may tell clients its high watermark as "latest": it may not until it has
// committed up to the start of its epoch (R7).
func (c *Core) OffsetAvailable() bool {
	return c.role == RoleLeader && c.highWatermark >= c.leading.epochStart
}

// EpochStart returns the end of the log at the election of this leader, which is the first offset of its epoch (R4).
func (c *Core) EpochStart() int64 { return c.leading.epochStart }

// position is what this replica holds as a promise to others: its durable end, or its end when the topic does without a
// flush (wal.md 5).
func (c *Core) position() int64 {
	if c.policy.FlushAck && !mutated(mutantAckBeforeSync) {
		return c.durable
	}
	return c.end
}

func (c *Core) restart(ev *Restart) {
	c.policy = ev.Policy
	c.start, c.durable, c.end, c.lastEpoch = ev.StartOffset, ev.DurableEnd, ev.EndOffset, ev.LastEpoch
	// A crash may have taken what the checkpoint speaks of: without proof of a clean stop only what is known to be on
	// disk counts (I12).
	limit := c.end
	if !ev.Clean {
		limit = c.durable
	}
	c.highWatermark = max(c.start, min(ev.HighWatermark, limit))
	c.highWatermarkEpoch = ev.LastEpoch
	c.act(Action{Kind: ActionSetHW, Offset: c.highWatermark})
}

func (c *Core) configure(now Instant, ev *Configure) {
	flush := ev.Policy.FlushAck && !c.policy.FlushAck
	c.policy = ev.Policy
	if flush && c.durable < c.end {
		// What was acknowledged without a flush becomes durable at once, or positions would stand still until the next
		// commit (wal.md 5).
		c.act(Action{Kind: ActionFlush})
	}
	switch c.role {
	case RoleLeader:
		if !c.policy.FlushAck {
			c.releaseAppended()
		}
		c.advance()
	case RoleFollower:
		c.fetchWhenReady(now)
	}
}

func (c *Core) metadataDelta(now Instant, ev *MetadataDelta) {
	if ev.LeaderEpoch < c.leaderEpoch || (ev.LeaderEpoch == c.leaderEpoch && ev.PartitionEpoch < c.partitionEpoch) {
		return // older than what this replica acts on already (I13)
	}
	newEpoch := ev.LeaderEpoch > c.leaderEpoch || ev.Leader != c.leader
	newRecord := newEpoch || ev.PartitionEpoch > c.partitionEpoch
	c.leader, c.leaderEpoch, c.uncleanEpoch = ev.Leader, ev.LeaderEpoch, ev.UncleanEpoch
	c.partitionEpoch = ev.PartitionEpoch
	c.replicas = append(c.replicas[:0], ev.Replicas...)
	if newRecord {
		c.isr = append(c.isr[:0], ev.ISR...)
		c.elr = append(c.elr[:0], ev.ELR...)
	}
	if newEpoch {
		// R23: what waits was appended in an epoch that is over. It may be truncated and another record may take its
		// offset.
		c.failWaiters(ErrLeadershipLost)
		switch {
		case ev.Leader == c.self:
			c.lead(now)
		case ev.Leader == metadata.NoBroker || !slices.ContainsFunc(ev.Replicas, func(p Peer) bool { return p.ID == c.self }):
			c.leave(RoleNone)
		default:
			c.follow(now)
		}
		return
	}
	if c.role == RoleLeader {
		if newRecord {
			c.isrCommitted()
		}
		c.knowPeers(now)
		c.advance()
	}
}

// leave ends leading and following.
func (c *Core) leave(role Role) {
	c.role = role
	c.leading.reset()
	c.following = following{}
	c.act(Action{Kind: ActionRole})
}

func (c *Core) halt(err error) {
	c.failWaiters(err)
	c.haltErr = err
	c.leave(RoleHalted)
}

// refuse answers the requests that reach a replica which is halted or gone.
func (c *Core) refuse(ev Event) {
	err := c.haltErr
	if c.role == RoleRemoved || err == nil {
		err = ErrNotLeader
	}
	switch ev := ev.(type) {
	case *Produce:
		c.complete(ev.Waiter, -1, err)
	case *Appended:
		if ev.Waiter != 0 {
			c.complete(ev.Waiter, -1, ErrLeadershipLost)
		}
	case *DeleteRecords:
		c.complete(ev.Waiter, -1, err)
	case *FetchRequest:
		c.act(Action{Kind: ActionAnswerFetch, Waiter: ev.Waiter, Err: err, DivergingEpoch: -1})
	case *StorageFailed:
		c.haltErr = ev.Err
	}
}

func (c *Core) flushed(now Instant, ev *Flushed) {
	if ev.LogGeneration != c.generation || ev.DurableEnd <= c.durable {
		return
	}
	c.durable = min(ev.DurableEnd, c.end)
	switch c.role {
	case RoleLeader:
		c.releaseDurable()
		c.advance()
	case RoleFollower:
		c.fetchWhenReady(now)
	}
}

func (c *Core) tick(now Instant) {
	switch c.role {
	case RoleLeader:
		c.expire(now)
		c.shrink(now)
	case RoleFollower:
		c.refetch(now)
	}
}

// setHighWatermark moves the high watermark forward; it never moves back (I4).
func (c *Core) setHighWatermark(to int64) bool {
	if to < c.highWatermark {
		return false
	}
	c.highWatermarkEpoch = c.leaderEpoch
	if to == c.highWatermark {
		return false
	}
	wasAvailable := c.OffsetAvailable()
	c.highWatermark = to
	c.act(Action{Kind: ActionSetHW, Offset: to})
	if c.OffsetAvailable() != wasAvailable {
		c.act(Action{Kind: ActionRole})
	}
	return true
}

func (c *Core) act(a Action) { c.actions = append(c.actions, a) }

func (c *Core) complete(w Waiter, offset int64, err error) {
	c.act(Action{Kind: ActionComplete, Waiter: w, Offset: offset, Err: err})
}

// fence checks the leader epoch a request carries, -1 for none, against the present one.
func (c *Core) fence(epoch int32) error {
	switch {
	case epoch == -1 || epoch == c.leaderEpoch:
		return nil
	case epoch < c.leaderEpoch:
		return ErrFencedLeaderEpoch
	default:
		return ErrUnknownLeaderEpoch
	}
}
