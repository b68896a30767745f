package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// DescribeProducers (key 61), version 0 (KIP-664): the producers that a replica of a
// partition knows, and the first offset of the transaction that each has open there. An
// expired producer is not there. Clients ask the leader, unless an administrator wants to see
// how a follower has it (--broker-id of Kafka's tool).

func (h *Handlers) describeProducers(c *call, req *kmsg.DescribeProducersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeProducersResponse)
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewDescribeProducersResponseTopic()
		rt.Topic = topic.Topic
		for _, p := range topic.Partitions {
			rp := kmsg.NewDescribeProducersResponseTopicPartition()
			rp.Partition = p
			producers, err := h.producersOf(topic.Topic, p)
			if err != nil {
				rp.ErrorCode, rp.ErrorMessage = c.code(err), errorMessage(err)
			}
			for j := range producers {
				s := &producers[j]
				ap := kmsg.NewDescribeProducersResponseTopicPartitionActiveProducer()
				ap.ProducerID, ap.ProducerEpoch = s.ProducerID, int32(s.ProducerEpoch)
				ap.LastSequence, ap.LastTimestamp = s.LastSequence, s.LastTimestamp
				ap.CoordinatorEpoch, ap.CurrentTxnStartOffset = s.CoordinatorEpoch, s.CurrentTxnFirstOffset
				rp.ActiveProducers = append(rp.ActiveProducers, ap)
			}
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

func (h *Handlers) producersOf(topic string, partition int32) ([]log.ProducerState, error) {
	if !validTopicName(topic) {
		return nil, fmt.Errorf("describe the producers of %.300q: %w", topic, metadata.ErrInvalidTopic)
	}
	part, err := h.cfg.Replicas.Partition(topic, partition)
	if err != nil {
		return nil, err
	}
	return part.Producers(), nil
}
