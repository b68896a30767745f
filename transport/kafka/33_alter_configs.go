package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// AlterConfigs (key 33), versions 0 to 2.
//
//	v2    flexible
//
// The configs of the request are the whole new set of the resource: what it does
// not name goes back to its default. Clients that want to change one key use
// IncrementalAlterConfigs. A resource named twice is 42 in each place.

func (h *Handlers) alterConfigs(c *call, req *kmsg.AlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	asked := make([]alteredResource, len(req.Resources))
	for i := range req.Resources {
		from, to := &req.Resources[i], &asked[i]
		to.kind, to.name = from.ResourceType, from.ResourceName
		for j := range from.Configs {
			to.ops = append(to.ops, metadata.ConfigOp{Key: from.Configs[j].Name, Op: metadata.ConfigSet, Value: from.Configs[j].Value})
		}
	}
	for i, err := range h.alter(c, asked, true, req.ValidateOnly) {
		rr := kmsg.NewAlterConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = asked[i].kind, asked[i].name
		rr.ErrorCode, rr.ErrorMessage = c.code(err), errorMessage(err)
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

// alteredResource is one resource of an alter request.
type alteredResource struct {
	kind kmsg.ConfigResourceType
	name string
	ops  []metadata.ConfigOp
	err  error // found before the controller is asked
}

// alter changes the configs of all resources, each by itself, and returns an
// error or nil for each.
func (h *Handlers) alter(c *call, asked []alteredResource, replaceAll, validateOnly bool) []error {
	ctx, cancel := c.adminContext(int32(h.cfg.AdminTimeout.Milliseconds()))
	defer cancel()
	type resource struct {
		kind kmsg.ConfigResourceType
		name string
	}
	named := map[resource]int{}
	for i := range asked {
		named[resource{asked[i].kind, asked[i].name}]++
	}
	errs := make([]error, len(asked))
	var changes []metadata.ConfigChange
	var places []int
	for i := range asked {
		a := &asked[i]
		change := metadata.ConfigChange{Resource: metadata.Resource{Name: a.name}, Ops: a.ops}
		switch a.kind {
		case resourceTopic:
			change.Resource.Type = metadata.TopicResource
		case resourceBroker:
			change.Resource.Type = metadata.BrokerResource
		default:
			errs[i] = &metadata.Error{
				Kind: metadata.ErrInvalidRequest, What: fmt.Sprintf("alter configs of resource %q of type %d", a.name, a.kind),
				Why: "only topics (2) and brokers (4) have configs that can be changed",
			}
			continue
		}
		if named[resource{a.kind, a.name}] > 1 {
			errs[i] = duplicate("alter configs of", "resource", a.name)
			continue
		}
		if errs[i] = a.err; a.err == nil {
			changes = append(changes, change)
			places = append(places, i)
		}
	}
	if len(changes) > 0 {
		for i, err := range h.cfg.Store.AlterConfigs(ctx, changes, replaceAll, validateOnly) {
			errs[places[i]] = err
		}
		if err := h.await(ctx); err != nil && !validateOnly {
			for _, place := range places {
				if errs[place] == nil {
					errs[place] = err
				}
			}
		}
	}
	return errs
}
