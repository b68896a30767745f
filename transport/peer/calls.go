package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
)

// maxOpenCalls bounds the calls of one connection that wait for their answer, below the server's own bound of requests
// in work, so that a ping is always read. Further ones wait for a place.
const maxOpenCalls = 100

// Forward implements metadata.Forwarder. Errors of the other end keep their sentinels. An error of the way there is a
// metadata.ErrNotSent when nothing was sent, and a metadata.ErrTimeout when the outcome is open.
func (p *Peers) Forward(ctx context.Context, controller metadata.BrokerID, address, method string, body []byte) ([]byte, error) {
	if address == "" {
		address = p.cfg.Address(controller)
	}
	if address == "" {
		return nil, fmt.Errorf("forward %s to broker %d: %w: its address is not known", method, controller, ErrUnreachable)
	}
	out, err := p.call(ctx, address, &controller, forwardPrefix+method, body)
	if err != nil {
		return nil, fmt.Errorf("forward %s to broker %d: %w", method, controller, err)
	}
	return out, nil
}

// trimForward returns the method of a forwarded operation.
func trimForward(method string) (string, bool) { return strings.CutPrefix(method, forwardPrefix) }

// Call calls a method of whichever process listens at the address, and returns what its receiver answered. All calls to
// one address share a connection. ErrUnreachable and ErrTooLarge say that nothing was sent, ErrBroken that the outcome
// is open; other errors are the receiver's.
func (p *Peers) Call(ctx context.Context, address, method string, body []byte) ([]byte, error) {
	out, err := p.call(ctx, address, nil, method, body)
	if err != nil {
		return nil, fmt.Errorf("call %s of %s: %w", method, address, err)
	}
	return out, nil
}

func (p *Peers) call(ctx context.Context, address string, want *metadata.BrokerID, method string, body []byte) ([]byte, error) {
	if len(body) > p.cfg.MaxBodyBytes || len(method) > maxMethod {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(body), p.cfg.MaxBodyBytes)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.cfg.CallTimeout)
		defer cancel()
	}
	p.metrics.calls.Add(1)
	began := time.Now()
	c, err := p.callConn(ctx, address, want)
	if err != nil {
		return nil, err
	}
	out, err := c.call(ctx, method, body)
	p.metrics.callTime.Observe(time.Since(began).Seconds())
	return out, err
}

// callTarget is the shared connection to one address, or its absence.
type callTarget struct {
	p       *Peers
	address string
	backoff backoff
	dialing chan struct{} // a token: holds it who dials

	mu struct {
		sync.Mutex
		conn *callConn
	}
}

func (p *Peers) callConn(ctx context.Context, address string, want *metadata.BrokerID) (*callConn, error) {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, ErrClosed)
	}
	t := p.mu.calls[address]
	if t == nil {
		t = &callTarget{p: p, address: address, dialing: make(chan struct{}, 1)}
		p.mu.calls[address] = t
	}
	p.mu.Unlock()
	return t.get(ctx, want)
}

func (t *callTarget) current() *callConn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.conn
}

// get returns a connection on which a call may be made: it has a place for the call.
func (t *callTarget) get(ctx context.Context, want *metadata.BrokerID) (*callConn, error) {
	unreachable := func(err error) error { return fmt.Errorf("%w: %w", ErrUnreachable, err) }
	for {
		c := t.current()
		if c == nil {
			var err error
			if c, err = t.dial(ctx, want); err != nil {
				return nil, err
			}
		}
		if want != nil && c.remote.Node < 0 && *want >= 0 && c.remote.Node != *want {
			// It had no id when the connection was made, and may have one now: ask again.
			c.bye()
			continue
		}
		if want != nil && c.remote.Node != *want {
			return nil, unreachable(fmt.Errorf("at the address of broker %d there is %s", *want, c.remote.name()))
		}
		select {
		case c.places <- struct{}{}:
			return c, nil
		case <-c.gone:
		case <-ctx.Done():
			return nil, unreachable(context.Cause(ctx))
		case <-t.p.ctx.Done():
			return nil, unreachable(ErrClosed)
		}
		t.forget(c)
	}
}

// dial connects, unless somebody else just has.
func (t *callTarget) dial(ctx context.Context, want *metadata.BrokerID) (*callConn, error) {
	select {
	case t.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, context.Cause(ctx))
	}
	defer func() { <-t.dialing }()
	if c := t.current(); c != nil {
		return c, nil
	}
	if err := t.backoff.wait(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	conn, id, err := t.p.open(ctx, t.address, forCalls, want)
	t.backoff.note(err)
	t.p.metrics.dialed(err)
	if err != nil {
		return nil, err
	}
	c := newCallConn(t, conn, id)
	t.p.mu.Lock()
	closed := t.p.mu.closed
	if !closed {
		t.p.tasks.Go(c.read)
	}
	t.p.mu.Unlock()
	if closed {
		_ = conn.Close()
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, ErrClosed)
	}
	t.mu.Lock()
	t.mu.conn = c
	t.mu.Unlock()
	return c, nil
}

