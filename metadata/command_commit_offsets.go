package metadata

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// commitOffsets is a batch of offset commits from one coordinator, of as many groups as there were when it was made (D4).
// Each commit is refused or accepted for itself, each of its offsets replaces the one before of the same partition and
// nothing else (G2).
type commitOffsets struct {
	broker BrokerID
	epoch  int64 // of the broker's registration
	// coordinatorEpoch is the one in which the batch was made. Another one has no effect: a batch that was held up while
	// another broker coordinated, and acknowledged later commits, would undo those.
	coordinatorEpoch int32
	lane             uint32
	sequence         uint64
	commits          []OffsetCommit
}

// commitOutcome is what became of one commit of a batch.
type commitOutcome struct {
	err error
	// entries are the errors of its offsets; nil if none has one.
	entries []error
}

func (c *commitOffsets) kind() pb.CommandType { return pb.CommandType_COMMAND_COMMIT_OFFSETS }

func (c *commitOffsets) message() proto.Message {
	m := &pb.CommitOffsets{
		Broker: int32(c.broker), BrokerEpoch: c.epoch, CoordinatorEpoch: c.coordinatorEpoch, Lane: c.lane, Sequence: c.sequence,
	}
	for i := range c.commits {
		m.Commits = append(m.Commits, c.commits[i].message())
	}
	return m
}

func (c *OffsetCommit) message() *pb.GroupCommit {
	m := &pb.GroupCommit{
		Group: c.Group, Member: c.Member, Instance: c.Instance, Generation: c.Generation, Time: c.Time, ExpiresAt: c.ExpiresAt,
		Offsets: &pb.OffsetColumns{},
	}
	var e offsetEncoder
	for i := range c.Offsets {
		o := &c.Offsets[i]
		e.add(m.Offsets, TopicIDPartition{o.TopicID, o.Partition}, o.Offset, o.LeaderEpoch, o.Metadata)
	}
	return m
}

// decode reads what message wrote.
func (c *OffsetCommit) decode(from *pb.GroupCommit) error {
	*c = OffsetCommit{
		Group: from.Group, Member: from.Member, Instance: from.Instance, Generation: from.Generation, Time: from.Time, ExpiresAt: from.ExpiresAt,
	}
	switch {
	case c.Group == "":
		return errors.New("offset commit of no group")
	case len(from.Offsets.GetCommittedAt()) > 0 || len(from.Offsets.GetExpiresAt()) > 0:
		return errors.New("offset commit with columns of a snapshot")
	}
	err := decodeOffsets(from.Offsets, func(n int) { c.Offsets = make([]OffsetEntry, 0, n) }, func(tp TopicIDPartition, o CommittedOffset) error {
		c.Offsets = append(c.Offsets, OffsetEntry{tp.TopicID, tp.Partition, o.Offset, o.LeaderEpoch, o.Metadata})
		return nil
	})
	if err != nil {
		return fmt.Errorf("offsets of group %s: %w", quoteShort(c.Group), err)
	}
	return nil
}

// apply returns a []commitOutcome, parallel to the commits. ErrStale says that the batch comes too late: it has no effect.
func (c *commitOffsets) apply(d *draft, _ position) (any, error) {
	b := d.st.broker(c.broker)
	switch {
	case d.st.featureLevel < GroupsFeatureLevel:
		return nil, ErrInvalidFeatureLevel
	case b == nil || b.Epoch != c.epoch:
		return nil, ErrNotCoordinator
	case c.coordinatorEpoch != d.st.coordinatorEpoch:
		return nil, ErrStale
	case !d.nextSequence(commitSequence{Broker: c.broker, Epoch: c.epoch, Lane: c.lane, Sequence: c.sequence}):
		return nil, ErrStale
	}
	out := make([]commitOutcome, len(c.commits))
	var topic *Topic // of the offset before, mostly that of the next too
	for i := range c.commits {
		out[i], topic = d.commit(c.broker, &c.commits[i], topic)
	}
	return out, nil
}

