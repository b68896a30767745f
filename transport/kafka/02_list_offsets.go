package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/replication"
)

// ListOffsets (key 2), versions 1 to 10.
//
//	v1    one offset for each partition
//	v2    isolation level
//	v4    leader epochs, for fencing and in answers (KIP-320)
//	v5    may be told OFFSET_NOT_AVAILABLE (78); older versions get 5
//	v6    flexible
//	v7    -3, the record with the largest timestamp (KIP-734)
//	v8    -4, the earliest offset on local disk (KIP-405)
//	v9    -5, the latest offset in tiered storage (KIP-1005)
//	v10   timeout, for asynchronous reads of tiered storage, which there is none of
//
// A specification that the version does not have is 35, for its partition alone.
// By time the answer is the first record, not the first batch, at or after it;
// when there is none, offset and timestamp are -1 and there is no error. Only the
// leader answers. A partition named twice is 42 in each place.

// firstVersion is the version that brought an offset specification.
var firstVersion = map[int64]int16{
	replication.OffsetLatest: 0, replication.OffsetEarliest: 0, replication.OffsetMaxTimestamp: 7,
	replication.OffsetEarliestLocal: 8, replication.OffsetLatestTiered: 9,
}

// namedPartition is a partition as a request names it.
type namedPartition struct {
	topic     string
	partition int32
}

func (h *Handlers) listOffsets(c *call, req *kmsg.ListOffsetsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
	named := map[namedPartition]int{}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			named[namedPartition{req.Topics[i].Topic, req.Topics[i].Partitions[j].Partition}]++
		}
	}
	resp.Topics = make([]kmsg.ListOffsetsResponseTopic, 0, len(req.Topics))
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = topic.Topic
		rt.Partitions = make([]kmsg.ListOffsetsResponseTopicPartition, 0, len(topic.Partitions))
		for j := range topic.Partitions {
			asked := &topic.Partitions[j]
			rp := kmsg.NewListOffsetsResponseTopicPartition()
			rp.Partition = asked.Partition
			err := errDuplicatePartition
			if named[namedPartition{topic.Topic, asked.Partition}] == 1 {
				err = h.listOffset(req, topic.Topic, asked, &rp)
			}
			rp.ErrorCode = codeOf(err)
			if rp.ErrorCode == codeOffsetNotAvailable && req.Version < 5 {
				rp.ErrorCode = codeLeaderNotAvailable
			}
			c.error(rp.ErrorCode)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (h *Handlers) listOffset(req *kmsg.ListOffsetsRequest, topic string, asked *kmsg.ListOffsetsRequestTopicPartition, rp *kmsg.ListOffsetsResponseTopicPartition) error {
	part, err := h.cfg.Replicas.Partition(topic, asked.Partition)
	if err != nil {
		return err
	}
	if first, ok := firstVersion[asked.Timestamp]; asked.Timestamp < 0 && (!ok || req.Version < first) {
		return fmt.Errorf("list offset %d with version %d: %w", asked.Timestamp, req.Version, replication.ErrUnknownOffsetSpec)
	}
	epoch := int32(-1)
	if req.Version >= 4 {
		epoch = asked.CurrentLeaderEpoch
	}
	committed := req.Version >= 2 && req.IsolationLevel == 1
	offset, timestamp, leaderEpoch, err := part.ListOffset(asked.Timestamp, committed, epoch)
	if err != nil {
		return err
	}
	rp.Offset, rp.Timestamp, rp.LeaderEpoch = offset, timestamp, leaderEpoch
	return nil
}
