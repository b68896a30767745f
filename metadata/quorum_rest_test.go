package metadata

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// countedCalls counts the questions how far a server is.
type countedCalls struct {
	Forwarder
	asked *atomic.Int64
}

func (c countedCalls) Forward(ctx context.Context, broker BrokerID, address, method string, body []byte) ([]byte, error) {
	if method == StatsMethod {
		c.asked.Add(1)
	}
	return c.Forwarder.Forward(ctx, broker, address, method, body)
}

// While nothing happens the controller asks the servers every pilotRest only; one that stops to answer, or that does not hear
// Raft, is no longer called healthy soon after, and one that came back is healthy again.
func TestServersAtRestAreAskedSeldom(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		var asked atomic.Int64
		w.edit = func(c *Config) { c.Forwarder = countedCalls{c.Forwarder, &asked} }
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		leader := w.controller()
		w.pass(10 * time.Second)
		before := asked.Load()
		w.pass(time.Minute)
		require.InDelta(t, 2*time.Minute/pilotRest, asked.Load()-before, 10, "two other servers, in a minute")

		var other *quorumNode
		for _, n := range w.nodes() {
			if n != leader {
				other = n
			}
		}
		healthy := func(want bool, within time.Duration) {
			t.Helper()
			began := time.Now()
			w.await("it is seen", func() bool {
				for _, m := range leader.Quorum().Voters {
					if m.ID == other.cfg.NodeID {
						return m.Healthy == want
					}
				}
				return false
			})
			require.LessOrEqual(t, time.Since(began), within)
		}
		healthy(true, 0)
		const oneLook = pilotRest + pilotUpdate + statsWait + 100*time.Millisecond
		w.silence(other, true)
		healthy(false, oneLook)
		w.silence(other, false)
		healthy(true, oneLook)
		w.deafen(other, true)
		healthy(false, oneLook+contactLimit)
	})
}
