package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// CreatePartitions (key 37), versions 0 to 3 (KIP-195).
//
//	v2    flexible
//	v3    may be refused by quota (89); there are no quotas yet
//
// Count is the number of partitions afterwards; one that does not grow is 37. An
// assignment places the new partitions only. A topic named twice is 42.

func (h *Handlers) createPartitions(c *call, req *kmsg.CreatePartitionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreatePartitionsResponse)
	answer := func(name string, err error) {
		rt := kmsg.NewCreatePartitionsResponseTopic()
		rt.Topic, rt.ErrorCode, rt.ErrorMessage = name, c.code(err), errorMessage(err)
		resp.Topics = append(resp.Topics, rt)
	}
	named := map[string]int{}
	for i := range req.Topics {
		named[req.Topics[i].Topic]++
	}
	var topics []metadata.NewPartitions
	for i := range req.Topics {
		asked := &req.Topics[i]
		if n := named[asked.Topic]; n != 1 {
			if n > 1 {
				named[asked.Topic] = 0
				answer(asked.Topic, duplicate("add partitions to", "topic", asked.Topic))
			}
			continue
		}
		np := metadata.NewPartitions{Topic: asked.Topic, Count: asked.Count}
		if asked.Assignment != nil {
			np.Assignments = make([][]metadata.BrokerID, len(asked.Assignment))
			for j := range asked.Assignment {
				np.Assignments[j] = brokerIDs(asked.Assignment[j].Replicas)
			}
		}
		topics = append(topics, np)
	}
	if len(topics) == 0 {
		return resp
	}
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()
	results := h.cfg.Store.CreatePartitions(ctx, topics, req.ValidateOnly)
	if !req.ValidateOnly {
		h.settle(ctx, results)
	}
	for i := range results {
		answer(topics[i].Topic, results[i].Err)
	}
	return resp
}
