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
	// gate is held for reading while one process does something to another, for writing while one dies: what it did
	// before its disk was cloned it did with that disk.
	gate sync.RWMutex
	mu   struct {
		sync.Mutex
		lives    map[metadata.BrokerID]*life
		cut      map[[2]metadata.BrokerID]bool
		fetchers map[*memFetcher]struct{}
		opened   int
		calls    int
		changed  int // positions sent
	}
}

// life is one process of a broker.
type life struct {
	gate *sync.RWMutex
	id   metadata.BrokerID
	m    *Manager
	dead bool // guarded by gate
}

func newNetwork() *network {
	n := &network{}
	n.mu.lives = map[metadata.BrokerID]*life{}
	n.mu.cut = map[[2]metadata.BrokerID]bool{}
	n.mu.fetchers = map[*memFetcher]struct{}{}
	return n
}

// set makes the process of a broker known, nil: it has none.
func (n *network) set(id metadata.BrokerID, l *life) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lives[id] = l
	for f := range n.mu.fetchers {
		if f.to == id || f.from.id == id {
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
			if f.to == a && f.from.id == b || f.to == b && f.from.id == a {
				f.breakOff()
			}
		}
	}
}

// reach returns the process that from reaches at broker to, nil if there is none or no way. The gate is held.
func (n *network) reach(from *life, to metadata.BrokerID) *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.mu.lives[to]
	if from.dead || l == nil || l.dead || n.mu.cut[[2]metadata.BrokerID{from.id, to}] {
		return nil
	}
	return l
}

// memPeers are the Peers of one process.
type memPeers struct {
	n    *network
	from *life
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
	n       *network
	from    *life
	to      metadata.BrokerID
	peer    *life
	session *FollowerSession
	wake    chan struct{}
	broken  chan struct{}
	once    sync.Once
}

var errLink = errors.New("no way to the broker")

func (f *memFetcher) breakOff() { f.once.Do(func() { close(f.broken) }) }

// Fetch implements Fetcher.
func (f *memFetcher) Fetch(ctx context.Context, req *FollowerFetch) (*FollowerAnswer, error) {
	f.n.mu.Lock()
	f.n.mu.calls++
	f.n.mu.changed += len(req.Changed)
	f.n.mu.Unlock()
	if err := f.update(req); err != nil {
		return nil, err
	}
	s := f.session
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
	return f.collect(req)
}

func (f *memFetcher) update(req *FollowerFetch) error {
	f.n.gate.RLock()
	defer f.n.gate.RUnlock()
	l := f.n.reach(f.from, f.to)
	if l == nil || f.peer != nil && f.peer != l {
		return errLink
	}
	if f.session == nil {
		f.peer, f.session = l, l.m.OpenFollowerSession(f.from.id)
	}
	f.session.Update(req)
	return nil
}

func (f *memFetcher) collect(req *FollowerFetch) (*FollowerAnswer, error) {
	f.n.gate.RLock()
	defer f.n.gate.RUnlock()
	if f.n.reach(f.from, f.to) != f.peer {
		return nil, errLink
	}
	s, a := f.session, &FollowerAnswer{}
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
	store *fsmStore
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
	life        *life
	store       *nodeStore
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
	c.store = newFSMStore(t)
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

// register registers a new process, as one that has caught up.
func (n *node) register() {
	n.c.store.must(func(r *metadata.Replica) (err error) {
		n.epoch, err = r.Register(metadata.Registration{
			ID: n.id, Incarnation: [16]byte{byte(n.id) + 1, n.incarnation}, Directories: []metadata.DirectoryID{n.dir.ID()}, Version: "test",
			Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
			MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
			TailsProven: n.dir.CleanStart() && n.dir.TailsProven(),
		}, false)
		return err
	})
}

func (n *node) fence(on bool) {
	n.c.store.must(func(r *metadata.Replica) error { return r.Fence(n.id, n.epoch, on) })
}

func (n *node) open() {
	n.life = &life{gate: &n.c.net.gate, id: n.id}
	n.store = &nodeStore{fsmStore: n.c.store, life: n.life}
	cfg := Default()
	cfg.BrokerID, cfg.Incarnation, cfg.Dir, cfg.FS, cfg.Store = n.id, [16]byte{byte(n.id) + 1, n.incarnation}, n.dir, n.fs, n.store
	cfg.Logger = quiet()
	cfg.Peers = memPeers{n.c.net, n.life}
	cfg.TickInterval, cfg.RetryInterval = 5*time.Millisecond, 20*time.Millisecond
	cfg.OnFailure = func(err error) { n.failed <- err }
	n.c.tune(&cfg)
	var err error
	n.m, err = Open(cfg)
	require.NoError(n.c.t, err)
	n.life.m = n.m
	require.NoError(n.c.t, n.m.Ready(n.c.ctx()))
	n.c.net.set(n.id, n.life)
}

// start runs a stopped broker again.
func (n *node) start() {
	n.openDir()
	n.register()
	n.open()
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
	var id metadata.TopicID
	c.store.must(func(r *metadata.Replica) error {
		c.store.mu.topics++
		id = metadata.TopicID{15: c.store.mu.topics}
		var assignments [][]metadata.BrokerID
		for p := range partitions {
			var replicas []metadata.BrokerID
			for i := range c.nodes {
				replicas = append(replicas, metadata.BrokerID((p+i)%len(c.nodes)))
			}
			assignments = append(assignments, replicas)
		}
		return r.CreateTopic(name, id, configs, assignments)
	})
	c.await()
	return id
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
