package broker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/metadata"
)

// freePorts are those that freePort has returned.
var freePorts sync.Map

// freePort finds a port that nobody listens on, TCP and UDP, below those that the kernel gives to whoever asks for any: nobody is given it
// between this and the broker's bind, nor while a broker is down.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 12000 + rand.IntN(20000)
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		tcp, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		udp, err := net.ListenPacket("udp", address)
		require.NoError(t, tcp.Close())
		if err != nil {
			continue
		}
		require.NoError(t, udp.Close())
		if _, taken := freePorts.LoadOrStore(port, true); !taken {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// memberConfig is a broker with a gossip port of its own.
func memberConfig(t *testing.T, dir string, expect int, join ...string) Config {
	t.Helper()
	c := testConfig(dir)
	c.Join, c.BootstrapExpect = join, expect
	c.Peers = &PeerConfig{Bind: "127.0.0.1:0", GossipBind: net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))}
	c.StopTimeout = 10 * time.Second
	return c
}

// group is brokers in this process that know each other.
type brokerGroup struct {
	t       *testing.T
	configs []Config
	brokers []*Broker
}

// newGroup starts n brokers over empty directories and waits until all serve.
func newGroup(t *testing.T, n int) *brokerGroup {
	t.Helper()
	g := prepareGroup(t, n)
	g.run()
	return g
}

// prepareGroup is newGroup without the start.
func prepareGroup(t *testing.T, n int) *brokerGroup {
	t.Helper()
	g := &brokerGroup{t: t}
	var join []string
	for range n {
		c := memberConfig(t, filepath.Join(t.TempDir(), "data"), n)
		join = append(join, c.Peers.GossipBind)
		g.configs = append(g.configs, c)
	}
	for i := range g.configs {
		g.configs[i].Join = join
	}
	g.brokers = make([]*Broker, n)
	for i := range n {
		b, err := New(g.configs[i])
		require.NoError(t, err)
		g.brokers[i] = b
		t.Cleanup(func() { b.Close() })
	}
	return g
}

// run starts the brokers and waits until all serve.
func (g *brokerGroup) run() {
	var starting sync.WaitGroup
	for _, b := range g.brokers {
		go b.Run(context.Background())
		starting.Go(func() { g.ready(b) })
	}
	starting.Wait()
}

func (g *brokerGroup) ready(b *Broker) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.Ready(ctx); err != nil {
		g.t.Errorf("a broker does not serve: %v", err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 10*time.Millisecond, what)
}

func controllerOf(all []*Broker) *Broker {
	for _, b := range all {
		if b.Store().IsController() {
			return b
		}
	}
	return nil
}

func voters(q metadata.QuorumStatus) (ids []metadata.BrokerID) {
	for _, v := range q.Voters {
		ids = append(ids, v.ID)
	}
	return ids
}

