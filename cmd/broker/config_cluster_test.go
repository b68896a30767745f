package broker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

func clusterConfig(t *testing.T, o Options, pairs ...string) Config {
	t.Helper()
	s, err := ReadSettings(Layers{Set: append([]string{"log.dirs=" + t.TempDir()}, pairs...)})
	require.NoError(t, err)
	c, err := FromSettings(s, o)
	require.NoError(t, err)
	require.NoError(t, c.Validate())
	return c
}

// A broker that nobody can ever join opens no port for others; every other one does (S1).
func TestWhoOpensThePortsForOthers(t *testing.T) {
	f := func(wantPeers, wantGossip string, o Options, pairs ...string) {
		t.Helper()
		c := clusterConfig(t, o, pairs...)
		if wantPeers == "" {
			require.Nil(t, c.Peers)
			return
		}
		require.Equal(t, wantPeers, c.Peers.Bind)
		require.Equal(t, wantGossip, c.Peers.GossipBind)
	}
	f("", "", Options{})
	f("", "", Options{}, "listeners=PLAINTEXT://:19092")
	f(":9093", ":9094", Options{}, "millrace.join=m1")
	f(":9093", ":9094", Options{Advertise: "m1"})
	f(":19093", ":19094", Options{}, "listeners=PLAINTEXT://:19092,CONTROLLER://:19093")
	f("127.0.0.1:19093", "127.0.0.1:19094", Options{}, "listeners=PLAINTEXT://:19092,CONTROLLER://127.0.0.1:19093")
	f("127.0.0.1:9093", "127.0.0.1:7000", Options{}, "millrace.gossip.listener=:7000")
	f(":9093", "10.0.0.1:7000", Options{}, "millrace.gossip.listener=10.0.0.1:7000", "millrace.join=m1")
}

func TestAdvertisedPeerAddress(t *testing.T) {
	c := clusterConfig(t, Options{Advertise: "m1.example.com"}, "millrace.join=m2")
	require.Equal(t, "m1.example.com:9093", c.Peers.Advertised)
	c = clusterConfig(t, Options{}, "listeners=PLAINTEXT://:9092,CONTROLLER://:9093", "advertised.listeners=CONTROLLER://inside:19093")
	require.Equal(t, "inside:19093", c.Peers.Advertised)
	c = clusterConfig(t, Options{}, "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:0")
	require.Equal(t, "127.0.0.1:0", c.Peers.Advertised, "the port is filled in when it is bound")
}

// A server.properties of KRaft names the same brokers in its own words.
func TestKRaftVotersAreAJoinList(t *testing.T) {
	f := func(join []string, expect int, pairs ...string) {
		t.Helper()
		c := clusterConfig(t, Options{}, pairs...)
		require.Equal(t, join, c.Join)
		require.Equal(t, expect, c.BootstrapExpect)
	}
	const voters = "controller.quorum.voters=1@m1:9093,2@m2:9093,3@m3:19093"
	f([]string{"m1:9094", "m2:9094", "m3:19094"}, 3, voters, "node.id=2")
	f([]string{"m1:9094", "m2:9094", "m3:19094"}, 0, voters, "node.id=4") // a broker beside the quorum
	f(nil, 0, "controller.quorum.voters=1@localhost:9093", "node.id=1")
	f([]string{"m1:9094"}, 0, "controller.quorum.voters=1@m1:9093", "node.id=2")
	f([]string{"elsewhere.example.com:9094"}, 0, "controller.quorum.bootstrap.servers=elsewhere.example.com:9093")
	f(nil, 0, "controller.quorum.bootstrap.servers=localhost:9093")
	f([]string{"a"}, 5, "millrace.join=a", "millrace.bootstrap.expect=5", voters)
}

func TestReplaceOnlyJoins(t *testing.T) {
	c := clusterConfig(t, Options{Replace: 3, Replaces: true}, "millrace.join=m1,m2", "millrace.bootstrap.expect=3")
	require.EqualValues(t, 3, c.Replace)
	require.Zero(t, c.BootstrapExpect)

	s, err := ReadSettings(Layers{Set: []string{"log.dirs=" + t.TempDir()}})
	require.NoError(t, err)
	c, err = FromSettings(s, Options{Replace: 3, Replaces: true})
	require.NoError(t, err)
	err = c.Validate()
	require.ErrorIs(t, err, metadata.ErrInvalidConfig)
	require.ErrorContains(t, err, "--replace 3 without --join")
}
