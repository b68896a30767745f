package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterPartitions are a leader's changes of the ISRs of partitions that it leads (KIP-497). Each is applied or refused by
// itself; together they take some twenty bytes per partition, so that ten thousand fit into two entries.
type alterPartitions struct {
	leader            BrokerID
	leaderBrokerEpoch int64
	policy            partitionPolicy
	changes           []PartitionChange
}

// alteredPartition is the outcome of one change.
type alteredPartition struct {
	partition Partition
	err       error
}

func (c *alterPartitions) kind() pb.CommandType { return pb.CommandType_COMMAND_ALTER_PARTITIONS }

func (c *alterPartitions) message() proto.Message {
	m := &pb.AlterPartitions{Leader: int32(c.leader), LeaderBrokerEpoch: c.leaderBrokerEpoch, Policy: c.policy.message()}
	var columns partitionColumns
	for i := range c.changes {
		ch := &c.changes[i]
		columns.add(ch.TopicID, ch.Partition)
		m.LeaderEpochs = append(m.LeaderEpochs, ch.LeaderEpoch)
		m.PartitionEpochs = append(m.PartitionEpochs, ch.PartitionEpoch)
		m.IsrCounts = append(m.IsrCounts, uint32(len(ch.ISR)))
		for _, member := range ch.ISR {
			m.Isr = append(m.Isr, int32(member.ID))
			m.IsrBrokerEpochs = append(m.IsrBrokerEpochs, member.Epoch)
		}
	}
	m.TopicIds, m.Counts, m.Partitions = columns.topicIDs, columns.counts, columns.partitions
	return m
}

func decodeAlterPartitions(body []byte) (command, error) {
	var m pb.AlterPartitions
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	columns := partitionColumns{m.TopicIds, m.Counts, m.Partitions}
	partitions, err := columns.all()
	if err != nil {
		return nil, err
	}
	n := len(partitions)
	if len(m.LeaderEpochs) != n || len(m.PartitionEpochs) != n || len(m.IsrCounts) != n || len(m.Isr) != len(m.IsrBrokerEpochs) {
		return nil, fmt.Errorf("alter partitions: columns of %d, %d, %d, %d partitions, ISR of %d with %d epochs",
			n, len(m.LeaderEpochs), len(m.PartitionEpochs), len(m.IsrCounts), len(m.Isr), len(m.IsrBrokerEpochs))
	}
	c := &alterPartitions{
		leader: BrokerID(m.Leader), leaderBrokerEpoch: m.LeaderBrokerEpoch, policy: decodePolicy(m.Policy),
		changes: make([]PartitionChange, n),
	}
	members := make([]ISRMember, len(m.Isr))
	for i := range members {
		members[i] = ISRMember{ID: BrokerID(m.Isr[i]), Epoch: m.IsrBrokerEpochs[i]}
	}
	for i, tp := range partitions {
		count := int(m.IsrCounts[i])
		if count > len(members) {
			return nil, fmt.Errorf("alter partitions: ISR of %d with %d left", count, len(members))
		}
		c.changes[i] = PartitionChange{
			TopicID: tp.topic, Partition: tp.partition, LeaderEpoch: m.LeaderEpochs[i], PartitionEpoch: m.PartitionEpochs[i],
			ISR: members[:count:count],
		}
		members = members[count:]
	}
	if len(members) > 0 {
		return nil, fmt.Errorf("alter partitions: %d members of no ISR", len(members))
	}
	return c, nil
}

// apply returns an alteredPartition for each change, in their order.
func (c *alterPartitions) apply(d *draft, _ position) (any, error) {
	if b := d.st.broker(c.leader); b == nil || b.Epoch != c.leaderBrokerEpoch {
		return nil, ErrStaleBrokerEpoch
	}
	out := make([]alteredPartition, len(c.changes))
	var counted failover
	for i := range c.changes {
		revise := d.reviseISR
		if !slices.ContainsFunc(c.changes[i].ISR, func(m ISRMember) bool { return m.ID == c.leader }) {
			revise = d.giveUp
		}
		r, err := revise(c.leader, &c.changes[i], c.policy)
		if err != nil {
			out[i].err = err
			continue
		}
		r.completeReassignment()
		r.elect() // another member of the ISR may suit better than a leader in maintenance
		out[i].partition = *r.commit(&counted).Partitions[r.index]
	}
	return out, nil
}

// reviseISR checks one change against the state, every epoch of it (R11, R12), and makes it in a revision.
func (d *draft) reviseISR(leader BrokerID, ch *PartitionChange, pp partitionPolicy) (*revision, error) {
	t, err := d.find(topicIDPartition{ch.TopicID, ch.Partition})
	if err != nil {
		return nil, err
	}
	r := d.revise(t, int(ch.Partition), pp)
	if ch.LeaderEpoch != r.LeaderEpoch || leader != r.Leader {
		return nil, ErrFencedLeaderEpoch
	}
	if ch.PartitionEpoch != r.PartitionEpoch {
		return nil, ErrStale
	}
	isr := make([]BrokerID, 0, len(ch.ISR))
	for _, member := range ch.ISR {
		at := slices.Index(r.Replicas, member.ID)
		if at < 0 || slices.Contains(isr, member.ID) {
			return nil, ErrInvalidRequest
		}
		// An older incarnation has been seen fetching (KIP-903, R12), or the broker is about to stop.
		b := d.st.broker(member.ID)
		if !r.usable(at) || member.Epoch != -1 && member.Epoch != b.Epoch || b.Leaving && !slices.Contains(r.ISR, member.ID) {
			return nil, ErrIneligibleReplica
		}
		isr = append(isr, member.ID)
	}
	if !slices.Contains(isr, leader) {
		return nil, ErrInvalidRequest
	}
	r.setISR(isr)
	return r, nil
}

// giveUp takes id, which asks for it, out of ISR and ELR: its copy is damaged and proves nothing (L9, I12). The change
// names the ISR that is left. Nobody gives up the last copy that may be complete: then it is for a person to decide.
func (d *draft) giveUp(id BrokerID, ch *PartitionChange, pp partitionPolicy) (*revision, error) {
	t, err := d.find(topicIDPartition{ch.TopicID, ch.Partition})
	if err != nil {
		return nil, err
	}
	r := d.revise(t, int(ch.Partition), pp)
	switch {
	case ch.PartitionEpoch != r.PartitionEpoch:
		return nil, ErrStale
	case !slices.Contains(r.Replicas, id):
		return nil, ErrInvalidRequest
	}
	left := without(r.ISR, id)
	if len(ch.ISR) != len(left) || slices.ContainsFunc(ch.ISR, func(m ISRMember) bool { return !slices.Contains(left, m.ID) }) {
		return nil, ErrInvalidRequest
	}
	if len(left) == 0 && len(without(r.ELR, id)) == 0 {
		return nil, ErrNoEligibleLeader
	}
	r.shrink(id, false)
	return r, nil
}
