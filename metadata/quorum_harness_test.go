package metadata

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// quorumWorld is brokers that found or join a cluster over an in-memory network, inside a synctest bubble: servers enter
// the quorum by the controller's doing alone, as they do in cmd/broker.
type quorumWorld struct {
	t    *testing.T
	dir  string
	size int           // millrace.quorum.size
	link time.Duration // one way, of Raft's messages
	// untold has Raft send its news of a commit after an hour only.
	untold bool
	// edit, if not nil, changes the configuration of every broker.
	edit func(*Config)
	// heartbeats counts those of Raft, of all leaders.
	heartbeats atomic.Int64

	mu struct {
		sync.Mutex
		nodes []*quorumNode // all there were; those that run have up set
		cut   map[[2]string]bool
		// deaf is the set of addresses whose Raft messages are lost while calls reach them.
		deaf map[string]bool
		// silent is the set of addresses where calls get no answer.
		silent map[string]bool
	}
	closing sync.Once
	stop    chan struct{}
	wg      sync.WaitGroup
}

// quorumNode is one process of a broker.
type quorumNode struct {
	*Store
	address string
	trans   *raft.InmemTransport
	epoch   int64
	up      atomic.Bool
	process byte
}

// inQuorumWorld runs a test in a bubble of its own, where all sleep is fake time.
func inQuorumWorld(t *testing.T, size int, test func(*testing.T, *quorumWorld)) {
	synctest.Test(t, func(t *testing.T) { test(t, newQuorumWorld(t, size)) })
}

func newQuorumWorld(t *testing.T, size int) *quorumWorld {
	w := &quorumWorld{t: t, dir: t.TempDir(), size: size, stop: make(chan struct{})}
	w.mu.cut, w.mu.deaf, w.mu.silent = map[[2]string]bool{}, map[string]bool{}, map[string]bool{}
	w.wg.Go(w.beats)
	t.Cleanup(w.close) // also when the test fails: else what still ticks keeps the bubble alive
	return w
}

// slowLink delays what Raft sends, one message after the other.
type slowLink struct {
	*raft.InmemTransport
	delay time.Duration
	beats *atomic.Int64 // counts heartbeats
}

func (s slowLink) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	if a.PrevLogEntry == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0 {
		s.beats.Add(1)
	}
	time.Sleep(2 * s.delay) // there and back, in fake time
	return s.InmemTransport.AppendEntries(id, to, a, r)
}

func (s slowLink) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (s slowLink) RequestVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	time.Sleep(2 * s.delay)
	return s.InmemTransport.RequestVote(id, to, a, r)
}

func (s slowLink) RequestPreVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	time.Sleep(2 * s.delay)
	return s.InmemTransport.RequestPreVote(id, to, a, r)
}

// open starts a process of broker id over a metadata directory that belongs to the log directory dir; it neither joins nor
// registers. The first one founds the cluster.
func (w *quorumWorld) open(id BrokerID, dir DirectoryID, process byte) *quorumNode {
	w.t.Helper()
	n := &quorumNode{address: "broker-" + id.String(), process: process}
	n.up.Store(true)
	cfg := testConfig(w.t, filepath.Join(w.dir, fmt.Sprintf("%x", dir)))
	cfg.NodeID, cfg.DirectoryID, cfg.QuorumSize = id, dir, w.size
	cfg.Bootstrap = len(w.nodes()) == 0
	cfg.Rand = rand.New(rand.NewPCG(uint64(id), uint64(process)))
	_, n.trans = raft.NewInmemTransport(raft.ServerAddress(n.address))
	cfg.Transport = slowLink{n.trans, w.link, &w.heartbeats}
	if w.untold {
		cfg.Transport, cfg.commitTimeout = n.trans, time.Hour
	}
	cfg.Forwarder = quorumCalls{w, n.address}
	if w.edit != nil {
		w.edit(&cfg)
	}
	cfg.Probe = func(ctx context.Context, b *Broker) error {
		to := w.at(b.PeerAddress)
		if to == nil || !w.reaches(n.address, b.PeerAddress) || b.Incarnation[1] != to.process {
			return errors.New("no answer")
		}
		return nil
	}
	s, err := Open(cfg)
	require.NoError(w.t, err)
	n.Store = s
	w.mu.Lock()
	w.mu.nodes = append(w.mu.nodes, n)
	w.mu.Unlock()
	w.connect()
	return n
}

