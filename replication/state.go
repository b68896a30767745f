package replication

import (
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// PartitionState is one replica as this broker has it, for people.
type PartitionState struct {
	Role        Role
	LeaderEpoch int32 // -1 before any
	// StartOffset ≤ HighWatermark, DurableEnd ≤ EndOffset; all but the first are exclusive.
	StartOffset, HighWatermark, DurableEnd, EndOffset int64
	SizeBytes                                         int64
	// Err is why a halted replica does nothing.
	Err error
	// Followers is what a leader knows of the others, in no order; nil for other roles.
	Followers []FollowerPosition
}

// FollowerPosition is a follower as its leader knows it in the present leader epoch.
type FollowerPosition struct {
	Broker metadata.BrokerID
	InSync bool
	// EndOffset is its last fetch offset: it holds everything below. -1 until it has fetched.
	EndOffset int64
	// Fetched and CaughtUp are how long ago it last fetched, and last had everything; < 0: never in this leader epoch.
	Fetched, CaughtUp time.Duration
}

// State describes the replica as of one moment.
func (p *Partition) State() PartitionState {
	p.mu.Lock()
	defer p.unlock()
	c, now := p.mu.core, p.m.now()
	s := PartitionState{
		Role: c.role, LeaderEpoch: c.leaderEpoch, StartOffset: c.start, HighWatermark: c.highWatermark, DurableEnd: c.durable, EndOffset: c.end,
		SizeBytes: p.log.SizeBytes(), Err: c.haltErr,
	}
	if c.role != RoleLeader {
		return s
	}
	for i := range c.leading.followers {
		f := &c.leading.followers[i]
		at := FollowerPosition{Broker: f.id, InSync: slices.Contains(c.isr, f.id), EndOffset: f.position, Fetched: -1, CaughtUp: -1}
		if f.position >= 0 {
			at.Fetched, at.CaughtUp = max(time.Duration(now-f.fetchedAt), 0), max(time.Duration(now-f.caughtUp), 0)
		}
		s.Followers = append(s.Followers, at)
	}
	return s
}
