package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// ElectLeaders (key 43), versions 0 to 2 (KIP-460).
//
//	v0    preferred leaders only
//	v1    election type: 0 preferred, 1 unclean; a top-level error
//	v2    flexible
//
// Null topics mean all partitions, of which those with nothing to elect are left
// out of the answer; asked for by name they are 84. An election is done when the
// answer comes, and this broker knows of it.

func (h *Handlers) electLeaders(c *call, req *kmsg.ElectLeadersRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ElectLeadersResponse)
	kind := metadata.Preferred
	switch {
	case req.Version == 0, req.ElectionType == 0:
	case req.ElectionType == 1:
		kind = metadata.Unclean
	default:
		resp.ErrorCode = c.error(codeInvalidRequest)
		for i := range req.Topics {
			rt := kmsg.NewElectLeadersResponseTopic()
			rt.Topic = req.Topics[i].Topic
			for _, partition := range req.Topics[i].Partitions {
				rp := kmsg.NewElectLeadersResponseTopicPartition()
				rp.Partition, rp.ErrorCode, rp.ErrorMessage = partition, codeInvalidRequest, message("the election type is 0, preferred, or 1, unclean")
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	}
	var asked []metadata.TopicPartition
	if req.Topics != nil {
		asked = []metadata.TopicPartition{} // nil would be all
		seen := map[namedPartition]struct{}{}
		for i := range req.Topics {
			for _, partition := range req.Topics[i].Partitions {
				key := namedPartition{req.Topics[i].Topic, partition}
				if _, twice := seen[key]; !twice {
					seen[key] = struct{}{}
					asked = append(asked, metadata.TopicPartition{Topic: key.topic, Partition: partition})
				}
			}
		}
		if len(asked) == 0 {
			return resp
		}
	}
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()
	results := h.cfg.Store.ElectLeaders(ctx, kind, asked)
	if err := h.await(ctx); err != nil {
		for i := range results {
			if results[i].Err == nil {
				results[i].Err = err
			}
		}
	}
	at := map[string]int{}
	for i := range results {
		tp := results[i].TopicPartition
		n, ok := at[tp.Topic]
		if !ok {
			n = len(resp.Topics)
			at[tp.Topic] = n
			rt := kmsg.NewElectLeadersResponseTopic()
			rt.Topic = tp.Topic
			resp.Topics = append(resp.Topics, rt)
		}
		rp := kmsg.NewElectLeadersResponseTopicPartition()
		rp.Partition, rp.ErrorCode, rp.ErrorMessage = tp.Partition, c.code(results[i].Err), errorMessage(results[i].Err)
		resp.Topics[n].Partitions = append(resp.Topics[n].Partitions, rp)
	}
	return resp
}
