package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
	"github.com/millrace/millrace/transport/console"
	"github.com/millrace/millrace/transport/kafka"
	"github.com/millrace/millrace/transport/peer"
)

// step is one part's start and stop. A step whose start failed is not stopped: it cleans up after itself.
type step struct {
	phase string // what /readyz says meanwhile
	start func(ctx context.Context) error
	stop  func(ctx context.Context) error // nil: nothing to stop
}

// steps is the order in which a broker starts; it stops in the reverse.
func (b *Broker) steps() []step {
	return []step{
		{"opening the HTTP port", b.startHTTP, b.stopHTTP},
		{"reading the data directory", func(context.Context) error { return b.identify() }, nil},
		{"recovering logs", b.openDir, b.closeDir},
		{"opening the listener for other brokers", b.openPeers, b.closePeers},
		{"opening gossip", b.openGossip, b.closeGossip},
		{"looking for other brokers", b.form, nil},
		{"opening the metadata", b.openStore, b.closeStore},
		{"entering the metadata quorum", b.enterQuorum, nil},
		{"catching up with the metadata", b.catchUp, nil},
		{"opening listeners", b.bind, b.unbind},
		{"registering", b.register, nil},
		{"opening partitions", b.openReplicas, b.closeReplicas},
		{"opening the group coordinator", b.openGroups, b.closeGroups},
		{"opening the transaction coordinator", b.openTransactions, b.closeTransactions},
		{"making the request handlers", b.openHandlers, b.closeHandlers},
		{"opening the admin API", b.openAdmin, b.closeAdmin},
		{"serving", b.serve, b.stopServing},
		{"waiting for the controller", b.openSession, b.leaveSession},
	}
}

// run starts the steps, waits for the end, and stops what was started.
func (b *Broker) run(ctx context.Context) (err error) {
	began := time.Now()
	var started []step
	defer func() {
		b.enter("stopping")
		b.tellManager("STOPPING=1")
		stopErr := b.stop(started, err != nil)
		if err != nil && stopErr != nil {
			// What fails in a stop after a failure mostly repeats it; the first reason is the one to show.
			b.logger.Warn("stop after a failure", "error", stopErr)
			return
		}
		err = errors.Join(err, stopErr)
	}()
	if started, err = b.start(ctx, b.steps()); err != nil {
		return err
	}
	if ctx.Err() == nil {
		b.enter("")
		close(b.ready)
		b.tellManager("READY=1", "STATUS=serving "+b.Advertised())
		b.logger.Info("broker serves", "node", b.nodeID, "cluster", b.ClusterID(), "advertised", b.Advertised(), "took", time.Since(began).Round(time.Millisecond).String())
		select {
		case <-ctx.Done():
		case err := <-b.serving:
			b.serving <- nil // for stopServing
			if err != nil {
				b.fail("the request path", err)
			}
		}
	}
	return b.failure()
}

// start starts the steps in order, until one fails or a stop is asked for.
func (b *Broker) start(ctx context.Context, steps []step) (started []step, err error) {
	for _, s := range steps {
		if ctx.Err() != nil {
			break
		}
		b.enter(s.phase)
		if err := b.startStep(ctx, s); err != nil {
			if errors.Is(err, errStartHangs) {
				return started, errors.Join(b.failure(), err)
			}
			if ctx.Err() != nil && b.failure() == nil {
				// What the call that was cut off says, such as that another broker can't be reached, is not the reason.
				b.logger.Info("stopped while starting", "phase", s.phase, "error", err)
				return started, nil
			}
			return started, errors.Join(b.failure(), err)
		}
		started = append(started, s)
	}
	return started, nil
}

// errStartHangs is the error of a step that did not end when it was told to.
var errStartHangs = errors.New("it hangs")

