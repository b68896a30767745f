package metadata

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// Futures that raft has forgotten, or can't come to, end for who waits with endingWith: of each kind that we wait for. It rests
// on a field of raft's that is not made for it, so that a new version may break it.
func TestFuturesEnd(t *testing.T) {
	disk := &hangingDisk{}
	cfg := testConfig(t, t.TempDir())
	cfg.holdWrites = disk.hold
	s := openStore(t, cfg)
	t.Cleanup(disk.thaw) // before the store is closed
	over := make(chan struct{})
	close(over)
	ends := func(f raft.Future) {
		t.Helper()
		outcome := make(chan error, 1)
		go func() { outcome <- endingWith(f, over).Error() }()
		select {
		case err := <-outcome:
			require.ErrorIs(t, err, raft.ErrRaftShutdown)
		case <-time.After(20 * time.Second):
			require.FailNow(t, "it never ends", "%T", f)
		}
	}
	disk.hang() // raft's main goroutine takes one more thing, which it has to write, and nothing after it
	ends(s.raft.Barrier(0))
	ends(s.raft.VerifyLeader())
	ends(s.raft.LeadershipTransfer())
	disk.thaw()
	require.NoError(t, s.raft.Barrier(10*time.Second).Error())
	require.Eventually(t, s.IsController, 20*time.Second, time.Millisecond)

	disk.hang()
	ends(s.raft.AddNonvoter("9-00000000000000000000000000000009", "nowhere", 0, 0))
}
