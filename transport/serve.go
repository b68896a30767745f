package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// serve is the reader goroutine, from the first bytes or from those that woke the connection up, until it rests or ends. waited is what came of
// waiting for them, a deadline that passed for example.
func (c *Conn) serve(waited error) (rests bool) {
	c.wake()
	err := c.handshake()
	if err == nil && waited != nil {
		err = c.readFailed(waited)
	}
	seldom := c.served && time.Since(c.lastRequest) >= restAfter
	for err == nil {
		if err = c.serveOne(); err == nil && seldom && c.doze() {
			err = errRest
		}
	}
	switch {
	case err == errRest:
		c.rest()
		return true
	case errors.Is(err, errStream):
		c.handOver()
		return false
	}
	c.flush() // what was asked for before the end, or before the request that can't be served, is answered
	switch {
	case errors.Is(err, errStopReading):
		err = ErrServerClosed
		if reason := c.closedFor(); reason != "" {
			if c.listener.cfg.Internal { // its handler says so itself, to both ends
				c.listener.metrics.rejected(rejectHandler)
				c.log().Debug("connection closed for what the broker asked", "reason", reason)
			} else {
				c.reject(rejectHandler, "connection closed for what the client asked", "reason", reason)
			}
			err = fmt.Errorf("transport: connection closed: %s", reason)
		}
		c.linger()
	case err == ErrIdle && c.served:
		c.linger()
	case errors.Is(err, ErrRejected):
		c.delayClose()
	}
	c.kill(err)
	c.frames.putBuffer()
	return false
}

// delayClose keeps a rejected connection open for a while if its source had many of late.
func (c *Conn) delayClose() {
	d := c.source.closeDelay()
	if d <= 0 {
		return
	}
	c.frames.putBuffer() // it is not needed meanwhile
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	case <-c.server.draining:
	}
}

// handshake does TLS's once, within the time for the first request.
func (c *Conn) handshake() error {
	if c.greeted {
		return nil
	}
	t := c.net.(*tls.Conn)
	if err := c.raw.SetDeadline(c.firstBefore); err != nil {
		return err
	}
	if c.stopping() { // after the deadline, see setReadDeadline
		return errStopReading
	}
	err := t.Handshake()
	if c.greeted = err == nil; c.greeted || c.stopping() {
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
	if cert := RefusedCertificate(err); cert != "" {
		c.reject(rejectTLSHandshake, "TLS handshake failed: the client's certificate is not trusted here", "certificate", cert, "err", err)
	} else {
		c.reject(rejectTLSHandshake, "TLS handshake failed", "err", err)
	}
	return fmt.Errorf("%w: %w", ErrRejected, err)
}

// serveOne waits until a request may be read, reads it and has it handled. errStopReading means that everything has been sent and the
// connection is to be closed in order.
func (c *Conn) serveOne() error {
	if err := c.waitRoom(); err != nil {
		return err
	}
	if c.armed != armedRest && !c.frames.buffered() {
		if err := c.armRest(); err != nil {
			return c.readFailed(err)
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
		c.clientID = clientIDText(string(h.clientID))
	}
	if !c.served {
		c.served = true
		c.armed = armedOther // no longer the first request's
		c.server.settled(c)
	}
	r := c.newRequest()
	*r = Request{Key: h.key, Version: h.version, CorrelationID: h.correlationID, ClientID: c.clientID, Body: h.body, Frame: f, Conn: c, Received: time.Now()}
	c.handle(r)
	return nil
}

// newRequest returns the memory of a request: of a recycled one if the connection's last one was recycled, for to look for one costs
// something.
func (c *Conn) newRequest() *Request {
	if c.recycles {
		return requests.Get().(*Request)
	}
	return new(Request)
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
	c.lastRequest = r.Received
	if !c.enqueue(r) {
		return
	}
	if c.guard("Handle", func() { c.server.handler.Handle(r) }) {
		c.handled(r)
	}
}

// readFailed finds out what an error of reading means: nil to go on, errRest to rest.
func (c *Conn) readFailed(err error) error {
	switch {
	case c.stopping():
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
	case errors.Is(err, errStream):
		return err
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

// stopping reports whether no more requests are to be read: waitRoom sorts out why.
func (c *Conn) stopping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stopReading || c.mu.dead
}

// armed is what a connection's read deadline is.
type armed uint8

const (
	armedOther armed = iota // within a request, or one that passed
	armedRest               // of the wait for a request: the connection may rest, or was idle for too long
	armedIdle               // of a connection that rests: it was idle for too long
)

// armRest sets the read deadline for the wait for a request. It stays where it is while requests pass, and idleFired moves it on, so that
// the usual request costs no timer.
func (c *Conn) armRest() error {
	now := time.Now()
	t := c.idleUntil(now)
	if rest := now.Add(restAfter); c.waits != nil && rest.Before(t) {
		t = rest
	}
	c.armed = armedRest
	return c.setReadDeadline(t)
}

// armIdle sets the read deadline of a connection that is to rest, unless it is set.
func (c *Conn) armIdle(now time.Time) error {
	if c.armed == armedIdle {
		return nil
	}
	c.armed = armedIdle
	return c.setReadDeadline(c.idleUntil(now))
}

// idleUntil is when the connection will have been idle for too long.
func (c *Conn) idleUntil(now time.Time) time.Time {
	if !c.served {
		return c.firstBefore
	}
	t := c.server.started.Add(time.Duration(c.lastActive.Load())).Add(c.server.cfg.IdleTimeout)
	if !t.After(now) {
		t = now.Add(c.server.cfg.IdleTimeout) // a request is parked for longer than that
	}
	return t
}

// idleFired decides when the deadline of armRest or of armIdle has passed: nil to wait on, errRest to rest until the latter.
func (c *Conn) idleFired() error {
	now := time.Now()
	c.mu.Lock()
	busy := c.mu.pending > 0 || len(c.mu.out) > 0 || c.mu.flushing
	c.mu.Unlock()
	idle := now.Sub(c.server.started) - time.Duration(c.lastActive.Load())
	switch {
	case !c.served && !now.Before(c.firstBefore):
		c.reject(rejectFirstRequest, "no request in time")
		return ErrIdle
	case c.served && !busy && idle >= c.server.cfg.IdleTimeout:
		return ErrIdle
	}
	c.armed = armedOther
	if idle < restAfter || !c.mayRest() || c.armIdle(now) != nil {
		return nil
	}
	return errRest
}

// armFrame sets the read deadline within a frame.
func (c *Conn) armFrame(t time.Time) error {
	if !c.served && c.firstBefore.Before(t) {
		t = c.firstBefore
	}
	c.armed = armedOther
	return c.setReadDeadline(t)
}

// expireRead moves the deadline of a read under way, from any goroutine.
func (c *Conn) expireRead(t time.Time) {
	_ = c.net.SetReadDeadline(t) // fails on a closed connection only
	if c.stopping() {
		_ = c.net.SetReadDeadline(time.Unix(1, 0)) // see stop
	}
}

// setReadDeadline sets the deadline, unless reading shall stop: then the deadline in the past that stopped it must stay. The order of
// setting and looking is the reverse of stop's, so that one of the two sees the other.
func (c *Conn) setReadDeadline(t time.Time) error {
	if err := c.net.SetReadDeadline(t); err != nil {
		return err
	}
	if c.stopping() {
		return errStopReading
	}
	return nil
}
