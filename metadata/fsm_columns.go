package metadata

import "fmt"

// partitionColumns name partitions in commands about many of them: topics by their ids, one after the other, and for each
// a number of partitions.
type partitionColumns struct {
	topicIDs   []byte
	counts     []uint32
	partitions []uint32
}

// add appends a partition; partitions of one topic should follow each other.
func (c *partitionColumns) add(id TopicID, partition int32) {
	if n := len(c.topicIDs); n == 0 || TopicID(c.topicIDs[n-len(id):]) != id {
		c.topicIDs = append(c.topicIDs, id[:]...)
		c.counts = append(c.counts, 0)
	}
	c.counts[len(c.counts)-1]++
	c.partitions = append(c.partitions, uint32(partition))
}

// topicIDPartition names a partition of one incarnation of a topic.
type topicIDPartition struct {
	topic     TopicID
	partition int32
}

// all returns the partitions in their order, and an error if the columns don't fit each other.
func (c *partitionColumns) all() ([]topicIDPartition, error) {
	if len(c.topicIDs) != len(c.counts)*len(TopicID{}) {
		return nil, fmt.Errorf("%d bytes of topic ids with %d counts", len(c.topicIDs), len(c.counts))
	}
	out := make([]topicIDPartition, 0, len(c.partitions))
	for i, n := range c.counts {
		if int64(n) > int64(len(c.partitions)-len(out)) {
			return nil, fmt.Errorf("count %d with %d partitions left", n, len(c.partitions)-len(out))
		}
		id := TopicID(c.topicIDs[i*16 : i*16+16])
		for range n {
			p := c.partitions[len(out)]
			if p > 1<<31-1 {
				return nil, fmt.Errorf("partition %d", p)
			}
			out = append(out, topicIDPartition{id, int32(p)})
		}
	}
	if len(out) != len(c.partitions) {
		return nil, fmt.Errorf("%d partitions of no topic", len(c.partitions)-len(out))
	}
	return out, nil
}

// find returns the topic of a partition, or which of the two there is not.
func (d *draft) find(tp topicIDPartition) (*Topic, error) {
	t := d.st.topicByID(tp.topic)
	if t == nil {
		return nil, ErrUnknownTopicID
	}
	if tp.partition < 0 || int(tp.partition) >= len(t.Partitions) {
		return nil, ErrUnknownPartition
	}
	return t, nil
}
