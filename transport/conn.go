package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Reasons for which a connection ends, as causes of its context.
var (
	// ErrPeerClosed means that the client closed the connection.
	ErrPeerClosed = errors.New("transport: connection closed by the client")
	// ErrIdle means that there was no request for Config.IdleTimeout, or no first one for Config.FirstRequestTimeout.
	ErrIdle = errors.New("transport: connection closed for lack of requests")
	// ErrRejected means that the client sent something that can't be served.
	ErrRejected = errors.New("transport: request rejected")
	// ErrSlowReader means that the client did not take its answers.
	ErrSlowReader = errors.New("transport: client does not read its answers")
	// ErrServerClosed means that the server shuts down.
	ErrServerClosed = errors.New("transport: server closed")
)

// errStopReading ends a read that is no longer wanted: the connection drains.
var errStopReading = errors.New("connection is closing")

// lingerTime is how long the server reads on after its own end of a connection is closed, so that the kernel doesn't answer unread bytes
// with a reset that overtakes the last answers.
const lingerTime = time.Second

// Conn is a client's connection.
type Conn struct {
	id       uint64
	server   *Server
	listener *Listener
	raw      net.Conn // the accepted connection
	net      net.Conn // raw, or TLS over it
	gathers  bool     // net writes a list of buffers by one call
	// looksAhead says that the reader writes the answers held back before a read that waits (aheadReader), so that they may be
	// held back at all while the next request is on its way.
	looksAhead bool
	// lastLarge says that the last request did not fit the read buffer, which therefore can't tell whether another one follows. Of
	// the reader.
	lastLarge bool
	ip        netip.Addr
	accepted  time.Time
	ctx       context.Context
	cancel    context.CancelCauseFunc

	authenticated atomic.Bool
	muted         atomic.Bool  // mu.muteUntil is set
	lastActive    atomic.Int64 // when a request or an answer last went through, in ns since Server.started

	// Of the reader goroutine.
	frames      frameReader
	clientID    string    // of the last request: it is the same one each time
	armedIdle   bool      // the read deadline stands for IdleTimeout
	served      bool      // a first request was read
	firstBefore time.Time // when the first request must have been read

	// Of the goroutine that flushes.
	gather      net.Buffers // encoded bytes to be written by the next call
	writing     net.Buffers // what is left of them during the call
	writeBefore time.Time   // the write deadline as set

	mu struct {
		sync.Mutex
		// The slots of requests without an answer sent, in request order. A slot leaves at the head once it is settled.
		head, tail *Request
		pending    int
		// out is what is ready to be written, in order; flushing says that a goroutine is writing what it took from here.
		// Whoever finds flushing set leaves its answer in out, for the one who writes looks again.
		out      []item
		spare    []item // out's other array
		outBytes int    // encoded and not yet written, what the flusher took included
		held     int    // requests handled since out was written, the bound of what answers wait for
		flushing bool

		stopReading bool      // no further request is handled
		finished    bool      // all that is to be sent has been: the reader closes the connection
		dead        bool      // the socket is closed and the queue is empty for good
		closeReason string    // of a handler that closed the connection
		muteUntil   time.Time // the socket isn't read before that

		writer       bool // the writer goroutine was started
		readerWaits  bool // the reader waits for room
		softwareName string
		softwareVer  string
		counted      softwareLabel // what millrace_connections counts this connection as
		values       []connValue
	}
	room sync.Cond // of the reader: room in the queue, or an end
	work sync.Cond // of the writer: something in out, or an end
}

type connValue struct{ key, value any }

func newConn(s *Server, l *Listener, raw net.Conn, id uint64) *Conn {
	c := &Conn{id: id, server: s, listener: l, raw: raw, net: raw, ip: addrIP(raw.RemoteAddr()), accepted: time.Now()}
	_, c.gathers = raw.(*net.TCPConn)
	if l.tls != nil {
		c.net = tls.Server(raw, l.tls.serverConfig())
		c.gathers = false
	}
	c.ctx, c.cancel = context.WithCancelCause(s.ctx)
	c.authenticated.Store(!l.cfg.RequireAuth)
	c.room.L, c.work.L = &c.mu, &c.mu
	c.frames = frameReader{
		budget:     l.budget,
		arm:        c.armFrame,
		beforeWait: c.flush,
		waited:     func(d time.Duration) { c.firstBefore = c.firstBefore.Add(d) },
		max:        s.cfg.MaxRequestBytes,
		timeout:    s.cfg.FrameTimeout,
	}
	c.firstBefore = c.accepted.Add(s.cfg.FirstRequestTimeout)
	c.touch(c.accepted)
	return c
}

