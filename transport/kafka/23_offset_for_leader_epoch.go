package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// OffsetForLeaderEpoch (key 23), versions 2 to 4 (KIP-101, KIP-279, KIP-320).
//
//	v2    current leader epoch, for fencing
//	v3    replica id; consumers send -1
//	v4    flexible
//
// Answers the largest leader epoch that is not above the asked one, and the offset
// at which it ends; -1 and -1 when there is none. Only the leader answers (6): a
// follower that is behind would tell consumers that records were lost (trap 14).

func (h *Handlers) offsetForLeaderEpoch(c *call, req *kmsg.OffsetForLeaderEpochRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
	resp.Topics = make([]kmsg.OffsetForLeaderEpochResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewOffsetForLeaderEpochResponseTopic()
		rt.Topic = topic.Topic
		rt.Partitions = make([]kmsg.OffsetForLeaderEpochResponseTopicPartition, 0, len(topic.Partitions))
		for j := range topic.Partitions {
			asked := &topic.Partitions[j]
			rp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
			rp.Partition, rp.LeaderEpoch, rp.EndOffset = asked.Partition, -1, -1
			part, err := h.cfg.Replicas.Partition(topic.Topic, asked.Partition)
			if err == nil {
				rp.LeaderEpoch, rp.EndOffset, err = part.EpochEnd(asked.CurrentLeaderEpoch, asked.LeaderEpoch)
			}
			rp.ErrorCode = c.code(err)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
