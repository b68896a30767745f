package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// electLeaders elects leaders of partitions: the preferred ones, or, unclean, those that the proposer found to have the
// most of a partition without a leader.
type electLeaders struct {
	unclean   bool
	policy    partitionPolicy
	elections []election
}

// election is about one partition.
type election struct {
	topicIDPartition
	leader         BrokerID // unclean only
	partitionEpoch int32    // unclean only: of the state it was decided on
}

// elected is the outcome of one election.
type elected struct {
	leader BrokerID
	err    error
}

func (c *electLeaders) kind() pb.CommandType { return pb.CommandType_COMMAND_ELECT_LEADERS }

func (c *electLeaders) message() proto.Message {
	m := &pb.ElectLeaders{Unclean: c.unclean, Policy: c.policy.message()}
	var columns partitionColumns
	for _, e := range c.elections {
		columns.add(e.topic, e.partition)
		if c.unclean {
			m.Leaders = append(m.Leaders, int32(e.leader))
			m.PartitionEpochs = append(m.PartitionEpochs, e.partitionEpoch)
		}
	}
	m.TopicIds, m.Counts, m.Partitions = columns.topicIDs, columns.counts, columns.partitions
	return m
}

func decodeElectLeaders(body []byte) (command, error) {
	var m pb.ElectLeaders
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	columns := partitionColumns{m.TopicIds, m.Counts, m.Partitions}
	partitions, err := columns.all()
	if err != nil {
		return nil, err
	}
	want := 0
	if m.Unclean {
		want = len(partitions)
	}
	if len(m.Leaders) != want || len(m.PartitionEpochs) != want {
		return nil, fmt.Errorf("elect leaders: columns of %d and %d for %d partitions", len(m.Leaders), len(m.PartitionEpochs), len(partitions))
	}
	c := &electLeaders{unclean: m.Unclean, policy: decodePolicy(m.Policy), elections: make([]election, len(partitions))}
	for i, tp := range partitions {
		c.elections[i].topicIDPartition = tp
		if m.Unclean {
			c.elections[i].leader, c.elections[i].partitionEpoch = BrokerID(m.Leaders[i]), m.PartitionEpochs[i]
		}
	}
	return c, nil
}

// apply returns an elected for each election, in their order.
func (c *electLeaders) apply(d *draft, _ position) (any, error) {
	out := make([]elected, len(c.elections))
	var counted failover
	for i, e := range c.elections {
		out[i].leader = NoBroker
		t, err := d.find(e.topicIDPartition)
		if err != nil {
			out[i].err = err
			continue
		}
		r := d.revise(t, int(e.partition), c.policy)
		if c.unclean {
			err = r.electUncleanly(e)
		} else {
			err = r.electPreferred()
		}
		if err != nil {
			out[i].err = err
			continue
		}
		r.commit(&counted)
		out[i].leader = r.Leader
	}
	return out, nil
}

func (r *revision) electPreferred() error {
	preferred := r.Replicas[0]
	switch {
	case r.Leader == preferred:
		return ErrElectionNotNeeded
	case !slices.Contains(r.ISR, preferred) || !r.usable(0) || !r.welcome(0):
		return ErrPreferredLeaderUnfit
	}
	r.Leader = preferred
	return nil
}

func (r *revision) electUncleanly(e election) error {
	if r.Leader != NoBroker {
		return ErrElectionNotNeeded
	}
	if e.partitionEpoch != r.PartitionEpoch {
		return ErrStale
	}
	if r.elect(); r.Leader != NoBroker {
		return nil // nothing is lost
	}
	at := slices.Index(r.Replicas, e.leader)
	if at < 0 || !r.usable(at) {
		return ErrNoEligibleLeader
	}
	r.Leader, r.ISR, r.ELR, r.unclean = e.leader, []BrokerID{e.leader}, nil, true
	return nil
}
