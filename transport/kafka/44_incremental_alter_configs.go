package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// IncrementalAlterConfigs (key 44), versions 0 and 1 (KIP-339).
//
//	v1    flexible
//
// Each entry sets (0), deletes (1), appends to (2) or subtracts from (3) one key.
// A key named twice for one resource is 42.

func (h *Handlers) incrementalAlterConfigs(c *call, req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	asked := make([]alteredResource, len(req.Resources))
	for i := range req.Resources {
		from, to := &req.Resources[i], &asked[i]
		to.kind, to.name = from.ResourceType, from.ResourceName
		keys := make(map[string]struct{}, len(from.Configs))
		for j := range from.Configs {
			config := &from.Configs[j]
			op, ok := configOp(config.Op)
			if _, twice := keys[config.Name]; twice || !ok {
				why := "key " + config.Name + " is named more than once"
				if !ok {
					why = fmt.Sprintf("operation %d on key %s does not exist", config.Op, config.Name)
				}
				to.err = &metadata.Error{Kind: metadata.ErrInvalidRequest, What: fmt.Sprintf("alter configs of %q", to.name), Why: why}
				break
			}
			keys[config.Name] = struct{}{}
			to.ops = append(to.ops, metadata.ConfigOp{Key: config.Name, Op: op, Value: config.Value})
		}
	}
	for i, err := range h.alter(c, asked, false, req.ValidateOnly) {
		rr := kmsg.NewIncrementalAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = asked[i].kind, asked[i].name
		rr.ErrorCode, rr.ErrorMessage = c.code(err), errorMessage(err)
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

func configOp(op kmsg.IncrementalAlterConfigOp) (metadata.ConfigOpType, bool) {
	switch op {
	case kmsg.IncrementalAlterConfigOpSet:
		return metadata.ConfigSet, true
	case kmsg.IncrementalAlterConfigOpDelete:
		return metadata.ConfigDelete, true
	case kmsg.IncrementalAlterConfigOpAppend:
		return metadata.ConfigAppend, true
	case kmsg.IncrementalAlterConfigOpSubtract:
		return metadata.ConfigSubtract, true
	}
	return 0, false
}
