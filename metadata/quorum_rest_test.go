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

// A controller sends each follower 6 to 14 heartbeats a second and keeps its lead with them; who lost the lead goes by what
// followers go by, and who has it then sends as many.
func TestHeartbeatsOfTheController(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		beats := func(leader *quorumNode, term uint64) {
			t.Helper()
			before := w.heartbeats.Load()
			w.pass(time.Minute)
			sent := w.heartbeats.Load() - before
			require.GreaterOrEqual(t, sent, int64(2*6*60))
			// Beside them are those that confirm the lead for each broker's own heartbeats, two a second here.
			require.LessOrEqual(t, sent, int64(2*(14+6)*60))
			require.True(t, leader.IsController())
			require.Equal(t, term, leader.raft.CurrentTerm())
			for _, n := range w.nodes() {
				want := n.cfg.HeartbeatTimeout
				if n == leader {
					want = paced(want)
				}
				require.Equal(t, want, n.raft.ReloadableConfig().HeartbeatTimeout, "broker %d", n.cfg.NodeID)
			}
		}
		first := w.controller()
		beats(first, first.raft.CurrentTerm())
		w.isolate(first, true)
		second := w.controller(first)
		w.await("the first one knows", func() bool { return !first.IsController() })
		w.isolate(first, false)
		w.await("the first one follows", func() bool { return first.Image().ControllerID() == second.cfg.NodeID })
		w.pass(10 * time.Second) // until what it missed is there
		beats(second, second.raft.CurrentTerm())
	})
}