// join brings a broker all the way: its server is added, it has caught up, is registered and sends heartbeats.
func (w *quorumWorld) join(id BrokerID) *quorumNode {
	w.t.Helper()
	n := w.open(id, DirectoryID{byte(id)}, 1)
	if len(w.nodes()) > 1 {
		require.NoError(w.t, w.controller().AddServer(testContext(w.t), n.server()))
	}
	require.NoError(w.t, n.Ready(testContext(w.t)))
	w.register(n)
	return n
}

func (w *quorumWorld) register(n *quorumNode) {
	w.t.Helper()
	r := testRegistration(n.cfg.NodeID, n.process)
	r.Directories, r.PeerAddress = []DirectoryID{n.cfg.DirectoryID}, n.address
	epoch, err := n.RegisterBroker(testContext(w.t), r)
	require.NoError(w.t, err)
	w.mu.Lock()
	n.epoch = epoch
	w.mu.Unlock()
}

// kill ends a process.
func (w *quorumWorld) kill(n *quorumNode) {
	n.up.Store(false)
	w.connect()
	require.NoError(w.t, n.Close())
}

// close ends all processes and replays their logs.
func (w *quorumWorld) close() {
	w.closing.Do(func() {
		close(w.stop)
		w.wg.Wait()
		for _, n := range w.nodes() {
			if n.up.Load() {
				w.kill(n)
				verifyReplay(w.t, n.Store)
			}
		}
	})
}

func (n *quorumNode) server() Server {
	return Server{ID: n.cfg.NodeID, Directory: n.cfg.DirectoryID, Address: n.address}
}

func (w *quorumWorld) nodes() []*quorumNode {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.nodes)
}

// at returns the process that runs at an address.
func (w *quorumWorld) at(address string) *quorumNode {
	for _, n := range w.nodes() {
		if n.up.Load() && n.address == address {
			return n
		}
	}
	return nil
}

func (w *quorumWorld) reaches(a, b string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.mu.cut[[2]string{a, b}] && !w.mu.cut[[2]string{b, a}]
}

// connect makes Raft's network what cut, deaf and up say.
func (w *quorumWorld) connect() {
	all := w.nodes()
	for _, a := range all {
		for _, b := range all {
			if a == b || a.address == b.address {
				continue
			}
			w.mu.Lock()
			deaf := w.mu.deaf[a.address] || w.mu.deaf[b.address]
			w.mu.Unlock()
			switch current := w.at(b.address); {
			case a.up.Load() && b.up.Load() && !deaf && w.reaches(a.address, b.address):
				a.trans.Connect(b.trans.LocalAddr(), b.trans)
			case current == b || current == nil:
				a.trans.Disconnect(b.trans.LocalAddr())
			}
		}
	}
}

// isolate cuts a broker off from all others, or joins it again.
func (w *quorumWorld) isolate(n *quorumNode, cut bool) {
	for _, other := range w.nodes() {
		w.mu.Lock()
		w.mu.cut[[2]string{n.address, other.address}] = cut && other != n
		w.mu.Unlock()
	}
	w.connect()
}

// silence lets calls to a broker go unanswered, or has them answered again.
func (w *quorumWorld) silence(n *quorumNode, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.silent[n.address] = silent
}

// deafen loses Raft's messages from and to a broker, and only them.
func (w *quorumWorld) deafen(n *quorumNode, deaf bool) {
	w.mu.Lock()
	w.mu.deaf[n.address] = deaf
	w.mu.Unlock()
	w.connect()
}

// beats sends heartbeats of all registered brokers, each second.
func (w *quorumWorld) beats() {
	for {
		for _, n := range w.nodes() {
			w.mu.Lock()
			send, epoch := n.up.Load() && n.epoch != 0, n.epoch
			w.mu.Unlock()
			if send {
				ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
				_, _ = n.Heartbeat(ctx, Heartbeat{Broker: n.cfg.NodeID, Epoch: epoch, Applied: n.Image().Version()})
				cancel()
			}
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-w.stop:
			return
		}
	}
}

// quorumCalls carries calls from one broker.
type quorumCalls struct {
	w    *quorumWorld
	from string
}

func (c quorumCalls) Forward(ctx context.Context, broker BrokerID, address, method string, body []byte) ([]byte, error) {
	to := c.w.at(address)
	if to == nil || !c.w.reaches(c.from, address) {
		return nil, fmt.Errorf("%w: connection to %s refused", ErrNotSent, address)
	}
	c.w.mu.Lock()
	silent := c.w.mu.silent[address]
	c.w.mu.Unlock()
	if silent {
		<-ctx.Done()
		return nil, fmt.Errorf("%w: %w", ErrTimeout, ctx.Err())
	}
	return to.ServeForward(ctx, method, body)
}

