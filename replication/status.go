package replication

import (
	"slices"
	"time"

	"github.com/millrace/millrace/metadata"
)

// ReplicaStatus is what this broker knows of one of its partitions, for the console and for views of the cluster.
type ReplicaStatus struct {
	Topic     string
	TopicID   metadata.TopicID
	Partition int32
	Role      Role
	// Leader is metadata.NoBroker and LeaderEpoch -1 when none is known.
	Leader         metadata.BrokerID
	LeaderEpoch    int32
	PartitionEpoch int32
	ISR            []metadata.BrokerID
	// The log's offsets; HighWatermark, DurableEnd and EndOffset are exclusive.
	StartOffset, HighWatermark, DurableEnd, EndOffset int64
	SizeBytes                                         int64
	// Followers is what a leader knows of the other replicas, in their order; empty for a follower.
	Followers []FollowerStatus
	// Err says why the replica is halted, nil when it is not.
	Err error
}

// FollowerStatus is what a leader knows of one follower in its leader epoch.
type FollowerStatus struct {
	ID metadata.BrokerID
	// StartOffset and Position are its log start and the offset below which it holds everything; -1 until it has
	// fetched.
	StartOffset, Position int64
	InSync                bool
	// CaughtUp is how long ago it last had everything, Fetched how long ago it last asked; negative when it never has.
	CaughtUp, Fetched time.Duration
}

// LogEnd says how far this replica reaches, whoever leads: the leader epoch of its last batch, -1 when it is empty, and its
// log end offset. ErrOffline when it is halted: what it has can't be trusted, or can't be served.
func (p *Partition) LogEnd() (leaderEpoch int32, end int64, err error) {
	p.mu.Lock()
	defer p.unlock()
	if c := p.mu.core; c.Role() != RoleHalted && c.Role() != RoleRemoved {
		return c.lastEpoch, c.EndOffset(), nil
	}
	return -1, -1, ErrOffline
}

// Status describes the partition at this moment.
func (p *Partition) Status() ReplicaStatus {
	p.mu.Lock()
	defer p.unlock()
	c, now := p.mu.core, p.m.now()
	s := ReplicaStatus{
		Topic: p.topic.name, TopicID: p.topic.id, Partition: p.partition, Role: c.Role(), Leader: c.Leader(), LeaderEpoch: c.LeaderEpoch(),
		PartitionEpoch: c.partitionEpoch, ISR: slices.Clone(c.ISR()), StartOffset: c.StartOffset(), HighWatermark: c.HighWatermark(),
		DurableEnd: c.DurableEnd(), EndOffset: c.EndOffset(), SizeBytes: p.log.SizeBytes(), Err: c.haltErr,
	}
	for i := range c.leading.followers {
		f := &c.leading.followers[i]
		st := FollowerStatus{ID: f.id, StartOffset: f.start, Position: f.position, InSync: slices.Contains(c.isr, f.id), CaughtUp: -1, Fetched: -1}
		if f.position >= 0 {
			st.CaughtUp, st.Fetched = time.Duration(now-f.caughtUp), time.Duration(now-f.fetchedAt)
		}
		s.Followers = append(s.Followers, st)
	}
	return s
}
