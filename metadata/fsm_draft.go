package metadata

import (
	"cmp"
	"slices"
	"strings"
)

// draft is a state in the making. It starts as a shallow copy of a published state and copies what it changes, once per
// batch: the nodes of trees by their edit, topics by the owned set. publish ends it.
//
// Only apply methods of commands write to a draft, from the one goroutine that runs the FSM.
type draft struct {
	st    state
	edit  *edit
	owned map[*Topic]bool // topics of this draft whose Partitions may be written to in place
	// ownedPending may be written to in place.
	ownedPending map[*groupPending]bool
}

func newDraft(st *state) *draft {
	return &draft{st: *st, edit: new(edit)}
}

// publish returns the finished state. The draft must not be used after it.
func (d *draft) publish() *state {
	st := d.st // a copy, so that the draft itself can go
	return &st
}

// ownTopic returns the topic of that name, which must exist, as a copy that this draft may change in place.
func (d *draft) ownTopic(name string) *Topic {
	t, _ := d.st.topics.get(name)
	if d.owned[t] {
		return t
	}
	c := *t
	c.Partitions = slices.Clone(t.Partitions)
	d.putTopic(&c, true)
	return &c
}

// putTopic stores t under its name, in place of an older version of the same topic or as a new one. t must be private to
// this draft; ownsPartitions says whether the array of its Partitions is private too.
func (d *draft) putTopic(t *Topic, ownsPartitions bool) {
	old, replaces := d.st.topics.get(t.Name)
	if replaces {
		delete(d.owned, old)
		d.st.partitions -= len(old.Partitions)
	} else {
		d.st.topicIDs = d.st.topicIDs.set(d.edit, t.ID, t.Name)
		if strings.ContainsAny(t.Name, "._") {
			d.st.collisions = d.st.collisions.set(d.edit, metricName(t.Name), t.Name)
		}
	}
	if ownsPartitions {
		if d.owned == nil {
			d.owned = make(map[*Topic]bool)
		}
		d.owned[t] = true
	}
	d.st.partitions += len(t.Partitions)
	d.st.topics = d.st.topics.set(d.edit, t.Name, t)
}

// removeTopic takes the topic out and leaves a tombstone of its id.
func (d *draft) removeTopic(t *Topic, stone tombstone) {
	delete(d.owned, t)
	d.st.topics = d.st.topics.delete(d.edit, t.Name)
	d.st.topicIDs = d.st.topicIDs.delete(d.edit, t.ID)
	if strings.ContainsAny(t.Name, "._") {
		d.st.collisions = d.st.collisions.delete(d.edit, metricName(t.Name))
	}
	d.st.partitions -= len(t.Partitions)
	d.st.tombstones = d.st.tombstones.set(d.edit, t.ID, stone)
}

// putBroker stores b in place of an older registration of the same id, or as a new broker.
func (d *draft) putBroker(b *Broker) {
	i, found := slices.BinarySearchFunc(d.st.brokers, b.ID, func(b *Broker, id BrokerID) int { return cmp.Compare(b.ID, id) })
	brokers := slices.Clone(d.st.brokers) // published Images share the old one
	var old *Broker
	if found {
		old, brokers[i] = brokers[i], b
	} else {
		brokers = slices.Insert(brokers, i, b)
	}
	d.st.brokers = brokers
	d.brokersChanged(old, b)
	d.st.nextBrokerID = max(d.st.nextBrokerID, b.ID+1)
}

// removeBroker forgets the broker of that id and its configs.
func (d *draft) removeBroker(id BrokerID) {
	old := d.st.broker(id)
	d.st.brokers = slices.DeleteFunc(slices.Clone(d.st.brokers), func(b *Broker) bool { return b.ID == id })
	d.st.configs = slices.DeleteFunc(slices.Clone(d.st.configs), func(c *brokerConfigs) bool { return c.ID == id })
	d.st.commitSequences = slices.DeleteFunc(slices.Clone(d.st.commitSequences), func(c commitSequence) bool { return c.Broker == id })
	d.brokersChanged(old, nil)
}

// putIdentity stores what is known of a directory.
func (d *draft) putIdentity(id *identity) {
	i, found := d.st.identityIndex(id.Directory)
	if found && *d.st.identities[i] == *id {
		return
	}
	identities := slices.Clone(d.st.identities)
	if found {
		identities[i] = id
	} else {
		identities = slices.Insert(identities, i, id)
	}
	d.st.identities = identities
	d.st.nextBrokerID = max(d.st.nextBrokerID, id.Broker+1)
}

// putConfigs stores c in place of an older version of the same id, or as a new one.
func (d *draft) putConfigs(c *brokerConfigs) {
	i, found := slices.BinarySearchFunc(d.st.configs, c.ID, func(c *brokerConfigs, id BrokerID) int { return cmp.Compare(c.ID, id) })
	configs := slices.Clone(d.st.configs)
	if found {
		configs[i] = c
	} else {
		configs = slices.Insert(configs, i, c)
	}
	d.st.configs = configs
}
