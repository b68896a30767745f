package metadata

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

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
