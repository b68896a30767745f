package member

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	protocolType = "consumer"
	protocolName = "range"
)

// join sends JoinGroup and SyncGroup.
func (m *Member) join(ctx context.Context) error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 9, m.cfg.Group, m.id, protocolType
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(m.cfg.Session.Milliseconds()), int32(m.cfg.Rebalance.Milliseconds())
	p := kmsg.NewJoinGroupRequestProtocol()
	subscription := kmsg.NewConsumerMemberMetadata()
	subscription.Topics = m.cfg.Topics
	p.Name, p.Metadata = protocolName, subscription.AppendTo(nil)
	req.Protocols = append(req.Protocols, p)
	answer, err := m.conn.Do(req, m.cfg.Rebalance+joinSlack)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.JoinGroupResponse)
	if resp.ErrorCode != 0 {
		if resp.ErrorCode == codeMemberIDNeeded {
			m.id = resp.MemberID
		}
		m.generation = -1
		return m.refused(ctx, resp.ErrorCode)
	}
	m.id, m.generation = resp.MemberID, resp.Generation
	return m.sync(ctx, resp)
}

func (m *Member) sync(ctx context.Context, joined *kmsg.JoinGroupResponse) error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, m.cfg.Group, m.id, m.generation
	req.ProtocolType, req.Protocol = kmsg.StringPtr(protocolType), joined.Protocol
	if joined.LeaderID == m.id && !joined.SkipAssignment {
		req.GroupAssignment = m.assign(joined.Members)
	}
	answer, err := m.conn.Do(req, m.cfg.Rebalance+joinSlack)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.SyncGroupResponse)
	if resp.ErrorCode != 0 {
		m.generation = -1 // without an assignment there is nothing to go on with
		return m.refused(ctx, resp.ErrorCode)
	}
	share := kmsg.NewConsumerMemberAssignment()
	m.Assigned = 0
	if err := share.ReadFrom(resp.MemberAssignment); err == nil {
		for _, t := range share.Topics {
			m.Assigned += len(t.Partitions)
		}
	}
	m.in, m.nextBeat = true, time.Now().Add(m.cfg.Heartbeat)
	m.notice(Synced)
	return nil
}

// assign deals the partitions out in turn.
func (m *Member) assign(members []kmsg.JoinGroupResponseMember) []kmsg.SyncGroupRequestGroupAssignment {
	shares := make([]kmsg.ConsumerMemberAssignment, len(members))
	for i := range shares {
		shares[i] = kmsg.NewConsumerMemberAssignment()
	}
	for _, topic := range m.cfg.Topics {
		of := make([][]int32, len(members))
		for p := range m.cfg.Partitions {
			of[p%len(members)] = append(of[p%len(members)], int32(p))
		}
		for i, partitions := range of {
			if len(partitions) > 0 {
				t := kmsg.NewConsumerMemberAssignmentTopic()
				t.Topic, t.Partitions = topic, partitions
				shares[i].Topics = append(shares[i].Topics, t)
			}
		}
	}
	out := make([]kmsg.SyncGroupRequestGroupAssignment, len(members))
	for i, other := range members {
		out[i] = kmsg.NewSyncGroupRequestGroupAssignment()
		out[i].MemberID, out[i].MemberAssignment = other.MemberID, shares[i].AppendTo(nil)
	}
	return out
}

// beat sends a heartbeat.
func (m *Member) beat() error {
	m.nextBeat = time.Now().Add(m.cfg.Heartbeat)
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, m.cfg.Group, m.id, m.generation
	answer, err := m.conn.Do(req, requestPatience)
	if err != nil {
		m.nextBeat = time.Now()
		return err
	}
	switch code := answer.(*kmsg.HeartbeatResponse).ErrorCode; code {
	case 0:
		m.notice(Beat)
		return nil
	case codeRebalance:
		m.notice(Told)
		m.in = false
		return nil
	default:
		if code == codeNotCoordinator || code == codeUnavailable || code == codeLoading {
			m.nextBeat = time.Now()
		}
		return m.refused(context.Background(), code)
	}
}

// Commit commits the same offset of some partitions of a topic by one request, as a member does for those it reads, and returns
// the first error code of the answer.
func (m *Member) Commit(topic string, partitions []int32, offset int64) (code int16, err error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 9, m.cfg.Group, m.id, m.generation
	return commit(m.conn, req, topic, partitions, offset)
}

// CommitAll commits the same offset of the partitions [0, partitions) of a topic to a group without members, by one request,
// and returns the first error code of the answer.
func CommitAll(c *Conn, group, topic string, partitions int, offset int64) (code int16, err error) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group = 9, group
	all := make([]int32, partitions)
	for i := range all {
		all[i] = int32(i)
	}
	return commit(c, req, topic, all, offset)
}

func commit(c *Conn, req *kmsg.OffsetCommitRequest, topic string, partitions []int32, offset int64) (code int16, err error) {
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.Partitions = topic, make([]kmsg.OffsetCommitRequestTopicPartition, 0, len(partitions))
	for _, partition := range partitions {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch = partition, offset, -1
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	answer, err := c.Do(req, requestPatience)
	if err != nil {
		return 0, err
	}
	answered := 0
	for _, t := range answer.(*kmsg.OffsetCommitResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				return p.ErrorCode, nil
			}
			answered++
		}
	}
	if answered != len(partitions) {
		return 0, errMalformed
	}
	return 0, nil
}
