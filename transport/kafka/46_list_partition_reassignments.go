package kafka

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// ListPartitionReassignments (key 46), version 0 (KIP-455).
//
// Null topics mean all. Partitions that are not being moved, or don't exist, are
// left out. Replicas are all that hold or get the partition now: those that stay,
// that are added and that are removed.

func (h *Handlers) listPartitionReassignments(c *call, req *kmsg.ListPartitionReassignmentsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListPartitionReassignmentsResponse)
	var asked map[namedPartition]struct{}
	if req.Topics != nil {
		asked = map[namedPartition]struct{}{}
		for i := range req.Topics {
			for _, partition := range req.Topics[i].Partitions {
				asked[namedPartition{req.Topics[i].Topic, partition}] = struct{}{}
			}
		}
	}
	type moving struct {
		metadata.TopicPartition
		*metadata.Partition
	}
	var moves []moving
	for tp, p := range h.cfg.Store.Image().Reassignments() {
		if _, ok := asked[namedPartition{tp.Topic, tp.Partition}]; ok || asked == nil {
			moves = append(moves, moving{tp, p})
		}
	}
	slices.SortFunc(moves, func(a, b moving) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.TopicPartition.Partition, b.TopicPartition.Partition))
	})
	for _, m := range moves {
		if n := len(resp.Topics); n == 0 || resp.Topics[n-1].Topic != m.Topic {
			rt := kmsg.NewListPartitionReassignmentsResponseTopic()
			rt.Topic = m.Topic
			resp.Topics = append(resp.Topics, rt)
		}
		rp := kmsg.NewListPartitionReassignmentsResponseTopicPartition()
		rp.Partition = m.TopicPartition.Partition
		rp.Replicas, rp.AddingReplicas, rp.RemovingReplicas = int32s(m.Replicas), int32s(m.Adding), int32s(m.Removing)
		topic := &resp.Topics[len(resp.Topics)-1]
		topic.Partitions = append(topic.Partitions, rp)
	}
	return resp
}
