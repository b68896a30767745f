package metadata

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// D5: however long the controller rests, it looks at a session within watchInterval of its end, and at a suspected broker as soon.
func TestControllerLooksInTime(t *testing.T) {
	const timeout, interval, most = 9 * time.Second, 2 * time.Second, time.Second
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		brokers := []*Broker{{ID: 1, Epoch: 1}, {ID: 2, Epoch: 1}, {ID: 3, Epoch: 1}}
		now := time.Unix(0, 0)
		ss := newSessions(timeout, interval, brokers, now)
		due := map[BrokerID]time.Time{}
		for _, b := range brokers {
			due[b.ID] = now.Add(timeout)
		}
		looks := 0
		look := now.Add(ss.rest(brokers, now, most))
		for step := now; step.Before(now.Add(time.Minute)); step = step.Add(10 * time.Millisecond) {
			b := brokers[random.IntN(len(brokers))]
			switch random.IntN(300) {
			case 0:
				ss.heard(b, 1, step)
				due[b.ID] = step.Add(timeout)
			case 1:
				if ss.begin(b, step) == nil {
					ss.end(b, true, step)
					due[b.ID] = step.Add(interval + interval/2)
					if until := ss.mu.of[b.ID].until; until.Before(due[b.ID]) {
						due[b.ID] = until
					}
				}
			}
			if step.Before(look) {
				continue
			}
			looks++
			silent, ask := ss.overdue(brokers, step)
			for _, b := range append(silent, ask...) {
				require.LessOrEqual(t, step.Sub(due[b.ID]), watchInterval+10*time.Millisecond, "seed %d, broker %d", seed, b.ID)
				ss.heard(b, 1, step)
				due[b.ID] = step.Add(timeout)
			}
			for _, b := range brokers {
				require.True(t, step.Before(due[b.ID]), "seed %d: broker %d is overdue and was not looked at", seed, b.ID)
			}
			rest := ss.rest(brokers, step, most)
			require.True(t, rest >= watchInterval && rest <= most)
			look = step.Add(rest)
		}
		require.Less(t, looks, 200, "seed %d: in a minute", seed)
	}
}

// Who is fenced already keeps nobody awake.
func TestFencedBrokersKeepNobodyAwake(t *testing.T) {
	now := time.Unix(0, 0)
	brokers := []*Broker{{ID: 1, Epoch: 1}, {ID: 2, Epoch: 1}}
	ss := newSessions(9*time.Second, 2*time.Second, brokers, now)
	now = now.Add(20 * time.Second)
	ss.heard(brokers[0], 1, now)
	require.Equal(t, watchInterval, ss.rest(brokers, now, time.Second))
	brokers[1].Fenced = true
	require.Equal(t, time.Second, ss.rest(brokers, now, time.Second))
}
