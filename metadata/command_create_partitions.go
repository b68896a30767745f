package metadata

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// createPartitions adds partitions behind the present ones of a topic.
type createPartitions struct {
	id            TopicID
	expectedCount int // how many partitions the proposer saw
	sets          []replicaSet
}

func (c *createPartitions) kind() pb.CommandType { return pb.CommandType_COMMAND_CREATE_PARTITIONS }

func (c *createPartitions) message() proto.Message {
	return &pb.CreatePartitions{
		TopicId:       c.id[:],
		ExpectedCount: uint32(c.expectedCount),
		Placement:     encodePlacement(c.sets),
	}
}

func decodeCreatePartitions(body []byte) (command, error) {
	var m pb.CreatePartitions
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return nil, err
	}
	sets, err := decodePlacement(m.Placement)
	if err != nil {
		return nil, err
	}
	return &createPartitions{id: id, expectedCount: int(m.ExpectedCount), sets: sets}, nil
}

// apply returns the changed *Topic.
func (c *createPartitions) apply(d *draft, _ position) (any, error) {
	t := d.st.topicByID(c.id)
	if t == nil {
		return nil, ErrUnknownTopicID
	}
	if len(t.Partitions) != c.expectedCount {
		return nil, ErrStale
	}
	added, err := d.newPartitions(c.sets)
	if err != nil {
		return nil, err
	}
	grown := *t
	grown.Partitions = append(append(make([]*Partition, 0, len(t.Partitions)+len(added)), t.Partitions...), added...)
	d.putTopic(&grown, true)
	return &grown, nil
}
