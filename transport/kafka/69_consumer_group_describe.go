package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// ConsumerGroupDescribe (key 69), versions 0 and 1 (KIP-848). A classic group is not
// found here: DescribeGroups tells of it.
//
//	v1    the type of each member (KIP-1099)

func (h *Handlers) consumerGroupDescribe(c *call, req *kmsg.ConsumerGroupDescribeRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupDescribeResponse)
	c.awaitLanded(req.Groups)
	im := h.cfg.Store.Image()
	for _, name := range req.Groups {
		g := kmsg.NewConsumerGroupDescribeResponseGroup()
		g.Group = name
		if req.IncludeAuthorizedOperations {
			g.AuthorizedOperations = groupOperations
		}
		d, err := h.cfg.Groups.DescribeConsumers(name)
		if g.ErrorCode = c.groupCode(err); err != nil {
			g.ErrorMessage = kmsg.StringPtr(err.Error())
			resp.Groups = append(resp.Groups, g)
			continue
		}
		g.State, g.Epoch, g.AssignmentEpoch, g.AssignorName = string(d.State), d.Epoch, d.AssignmentEpoch, d.Assignor
		for _, m := range d.Members {
			x := kmsg.NewConsumerGroupDescribeResponseGroupMember()
			x.MemberID, x.InstanceID, x.RackID = m.ID, optional(m.Instance), optional(m.Rack)
			x.MemberEpoch, x.ClientID, x.ClientHost = m.Epoch, m.ClientID, m.ClientHost
			x.SubscribedTopics, x.SubscribedTopicRegex = m.Topics, optional(m.Regex)
			x.Assignment, x.TargetAssignment = assignmentOf(im, m.Assigned), assignmentOf(im, m.Target)
			if x.MemberType = memberConsumer; m.Classic {
				x.MemberType = memberClassic
			}
			g.Members = append(g.Members, x)
		}
		resp.Groups = append(resp.Groups, g)
	}
	return resp
}

// Types of members, by the protocol that they speak.
const (
	memberClassic  int8 = 0
	memberConsumer int8 = 1
)

// assignmentOf names topics beside their ids; one that was deleted has no name.
func assignmentOf(im *metadata.Image, set []metadata.TopicPartitions) kmsg.Assignment {
	var a kmsg.Assignment
	for _, tp := range set {
		t := kmsg.NewAssignmentTopicPartition()
		t.TopicID, t.Partitions = tp.TopicID, tp.Partitions
		if topic := im.TopicByID(tp.TopicID); topic != nil {
			t.Topic = topic.Name
		}
		a.TopicPartitions = append(a.TopicPartitions, t)
	}
	return a
}
