package metadata

import (
	"cmp"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// Bounds of the records of groups and offsets, so that none becomes large.
const (
	memberBytesPerRecord     = 64 << 10
	offsetsPerRecord         = 1024
	lastGenerationsPerRecord = 1024
)

// writeGroups writes all there is of groups. A state of an older feature level has nothing of it.
func (sw *snapshotWriter) writeGroups(st *state) error {
	for _, g := range st.groups.all() {
		if err := sw.writeGroup(g); err != nil {
			return err
		}
	}
	for name, of := range st.offsets.all() {
		if err := sw.writeOffsets(name, of); err != nil {
			return err
		}
	}
	if err := sw.writeLastGenerations(st); err != nil {
		return err
	}
	if len(st.commitSequences) == 0 {
		return nil
	}
	m := &pb.SnapshotCommitSequences{}
	for _, s := range st.commitSequences {
		m.Brokers = append(m.Brokers, int32(s.Broker))
		m.Epochs = append(m.Epochs, s.Epoch)
		m.Lanes = append(m.Lanes, s.Lane)
		m.Sequences = append(m.Sequences, s.Sequence)
	}
	return sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_CommitSequences{CommitSequences: m}})
}

func (sw *snapshotWriter) writeGroup(g *Group) error {
	if err := sw.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Group{Group: g.message()}}); err != nil {
		return err
	}
	m := &pb.SnapshotMembers{}
	rec := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Members{Members: m}}
	size := 0
	for i, member := range g.Members {
		encoded := member.message()
		m.Members = append(m.Members, encoded)
		if size += proto.Size(encoded); size < memberBytesPerRecord && i < len(g.Members)-1 {
			continue
		}
		if err := sw.write(rec); err != nil {
			return err
		}
		m.Members, size = m.Members[:0], 0
	}
	return nil
}

