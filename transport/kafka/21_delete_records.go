package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/metadata"
)

// DeleteRecords (key 21), versions 0 to 2 (KIP-107).
//
//	v2    flexible
//
// Moves the start of a partition's log to an offset, -1 for the high watermark;
// above that is 1. What lies below can't be read from then on, while its bytes go
// with their segment. The answer holds the low watermark: the least start of all
// replicas. A topic that is only compacted refuses (44), as its records go by key
// alone.

// deleteRecordsAtOnce bounds the partitions of one request that are worked on at
// once: each move takes syncs.
const deleteRecordsAtOnce = 16

func (h *Handlers) deleteRecords(c *call, req *kmsg.DeleteRecordsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DeleteRecordsResponse)
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(deleteRecordsAtOnce)
	resp.Topics = make([]kmsg.DeleteRecordsResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewDeleteRecordsResponseTopic()
		rt.Topic = topic.Topic
		rt.Partitions = make([]kmsg.DeleteRecordsResponseTopicPartition, len(topic.Partitions))
		for j := range topic.Partitions {
			asked, rp := &topic.Partitions[j], &rt.Partitions[j]
			rp.Default()
			rp.Partition, rp.LowWatermark = asked.Partition, -1
			group.Go(func() error {
				low, err := h.deleteRecordsOf(ctx, topic.Topic, asked.Partition, asked.Offset)
				if err == nil {
					rp.LowWatermark = low
				}
				rp.ErrorCode = c.code(err)
				return nil
			})
		}
		resp.Topics = append(resp.Topics, rt)
	}
	_ = group.Wait() // each partition has its own error in the answer
	return resp
}

func (h *Handlers) deleteRecordsOf(ctx context.Context, topic string, partition int32, offset int64) (lowWatermark int64, err error) {
	part, err := h.cfg.Replicas.Partition(topic, partition)
	if err != nil {
		return -1, err
	}
	if !part.Settings().Delete {
		return -1, fmt.Errorf("delete records of %s-%d: its cleanup.policy is compact alone: %w", topic, partition, metadata.ErrPolicyViolation)
	}
	return part.DeleteRecords(ctx, offset, -1)
}
