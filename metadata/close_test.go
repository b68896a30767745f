package metadata

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// standingStill is the transport to a server that takes messages and answers none.
type standingStill struct {
	*raft.InmemTransport
	sent   chan struct{}
	closed chan struct{}
	once   sync.Once
}

var errCut = errors.New("connection closed")

func (s *standingStill) AppendEntries(raft.ServerID, raft.ServerAddress, *raft.AppendEntriesRequest, *raft.AppendEntriesResponse) error {
	s.sent <- struct{}{}
	<-s.closed
	return errCut
}

func (s *standingStill) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (s *standingStill) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.InmemTransport.Close()
}

// A message to a broker that stands still, which may take as long as it likes, does not keep this one from closing.
func TestCloseEndsMessagesUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig(t, t.TempDir())
		cfg.NodeID, cfg.DirectoryID, cfg.QuorumSize, cfg.Bootstrap = 0, DirectoryID{1}, 3, true
		_, inner := raft.NewInmemTransport("broker-0")
		stuck := &standingStill{InmemTransport: inner, sent: make(chan struct{}, 100), closed: make(chan struct{})}
		cfg.Transport = stuck
		s, err := Open(cfg)
		require.NoError(t, err)
		require.NoError(t, s.Ready(testContext(t)))
		require.NoError(t, s.AddServer(testContext(t), Server{ID: 1, Directory: DirectoryID{2}, Address: "broker-1"}))
		<-stuck.sent
		require.NoError(t, s.Close())
	})
}

// Raft's goroutine that applies entries may end with committed ones before it, and tells nobody what became of them. Who waits
// for them must not wait for ever: the Store would never close.
func TestCloseWhileEntriesAreApplied(t *testing.T) {
	for range 12 { // it may as well apply them first
		s, err := Open(testConfig(t, t.TempDir()))
		require.NoError(t, err)
		require.NoError(t, s.Ready(testContext(t)))
		term, applied := s.lead.Load().term, s.raft.AppliedIndex()
		s.publishing.Lock() // the first of them is being applied
		answers := make(chan error, 2)
		for n := range uint64(2) {
			go func() {
				_, err := s.proposeIn(context.Background(), term, &allocateProducerIDs{expectedNext: -1, count: 1})
				answers <- err
			}()
			require.Eventually(t, func() bool { return s.raft.AppliedIndex() > applied+n }, 10*time.Second, time.Millisecond)
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		require.Eventually(t, func() bool { return s.raft.State() == raft.Shutdown }, 10*time.Second, time.Millisecond)
		s.publishing.Unlock()
		select {
		case err := <-closed:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			require.FailNow(t, "the store does not close")
		}
		for range 2 {
			<-answers
		}
	}
}
