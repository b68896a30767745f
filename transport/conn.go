package transport

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is a client's connection.
type Conn struct {
	id       uint64
	server   *Server
	listener *Listener
	raw      net.Conn        // the accepted connection
	net      net.Conn        // raw, or TLS over it
	gathers  bool            // net writes a list of buffers by one call
	waits    syscall.RawConn // of raw, where its bytes can be waited for; nil: the connection never rests
	// looksAhead says that the reader writes the answers held back before a read that waits (readBuffer), so that they may be
	// held back at all while the next request is on its way.
	looksAhead bool
	// lastLarge says that the last request did not fit the read buffer, which therefore can't tell whether another one follows. Of
	// the reader.
	lastLarge bool
	ip        netip.Addr
	source    *source     // nil: none. Set by Server.add
	turns     *turnWriter // of chunks, see turns; nil where they are not written in turns, and before the first chunk
	accepted  time.Time
	ctx       context.Context
	cancel    context.CancelCauseFunc

	authenticated atomic.Bool
	broker        atomic.Int32 // id of the broker at the other end and 1; 0: it is none
	muted         atomic.Bool  // mu.muteUntil is set
	lastActive    atomic.Int64 // when a request or an answer last went through, in ns since Server.started

	// Of the reader goroutine.
	frames      frameReader
	clientID    string    // of the last request: it is the same one each time
	armed       armed     // what the read deadline is
	lastRequest time.Time // when the last request had been read
	greeted     bool      // TLS has shaken hands, or there is none
	served      bool      // a first request was read
	recycles    bool      // the last request was recycled
	firstBefore time.Time // when the first request must have been read

	// Of the goroutine that flushes.
	gather      net.Buffers // encoded bytes to be written by the next call
	writing     net.Buffers // what is left of them during the call
	writeBefore time.Time   // the write deadline as set
	files       *fileSender // sends from files; nil: none was needed yet (triedFiles), or it can't be done
	triedFiles  bool

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

		unordered    bool // answers leave as they come
		writer       bool // the writer goroutine runs
		rests        bool // the connection rests: the writer ends when it has nothing to write
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
	c.waits = waitable(raw)
	c.greeted = l.tls == nil
	c.looksAhead = canLook && c.waits != nil && l.tls == nil
	if l.tls != nil {
		inner := raw
		if c.openTurns(); c.turns != nil {
			inner = c.turns
		}
		c.net = tls.Server(inner, l.tls.serverConfig())
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
	if len(l.cfg.Streams) > 0 {
		c.frames.stream = func(first byte) bool { return l.cfg.Streams[first] != nil }
	}
	c.frames.arrival.expire = c.expireRead
	c.firstBefore = c.accepted.Add(s.cfg.FirstRequestTimeout)
	c.touch(c.accepted)
	return c
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

// SetBroker says that the other end is the broker of that id, as it proved on an Internal listener (S5).
func (c *Conn) SetBroker(id int32) { c.broker.Store(id + 1) }

// Broker is the broker at the other end; ok is false for everyone else.
func (c *Conn) Broker() (id int32, ok bool) {
	n := c.broker.Load()
	return n - 1, n > 0
}

// SetUnordered lets the answers of this connection leave as they come, for a client that tells them apart by their correlation id: the
// brokers among themselves, where a call that waits for Raft must not hold up the next one. Clients of Kafka's protocol count on
// the order (N7).
func (c *Conn) SetUnordered() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.unordered = true
}

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
