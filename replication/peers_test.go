package replication

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// network connects managers in memory. A test cuts links and looks at what is open.
type network struct {
	mu struct {
		sync.Mutex
		managers map[metadata.BrokerID]*Manager
		cut      map[[2]metadata.BrokerID]bool
		fetchers map[*memFetcher]struct{}
		opened   int
		calls    int
		changed  int // positions sent
	}
}

func newNetwork() *network {
	n := &network{}
	n.mu.managers = map[metadata.BrokerID]*Manager{}
	n.mu.cut = map[[2]metadata.BrokerID]bool{}
	n.mu.fetchers = map[*memFetcher]struct{}{}
	return n
}

func (n *network) set(id metadata.BrokerID, m *Manager) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.managers[id] = m
	for f := range n.mu.fetchers {
		if f.to == id || f.from == id {
			f.breakOff()
		}
	}
}

// link cuts or heals the way from one broker to another, both ways.
func (n *network) link(a, b metadata.BrokerID, up bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cut[[2]metadata.BrokerID{a, b}] = !up
	n.mu.cut[[2]metadata.BrokerID{b, a}] = !up
	if !up {
		for f := range n.mu.fetchers {
			if f.to == a && f.from == b || f.to == b && f.from == a {
				f.breakOff()
			}
		}
	}
}

// memPeers are the Peers of one broker.
type memPeers struct {
	n    *network
	from metadata.BrokerID
}

// OpenFetcher implements Peers.
func (p memPeers) OpenFetcher(to metadata.BrokerID) Fetcher {
	f := &memFetcher{n: p.n, from: p.from, to: to, wake: make(chan struct{}, 1), broken: make(chan struct{})}
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	p.n.mu.fetchers[f] = struct{}{}
	p.n.mu.opened++
	return f
}

type memFetcher struct {
	n        *network
	from, to metadata.BrokerID
	session  *FollowerSession
	wake     chan struct{}
	broken   chan struct{}
	once     sync.Once
}

var errLink = errors.New("no way to the broker")

func (f *memFetcher) breakOff() { f.once.Do(func() { close(f.broken) }) }

// Fetch implements Fetcher.
func (f *memFetcher) Fetch(ctx context.Context, req *FollowerFetch) (*FollowerAnswer, error) {
	f.n.mu.Lock()
	m := f.n.mu.managers[f.to]
	if f.n.mu.cut[[2]metadata.BrokerID{f.from, f.to}] {
		m = nil
	}
	f.n.mu.calls++
	f.n.mu.changed += len(req.Changed)
	f.n.mu.Unlock()
	if m == nil {
		return nil, errLink
	}
	select {
	case <-f.wake: // of a wait that is over
	default:
	}
	if f.session == nil {
		f.session = m.OpenFollowerSession(f.from)
	}
	s := f.session
	s.Update(req)
	if !s.Ready(req.MinBytes) && req.MaxWait > 0 {
		news := make(chan struct{}, 1)
		s.Park(req.MinBytes, func() { news <- struct{}{} })
		timer := time.NewTimer(req.MaxWait)
		defer timer.Stop()
		select {
		case <-news:
		case <-f.wake:
		case <-timer.C:
		case <-f.broken:
			return nil, errLink
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		s.Unpark()
	}
	select {
	case <-f.broken:
		return nil, errLink
	default:
	}
	a := &FollowerAnswer{}
	var err error
	s.Collect(req.MaxBytes, func(n FollowerNews) {
		part := FetchedPartition{
			TopicID: n.TopicID, Partition: n.Partition, Err: n.Err, HighWatermark: n.HighWatermark, LogStartOffset: n.LogStartOffset,
			LogEndOffset: n.LogEndOffset, DivergingEpoch: n.DivergingEpoch, DivergingEnd: n.DivergingEnd,
		}
		if n.Slice.Len() > 0 {
			part.Records = make([]byte, n.Slice.Len())
			part.Owner = noOwner{}
			if _, rerr := n.Slice.ReadAt(part.Records, 0); rerr != nil {
				err = rerr
			}
			n.Slice.Release()
		}
		a.Partitions = append(a.Partitions, part)
	})
	return a, err
}

// noOwner owns bytes that the garbage collector frees.
type noOwner struct{}

func (noOwner) Retain()  {}
func (noOwner) Release() {}

// Wake implements Fetcher.
func (f *memFetcher) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Close implements Fetcher.
func (f *memFetcher) Close() {
	f.breakOff()
	f.n.mu.Lock()
	delete(f.n.mu.fetchers, f)
	f.n.mu.Unlock()
	if f.session != nil {
		f.session.Close()
	}
}

// cluster is three managers that share one metadata store and a network in memory.
type cluster struct {
	t     testing.TB
	store *metadata.Store
	net   *network
	nodes []*node
	tune  func(*Config)
}

// node is one broker of a cluster.
type node struct {
	c           *cluster
	id          metadata.BrokerID
	fs          vfs.FS
	wal         bool
	dir         *log.Dir
	m           *Manager
	incarnation byte
	epoch       int64
	failed      chan error
}

func newCluster(t testing.TB, brokers int, wal bool, tune ...func(*Config)) *cluster {
	c := &cluster{t: t, net: newNetwork()}
	c.tune = func(cfg *Config) {
		for _, fn := range tune {
			fn(cfg)
		}
	}
	for i := range brokers {
		n := &node{c: c, id: metadata.BrokerID(i), fs: vfs.NewMem(uint64(i + 1)), wal: wal, failed: make(chan error, 4)}
		c.nodes = append(c.nodes, n)
		n.openDir()
	}
	mc := metadata.Default()
	mc.SessionTimeout = time.Hour // nobody sends heartbeats here
	mc.Dir, mc.NodeID, mc.DirectoryID, mc.Bootstrap, mc.Logger = t.TempDir(), 0, c.nodes[0].dir.ID(), true, quiet()
	mc.OnFailure = func(err error) { t.Errorf("metadata failed: %v", err) }
	var err error
	c.store, err = metadata.Open(mc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.store.Close()) })
	require.NoError(t, c.store.Ready(c.ctx()))
	for _, n := range c.nodes {
		n.register()
		n.open()
		t.Cleanup(n.stop)
	}
	return c
}