// Three empty brokers form a cluster with ids in the order of their addresses; a fourth joins; each refusal of issue 4 is
// what it says, and nothing that is refused loses a byte (I16, M13, M14, M15, M17, M18).
func TestClusterFormsGrowsAndRefuses(t *testing.T) {
	g := newGroup(t, 3)
	ids := map[metadata.BrokerID]string{}
	for i, b := range g.brokers {
		require.Equal(t, g.brokers[0].ClusterID(), b.ClusterID())
		ids[b.NodeID()] = g.configs[i].Peers.GossipBind
	}
	require.Len(t, ids, 3)
	port := func(id metadata.BrokerID) int {
		_, p, err := net.SplitHostPort(ids[id])
		require.NoError(t, err)
		n, err := strconv.Atoi(p)
		require.NoError(t, err)
		return n
	}
	require.True(t, port(1) < port(2) && port(2) < port(3), "%v", ids)
	require.ElementsMatch(t, []metadata.BrokerID{1, 2, 3}, voters(g.brokers[0].Store().Quorum()))

	topic := t.Name()
	results := g.brokers[0].Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: topic, Partitions: 3, ReplicationFactor: 3}}, false)
	require.NoError(t, results[0].Err)
	cl := client(t, g.brokers[1], kgo.DefaultProduceTopic(topic), kgo.RequiredAcks(kgo.AllISRAcks()))
	for i := range 30 {
		require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint("record ", i))).FirstErr())
	}
	partitions := func(dir string) []string {
		found, err := filepath.Glob(filepath.Join(dir, topic+"-*"))
		require.NoError(t, err)
		return found
	}

	t.Run("a fourth joins and does not vote", func(t *testing.T) {
		c := memberConfig(t, filepath.Join(t.TempDir(), "data"), 0, g.configs[0].Peers.GossipBind)
		b := startBroker(t, c)
		require.EqualValues(t, 4, b.NodeID())
		q, err := b.Store().DescribeQuorum(t.Context())
		require.NoError(t, err)
		require.ElementsMatch(t, []metadata.BrokerID{1, 2, 3}, voters(q))
		require.EqualValues(t, 4, q.NonVoters[0].ID)
		require.NoError(t, b.Close())
		require.Len(t, g.brokers[0].Store().Servers(), 4, "a stop is no removal (M15)")

		// The same broker, at other addresses.
		c.Peers.GossipBind = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
		b = startBroker(t, c)
		require.EqualValues(t, 4, b.NodeID())
		eventually(t, "the quorum knows the new address", func() bool {
			for _, s := range g.brokers[0].Store().Servers() {
				if s.ID == 4 && s.Address == b.peers.Advertised() {
					return true
				}
			}
			return false
		})
	})

	t.Run("another size is refused", func(t *testing.T) {
		a := memberConfig(t, filepath.Join(t.TempDir(), "a"), 3)
		b := memberConfig(t, filepath.Join(t.TempDir(), "b"), 5, a.Peers.GossipBind)
		errs := make(chan error, 2)
		for _, c := range []Config{a, b} {
			go func() { errs <- runError(t, c) }()
		}
		for range 2 {
			err := <-errs
			require.ErrorIs(t, err, metadata.ErrInvalidConfig)
			for _, part := range []string{a.Peers.GossipBind, b.Peers.GossipBind, "\nwhy:", "\nfix:"} {
				require.ErrorContains(t, err, part)
			}
		}
	})

	t.Run("data of another cluster is refused", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		alone := startBroker(t, testConfig(dir))
		require.NoError(t, alone.Close())
		err := runError(t, memberConfig(t, dir, 0, g.configs[0].Peers.GossipBind))
		require.ErrorIs(t, err, ErrDataDirectory)
		require.ErrorContains(t, err, fmt.Sprintf("data belongs to cluster %s, peers are cluster %s", alone.ClusterID(), g.brokers[0].ClusterID()))
		require.DirExists(t, filepath.Join(dir, "raft"))
	})

	t.Run("a copied directory is refused", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "copy")
		require.NoError(t, os.CopyFS(dir, os.DirFS(g.configs[2].DataDir)))
		before := partitions(dir)
		require.NotEmpty(t, before)
		err := runError(t, memberConfig(t, dir, 3, g.configs[0].Join...))
		require.ErrorIs(t, err, ErrDataDirectory)
		require.ErrorContains(t, err, "is a copy of one in use")
		require.Equal(t, before, partitions(dir))
		require.False(t, g.brokers[0].Store().Image().Broker(g.brokers[2].NodeID()).Fenced)
	})

	t.Run("garbage is not heard", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for _, network := range []string{"tcp", "udp"} {
			for i := range 200 {
				to := g.configs[0].Peers.GossipBind
				if network == "tcp" && i%2 == 0 {
					to = g.brokers[0].peers.Addr().String()
				}
				conn, err := net.Dial(network, to)
				require.NoError(t, err)
				b := make([]byte, 1+rnd.IntN(1300))
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				b[0] = byte(i % 16) // every type of gossip's messages
				_, _ = conn.Write(b)
				require.NoError(t, conn.Close())
			}
		}
		require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord("after the garbage")).FirstErr())
		require.NoError(t, g.brokers[0].failure())
	})

	t.Run("one that was agreed to can't start alone", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, writeFormation(dir, formationState{Joined: &joined{Cluster: "c", Node: 7}}))
		require.ErrorContains(t, runError(t, testConfig(dir)), "was now started alone")
		require.NoError(t, os.WriteFile(filepath.Join(dir, formationName), []byte("{"), 0o644))
		require.ErrorContains(t, runError(t, memberConfig(t, dir, 3)), "is damaged")
	})

	t.Run("a wiped disk joins as a new broker", func(t *testing.T) {
		was := g.brokers[1].NodeID()
		require.NoError(t, g.brokers[1].Close())
		require.NoError(t, os.RemoveAll(g.configs[1].DataDir))
		b := startBroker(t, g.configs[1]) // its original command line (M18)
		require.Equal(t, g.brokers[0].ClusterID(), b.ClusterID())
		require.EqualValues(t, 5, b.NodeID())
		q, err := b.Store().DescribeQuorum(t.Context())
		require.NoError(t, err)
		require.Contains(t, voters(q), was, "only an operator makes the quorum smaller (M15)")
		require.NoError(t, b.Close())

		// --replace takes the place of the one that is gone, and its vote.
		c := g.configs[1]
		c.DataDir, c.Replace, c.BootstrapExpect = filepath.Join(t.TempDir(), "data"), was, 0
		b = startBroker(t, c)
		require.Equal(t, was, b.NodeID())
		eventually(t, "it votes in place of the old one", func() bool {
			lead := controllerOf([]*Broker{g.brokers[0], g.brokers[2]})
			if lead == nil {
				return false // between two
			}
			for _, v := range lead.Store().Quorum().Voters {
				if v.ID == was && v.Directory == b.dir.ID() {
					return true
				}
			}
			return false
		})
		require.NoError(t, b.Close())
	})
}

