package transport

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// Most connections of a broker rest most of the time: a group member's says something every three seconds, a producer's may say nothing for
// minutes. Handling a request leaves a goroutine with a stack of 8 KiB and more, which the garbage collector shrinks late or never; with
// the read buffer and a writer it would make 20 KiB for a connection that does nothing. So one that was silent for restAfter gives
// back its buffer, lets its writer end, and waits on a goroutine that calls nothing deep and stays at Go's smallest stack.

// restAfter is how long a connection must be silent to rest: a busy one pays for it with a deadline that fires in vain in each such time. One
// whose last request was longer ago when it woke up rests again as soon as it has answered, without any deadline.
const restAfter = 100 * time.Millisecond

// waitable returns how to wait for a connection's bytes without reading them; nil where that can't be done, and the connection never rests.
func waitable(conn net.Conn) syscall.RawConn {
	s, ok := conn.(*net.TCPConn)
	if !ok || !canWait {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// begin starts the connection's goroutine. A connection that has not said anything rests.
func (c *Conn) begin() {
	if c.waits == nil || c.armIdle(c.accepted) != nil {
		c.server.tasks.Go(func() { c.serve(nil) })
		return
	}
	c.rest()
	c.server.tasks.Go(c.await)
}

// rest gives away what waiting does not take. The caller is the reader, and must touch nothing of it after.
func (c *Conn) rest() {
	c.frames.putBuffer()
	c.mu.Lock()
	c.mu.rests = true
	c.work.Signal()
	c.mu.Unlock()
}

// await is the goroutine of a connection that can rest: it waits until something arrives or the read deadline passes, and has a servant serve
// that. What it calls must fit a stack of 2 KiB, which once grown would not shrink. Without a servant it serves on its own stack, and
// leaves the next wait to a new goroutine.
func (c *Conn) await() {
	for {
		err := c.waits.Read(readable)
		v := c.server.servants.take()
		if v == nil {
			c.awaitAnew(err)
			return
		}
		v.conn, v.waited = c, err
		rests, _ := v.next()
		c.server.servants.put(v)
		if !rests {
			return
		}
	}
}

//go:noinline
func (c *Conn) awaitAnew(waited error) {
	if c.serve(waited) {
		c.server.tasks.Go(c.await)
	}
	c.server.servants.hire()
}

// wake takes back what rest gave away.
func (c *Conn) wake() {
	c.frames.getBuffer(c)
	c.mu.Lock()
	c.mu.rests = false
	c.mu.Unlock()
}

// mayRest reports whether the connection can rest: it has no beginning of a request in its buffer. That TLS holds nothing back either follows
// from its having waited for the socket.
func (c *Conn) mayRest() bool { return c.waits != nil && c.frames.br.Buffered() == 0 }

// doze makes the connection ready to rest after a request, if no other one has been read with it.
func (c *Conn) doze() bool {
	if !c.mayRest() || c.armIdle(time.Now()) != nil {
		return false
	}
	c.flush() // answers held back for others to come
	return true
}

// readBuffers hold the buffers of connections that rest.
var readBuffers = sync.Pool{New: func() any { return newReadBuffer() }}

// getBuffer gives r a buffer.
func (r *frameReader) getBuffer(c *Conn) {
	if r.buffer == nil {
		r.buffer = readBuffers.Get().(*readBuffer)
		r.buffer.conn = c
		r.br = r.buffer.br
	}
}

// putBuffer gives the buffer back with all that is in it.
func (r *frameReader) putBuffer() {
	if b := r.buffer; b != nil {
		r.buffer, r.br = nil, nil
		b.conn = nil
		b.br.Reset(b)
		readBuffers.Put(b)
	}
}
