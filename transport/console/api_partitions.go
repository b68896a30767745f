package console

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/metadata"
)

// PartitionInfo is one partition by the metadata.
type PartitionInfo struct {
	Topic           string  `json:"topic" doc:"topic"`
	Partition       int32   `json:"partition" doc:"partition"`
	Leader          int32   `json:"leader" doc:"broker id; -1 is none"`
	LeaderEpoch     int32   `json:"leader_epoch" doc:"grows with every change of leader"`
	PartitionEpoch  int32   `json:"partition_epoch" doc:"grows with every change"`
	Replicas        []int32 `json:"replicas" doc:"the first is the preferred leader"`
	ISR             []int32 `json:"isr" doc:"replicas in sync"`
	ELR             []int32 `json:"elr" doc:"replicas out of sync that may lead all the same: they have everything acknowledged"`
	Adding          []int32 `json:"adding" doc:"replicas that a move adds"`
	Removing        []int32 `json:"removing" doc:"replicas that a move takes away"`
	LastLeader      int32   `json:"last_leader" doc:"who led last, while there is no leader; -1 is none"`
	MinISR          int     `json:"min_isr" doc:"replicas that must be in sync for acks=all"`
	Offline         bool    `json:"offline" doc:"whether it has no leader"`
	UnderMinISR     bool    `json:"under_min_isr" doc:"whether it refuses acks=all"`
	AtMinISR        bool    `json:"at_min_isr" doc:"whether it would with one replica less"`
	UnderReplicated bool    `json:"under_replicated" doc:"whether replicas are out of sync"`
	UncleanEpoch    int32   `json:"unclean_epoch" doc:"last leader epoch that began with an unclean election; -1 if none did"`
}

// PartitionPage is a part of the list of partitions.
type PartitionPage struct {
	Partitions []PartitionInfo `json:"partitions" doc:"in order of topic and number"`
	Next       string          `json:"next" doc:"give it as after to get the next part; empty when this was the last"`
}

// PartitionDetail is one partition with its replicas as their brokers see them.
type PartitionDetail struct {
	PartitionInfo
	States []ReplicaState `json:"states" doc:"each replica that could be asked"`
	// Unasked brokers have a replica and did not answer.
	Unasked []Unasked `json:"unasked" doc:"brokers with a replica that could not be asked"`
}

// Unasked is a broker that could not be asked about its replica.
type Unasked struct {
	Broker int32  `json:"broker" doc:"broker id"`
	Why    string `json:"why" doc:"why not"`
}

const (
	partitionsDefault = 1000
	partitionsMost    = 10000
	// peerTimeout bounds how long another broker may take to describe a replica.
	peerTimeout = 2 * time.Second
)

// partitionInfo describes partition i of a topic.
func (c *call) partitionInfo(t *metadata.Topic, i int32, minISR int) PartitionInfo {
	p := t.Partitions[i]
	s := stateOf(p, minISR)
	return PartitionInfo{
		Topic: t.Name, Partition: i, Leader: int32(p.Leader), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Replicas: ids(p.Replicas), ISR: ids(p.ISR), ELR: ids(p.ELR), Adding: ids(p.Adding), Removing: ids(p.Removing), LastLeader: int32(p.LastLeader), MinISR: minISR,
		Offline: s.offline, UnderMinISR: s.underMinISR, AtMinISR: s.atMinISR, UnderReplicated: s.underReplicated, UncleanEpoch: p.UncleanEpoch,
	}
}

// partitionFilters are the values of state.
var partitionFilters = map[string]func(p *metadata.Partition, s partitionState) bool{
	"":                 func(*metadata.Partition, partitionState) bool { return true },
	"offline":          func(_ *metadata.Partition, s partitionState) bool { return s.offline },
	"under_min_isr":    func(_ *metadata.Partition, s partitionState) bool { return s.underMinISR },
	"at_min_isr":       func(_ *metadata.Partition, s partitionState) bool { return s.atMinISR },
	"under_replicated": func(_ *metadata.Partition, s partitionState) bool { return s.underReplicated },
	"reassigning":      func(p *metadata.Partition, _ partitionState) bool { return p.Reassigning() },
	"unwell": func(_ *metadata.Partition, s partitionState) bool {
		return s.offline || s.underMinISR || s.underReplicated
	},
}

