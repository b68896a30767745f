package metadata

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// D2: more brokers than millrace.quorum.size may form a cluster, and only so many vote, the one with the log among them.
func TestBootstrapVoters(t *testing.T) {
	servers := []Server{}
	for id := range BrokerID(5) {
		servers = append(servers, Server{ID: id, Directory: DirectoryID{byte(id) + 1}, Address: "localhost:" + id.String()})
	}
	rc := raft.DefaultConfig()
	rc.LocalID = servers[4].raft()
	store := raft.NewInmemStore()
	_, transport := raft.NewInmemTransport(raft.ServerAddress(servers[4].Address))
	require.NoError(t, bootstrap(rc, store, store, raft.NewInmemSnapshotStore(), transport, servers, 3))

	var l raft.Log
	require.NoError(t, store.GetLog(1, &l))
	voters := map[raft.ServerID]bool{}
	for _, server := range raft.DecodeConfiguration(l.Data).Servers {
		voters[server.ID] = server.Suffrage == raft.Voter
	}
	require.Equal(t, map[raft.ServerID]bool{
		servers[4].raft(): true, servers[0].raft(): true, servers[1].raft(): true, servers[2].raft(): false, servers[3].raft(): false,
	}, voters)
	require.Equal(t, BrokerID(4), servers[4].ID, "the caller's list is its own")
}