func (c *cluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

func (n *node) openDir() {
	cfg := log.Default()
	cfg.FS, cfg.Logger, cfg.WAL = n.fs, quiet(), n.wal
	cfg.ReserveBytes, cfg.BallastBytes = 0, 0
	cfg.WALFileBytes, cfg.WALInitialBytes = 1<<20, 1<<20
	var err error
	n.dir, err = log.OpenDir("data", cfg)
	require.NoError(n.c.t, err)
	n.incarnation++
}

func (n *node) register() {
	var err error
	n.epoch, err = n.c.store.RegisterBroker(n.c.ctx(), metadata.Registration{
		ID: n.id, Incarnation: [16]byte{byte(n.id) + 1, n.incarnation}, Directories: []metadata.DirectoryID{n.dir.ID()}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
	})
	require.NoError(n.c.t, err)
	_, err = n.c.store.Heartbeat(n.c.ctx(), metadata.Heartbeat{Broker: n.id, Epoch: n.epoch, Applied: n.c.store.Image().Version()})
	require.NoError(n.c.t, err)
}

func (n *node) open() {
	cfg := Default()
	cfg.BrokerID, cfg.Incarnation, cfg.Dir, cfg.FS, cfg.Store = n.id, [16]byte{byte(n.id) + 1, n.incarnation}, n.dir, n.fs, n.c.store
	cfg.Logger = quiet()
	cfg.Peers = memPeers{n.c.net, n.id}
	cfg.TickInterval, cfg.RetryInterval = 5*time.Millisecond, 20*time.Millisecond
	cfg.OnFailure = func(err error) { n.failed <- err }
	n.c.tune(&cfg)
	var err error
	n.m, err = Open(cfg)
	require.NoError(n.c.t, err)
	require.NoError(n.c.t, n.m.Ready(n.c.ctx()))
	n.c.net.set(n.id, n.m)
}

// stop ends the broker in the order of a process.
func (n *node) stop() {
	if n.m == nil {
		return
	}
	n.c.net.set(n.id, nil)
	require.NoError(n.c.t, n.m.Close())
	n.m = nil
	require.NoError(n.c.t, n.dir.Close())
}

// create makes a topic with all brokers as replicas, led by the first ones in turn.
func (c *cluster) create(name string, partitions int, configs map[string]string) metadata.TopicID {
	c.t.Helper()
	nt := metadata.NewTopic{Name: name, Partitions: -1, ReplicationFactor: -1, Configs: map[string]*string{}}
	for k, v := range configs {
		nt.Configs[k] = &v
	}
	for p := range partitions {
		var replicas []metadata.BrokerID
		for i := range c.nodes {
			replicas = append(replicas, metadata.BrokerID((p+i)%len(c.nodes)))
		}
		nt.Assignments = append(nt.Assignments, replicas)
	}
	res := c.store.CreateTopics(c.ctx(), []metadata.NewTopic{nt}, false)
	require.NoError(c.t, res[0].Err)
	c.await()
	return res[0].ID
}

func (c *cluster) await() {
	v := c.store.Image().Version()
	for _, n := range c.nodes {
		if n.m != nil {
			require.NoError(c.t, n.m.Await(c.ctx(), v))
		}
	}
}

func (c *cluster) record(topic string, partition int) metadata.Partition {
	return *c.store.Image().Topic(topic).Partitions[partition]
}

// leader returns the leader's replica.
func (c *cluster) leader(topic string, partition int) *Partition {
	c.t.Helper()
	return c.replica(c.record(topic, partition).Leader, topic, partition)
}

func (c *cluster) replica(id metadata.BrokerID, topic string, partition int) *Partition {
	c.t.Helper()
	p, err := c.nodes[id].m.Partition(topic, int32(partition))
	require.NoError(c.t, err)
	return p
}
