package kafka

import (
	"bytes"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// SyncGroup (key 14), versions 0 to 5.
//
//	v1    throttle time
//	v3    static members (KIP-345)
//	v4    flexible
//	v5    protocol type and protocol, which must be the group's; null is 23 (KIP-559)
//
// Followers wait for the leader's assignments, without a goroutine. Assignments are
// passed on, never read; a member that the leader left out gets no bytes, which is
// not null.

func (h *Handlers) syncGroup(c *call, req *kmsg.SyncGroupRequest) {
	if req.Version >= 5 && (req.ProtocolType == nil || req.Protocol == nil) {
		c.reply(syncAnswer(c, req, group.SyncResult{Err: group.ErrInconsistentProtocol}))
		return
	}
	g := h.groupCalls.begin(c, func(c *call) kmsg.Response {
		return syncAnswer(c, req, group.SyncResult{Err: group.ErrNotCoordinator})
	})
	if g == nil {
		return
	}
	r := group.SyncRequest{
		Group: req.Group, Member: req.MemberID, Instance: text(req.InstanceID), Generation: req.Generation,
		HasProtocolType: req.ProtocolType != nil, HasProtocol: req.Protocol != nil,
		ProtocolType: text(req.ProtocolType), Protocol: text(req.Protocol),
		Assignments: make([]group.Assignment, len(req.GroupAssignment)),
	}
	for i, a := range req.GroupAssignment {
		r.Assignments[i] = group.Assignment{Member: a.MemberID, Bytes: bytes.Clone(a.MemberAssignment)} // out of the frame
	}
	req.GroupAssignment = nil
	h.cfg.Groups.Sync(r, func(result group.SyncResult) {
		g.answer(func(c *call) kmsg.Response { return syncAnswer(c, req, result) })
	})
}

func syncAnswer(c *call, req *kmsg.SyncGroupRequest, result group.SyncResult) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	resp.ErrorCode = c.groupCode(result.Err)
	resp.MemberAssignment = []byte{}
	if result.Err != nil {
		return resp
	}
	resp.ProtocolType, resp.Protocol, resp.MemberAssignment = &result.ProtocolType, &result.Protocol, result.Assignment
	return resp
}
