package metadata

import (
	"errors"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// createTopic creates a topic. Its id and the place of every replica were decided by the proposer (M1); the id makes a
// repeated proposal recognizable.
type createTopic struct {
	id      TopicID
	name    string
	configs map[string]string
	sets    []replicaSet
}

func (c *createTopic) kind() pb.CommandType { return pb.CommandType_COMMAND_CREATE_TOPIC }

func (c *createTopic) message() proto.Message {
	return &pb.CreateTopic{
		TopicId:   c.id[:],
		Name:      c.name,
		Configs:   encodeConfigs(c.configs),
		Placement: encodePlacement(c.sets),
	}
}

func decodeCreateTopic(body []byte) (command, error) {
	var m pb.CreateTopic
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return nil, err
	}
	if m.Name == "" {
		return nil, errors.New("create topic: empty name")
	}
	configs, err := decodeConfigs(m.Configs)
	if err != nil {
		return nil, err
	}
	sets, err := decodePlacement(m.Placement)
	if err != nil {
		return nil, err
	}
	return &createTopic{id: id, name: m.Name, configs: configs, sets: sets}, nil
}

// apply returns the new *Topic.
func (c *createTopic) apply(d *draft, at position) (any, error) {
	if t := d.st.topic(c.name); t != nil {
		if t.ID == c.id {
			return t, nil // a repetition
		}
		return nil, ErrTopicExists
	}
	if _, ok := d.st.topicIDs.get(c.id); ok || d.st.tombstoned(c.id) {
		return nil, ErrStale // a repetition, and the topic was deleted since
	}
	if d.st.collision(c.name) != "" {
		return nil, ErrInvalidTopic
	}
	partitions, err := d.newPartitions(c.sets)
	if err != nil {
		return nil, err
	}
	t := &Topic{Name: c.name, ID: c.id, Partitions: partitions, Configs: c.configs, configVersion: at.index}
	d.putTopic(t, true)
	return t, nil
}
