package kafka

import (
	"net"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// DescribeQuorum (key 55), versions 0 to 2 (KIP-595).
//
//	v1    when each replica was last heard of, and last had everything (KIP-836)
//	v2    directory ids, endpoints of the voters, error messages (KIP-853)
//
// The metadata are a Raft log of ours and no topic; clients know it as the one
// partition of __cluster_metadata, and anything else is 3. Offsets are those of
// the Raft log, counted as Kafka does: the end is the index after the last entry,
// the high watermark the one after the last that is committed. What the
// controller does not know is -1.

const (
	metadataTopic      = "__cluster_metadata"
	controllerListener = "CONTROLLER"
)

func (h *Handlers) describeQuorum(c *call, req *kmsg.DescribeQuorumRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeQuorumResponse)
	if len(req.Topics) != 1 || req.Topics[0].Topic != metadataTopic || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Partitions[0].Partition != 0 {
		for i := range req.Topics {
			rt := kmsg.NewDescribeQuorumResponseTopic()
			rt.Topic = req.Topics[i].Topic
			for j := range req.Topics[i].Partitions {
				rp := kmsg.NewDescribeQuorumResponseTopicPartition()
				rp.Partition, rp.ErrorCode = req.Topics[i].Partitions[j].Partition, c.error(codeUnknownTopicOrPartition)
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	ctx, cancel := c.adminContext(int32(h.cfg.AdminTimeout.Milliseconds()))
	defer cancel()
	q, err := h.cfg.Store.DescribeQuorum(ctx)
	rp := kmsg.NewDescribeQuorumResponseTopicPartition()
	rp.ErrorCode, rp.ErrorMessage = c.code(err), errorMessage(err)
	if err == nil {
		now := time.Now()
		rp.LeaderID, rp.LeaderEpoch, rp.HighWatermark = int32(q.Leader), int32(q.Term), int64(q.CommitIndex)+1
		rp.CurrentVoters, rp.Observers = quorumReplicas(&q, q.Voters, now), quorumReplicas(&q, q.NonVoters, now)
		resp.Nodes = quorumNodes(q.Voters)
	}
	rt := kmsg.NewDescribeQuorumResponseTopic()
	rt.Topic = metadataTopic
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}

func quorumReplicas(q *metadata.QuorumStatus, members []metadata.QuorumMember, now time.Time) []kmsg.DescribeQuorumResponseTopicPartitionReplicaState {
	var states []kmsg.DescribeQuorumResponseTopicPartitionReplicaState
	for i := range members {
		m := &members[i]
		s := kmsg.NewDescribeQuorumResponseTopicPartitionReplicaState()
		s.ReplicaID, s.ReplicaDirectoryID, s.LogEndOffset = int32(m.ID), m.Directory, -1
		if m.LogIndex > 0 {
			s.LogEndOffset = int64(m.LogIndex) + 1
		}
		if m.LastContact >= 0 {
			s.LastFetchTimestamp = now.Add(-m.LastContact).UnixMilli()
			if m.LogIndex >= q.CommitIndex && m.LogIndex > 0 {
				s.LastCaughtUpTimestamp = s.LastFetchTimestamp
			}
		}
		states = append(states, s)
	}
	return states
}

// quorumNodes are the voters' listeners for other brokers. A voter whose address
// is not known has none.
func quorumNodes(voters []metadata.QuorumMember) []kmsg.DescribeQuorumResponseNode {
	var nodes []kmsg.DescribeQuorumResponseNode
	for i := range voters {
		n := kmsg.NewDescribeQuorumResponseNode()
		n.NodeID = int32(voters[i].ID)
		if host, text, err := net.SplitHostPort(voters[i].Address); err == nil {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil {
				l := kmsg.NewDescribeQuorumResponseNodeListener()
				l.Name, l.Host, l.Port = controllerListener, host, uint16(port)
				n.Listeners = append(n.Listeners, l)
			}
		}
		nodes = append(nodes, n)
	}
	return nodes
}
