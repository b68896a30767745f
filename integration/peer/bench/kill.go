package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// killPatience bounds each wait around a kill: Apache Kafka fences a dead broker after nine seconds.
const killPatience = time.Minute

// acks keeps when each partition was acknowledged last, and the longest time between two acknowledgements.
type acks struct {
	mu      sync.Mutex
	last    map[int32]time.Time
	longest map[int32]time.Duration
	failed  error // the first that a record ended with
}

func (a *acks) note(partition int32, now time.Time, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		if a.failed == nil {
			a.failed = err
		}
		return
	}
	if last, ok := a.last[partition]; ok {
		a.longest[partition] = max(a.longest[partition], now.Sub(last))
	}
	a.last[partition] = now
}

// reset forgets the gaps so far, but not since when each partition waits.
func (a *acks) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.longest)
}

// gap is the longest of some partitions; ok when all of them were acknowledged after a time.
func (a *acks) gap(partitions []int32, after time.Time) (longest time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range partitions {
		if !a.last[p].After(after) {
			return 0, false
		}
		longest = max(longest, a.longest[p])
	}
	return longest, true
}

// failure returns the first error that a record ended with since it was last asked.
func (a *acks) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.failed = nil }()
	return a.failed
}

// load sends a record to each partition every five milliseconds until ctx ends, as a franz-go producer with its defaults
// but a metadata age of 100 ms: it looks for the new leader as soon as it is told of the loss of the old one.
func (s *system) load(ctx context.Context, topic string, partitions int32, a *acks) (wait func(), err error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond), kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cl.Close()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		value := make([]byte, 100)
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			for p := range partitions {
				cl.TryProduce(context.Background(), &kgo.Record{Topic: topic, Partition: p, Value: value}, func(_ *kgo.Record, err error) {
					if !errors.Is(err, kgo.ErrMaxBuffered) && !errors.Is(err, kgo.ErrClientClosed) {
						a.note(p, time.Now(), err)
					}
				})
			}
		}
	}()
	return func() { <-done }, nil
}

// killRows are the rows of kills that are wanted.
func (b *bench) killRows() []string {
	return slices.DeleteFunc([]string{rowKill, rowKillBoth}, func(row string) bool { return b.only != nil && !b.only.MatchString(row) })
}

// kills kills a broker that leads partitions but not the metadata, then one that leads both, and measures how long the
// partitions that it led went without an acknowledgement: the longest of them.
func (b *bench) kills(ctx context.Context, s *system, v variant, rows []string) error {
	if len(rows) == 0 {
		return nil
	}
	const topic = "kill"
	if err := s.create(ctx, topic, fewPartitions, nil); err != nil {
		return err
	}
	a := &acks{last: map[int32]time.Time{}, longest: map[int32]time.Duration{}}
	loading, stop := context.WithCancel(ctx)
	wait, err := s.load(loading, topic, fewPartitions, a)
	if err != nil {
		stop()
		return err
	}
	defer func() {
		stop()
		wait()
	}()
	for i, row := range rows {
		if i > 0 {
			if err := s.heal(ctx, topic); err != nil {
				return fmt.Errorf("%s: %w", row, err)
			}
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		gap, err := s.kill(ctx, topic, row == rowKillBoth, a)
		if err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
		b.results.add(row, v, "ms", float64(gap.Microseconds())/1e3)
		say("%-48s %-28s %s to the next acknowledgement", row, variants[v].name, gap.Round(time.Millisecond))
		if err := a.failure(); err != nil {
			say("%s: an error at the client: %v", variants[v].name, err)
		}
	}
	return nil
}

// kill kills a broker that leads partitions of the topic, and the metadata or not, and waits until all of these
// partitions are acknowledged by others.
func (s *system) kill(ctx context.Context, topic string, both bool, a *acks) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	controller, err := s.quorumLeader(ctx)
	if err != nil {
		return 0, err
	}
	m, err := s.adm.Metadata(ctx, topic)
	if err != nil {
		return 0, err
	}
	led := ledBy(m.Topics[topic])
	victim := int32(-1)
	for id, partitions := range led {
		if (id == controller) == both && (victim < 0 || len(partitions) > len(led[victim])) {
			victim = id
		}
	}
	if victim < 0 {
		return 0, fmt.Errorf("no leader to kill: the metadata is led by %d, partitions by %v", controller, led)
	}
	process, err := s.process(m.Brokers, victim)
	if err != nil {
		return 0, err
	}
	a.reset()
	if err := process.Kill(); err != nil {
		return 0, err
	}
	// An answer that was on its way when the broker died is no acknowledgement by another.
	if err := s.until(ctx, topic, func(t kadm.TopicDetail) bool {
		return !slices.ContainsFunc(led[victim], func(p int32) bool { l := t.Partitions[p].Leader; return l < 0 || l == victim })
	}); err != nil {
		return 0, fmt.Errorf("wait for new leaders: %w", err)
	}
	moved := time.Now()
	for {
		if gap, ok := a.gap(led[victim], moved); ok {
			return gap, nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return 0, fmt.Errorf("wait for an acknowledgement: %w", errors.Join(err, a.failure()))
		}
	}
}