func getPartitions(c *call) (any, error) {
	q := c.r.URL.Query()
	filter, ok := partitionFilters[q.Get("state")]
	if !ok {
		return nil, invalid("state="+q.Get("state")+" cannot be had", "it is one of offline, under_min_isr, at_min_isr, under_replicated, reassigning, unwell", "leave it out for all")
	}
	limit, err := c.number("limit", partitionsDefault, 1, partitionsMost)
	if err != nil {
		return nil, err
	}
	broker, err := c.number("broker", -1, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	afterTopic, afterPartition, err := cursor(q.Get("after"))
	if err != nil {
		return nil, err
	}
	topic := q.Get("topic")
	if topic != "" && c.image().Topic(topic) == nil {
		return nil, unknownTopic(topic)
	}
	page := PartitionPage{Partitions: []PartitionInfo{}}
	for t := range c.image().Topics() {
		if t.Name < afterTopic || topic != "" && t.Name != topic {
			continue
		}
		minISR := c.minISR(t)
		for i, p := range t.Partitions {
			if t.Name == afterTopic && i <= afterPartition || broker >= 0 && !slices.Contains(p.Replicas, metadata.BrokerID(broker)) || !filter(p, stateOf(p, minISR)) {
				continue
			}
			if int64(len(page.Partitions)) == limit {
				last := page.Partitions[limit-1]
				page.Next = fmt.Sprintf("%s/%d", last.Topic, last.Partition)
				return page, nil
			}
			page.Partitions = append(page.Partitions, c.partitionInfo(t, int32(i), minISR))
		}
	}
	return page, nil
}

// cursor reads topic/partition; "" is before everything.
func cursor(text string) (topic string, partition int, err error) {
	if text == "" {
		return "", -1, nil
	}
	i := strings.LastIndexByte(text, '/')
	if i > 0 {
		if n, err := strconv.Atoi(text[i+1:]); err == nil && n >= 0 {
			return text[:i], n, nil
		}
	}
	return "", 0, invalid("after="+text+" cannot be had", "it is not what an earlier answer had as next", "leave it out to begin with the first")
}

func unknownTopic(name string) error {
	return &metadata.Error{Kind: metadata.ErrUnknownTopic, What: "there is no topic " + name, Why: "it was never created, or deleted", Fix: "millrace topic list   shows the topics"}
}

// partition finds the partition of the path.
func (c *call) partition() (*metadata.Topic, int32, error) {
	name := c.r.PathValue("topic")
	t := c.image().Topic(name)
	if t == nil {
		return nil, 0, unknownTopic(name)
	}
	n, err := strconv.ParseInt(c.r.PathValue("partition"), 10, 32)
	if err != nil || n < 0 || n >= int64(len(t.Partitions)) {
		return nil, 0, &metadata.Error{
			Kind: metadata.ErrUnknownPartition, What: fmt.Sprintf("topic %s has no partition %s", name, c.r.PathValue("partition")),
			Why: fmt.Sprintf("it has %s, numbered from 0", count(len(t.Partitions), "partition")), Fix: "millrace topic describe " + name + "   shows them",
		}
	}
	return t, int32(n), nil
}

func getPartition(c *call) (any, error) {
	t, i, err := c.partition()
	if err != nil {
		return nil, err
	}
	d := PartitionDetail{PartitionInfo: c.partitionInfo(t, i, c.minISR(t)), States: []ReplicaState{}, Unasked: []Unasked{}}
	type answer struct {
		broker metadata.BrokerID
		state  *ReplicaState
		why    string
	}
	replicas := t.Partitions[i].Replicas
	answers := make(chan answer, len(replicas))
	for _, r := range replicas {
		go func() {
			state, why := c.replicaState(r, t.ID, i)
			answers <- answer{r, state, why}
		}()
	}
	for range replicas {
		if a := <-answers; a.state != nil {
			d.States = append(d.States, *a.state)
		} else {
			d.Unasked = append(d.Unasked, Unasked{int32(a.broker), a.why})
		}
	}
	slices.SortFunc(d.States, func(a, b ReplicaState) int { return int(a.Broker) - int(b.Broker) })
	slices.SortFunc(d.Unasked, func(a, b Unasked) int { return int(a.Broker) - int(b.Broker) })
	return d, nil
}

// replicaState asks a broker, this one or another, about its replica. Without a state it says why there is none.
func (c *call) replicaState(broker metadata.BrokerID, topic metadata.TopicID, partition int32) (*ReplicaState, string) {
	var state ReplicaState
	found := false
	switch b := c.image().Broker(broker); {
	case broker == c.BrokerID:
		state, found = c.Replicas.ReplicaState(topic, partition)
	case b == nil:
		return nil, "it is not registered"
	case b.Fenced:
		return nil, "it is fenced"
	case c.Peers == nil:
		return nil, "this broker cannot ask others"
	default:
		ctx, cancel := context.WithTimeout(c.ctx, peerTimeout)
		defer cancel()
		var err error
		if state, found, err = c.Peers.ReplicaState(ctx, broker, topic, partition); err != nil {
			return nil, err.Error()
		}
	}
	if !found {
		return nil, "it has not opened it yet"
	}
	state.Broker = int32(broker)
	if state.Followers == nil {
		state.Followers = []FollowerState{}
	}
	return &state, ""
}

func getReassignments(c *call) (any, error) {
	out := []PartitionInfo{}
	im := c.image()
	for tp := range im.Reassignments() {
		t := im.Topic(tp.Topic)
		out = append(out, c.partitionInfo(t, tp.Partition, c.minISR(t)))
	}
	return out, nil
}

// LogDir is a log directory of this broker.
type LogDir struct {
	Path        string       `json:"path" doc:"where it is"`
	Error       string       `json:"error" doc:"why it cannot be used; empty when it can"`
	TotalBytes  int64        `json:"total_bytes" doc:"size of the file system; -1 is unknown"`
	UsableBytes int64        `json:"usable_bytes" doc:"what is free; -1 is unknown"`
	Replicas    []LogDirSize `json:"replicas" doc:"each replica in it, in order of topic and partition"`
}

// LogDirSize is the share of one replica.
type LogDirSize struct {
	Topic     string `json:"topic" doc:"topic"`
	Partition int32  `json:"partition" doc:"partition"`
	SizeBytes int64  `json:"size_bytes" doc:"size of its segments"`
	OffsetLag int64  `json:"offset_lag" doc:"how far its end is behind the high watermark"`
}

func getLogDirs(c *call) (any, error) {
	out := []LogDir{}
	for _, d := range c.Replicas.LogDirs() {
		dir := LogDir{Path: d.Path, TotalBytes: d.TotalBytes, UsableBytes: d.UsableBytes, Replicas: []LogDirSize{}}
		if d.Err != nil {
			dir.Error = d.Err.Error()
		}
		for _, r := range d.Replicas {
			dir.Replicas = append(dir.Replicas, LogDirSize{r.Topic, r.Partition, r.SizeBytes, r.OffsetLag})
		}
		slices.SortFunc(dir.Replicas, func(a, b LogDirSize) int {
			if c := strings.Compare(a.Topic, b.Topic); c != 0 {
				return c
			}
			return int(a.Partition) - int(b.Partition)
		})
		out = append(out, dir)
	}
	return out, nil
}
