package metadata

import (
	"cmp"
	"fmt"
	"slices"
)

// placement decides where new replicas go (D16). A topic's own partitions are spread first: leaders and replicas evenly
// over the brokers, the replicas of one partition over as many racks as there are. Among brokers that are equal in that
// respect the one with the least of the whole cluster's leaders or replicas is taken. A fenced broker gets a replica only
// when there are not enough others: it joins the ISR when it is back.
type placement struct {
	brokers []*candidate
	// turn rotates the order of equals, so that small topics don't all begin on the broker with the lowest id.
	turn int
}

// candidate is a broker that can take replicas, with what it has: of all topics, and of the topic being placed.
type candidate struct {
	broker      *Broker
	absent      bool // fenced, or leaving
	leaders     int
	replicas    int
	directories []int // replicas per directory, parallel to broker.Directories

	topicLeaders  int
	topicReplicas int
}

// newPlacement counts the load of all brokers that may take replicas. turn is any number ≥ 0.
func newPlacement(im *Image, turn int) *placement {
	p := &placement{turn: turn}
	byID := make(map[BrokerID]*candidate)
	for _, b := range im.Brokers() {
		if !b.Draining && !b.Removing && len(b.Directories) > 0 {
			c := &candidate{broker: b, absent: b.Fenced || b.Leaving, directories: make([]int, len(b.Directories))}
			p.brokers = append(p.brokers, c)
			byID[b.ID] = c
		}
	}
	if len(p.brokers) == 1 && len(p.brokers[0].directories) == 1 {
		return p // no choice, no need to count
	}
	for t := range im.Topics() {
		for i := range t.Partitions {
			part := t.Partitions[i]
			for j, id := range part.Replicas {
				if c := byID[id]; c != nil {
					c.count(j == 0, part.Directories[j])
				}
			}
		}
	}
	return p
}

func (c *candidate) count(leader bool, dir DirectoryID) {
	c.replicas++
	if leader {
		c.leaders++
	}
	if i := slices.Index(c.broker.Directories, dir); i >= 0 {
		c.directories[i]++
	}
}

// begin starts a topic, whose present partitions count as its own load.
func (p *placement) begin(present []*Partition) {
	for _, c := range p.brokers {
		c.topicLeaders, c.topicReplicas = 0, 0
		for i := range present {
			if at := slices.Index(present[i].Replicas, c.broker.ID); at >= 0 {
				c.topicReplicas++
				if at == 0 {
					c.topicLeaders++
				}
			}
		}
	}
}

// spread places n partitions of factor replicas each. There must be at least factor brokers.
func (p *placement) spread(n, factor int) []replicaSet {
	sets := make([]replicaSet, n)
	for i := range sets {
		sets[i] = p.one(factor)
	}
	return sets
}

func (p *placement) one(factor int) replicaSet {
	set := replicaSet{replicas: make([]BrokerID, 0, factor), directories: make([]DirectoryID, 0, factor)}
	var racks []string
	for len(set.replicas) < factor {
		leader := len(set.replicas) == 0
		var best *candidate
		for i := range p.brokers {
			c := p.brokers[(p.turn+i)%len(p.brokers)]
			if slices.Contains(set.replicas, c.broker.ID) {
				continue
			}
			if best == nil || p.compare(c, best, leader, racks) < 0 {
				best = c
			}
		}
		set.replicas = append(set.replicas, best.broker.ID)
		set.directories = append(set.directories, best.take(leader))
		racks = append(racks, best.broker.Rack)
	}
	p.turn++
	return set
}

// compare is negative if a suits better than b as leader, or as follower beside replicas in the given racks.
func (p *placement) compare(a, b *candidate, leader bool, racks []string) int {
	if a.absent != b.absent {
		if b.absent {
			return -1
		}
		return 1
	}
	if leader {
		return cmp.Or(cmp.Compare(a.topicLeaders, b.topicLeaders), cmp.Compare(a.topicReplicas, b.topicReplicas),
			cmp.Compare(a.leaders, b.leaders), cmp.Compare(a.replicas, b.replicas))
	}
	return cmp.Or(cmp.Compare(timesIn(racks, a.broker.Rack), timesIn(racks, b.broker.Rack)),
		cmp.Compare(a.topicReplicas, b.topicReplicas), cmp.Compare(a.replicas, b.replicas))
}

func timesIn(racks []string, rack string) (n int) {
	for _, r := range racks {
		if r == rack {
			n++
		}
	}
	return n
}

// take gives c one more replica and returns the directory for it, the one with the fewest.
func (c *candidate) take(leader bool) DirectoryID {
	least := 0
	for i, n := range c.directories {
		if n < c.directories[least] {
			least = i
		}
	}
	dir := c.broker.Directories[least]
	c.count(leader, dir)
	c.topicReplicas++
	if leader {
		c.topicLeaders++
	}
	return dir
}

// assign places partitions as asked for, and picks the directories. factor is the number of replicas each must have,
// 0 = as many as the first. Errors match ErrInvalidAssignment.
func (p *placement) assign(im *Image, topic string, first int, assignments [][]BrokerID, factor int) ([]replicaSet, error) {
	bad := func(i int, format string, args ...any) error {
		return &Error{
			Kind: ErrInvalidAssignment,
			What: fmt.Sprintf("partition %d of topic %q can't be on brokers %v", first+i, topic, assignments[i]),
			Why:  fmt.Sprintf(format, args...),
			Fix:  "name for each partition the same number of different registered brokers, the preferred leader first",
		}
	}
	if factor == 0 {
		factor = len(assignments[0])
	}
	byID := make(map[BrokerID]*candidate, len(p.brokers))
	for _, c := range p.brokers {
		byID[c.broker.ID] = c
	}
	sets := make([]replicaSet, len(assignments))
	for i, ids := range assignments {
		switch {
		case len(ids) == 0:
			return nil, bad(i, "it has no replica")
		case len(ids) != factor:
			return nil, bad(i, "it has %d replicas, the other partitions have %d", len(ids), factor)
		case hasDuplicates(ids):
			return nil, bad(i, "a broker is named twice")
		}
		set := replicaSet{replicas: slices.Clone(ids)}
		alive := false
		for j, id := range ids {
			if b := im.Broker(id); b != nil && !b.Fenced {
				alive = true
			}
			if c := byID[id]; c != nil {
				set.directories = append(set.directories, c.take(j == 0))
				continue
			}
			b := im.Broker(id)
			if b == nil || len(b.Directories) == 0 {
				return nil, bad(i, "there is no broker %d", id)
			}
			set.directories = append(set.directories, b.Directories[(first+i)%len(b.Directories)]) // in maintenance, or on its way out
		}
		if !alive {
			return nil, bad(i, "all of them are fenced, so nobody could lead it")
		}
		sets[i] = set
	}
	return sets, nil
}
