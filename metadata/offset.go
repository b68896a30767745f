package metadata

import "iter"

// TopicIDPartition names a partition of one incarnation of a topic.
type TopicIDPartition struct {
	TopicID   TopicID
	Partition int32
}

// CommittedOffset is the place of a group in one partition.
type CommittedOffset struct {
	Offset int64
	// LeaderEpoch is that of the record before Offset, as the consumer saw it, -1 if it did not say (G13).
	LeaderEpoch int32
	Metadata    string
	// CommittedAt is the coordinator's clock at the commit, in unix milliseconds.
	CommittedAt int64
	// ExpiresAt is when the offset may go at the earliest, in unix milliseconds, if the commit asked for a time of its own
	// (OffsetCommit v2 to v4); 0 = by offsets.retention.minutes.
	ExpiresAt int64
}

// OffsetEntry is one offset to commit.
type OffsetEntry struct {
	TopicID     TopicID
	Partition   int32
	Offset      int64 // ≥ 0
	LeaderEpoch int32 // -1 = not known
	Metadata    string
}

// OffsetCommit commits offsets of one group. What it points to must not be written to once it was given away.
type OffsetCommit struct {
	Group string
	// Member and Instance are the ids that the consumer gave, "" if none.
	Member, Instance string
	// Generation is the generation, or the member epoch, that the consumer gave; -1 with no member is a commit from outside
	// the group, which only a group without members takes.
	Generation int32
	// Time is the coordinator's clock in unix milliseconds.
	Time int64
	// ExpiresAt see CommittedOffset; 0 for none.
	ExpiresAt int64
	Offsets   []OffsetEntry
}

// OffsetDeletion deletes committed offsets of one group. What it points to must not be written to once it was given away.
type OffsetDeletion struct {
	Group string
	// Revision, if not 0, must be that of the group, so that nobody has subscribed meanwhile.
	Revision   uint64
	Partitions []TopicIDPartition
}

// Offset returns the offset that a group has committed of a partition. Those of topics that are deleted are not there,
// whatever has taken their name (M21).
func (im *Image) Offset(group string, id TopicID, partition int32) (CommittedOffset, bool) {
	return im.st.offset(group, id, partition)
}

// Offsets yields all offsets that a group has committed, by ascending topic id and partition, but for those of topics that
// are deleted (M21).
func (im *Image) Offsets(group string) iter.Seq2[TopicIDPartition, CommittedOffset] {
	return im.st.visibleOffsets(group)
}

// OffsetCount is the number of committed offsets of all groups, those of deleted topics included.
func (im *Image) OffsetCount() int { return im.st.offsetCount }

// Offset is Image.Offset of the present Image: at a group's coordinator every offset whose commit was acknowledged, here or
// by an earlier coordinator (G4). A broker that has not heard yet that it is the coordinator no more may lack what its
// successor acknowledged since; a commit of no offsets that it gets through first rules that out.
func (s *Store) Offset(group string, id TopicID, partition int32) (CommittedOffset, bool) {
	return s.Image().Offset(group, id, partition)
}

// Offsets is Image.Offsets of the present Image.
func (s *Store) Offsets(group string) iter.Seq2[TopicIDPartition, CommittedOffset] {
	return s.Image().Offsets(group)
}
