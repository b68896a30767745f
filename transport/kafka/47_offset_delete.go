package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// OffsetDelete (key 47), version 0 (KIP-496).
//
// Deletes committed offsets of topics that the group does not consume; 86 for those
// it does. A group that does not exist is 69. An offset that is not there is
// deleted all the same.

func (h *Handlers) offsetDelete(c *call, req *kmsg.OffsetDeleteRequest) {
	image := h.cfg.Store.Image()
	var partitions []group.TopicIDPartition
	failed := map[namedPartition]error{}
	for i := range req.Topics {
		topic := &req.Topics[i]
		t := image.Topic(topic.Topic)
		for j := range topic.Partitions {
			p, err := findPartition(t, topic.Partitions[j].Partition)
			if err != nil {
				failed[namedPartition{topic.Topic, topic.Partitions[j].Partition}] = err
				continue
			}
			partitions = append(partitions, p)
		}
	}
	g := h.groupCalls.begin(c, nil)
	h.cfg.Groups.DeleteOffsets(req.Group, partitions, func(errs []error, err error) {
		g.answer(func(c *call) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.OffsetDeleteResponse)
			if err != nil {
				resp.ErrorCode = c.groupCode(err)
				return resp
			}
			at := 0
			for i := range req.Topics {
				rt := kmsg.NewOffsetDeleteResponseTopic()
				rt.Topic = req.Topics[i].Topic
				for j := range req.Topics[i].Partitions {
					rp := kmsg.NewOffsetDeleteResponseTopicPartition()
					rp.Partition = req.Topics[i].Partitions[j].Partition
					if bad, ok := failed[namedPartition{rt.Topic, rp.Partition}]; ok {
						rp.ErrorCode = c.groupCode(bad)
					} else {
						rp.ErrorCode = c.groupCode(errs[at])
						at++
					}
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp
		})
	})
}