func (sw *snapshotWriter) writeOffsets(group string, of *groupOffsets) error {
	columns := &pb.OffsetColumns{}
	rec := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Offsets{Offsets: &pb.SnapshotOffsets{Group: group, Offsets: columns}}}
	var e offsetEncoder
	flush := func() error {
		if e.n == 0 {
			return nil
		}
		err := sw.write(rec)
		// The slices are used again: a million offsets would otherwise be as much garbage.
		columns.TopicIds, columns.Counts, columns.Partitions, columns.Offsets = columns.TopicIds[:0], columns.Counts[:0], columns.Partitions[:0], columns.Offsets[:0]
		columns.CommittedAt = columns.CommittedAt[:0]
		columns.LeaderEpochs, columns.Metadata, columns.ExpiresAt = nil, nil, nil
		e = offsetEncoder{}
		return err
	}
	for tp, o := range of.all() {
		e.add(columns, tp, o.Offset, o.LeaderEpoch, o.Metadata)
		e.addTimes(columns, o.CommittedAt, o.ExpiresAt)
		if e.n == offsetsPerRecord {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

func (sw *snapshotWriter) writeLastGenerations(st *state) error {
	m := &pb.SnapshotLastGenerations{}
	rec := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_LastGenerations{LastGenerations: m}}
	for name, last := range st.lastGenerations.all() {
		m.Groups = append(m.Groups, name)
		m.Generations = append(m.Generations, last.Generation)
		m.DeletedAt = append(m.DeletedAt, last.DeletedAt)
		if len(m.Groups) == lastGenerationsPerRecord {
			if err := sw.write(rec); err != nil {
				return err
			}
			m.Groups, m.Generations, m.DeletedAt = m.Groups[:0], m.Generations[:0], m.DeletedAt[:0]
		}
	}
	if len(m.Groups) == 0 {
		return nil
	}
	return sw.write(rec)
}

// groupBuilder is the part of snapshotBuilder that takes groups.
type groupBuilder struct {
	group   *Group // whose members come next
	missing int    // how many of them
	// offsets are those of the group whose records came last.
	offsets     *groupOffsets
	offsetsOf   string
	lastOffset  TopicIDPartition
	lastName    string // of lastGenerations
	haveOffsets bool
}

func (b *snapshotBuilder) addGroup(m *pb.Group) error {
	g, err := decodeGroup(m)
	if err != nil {
		return err
	}
	st := &b.d.st
	switch {
	case b.groups.group != nil && b.groups.group.Name >= g.Name:
		return fmt.Errorf("group %s out of order", quoteShort(g.Name))
	case g.Revision == 0 || g.Revision > st.groupRevision:
		return fmt.Errorf("group %s has revision %d of %d", quoteShort(g.Name), g.Revision, st.groupRevision)
	case m.Members > 0 && g.EmptySince != 0:
		return fmt.Errorf("group %s has members and is empty", quoteShort(g.Name))
	}
	b.groups.group, b.groups.missing = g, int(m.Members)
	st.groups = st.groups.set(b.d.edit, g.Name, g)
	return nil
}

func (b *snapshotBuilder) addMembers(m *pb.SnapshotMembers) error {
	g := b.groups.group
	if len(m.Members) > b.groups.missing {
		return fmt.Errorf("%d members too many", len(m.Members)-b.groups.missing)
	}
	for _, encoded := range m.Members {
		member, err := decodeGroupMember(encoded)
		if err != nil {
			return fmt.Errorf("group %s: %w", quoteShort(g.Name), err)
		}
		if n := len(g.Members); n > 0 && g.Members[n-1].ID >= member.ID {
			return fmt.Errorf("group %s: member %s out of order", quoteShort(g.Name), quoteShort(member.ID))
		}
		g.Members = append(g.Members, member)
	}
	b.groups.missing -= len(m.Members)
	return nil
}

func (b *snapshotBuilder) addOffsets(m *pb.SnapshotOffsets) error {
	at, name := &b.groups, m.Group
	if !at.haveOffsets || at.offsetsOf != name {
		switch {
		case at.haveOffsets && at.offsetsOf >= name:
			return fmt.Errorf("offsets of group %s out of order", quoteShort(name))
		case b.d.st.group(name) == nil:
			return fmt.Errorf("offsets of group %s, which is not there", quoteShort(name))
		case len(m.Offsets.GetPartitions()) == 0:
			return fmt.Errorf("no offsets of group %s", quoteShort(name))
		}
		at.offsets, at.offsetsOf, at.haveOffsets, at.lastOffset = b.d.ownOffsets(b.d.st.group(name).Name), name, true, TopicIDPartition{}
	}
	return decodeOffsets(m.Offsets, func(int) {}, func(tp TopicIDPartition, o CommittedOffset) error {
		if compareTopicIDPartitions(at.lastOffset, tp) >= 0 {
			return fmt.Errorf("offsets of group %s: %s out of order", quoteShort(name), tp.TopicID)
		}
		at.lastOffset = tp
		b.d.putOffset(at.offsets, tp, o)
		return nil
	})
}

func (b *snapshotBuilder) addLastGenerations(m *pb.SnapshotLastGenerations) error {
	if len(m.Groups) == 0 || len(m.Generations) != len(m.Groups) || len(m.DeletedAt) != len(m.Groups) {
		return fmt.Errorf("last generations in columns of %d, %d and %d", len(m.Groups), len(m.Generations), len(m.DeletedAt))
	}
	st := &b.d.st
	for i, name := range m.Groups {
		if b.groups.lastName >= name || st.group(name) != nil || m.Generations[i] <= 0 {
			return fmt.Errorf("last generation %d of group %s out of order, or of one that is there", m.Generations[i], quoteShort(name))
		}
		b.groups.lastName = name
		st.lastGenerations = st.lastGenerations.set(b.d.edit, name, lastGeneration{Generation: m.Generations[i], DeletedAt: m.DeletedAt[i]})
	}
	return nil
}

func (b *snapshotBuilder) addCommitSequences(m *pb.SnapshotCommitSequences) error {
	n := len(m.Brokers)
	if n == 0 || len(m.Epochs) != n || len(m.Lanes) != n || len(m.Sequences) != n {
		return fmt.Errorf("commit sequences in columns of %d, %d, %d and %d", n, len(m.Epochs), len(m.Lanes), len(m.Sequences))
	}
	if b.d.st.commitSequences != nil {
		return errors.New("commit sequences twice")
	}
	for i := range n {
		s := commitSequence{Broker: BrokerID(m.Brokers[i]), Epoch: m.Epochs[i], Lane: m.Lanes[i], Sequence: m.Sequences[i]}
		if i > 0 && compareCommitSequences(b.d.st.commitSequences[i-1], s) >= 0 {
			return fmt.Errorf("commit sequence of broker %d out of order", s.Broker)
		}
		b.d.st.commitSequences = append(b.d.st.commitSequences, s)
	}
	return nil
}

func compareCommitSequences(a, b commitSequence) int {
	return cmp.Or(cmp.Compare(a.Broker, b.Broker), cmp.Compare(a.Lane, b.Lane))
}
