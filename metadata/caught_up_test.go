package metadata

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// M16, I17: that raft has handed an entry to the FSM does not mean that it is applied; who asks whether this broker has caught up
// is told of the latter.
func TestCaughtUpMeansApplied(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	applied := s.raft.AppliedIndex()
	s.publishing.Lock() // the next entry is being applied
	held := true
	release := func() {
		if held {
			s.publishing.Unlock()
			held = false
		}
	}
	defer release()
	done := make(chan error, 1)
	term := s.lead.Load().term
	go func() {
		_, err := s.proposeIn(testContext(t), term, &allocateProducerIDs{expectedNext: s.Image().st.nextProducerID, count: 1000})
		done <- err
	}()
	require.Eventually(t, func() bool { return s.raft.AppliedIndex() > applied }, 10*time.Second, time.Millisecond)
	require.False(t, s.hasApplied(s.raft.CommitIndex()))
	release()
	require.NoError(t, <-done)
	require.True(t, s.hasApplied(s.raft.CommitIndex()))
}