func (t *callTarget) forget(c *callConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.conn == c {
		t.mu.conn = nil
	}
}

func (t *callTarget) close() {
	if c := t.current(); c != nil {
		c.bye()
	}
}

// callConn is a connection for calls. Answers may come in any order.
type callConn struct {
	target *callTarget
	conn   net.Conn
	remote Identity
	places chan struct{} // maxOpenCalls
	gone   chan struct{} // closed when it can't be used any more

	heard atomic.Int64 // when something was last read, in ns since opened
	since time.Time

	// writing guards the sending side: frames go out whole.
	writing struct {
		sync.Mutex
		buf []byte
	}

	mu struct {
		sync.Mutex
		open map[int32]chan callResult
		next int32
		err  error     // why it is gone
		busy time.Time // since when there are open calls; zero: none
		used time.Time // when the last call was made
		ping int32     // correlation id of a ping under way; 0: none
		sent time.Time // when it was sent
	}
}

type callResult struct {
	body []byte
	err  error
}

func newCallConn(t *callTarget, conn net.Conn, id Identity) *callConn {
	c := &callConn{target: t, conn: conn, remote: id, places: make(chan struct{}, maxOpenCalls), gone: make(chan struct{}), since: time.Now()}
	c.mu.open = map[int32]chan callResult{}
	c.mu.used = c.since
	return c
}

// results recycles the channels of calls; each is empty when it is put back.
var results = sync.Pool{New: func() any { return make(chan callResult, 1) }}

// call makes one call. The caller has taken a place.
func (c *callConn) call(ctx context.Context, method string, body []byte) ([]byte, error) {
	defer func() { <-c.places }()
	deadline, _ := ctx.Deadline()
	done := results.Get().(chan callResult)
	id, err := c.enter(done)
	if err != nil {
		results.Put(done)
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	var head [512]byte
	if err := c.send(keyCall, id, appendCall(head[:0], time.Until(deadline), method, nil), body); err != nil {
		c.end(err) // answers done, as all others
	}
	select {
	case r := <-done:
		results.Put(done)
		return r.body, r.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	_, waiting := c.mu.open[id]
	c.leaveLocked(id)
	c.mu.Unlock()
	if !waiting { // the answer came at the same moment
		r := <-done
		results.Put(done)
		return r.body, r.err
	}
	return nil, fmt.Errorf("%w: %w", ErrBroken, context.Cause(ctx))
}

func (c *callConn) enter(done chan callResult) (id int32, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err != nil {
		return 0, c.mu.err
	}
	c.mu.next = c.mu.next&(1<<30-1) + 1
	id = c.mu.next
	c.mu.open[id] = done
	now := time.Now()
	if c.mu.busy.IsZero() {
		c.mu.busy = now
	}
	c.mu.used = now
	return id, nil
}

func (c *callConn) leaveLocked(id int32) {
	delete(c.mu.open, id)
	if len(c.mu.open) == 0 {
		c.mu.busy = time.Time{}
	}
}

// send writes one frame. An error means that it did not go out whole, so that nobody acts on it.
func (c *callConn) send(key int16, id int32, body ...[]byte) error {
	w := &c.writing
	w.Lock()
	defer w.Unlock()
	w.buf = appendRequest(w.buf[:0], key, id, body...)
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.target.p.cfg.WriteTimeout)); err != nil {
		return notSent(err)
	}
	_, err := c.conn.Write(w.buf)
	if cap(w.buf) > 64<<10 {
		w.buf = nil
	}
	if err != nil {
		return notSent(err)
	}
	return nil
}

func notSent(err error) error { return fmt.Errorf("write: %w", err) }

// read is the goroutine that takes in answers, until the connection ends.
func (c *callConn) read() {
	limit := c.target.p.cfg.MaxBodyBytes + 64
	br := bufio.NewReaderSize(c.conn, 4<<10)
	for {
		prefix, err := br.Peek(8)
		if err != nil {
			c.end(err)
			return
		}
		n, id := int(int32(binary.BigEndian.Uint32(prefix))), int32(binary.BigEndian.Uint32(prefix[4:]))
		if n < 4 || n > limit {
			c.end(fmt.Errorf("answer of %d bytes", n))
			return
		}
		_, _ = br.Discard(8)
		body, err := readBody(br, n-4)
		if err != nil {
			c.end(err)
			return
		}
		c.heard.Store(int64(time.Since(c.since)))
		c.answered(id, body)
	}
}

