package replication

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/metadata"
)

// Replication throttles (KIP-73): what a leader sends to replicas that are not in sync, and what such replicas take in,
// is held to a rate for the partitions that the topic configs name. Replicas in the ISR are never held back: they would
// fall out of it. What the balancer moves is held to a rate of its own, without anybody naming it.
const (
	leaderThrottledReplicas   = "leader.replication.throttled.replicas"
	followerThrottledReplicas = "follower.replication.throttled.replicas"
	leaderThrottledRate       = "leader.replication.throttled.rate"
	followerThrottledRate     = "follower.replication.throttled.rate"
	balancerThrottledRate     = "millrace.balancer.throttle.bytes.per.sec"
)

// throttles are those of a manager.
type throttles struct {
	leader, follower throttle
}

// throttle is what a manager sends, or takes in: a token bucket for what the configs name, and one for what the balancer
// moves.
type throttle struct {
	leader bool
	now    func() Instant

	mu struct {
		sync.Mutex
		named, moved bucket
		waiting      []*sessionPartition
	}
}

// bucket is a token bucket. A read takes what it finds and may overdraw it, so that a batch larger than a second's share
// passes.
type bucket struct {
	rate   float64 // bytes per second; 0: no limit
	tokens float64
	filled Instant
}

// throttleBurst is the share of a second's bytes that may gather and go at once: what is copied must not take the disk from
// producers for longer than they wait anyway.
const throttleBurst = 0.1

// throttlePause is how often what is held back is looked at again.
const throttlePause = 50 * time.Millisecond

// setRates takes over the rates of the broker's configuration.
func (t *throttle) setRates(named, moved float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.named.setRate(named, t.now())
	t.mu.moved.setRate(moved, t.now())
}

func (b *bucket) setRate(bytesPerSecond float64, now Instant) {
	if bytesPerSecond <= 0 || bytesPerSecond >= 1<<62 {
		bytesPerSecond = 0
	}
	if b.rate != bytesPerSecond {
		*b = bucket{rate: bytesPerSecond, filled: now}
	}
}

// empty fills the bucket and says whether it is empty.
func (b *bucket) empty(now Instant) bool {
	if b.rate == 0 {
		return false
	}
	b.tokens = min(b.tokens+b.rate*float64(now-b.filled)/1e9, b.rate*throttleBurst)
	b.filled = now
	return b.tokens <= 0
}

// applies says which of the buckets hold back this partition's traffic with the replica.
func (t *throttle) applies(p *Partition, replica metadata.BrokerID) (named, moved bool) {
	set := p.topic.throttled.Load()
	if set == nil {
		return false, false
	}
	v := p.view.Load()
	for _, id := range v.isr {
		if id == replica {
			return false, false
		}
	}
	list := &set.follower
	if t.leader {
		list = &set.leader
	}
	return list.has(p.partition, p.m.cfg.BrokerID), set.moved.has(p.partition, replica)
}

// take returns how many bytes of at most maxBytes may go to the replica now; 0: none.
func (t *throttle) take(p *Partition, replica metadata.BrokerID, maxBytes int) int {
	named, moved := t.applies(p, replica)
	if !named && !moved {
		return maxBytes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); named && t.mu.named.empty(now) || moved && t.mu.moved.empty(now) {
		return 0
	}
	return maxBytes
}

// spent counts bytes that went.
func (t *throttle) spent(p *Partition, replica metadata.BrokerID, bytes int) {
	named, moved := t.applies(p, replica)
	if !named && !moved {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if named {
		t.mu.named.tokens -= float64(bytes) // of no account without a rate
	}
	if moved {
		t.mu.moved.tokens -= float64(bytes)
	}
}

// pause returns how long a follower waits before it fetches the partition, 0: not at all.
func (t *throttle) pause(p *Partition) Instant {
	if t.take(p, p.m.cfg.BrokerID, 1) > 0 {
		return 0
	}
	return Instant(throttlePause)
}

// wait has the partition of a session looked at again later.
func (t *throttle) wait(sp *sessionPartition) {
	t.mu.Lock()
	t.mu.waiting = append(t.mu.waiting, sp)
	first := len(t.mu.waiting) == 1
	t.mu.Unlock()
	if first {
		time.AfterFunc(throttlePause, t.release)
	}
}

// release puts what was held back into the queues of the sessions again, where take judges it anew.
func (t *throttle) release() {
	t.mu.Lock()
	waiting := t.mu.waiting
	t.mu.waiting = nil
	t.mu.Unlock()
	for _, sp := range waiting {
		if wake := sp.appended(1); wake != nil {
			wake()
		}
	}
}

// throttledSet is what the topic configs say, and which replicas the balancer is adding; immutable.
type throttledSet struct{ leader, follower, moved throttledReplicas }

// throttledReplicas is a list of partition:broker, or all of them.
type throttledReplicas struct {
	all  bool
	list map[throttledReplica]struct{}
}

type throttledReplica struct {
	partition int32
	broker    metadata.BrokerID
}

func (r *throttledReplicas) has(partition int32, broker metadata.BrokerID) bool {
	if r.all {
		return true
	}
	_, ok := r.list[throttledReplica{partition, broker}]
	return ok
}

// parseThrottled reads a list of the topic configs; what is no partition:broker is left out.
func parseThrottled(s string) (r throttledReplicas) {
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		if item == "*" {
			r.all = true
			continue
		}
		partition, broker, ok := strings.Cut(item, ":")
		if !ok {
			continue
		}
		p, err1 := strconv.ParseInt(partition, 10, 32)
		b, err2 := strconv.ParseInt(broker, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		if r.list == nil {
			r.list = map[throttledReplica]struct{}{}
		}
		r.list[throttledReplica{int32(p), metadata.BrokerID(b)}] = struct{}{}
	}
	return r
}

// throttledOf returns what a topic's configs say, and what the balancer moves; nil: nothing.
func throttledOf(configs map[string]string, moved throttledReplicas) *throttledSet {
	l, f := configs[leaderThrottledReplicas], configs[followerThrottledReplicas]
	if l == "" && f == "" && moved.list == nil {
		return nil
	}
	return &throttledSet{leader: parseThrottled(l), follower: parseThrottled(f), moved: moved}
}

// movedOf returns the replicas of a topic that the balancer is adding.
func movedOf(img *metadata.Image, t *metadata.Topic) (moved throttledReplicas) {
	for i, p := range t.Partitions {
		if len(p.Adding) == 0 || !img.Balances(t.ID, int32(i)) {
			continue
		}
		if moved.list == nil {
			moved.list = map[throttledReplica]struct{}{}
		}
		for _, id := range p.Adding {
			moved.list[throttledReplica{int32(i), id}] = struct{}{}
		}
	}
	return moved
}

// rateOf reads a rate of the broker's configuration, or its default; 0: no limit.
func rateOf(config map[string]string, key string) float64 {
	value := config[key]
	if value == "" {
		if k, ok := metadata.LookupConfig(metadata.ConfigBroker, key); ok {
			value = k.Default
		}
	}
	if canonical, err := metadata.CheckConfig(metadata.ConfigBroker, key, value); err == nil {
		value = canonical
	}
	rate, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0
	}
	return rate
}
