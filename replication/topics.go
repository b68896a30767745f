package replication

import (
	"maps"
	"sync/atomic"

	"github.com/millrace/millrace/metadata"
)

// topicState is what the partitions of one topic share on this broker.
type topicState struct {
	name     string
	id       metadata.TopicID
	settings atomic.Pointer[metadata.TopicSettings]
	// throttled names the replicas whose replication is held to a rate; nil: none.
	throttled atomic.Pointer[throttledSet]
	metrics   *topicMetrics
}

// placement is one topic in the table: its local partitions. Immutable.
type placement struct {
	*topicState
	partitions []*Partition // by partition id; nil where this broker has none, or not yet
	offline    map[int32]error
}

// table finds the partitions of this broker. It is replaced, never changed, so that requests look things up without a
// lock.
type table struct {
	byName map[string]*placement
	byID   map[metadata.TopicID]*placement
}

func newTable() *table {
	return &table{byName: map[string]*placement{}, byID: map[metadata.TopicID]*placement{}}
}

func (t *table) clone() *table {
	return &table{byName: maps.Clone(t.byName), byID: maps.Clone(t.byID)}
}

func (t *table) put(p *placement) { t.byName[p.name], t.byID[p.id] = p, p }

func (t *table) remove(p *placement) {
	if t.byName[p.name] == p {
		delete(t.byName, p.name)
	}
	delete(t.byID, p.id)
}

// partition returns a partition of the placement; nil placement: the topic has nothing here.
func (p *placement) partition(i int32) (*Partition, error) {
	if p == nil || i < 0 || int(i) >= len(p.partitions) || p.partitions[i] == nil {
		if p != nil && p.offline[i] != nil {
			return nil, p.offline[i]
		}
		return nil, nil
	}
	return p.partitions[i], nil
}
