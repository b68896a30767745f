package kafka

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// CreateTopics (key 19), versions 0 to 7.
//
//	v1    error messages, validate only
//	v4    -1 for partitions and replication factor means the broker's default
//	      (KIP-464); older clients that send -1 get the default all the same
//	v5    flexible; answers hold partitions, replication factor and configs
//	      (KIP-525)
//	v6    may be refused by quota (89); there are no quotas yet
//	v7    topic ids
//
// A topic named twice in one request is refused wherever it stands (42). Manual
// assignments name every partition from 0 on, each once, and then partitions and
// replication factor must be -1. The request waits until every created topic has
// its leaders; when that takes longer than its timeout the answer is 7 and the
// creation goes on. Any broker answers, since each forwards to the controller
// (D15): 41 is never sent.

func (h *Handlers) createTopics(c *call, req *kmsg.CreateTopicsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
	ctx, cancel := c.adminContext(req.TimeoutMillis)
	defer cancel()

	configs := createdConfigs{layers: h.layers(h.cfg.Store.Image()), lists: map[string][]kmsg.CreateTopicsResponseTopicConfig{}}
	named := map[string]int{}
	for i := range req.Topics {
		named[req.Topics[i].Topic]++
	}
	answer := func(result metadata.TopicResult) {
		rt := kmsg.NewCreateTopicsResponseTopic()
		rt.Topic = result.Name
		if result.Err != nil {
			rt.ErrorCode, rt.ErrorMessage = c.code(result.Err), errorMessage(result.Err)
			rt.NumPartitions, rt.ReplicationFactor = -1, -1
		} else {
			rt.TopicID = result.ID
			rt.NumPartitions, rt.ReplicationFactor = result.Partitions, result.ReplicationFactor
			if req.Version >= 5 {
				rt.Configs = configs.of(result.Configs, result.ReplicationFactor)
			}
		}
		resp.Topics = append(resp.Topics, rt)
	}

	var topics []metadata.NewTopic
	for i := range req.Topics {
		asked := &req.Topics[i]
		if n := named[asked.Topic]; n != 1 {
			if n > 1 {
				named[asked.Topic] = 0 // answered once
				answer(metadata.TopicResult{Name: asked.Topic, Err: duplicate("create", "topic", asked.Topic)})
			}
			continue
		}
		topic, err := newTopic(asked)
		if err != nil {
			answer(metadata.TopicResult{Name: asked.Topic, Err: err})
			continue
		}
		topics = append(topics, topic)
	}
	if len(topics) == 0 {
		return resp
	}
	results := h.cfg.Store.CreateTopics(ctx, topics, req.ValidateOnly && req.Version >= 1)
	if !req.ValidateOnly {
		h.settle(ctx, results)
	}
	for _, result := range results {
		answer(result)
	}
	return resp
}

// newTopic translates one topic of a request. What it refuses could not be said
// in a NewTopic at all; everything else is checked by the controller.
func newTopic(asked *kmsg.CreateTopicsRequestTopic) (metadata.NewTopic, error) {
	topic := metadata.NewTopic{Name: asked.Topic, Partitions: asked.NumPartitions, ReplicationFactor: asked.ReplicationFactor}
	refuse := func(kind error, why, fix string) (metadata.NewTopic, error) {
		return topic, &metadata.Error{Kind: kind, What: fmt.Sprintf("create topic %q", asked.Topic), Why: why, Fix: fix}
	}
	if n := len(asked.ReplicaAssignment); n > 0 {
		if asked.NumPartitions != -1 || asked.ReplicationFactor != -1 {
			return refuse(metadata.ErrInvalidRequest, "it gives both a replica assignment and a number of partitions or replicas",
				"leave partitions and replication factor at -1 when you place replicas yourself")
		}
		topic.Assignments = make([][]metadata.BrokerID, n)
		for _, a := range asked.ReplicaAssignment {
			if a.Partition < 0 || int(a.Partition) >= n || topic.Assignments[a.Partition] != nil {
				return refuse(metadata.ErrInvalidAssignment, fmt.Sprintf("partition %d is out of sequence or named twice", a.Partition),
					fmt.Sprintf("name the partitions 0 to %d, each once", n-1))
			}
			topic.Assignments[a.Partition] = brokerIDs(a.Replicas)
		}
	}
	if len(asked.Configs) > 0 {
		topic.Configs = make(map[string]*string, len(asked.Configs))
		for i := range asked.Configs {
			config := &asked.Configs[i]
			if _, twice := topic.Configs[config.Name]; twice {
				return refuse(metadata.ErrInvalidConfig, fmt.Sprintf("config %s is given twice", config.Name), "give each config once")
			}
			topic.Configs[config.Name] = config.Value
		}
	}
	return topic, nil
}

// brokerIDs copies replica ids from the wire; never nil, so that a partition
// without replicas is told from one that was not named.
func brokerIDs(ids []int32) []metadata.BrokerID {
	out := make([]metadata.BrokerID, len(ids))
	for i, id := range ids {
		out[i] = metadata.BrokerID(id)
	}
	return out
}

// duplicate is the refusal of something named twice in one request (42).
func duplicate(verb, noun, name string) error {
	return &metadata.Error{
		Kind: metadata.ErrDuplicateResource, What: fmt.Sprintf("%s %s %q", verb, noun, name),
		Why: "it is named more than once in this request", Fix: "name it once",
	}
}

// createdConfigs lists the configs of created topics, with what they inherit. Topics
// of one request mostly have the same, and share one list then: thousands of lists
// would be much memory for a small request.
type createdConfigs struct {
	layers metadata.BrokerLayers
	lists  map[string][]kmsg.CreateTopicsResponseTopicConfig
}

func (cc *createdConfigs) of(own map[string]string, replicationFactor int16) []kmsg.CreateTopicsResponseTopicConfig {
	key := strconv.Itoa(int(replicationFactor))
	for _, name := range slices.Sorted(maps.Keys(own)) {
		key += "\x00" + name + "\x00" + own[name]
	}
	if list, ok := cc.lists[key]; ok {
		return list
	}
	described := metadata.DescribeTopicConfigs(cc.layers, own, nil, int(replicationFactor))
	list := make([]kmsg.CreateTopicsResponseTopicConfig, 0, len(described))
	for i := range described {
		d := &described[i]
		rc := kmsg.NewCreateTopicsResponseTopicConfig()
		rc.Name, rc.Value, rc.Source = d.Name, d.Value, int8(d.Source)
		rc.ReadOnly, rc.IsSensitive = d.ReadOnly, d.Sensitive
		list = append(list, rc)
	}
	cc.lists[key] = list
	return list
}
