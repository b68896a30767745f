package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"
)

// FindCoordinator (key 10), versions 0 to 5.
//
//	v0    groups only
//	v1    type 0 group, 1 transactional id (KIP-98)
//	v3    flexible
//	v4    many keys at once, an error for each (KIP-699)
//	v5    as v4 (KIP-890 added error codes clients may see)
//
// Types above 1 belong to later versions: 42. Groups and transactions are not
// here yet, so that every key is answered 15, which clients retry: librdkafka
// looks at the presence of this API to decide whether it may use lz4.

// Coordinator types.
const (
	groupCoordinator       int8 = 0
	transactionCoordinator int8 = 1
)

func (h *Handlers) findCoordinator(c *call, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	code, text := codeCoordinatorNotAvailable, "this broker has no group and transaction coordinators yet"
	if req.CoordinatorType != groupCoordinator && req.CoordinatorType != transactionCoordinator {
		code, text = codeInvalidRequest, "the coordinator type is unknown in this version"
	}
	if req.Version < 4 {
		resp.ErrorCode, resp.ErrorMessage = c.error(code), &text
		resp.NodeID, resp.Host, resp.Port = -1, "", -1
		return resp
	}
	resp.Coordinators = make([]kmsg.FindCoordinatorResponseCoordinator, 0, len(req.CoordinatorKeys))
	for _, key := range req.CoordinatorKeys {
		rc := kmsg.NewFindCoordinatorResponseCoordinator()
		rc.Key, rc.ErrorCode, rc.ErrorMessage = key, c.error(code), &text
		rc.NodeID, rc.Host, rc.Port = -1, "", -1
		resp.Coordinators = append(resp.Coordinators, rc)
	}
	return resp
}
