package kafka

import (
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// ConsumerGroupHeartbeat (key 68), versions 0 and 1 (KIP-848).
//
//	v0    the coordinator makes the id of a new member
//	v1    the client makes it, and may subscribe by a regular expression
//
// Null means "as before" in every field that may be null. The answer waits until what
// it says is committed.

func (h *Handlers) consumerGroupHeartbeat(c *call, req *kmsg.ConsumerGroupHeartbeatRequest) {
	g := h.groupCalls.begin(c, func(c *call) kmsg.Response {
		return consumerHeartbeatAnswer(c, req, group.ConsumerHeartbeatResult{Err: group.ErrNotCoordinator, Member: req.MemberID})
	})
	if g == nil {
		return
	}
	r := group.ConsumerHeartbeatRequest{
		Group: req.Group, Member: req.MemberID, Epoch: req.MemberEpoch,
		Instance: text(req.InstanceID), Rack: text(req.RackID),
		ClientID: c.req.ClientID, ClientHost: c.clientHost(),
		RebalanceTimeout: time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond,
		HasTopics:        req.SubscribedTopicNames != nil, Topics: req.SubscribedTopicNames,
		HasRegex: req.SubscribedTopicRegex != nil, Regex: text(req.SubscribedTopicRegex),
		HasAssignor: req.ServerAssignor != nil, Assignor: text(req.ServerAssignor),
		HasOwned: req.Topics != nil,
	}
	for _, t := range req.Topics {
		r.Owned = append(r.Owned, metadata.TopicPartitions{TopicID: t.TopicID, Partitions: t.Partitions})
	}
	answer := func(result group.ConsumerHeartbeatResult) {
		g.answer(func(c *call) kmsg.Response { return consumerHeartbeatAnswer(c, req, result) })
	}
	if why := refuseConsumerHeartbeat(req); why != nil {
		answer(group.ConsumerHeartbeatResult{Err: why, Member: req.MemberID})
		return
	}
	if req.MemberEpoch <= 0 {
		r.Address = c.clientAddress() // of a member that comes or goes
	}
	req.Topics, req.SubscribedTopicNames = nil, nil // what waits keeps only what the answer needs
	h.cfg.Groups.ConsumerHeartbeat(r, answer)
}

// refuseConsumerHeartbeat finds what the coordinator can't see any more: what was sent
// empty where it has to be null or something.
func refuseConsumerHeartbeat(req *kmsg.ConsumerGroupHeartbeatRequest) error {
	switch {
	case strings.TrimSpace(req.Group) == "":
		return badGroupRequest("the group id is empty")
	case req.Version >= 1 && strings.TrimSpace(req.MemberID) == "":
		return badGroupRequest("the member id is empty")
	case req.InstanceID != nil && strings.TrimSpace(*req.InstanceID) == "":
		return badGroupRequest("the instance id is empty")
	case req.RackID != nil && strings.TrimSpace(*req.RackID) == "":
		return badGroupRequest("the rack is empty")
	case slices.Contains(req.SubscribedTopicNames, ""):
		return badGroupRequest("a topic name is empty")
	}
	return nil
}

func badGroupRequest(what string) error {
	return &metadata.Error{Kind: group.ErrInvalidRequest, What: "heartbeat of a consumer group refused", Why: what, Fix: "the client library has to be mended"}
}

func consumerHeartbeatAnswer(c *call, req *kmsg.ConsumerGroupHeartbeatRequest, result group.ConsumerHeartbeatResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ConsumerGroupHeartbeatResponse)
	resp.ErrorCode = c.groupCode(result.Err)
	if result.Err != nil {
		resp.ErrorMessage = errorMessage(result.Err)
		return resp // without the member's id, as Kafka
	}
	resp.MemberID = optional(result.Member)
	resp.MemberEpoch = result.Epoch
	resp.HeartbeatIntervalMillis = int32(result.HeartbeatInterval.Milliseconds())
	if result.HasAssignment {
		a := kmsg.NewConsumerGroupHeartbeatResponseAssignment()
		a.Topics = make([]kmsg.ConsumerGroupHeartbeatResponseAssignmentTopic, 0, len(result.Assignment))
		for _, tp := range result.Assignment {
			t := kmsg.NewConsumerGroupHeartbeatResponseAssignmentTopic()
			t.TopicID, t.Partitions = tp.TopicID, tp.Partitions
			a.Topics = append(a.Topics, t)
		}
		resp.Assignment = &a
	}
	return resp
}
