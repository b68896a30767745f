package kafka

import (
	"bytes"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// JoinGroup (key 11), versions 0 to 9.
//
//	v1    rebalance timeout; before it the session timeout counts for both
//	v2    throttle time
//	v4    a new member gets an id first and joins with it: 79 (KIP-394)
//	v5    static members (KIP-345)
//	v6    flexible
//	v7    protocol type and protocol in the answer, null with an error (KIP-559)
//	v8    a reason, for people (KIP-800)
//	v9    a static leader that comes back may be told not to assign (KIP-814)
//
// The answer comes when all members are there, which may take minutes: the request
// waits without a goroutine. Metadata of members is passed on, never read.

func (h *Handlers) joinGroup(c *call, req *kmsg.JoinGroupRequest) {
	g := h.groupCalls.begin(c, func(c *call) kmsg.Response {
		return joinAnswer(c, req, group.JoinResult{Err: group.ErrNotCoordinator, Member: req.MemberID, Generation: -1})
	})
	if g == nil {
		return
	}
	r := group.JoinRequest{
		Group: req.Group, Member: req.MemberID, Instance: text(req.InstanceID),
		ClientID: c.req.ClientID, ClientHost: c.clientHost(), Address: c.clientAddress(),
		SessionTimeout:     time.Duration(req.SessionTimeoutMillis) * time.Millisecond,
		ProtocolType:       req.ProtocolType,
		Protocols:          make([]group.Protocol, len(req.Protocols)),
		RequireKnownMember: req.Version >= 4,
		CanSkipAssignment:  req.Version >= 9,
		Reason:             text(req.Reason),
	}
	if req.Version >= 1 {
		r.RebalanceTimeout = max(time.Duration(req.RebalanceTimeoutMillis)*time.Millisecond, 0)
	}
	for i, p := range req.Protocols {
		r.Protocols[i] = group.Protocol{Name: p.Name, Metadata: bytes.Clone(p.Metadata)} // out of the frame
	}
	req.Protocols = nil // what waits keeps only what the answer needs
	g.whenGone(h.cfg.Groups.Join(r, func(result group.JoinResult) {
		g.answer(func(c *call) kmsg.Response { return joinAnswer(c, req, result) })
	}))
}

func joinAnswer(c *call, req *kmsg.JoinGroupRequest, result group.JoinResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.ErrorCode = c.groupCode(result.Err)
	resp.MemberID = result.Member
	if result.Err != nil {
		// Clients of old read their own id back.
		if resp.MemberID == "" {
			resp.MemberID = req.MemberID
		}
		resp.Generation = -1
		if req.Version < 7 {
			resp.Protocol = kmsg.StringPtr("")
		}
		return resp
	}
	resp.Generation, resp.LeaderID, resp.SkipAssignment = result.Generation, result.Leader, result.SkipAssignment
	resp.ProtocolType, resp.Protocol = &result.ProtocolType, &result.Protocol
	resp.Members = make([]kmsg.JoinGroupResponseMember, 0, len(result.Members))
	for _, m := range result.Members {
		rm := kmsg.NewJoinGroupResponseMember()
		rm.MemberID, rm.InstanceID, rm.ProtocolMetadata = m.ID, optional(m.Instance), m.Metadata
		resp.Members = append(resp.Members, rm)
	}
	return resp
}
