package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// DeleteGroups (key 42), versions 0 to 2.
//
//	v1    as v0 (KIP-219)
//	v2    flexible
//
// Deletes groups without members, with their offsets. One that has members is 68,
// one that does not exist 69, one of another coordinator 16.

func (h *Handlers) deleteGroups(c *call, req *kmsg.DeleteGroupsRequest) {
	g := h.groupCalls.begin(c, nil)
	h.cfg.Groups.Delete(req.Groups, func(errs []error) {
		g.answer(func(c *call) kmsg.Response {
			resp := req.ResponseKind().(*kmsg.DeleteGroupsResponse)
			resp.Groups = make([]kmsg.DeleteGroupsResponseGroup, 0, len(req.Groups))
			for i, name := range req.Groups {
				rg := kmsg.NewDeleteGroupsResponseGroup()
				err := errs[i]
				if errors.Is(err, group.ErrInvalidGroup) { // "" is a group that is not there, as for Kafka
					err = group.ErrGroupNotFound
				}
				rg.Group, rg.ErrorCode = name, c.groupCode(err)
				resp.Groups = append(resp.Groups, rg)
			}
			return resp
		})
	})
}
