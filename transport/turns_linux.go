package transport

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// coldRead is how long a connection may fill its chunk before its turn goes to somebody else: its records come from a disk, and the core is
// free meanwhile.
const coldRead = 500 * time.Microsecond

// States of a turnWriter.
const (
	turnNone    int32 = iota
	turnHeld          // of the goroutine that writes
	turnFilling       // held, until cold takes it away
)

// turnWriter is a TCP connection that writes in turns between begin and end, and as usual otherwise. It belongs to the goroutine that writes
// to the connection. A turn holds from filling a chunk to writing it.
type turnWriter struct {
	net.Conn
	c     *Conn
	raw   syscall.RawConn
	state atomic.Int32
	bulk  atomic.Bool // between begin and end; TLS may write an alert on another goroutine
	cold  *time.Timer // takes the turn away while a chunk is filled

	waiter turnWaiter
	try    func(fd uintptr) bool
	p      []byte
	n      int
	err    error
}

// openTurns makes the connection's turnWriter, if it is a TCP connection and has none. Most never send a chunk.
func (c *Conn) openTurns() {
	if c.turns == nil && c.waits != nil {
		c.turns = &turnWriter{Conn: c.raw, c: c, raw: c.waits}
	}
}

// CloseWrite closes the sending side, as the method of a TCP connection of that name.
func (w *turnWriter) CloseWrite() error { return w.Conn.(*net.TCPConn).CloseWrite() }

// begin waits for a turn to fill and write a chunk.
func (w *turnWriter) begin() {
	if w == nil {
		return
	}
	if w.try == nil {
		w.waiter.ready = make(chan struct{}, 1)
		w.try = w.attempt
		w.cold = time.AfterFunc(time.Hour, func() {
			if w.state.CompareAndSwap(turnFilling, turnNone) {
				w.c.server.turns.give()
			}
		})
		w.cold.Stop()
	}
	w.bulk.Store(true)
	w.take()
	w.state.Store(turnFilling)
	w.cold.Reset(coldRead)
}

// filled says that the chunk is full, and will be written.
func (w *turnWriter) filled() {
	if w != nil {
		w.cold.Stop()
		w.state.CompareAndSwap(turnFilling, turnHeld)
	}
}

// end gives the turn back, if there is one.
func (w *turnWriter) end() {
	if w == nil {
		return
	}
	w.cold.Stop()
	w.bulk.Store(false)
	w.give()
}

// held reports whether there is a turn.
func (w *turnWriter) held() bool { return w.state.Load() != turnNone }

// take waits for a turn if there is none.
func (w *turnWriter) take() {
	if w.state.Load() == turnNone {
		w.c.server.turns.take(w.c.source, &w.waiter)
		w.state.Store(turnHeld)
	}
}

// give hands the turn on, if there is one.
func (w *turnWriter) give() {
	if w.state.Swap(turnNone) != turnNone {
		w.c.server.turns.give()
	}
}

// Write implements net.Conn.
func (w *turnWriter) Write(p []byte) (int, error) {
	if !w.bulk.Load() {
		return w.Conn.Write(p)
	}
	total := 0
	for len(p) > 0 {
		w.take()
		w.p, w.n, w.err = p, 0, nil
		err := w.raw.Write(w.try)
		w.p = nil
		if err == nil {
			err = w.err
		}
		total += w.n
		if p = p[w.n:]; err != nil {
			return total, &net.OpError{Op: "write", Net: "tcp", Source: w.LocalAddr(), Addr: w.RemoteAddr(), Err: err}
		}
	}
	return total, nil
}

// attempt writes once. If the socket is full it gives the turn back and waits; once there is room it returns, for another turn.
func (w *turnWriter) attempt(fd uintptr) bool {
	if !w.held() {
		return true
	}
	for {
		n, err := unix.Write(int(fd), w.p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			w.give()
			return false
		case err != nil:
			w.err = err
			return true
		}
		w.n = n
		return true
	}
}
