package metadata

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A server that was away for a while gets entries as soon as it can be reached again, and not when Raft's wait has passed, which
// has grown to 10 s.
func TestServersThatComeBackAreNoticed(t *testing.T) {
	for _, away := range []time.Duration{25 * time.Second, 5 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
				for id := BrokerID(1); id <= 3; id++ {
					w.join(id)
				}
				w.voting(1, 2, 3)
				leader := w.controller()
				var follower *quorumNode
				for _, n := range w.nodes() {
					if n.Store != leader.Store {
						follower = n
					}
				}
				for i := range 8 { // so that chance does not make it right
					w.isolate(follower, true)
					w.pass(away + time.Duration(i)*777*time.Millisecond)
					_, _, err := leader.AllocateProducerIDs(testContext(t))
					require.NoError(t, err)
					version := leader.Image().Version()
					w.isolate(follower, false)
					back := time.Now() // of the bubble
					watcher := follower.Watch()
					for follower.Image().Version() < version {
						<-watcher.C()
					}
					watcher.Close()
					// A heartbeat that failed is repeated after half of paced's time at most, and the message that waits for it a moment after.
					require.Less(t, time.Since(back), 1500*time.Millisecond)
				}
			})
		})
	}
}

// Who waits for a server that is away waits no longer when this server leads no more, or closes.
func TestWaitForAbsentServerEnds(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		leader := w.controller()
		w.isolate(leader, true)
		w.pass(2 * time.Second) // its messages fail, and its lease ends
		require.False(t, leader.IsController())
		w.controller(leader)
		w.pass(absenceLook)
		closed := time.Now()
		w.kill(leader)
		require.Less(t, time.Since(closed), time.Second)
	})
}
