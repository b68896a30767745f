package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// A Raft stream: the byte 'R', the hello behind its length (uint32), and in the other direction the helloReply behind its
// length. After that it belongs to hashicorp/raft.

// raftByte is the first byte of a Raft stream.
const raftByte = 'R'

// raftBacklog bounds the accepted streams that Raft has not taken yet; further ones are closed. Raft takes them at once,
// unless it is not running.
const raftBacklog = 64

// streamLayer implements raft.StreamLayer.
type streamLayer struct {
	p        *Peers
	accepted chan net.Conn
	closing  sync.Once
	closed   chan struct{}
	mu       struct {
		sync.Mutex
		open map[*openStream]struct{} // that Raft has; nil once closed
	}
}

func newStreamLayer(p *Peers) *streamLayer {
	s := &streamLayer{p: p, accepted: make(chan net.Conn, raftBacklog), closed: make(chan struct{})}
	s.mu.open = map[*openStream]struct{}{}
	return s
}

// openStream is a stream that Raft has.
type openStream struct {
	net.Conn
	s *streamLayer
}

// Close implements net.Conn.
func (o *openStream) Close() error {
	o.s.mu.Lock()
	delete(o.s.mu.open, o)
	o.s.mu.Unlock()
	return o.Conn.Close()
}

// give hands a stream to Raft, unless the layer is closed.
func (s *streamLayer) give(conn net.Conn) (net.Conn, error) {
	o := &openStream{Conn: conn, s: s}
	s.mu.Lock()
	over := s.mu.open == nil
	if !over {
		s.mu.open[o] = struct{}{}
	}
	s.mu.Unlock()
	if over {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	return o, nil
}

// StreamLayer carries Raft between brokers; server addresses are the addresses of their listeners for brokers. Its
// Close ends Accept and all streams, those included on which something is under way: the other end may stand still, and
// Raft waits for it without a bound. It refuses streams from then on.
func (p *Peers) StreamLayer() raft.StreamLayer { return p.raft }

// Accept implements net.Listener.
func (s *streamLayer) Accept() (net.Conn, error) {
	select {
	case <-s.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case conn := <-s.accepted:
		return s.give(conn)
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *streamLayer) Close() error {
	s.closing.Do(func() {
		close(s.closed)
		s.mu.Lock()
		open := s.mu.open
		s.mu.open = nil
		s.mu.Unlock()
		for o := range open {
			_ = o.Conn.Close()
		}
		for {
			select {
			case conn := <-s.accepted:
				_ = conn.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr implements net.Listener: the advertised address, by which the other servers know this one.
func (s *streamLayer) Addr() net.Addr { return peerAddr(s.p.advertised) }

// peerAddr is an advertised address.
type peerAddr string

func (peerAddr) Network() string  { return "tcp" }
func (a peerAddr) String() string { return string(a) }

// Dial implements raft.StreamLayer.
func (s *streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	p := s.p
	if timeout <= 0 || timeout > p.cfg.DialTimeout {
		timeout = p.cfg.DialTimeout
	}
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	conn, err := p.connect(ctx, string(address))
	if err != nil {
		return nil, err
	}
	id, err := s.greet(ctx, conn, string(address))
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s.give(&raftConn{Conn: conn, p: p, id: id})
}

// greet says hello on a new stream and judges the answer.
func (s *streamLayer) greet(ctx context.Context, conn net.Conn, address string) (Identity, error) {
	p := s.p
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return Identity{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	said := encode(p.ownHello(forRaft))
	frame := append([]byte{raftByte, 0, 0, 0, 0}, said...)
	binary.BigEndian.PutUint32(frame[1:], uint32(len(said)))
	if _, err := conn.Write(frame); err != nil {
		return Identity{}, fmt.Errorf("raft hello to %s: %w", address, err)
	}
	body, err := readSmallFrame(conn, maxHelloBytes)
	if err != nil {
		return Identity{}, p.noHello(address, err)
	}
	id, err := p.greeted(body, address, nil)
	if err != nil {
		return Identity{}, err
	}
	if p.cfg.RaftServer != nil {
		if err := p.cfg.RaftServer(address, id.Node, id.Directory); err != nil {
			return Identity{}, fmt.Errorf("%s: %w: %w", address, ErrRefused, err)
		}
	}
	if !stop() {
		return Identity{}, fmt.Errorf("raft hello to %s: %w", address, context.Cause(ctx))
	}
	return id, conn.SetDeadline(time.Time{})
}

// raftConn tells of its end, if Raft did not bring it about.
type raftConn struct {
	net.Conn
	p      *Peers
	id     Identity
	ending sync.Once
}

// Read implements io.Reader.
func (c *raftConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !isTimeout(err) && !errors.Is(err, net.ErrClosed) {
		c.ending.Do(func() { c.p.broken(c.id, fmt.Errorf("its Raft connection ended: %w", err)) })
	}
	return n, err
}

// acceptRaft is given the connections that begin with raftByte, on a goroutine of their own.
func (p *Peers) acceptRaft(conn net.Conn) {
	if !p.trackStream(conn, true) {
		_ = conn.Close()
		return
	}
	welcome, err := p.welcomeRaft(conn)
	if !p.trackStream(conn, false) || !welcome || err != nil {
		_ = conn.Close()
		if err != nil && !errors.Is(err, net.ErrClosed) {
			p.refusals.log(p.logger, remoteHost(conn.RemoteAddr()), "garbage where a broker's hello was expected", "remote", conn.RemoteAddr().String(), "err", err)
		}
		return
	}
	select {
	case <-p.raft.closed:
		_ = conn.Close()
		return
	default:
	}
	select {
	case p.raft.accepted <- conn:
	default:
		_ = conn.Close() // Raft does not run
	}
}

// trackStream keeps Close informed of the streams in their hello. False: this broker is closing.
func (p *Peers) trackStream(conn net.Conn, in bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in && !p.mu.closed {
		p.mu.streams[conn] = struct{}{}
	} else {
		delete(p.mu.streams, conn)
	}
	return !p.mu.closed
}

func (p *Peers) welcomeRaft(conn net.Conn) (bool, error) {
	if err := conn.SetDeadline(time.Now().Add(p.cfg.WriteTimeout)); err != nil {
		return false, err
	}
	var first [1]byte
	if _, err := io.ReadFull(conn, first[:]); err != nil {
		return false, err
	}
	body, err := readSmallFrame(conn, maxHelloBytes)
	if err != nil {
		return false, err
	}
	said, from, err := decodeHello(body)
	if err != nil {
		return false, err
	}
	if said.Purpose != forRaft {
		return false, fmt.Errorf("a stream for %q", said.Purpose)
	}
	from.Remote = conn.RemoteAddr().String()
	reply, ok := p.welcome(said, &from)
	b := encode(reply)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)); err != nil || !ok {
		return false, err
	}
	return true, conn.SetDeadline(time.Time{})
}

// readSmallFrame reads a frame of at most limit bytes behind its length.
func readSmallFrame(r io.Reader, limit int) ([]byte, error) {
	var prefix [4]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(prefix[:])
	if int64(n) > int64(limit) {
		return nil, fmt.Errorf("frame of %d bytes, the limit is %d", n, limit)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}