// controller waits for the controller.
func (w *quorumWorld) controller(not ...*quorumNode) (lead *quorumNode) {
	w.t.Helper()
	w.await("there is a controller", func() bool {
		for _, n := range w.nodes() {
			if n.up.Load() && n.IsController() && !slices.Contains(not, n) {
				lead = n
				return true
			}
		}
		return false
	})
	return lead
}

// create makes a topic through a broker, in fake time.
func (n *quorumNode) create(name string, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	err := n.CreateTopics(ctx, []NewTopic{newTopic(name, 1)}, false)[0].Err
	return time.Since(began), err
}

// other returns a broker that none of these is.
func (w *quorumWorld) other(not ...*quorumNode) *quorumNode {
	return w.nodes()[slices.IndexFunc(w.nodes(), func(n *quorumNode) bool { return !slices.Contains(not, n) })]
}

// await waits up to two minutes, in fake time.
func (w *quorumWorld) await(what string, cond func() bool) {
	w.t.Helper()
	for range 12_000 {
		if cond() {
			return
		}
		w.pass(10 * time.Millisecond)
	}
	w.t.Fatalf("never: %s", what)
}

// pass lets fake time go by.
func (w *quorumWorld) pass(d time.Duration) { time.Sleep(d) }

// ids returns who votes and who does not, as a broker's Raft configuration has it.
func (n *quorumNode) ids() (voters, others []BrokerID) {
	for _, server := range n.servers() {
		if server.Suffrage == raft.Voter {
			voters = append(voters, brokerOf(server.ID))
		} else {
			others = append(others, brokerOf(server.ID))
		}
	}
	slices.Sort(voters)
	slices.Sort(others)
	return voters, others
}

// voting waits until exactly those vote, by the configuration of the controller and of a majority of them: one that only the
// controller has yet is not committed, and without it the others still need the majority of the one before.
func (w *quorumWorld) voting(ids ...BrokerID) {
	w.t.Helper()
	w.await(fmt.Sprint("the voters are ", ids), func() bool {
		holders, controller := 0, false
		for _, n := range w.nodes() {
			voters, _ := n.ids()
			if !n.up.Load() || !slices.Equal(voters, ids) {
				continue
			}
			controller = controller || n.IsController()
			if slices.Contains(ids, n.cfg.NodeID) {
				holders++
			}
		}
		return controller && holders > len(ids)/2
	})
}

// configurations reads every Raft configuration that was ever in the log of a broker, which is closed.
func configurations(t *testing.T, n *quorumNode) (out []raft.Configuration) {
	t.Helper()
	db := closedLog(t, n.cfg)
	last, err := db.LastIndex()
	require.NoError(t, err)
	for i := uint64(1); i <= last; i++ {
		if l := readEntry(t, db, i); l.Type == raft.LogConfiguration {
			out = append(out, raft.DecodeConfiguration(l.Data))
		}
	}
	return out
}

// requireSteps makes sure that the quorum only ever changed by one server at a time, that a server entered as a non-voter,
// and that there never were more voters than size (M17, D2).
func requireSteps(t *testing.T, all []raft.Configuration, size int) {
	t.Helper()
	suffrage := func(c raft.Configuration) map[raft.ServerID]raft.Server {
		out := map[raft.ServerID]raft.Server{}
		for _, s := range c.Servers {
			out[s.ID] = s
		}
		return out
	}
	require.NotEmpty(t, all)
	for i, c := range all {
		voters := 0
		for _, s := range c.Servers {
			if s.Suffrage == raft.Voter {
				voters++
			}
		}
		require.LessOrEqual(t, voters, size, "configuration %d: %v", i, c.Servers)
		if i == 0 {
			continue
		}
		before, after := suffrage(all[i-1]), suffrage(c)
		changed := 0
		for id, s := range after {
			old, was := before[id]
			if !was {
				require.Equal(t, raft.Nonvoter, s.Suffrage, "%s entered as a voter: %v", id, c.Servers)
			}
			if !was || old != s {
				changed++
			}
		}
		for id := range before {
			if _, still := after[id]; !still {
				changed++
			}
		}
		require.LessOrEqual(t, changed, 1, "configuration %d: %v after %v", i, c.Servers, all[i-1].Servers)
	}
}
