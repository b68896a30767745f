package peer

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/kafka"
)

// fetcher implements replication.Fetcher: a connection to one leader broker, with one request in flight.
type fetcher struct {
	p       *Peers
	broker  metadata.BrokerID
	backoff backoff

	// waiting says that a request was sent whose answer is not here: Wake has something to end.
	waiting atomic.Bool
	// woken says that a wake has not gone out: it came before the request had.
	woken atomic.Bool

	// Of the goroutine that calls Fetch.
	br          *bufio.Reader
	session     kafka.ReplicaSession
	correlation int32
	buf         []byte          // the request
	watched     context.Context // whose end interrupts reads of conn
	unwatch     func() bool

	mu struct {
		sync.Mutex
		closed bool
		conn   net.Conn // nil: none
		remote Identity
		cancel context.CancelFunc // of a dial under way
	}
	// writing is held while a frame goes out: a wake may come while a request does.
	writing sync.Mutex
}

func newFetcher(p *Peers, broker metadata.BrokerID) *fetcher {
	f := &fetcher{p: p, broker: broker}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		f.mu.closed = true
	} else {
		p.mu.fetchers[f] = struct{}{}
	}
	return f
}

// Fetch implements replication.Fetcher. A broker that cannot be reached is tried at growing distances, so that the
// caller may simply call again.
func (f *fetcher) Fetch(ctx context.Context, req *replication.FollowerFetch) (*replication.FollowerAnswer, error) {
	conn, err := f.connected(ctx)
	if err != nil {
		return nil, fmt.Errorf("fetch from broker %d: %w", f.broker, err)
	}
	answer, err := f.exchange(ctx, conn, req)
	if err != nil {
		return nil, fmt.Errorf("fetch from broker %d: %w", f.broker, err)
	}
	return answer, nil
}

// connected returns the connection, a new one if there is none.
func (f *fetcher) connected(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	conn, closed := f.mu.conn, f.mu.closed
	f.mu.Unlock()
	switch {
	case closed:
		return nil, ErrClosed
	case conn != nil:
		f.watch(ctx, conn)
		return conn, nil
	}
	if err := f.backoff.wait(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	f.mu.cancel = cancel
	closed = f.mu.closed
	f.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	conn, id, err := f.dial(dialing)
	if ctx.Err() == nil {
		f.backoff.note(err)
		f.p.metrics.dialed(err)
	}
	f.mu.Lock()
	f.mu.cancel = nil
	if closed = f.mu.closed; err == nil && !closed {
		f.mu.conn, f.mu.remote = conn, id
	}
	f.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case closed:
		_ = conn.Close()
		return nil, ErrClosed
	}
	if f.br == nil {
		f.br = bufio.NewReaderSize(conn, 16<<10)
	} else {
		f.br.Reset(conn)
	}
	f.session = kafka.ReplicaSession{}
	f.watch(ctx, conn)
	return conn, nil
}

func (f *fetcher) dial(ctx context.Context) (net.Conn, Identity, error) {
	address := f.p.cfg.Address(f.broker)
	if address == "" {
		return nil, Identity{}, fmt.Errorf("%w: its address is not known", ErrUnreachable)
	}
	return f.p.open(ctx, address, forFetch, &f.broker)
}

// watch lets the end of ctx end reads of conn. The context is the same one in most calls: then nothing is done.
func (f *fetcher) watch(ctx context.Context, conn net.Conn) {
	if ctx == f.watched {
		return
	}
	f.forgetContext()
	f.watched = ctx
	if ctx.Done() != nil {
		f.unwatch = context.AfterFunc(ctx, func() { f.hangUp(conn) })
	}
}

func (f *fetcher) forgetContext() {
	if f.unwatch != nil {
		f.unwatch()
	}
	f.watched, f.unwatch = nil, nil
}

