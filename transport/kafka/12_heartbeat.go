package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/transport"
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

// heartbeatCall is a Heartbeat on its way. There are thousands of them in a second where there are thousands of members, and
// little else: they allocate nothing.
type heartbeatCall struct {
	call
	request  kmsg.HeartbeatRequest
	response kmsg.HeartbeatResponse
}

// beat serves a Heartbeat.
func (h *Handlers) beat(req *transport.Request) {
	b := h.heartbeats.Get().(*heartbeatCall)
	b.call = call{h: h, req: req, started: req.Received}
	if h.beatCall(b) {
		*b = heartbeatCall{}
		h.heartbeats.Put(b)
		req.Recycle()
	}
}

// beatCall reports whether the call was answered.
func (h *Handlers) beatCall(b *heartbeatCall) bool {
	c, req := &b.call, &b.request
	defer c.release() // on a panic too: the transport goes on without us
	if !c.admit() {
		return false
	}
	req.SetVersion(c.req.Version)
	if err := req.UnsafeReadFrom(c.req.Body); err != nil { // the strings are the frame's, and the coordinator keeps none of them
		c.malformed(err)
		return false
	}
	c.reply(h.heartbeat(c, req, &b.response))
	return true
}

func (h *Handlers) heartbeat(c *call, req *kmsg.HeartbeatRequest, resp *kmsg.HeartbeatResponse) kmsg.Response {
	resp.Default()
	resp.SetVersion(req.Version)
	err := h.cfg.Groups.Heartbeat(group.HeartbeatRequest{Group: req.Group, Member: req.MemberID, Instance: text(req.InstanceID), Generation: req.Generation})
	if errors.Is(err, group.ErrCoordinatorLoading) {
		err = nil
	}
	resp.ErrorCode = c.groupCode(err)
	return resp
}
