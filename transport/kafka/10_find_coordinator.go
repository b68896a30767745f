package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// FindCoordinator (key 10), versions 0 to 5.
//
//	v0    groups only
//	v1    type 0 group, 1 transactional id (KIP-98)
//	v3    flexible
//	v4    many keys at once, an error for each (KIP-699)
//	v5    as v4 (KIP-890 added error codes clients may see)
//
// Any broker answers, from the committed metadata, so that all agree once they have
// them. Types above 1 belong to later versions: 42. What nobody can coordinate at
// present is 15, which clients retry; so are all transactions of a cluster whose
// feature level has none yet.

// Coordinator types.
const (
	groupCoordinator       int8 = 0
	transactionCoordinator int8 = 1
)

func (h *Handlers) findCoordinator(c *call, req *kmsg.FindCoordinatorRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.FindCoordinatorResponse)
	eps := h.endpoints(h.cfg.Store.Image(), c.req.Conn)
	if req.Version < 4 {
		ep, code, text := eps.coordinator(req.CoordinatorType, req.CoordinatorKey)
		resp.ErrorCode, resp.ErrorMessage = c.error(code), optional(text)
		resp.NodeID, resp.Host, resp.Port = int32(ep.id), ep.host, ep.port
		return resp
	}
	resp.Coordinators = make([]kmsg.FindCoordinatorResponseCoordinator, 0, len(req.CoordinatorKeys))
	for _, key := range req.CoordinatorKeys {
		rc := kmsg.NewFindCoordinatorResponseCoordinator()
		ep, code, text := eps.coordinator(req.CoordinatorType, key)
		rc.Key, rc.ErrorCode, rc.ErrorMessage = key, c.error(code), optional(text)
		rc.NodeID, rc.Host, rc.Port = int32(ep.id), ep.host, ep.port
		resp.Coordinators = append(resp.Coordinators, rc)
	}
	return resp
}

// coordinator says who coordinates a group or a transactional id, and how these clients
// reach it: with a code and a text if nobody does, or nobody whom they could reach.
func (e endpoints) coordinator(kind int8, key string) (ep endpoint, code int16, text string) {
	nobody := endpoint{id: metadata.NoBroker, port: -1}
	what, of := "group", metadata.GroupCoordinator
	switch kind {
	case groupCoordinator:
	case transactionCoordinator:
		if e.image.FeatureLevel() < metadata.TransactionsFeatureLevel {
			return nobody, codeCoordinatorNotAvailable, "the cluster's feature level has no transactions yet: millrace cluster upgrade finalize"
		}
		what, of = "transactional id", metadata.TransactionCoordinator
	default:
		return nobody, codeInvalidRequest, "the coordinator type is unknown in this version"
	}
	id, _ := e.image.Coordinator(of, key)
	if ep, ok := e.of(id); ok {
		return ep, codeNone, ""
	}
	return nobody, codeCoordinatorNotAvailable, "no broker can coordinate the " + what + " at present"
}
