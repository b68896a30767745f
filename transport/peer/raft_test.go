package peer

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// counting counts what Raft applied.
type counting struct{ applied chan string }

func (c *counting) Apply(l *raft.Log) any {
	c.applied <- string(l.Data)
	return nil
}
func (c *counting) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.New("none") }
func (c *counting) Restore(io.ReadCloser) error         { return nil }

// startRaft runs a Raft server over the broker's streams.
func startRaft(t *testing.T, p *testPeer, servers raft.Configuration) (*raft.Raft, *counting) {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(p.Advertised())
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 100*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	conf.LogOutput = io.Discard
	store, transport := raft.NewInmemStore(), raft.NewNetworkTransport(p.StreamLayer(), 3, 5*time.Second, io.Discard)
	snaps := raft.NewInmemSnapshotStore()
	require.NoError(t, raft.BootstrapCluster(conf, store, store, snaps, transport, servers))
	fsm := &counting{applied: make(chan string, 100)}
	r, err := raft.NewRaft(conf, fsm, store, store, snaps, transport)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Shutdown().Error(); _ = transport.Close() })
	return r, fsm
}

// Raft itself over the streams: three servers elect, commit, and hear of it when one's connections end. Who leads may change at any time on a
// machine that is slow.
func TestRaft(t *testing.T) {
	var peers []*testPeer
	var servers raft.Configuration
	for i := range 3 {
		p := start(t, identity("c", i+1))
		peers = append(peers, p)
		servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(p.Advertised()), Address: raftAddress(p)})
	}
	var rafts []*raft.Raft
	var fsms []*counting
	for _, p := range peers {
		r, fsm := startRaft(t, p, servers)
		rafts, fsms = append(rafts, r), append(fsms, fsm)
	}
	lead := func() int {
		return slices.IndexFunc(rafts, func(r *raft.Raft) bool { return r.State() == raft.Leader })
	}
	commit := func(data string) {
		t.Helper()
		require.Eventually(t, func() bool {
			i := lead()
			return i >= 0 && rafts[i].Apply([]byte(data), testDeadline).Error() == nil
		}, testDeadline, time.Millisecond)
	}
	commit("entry")
	for _, fsm := range fsms {
		require.Equal(t, "entry", <-fsm.applied)
	}
	require.Eventually(t, func() bool { return lead() >= 0 }, testDeadline, time.Millisecond)
	gone := (lead() + 1) % len(rafts)
	peers[gone].stop()
	require.NoError(t, rafts[gone].Shutdown().Error())
	require.Eventually(t, func() bool {
		for i, p := range peers {
			if i != gone && p.suspects(metadata.BrokerID(gone+1)) {
				return true
			}
		}
		return false
	}, testDeadline, time.Millisecond)
	commit("another")
}

// Raft hears only of the server that its configuration names (M14), and a closed stream layer takes nothing.
func TestRaftStreams(t *testing.T) {
	a := start(t, identity("c", 1), func(cfg *Config) {
		cfg.RaftServer = func(_ string, node metadata.BrokerID, dir metadata.DirectoryID) error {
			if dir != identity("c", 2).Directory {
				return &metadata.Error{Kind: metadata.ErrUnknownBroker, What: "another directory"}
			}
			return nil
		}
	})
	b := start(t, identity("c", 2))
	conn, err := a.raft.Dial(raftAddress(b), time.Second)
	require.NoError(t, err)
	taken, err := b.raft.Accept()
	require.NoError(t, err)
	_, err = conn.Write([]byte("raft"))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(taken, got)
	require.NoError(t, err)
	require.Equal(t, "raft", string(got))
	require.NoError(t, conn.Close())
	_, err = taken.Read(got)
	require.Equal(t, io.EOF, err)
	_ = taken.Close()

	other := identity("c", 2)
	other.Directory[9] = 9
	b.become(other)
	_, err = a.raft.Dial(raftAddress(b), time.Second)
	require.ErrorIs(t, err, metadata.ErrUnknownBroker)

	b.become(identity("c", 2))
	require.NoError(t, b.raft.Close())
	_, err = b.raft.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	conn, err = a.raft.Dial(raftAddress(b), time.Second)
	require.NoError(t, err)
	_, err = conn.Read(got)
	require.Error(t, err)
	_ = conn.Close()
}

// Who closes waits for nobody: streams on which something is under way end with the layer, at both ends.
func TestStreamsEndWithTheirLayer(t *testing.T) {
	for _, closes := range []string{"who dialed", "who accepted"} {
		t.Run(closes, func(t *testing.T) {
			a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
			accepted := make(chan net.Conn, 1)
			go func() {
				conn, err := b.StreamLayer().Accept()
				if err == nil {
					accepted <- conn
				}
			}()
			dialed, err := a.StreamLayer().Dial(raftAddress(b), testDeadline)
			require.NoError(t, err)
			ends := []net.Conn{dialed, <-accepted}
			over := make(chan error, len(ends))
			for _, end := range ends {
				go func() {
					_, err := end.Read(make([]byte, 1))
					over <- err
				}()
			}
			layer := a.StreamLayer()
			if closes == "who accepted" {
				layer = b.StreamLayer()
			}
			require.NoError(t, layer.Close())
			for range ends {
				select {
				case err := <-over:
					require.Error(t, err)
				case <-time.After(testDeadline):
					t.Fatal("a stream lives on")
				}
			}
			_, err = layer.Dial(raftAddress(b), testDeadline)
			require.Error(t, err)
			for _, end := range ends {
				_ = end.Close()
			}
		})
	}
}
