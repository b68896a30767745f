package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// Heartbeat (key 12), versions 0 to 4.
//
//	v1    throttle time
//	v3    static members (KIP-345)
//	v4    flexible
//
// A coordinator that is still loading answers 0 and not 14: the member's session is
// counted anew once the group is there, and clients take 14 for a reason to look
// for another coordinator.

func (h *Handlers) heartbeat(c *call, req *kmsg.HeartbeatRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	err := h.cfg.Groups.Heartbeat(group.HeartbeatRequest{Group: req.Group, Member: req.MemberID, Instance: text(req.InstanceID), Generation: req.Generation})
	if errors.Is(err, group.ErrCoordinatorLoading) {
		err = nil
	}
	resp.ErrorCode = c.groupCode(err)
	return resp
}
