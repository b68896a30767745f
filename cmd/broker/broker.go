package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
	"github.com/millrace/millrace/transport/console"
	"github.com/millrace/millrace/transport/kafka"
	"github.com/millrace/millrace/transport/peer"
)

// Broker is one broker, in this process. Make it with New, run it with Run; Ready waits until it serves.
type Broker struct {
	cfg      Config
	logger   *slog.Logger
	registry *prometheus.Registry

	nodeID      metadata.BrokerID
	incarnation [16]byte
	meta        *metaProperties // as found at start, nil in a fresh directory
	granted     formationState  // as found at start
	hasRaft     bool            // there was a metadata folder at start
	renews      *metaProperties // who this broker was, when it takes its own place anew; else nil
	forget      [16]byte        // its directory id then
	clusterID   string          // once known, "" for a cluster of one that is being made
	bootstrap   []proposed      // the voters, when this broker bootstraps a cluster of several
	entering    bool            // this broker joins a cluster that exists
	epoch       int64           // of its registration

	// The parts, set by the steps that open them, in their order.
	peers    *peer.Peers            // nil for a broker alone
	gossip   *membership.Membership // nil for a broker alone
	forming  *forming               // with gossip
	http     *console.Server
	httpAddr net.Addr
	dir      *log.Dir
	store    *metadata.Store
	bound    []transport.ListenerConfig
	replicas *replication.Manager
	groups   *group.Coordinator
	grouping sync.WaitGroup // the coordinator's Run
	lag      *lagReader

	// now is the clock by which the age of transactions is told; tests move it.
	now          func() time.Time
	producerIDs  *kafka.ProducerIDs
	transactions *txn.Coordinator
	transacting  sync.WaitGroup // the coordinator's Run, and the watch
	stopWatching context.CancelFunc

	handlers  *kafka.Handlers
	transport *transport.Server
	serving   chan error // the end of the transport's Run
	stopServe context.CancelFunc

	identity      atomic.Pointer[peer.Identity]  // who it says it is to other brokers
	metadataStore atomic.Pointer[metadata.Store] // for calls that may come before it is open
	member        atomic.Pointer[metadata.Store] // set once it is registered
	foreign       atomic.Pointer[foreignPeer]    // the last broker of another cluster that gossip met
	seen          chan struct{}                  // holds a token when gossip has changed

	life     context.Context // of the goroutines that act for a registered broker
	endLife  context.CancelFunc
	beating  sync.WaitGroup // heartbeats
	watching sync.WaitGroup // gossip

	// phase is what the broker is doing, for /readyz; "" when it serves.
	phase atomic.Pointer[string]

	ready chan struct{} // closed when it serves
	ended chan struct{} // closed when Run has returned

	mu struct {
		sync.Mutex
		running bool
		closed  bool
		cancel  context.CancelFunc
		failure error // the first reason to stop that is an error
		err     error // what Run returned
	}
}

// New checks the configuration and makes a broker. Nothing is opened before Run.
func New(cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		cfg:      cfg,
		logger:   cfg.Logger,
		registry: prometheus.NewRegistry(),
		now:      time.Now,
		ready:    make(chan struct{}),
		ended:    make(chan struct{}),
		seen:     make(chan struct{}, 1),
	}
	b.life, b.endLife = context.WithCancel(context.Background())
	if _, err := rand.Read(b.incarnation[:]); err != nil {
		return nil, fmt.Errorf("make an incarnation id: %w", err)
	}
	b.enter("starting")
	return b, nil
}

// ErrClosed is returned by Ready and Run of a broker that was closed.
var ErrClosed = errors.New("broker is closed")

// Run starts the broker, serves until ctx ends, Close is called or a part fails, and stops it. It returns nil after a
// stop that was asked for. A broker runs once.
func (b *Broker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.mu.Lock()
	if b.mu.running || b.mu.closed {
		b.mu.Unlock()
		return ErrClosed
	}
	b.mu.running, b.mu.cancel = true, cancel
	b.mu.Unlock()

	err := b.run(ctx)
	b.mu.Lock()
	b.mu.err = err
	b.mu.Unlock()
	close(b.ended)
	return err
}

