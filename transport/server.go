package transport

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// evictAfter is the age from which a connection that has sent no request may lose its place to a new one.
const evictAfter = time.Second

// abandonAfter is how long Shutdown and Close wait for handlers that don't return although their connections are dead.
const abandonAfter = 5 * time.Second

// Server accepts connections on its listeners and serves their requests.
type Server struct {
	cfg       Config
	handler   Handler
	limiter   RequestLimiter // the handler, if it is one
	watcher   ConnWatcher    // likewise
	logger    *slog.Logger
	listeners []*Listener
	metrics   *metrics
	chunks    chunks
	turns     *turns
	servants  servants
	hints     sizeHints
	noise     noise
	rate      *rate.Limiter
	started   time.Time
	nextID    atomic.Uint64

	ctx        context.Context // of all connections
	cancel     context.CancelCauseFunc
	acceptCtx  context.Context // of the acceptors
	stopAccept context.CancelFunc
	draining   chan struct{} // closed when Shutdown or Close begins
	done       chan struct{} // closed when all goroutines have ended
	tasks      sync.WaitGroup

	mu struct {
		sync.Mutex
		limits   Limits
		running  bool
		stopping bool // draining is closed
		conns    map[*Conn]*list.Element
		sources  map[netip.Addr]*source
		// forgetSources is how many sources there are before those that are quiet are forgotten.
		forgetSources int
		external      int // connections of listeners that aren't Internal
		// embryos are the external connections that have sent no request, oldest first; a connection's element
		// in it is in conns.
		embryos list.List
	}
}

// New binds the listeners. Clients can connect from here on, and wait in the backlog until Run.
func New(cfg Config, h Handler) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.FrameBudgetBytes == 0 {
		cfg.FrameBudgetBytes = min(64<<20, memoryLimit()/16)
	}
	s := &Server{
		cfg: cfg, handler: h, logger: cfg.Logger, started: time.Now(),
		draining: make(chan struct{}), done: make(chan struct{}),
		rate: newLimiter(cfg.Limits.MaxConnectionRate),
	}
	s.limiter, _ = h.(RequestLimiter)
	s.watcher, _ = h.(ConnWatcher)
	s.chunks.max = cfg.ResponseBudgetBytes / chunkBytes
	s.mu.limits = cfg.Limits
	s.mu.conns = map[*Conn]*list.Element{}
	s.mu.sources = map[netip.Addr]*source{}
	s.turns = newTurns()
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.acceptCtx, s.stopAccept = context.WithCancel(context.Background())

	clients, brokers := newBudget(cfg.FrameBudgetBytes), newBudget(cfg.FrameBudgetBytes/4)
	for i := range cfg.Listeners {
		l, err := listen(cfg.Listeners[i], cfg.Logger)
		if err != nil {
			s.closeListeners()
			return nil, err
		}
		if l.budget = clients; l.cfg.Internal {
			l.budget = brokers
		}
		l.metrics = &listenerMetrics{}
		s.listeners = append(s.listeners, l)
	}
	m, err := newMetrics(cfg.Registerer, s, clients, brokers)
	if err != nil {
		s.closeListeners()
		return nil, err
	}
	s.metrics = m
	return s, nil
}

// Listeners are the bound listeners in the order of the configuration.
func (s *Server) Listeners() []*Listener { return s.listeners }

// Run serves until Shutdown or Close is called, or until ctx ends, which closes everything at once. All goroutines have ended when it
// returns. The error is that of a listener that failed, else nil. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.mu.running || s.mu.stopping {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.mu.running = true
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		s.tasks.Go(func() { failed <- s.accept(l) })
		if l.tls != nil {
			s.tasks.Go(func() { l.tls.watch(s.draining) })
		}
	}
	s.mu.Unlock()
	defer close(s.done)
	defer s.metrics.unregister()
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.shut(context.Cause(ctx))
	})
	var first error
	for range s.listeners {
		if err := <-failed; err != nil && first == nil {
			first = err
			s.shut(err) // one listener short is not what was configured
		}
	}
	s.tasks.Wait()
	s.servants.end()
	if !cancel() {
		<-ended
	}
	return first
}

