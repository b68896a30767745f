package metadata

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ElectLeaders elects leaders of the partitions given, of all with nil, and returns what came of each; with nil only of
// those where there was something to do.
func (s *Store) ElectLeaders(ctx context.Context, kind ElectionKind, partitions []TopicPartition) []ElectionResult {
	results, err := call(ctx, s, &opElectLeaders, electLeadersArgs{kind, partitions})
	if err != nil {
		results = make([]ElectionResult, len(partitions))
		for i, tp := range partitions {
			results[i] = ElectionResult{TopicPartition: tp, Leader: NoBroker, Err: err}
		}
	}
	return results
}

func (s *Store) electLeaders(ctx context.Context, kind ElectionKind, partitions []TopicPartition) []ElectionResult {
	im := s.Image()
	all := partitions == nil
	if all {
		partitions = im.electable(kind)
	}
	results := make([]ElectionResult, len(partitions))
	l, err := s.controller()
	if err == nil && kind > Unclean {
		err = &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("there is no election of kind %d", kind),
			Why:  "0 elects preferred leaders, 1 leaders that may lack records",
			Fix:  "ask for one of them",
		}
	}
	var elections []election
	var of []int // index into results, parallel to elections
	for i, tp := range partitions {
		results[i] = ElectionResult{TopicPartition: tp, Leader: NoBroker, Err: err}
		if err != nil {
			continue
		}
		t, unknown := findPartition(im, tp)
		if unknown != nil {
			results[i].Err = unknown
			continue
		}
		elections = append(elections, election{
			topicIDPartition: topicIDPartition{t.ID, tp.Partition}, leader: NoBroker, partitionEpoch: t.Partitions[tp.Partition].PartitionEpoch,
		})
		of = append(of, i)
	}
	if err != nil || len(elections) == 0 {
		return results
	}
	if kind == Unclean {
		s.chooseUncleanly(ctx, im, elections)
	} else {
		s.drainLeaders(ctx, im, elections)
	}
	for i, e := range s.runElections(ctx, l, kind, elections) {
		r := &results[of[i]]
		r.Leader, r.Err = e.leader, electionError(kind, r.TopicPartition, e.err)
		if e.err == nil && kind == Unclean {
			s.audit(failover{Unclean: []TopicPartition{r.TopicPartition}})
		}
	}
	return results
}

// runElections proposes elections and returns their outcomes, in their order.
func (s *Store) runElections(ctx context.Context, l *lead, kind ElectionKind, elections []election) []elected {
	policy := s.policy(s.Image())
	var commands []command
	for chunk := range slices.Chunk(elections, changesPerCommand) {
		commands = append(commands, &electLeaders{unclean: kind == Unclean, policy: policy, elections: chunk})
	}
	out := make([]elected, 0, len(elections))
	for i, r := range s.proposeAll(ctx, l.term, commands) {
		got, ok := r.value.([]elected)
		if !ok || r.err != nil {
			got = slices.Repeat([]elected{{NoBroker, r.err}}, len(commands[i].(*electLeaders).elections))
		}
		out = append(out, got...)
	}
	return out
}

// electable returns the partitions that an election of that kind could give another leader.
func (im *Image) electable(kind ElectionKind) (out []TopicPartition) {
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			if kind == Preferred && p.Leader != p.Replicas[0] || kind == Unclean && p.Leader == NoBroker {
				out = append(out, TopicPartition{Topic: t.Name, Partition: int32(i)})
			}
		}
	}
	return out
}

// chooseUncleanly names for each partition the live replica that has the most of it: by the epoch of its last batch, then
// by its log end offset (R15). Of those that nobody could tell it takes the last known leader, else the first live replica.
func (s *Store) chooseUncleanly(ctx context.Context, im *Image, elections []election) {
	chooseLongest(im, elections, s.logEnds(ctx, im, elections))
}

func chooseLongest(im *Image, elections []election, ends map[BrokerID]map[TopicPartition]*LogEnd) {
	d := &draft{st: *im.st}
	for i := range elections {
		e := &elections[i]
		t := im.TopicByID(e.topic)
		r := d.revise(t, int(e.partition), partitionPolicy{})
		var best *LogEnd
		for j, id := range r.Replicas {
			if !r.usable(j) {
				continue
			}
			end := ends[id][TopicPartition{Topic: t.Name, Partition: e.partition}]
			switch {
			case end != nil && (best == nil || end.LeaderEpoch > best.LeaderEpoch || end.LeaderEpoch == best.LeaderEpoch && end.Offset > best.Offset):
				e.leader, best = id, end
			case best == nil && (e.leader == NoBroker || id == r.LastLeader):
				e.leader = id
			}
		}
	}
}

// logEnds asks every live broker with one of the partitions how far its replicas reach.
func (s *Store) logEnds(ctx context.Context, im *Image, elections []election) map[BrokerID]map[TopicPartition]*LogEnd {
	if s.cfg.LogEnds == nil {
		return nil
	}
	ask := make(map[BrokerID][]TopicPartition)
	for _, e := range elections {
		t := im.TopicByID(e.topic)
		for _, id := range t.Partitions[e.partition].Replicas {
			ask[id] = append(ask[id], TopicPartition{Topic: t.Name, Partition: e.partition})
		}
	}
	out := make(map[BrokerID]map[TopicPartition]*LogEnd)
	var mu sync.Mutex
	var asking sync.WaitGroup
	ctx, cancel := context.WithTimeout(ctx, logEndsWait)
	defer cancel()
	for _, b := range im.Brokers() {
		if b.Fenced || len(ask[b.ID]) == 0 {
			continue
		}
		asking.Go(func() {
			for some := range slices.Chunk(ask[b.ID], logEndsTogether) {
				ends, err := s.cfg.LogEnds(ctx, b, some)
				if err != nil {
					s.logger.Warn("a broker does not say how far its replicas reach", "broker", b.ID, "error", err)
					return
				}
				mu.Lock()
				if out[b.ID] == nil {
					out[b.ID] = make(map[TopicPartition]*LogEnd, len(ask[b.ID]))
				}
				for i := range ends {
					out[b.ID][ends[i].TopicPartition] = &ends[i]
				}
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	return out
}

const (
	// logEndsWait bounds how long brokers may take to say how far their replicas reach: the controller has other work, and
	// whoever does not answer is no candidate. logEndsTogether bounds one question.
	logEndsWait     = 2 * time.Second
	logEndsTogether = 2000
)

func electionError(kind ElectionKind, tp TopicPartition, err error) error {
	e := &Error{Kind: err, What: fmt.Sprintf("no leader was elected for partition %s", tp)}
	switch {
	case errors.Is(err, ErrElectionNotNeeded) && kind == Unclean:
		e.Why, e.Fix = "it has a leader", "elect uncleanly only where nobody leads"
	case errors.Is(err, ErrElectionNotNeeded):
		e.Why, e.Fix = "its preferred replica leads it", "there is nothing to do"
	case errors.Is(err, ErrPreferredLeaderUnfit):
		e.Why, e.Fix = "its preferred replica is not in the ISR, or its broker is fenced, in maintenance or leaving", "wait until it has caught up"
	case errors.Is(err, ErrNoEligibleLeader):
		e.Why, e.Fix = "none of its replicas is on a live broker", "start one of those brokers"
	case errors.Is(err, ErrStale):
		e.Why, e.Fix = "the partition has changed meanwhile", "try again; nothing was changed"
	default:
		return err
	}
	return e
}
