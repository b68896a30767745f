package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// DescribeCluster (key 60), versions 0 to 2 (KIP-700).
//
//	v0    brokers and controller
//	v1    endpoint type (KIP-919): 1 brokers; 2 controllers, which no client
//	      listener of ours serves: 114; anything else: 115
//	v2    fenced brokers, on demand (KIP-1073)
//
// Without an authorizer everything is allowed: asked for its operations, the
// cluster reports all that exist for it.

// clusterOperations and topicOperations are the bit fields of the operations
// that exist for a cluster and for a topic.
const (
	topicOperations   int32 = 1<<3 | 1<<4 | 1<<5 | 1<<6 | 1<<7 | 1<<8 | 1<<10 | 1<<11
	clusterOperations int32 = 1<<5 | 1<<7 | 1<<8 | 1<<9 | 1<<10 | 1<<11 | 1<<12
)

const brokerEndpoints, controllerEndpoints int8 = 1, 2

func (h *Handlers) describeCluster(c *call, req *kmsg.DescribeClusterRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeClusterResponse)
	if req.Version >= 1 && req.EndpointType != brokerEndpoints {
		code := codeUnsupportedEndpointType
		if req.EndpointType == controllerEndpoints {
			code = codeMismatchedEndpointType
		}
		resp.ErrorCode = c.error(code)
		resp.ErrorMessage = message(fmt.Sprintf("this listener describes brokers (type 1), not type %d", req.EndpointType))
		return resp
	}
	image := h.cfg.Store.Image()
	eps := h.endpoints(image, c.req.Conn)
	resp.ClusterID = image.ClusterID()
	resp.ControllerID = eps.controller()
	resp.EndpointType = brokerEndpoints
	for _, broker := range image.Brokers() {
		ep, ok := eps.address(broker)
		if !ok || broker.Fenced && !req.IncludeFencedBrokers {
			continue
		}
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port, b.Rack, b.IsFenced = int32(ep.id), ep.host, ep.port, ep.rack, broker.Fenced
		resp.Brokers = append(resp.Brokers, b)
	}
	if req.IncludeClusterAuthorizedOperations {
		resp.ClusterAuthorizedOperations = clusterOperations
	}
	return resp
}
