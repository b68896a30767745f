package kafka

import (
	"net"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// ConsumerGroupHeartbeat (key 68), versions 0 and 1 (KIP-848).
//
//	v0    the coordinator makes the id of a new member
//	v1    the client makes it, and may subscribe by a regular expression
//
// Null means "as before" in every field that may be null. The answer waits until what
// it says is committed.

// pulseCall is a heartbeat on its way that may say nothing but that its member is there. There are as many of them as of [heartbeatCall],
// and they allocate as little: what waits, or has more to say, goes the long way.
type pulseCall struct {
	call
	request  kmsg.ConsumerGroupHeartbeatRequest
	response kmsg.ConsumerGroupHeartbeatResponse
	member   string // of the response
	host     [64]byte
}

// pulseMost is the longest body that is looked at. One that says nothing has names only.
const pulseMost = 4 << 10

// pulse serves a request that says nothing, if there is nothing to say to it. It reports false, and has done nothing, if not.
func (h *Handlers) pulse(req *transport.Request) bool {
	if len(req.Body) > pulseMost {
		return false
	}
	b := h.pulses.Get().(*pulseCall)
	b.call = call{h: h, req: req, started: req.Received}
	answered := h.pulseCall(b)
	*b = pulseCall{}
	h.pulses.Put(b)
	if answered {
		req.Recycle()
	}
	return answered
}

// pulseCall reports whether the call was answered.
func (h *Handlers) pulseCall(b *pulseCall) bool {
	c, req, resp := &b.call, &b.request, &b.response
	req.SetVersion(c.req.Version)
	if err := req.UnsafeReadFrom(c.req.Body); err != nil { // the strings are the frame's, and the coordinator keeps none of them
		return false // the long way says so
	}
	address, ok := c.req.Conn.RemoteAddr().(*net.TCPAddr)
	if !ok || req.MemberEpoch <= 0 || req.SubscribedTopicNames != nil || req.SubscribedTopicRegex != nil || req.ServerAssignor != nil || req.Topics != nil || req.RackID != nil ||
		req.RebalanceTimeoutMillis >= 0 || refuseConsumerHeartbeat(req) != nil {
		return false
	}
	host := address.AddrPort().Addr().Unmap().AppendTo(append(b.host[:0], '/')) // as clientHost
	result, ok := h.cfg.Groups.ConsumerPulse(group.ConsumerHeartbeatRequest{
		Group: req.Group, Member: req.MemberID, Epoch: req.MemberEpoch, Instance: text(req.InstanceID), ClientID: c.req.ClientID,
		ClientHost: unsafe.String(&host[0], len(host)), RebalanceTimeout: -1,
	})
	if !ok {
		return false
	}
	h.metrics.request(c.req.Key, c.req.Version)
	resp.Default()
	resp.SetVersion(req.Version)
	b.member = result.Member
	resp.MemberID, resp.MemberEpoch, resp.HeartbeatIntervalMillis = &b.member, result.Epoch, int32(result.HeartbeatInterval.Milliseconds())
	c.reply(resp)
	return true
}

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
