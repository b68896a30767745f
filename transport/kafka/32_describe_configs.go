package kafka

import (
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// DescribeConfigs (key 32), versions 0 to 4.
//
//	v1    the source of each value, and on demand its synonyms (KIP-226)
//	v3    types, and on demand documentation (KIP-569)
//	v4    flexible
//
// Null keys mean all, and so do none: some clients send them so. A broker resource is a node id, and "" the default of all
// brokers. Only a broker knows what it was started with, so one broker does not
// answer for another: 42, and clients ask the right one themselves. Unknown names
// are left out, as in Kafka. A resource named twice is answered once: a small
// request must not ask for an answer without bound (N4).

// Resource types on the wire.
const (
	resourceTopic        = kmsg.ConfigResourceTypeTopic
	resourceBroker       = kmsg.ConfigResourceTypeBroker
	resourceBrokerLogger = kmsg.ConfigResourceTypeBrokerLogger
)

func (h *Handlers) describeConfigs(c *call, req *kmsg.DescribeConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	image := h.cfg.Store.Image()
	type resource struct {
		kind kmsg.ConfigResourceType
		name string
	}
	seen := map[resource]struct{}{}
	for i := range req.Resources {
		asked := &req.Resources[i]
		if _, twice := seen[resource{asked.ResourceType, asked.ResourceName}]; twice {
			continue
		}
		seen[resource{asked.ResourceType, asked.ResourceName}] = struct{}{}
		rr := kmsg.NewDescribeConfigsResponseResource()
		rr.ResourceType, rr.ResourceName = asked.ResourceType, asked.ResourceName
		described, code, err := h.describeResource(image, asked)
		if err != nil {
			rr.ErrorCode, rr.ErrorMessage = c.error(code), errorMessage(err)
		}
		rr.Configs = make([]kmsg.DescribeConfigsResponseResourceConfig, 0, len(described))
		for j := range described {
			rr.Configs = append(rr.Configs, describedConfig(req, &described[j]))
		}
		resp.Resources = append(resp.Resources, rr)
	}
	return resp
}

// describeResource returns the configs of one resource, or why not.
func (h *Handlers) describeResource(image *metadata.Image, asked *kmsg.DescribeConfigsRequestResource) ([]metadata.DescribedConfig, int16, error) {
	layers := h.layers(image)
	names := asked.ConfigNames
	if len(names) == 0 {
		names = nil
	}
	switch asked.ResourceType {
	case resourceTopic:
		if !validTopicName(asked.ResourceName) {
			return nil, codeInvalidTopic, fmt.Errorf("describe configs: %q can't be a topic's name", asked.ResourceName)
		}
		topic := image.Topic(asked.ResourceName)
		if topic == nil {
			return nil, codeUnknownTopicOrPartition, fmt.Errorf("describe configs: there is no topic %s", asked.ResourceName)
		}
		return metadata.DescribeTopicConfigs(layers, topic.Configs, names, replicationFactor(topic)), codeNone, nil
	case resourceBroker:
		if asked.ResourceName == "" {
			return metadata.DescribeBrokerDefaults(layers.DynamicDefault, names), codeNone, nil
		}
		id, err := strconv.ParseInt(asked.ResourceName, 10, 32)
		if err != nil {
			return nil, codeInvalidRequest, fmt.Errorf("describe configs: broker resource %q is not a node id", asked.ResourceName)
		}
		if metadata.BrokerID(id) != h.cfg.BrokerID {
			return nil, codeInvalidRequest, fmt.Errorf("describe configs of broker %d: this is broker %d\nfix:   send the request to broker %d", id, h.cfg.BrokerID, id)
		}
		return metadata.DescribeBrokerConfigs(layers, names, h.cfg.BrokerID, len(image.Brokers())), codeNone, nil
	case resourceBrokerLogger:
		// Log levels are not Kafka's here: an honest empty list keeps the
		// tools that always ask for them working.
		return nil, codeNone, nil
	default:
		return nil, codeInvalidRequest, fmt.Errorf("describe configs: resources of type %d have no configs here", asked.ResourceType)
	}
}

func replicationFactor(topic *metadata.Topic) int {
	if len(topic.Partitions) == 0 {
		return 1
	}
	return len(topic.Partitions[0].Replicas)
}

func describedConfig(req *kmsg.DescribeConfigsRequest, d *metadata.DescribedConfig) kmsg.DescribeConfigsResponseResourceConfig {
	rc := kmsg.NewDescribeConfigsResponseResourceConfig()
	rc.Name, rc.Value, rc.ReadOnly, rc.IsSensitive = d.Name, d.Value, d.ReadOnly, d.Sensitive
	rc.Source, rc.IsDefault = kmsg.ConfigSource(d.Source), d.Source == metadata.SourceDefault
	if req.Version >= 1 && req.IncludeSynonyms {
		for _, s := range d.Synonyms {
			rs := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			rs.Name, rs.Value, rs.Source = s.Name, s.Value, kmsg.ConfigSource(s.Source)
			rc.ConfigSynonyms = append(rc.ConfigSynonyms, rs)
		}
	}
	if req.Version >= 3 {
		rc.ConfigType = kmsg.ConfigType(d.Key.Type)
		if req.IncludeDocumentation {
			rc.Documentation = &d.Key.Doc
		}
	}
	return rc
}
