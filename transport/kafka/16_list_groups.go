package kafka

import (
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ListGroups (key 16), versions 0 to 5.
//
//	v1    throttle time
//	v3    flexible
//	v4    filter by state, and states in the answer (KIP-518)
//	v5    filter by type, and types in the answer (KIP-848)
//
// Each broker lists the groups that it coordinates; clients ask all of them. An
// empty filter lets everything through, and names are compared without regard to
// case.

func (h *Handlers) listGroups(c *call, req *kmsg.ListGroupsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListGroupsResponse)
	groups, err := h.cfg.Groups.List()
	if err != nil {
		resp.ErrorCode = c.groupCode(err)
		return resp
	}
	resp.Groups = make([]kmsg.ListGroupsResponseGroup, 0, len(groups))
	for _, g := range groups {
		if !filtered(req.StatesFilter, string(g.State)) || !filtered(req.TypesFilter, string(g.Type)) {
			continue
		}
		rg := kmsg.NewListGroupsResponseGroup()
		rg.Group, rg.ProtocolType, rg.GroupState, rg.GroupType = g.Group, g.ProtocolType, string(g.State), string(g.Type)
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

// filtered reports whether a filter lets a value through.
func filtered(filter []string, value string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool { return strings.EqualFold(f, value) })
}