// M6, I16: a broker whose metadata is damaged refuses to start and says what to do; what it says works: the broker takes its
// own place anew, votes again, has every record that it had, also those that nobody else has, and needs no --replace after.
func TestLostMetadataIsFetchedAnew(t *testing.T) {
	g := newGroup(t, 3)
	topic, alone := t.Name(), t.Name()+"-alone"
	victim := g.brokers[1]
	id := victim.NodeID()
	require.NoError(t, g.brokers[0].Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: topic, Partitions: 3, ReplicationFactor: 3}}, false)[0].Err)
	require.NoError(t, g.brokers[0].Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: alone, Partitions: -1, ReplicationFactor: -1, Assignments: [][]metadata.BrokerID{{id}}}}, false)[0].Err)
	cl := client(t, g.brokers[0], kgo.RequiredAcks(kgo.AllISRAcks()))
	for i := range 30 {
		require.NoError(t, cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}, &kgo.Record{Topic: alone, Value: fmt.Append(nil, i)}).FirstErr())
	}
	c := g.configs[1]
	require.NoError(t, victim.Close())
	was := victim.dir.ID()
	folder := filepath.Join(c.DataDir, raftName)
	database := filepath.Join(folder, "raft.db")
	require.NoError(t, os.Truncate(database, int64(2*os.Getpagesize())))
	err := runError(t, c)
	require.ErrorIs(t, err, metadata.ErrCorrupt)
	require.ErrorContains(t, err, fmt.Sprintf("mv %s %s-damaged", folder, folder))
	require.ErrorContains(t, err, fmt.Sprintf("--replace %d", id))

	require.NoError(t, os.Rename(folder, folder+"-damaged"))
	err = runError(t, c)
	require.ErrorIs(t, err, ErrDataDirectory)
	require.ErrorContains(t, err, fmt.Sprintf("--replace %d", id))
	require.NoDirExists(t, folder)

	replacing := c
	replacing.Replace, replacing.BootstrapExpect = id, 0
	b := startBroker(t, replacing)
	require.Equal(t, id, b.NodeID())
	require.NotEqual(t, was, b.dir.ID())
	others := []*Broker{g.brokers[0], g.brokers[2]}
	eventually(t, "it votes in place of what it was", func() bool {
		lead := controllerOf(others)
		return lead != nil && slices.ContainsFunc(lead.Store().Quorum().Voters, func(v metadata.QuorumMember) bool { return v.ID == id && v.Directory == b.dir.ID() })
	})
	whole := func(b *Broker) {
		t.Helper()
		eventually(t, "every replica is in sync", func() bool {
			for p := range 3 {
				if len(g.brokers[0].Store().Image().Topic(topic).Partitions[p].ISR) < 3 {
					return false
				}
			}
			p := g.brokers[0].Store().Image().Topic(alone).Partitions[0]
			return p.Leader == id
		})
		end := int64(0)
		for _, l := range b.dir.Logs() {
			end += l.EndOffset()
		}
		require.Equal(t, int64(60), end, "it has all that it had")
	}
	whole(b)
	_, err = os.Stat(filepath.Join(c.DataDir, formationName+renewedSuffix))
	require.NoError(t, err, "nothing is deleted")
	require.NoError(t, b.Close())
	whole(startBroker(t, c))
}

// A broker that starts without its quorum says whom it waits for, in /readyz and on the way.
func TestABrokerSaysWhatItWaitsFor(t *testing.T) {
	other := freePort(t)
	c := memberConfig(t, filepath.Join(t.TempDir(), "data"), 3, fmt.Sprintf("127.0.0.1:%d", other))
	lines := make(chan string, 100)
	c.Progress = func(line string) {
		select {
		case lines <- line:
		default:
		}
	}
	b, err := New(c)
	require.NoError(t, err)
	go b.Run(context.Background())
	t.Cleanup(func() { b.Close() })
	select {
	case line := <-lines:
		require.Contains(t, line, "waiting for peers: 1 of 3 seen")
		require.Contains(t, line, fmt.Sprintf("127.0.0.1:%d connection refused", other))
		require.Contains(t, line, "next try in")
	case <-time.After(patience):
		t.Fatal("it says nothing")
	}
	status, body := get(t, b, "/readyz")
	require.Equal(t, 503, status)
	require.True(t, strings.Contains(body, "waiting for peers"), body)
}
