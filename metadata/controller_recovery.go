package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Recovery is what electing a leader of a partition that lost it, and all that could follow it, would mean (R15).
type Recovery struct {
	TopicPartition TopicPartition `json:"topic_partition"`
	// PartitionEpoch is that of the state it was worked out on; Recover refuses it in another.
	PartitionEpoch int32 `json:"partition_epoch"`
	// Leader would be elected: the live replica whose log reaches furthest, NoBroker if none lives or none could tell.
	Leader BrokerID `json:"leader"`
	// LeaderEpoch and Offset are how far its log reaches: the leader epoch of its last batch, and the log end offset. -1 when
	// it could not tell.
	LeaderEpoch int32 `json:"leader_epoch"`
	Offset      int64 `json:"offset"`
	// Others are the other live replicas: what they have and the leader has not is cut.
	Others []ReplicaEnd `json:"others"`
	// Missing are the brokers that had every acknowledged record and are gone; what only they have is lost.
	Missing []BrokerID `json:"missing"`
	// Safe says that nothing is lost: a replica that has every acknowledged record is there, and leads without an order.
	Safe bool `json:"safe"`
}

// ReplicaEnd is how far one live replica reaches, -1 when its broker could not tell.
type ReplicaEnd struct {
	Broker      BrokerID `json:"broker"`
	LeaderEpoch int32    `json:"leader_epoch"`
	Offset      int64    `json:"offset"`
}

// RecoveryOrder accepts one Recovery: exactly that leader, of exactly that state.
type RecoveryOrder struct {
	TopicPartition TopicPartition `json:"topic_partition"`
	PartitionEpoch int32          `json:"partition_epoch"`
	Leader         BrokerID       `json:"leader"`
}

var (
	opPlanRecovery = operation[[]TopicPartition, []Recovery]{name: "plan_recovery", repeatable: true, unseen: true,
		local: (*Store).planRecovery}
	opRecover = operation[[]RecoveryOrder, electionResults]{name: "recover",
		local: func(s *Store, ctx context.Context, orders []RecoveryOrder) (electionResults, error) {
			return s.recover(ctx, orders), nil
		}}
)

// PlanRecovery says of partitions without a leader, of all of them with nil, who would be elected by Recover and what may
// be lost by it. It changes nothing. Partitions that have a leader are left out.
//
// Errors: ErrUnknownTopic, ErrUnknownPartition, and those of every operation (see CreateTopics).
func (s *Store) PlanRecovery(ctx context.Context, partitions []TopicPartition) ([]Recovery, error) {
	return call(ctx, s, &opPlanRecovery, partitions)
}

func (s *Store) planRecovery(ctx context.Context, partitions []TopicPartition) ([]Recovery, error) {
	if _, err := s.controller(); err != nil {
		return nil, err
	}
	im := s.Image()
	if partitions == nil {
		partitions = im.electable(Unclean)
	}
	var elections []election
	for _, tp := range partitions {
		t, err := findPartition(im, tp)
		if err != nil {
			return nil, err
		}
		if p := t.Partitions[tp.Partition]; p.Leader == NoBroker {
			elections = append(elections, election{topicIDPartition: topicIDPartition{t.ID, tp.Partition}, leader: NoBroker, partitionEpoch: p.PartitionEpoch})
		}
	}
	ends := s.logEnds(ctx, im, elections)
	chooseLongest(im, elections, ends)
	out := make([]Recovery, 0, len(elections))
	d := &draft{st: *im.st}
	for _, e := range elections {
		t := im.TopicByID(e.topic)
		tp := TopicPartition{Topic: t.Name, Partition: e.partition}
		r := d.revise(t, int(e.partition), s.policy(im))
		rec := Recovery{TopicPartition: tp, PartitionEpoch: e.partitionEpoch, Leader: e.leader, LeaderEpoch: -1, Offset: -1, Others: []ReplicaEnd{}, Missing: []BrokerID{}}
		for i, id := range r.Replicas {
			whole := slices.Contains(r.ISR, id) || slices.Contains(r.ELR, id) || id == r.LastLeader
			switch end := ends[id][tp]; {
			case !r.usable(i):
				if whole {
					rec.Missing = append(rec.Missing, id)
				}
			case id == e.leader && end != nil:
				rec.LeaderEpoch, rec.Offset = end.LeaderEpoch, end.Offset
			case id == e.leader:
			case end != nil:
				rec.Others = append(rec.Others, ReplicaEnd{id, end.LeaderEpoch, end.Offset})
			default:
				rec.Others = append(rec.Others, ReplicaEnd{id, -1, -1})
			}
		}
		if r.elect(); r.Leader != NoBroker && !r.unclean {
			rec.Leader, rec.Safe = r.Leader, true
		}
		out = append(out, rec)
	}
	return out, nil
}

// Recover elects leaders as PlanRecovery proposed them, each only if the partition has not changed since. Records that were
// acknowledged and that the new leader does not have are lost; the controller's log says so, line by line (R15).
//
// Errors, for each: ErrStale (it has changed), ErrElectionNotNeeded, ErrNoEligibleLeader, ErrUnknownTopic,
// ErrUnknownPartition, and those of every operation (see CreateTopics).
func (s *Store) Recover(ctx context.Context, orders []RecoveryOrder) []ElectionResult {
	results, err := call(ctx, s, &opRecover, orders)
	if err != nil {
		results = make([]ElectionResult, len(orders))
		for i, o := range orders {
			results[i] = ElectionResult{TopicPartition: o.TopicPartition, Leader: NoBroker, Err: err}
		}
	}
	return results
}

func (s *Store) recover(ctx context.Context, orders []RecoveryOrder) []ElectionResult {
	results := make([]ElectionResult, len(orders))
	l, err := s.controller()
	im := s.Image()
	var elections []election
	var of []int
	for i, o := range orders {
		results[i] = ElectionResult{TopicPartition: o.TopicPartition, Leader: NoBroker, Err: err}
		if err != nil {
			continue
		}
		t, unknown := findPartition(im, o.TopicPartition)
		if unknown != nil {
			results[i].Err = unknown
			continue
		}
		elections = append(elections, election{topicIDPartition: topicIDPartition{t.ID, o.TopicPartition.Partition}, leader: o.Leader, partitionEpoch: o.PartitionEpoch})
		of = append(of, i)
	}
	if len(elections) == 0 {
		return results
	}
	for i, e := range s.runElections(ctx, l, Unclean, elections) {
		r := &results[of[i]]
		r.Leader, r.Err = e.leader, electionError(Unclean, r.TopicPartition, e.err)
		if errors.Is(e.err, ErrStale) {
			r.Err = &Error{
				Kind: ErrStale, What: fmt.Sprintf("no leader was elected for partition %s", r.TopicPartition), Why: "the partition has changed since the plan was made",
				Fix: "look at a new plan: millrace cluster partitions unsafe-recover --dry-run",
			}
		}
		if e.err == nil {
			s.logger.Warn("audit: partition recovered by order, acknowledged records may be lost", "topic", r.TopicPartition.Topic, "partition", r.TopicPartition.Partition,
				"ordered", orders[of[i]].Leader, "leader", e.leader)
			s.audit(failover{Unclean: []TopicPartition{r.TopicPartition}})
		}
	}
	return results
}