// countReader counts what is read.
type countReader struct {
	r io.Reader
	n *atomic.Int64
}

func (r countReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// ID is unique among the connections of a server; for logs.
func (c *Conn) ID() uint64 { return c.id }

// Listener is the listener the connection came in on: answers name its advertised address.
func (c *Conn) Listener() *Listener { return c.listener }

// RemoteAddr is the client's address.
func (c *Conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

// LocalAddr is the address the client connected to.
func (c *Conn) LocalAddr() net.Addr { return c.raw.LocalAddr() }

// Context ends when the connection dies; its cause is one of the errors above, or the handler's reason.
func (c *Conn) Context() context.Context { return c.ctx }

// TLS is the state of the TLS connection, with the client's certificates, or nil on a plain one.
func (c *Conn) TLS() *tls.ConnectionState {
	t, ok := c.net.(*tls.Conn)
	if !ok {
		return nil
	}
	state := t.ConnectionState()
	return &state
}

// SetSoftware records what the client said of itself in ApiVersions (KIP-511), for metrics and logs.
func (c *Conn) SetSoftware(name, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if name == c.mu.softwareName && version == c.mu.softwareVer {
		return
	}
	c.mu.softwareName, c.mu.softwareVer = name, version
	if !c.mu.dead {
		c.mu.counted = c.server.metrics.connections.move(c.listener.Name(), c.mu.counted, softwareLabel{name, version})
	}
}

// Software is what SetSoftware recorded; both empty before.
func (c *Conn) Software() (name, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.softwareName, c.mu.softwareVer
}

// SetAuthenticated lifts the cap on requests of a RequireAuth listener (S4).
func (c *Conn) SetAuthenticated() { c.authenticated.Store(true) }

// Authenticated reports whether SetAuthenticated was called, or wasn't needed.
func (c *Conn) Authenticated() bool { return c.authenticated.Load() }

// Value returns what SetValue stored under key, or nil.
func (c *Conn) Value(key any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.mu.values {
		if c.mu.values[i].key == key {
			return c.mu.values[i].value
		}
	}
	return nil
}

// SetValue keeps a value with the connection, such as a session. Keys are compared, as in package context; there should be few.
func (c *Conn) SetValue(key, value any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.mu.values {
		if c.mu.values[i].key == key {
			c.mu.values[i].value = value
			return
		}
	}
	c.mu.values = append(c.mu.values, connValue{key, value})
}

// log is the server's logger with the connection's ids: made when needed, since most connections never log.
func (c *Conn) log() *slog.Logger {
	name, version := c.Software()
	l := c.server.logger.With("listener", c.listener.Name(), "conn", c.id, "remote", addrString(c.raw.RemoteAddr()))
	if name != "" {
		l = l.With("software", name+" "+version)
	}
	return l
}

func (c *Conn) touch(now time.Time) { c.lastActive.Store(int64(now.Sub(c.server.started))) }

// serve is the reader goroutine.
func (c *Conn) serve() {
	var in io.Reader = countReader{c.net, &c.listener.metrics.bytesIn}
	if r := newAheadReader(c, &c.listener.metrics.bytesIn); r != nil {
		in, c.looksAhead = r, true
	}
	c.frames.br = bufio.NewReaderSize(in, readBufferBytes)
	err := c.handshake()
	for err == nil {
		err = c.serveOne()
	}
	c.flush() // what was asked for before the end, or before the request that can't be served, is answered
	switch {
	case errors.Is(err, errStopReading):
		err = ErrServerClosed
		if reason := c.closedFor(); reason != "" {
			c.reject(rejectHandler, "connection closed for what the client asked", "reason", reason)
			err = fmt.Errorf("transport: connection closed: %s", reason)
		}
		c.linger()
	case err == ErrIdle && c.served:
		c.linger()
	}
	c.kill(err)
}

// handshake does TLS's, within the time for the first request.
func (c *Conn) handshake() error {
	t, ok := c.net.(*tls.Conn)
	if !ok {
		return nil
	}
	if err := c.raw.SetDeadline(c.firstBefore); err != nil {
		return err
	}
	err := t.Handshake()
	if err == nil || c.interrupted(nil) != nil {
		return err
	}
	var notTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &notTLS) && notTLS.Conn != nil:
		c.reject(rejectPlaintextOnTLS, "client does not speak TLS, and this listener is SSL: set the client's security.protocol=SSL, or use a PLAINTEXT listener",
			"first_bytes", fmt.Sprintf("%q", notTLS.RecordHeader[:]))
		return ErrRejected
	case isTimeout(err):
		c.reject(rejectFirstRequest, "no TLS handshake in time")
		return ErrIdle
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrPeerClosed // port scanners and health checks
	}
	c.reject(rejectTLSHandshake, "TLS handshake failed", "err", err)
	return fmt.Errorf("%w: %w", ErrRejected, err)
}

