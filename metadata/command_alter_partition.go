package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterPartition is a leader's change of its partition's ISR (KIP-497), with the ELR (KIP-966) that follows from it.
type alterPartition struct {
	leader            BrokerID
	leaderBrokerEpoch int64
	topic             TopicID
	partition         int32
	leaderEpoch       int32
	partitionEpoch    int32
	isr               []ISRMember
	elr               []BrokerID
}

func (c *alterPartition) kind() pb.CommandType { return pb.CommandType_COMMAND_ALTER_PARTITION }

func (c *alterPartition) message() proto.Message {
	m := &pb.AlterPartition{
		Leader:            int32(c.leader),
		LeaderBrokerEpoch: c.leaderBrokerEpoch,
		TopicId:           c.topic[:],
		Partition:         uint32(c.partition),
		LeaderEpoch:       c.leaderEpoch,
		PartitionEpoch:    c.partitionEpoch,
	}
	for _, r := range c.isr {
		m.Isr = append(m.Isr, int32(r.ID))
		m.IsrBrokerEpochs = append(m.IsrBrokerEpochs, r.Epoch)
	}
	for _, id := range c.elr {
		m.Elr = append(m.Elr, int32(id))
	}
	return m
}

func decodeAlterPartition(body []byte) (command, error) {
	var m pb.AlterPartition
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return nil, err
	}
	if len(m.Isr) != len(m.IsrBrokerEpochs) {
		return nil, fmt.Errorf("alter partition: ISR of %d with %d epochs", len(m.Isr), len(m.IsrBrokerEpochs))
	}
	c := &alterPartition{
		leader:            BrokerID(m.Leader),
		leaderBrokerEpoch: m.LeaderBrokerEpoch,
		topic:             id,
		partition:         int32(m.Partition),
		leaderEpoch:       m.LeaderEpoch,
		partitionEpoch:    m.PartitionEpoch,
	}
	for i, r := range m.Isr {
		c.isr = append(c.isr, ISRMember{ID: BrokerID(r), Epoch: m.IsrBrokerEpochs[i]})
	}
	for _, r := range m.Elr {
		c.elr = append(c.elr, BrokerID(r))
	}
	return c, nil
}

// apply compares every epoch here, in the order of the log, and not before the proposal: between the two another change
// may have been committed (R11). It returns the changed Partition.
func (c *alterPartition) apply(d *draft, _ position) (any, error) {
	if b := d.st.broker(c.leader); b == nil || b.Epoch != c.leaderBrokerEpoch {
		return nil, ErrStaleBrokerEpoch
	}
	t := d.st.topicByID(c.topic)
	if t == nil {
		return nil, ErrUnknownTopicID
	}
	if c.partition < 0 || int(c.partition) >= len(t.Partitions) {
		return nil, ErrUnknownPartition
	}
	p := *t.Partitions[c.partition]
	if c.leaderEpoch != p.LeaderEpoch || c.leader != p.Leader {
		return nil, ErrFencedLeaderEpoch
	}
	if c.partitionEpoch != p.PartitionEpoch {
		return nil, ErrStale
	}
	isr := make([]BrokerID, 0, len(c.isr))
	for _, r := range c.isr {
		if !slices.Contains(p.Replicas, r.ID) || slices.Contains(isr, r.ID) {
			return nil, ErrInvalidRequest
		}
		b := d.st.broker(r.ID)
		if b == nil || b.Fenced || r.Epoch != -1 && r.Epoch != b.Epoch {
			return nil, ErrIneligibleReplica // an older incarnation has been seen fetching (KIP-903, R12)
		}
		isr = append(isr, r.ID)
	}
	if !slices.Contains(isr, c.leader) {
		return nil, ErrInvalidRequest
	}
	for i, id := range c.elr {
		if !slices.Contains(p.Replicas, id) || slices.Contains(isr, id) || slices.Contains(c.elr[:i], id) {
			return nil, ErrInvalidRequest
		}
	}
	p.ISR = isr
	p.ELR = c.elr
	p.PartitionEpoch++
	d.ownTopic(t.Name).Partitions[c.partition] = &p
	return p, nil
}
