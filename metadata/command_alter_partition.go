package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterPartition is a leader's change of one partition's ISR (KIP-497), with the ELR (KIP-966) as the proposer worked it out.
// It is read and applied, and no longer proposed: see alterPartitions.
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
	ch := PartitionChange{TopicID: c.topic, Partition: c.partition, LeaderEpoch: c.leaderEpoch, PartitionEpoch: c.partitionEpoch, ISR: c.isr}
	r, err := d.reviseISR(c.leader, &ch, partitionPolicy{})
	if err != nil {
		return nil, err
	}
	for i, id := range c.elr {
		if !slices.Contains(r.Replicas, id) || slices.Contains(r.ISR, id) || slices.Contains(c.elr[:i], id) {
			return nil, ErrInvalidRequest
		}
	}
	r.ELR = c.elr
	var out failover
	return *r.commit(&out).Partitions[c.partition], nil
}