// exchange sends the request and reads its answer. After an error there is no connection any more, or at least no
// session.
func (f *fetcher) exchange(ctx context.Context, conn net.Conn, req *replication.FollowerFetch) (*replication.FollowerAnswer, error) {
	f.correlation++
	own := f.p.cfg.Identity().Node
	f.buf = kafka.AppendReplicaFetch(f.buf[:0], f.correlation, own, f.session, req)
	if err := f.send(conn, f.buf); err != nil {
		return nil, f.lost(ctx, conn, err)
	}
	if cap(f.buf) > 256<<10 {
		f.buf = nil // that of a new session
	}
	f.waiting.Store(true)
	f.sendWake(conn)
	frame, err := f.read(conn, req.MaxWait)
	f.waiting.Store(false)
	f.woken.Store(false) // too late for this one, and the next request carries what it was for
	if err != nil {
		return nil, f.lost(ctx, conn, err)
	}
	partitions, session, err := kafka.ReadReplicaAnswer(frame.bytes()[4:], frame, frame.answer.Partitions[:0])
	frame.answer.Partitions = partitions
	switch {
	case errors.Is(err, kafka.ErrReplicaAnswer):
		frame.Release()
		return nil, f.lost(ctx, conn, err)
	case err != nil: // the connection is sound, the session is over
		frame.Release()
		f.session = kafka.ReplicaSession{}
		f.backoff.note(err)
		return nil, errors.Join(err, f.backoff.wait(ctx))
	}
	f.session = f.session.Next(session)
	frame.answer.Free = frame.free
	return &frame.answer, nil
}

func (f *fetcher) send(conn net.Conn, frame []byte) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if err := conn.SetWriteDeadline(time.Now().Add(f.p.cfg.WriteTimeout)); err != nil {
		return err
	}
	_, err := conn.Write(frame)
	return err
}

// read reads one answer into a frame.
func (f *fetcher) read(conn net.Conn, wait time.Duration) (*answerFrame, error) {
	if err := conn.SetReadDeadline(time.Now().Add(max(wait, 0) + f.p.cfg.PingTimeout)); err != nil {
		return nil, err
	}
	prefix, err := f.br.Peek(8)
	if err != nil {
		return nil, err
	}
	n, id := int(int32(binary.BigEndian.Uint32(prefix))), int32(binary.BigEndian.Uint32(prefix[4:]))
	switch {
	case n < 4 || n > f.p.cfg.MaxAnswerBytes:
		return nil, fmt.Errorf("answer of %d bytes", n)
	case id != f.correlation:
		return nil, fmt.Errorf("answer to request %d, not %d", id, f.correlation)
	}
	_, _ = f.br.Discard(4)
	if n > 64<<10 { // the rest of a large answer may take its time
		if err := conn.SetReadDeadline(time.Now().Add(f.p.cfg.WriteTimeout + time.Duration(n>>20)*time.Second)); err != nil {
			return nil, err
		}
	}
	frame := newAnswerFrame(n)
	if _, err := io.ReadFull(f.br, frame.bytes()); err != nil {
		frame.Release()
		return nil, err
	}
	return frame, nil
}

// lost gives up a connection that failed.
func (f *fetcher) lost(ctx context.Context, conn net.Conn, reason error) error {
	f.forgetContext()
	f.session = kafka.ReplicaSession{}
	f.mu.Lock()
	closed, id := f.mu.closed, f.mu.remote
	f.mu.conn = nil
	f.mu.Unlock()
	_ = conn.Close()
	switch {
	case closed:
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ErrBroken, context.Cause(ctx))
	}
	f.backoff.note(reason)
	f.p.broken(id, fmt.Errorf("the connection for fetches ended: %w", reason))
	return fmt.Errorf("%w: %w", ErrBroken, reason)
}

// wakeFrame ends the wait of the fetch before it.
var wakeFrame = appendRequest(nil, kafka.KeyWakeReplicaFetch, 0)

// Wake implements replication.Fetcher.
func (f *fetcher) Wake() {
	f.woken.Store(true)
	if !f.waiting.Load() {
		return // whoever sends the request looks after it
	}
	f.mu.Lock()
	conn := f.mu.conn
	f.mu.Unlock()
	if conn != nil {
		f.sendWake(conn)
	}
}

// sendWake sends a wake that is due, behind the request that it ends.
func (f *fetcher) sendWake(conn net.Conn) {
	if f.woken.Swap(false) {
		_ = f.send(conn, wakeFrame) // a failure is the next read's too
	}
}

// Close implements replication.Fetcher.
func (f *fetcher) Close() {
	f.p.mu.Lock()
	delete(f.p.mu.fetchers, f)
	f.p.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return
	}
	f.mu.closed = true
	if f.mu.cancel != nil {
		f.mu.cancel()
	}
	if f.mu.conn != nil {
		f.hangUp(f.mu.conn)
	}
}

// hangUp closes the connection on purpose, and says so to the other end unless that would take time.
func (f *fetcher) hangUp(conn net.Conn) {
	if f.writing.TryLock() {
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = conn.Write(byeFrame)
		f.writing.Unlock()
	}
	_ = conn.Close()
}

// byeFrame says that the connection is about to be closed on purpose.
var byeFrame = appendRequest(nil, keyBye, 0)