// startStep starts a step. It waits for good only while nobody asks for a stop: what a step does with a disk that hangs can't be
// cut off, and who can't be stopped is killed (see stop). The step is left to itself then, for the moment the process has left.
func (b *Broker) startStep(ctx context.Context, s step) error {
	done := make(chan error, 1)
	go func() { done <- s.start(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	limit := b.cfg.StopTimeout + closeGrace
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		return fmt.Errorf("told to stop %s ago while %s: %w", limit, s.phase, errStartHangs)
	}
}

// stop stops the started steps in reverse. After a failure it does not wait long: the disk may be gone. Nor does it ever wait
// for good: a process that does not end when it is told to is killed by whoever told it, and nobody learns what it waited
// for. What was acknowledged is safe either way, the next start only takes longer.
func (b *Broker) stop(started []step, failed bool) error {
	limit, grace := b.cfg.StopTimeout, closeGrace
	if failed {
		limit, grace = min(limit, stopGrace), time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var at atomic.Pointer[string]
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, s := range slices.Backward(started) {
			if s.stop == nil {
				continue
			}
			at.Store(&s.phase)
			if err := s.stop(ctx); err != nil {
				errs = append(errs, fmt.Errorf("stop after %s: %w", s.phase, err))
			}
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(limit + grace):
	}
	phase := "starting"
	if p := at.Load(); p != nil {
		phase = *p
	}
	if !failed {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		b.logger.Error("a part does not stop", "after", phase, "waited", (limit + grace).String(), "goroutines", stacks.String())
	}
	return fmt.Errorf("parts did not stop in %s: stop after %s hangs", limit+grace, phase)
}

func (b *Broker) startHTTP(context.Context) error {
	b.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	listener := b.cfg.HTTP
	if listener == nil {
		if b.cfg.HTTPListener == "" {
			return nil
		}
		var err error
		if listener, err = net.Listen("tcp", b.cfg.HTTPListener); err != nil {
			return PortError("millrace.http.listener", b.cfg.HTTPListener, err)
		}
	}
	b.httpAddr = listener.Addr()
	b.http = console.New(console.Config{Live: b.live, Ready: b.readiness, Gatherer: b.registry, Logger: b.logger.With("part", "http")})
	b.http.Serve(listener)
	return nil
}

func (b *Broker) stopHTTP(ctx context.Context) error {
	if b.http == nil {
		return nil
	}
	return b.http.Shutdown(ctx)
}

func (b *Broker) openDir(context.Context) error {
	cfg := b.cfg.Log
	cfg.Logger = b.logger.With("part", "log")
	cfg.Registerer = b.registry
	cfg.Forget = b.forget
	cfg.OnFailure = func(err error) { b.fail("the log directory "+b.cfg.DataDir, err) }
	dir, err := log.OpenDir(b.cfg.DataDir, cfg)
	if err != nil {
		return b.openDirError(err)
	}
	if m := b.meta; m != nil && m.directoryID != "" && m.directoryID != directoryIDText(dir.ID()) {
		return errors.Join(dataError(
			fmt.Sprintf("the data directory %s is not the one that meta.properties was written for", b.cfg.DataDir),
			fmt.Sprintf("meta.properties has directory.id=%s, the records have %s", m.directoryID, directoryIDText(dir.ID())),
			"restore meta.properties and the records from the same backup"), dir.Close())
	}
	b.dir = dir
	if err := errors.Join(b.renew(), writePid(b.cfg.DataDir)); err != nil {
		return errors.Join(err, dir.Close())
	}
	return nil
}

func (b *Broker) closeDir(context.Context) error { return b.dir.Close() }

func (b *Broker) openStore(context.Context) error {
	cfg := b.cfg.Metadata
	cfg.Dir = b.raftDir()
	cfg.NodeID = b.nodeID
	cfg.DirectoryID = b.dir.ID()
	cfg.StaticConfig = b.cfg.Static
	// A cluster of several is bootstrapped by the broker whose proposal was decided on, and by nobody else (M18).
	cfg.Bootstrap = b.meta == nil && (!b.cfg.forms() || b.bootstrap != nil)
	cfg.ClusterID, cfg.Founded = b.clusterID, b.meta != nil
	if b.meta != nil {
		cfg.ClusterID = b.meta.clusterID
	}
	for _, m := range b.bootstrap {
		cfg.BootstrapServers = append(cfg.BootstrapServers, metadata.Server{ID: m.Node, Directory: m.Directory, Address: m.Address})
	}
	if b.peers != nil {
		cfg.Transport = metadata.NewTransport(b.peers.StreamLayer(), b.raftAddress, b.logger.With("part", "metadata"))
		cfg.Forwarder = b.peers
		cfg.Probe = b.peers.Probe
		cfg.Moved = b.moved
		cfg.Balance = true
		cfg.ReplicaBytes = b.replicaBytes
		cfg.LogEnds = b.logEnds
		cfg.Drain = b.drainOf
	}
	cfg.Logger = b.logger.With("part", "metadata")
	cfg.Registerer = b.registry
	cfg.OnFailure = func(err error) { b.fail("the metadata store "+cfg.Dir, err) }
	store, err := metadata.Open(cfg)
	switch {
	case errors.Is(err, metadata.ErrClusterMismatch):
		return fmt.Errorf("open the metadata: %w", err)
	case err != nil:
		return fmt.Errorf("open the metadata in %s: %w", cfg.Dir, err)
	}
	b.store = store
	b.metadataStore.Store(store)
	if b.peers != nil {
		b.peers.HandleForward(store.ServeForward)
	}
	return nil
}

func (b *Broker) closeStore(context.Context) error { return b.store.Close() }

// catchUp waits for the metadata, and keeps the identity once the cluster has its id.
func (b *Broker) catchUp(ctx context.Context) error {
	if err := b.awaitMetadata(ctx); err != nil {
		return err
	}
	id := b.store.Image().ClusterID()
	if b.meta != nil {
		if b.meta.clusterID != id {
			return dataError(fmt.Sprintf("data belongs to cluster %s, the metadata is of cluster %s", b.meta.clusterID, id),
				"meta.properties and raft in "+b.cfg.DataDir+" come from two clusters", "restore both from the same backup, or start with another --data")
		}
		return nil
	}
	b.clusterID = id
	if err := writeMeta(b.cfg.DataDir, metaProperties{clusterID: id, nodeID: b.nodeID, directoryID: directoryIDText(b.dir.ID())}); err != nil {
		return err
	}
	b.setIdentity(id, b.nodeID)
	b.tellFormed(id)
	return b.tellGossip()
}

// tellFormed says, to whoever waits for a new broker, what became of it.
func (b *Broker) tellFormed(cluster string) {
	if !b.cfg.forms() {
		return
	}
	if b.entering {
		b.progress(fmt.Sprintf("✔ joined cluster %s as broker %d", cluster, b.nodeID))
		return
	}
	var ids []string
	for _, m := range b.forming.state().Granted.Members {
		ids = append(ids, m.Node.String())
	}
	b.progress(fmt.Sprintf("✔ cluster %s formed by brokers %s, raft leader %d", cluster, strings.Join(ids, " "), b.store.Image().ControllerID()))
}

// awaitMetadata waits until the metadata is ready, and says what it waits for.
func (b *Broker) awaitMetadata(ctx context.Context) error {
	ready := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { ready <- b.store.Ready(ctx) }()
	tell := time.NewTicker(time.Second)
	defer tell.Stop()
	var told string
	for i := 0; ; i++ {
		select {
		case err := <-ready:
			if err != nil {
				return fmt.Errorf("wait for the metadata: %w", err)
			}
			return nil
		case <-tell.C:
			what := b.waitingForQuorum()
			b.enter(what)
			if what != told || i%int(progressEvery/time.Second) == 0 {
				b.progress(what)
				told = what
			}
			if b.meta != nil && b.gossip != nil && len(b.neighbours()) == 0 {
				if err := b.foreignError(); err != nil {
					return err
				}
			}
		}
	}
}

// waitingForQuorum says which voters are missing.
func (b *Broker) waitingForQuorum() string {
	q := b.store.Quorum()
	if b.gossip == nil || len(q.Voters) == 0 {
		return "waiting for the metadata quorum"
	}
	var missing []string
	neighbours := b.neighbours()
	for _, v := range q.Voters {
		present := v.ID == b.nodeID || slices.ContainsFunc(neighbours, func(n neighbour) bool { return n.directory == v.Directory })
		if !present {
			missing = append(missing, fmt.Sprintf("broker %d at %s", v.ID, v.Address))
		}
	}
	text := fmt.Sprintf("waiting for the metadata quorum: %d of %d voters seen", len(q.Voters)-len(missing), len(q.Voters))
	if len(missing) > 0 {
		text += " (missing " + strings.Join(missing, ", ") + ")"
	}
	return text
}

// bind opens the listeners. Connections wait in the kernel until serve.
func (b *Broker) bind(context.Context) error {
	for _, l := range b.cfg.Listeners {
		if l.Listener == nil {
			listener, err := net.Listen("tcp", l.Bind)
			if err != nil {
				return errors.Join(PortError("listener "+l.Name, l.Bind, err), b.unbind(context.Background()))
			}
			l.Listener = listener
		}
		if tcp, ok := l.Listener.Addr().(*net.TCPAddr); ok {
			if l.AdvertisedPort == 0 {
				l.AdvertisedPort = int32(tcp.Port)
			}
			if l.AdvertisedHost == "" {
				l.AdvertisedHost = advertisedHost(tcp.IP.String(), "")
			}
		}
		b.bound = append(b.bound, l)
	}
	return nil
}

func (b *Broker) unbind(context.Context) error {
	for _, l := range b.bound {
		if err := l.Listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("close listener %s: %w", l.Name, err)
		}
	}
	return nil
}

func (b *Broker) register(ctx context.Context) error {
	r := metadata.Registration{
		ID: b.nodeID, Incarnation: b.incarnation, Directories: []metadata.DirectoryID{b.dir.ID()}, Rack: b.cfg.Rack, Version: b.cfg.Version,
	}
	for _, l := range b.bound {
		r.Listeners = append(r.Listeners, metadata.Listener{Name: l.Name, Host: l.AdvertisedHost, Port: l.AdvertisedPort, Protocol: string(l.Protocol)})
	}
	if b.peers != nil {
		r.PeerAddress = b.peers.Advertised()
	}
	// Without a clean stop the page cache may be gone, and with it what was acknowledged without a sync (I12).
	r.TailsProven, r.ReplaceDead = b.dir.CleanStart() && b.dir.TailsProven(), b.cfg.Replace >= 0
	for {
		epoch, err := b.store.RegisterBroker(ctx, r)
		if err == nil {
			b.epoch = epoch
			b.member.Store(b.store)
			return b.tellGossip()
		}
		if !errors.Is(err, metadata.ErrNotController) && !errors.Is(err, metadata.ErrTimeout) || ctx.Err() != nil {
			return fmt.Errorf("register broker %d: %w", b.nodeID, err)
		}
		b.progress("waiting for the controller: " + oneLine(err.Error()))
	}
}

func (b *Broker) openReplicas(ctx context.Context) error {
	cfg := b.cfg.Replication
	cfg.BrokerID, cfg.Incarnation, cfg.Dir, cfg.Store = b.nodeID, b.incarnation, b.dir, b.store
	cfg.BrokerConfig = b.effective
	cfg.SessionTimeout = b.cfg.Metadata.SessionTimeout
	if b.peers != nil {
		cfg.Peers = b.peers
	}
	cfg.Logger = b.logger.With("part", "replication")
	cfg.Registerer = b.registry
	cfg.OnFailure = func(err error) { b.fail("replication", err) }
	replicas, err := replication.Open(cfg)
	if err != nil {
		return fmt.Errorf("open partitions: %w", err)
	}
	b.replicas = replicas
	if b.peers != nil {
		handle(b.peers, replicaBytesMethod, b.serveReplicaBytes)
		handle(b.peers, logEndsMethod, b.serveLogEnds)
		b.peers.Handle(drainMethod, func(ctx context.Context, from peer.From, body []byte) ([]byte, error) {
			var partitions []metadata.TopicPartition
			if err := json.Unmarshal(body, &partitions); err != nil {
				return nil, fmt.Errorf("%w: read a call of %s: %w", metadata.ErrInvalidRequest, drainMethod, err)
			}
			return nil, b.serveDrain(ctx, from, partitions)
		})
	}
	if err := replicas.Ready(ctx); err != nil {
		return errors.Join(fmt.Errorf("open partitions: %w", err), replicas.Close())
	}
	return nil
}

func (b *Broker) closeReplicas(ctx context.Context) error {
	err := b.replicas.Close()
	if b.failure() != nil && b.serving != nil {
		select {
		case <-b.serving:
		case <-ctx.Done():
		}
	}
	return err
}

func (b *Broker) openHandlers(context.Context) error {
	cfg := b.cfg.Kafka
	cfg.BrokerID, cfg.Store, cfg.Replicas, cfg.Static = b.nodeID, b.store, b.replicas, b.cfg.Static
	cfg.Groups, cfg.Transactions, cfg.ProducerIDs = b.groups, b.transactions, b.producerIDs
	cfg.Logger = b.logger.With("part", "kafka")
	cfg.Registerer = b.registry
	handlers, err := kafka.New(cfg)
	if err != nil {
		return fmt.Errorf("make the request handlers: %w", err)
	}
	b.handlers = handlers
	if b.peers != nil {
		b.peers.ServeReplicas(handlers.Replicas())
	}
	return nil
}

func (b *Broker) closeHandlers(context.Context) error { return b.handlers.Close() }

func (b *Broker) serve(context.Context) error {
	cfg := b.cfg.Transport
	cfg.Listeners = b.bound
	cfg.Logger = b.logger.With("part", "transport")
	cfg.Registerer = b.registry
	server, err := transport.New(cfg, b.handlers)
	if err != nil {
		return fmt.Errorf("serve the listeners: %w", err)
	}
	b.transport = server
	// The server's context is its own: a stop lets requests under way end first.
	ctx, cancel := context.WithCancel(context.Background())
	b.stopServe = cancel
	b.serving = make(chan error, 1)
	go func() { b.serving <- server.Run(ctx) }()
	return nil
}

func (b *Broker) stopServing(ctx context.Context) error {
	if b.failure() != nil {
		// Nothing can be acknowledged any more: there is nothing to wait for. Requests that wait for the disk end with
		// their partitions, in closeReplicas.
		b.stopServe()
		return nil
	}
	err := b.transport.Shutdown(ctx)
	b.stopServe()
	select {
	case <-b.serving:
	case <-time.After(stopGrace): // a handler that does not return, as err says
	}
	if errors.Is(err, context.DeadlineExceeded) {
		b.logger.Warn("requests were cut off, they did not end in time", "waited", b.cfg.StopTimeout.String())
		return nil
	}
	return err
}

// PortError explains why an address cannot be listened on.
func PortError(what, address string, err error) error {
	e := &metadata.Error{Kind: ErrAddress, What: fmt.Sprintf("%s: cannot listen on %s", what, address), Why: err.Error(), Fix: "name another address"}
	_, port, _ := net.SplitHostPort(address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Why = "port " + port + " is taken by " + portHolder(port)
		next := "another port"
		if n, err := strconv.Atoi(port); err == nil {
			next = fmt.Sprintf("another port, such as %d", n+1000)
		}
		e.Fix = "stop that process, or choose " + next
	case errors.Is(err, syscall.EACCES):
		e.Why = "this user may not open port " + port
		e.Fix = "choose a port above 1023"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Why = "this machine has no such address"
		e.Fix = "listen on every address (leave the host out) and set advertised.listeners"
	}
	return e
}

// PortTaken says whether err is that of listening where another process listens.
func PortTaken(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

// ErrAddress is matched by errors about an address that cannot be listened on.
var ErrAddress = errors.New("address cannot be used")
