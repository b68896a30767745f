package transport

import (
	"bytes"
	"errors"
	"net"
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

// errRest ends reading until something arrives: the connection is not closed.
var errRest = errors.New("connection rests")

// errStopReading ends a read that is no longer wanted: the connection drains.
var errStopReading = errors.New("connection is closing")

// lingerTime is how long the server reads on after its own end of a connection is closed, so that the kernel doesn't answer unread bytes
// with a reset that overtakes the last answers.
const lingerTime = time.Second

// reject counts a connection that is closed for what its client did, and logs it unless there were many lately.
func (c *Conn) reject(r rejection, message string, attrs ...any) {
	c.listener.metrics.rejected(r)
	suppressed, ok := 0, false
	if c.listener.Internal() {
		host, _, _ := net.SplitHostPort(c.raw.RemoteAddr().String()) // "" for what has no port
		suppressed, ok = c.server.noise.allowHost(r, host)
	} else {
		suppressed, ok = c.server.noise.allow(r)
	}
	if ok {
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

// handOver takes the connection out of the server and gives it to the listener's function for its protocol.
func (c *Conn) handOver() {
	first, err := c.frames.br.Peek(1)
	if err != nil {
		c.kill(err)
		return
	}
	take := c.listener.cfg.Streams[first[0]]
	head, _ := c.frames.br.Peek(c.frames.br.Buffered())
	c.mu.Lock()
	if c.mu.dead {
		c.mu.Unlock()
		return
	}
	c.mu.dead = true // from here on nobody here closes the socket
	counted := c.mu.counted
	c.mu.Unlock()
	c.cancel(errStream)
	c.server.metrics.connections.leave(c.listener.Name(), counted)
	c.server.forget(c)
	if c.net.SetDeadline(time.Time{}) != nil {
		_ = c.raw.Close()
		return
	}
	take(&stream{Conn: c.net, head: bytes.Clone(head)})
}

// stream is a connection that was handed over, with what had been read of it.
type stream struct {
	net.Conn
	head []byte
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(s.head) == 0 {
		return s.Conn.Read(p)
	}
	n := copy(p, s.head)
	if s.head = s.head[n:]; len(s.head) == 0 {
		s.head = nil
	}
	return n, nil
}

// stop ends reading: the reader closes the connection once the requests in work have been answered.
func (c *Conn) stop() {
	c.mu.Lock()
	c.mu.stopReading = true
	c.room.Broadcast()
	c.mu.Unlock()
	_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // wakes the reader from its read
}
