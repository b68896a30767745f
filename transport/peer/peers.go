package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// Peers is this broker's listener for the other brokers and its connections to them. It implements
// metadata.Forwarder and replication.Peers.
type Peers struct {
	cfg        Config
	logger     *slog.Logger
	advertised string
	tls        *transport.ClientTLS // nil: plain
	server     *transport.Server
	raft       *streamLayer
	metrics    *metrics
	refusals   refusals

	receivers sync.Map // method → receiver
	replicas  atomic.Pointer[transport.Handler]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu struct {
		sync.Mutex
		closed   bool
		calls    map[string]*callTarget // by address
		fetchers map[*fetcher]struct{}
		streams  map[net.Conn]struct{} // accepted for Raft, in their hello
	}
}

// New binds the listener and begins to serve it: hellos, calls whose receivers are registered, and Raft streams, which
// wait for StreamLayer().Accept. Close ends it.
func New(cfg Config) (*Peers, error) {
	if cfg.Dial == nil {
		d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}}
		cfg.Dial = d.DialContext
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	p := &Peers{cfg: cfg, logger: cfg.Logger, metrics: newMetrics()}
	p.mu.calls = map[string]*callTarget{}
	p.mu.fetchers = map[*fetcher]struct{}{}
	p.mu.streams = map[net.Conn]struct{}{}
	p.ctx, p.cancel = context.WithCancel(context.Background())

	listener := transport.ListenerConfig{
		Name: cfg.Name, Protocol: transport.Plaintext, Bind: cfg.Bind, Listener: cfg.Listener, Internal: true, RequireAuth: true,
		Streams: map[byte]func(net.Conn){raftByte: p.acceptRaft},
	}
	if cfg.TLS != nil {
		files := cfg.TLS.files()
		client, err := transport.NewClientTLS(cfg.Name, files, cfg.Logger)
		if err != nil {
			return nil, fmt.Errorf("peer: %w", err)
		}
		p.tls = client
		listener.Protocol, listener.TLS = transport.SSL, &files
	}
	tc := transport.Default()
	tc.Listeners = []transport.ListenerConfig{listener}
	tc.Logger = cfg.Logger
	tc.Registerer = cfg.Registerer
	tc.WriteTimeout = cfg.WriteTimeout
	tc.MaxRequestBytesBeforeAuth = maxHelloBytes
	server, err := transport.New(tc, &handler{p})
	if err != nil {
		return nil, err
	}
	if err := p.metrics.register(cfg.Registerer, server); err != nil {
		_ = server.Close()
		return nil, err
	}
	p.server = server
	bound := server.Listeners()[0]
	if p.advertised = cfg.Advertised; p.advertised == "" {
		p.advertised = bound.Addr().String()
	}
	p.raft = newStreamLayer(p)
	p.tasks.Go(func() {
		if err := server.Run(context.Background()); err != nil {
			p.logger.Error("the listener for other brokers failed", "listener", cfg.Name, "err", err)
		}
	})
	p.tasks.Go(p.watchCalls)
	return p, nil
}

// Addr is the bound address.
func (p *Peers) Addr() net.Addr { return p.server.Listeners()[0].Addr() }

// Advertised is the address under which other brokers reach this one.
func (p *Peers) Advertised() string { return p.advertised }

// ServeReplicas lets h answer the fetches of followers and what else they ask of their leaders; before it they are told
// to come back. h sees only connections whose other end has proved to be a broker (transport.Conn.Broker).
func (p *Peers) ServeReplicas(h transport.Handler) { p.replicas.Store(&h) }

// OpenFetcher implements replication.Peers.
func (p *Peers) OpenFetcher(broker metadata.BrokerID) replication.Fetcher {
	return newFetcher(p, broker)
}

// ReloadTLS reads the certificates again, now, for connections in both directions.
func (p *Peers) ReloadTLS() error {
	err := p.server.ReloadTLS()
	if p.tls != nil {
		err = errors.Join(err, p.tls.Reload())
	}
	return err
}

// Close stops listening and ends all connections, those of Raft included. Calls that are being served may end until ctx does.
func (p *Peers) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil
	}
	p.mu.closed = true
	targets, fetchers := p.mu.calls, p.mu.fetchers
	p.mu.calls, p.mu.fetchers = nil, nil
	for conn := range p.mu.streams {
		_ = conn.Close()
	}
	p.mu.Unlock()

	p.cancel()
	_ = p.raft.Close()
	for f := range fetchers {
		f.Close()
	}
	for _, t := range targets {
		t.close()
	}
	err := p.server.Shutdown(ctx)
	p.tasks.Wait()
	p.metrics.unregister(p.cfg.Registerer)
	return err
}

// broken passes on the hint that a broker may be dead, unless we are the ones who stop.
func (p *Peers) broken(id Identity, reason error) {
	if p.cfg.Broken == nil || id.Node < 0 || p.ctx.Err() != nil {
		return
	}
	p.metrics.broken.Add(1)
	p.cfg.Broken(id.Node, id.Incarnation, reason.Error())
}