// Shutdown stops accepting and reading, lets requests in work be answered until ctx ends, and closes all connections. It returns when
// the goroutines of the server have ended: nil, or ctx's error when requests had to be given up.
func (s *Server) Shutdown(ctx context.Context) error {
	conns := s.stopServing()
	for _, c := range conns {
		c.stop()
	}
	if !s.wasRun() {
		s.shut(ErrServerClosed)
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.shut(ErrServerClosed)
	if err := s.await(); err != nil {
		return err
	}
	return fmt.Errorf("transport: requests given up at shutdown: %w", context.Cause(ctx))
}

// Close closes everything at once.
func (s *Server) Close() error {
	s.shut(ErrServerClosed)
	if !s.wasRun() {
		return nil
	}
	return s.await()
}

// await waits for the server's goroutines, whose connections are closed.
func (s *Server) await() error {
	t := time.NewTimer(abandonAfter)
	defer t.Stop()
	select {
	case <-s.done:
		return nil
	case <-t.C:
		return errors.New("transport: handlers still run though their connections are closed")
	}
}

// shut closes listeners and connections at once.
func (s *Server) shut(cause error) {
	conns := s.stopServing()
	s.cancel(cause)
	for _, c := range conns {
		c.kill(cause)
	}
}

// stopServing stops the acceptors and returns the connections there are; there will be no others.
func (s *Server) stopServing() []*Conn {
	s.stopAccept()
	s.closeListeners()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mu.stopping {
		s.mu.stopping = true
		close(s.draining)
	}
	conns := make([]*Conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

func (s *Server) closeListeners() {
	for _, l := range s.listeners {
		_ = l.net.Close()
	}
}

func (s *Server) wasRun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.running
}

// SetLimits replaces the connection limits. Connections beyond new limits stay.
func (s *Server) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.limits = l
	setLimiter(s.rate, l.MaxConnectionRate)
}

// ReloadTLS reads the certificates of all SSL listeners again, now. A listener whose files can't be used keeps what it has.
func (s *Server) ReloadTLS() error {
	var errs []error
	for _, l := range s.listeners {
		if l.tls != nil {
			errs = append(errs, l.tls.reload())
		}
	}
	return errors.Join(errs...)
}

// add counts a new connection, unless the limits refuse it. evicted is one that gives up its place: it is the caller's to kill.
func (s *Server) add(c *Conn) (evicted *Conn, refused rejection) {
	l := c.listener
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopping {
		return nil, rejectShutdown
	}
	limits := &s.mu.limits
	if l.cfg.MaxConnections > 0 && l.conns >= l.cfg.MaxConnections {
		if evicted = s.evictLocked(l); evicted == nil {
			return nil, rejectListener
		}
	}
	if l.cfg.Internal {
		s.mu.conns[c] = nil
		l.conns++
		s.metrics.connections.join(c)
		return evicted, ""
	}
	if c.ip.IsValid() {
		limit, ok := limits.PerIP[c.ip.String()]
		if !ok {
			limit = limits.MaxConnectionsPerIP
		}
		if from := s.mu.sources[c.ip]; limit > 0 && from != nil && from.conns >= limit {
			return evicted, rejectPerIP
		}
	}
	if limit := limits.MaxConnections; s.mu.external >= cmpOr(limit, defaultMaxConnections()) {
		if evicted == nil {
			evicted = s.evictLocked(nil)
		}
		if evicted == nil {
			return nil, rejectTotal
		}
	}
	s.mu.conns[c] = s.mu.embryos.PushBack(c)
	l.conns++
	s.mu.external++
	if c.ip.IsValid() {
		from := s.sourceLocked(c.ip, l.budget)
		from.conns++
		c.source, c.frames.source = from, from
	}
	s.metrics.connections.join(c)
	return evicted, ""
}

// cmpOr is a, or b when a is 0.
func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// evictLocked takes out the oldest connection, of l if that isn't nil, which has sent no request though it had time to: a flood of silent
// connections must not keep clients out for the ten seconds that each of them is given (N6).
func (s *Server) evictLocked(l *Listener) *Conn {
	for e := s.mu.embryos.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		if time.Since(c.accepted) < evictAfter {
			return nil
		}
		if l == nil || c.listener == l {
			s.removeLocked(c)
			return c
		}
	}
	return nil
}

// settled is called by a connection's reader after its first request.
func (s *Server) settled(c *Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.mu.conns[c]; e != nil {
		s.mu.embryos.Remove(e)
		s.mu.conns[c] = nil
	}
}

// forget is called once a connection is dead, and its context done.
func (s *Server) forget(c *Conn) {
	s.mu.Lock()
	s.removeLocked(c)
	s.mu.Unlock()
	if s.watcher != nil {
		s.watcher.Ended(c)
	}
}

func (s *Server) removeLocked(c *Conn) {
	e, ok := s.mu.conns[c]
	if !ok {
		return
	}
	if e != nil {
		s.mu.embryos.Remove(e)
	}
	delete(s.mu.conns, c)
	c.listener.conns--
	if c.listener.cfg.Internal {
		return
	}
	s.mu.external--
	if c.source != nil {
		c.source.conns--
	}
}
