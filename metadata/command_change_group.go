package metadata

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// changeGroup changes one group on behalf of its coordinator, or deletes it.
type changeGroup struct {
	broker BrokerID
	epoch  int64 // of the broker's registration
	// group is the state after the change, but for its members; its Revision is the one that it was decided on.
	group  *Group
	remove []string
	upsert []*GroupMember
	assign []MemberAssignment
	delete bool
	seek   []OffsetEntry // to be set in the same step; -1 is none
	time   int64         // with delete and seek; unix milliseconds
}

// sought is what changeGroup did with a seek.
type sought struct {
	revision uint64
	prior    []CommittedOffset // parallel to the seek
}

func newChangeGroup(c *GroupChange) *changeGroup {
	change := &changeGroup{
		broker: c.Broker, epoch: c.BrokerEpoch,
		group: &Group{
			Name: c.Group, Type: c.Type, State: c.State, Revision: c.Revision, Generation: c.Generation, AssignmentEpoch: c.AssignmentEpoch,
			ProtocolType: c.ProtocolType, Protocol: c.Protocol, Leader: c.Leader, Assignor: c.Assignor, TopicsHash: c.TopicsHash,
			EmptySince: c.EmptySince, PutOutAt: c.PutOutAt, Interrupted: c.Interrupted,
		},
		remove: c.Remove, upsert: c.Upsert, assign: c.Assign, delete: c.Delete, time: c.Time,
	}
	if c.Seek != nil {
		change.seek = c.Seek.Offsets
	}
	return change
}

// check refuses what no broker could decode: it would be committed, and then nobody could apply it.
func (c *GroupChange) check() error {
	refuse := func(why, fix string) error {
		return &Error{Kind: ErrInvalidRequest, What: fmt.Sprintf("the change of group %s can't be made", quoteShort(c.Group)), Why: why, Fix: fix}
	}
	const bug = "this is a mistake of millrace; report it with the broker's log"
	switch {
	case c.Group == "":
		return refuse("it names no group", bug)
	case c.Type < ClassicGroup || c.Type > ConsumerGroup || c.State > GroupStable:
		return refuse(fmt.Sprintf("type %d in state %d is none that a group has", c.Type, c.State), bug)
	case c.Generation < 0 || c.AssignmentEpoch < 0:
		return refuse("the group has had as many generations as can be counted", "use another group name, and bring the offsets there with millrace group export and seek")
	case slices.ContainsFunc(c.Upsert, func(m *GroupMember) bool { return m.ID == "" }):
		return refuse("a member has no id", bug)
	case c.Seek != nil && (c.Delete || len(c.Seek.Offsets) == 0 || slices.ContainsFunc(c.Seek.Offsets, func(o OffsetEntry) bool { return o.Partition < 0 || o.Offset < -1 })):
		return refuse("offsets are to be set that can't be", bug)
	}
	return nil
}

func (c *changeGroup) kind() pb.CommandType { return pb.CommandType_COMMAND_CHANGE_GROUP }

func (c *changeGroup) message() proto.Message {
	m := &pb.ChangeGroup{
		Broker: int32(c.broker), BrokerEpoch: c.epoch, Group: c.group.message(), Remove: c.remove, Delete: c.delete, Time: c.time,
	}
	for _, member := range c.upsert {
		m.Upsert = append(m.Upsert, member.message())
	}
	for _, a := range c.assign {
		m.Assign = append(m.Assign, &pb.MemberAssignment{Member: a.Member, Assignment: a.Assignment})
	}
	if len(c.seek) > 0 {
		m.Seek = &pb.OffsetColumns{}
		var e offsetEncoder
		for i := range c.seek {
			o := &c.seek[i]
			e.add(m.Seek, TopicIDPartition{o.TopicID, o.Partition}, o.Offset, o.LeaderEpoch, o.Metadata)
		}
	}
	return m
}

