package metadata

import (
	"errors"
	"fmt"
	"time"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// message is what the snapshot says of a group beside its members.
func (g *Group) message() *pb.Group {
	return &pb.Group{
		Name: g.Name, Type: uint32(g.Type), State: uint32(g.State), Revision: g.Revision, Generation: g.Generation,
		AssignmentEpoch: g.AssignmentEpoch, ProtocolType: g.ProtocolType, Protocol: g.Protocol, Leader: g.Leader,
		Assignor: g.Assignor, TopicsHash: g.TopicsHash, EmptySince: g.EmptySince, PutOutAt: g.PutOutAt, Interrupted: g.Interrupted,
		Members: uint32(len(g.Members)),
	}
}

// decodeGroup returns a group without its members.
func decodeGroup(m *pb.Group) (*Group, error) {
	switch {
	case m == nil || m.Name == "":
		return nil, errors.New("a group without name")
	case m.Type < uint32(ClassicGroup) || m.Type > uint32(ConsumerGroup) || m.State > uint32(GroupStable):
		return nil, fmt.Errorf("group %s of type %d in state %d: %w", quoteShort(m.Name), m.Type, m.State, errNewerVersion)
	case m.Generation < 0:
		return nil, fmt.Errorf("group %s with generation %d", quoteShort(m.Name), m.Generation)
	}
	return &Group{
		Name: m.Name, Type: GroupType(m.Type), State: GroupState(m.State), Revision: m.Revision, Generation: m.Generation,
		AssignmentEpoch: m.AssignmentEpoch, ProtocolType: m.ProtocolType, Protocol: m.Protocol, Leader: m.Leader,
		Assignor: m.Assignor, TopicsHash: m.TopicsHash, EmptySince: m.EmptySince, PutOutAt: m.PutOutAt, Interrupted: m.Interrupted,
	}, nil
}

func (m *GroupMember) message() *pb.GroupMember {
	out := &pb.GroupMember{
		Id: m.ID, InstanceId: m.InstanceID, Rack: m.Rack, ClientId: m.ClientID, ClientHost: m.ClientHost,
		SessionTimeout: m.SessionTimeout.Milliseconds(), RebalanceTimeout: m.RebalanceTimeout.Milliseconds(),
		Assignment: m.Assignment, MemberEpoch: m.MemberEpoch, PreviousMemberEpoch: m.PreviousMemberEpoch, State: uint32(m.State),
		Subscription: m.Subscription, SubscriptionRegex: m.SubscriptionRegex, ServerAssignor: m.ServerAssignor,
		Assigned: encodeGroupPartitions(m.Assigned), Revoking: encodeGroupPartitions(m.Revoking), Target: encodeGroupPartitions(m.Target),
	}
	for _, p := range m.Protocols {
		out.Protocols = append(out.Protocols, &pb.GroupProtocol{Name: p.Name, Metadata: p.Metadata})
	}
	return out
}

func decodeGroupMember(m *pb.GroupMember) (_ *GroupMember, err error) {
	if m.Id == "" {
		return nil, errors.New("a member without id")
	}
	if m.State > 255 {
		return nil, fmt.Errorf("member %s in state %d: %w", quoteShort(m.Id), m.State, errNewerVersion)
	}
	out := &GroupMember{
		ID: m.Id, InstanceID: m.InstanceId, Rack: m.Rack, ClientID: m.ClientId, ClientHost: m.ClientHost,
		SessionTimeout:   time.Duration(m.SessionTimeout) * time.Millisecond,
		RebalanceTimeout: time.Duration(m.RebalanceTimeout) * time.Millisecond,
		Assignment:       m.Assignment, MemberEpoch: m.MemberEpoch, PreviousMemberEpoch: m.PreviousMemberEpoch, State: uint8(m.State),
		Subscription: m.Subscription, SubscriptionRegex: m.SubscriptionRegex, ServerAssignor: m.ServerAssignor,
	}
	if len(m.Protocols) > 0 {
		out.Protocols = make([]GroupProtocol, len(m.Protocols))
		for i, p := range m.Protocols {
			out.Protocols[i] = GroupProtocol{Name: p.Name, Metadata: p.Metadata}
		}
	}
	if out.Assigned, err = decodeGroupPartitions(m.Assigned); err != nil {
		return nil, fmt.Errorf("assigned: %w", err)
	}
	if out.Revoking, err = decodeGroupPartitions(m.Revoking); err != nil {
		return nil, fmt.Errorf("revoking: %w", err)
	}
	if out.Target, err = decodeGroupPartitions(m.Target); err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return out, nil
}

func encodeGroupPartitions(topics []TopicPartitions) *pb.GroupPartitions {
	if len(topics) == 0 {
		return nil
	}
	m := &pb.GroupPartitions{}
	for _, t := range topics {
		m.TopicIds = append(m.TopicIds, t.TopicID[:]...)
		m.Counts = append(m.Counts, uint32(len(t.Partitions)))
		for i, p := range t.Partitions {
			if len(t.Epochs) > 0 && m.Epochs == nil {
				m.Epochs = make([]int32, len(m.Partitions), len(m.Partitions)+len(t.Partitions))
			}
			m.Partitions = append(m.Partitions, uint32(p))
			if m.Epochs != nil {
				epoch := int32(0)
				if i < len(t.Epochs) {
					epoch = t.Epochs[i]
				}
				m.Epochs = append(m.Epochs, epoch)
			}
		}
	}
	return m
}

// decodeGroupPartitions reads what encodeGroupPartitions wrote. Epochs that are all 0 are nil.
func decodeGroupPartitions(m *pb.GroupPartitions) ([]TopicPartitions, error) {
	if m == nil {
		return nil, nil
	}
	if len(m.TopicIds) != len(m.Counts)*len(TopicID{}) || len(m.Epochs) > 0 && len(m.Epochs) != len(m.Partitions) {
		return nil, fmt.Errorf("%d bytes of topic ids with %d counts, %d partitions with %d epochs", len(m.TopicIds), len(m.Counts), len(m.Partitions), len(m.Epochs))
	}
	out := make([]TopicPartitions, len(m.Counts))
	at := 0
	for i, n := range m.Counts {
		if int64(n) > int64(len(m.Partitions)-at) {
			return nil, fmt.Errorf("count %d with %d partitions left", n, len(m.Partitions)-at)
		}
		t := TopicPartitions{TopicID: TopicID(m.TopicIds[i*16 : i*16+16])}
		if n > 0 {
			t.Partitions = make([]int32, n)
		}
		var epochs []int32
		if len(m.Epochs) > 0 {
			epochs = m.Epochs[at : at+int(n)]
		}
		for j := range t.Partitions {
			p := m.Partitions[at+j]
			if p > 1<<31-1 {
				return nil, fmt.Errorf("partition %d", p)
			}
			t.Partitions[j] = int32(p)
			if epochs != nil && epochs[j] != 0 {
				t.Epochs = epochs
			}
		}
		at += int(n)
		out[i] = t
	}
	if at != len(m.Partitions) {
		return nil, fmt.Errorf("%d partitions of no topic", len(m.Partitions)-at)
	}
	return out, nil
}
