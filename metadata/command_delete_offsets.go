package metadata

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// deleteOffsets deletes offsets of one group, committed ones and those that a transaction has not decided on.
type deleteOffsets struct {
	broker     BrokerID
	epoch      int64 // of the broker's registration
	group      string
	revision   uint64 // 0 = not compared
	partitions []TopicIDPartition
}

func (c *deleteOffsets) kind() pb.CommandType { return pb.CommandType_COMMAND_DELETE_OFFSETS }

func (c *deleteOffsets) message() proto.Message {
	var columns partitionColumns
	for _, tp := range c.partitions {
		columns.add(tp.TopicID, tp.Partition)
	}
	return &pb.DeleteOffsets{
		Broker: int32(c.broker), BrokerEpoch: c.epoch, Group: c.group, Revision: c.revision,
		TopicIds: columns.topicIDs, Counts: columns.counts, Partitions: columns.partitions,
	}
}

func decodeDeleteOffsets(body []byte) (command, error) {
	var m pb.DeleteOffsets
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	if m.Group == "" {
		return nil, errors.New("delete offsets of no group")
	}
	columns := partitionColumns{topicIDs: m.TopicIds, counts: m.Counts, partitions: m.Partitions}
	partitions, err := columns.all()
	if err != nil {
		return nil, fmt.Errorf("delete offsets: %w", err)
	}
	c := &deleteOffsets{broker: BrokerID(m.Broker), epoch: m.BrokerEpoch, group: m.Group, revision: m.Revision}
	for _, tp := range partitions {
		c.partitions = append(c.partitions, TopicIDPartition{tp.topic, tp.partition})
	}
	return c, nil
}

// apply leaves a group without offsets in place; it goes when offsets expire, or when somebody deletes it.
func (c *deleteOffsets) apply(d *draft, _ position) (any, error) {
	if err := d.coordinates(c.broker, c.epoch, c.group); err != nil {
		return nil, err
	}
	g := d.st.group(c.group)
	switch {
	case g == nil:
		return nil, ErrGroupNotFound
	case c.revision != 0 && c.revision != g.Revision:
		return nil, ErrStale
	}
	d.dropOffsets(c.group, c.partitions)
	d.dropPending(c.group, c.partitions)
	return nil, nil
}