// Close stops the broker and waits until Run has returned. It returns Run's error.
func (b *Broker) Close() error {
	b.mu.Lock()
	running := b.mu.running
	b.mu.closed = true
	if b.mu.cancel != nil {
		b.mu.cancel()
	}
	b.mu.Unlock()
	if !running {
		return nil
	}
	<-b.ended
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.err
}

// Ready waits until the broker answers clients. It returns Run's error when the broker ended before.
func (b *Broker) Ready(ctx context.Context) error {
	select {
	case <-b.ready:
	case <-b.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the broker (%s): %w", b.Phase(), ctx.Err())
	}
	select {
	case <-b.ended:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.mu.err != nil {
			return b.mu.err
		}
		return ErrClosed
	default:
		return nil
	}
}

// Addrs returns the bound address of each listener by its name, of the HTTP port under "HTTP", and, of a broker that can
// have others, of the listener for them under "CONTROLLER" and of gossip under "GOSSIP". It is complete once Ready.
func (b *Broker) Addrs() map[string]net.Addr {
	addrs := map[string]net.Addr{}
	for _, l := range b.bound {
		addrs[l.Name] = l.Listener.Addr()
	}
	if b.peers != nil {
		addrs[peer.ListenerName] = b.peers.Addr()
		addrs["GOSSIP"] = net.TCPAddrFromAddrPort(b.gossip.Self().Addr)
	}
	if b.httpAddr != nil {
		addrs["HTTP"] = b.httpAddr
	}
	return addrs
}

// Advertised returns the address that clients are told for the first listener, host:port.
func (b *Broker) Advertised() string {
	if b.transport == nil {
		return ""
	}
	l := b.transport.Listeners()[0]
	return net.JoinHostPort(l.AdvertisedHost(), fmt.Sprint(l.AdvertisedPort()))
}

// NodeID returns this broker's id, once Ready.
func (b *Broker) NodeID() metadata.BrokerID { return b.nodeID }

// ClusterID returns the cluster's id, once Ready.
func (b *Broker) ClusterID() string {
	if b.store == nil {
		return ""
	}
	return b.store.Image().ClusterID()
}

// Store and Replicas give tests and the console's endpoints access to the parts, once Ready.
func (b *Broker) Store() *metadata.Store         { return b.store }
func (b *Broker) Replicas() *replication.Manager { return b.replicas }

// Registry has the metrics of all parts.
func (b *Broker) Registry() *prometheus.Registry { return b.registry }

// RecoveryStats says what opening the log directory read, once Ready.
func (b *Broker) RecoveryStats() log.RecoveryStats { return b.dir.RecoveryStats() }

// Phase says what the broker is doing: "" when it serves.
func (b *Broker) Phase() string { return *b.phase.Load() }

func (b *Broker) enter(phase string) { b.phase.Store(&phase) }

// progress tells whoever waits for the start what it waits for.
func (b *Broker) progress(line string) {
	b.logger.Info("starting", "phase", line)
	if b.cfg.Progress != nil {
		b.cfg.Progress(line)
	}
}

// fail ends Run with an error; the first one counts. It is the failure hook of the parts, so it must not block.
func (b *Broker) fail(part string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.failure == nil {
		b.mu.failure = fmt.Errorf("%s failed: %w", part, err)
	}
	if b.mu.cancel != nil {
		b.mu.cancel()
	}
}

func (b *Broker) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.failure
}

// effective is the broker's configuration as topics inherit it: static, then the cluster's, then its own.
func (b *Broker) effective() map[string]string {
	layers := metadata.BrokerLayers{Static: b.cfg.Static}
	if b.store != nil {
		image := b.store.Image()
		layers.DynamicDefault, layers.Dynamic = image.BrokerConfig(metadata.NoBroker), image.BrokerConfig(b.nodeID)
	}
	return layers.Effective()
}

func (b *Broker) raftDir() string { return filepath.Join(b.cfg.MetadataDir, raftName) }

// closeGrace is how long the parts may take to close behind Config.StopTimeout, which requests under way have.
const closeGrace = 15 * time.Second

// stopGrace is how long a stop after a failure may take: the disk may hang, and the process should end.
const stopGrace = 5 * time.Second