// readBody reads n bytes; memory is taken as they arrive (N3).
func readBody(r io.Reader, n int) ([]byte, error) {
	const step = 1 << 20
	if n <= step {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, err
	}
	b := make([]byte, 0, step)
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(n, 2*cap(b))), b...)
		}
		part := b[len(b):min(cap(b), n)]
		if _, err := io.ReadFull(r, part); err != nil {
			return nil, err
		}
		b = b[:len(b)+len(part)]
	}
	return b, nil
}

func (c *callConn) answered(id int32, body []byte) {
	c.mu.Lock()
	if id == c.mu.ping && id != 0 {
		c.mu.ping = 0
		c.mu.Unlock()
		return
	}
	done := c.mu.open[id]
	if done == nil { // given up
		c.mu.Unlock()
		return
	}
	c.leaveLocked(id)
	done <- result(body) // has room, and is nobody else's before it is taken
	c.mu.Unlock()
}

func result(body []byte) callResult {
	switch {
	case len(body) == 0:
		return callResult{err: fmt.Errorf("%w: an answer without a status", ErrBroken)}
	case body[0] == statusOK:
		return callResult{body: body[1:]}
	default:
		return callResult{err: metadata.DecodeError(body[1:])}
	}
}

// end gives the connection up: whoever waits is told that the outcome is open, or that nothing happened if its own
// request did not go out whole. The first reason counts.
func (c *callConn) end(reason error) {
	c.mu.Lock()
	if c.mu.err != nil {
		c.mu.Unlock()
		return
	}
	c.mu.err = reason
	open := c.mu.open
	c.mu.open = nil
	c.mu.busy = time.Time{}
	for _, done := range open {
		done <- callResult{err: fmt.Errorf("%w: %w", ErrBroken, reason)}
	}
	c.mu.Unlock()
	close(c.gone)
	_ = c.conn.Close()
	c.target.forget(c)
	if !errors.Is(reason, errIdle) && !errors.Is(reason, ErrClosed) {
		c.target.p.broken(c.remote, fmt.Errorf("the connection for calls ended: %w", reason))
	}
}

// errIdle is the end of a connection that nobody used.
var errIdle = errors.New("idle")

// bye closes the connection in a way that does not look like a death.
func (c *callConn) bye() {
	_ = c.send(keyBye, 0)
	c.end(ErrClosed)
}

// watchCalls looks after the connections for calls: a sign of life where answers are due, an end where there is no life
// or no use. One goroutine for all.
func (p *Peers) watchCalls() {
	t := time.NewTicker(max(p.cfg.PingInterval/2, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case now := <-t.C:
			p.mu.Lock()
			targets := make([]*callTarget, 0, len(p.mu.calls))
			for _, target := range p.mu.calls {
				targets = append(targets, target)
			}
			p.mu.Unlock()
			for _, target := range targets {
				if c := target.current(); c != nil {
					c.watch(now)
				} else {
					p.forgetTarget(target, now)
				}
			}
		}
	}
}

// forgetTarget drops an address that has not been tried for a while.
func (p *Peers) forgetTarget(t *callTarget, now time.Time) {
	t.backoff.mu.Lock()
	stale := now.Sub(t.backoff.until) > p.cfg.IdleTimeout
	t.backoff.mu.Unlock()
	if !stale {
		return
	}
	select {
	case t.dialing <- struct{}{}: // nobody dials, so nobody holds it but to look at its connection
	default:
		return
	}
	p.mu.Lock()
	if t.current() == nil && p.mu.calls[t.address] == t {
		delete(p.mu.calls, t.address)
	}
	p.mu.Unlock()
	<-t.dialing
}

func (c *callConn) watch(now time.Time) {
	cfg := &c.target.p.cfg
	heard := c.since.Add(time.Duration(c.heard.Load()))
	c.mu.Lock()
	busy, used, ping := c.mu.busy, c.mu.used, c.mu.ping
	silent := time.Duration(0)
	if !busy.IsZero() || ping != 0 {
		from := busy
		if ping != 0 && (from.IsZero() || c.mu.sent.Before(from)) {
			from = c.mu.sent
		}
		if heard.After(from) {
			from = heard
		}
		silent = now.Sub(from)
	}
	var id int32
	if ping == 0 && silent >= cfg.PingInterval && silent < cfg.PingTimeout && c.mu.err == nil {
		c.mu.next = c.mu.next&(1<<30-1) + 1
		id = c.mu.next
		c.mu.ping, c.mu.sent = id, now
	}
	c.mu.Unlock()
	switch {
	case silent >= cfg.PingTimeout:
		c.end(fmt.Errorf("no sign of life for %v", silent.Round(time.Millisecond)))
	case id != 0:
		// Not here: the socket may take nothing, and others want to be looked after. There is one ping at a time.
		c.target.p.tasks.Go(func() {
			if err := c.send(keyPing, id); err != nil {
				c.end(err)
			}
		})
	case busy.IsZero() && ping == 0 && now.Sub(used) >= cfg.IdleTimeout:
		_ = c.send(keyBye, 0)
		c.end(errIdle)
	}
}