func decodeChangeGroup(body []byte) (command, error) {
	var m pb.ChangeGroup
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	g, err := decodeGroup(m.Group)
	if err != nil {
		return nil, err
	}
	if m.Group.Members != 0 {
		return nil, errors.New("change group: it counts members")
	}
	c := &changeGroup{
		broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, group: g, remove: m.Remove, delete: m.Delete, time: m.Time,
	}
	for _, member := range m.Upsert {
		decoded, err := decodeGroupMember(member)
		if err != nil {
			return nil, err
		}
		c.upsert = append(c.upsert, decoded)
	}
	for _, a := range m.Assign {
		c.assign = append(c.assign, MemberAssignment{Member: a.Member, Assignment: a.Assignment})
	}
	if m.Seek != nil {
		if err := c.decodeSeek(m.Seek); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *changeGroup) decodeSeek(from *pb.OffsetColumns) error {
	switch {
	case c.delete:
		return errors.New("offsets of a group that is deleted")
	case len(from.Partitions) == 0:
		return errors.New("a seek of no partition")
	case len(from.CommittedAt) > 0 || len(from.ExpiresAt) > 0:
		return errors.New("a seek with columns of a snapshot")
	}
	return decodeOffsets(from, func(n int) { c.seek = make([]OffsetEntry, 0, n) }, func(tp TopicIDPartition, o CommittedOffset) error {
		if o.Offset < -1 {
			return fmt.Errorf("a seek to offset %d", o.Offset)
		}
		c.seek = append(c.seek, OffsetEntry{tp.TopicID, tp.Partition, o.Offset, o.LeaderEpoch, o.Metadata})
		return nil
	})
}

// apply returns the new revision, a uint64, that of the deletion too; with a seek a sought.
func (c *changeGroup) apply(d *draft, _ position) (any, error) {
	name := c.group.Name
	if err := d.coordinates(c.broker, c.epoch, name); err != nil {
		return nil, err
	}
	old := d.st.group(name)
	var revision uint64
	if old != nil {
		revision = old.Revision
	}
	if revision != c.group.Revision {
		return nil, ErrStale
	}
	if c.delete {
		if old == nil {
			return nil, ErrGroupNotFound
		}
		if members, err := c.members(old); err != nil || len(members) > 0 {
			return nil, cmp.Or(err, ErrGroupNotEmpty)
		}
		d.removeGroup(old, c.time)
		return d.st.groupRevision, nil
	}
	if c.group.Generation < d.st.lastGeneration(name) {
		return nil, ErrStale // of an earlier group of that name (I15)
	}
	members, err := c.members(old)
	if err != nil {
		return nil, err
	}
	if err := c.maySeek(d); err != nil {
		return nil, err
	}
	next := *c.group
	next.Members = members
	if len(members) > 0 {
		next.EmptySince = 0
	}
	d.createGroup(&next)
	if len(c.seek) > 0 {
		return sought{next.Revision, c.applySeek(d)}, nil
	}
	return next.Revision, nil
}

// maySeek refuses a seek of which one offset can't be set.
func (c *changeGroup) maySeek(d *draft) error {
	for i := range c.seek {
		o := &c.seek[i]
		switch t := d.st.topicByID(o.TopicID); {
		case t == nil:
			return ErrUnknownTopicID
		case int(o.Partition) >= len(t.Partitions): // never negative: it was a column of unsigned numbers
			return ErrUnknownPartition
		}
	}
	return nil
}

// applySeek sets the offsets and returns those before. What transactions have pending of these partitions, from before, counts
// no more.
func (c *changeGroup) applySeek(d *draft) []CommittedOffset {
	name := c.group.Name
	prior := make([]CommittedOffset, len(c.seek))
	_, pending := d.st.pending.get(name)
	var gone []TopicIDPartition
	for i := range c.seek {
		o := &c.seek[i]
		tp := TopicIDPartition{o.TopicID, o.Partition}
		var ok bool
		if prior[i], ok = d.st.offset(name, o.TopicID, o.Partition); !ok {
			prior[i] = CommittedOffset{Offset: -1, LeaderEpoch: -1}
		}
		if o.Offset < 0 {
			gone = append(gone, tp)
			continue
		}
		d.putOffset(d.ownOffsets(name), tp, CommittedOffset{Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata, CommittedAt: c.time})
		if pending {
			d.supersede(name, tp, d.nextOrder())
		}
	}
	d.dropOffsets(name, gone)
	d.dropPending(name, gone)
	return prior
}

// members returns those after the change.
func (c *changeGroup) members(old *Group) ([]*GroupMember, error) {
	var before []*GroupMember
	if old != nil {
		before = old.Members
	}
	if len(c.remove) == 0 && len(c.upsert) == 0 && len(c.assign) == 0 {
		return before, nil
	}
	next := Group{Members: make([]*GroupMember, 0, len(before)+len(c.upsert))}
	remove := slices.Sorted(slices.Values(c.remove))
	for _, m := range before {
		if _, gone := slices.BinarySearch(remove, m.ID); !gone {
			next.Members = append(next.Members, m)
		}
	}
	var added []*GroupMember
	for _, m := range c.upsert {
		if i, found := next.memberIndex(m.ID); found {
			next.Members[i] = m
		} else {
			added = append(added, m)
		}
	}
	if len(added) > 0 {
		next.Members = append(next.Members, added...)
		slices.SortStableFunc(next.Members, func(a, b *GroupMember) int { return cmp.Compare(a.ID, b.ID) })
		for i := 1; i < len(next.Members); i++ {
			if next.Members[i-1].ID == next.Members[i].ID {
				return nil, ErrInvalidRequest
			}
		}
	}
	for _, a := range c.assign {
		i, found := next.memberIndex(a.Member)
		if !found {
			return nil, ErrInvalidRequest
		}
		m := *next.Members[i] // may be one that an Image shows
		m.Assignment = a.Assignment
		next.Members[i] = &m
	}
	if len(next.Members) == 0 {
		return nil, nil
	}
	return next.Members, nil
}
