package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// reassignPartition starts or changes the move of a partition's replicas, or cancels it (KIP-455).
type reassignPartition struct {
	topicIDPartition
	partitionEpoch int32      // of the state it was decided on
	target         replicaSet // empty = cancel
	policy         partitionPolicy
}

func (c *reassignPartition) kind() pb.CommandType {
	return pb.CommandType_COMMAND_REASSIGN_PARTITION
}

func (c *reassignPartition) message() proto.Message {
	m := &pb.ReassignPartition{
		TopicId: c.topic[:], Partition: uint32(c.partition), PartitionEpoch: c.partitionEpoch,
		Cancel: len(c.target.replicas) == 0, Directories: encodeIDs(c.target.directories), Policy: c.policy.message(),
	}
	for _, id := range c.target.replicas {
		m.Replicas = append(m.Replicas, int32(id))
	}
	return m
}

func decodeReassignPartition(body []byte) (command, error) {
	var m pb.ReassignPartition
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return nil, err
	}
	c := &reassignPartition{topicIDPartition: topicIDPartition{id, int32(m.Partition)}, partitionEpoch: m.PartitionEpoch, policy: decodePolicy(m.Policy)}
	if c.target.directories, err = decodeIDs(m.Directories); err != nil {
		return nil, err
	}
	for _, id := range m.Replicas {
		if id < 0 {
			return nil, fmt.Errorf("reassign to broker %d", id)
		}
		c.target.replicas = append(c.target.replicas, BrokerID(id))
	}
	if m.Cancel != (len(c.target.replicas) == 0) || len(c.target.replicas) != len(c.target.directories) || hasDuplicates(c.target.replicas) {
		return nil, fmt.Errorf("reassign to replicas %v in %d directories", c.target.replicas, len(c.target.directories))
	}
	return c, nil
}

// apply returns the changed Partition.
func (c *reassignPartition) apply(d *draft, _ position) (any, error) {
	t, err := d.find(c.topicIDPartition)
	if err != nil {
		return nil, err
	}
	r := d.revise(t, int(c.partition), c.policy)
	if err := r.reassign(c); err != nil {
		return nil, err
	}
	var counted failover
	return *r.commit(&counted).Partitions[r.index], nil
}

// reassign begins a move, in place of one that may be under way, or cancels it. Replicas that only the former move wanted
// go at once. Until the move completes the new replicas come first, in the order asked for, so that the first of them is
// the preferred leader; those that are to go come behind them.
func (r *revision) reassign(c *reassignPartition) error {
	if c.partitionEpoch != r.PartitionEpoch {
		return ErrStale
	}
	original := minus(r.Replicas, r.Adding)
	target := replicaSet{c.target.replicas, slices.Clone(c.target.directories)}
	if len(target.replicas) == 0 {
		if !r.Reassigning() {
			return ErrNoReassignment
		}
		target.replicas = original
	}
	if len(target.directories) == 0 {
		for _, id := range target.replicas {
			target.directories = append(target.directories, r.Directories[slices.Index(r.Replicas, id)])
		}
	}
	for i, id := range target.replicas {
		if at := slices.Index(r.Replicas, id); at >= 0 {
			target.directories[i] = r.Directories[at] // it stays where it is
			continue
		}
		if b := r.d.st.broker(id); b == nil || !slices.Contains(b.Directories, target.directories[i]) {
			return ErrStale
		}
	}
	// Without one of the ISR, or of the ELR when that is all there is, among those that stay, nothing would have the
	// committed records until the move is complete.
	stay := append(slices.Clone(target.replicas), minus(original, target.replicas)...)
	has := func(set []BrokerID) bool {
		return slices.ContainsFunc(set, func(id BrokerID) bool { return slices.Contains(stay, id) })
	}
	if (len(r.ISR) > 0 || len(r.ELR) > 0) && !has(r.ISR) && !has(r.ELR) {
		return ErrInvalidAssignment
	}
	if len(r.ISR) > 0 && !has(r.ISR) {
		return ErrInvalidAssignment
	}
	abandoned := minus(r.Replicas, stay)
	removing := minus(original, target.replicas)
	full := replicaSet{slices.Clone(target.replicas), slices.Clone(target.directories)}
	for _, id := range removing {
		full.replicas = append(full.replicas, id)
		full.directories = append(full.directories, r.Directories[slices.Index(r.Replicas, id)])
	}
	r.Adding, r.Removing = minus(target.replicas, original), removing
	r.Replicas, r.Directories = append(full.replicas, abandoned...), full.directories
	for _, id := range abandoned {
		r.Directories = append(r.Directories, r.old.Directories[slices.Index(r.old.Replicas, id)])
	}
	r.drop(abandoned)
	r.completeReassignment()
	return nil
}
