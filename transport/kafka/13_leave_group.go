package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// LeaveGroup (key 13), versions 0 to 5.
//
//	v1    throttle time
//	v3    several members at once, also static ones by their instance ids, with an
//	      error for each: administrators remove members so (KIP-345)
//	v4    flexible
//	v5    a reason, for people (KIP-800)
//
// Clients close the connection right after they sent it (trap 37): what it asks
// for is done all the same.

func (h *Handlers) leaveGroup(c *call, req *kmsg.LeaveGroupRequest) {
	r := group.LeaveRequest{Group: req.Group, Address: c.clientAddress()}
	if req.Version < 3 {
		r.Members = []group.LeavingMember{{Member: req.MemberID}}
	}
	for i := range req.Members {
		m := &req.Members[i]
		r.Members = append(r.Members, group.LeavingMember{Member: m.MemberID, Instance: text(m.InstanceID), Reason: text(m.Reason)})
	}
	g := h.groupCalls.begin(c, nil)
	h.cfg.Groups.Leave(r, func(errs []error, err error) {
		g.answer(func(c *call) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
			if err == nil && req.Version < 3 {
				err = errs[0]
			}
			resp.ErrorCode = c.groupCode(err)
			if req.Version < 3 || err != nil {
				return resp
			}
			for i := range req.Members {
				rm := kmsg.NewLeaveGroupResponseMember()
				rm.MemberID, rm.InstanceID, rm.ErrorCode = req.Members[i].MemberID, req.Members[i].InstanceID, c.groupCode(errs[i])
				resp.Members = append(resp.Members, rm)
			}
			return resp
		})
	})
}
