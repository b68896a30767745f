package metadata

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Followers see a change once it is committed, not when Raft next has something to say (M12): here that would be an hour
// later.
func TestFollowersHearOfCommits(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		for _, n := range w.nodes() {
			w.kill(n)
		}
		w.untold = true
		var nodes []*quorumNode
		for id := BrokerID(1); id <= 3; id++ {
			nodes = append(nodes, w.open(id, DirectoryID{byte(id)}, 2))
		}
		leader := w.controller()
		change := func() uint64 {
			_, _, err := leader.AllocateProducerIDs(testContext(t))
			require.NoError(t, err)
			return leader.Image().Version()
		}
		change()
		change() // Raft begins to pipeline
		for range 3 {
			changed, version := time.Now(), change() // of the bubble: no time passes but where all wait
			for _, n := range nodes {
				watcher := n.Watch()
				for n.Image().Version() < version {
					<-watcher.C()
				}
				watcher.Close()
			}
			require.Zero(t, time.Since(changed))
		}
	})
}
