package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// AlterPartitionReassignments (key 45), version 0 (KIP-455).
//
// Null replicas cancel the reassignment of a partition, which is 85 when there is
// none; others start one, or change the target of the one under way. An answer
// without an error says that it has begun. A partition named twice is 42. The
// metadata keep a reassignment, so that it survives whoever leads it.

func (h *Handlers) alterPartitionReassignments(c *call, req *kmsg.AlterPartitionAssignmentsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterPartitionAssignmentsResponse)
	var moves []metadata.Reassignment
	for i := range req.Topics {
		topic := &req.Topics[i]
		for j := range topic.Partitions {
			p := &topic.Partitions[j]
			m := metadata.Reassignment{TopicPartition: metadata.TopicPartition{Topic: topic.Topic, Partition: p.Partition}}
			if p.Replicas != nil {
				m.Replicas = brokerIDs(p.Replicas) // not nil, which would cancel
			}
			moves = append(moves, m)
		}
	}
	if len(moves) == 0 {
		return resp
	}
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()
	results := h.cfg.Store.AlterReassignments(ctx, moves)
	if err := h.await(ctx); err != nil {
		for i := range results {
			if results[i] == nil {
				results[i] = err
			}
		}
	}
	at := 0
	for i := range req.Topics {
		rt := kmsg.NewAlterPartitionAssignmentsResponseTopic()
		rt.Topic = req.Topics[i].Topic
		for j := range req.Topics[i].Partitions {
			rp := kmsg.NewAlterPartitionAssignmentsResponseTopicPartition()
			rp.Partition, rp.ErrorCode, rp.ErrorMessage = req.Topics[i].Partitions[j].Partition, c.code(results[at]), errorMessage(results[at])
			rt.Partitions = append(rt.Partitions, rp)
			at++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}
