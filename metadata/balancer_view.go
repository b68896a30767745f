package metadata

import (
	"fmt"
	"slices"
	"time"
)

// balancerView is what the planner looks at: the brokers and the replicas of an Image, and how it stands with each of them.
type balancerView struct {
	brokers    []balancerBroker    // by ascending id
	partitions []balancerPartition // by ascending topic and partition
	topics     int
	at         map[BrokerID]int // index in brokers
}

// balancerBroker is a registered broker.
type balancerBroker struct {
	id   BrokerID
	rack string
	// takes says that new replicas may go there: it lives, and nobody wants it to have less.
	takes bool
	// drops says why its replicas must go: "broker 2 is being decommissioned"; "" when they may stay.
	drops string
}

// balancerPartition is a partition with the replicas that it has once what is under way is done.
type balancerPartition struct {
	TopicPartition
	id       TopicID
	topic    int // counts the topics of the view
	replicas []BrokerID
	// moving partitions are being reassigned and are left alone; nor can one be moved whose replicas have no leader to copy
	// from.
	moving, leaderless bool
}

// newBalancerView looks at an Image. dead are the brokers that were away for longer than the grace time.
func newBalancerView(im *Image, dead func(*Broker) bool, grace time.Duration) *balancerView {
	v := &balancerView{at: make(map[BrokerID]int)}
	for _, b := range im.Brokers() {
		bb := balancerBroker{id: b.ID, rack: b.Rack, takes: b.mayTake()}
		switch {
		case b.Removing:
			bb.drops = fmt.Sprintf("broker %d is being decommissioned", b.ID)
		case dead(b):
			bb.drops = fmt.Sprintf("broker %d has been dead for more than %v", b.ID, grace)
		}
		v.at[b.ID] = len(v.brokers)
		v.brokers = append(v.brokers, bb)
	}
	for t := range im.Topics() {
		for i, p := range t.Partitions {
			v.partitions = append(v.partitions, balancerPartition{
				TopicPartition: TopicPartition{Topic: t.Name, Partition: int32(i)}, id: t.ID, topic: v.topics,
				replicas: p.target(), moving: p.Reassigning(), leaderless: p.Leader == NoBroker,
			})
		}
		v.topics++
	}
	return v
}

// mayTake reports whether new replicas may go to the broker.
func (b *Broker) mayTake() bool {
	if b.Fenced || b.Draining || b.Removing || b.Leaving {
		return false
	}
	return slices.ContainsFunc(b.Directories, func(dir DirectoryID) bool { return !slices.Contains(b.Offline, dir) })
}

// target is the assignment once a reassignment under way is done.
func (p *Partition) target() []BrokerID {
	if len(p.Removing) == 0 {
		return p.Replicas
	}
	return slices.DeleteFunc(slices.Clone(p.Replicas), func(id BrokerID) bool { return slices.Contains(p.Removing, id) })
}

// has returns how many replicas brokers have, once what is under way is done.
func (v *balancerView) has(id BrokerID) (n int) {
	for i := range v.partitions {
		if slices.Contains(v.partitions[i].replicas, id) {
			n++
		}
	}
	return n
}

// takers are the brokers that may take replicas, by ascending id.
func (v *balancerView) takers() (ids []BrokerID) {
	for i := range v.brokers {
		if v.brokers[i].takes {
			ids = append(ids, v.brokers[i].id)
		}
	}
	return ids
}
