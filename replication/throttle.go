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
// fall out of it.
const (
	leaderThrottledReplicas   = "leader.replication.throttled.replicas"
	followerThrottledReplicas = "follower.replication.throttled.replicas"
	leaderThrottledRate       = "leader.replication.throttled.rate"
	followerThrottledRate     = "follower.replication.throttled.rate"
)

// throttles are those of a manager.
type throttles struct {
	leader, follower throttle
}

// throttle is one token bucket. A read takes what it finds and may overdraw it, so that a batch larger than a second's
// share passes.
type throttle struct {
	leader bool
	now    func() Instant

	mu struct {
		sync.Mutex
		rate    float64 // bytes per second; 0: no limit
		tokens  float64
		filled  Instant
		waiting []*sessionPartition
	}
}

// throttlePause is how often what is held back is looked at again.
const throttlePause = 50 * time.Millisecond

// setRate takes over the rate of the broker's configuration.
func (t *throttle) setRate(bytesPerSecond float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if bytesPerSecond <= 0 || bytesPerSecond >= 1<<62 {
		bytesPerSecond = 0
	}
	if t.mu.rate != bytesPerSecond {
		t.mu.rate, t.mu.tokens, t.mu.filled = bytesPerSecond, 0, t.now()
	}
}

// applies says whether the throttle holds back this partition's traffic with the replica.
func (t *throttle) applies(p *Partition, replica metadata.BrokerID) bool {
	set := p.topic.throttled.Load()
	if set == nil {
		return false
	}
	v := p.view.Load()
	for _, id := range v.isr {
		if id == replica {
			return false
		}
	}
	if t.leader {
		return set.leader.has(p.partition, p.m.cfg.BrokerID)
	}
	return set.follower.has(p.partition, p.m.cfg.BrokerID)
}

// emptyLocked fills the bucket and says whether it is empty.
func (t *throttle) emptyLocked() bool {
	if t.mu.rate == 0 {
		return false
	}
	now := t.now()
	t.mu.tokens = min(t.mu.tokens+t.mu.rate*float64(now-t.mu.filled)/1e9, t.mu.rate)
	t.mu.filled = now
	return t.mu.tokens <= 0
}

// take returns how many bytes of at most maxBytes may go to the replica now; 0: none.
func (t *throttle) take(p *Partition, replica metadata.BrokerID, maxBytes int) int {
	if !t.applies(p, replica) {
		return maxBytes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.emptyLocked() {
		return 0
	}
	return maxBytes
}

// spent counts bytes that went.
func (t *throttle) spent(p *Partition, replica metadata.BrokerID, bytes int) {
	if !t.applies(p, replica) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.rate > 0 {
		t.mu.tokens -= float64(bytes)
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

// throttledSet is what the topic configs say; immutable.
type throttledSet struct{ leader, follower throttledReplicas }

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

// throttledOf returns what a topic's configs say, nil: nothing.
func throttledOf(configs map[string]string) *throttledSet {
	l, f := configs[leaderThrottledReplicas], configs[followerThrottledReplicas]
	if l == "" && f == "" {
		return nil
	}
	return &throttledSet{leader: parseThrottled(l), follower: parseThrottled(f)}
}

// rateOf reads a rate of the broker's configuration; 0: no limit.
func rateOf(config map[string]string, key string) float64 {
	rate, err := strconv.ParseFloat(config[key], 64)
	if err != nil {
		return 0
	}
	return rate
}