// serveOne waits until a request may be read, reads it and has it handled. errStopReading means that everything has been sent and the
// connection is to be closed in order.
func (c *Conn) serveOne() error {
	if err := c.waitRoom(); err != nil {
		return err
	}
	if !c.armedIdle && !c.frames.buffered() {
		if err := c.armIdle(); err != nil {
			return c.interrupted(err)
		}
	}
	pre, err := c.frames.next()
	if err != nil {
		return c.readFailed(err)
	}
	if c.muted.Load() { // since the wait for this request began
		if err := c.waitRoom(); err != nil {
			return err
		}
	}
	if pre.size > maxHeldFrameBytes && c.looksAhead {
		c.flush() // the answers held back don't wait for a request that takes its time
	}
	flexible, err := c.admit(pre)
	if err != nil {
		return err
	}
	c.lastLarge = pre.size > readBufferBytes-prefixBytes
	f, err := c.frames.read(c.ctx, pre.size)
	if err != nil {
		return c.readFailed(err)
	}
	defer f.Release()
	h, err := parseHeader(f.Bytes(), flexible)
	if err != nil {
		c.reject(rejectHeader, "request header can't be parsed: connection closed", "err", err, "key", pre.key, "version", pre.version)
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	if string(h.clientID) != c.clientID {
		c.clientID = string(h.clientID)
	}
	if !c.served {
		c.served = true
		c.armedIdle = false
		c.server.settled(c)
	}
	c.handle(&Request{Key: h.key, Version: h.version, CorrelationID: h.correlationID, ClientID: c.clientID, Body: h.body, Frame: f, Conn: c, Received: time.Now()})
	return nil
}

// admit judges a request by its key, version and size, before memory is taken for it.
func (c *Conn) admit(pre preamble) (flexible bool, err error) {
	flexible, ok := c.server.handler.Accept(pre.key, pre.version)
	if !ok {
		c.reject(rejectVersion, "request of a key or version that isn't served: connection closed", "key", pre.key, "version", pre.version)
		return false, fmt.Errorf("%w: key %d version %d isn't served", ErrRejected, pre.key, pre.version)
	}
	limit := c.server.cfg.MaxRequestBytes
	if c.server.limiter != nil {
		if n := c.server.limiter.MaxRequestBytes(pre.key, pre.version); n > 0 {
			limit = min(limit, n)
		}
	}
	if !c.authenticated.Load() {
		limit = min(limit, c.server.cfg.MaxRequestBytesBeforeAuth)
	}
	if pre.size > limit {
		c.reject(rejectSize, "request is too large: connection closed", "bytes", pre.size, "limit", limit, "key", pre.key, "version", pre.version)
		return false, fmt.Errorf("%w: %d bytes, the limit is %d", ErrRejected, pre.size, limit)
	}
	return flexible, nil
}

// handle queues the request's slot, calls the handler, and sends what is ready.
func (c *Conn) handle(r *Request) {
	c.touch(r.Received)
	if !c.enqueue(r) {
		return
	}
	if c.guard("Handle", func() { c.server.handler.Handle(r) }) {
		c.handled(r)
	}
}

// readFailed finds out what an error of reading means: nil to go on.
func (c *Conn) readFailed(err error) error {
	switch {
	case c.interrupted(nil) != nil:
		return nil // waitRoom sees what happened
	case errors.Is(err, errFrameTimeout):
		if !c.served {
			c.reject(rejectFirstRequest, "no request in time")
			return ErrIdle
		}
		c.reject(rejectFrameTimeout, "request not received in time: connection closed")
		return fmt.Errorf("%w: %w", ErrRejected, err)
	case isTimeout(err):
		return c.idleFired()
	case errors.Is(err, errTLSOnPlaintext):
		c.reject(rejectTLSOnPlaintext, "client speaks TLS, and this listener is PLAINTEXT: set the client's security.protocol=PLAINTEXT, or use an SSL listener")
		return fmt.Errorf("%w: %w", ErrRejected, err)
	case errors.Is(err, errHTTP):
		c.reject(rejectHTTP, "client speaks HTTP, and this is a Kafka listener: use the HTTP port (millrace.http.listener)")
		return fmt.Errorf("%w: %w", ErrRejected, err)
	case errors.Is(err, errFrameSize):
		c.reject(rejectSize, "impossible request size: connection closed", "err", err)
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return fmt.Errorf("%w: %w", ErrPeerClosed, err)
}

// interrupted returns err, or nil if the error is only that reading shall stop, which waitRoom sorts out; with nil it reports whether
// reading shall stop.
func (c *Conn) interrupted(err error) error {
	c.mu.Lock()
	stop := c.mu.stopReading || c.mu.dead
	c.mu.Unlock()
	switch {
	case stop && err == nil:
		return errStopReading
	case stop:
		return nil
	}
	return err
}

// armIdle sets the read deadline for the wait for a request: when the connection will have been idle for too long. It stays where it
// is while requests pass, and idleFired moves it on, so that the usual request costs no timer.
func (c *Conn) armIdle() error {
	t := c.firstBefore
	if c.served {
		t = c.server.started.Add(time.Duration(c.lastActive.Load())).Add(c.server.cfg.IdleTimeout)
		if now := time.Now(); !t.After(now) {
			t = now.Add(c.server.cfg.IdleTimeout) // a request is parked for longer than that
		}
	}
	c.armedIdle = true
	return c.setReadDeadline(t)
}

// idleFired decides when the idle deadline has passed: nil to wait on.
func (c *Conn) idleFired() error {
	if !c.served {
		c.reject(rejectFirstRequest, "no request in time")
		return ErrIdle
	}
	c.mu.Lock()
	busy := c.mu.pending > 0 || len(c.mu.out) > 0 || c.mu.flushing
	c.mu.Unlock()
	idle := time.Since(c.server.started) - time.Duration(c.lastActive.Load())
	if !busy && idle >= c.server.cfg.IdleTimeout {
		return ErrIdle
	}
	c.armedIdle = false
	return nil
}

// armFrame sets the read deadline within a frame.
func (c *Conn) armFrame(t time.Time) error {
	if !c.served && c.firstBefore.Before(t) {
		t = c.firstBefore
	}
	c.armedIdle = false
	return c.setReadDeadline(t)
}

// setReadDeadline sets the deadline, unless reading shall stop: then the deadline in the past that stopped it must stay. The order of
// setting and looking is the reverse of stop's, so that one of the two sees the other.
func (c *Conn) setReadDeadline(t time.Time) error {
	if err := c.net.SetReadDeadline(t); err != nil {
		return err
	}
	return c.interrupted(nil)
}

// reject counts a connection that is closed for what its client did, and logs it unless there were many lately.
func (c *Conn) reject(r rejection, message string, attrs ...any) {
	c.listener.metrics.rejected(r)
	if suppressed, ok := c.server.noise.allow(r); ok {
		if suppressed > 0 {
			attrs = append(attrs, "suppressed", suppressed)
		}
		c.log().Warn(message, attrs...)
	}
}

// closedFor is the reason of a handler that closed the connection, or "".
func (c *Conn) closedFor() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.closeReason
}

// linger closes the server's end, TLS's with its own goodbye, and reads until the client has closed its end, or for a second.
func (c *Conn) linger() {
	for _, end := range [...]net.Conn{c.net, c.raw} {
		w, ok := end.(interface{ CloseWrite() error })
		if !ok || w.CloseWrite() != nil && end == c.raw {
			return
		}
	}
	if c.raw.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	var sink [512]byte
	for n := 0; n < 16<<20; {
		m, err := c.raw.Read(sink[:])
		if err != nil {
			break
		}
		n += m
	}
}

// kill ends the connection at once: whatever wasn't sent is dropped.
func (c *Conn) kill(cause error) {
	c.mu.Lock()
	if c.mu.dead {
		c.mu.Unlock()
		return
	}
	c.mu.dead = true
	out := c.mu.out
	for r := c.mu.head; r != nil; r = r.slot.next {
		if r.slot.state == slotSettled { // the others are dropped when they are answered
			out = append(out, item{req: r})
		}
	}
	c.mu.head, c.mu.tail, c.mu.pending = nil, nil, 0
	c.mu.out, c.mu.spare = nil, nil
	counted := c.mu.counted
	c.room.Broadcast()
	c.work.Broadcast()
	c.mu.Unlock()

	if cause == nil {
		cause = ErrPeerClosed
	}
	c.cancel(cause)
	_ = c.raw.Close()
	for i := range out {
		out[i].drop()
	}
	c.server.metrics.connections.leave(c.listener.Name(), counted)
	c.server.forget(c)
	c.server.logger.Debug("connection closed", "listener", c.listener.Name(), "conn", c.id, "cause", cause)
}

// stop ends reading: the reader closes the connection once the requests in work have been answered.
func (c *Conn) stop() {
	c.mu.Lock()
	c.mu.stopReading = true
	c.room.Broadcast()
	c.mu.Unlock()
	_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // wakes the reader from its read
}
