package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
)

// DescribeGroups (key 15), versions 0 to 6.
//
//	v1    throttle time
//	v3    authorized operations, on demand (KIP-430)
//	v4    instance ids (KIP-345)
//	v5    flexible
//	v6    a group that does not exist is 69 with a text; before, it is a group in
//	      the state Dead, without an error (KIP-1043)
//
// A group of the newer protocol does not exist here: who asks goes on to
// ConsumerGroupDescribe then, which has what its members read.
//
// Metadata and assignments are those of a stable generation; while a group
// rebalances there are none, as in Kafka.

func (h *Handlers) describeGroups(c *call, req *kmsg.DescribeGroupsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
	resp.Groups = make([]kmsg.DescribeGroupsResponseGroup, 0, len(req.Groups))
	c.awaitLanded(req.Groups)
	for _, name := range req.Groups {
		rg := kmsg.NewDescribeGroupsResponseGroup()
		rg.Group = name
		d, err := h.cfg.Groups.Describe(name)
		why := "Group %s not found."
		if err == nil && d.Type == group.TypeConsumer {
			err, why = group.ErrGroupNotFound, "Group %s is not a classic group."
		}
		switch {
		case errors.Is(err, group.ErrGroupNotFound), errors.Is(err, group.ErrInvalidGroup): // "" is a group that is not there, as for Kafka
			err = group.ErrGroupNotFound
			rg.State = string(group.StateDead)
			if req.Version >= 6 {
				rg.ErrorCode = c.groupCode(err)
				rg.ErrorMessage = message(fmt.Sprintf(why, name))
			}
		case err != nil:
			rg.ErrorCode, rg.ErrorMessage = c.groupCode(err), errorMessage(err)
		default:
			describeGroup(&rg, &d)
		}
		if req.IncludeAuthorizedOperations && rg.ErrorCode == codeNone {
			rg.AuthorizedOperations = groupOperations
		}
		resp.Groups = append(resp.Groups, rg)
	}
	return resp
}

func describeGroup(rg *kmsg.DescribeGroupsResponseGroup, d *group.Description) {
	stable := d.State == group.StateStable
	rg.State, rg.ProtocolType = string(d.State), d.ProtocolType
	if stable {
		rg.Protocol = d.Protocol
	}
	rg.Members = make([]kmsg.DescribeGroupsResponseGroupMember, 0, len(d.Members))
	for i := range d.Members {
		m := &d.Members[i]
		rm := kmsg.NewDescribeGroupsResponseGroupMember()
		rm.MemberID, rm.InstanceID, rm.ClientID, rm.ClientHost = m.ID, optional(m.Instance), m.ClientID, m.ClientHost
		if stable {
			rm.ProtocolMetadata, rm.MemberAssignment = m.Metadata, m.Assignment
		}
		rg.Members = append(rg.Members, rm)
	}
}