// commit applies one commit of a batch that a broker has made. topic is one that the batch has looked up already, or nil; it
// returns the last.
func (d *draft) commit(by BrokerID, c *OffsetCommit, topic *Topic) (out commitOutcome, last *Topic) {
	if rendezvous(d.st.coordinators, GroupCoordinator, c.Group) != by {
		return commitOutcome{err: ErrNotCoordinator}, topic
	}
	g := d.st.group(c.Group)
	if err := g.mayCommit(c); err != nil {
		return commitOutcome{err: err}, topic
	}
	// What is kept must not be a part of the command (decodeCommitOffsets).
	name := ""
	if g != nil {
		name = g.Name
	} else {
		name = strings.Clone(c.Group)
	}
	var of *groupOffsets
	_, pending := d.st.pending.get(c.Group)
	for i := range c.Offsets {
		o := &c.Offsets[i]
		if topic == nil || topic.ID != o.TopicID {
			topic = d.st.topicByID(o.TopicID)
		}
		if err := topic.mayHaveOffset(o); err != nil {
			if out.entries == nil {
				out.entries = make([]error, len(c.Offsets))
			}
			out.entries[i] = err
			continue
		}
		if of == nil {
			of = d.ownOffsets(name)
		}
		tp := TopicIDPartition{o.TopicID, o.Partition}
		kept := o.committed(c)
		kept.Metadata = strings.Clone(o.Metadata)
		d.putOffset(of, tp, kept)
		if pending {
			d.supersede(c.Group, tp, d.nextOrder())
		}
	}
	if of != nil && g == nil {
		d.createGroup(&Group{Name: name, Type: ClassicGroup, Generation: d.st.lastGeneration(name)})
	}
	return out, topic
}

// committed is what is kept of an entry of a commit.
func (o *OffsetEntry) committed(c *OffsetCommit) CommittedOffset {
	return CommittedOffset{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, CommittedAt: c.Time, ExpiresAt: c.ExpiresAt}
}

// mayHaveOffset says whether an offset can be stored of the topic, which may be nil.
func (t *Topic) mayHaveOffset(o *OffsetEntry) error {
	switch {
	case t == nil:
		return ErrUnknownTopicID
	case int(o.Partition) >= len(t.Partitions): // never negative: it was a column of unsigned numbers
		return ErrUnknownPartition
	case o.Offset < 0:
		return ErrInvalidRequest
	}
	return nil
}

// mayCommit is the fence against commits of members that are none any more, or whose partitions are another's by now (G1):
// it looks at what is committed when the commit is applied, not when it was sent. g may be nil.
func (g *Group) mayCommit(c *OffsetCommit) error {
	outside := c.Generation < 0 && c.Member == "" && c.Instance == ""
	switch {
	case g == nil && c.Generation < 0:
		return nil // offsets are all that there is of the group
	case g == nil:
		return ErrGroupNotFound
	case c.Generation < 0 && len(g.Members) == 0:
		return nil
	case outside:
		return ErrUnknownMember // it would overwrite what members commit
	}
	m := g.Member(c.Member)
	if c.Instance != "" && (m == nil || m.InstanceID != c.Instance) {
		for _, other := range g.Members {
			if other.InstanceID == c.Instance {
				return ErrFencedInstance
			}
		}
		return ErrUnknownMember
	}
	if m == nil {
		return ErrUnknownMember
	}
	if g.Type == ClassicGroup {
		if c.Generation != g.Generation {
			return ErrIllegalGeneration
		}
		return nil
	}
	// Any partition, its own or not, in both protocols: Apache Kafka 4.4 asks no more of the present epoch either. A member of
	// the classic protocol commits what it was assigned by this epoch's SyncGroup, or what its program says.
	if c.Generation == m.MemberEpoch {
		return nil
	}
	refusal := ErrStaleMemberEpoch
	if len(m.Protocols) > 0 { // it speaks the classic protocol
		refusal = ErrIllegalGeneration
	}
	if c.Generation > m.MemberEpoch || c.Generation < 0 {
		return refusal
	}
	// The member has not heard of its present epoch yet, or its JoinGroup has overtaken the commit. What it has held since the epoch
	// that it knows is still its own (KIP-1251).
	for i := range c.Offsets {
		if epoch, owned := m.ownedSince(c.Offsets[i].TopicID, c.Offsets[i].Partition); !owned || c.Generation < epoch {
			return refusal
		}
	}
	return nil
}

// ownedSince returns the member epoch in which the member was given a partition that it owns, one that it is to give up
// included.
func (m *GroupMember) ownedSince(id TopicID, partition int32) (epoch int32, owned bool) {
	for _, topics := range [...][]TopicPartitions{m.Assigned, m.Revoking} {
		for _, t := range topics {
			if t.TopicID != id {
				continue
			}
			for i, p := range t.Partitions {
				if p != partition {
					continue
				}
				if t.Epochs == nil {
					return 0, true
				}
				return t.Epochs[i], true
			}
		}
	}
	return 0, false
}
