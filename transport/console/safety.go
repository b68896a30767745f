package console

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// stopReasons says why a broker should not be stopped now: what would be left without a leader, or with fewer replicas
// in sync than acks=all needs, or without a majority of the quorum. None: it may be. minISR is called once per topic.
func stopReasons(im *metadata.Image, id metadata.BrokerID, minISR func(*metadata.Topic) int, q *QuorumStatus) (reasons []string) {
	if im.Broker(id) == nil {
		return []string{fmt.Sprintf("there is no broker %d", id)}
	}
	for t := range im.Topics() {
		least := -1
		for i, p := range t.Partitions {
			if !slices.Contains(p.Replicas, id) {
				continue
			}
			if least < 0 {
				least = minISR(t)
			}
			if reason := stopsPartition(im, p, id, least); reason != "" {
				reasons = append(reasons, fmt.Sprintf("%s-%d %s", t.Name, i, reason))
			}
		}
	}
	return append(reasons, stopsQuorum(q, id)...)
}

// stopsPartition says what a partition would suffer, "" when nothing.
func stopsPartition(im *metadata.Image, p *metadata.Partition, id metadata.BrokerID, minISR int) string {
	left := 0
	for _, r := range p.ISR {
		if b := im.Broker(r); r != id && b != nil && !b.Fenced && !b.Leaving {
			left++
		}
	}
	mayLead := slices.Contains(p.ISR, id) || slices.Contains(p.ELR, id) || p.Leader == metadata.NoBroker && p.LastLeader == id
	switch {
	case left == 0 && mayLead && p.Leader != metadata.NoBroker:
		return fmt.Sprintf("would have no leader: broker %d is its only replica in sync", id)
	case left == 0 && mayLead:
		return fmt.Sprintf("has no leader, and broker %d may be the one to bring it back", id)
	case left < min(minISR, len(p.Replicas)) && slices.Contains(p.ISR, id):
		return fmt.Sprintf("would have %d in sync, acks=all needs %d", left, minISR)
	case left < min(minISR, len(p.Replicas)):
		return fmt.Sprintf("has %d in sync, acks=all needs %d, and broker %d is catching up", left, minISR, id)
	}
	return ""
}

// stopsQuorum says whether the majority would be lost. A quorum of one is lost with its only server, as everything is.
func stopsQuorum(q *QuorumStatus, id metadata.BrokerID) []string {
	if q == nil {
		return nil
	}
	if q.Leader < 0 {
		return []string{"the quorum has no leader: nobody can take over"}
	}
	votes, healthy := false, 0
	for _, s := range q.Servers {
		switch {
		case !s.Voter:
		case s.Broker == int32(id):
			votes = true
		case s.Healthy:
			healthy++
		}
	}
	if votes && healthy < q.majority() {
		return []string{fmt.Sprintf("the quorum would have %d of %d voters, and needs %d", healthy, q.voters(), q.majority())}
	}
	return nil
}

// stranded returns the partitions that a broker could not give away, each with the number of its replicas: no other
// broker that may take one is free of them. others is how many brokers may take replicas at all.
func stranded(im *metadata.Image, id metadata.BrokerID) (stuck []strandedPartition, others int) {
	takers := map[metadata.BrokerID]bool{}
	for _, b := range im.Brokers() {
		if b.ID != id && !b.Fenced && !b.Removing && !b.Draining && !b.Leaving {
			takers[b.ID] = true
		}
	}
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			if !slices.Contains(p.Replicas, id) || slices.Contains(p.Removing, id) {
				continue
			}
			free := len(takers)
			for _, r := range p.Replicas {
				if takers[r] {
					free--
				}
			}
			if free == 0 {
				stuck = append(stuck, strandedPartition{metadata.TopicPartition{Topic: t.Name, Partition: int32(i)}, len(p.Replicas)})
			}
		}
	}
	return stuck, len(takers)
}

type strandedPartition struct {
	metadata.TopicPartition
	replicas int
}
