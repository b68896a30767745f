package replication

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// What the balancer moves and what the configs name are held to rates of their own; replicas in the ISR, and those that
// nobody named, are not held at all.
func TestThrottleBuckets(t *testing.T) {
	var now Instant
	m := &Manager{}
	m.cfg.BrokerID = 1
	p := &Partition{m: m, topic: &topicState{}, partition: 3}
	p.view.Store(&view{isr: []metadata.BrokerID{1, 2}})
	p.topic.throttled.Store(&throttledSet{
		leader: parseThrottled("3:1"),
		moved:  throttledReplicas{list: map[throttledReplica]struct{}{{3, 2}: {}, {3, 4}: {}}},
	})
	second := func() { now += 1e9 }
	f := func(replica metadata.BrokerID, named, moved float64, want bool) {
		t.Helper()
		th := throttle{leader: true, now: func() Instant { return now }}
		th.setRates(named, moved)
		second() // the buckets fill
		require.Equal(t, 100, th.take(p, replica, 100), "a full bucket lets pass")
		th.spent(p, replica, 1000)
		require.Equal(t, want, th.take(p, replica, 100) == 0)
		second()
		require.Equal(t, want, th.take(p, replica, 100) == 0, "overdrawn for more than a second")
		for range 10 {
			second()
		}
		require.Equal(t, 100, th.take(p, replica, 100))
	}
	f(4, 0, 200, true)        // moved, by the balancer's rate
	f(4, 200, 0, true)        // named too, and held by that rate
	f(4, 0, 0, false)         // no rate
	f(5, 0, 200, false)       // named only
	f(5, 200, 1<<40, true)    // by its own rate
	f(2, 200, 200, false)     // in the ISR
	f(4, 1<<40, 1<<40, false) // faster than that
	p.topic.throttled.Store(nil)
	f(4, 200, 200, false)
}

// Rates come from the configuration with their units, or are the defaults.
func TestThrottleRates(t *testing.T) {
	require.EqualValues(t, 50<<20, rateOf(nil, balancerThrottledRate))
	require.EqualValues(t, 10<<20, rateOf(map[string]string{balancerThrottledRate: "10MiB"}, balancerThrottledRate))
	var b bucket
	b.setRate(rateOf(nil, leaderThrottledRate), 0)
	require.Zero(t, b.rate, "no limit")
}