// heal starts what was killed, waits until all replicas are in step, and gives leadership back.
func (s *system) heal(ctx context.Context, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, killPatience)
	defer cancel()
	for _, b := range s.brokers {
		select {
		case <-b.Done():
			if err := b.Start(); err != nil {
				return err
			}
		default:
		}
	}
	whole := func(t kadm.TopicDetail) bool {
		for _, p := range t.Partitions {
			if len(p.ISR) < len(s.brokers) {
				return false
			}
		}
		return true
	}
	if err := s.until(ctx, topic, whole); err != nil {
		return fmt.Errorf("wait for all replicas: %w", err)
	}
	var set kadm.TopicsSet
	set.Add(topic)
	for p := range int32(fewPartitions) {
		set.Add(topic, p)
	}
	results, err := s.adm.ElectLeaders(ctx, kadm.ElectPreferredReplica, set)
	if err != nil {
		return err
	}
	for _, r := range results[topic] {
		if r.Err != nil && !errors.Is(r.Err, kerr.ElectionNotNeeded) {
			return fmt.Errorf("give leadership back: %w", r.Err)
		}
	}
	return s.until(ctx, topic, func(t kadm.TopicDetail) bool {
		for _, p := range t.Partitions {
			if p.Leader != p.Replicas[0] {
				return false
			}
		}
		return whole(t)
	})
}

// until asks for the topic until it is as wanted.
func (s *system) until(ctx context.Context, topic string, wanted func(kadm.TopicDetail) bool) error {
	for {
		m, err := s.adm.Metadata(ctx, topic)
		if err == nil && m.Topics[topic].Err == nil && len(m.Topics[topic].Partitions) == fewPartitions && wanted(m.Topics[topic]) {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(err, m.Topics[topic].Err)
		}
	}
}

// ledBy are the partitions of each leader.
func ledBy(t kadm.TopicDetail) map[int32][]int32 {
	led := map[int32][]int32{}
	for _, p := range t.Partitions.Sorted() {
		led[p.Leader] = append(led[p.Leader], p.Partition)
	}
	return led
}

// process is the process of a broker by its id.
func (s *system) process(brokers kadm.BrokerDetails, id int32) (broker, error) {
	for _, d := range brokers {
		for _, b := range s.brokers {
			if d.NodeID == id && b.address() == net.JoinHostPort(d.Host, strconv.Itoa(int(d.Port))) {
				return b, nil
			}
		}
	}
	return nil, fmt.Errorf("no process of broker %d", id)
}

// quorumLeader is the id of the broker that leads the metadata.
func (s *system) quorumLeader(ctx context.Context) (int32, error) {
	req := kmsg.NewPtrDescribeQuorumRequest()
	t, p := kmsg.NewDescribeQuorumRequestTopic(), kmsg.NewDescribeQuorumRequestTopicPartition()
	t.Topic = "__cluster_metadata"
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, s.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return 0, fmt.Errorf("ask who leads the metadata: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return p.LeaderID, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, errors.New("ask who leads the metadata: an answer without a partition")
}
