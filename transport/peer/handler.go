package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// The private keys of the listener, all in version 0 and with request header v1, response header v0.
const (
	keyHello int16 = 20_000 // hello → helloReply; the first request of each connection
	keyCall  int16 = 20_001 // see appendCall → a status byte, and the answer or the error
	keyPing  int16 = 20_003 // nothing → nothing
	keyBye   int16 = 20_004 // nothing, no answer: the caller is about to close, which is no sign of its death
)

// A receiver answers the calls of one method. body is valid until it returns; the answer may be a part of it. ctx ends with the caller's time and with
// its connection.
type receiver func(ctx context.Context, from From, body []byte) ([]byte, error)

// Handle registers the receiver of a method, replacing an earlier one. Errors of it reach the caller with their
// sentinel if that is one of package metadata.
func (p *Peers) Handle(method string, r func(ctx context.Context, from From, body []byte) ([]byte, error)) {
	p.receivers.Store(method, receiver(r))
}

// forwardPrefix is before the method's name on the wire in what Forward sends.
const forwardPrefix = "metadata/"

// HandleForward registers who serves what other brokers forward: metadata.Store's ServeForward. Before it they are told
// that this broker is not the controller.
func (p *Peers) HandleForward(serve func(ctx context.Context, method string, body []byte) ([]byte, error)) {
	p.receivers.Store(forwardPrefix, serve)
}

// handler answers the requests of the listener.
type handler struct{ p *Peers }

// link is what is known of an accepted connection once its hello is done.
type link struct {
	from    From
	purpose purpose
	bye     atomic.Bool // the caller is about to close
}

type linkKey struct{}

// Accept implements transport.Handler.
func (h *handler) Accept(key, version int16) (flexible, ok bool) {
	switch key {
	case keyHello, keyCall, keyPing, keyBye:
		return false, version == 0
	}
	if r := h.p.replicas.Load(); r != nil {
		return (*r).Accept(key, version)
	}
	return false, false
}

// MaxRequestBytes implements transport.RequestLimiter.
func (h *handler) MaxRequestBytes(key, version int16) int {
	switch key {
	case keyHello:
		return maxHelloBytes
	case keyCall:
		return h.p.cfg.MaxBodyBytes + maxMethod + 64
	case keyPing, keyBye:
		return 64
	}
	if r := h.p.replicas.Load(); r != nil {
		if l, ok := (*r).(transport.RequestLimiter); ok {
			return l.MaxRequestBytes(key, version)
		}
	}
	return maxHelloBytes
}

// Handle implements transport.Handler.
func (h *handler) Handle(req *transport.Request) {
	if req.Key == keyHello {
		h.hello(req)
		return
	}
	l, _ := req.Conn.Value(linkKey{}).(*link)
	if l == nil {
		h.p.refusals.log(h.p.logger, remoteHost(req.Conn.RemoteAddr()), "a request before the hello: connection closed; clients of Kafka use another listener",
			"listener", h.p.cfg.Name, "remote", req.Conn.RemoteAddr().String(), "key", req.Key, "version", req.Version)
		req.CloseConn("a request before the hello")
		return
	}
	switch req.Key {
	case keyCall:
		h.call(req, l)
	case keyPing:
		req.Reply(answer(nil))
	case keyBye:
		l.bye.Store(true)
		req.ReplyNothing()
	default:
		r := h.p.replicas.Load()
		if r == nil || l.purpose != forFetch {
			req.CloseConn(fmt.Sprintf("request of key %d on a connection for %s", req.Key, l.purpose))
			return
		}
		(*r).Handle(req)
	}
}

// hello is the first request of a connection.
func (h *handler) hello(req *transport.Request) {
	p, conn := h.p, req.Conn
	if conn.Value(linkKey{}) != nil {
		req.CloseConn("a second hello")
		return
	}
	said, from, err := decodeHello(req.Body)
	if err != nil {
		p.refusals.log(p.logger, remoteHost(conn.RemoteAddr()), "garbage where a broker's hello was expected", "remote", conn.RemoteAddr().String(), "err", err)
		req.CloseConn("no hello")
		return
	}
	from.Remote = conn.RemoteAddr().String()
	if said.Purpose == forRaft {
		req.CloseConn("a Raft stream among requests")
		return
	}
	reply, ok := p.welcome(said, &from)
	if !ok {
		req.ReplyThenClose(answer(encode(reply)), "refused")
		return
	}
	l := &link{from: from, purpose: said.Purpose}
	conn.SetValue(linkKey{}, l)
	conn.SetSoftware("millrace", cleanVersion(from.Version))
	conn.SetAuthenticated()
	switch said.Purpose {
	case forProbe:
		l.bye.Store(true)
	case forCalls:
		conn.SetUnordered()
	case forFetch:
		conn.SetBroker(int32(from.Node))
	}
	context.AfterFunc(conn.Context(), func() { p.callerLeft(conn, l) })
	req.Reply(answer(encode(reply)))
}

// welcome judges a hello, logs a refusal, and makes the answer to it. It completes from.
func (p *Peers) welcome(said hello, from *From) (reply helloReply, ok bool) {
	own := p.cfg.Identity()
	from.Self = from.Incarnation == own.Incarnation
	reply = helloReply{Protocol: helloProtocol, identityText: textOf(own), Version: p.cfg.Version}
	var refusal error
	if e := judge(said, *from, own); e != nil {
		refusal = e
	} else if p.cfg.Admit != nil {
		refusal = p.cfg.Admit(*from)
	}
	if refusal == nil {
		return reply, true
	}
	reply.Refusal = metadata.EncodeError(refusal)
	p.metrics.refused.Add(1)
	p.refusals.log(p.logger, remoteHostOf(from.Remote)+from.Node.String(), "a broker was refused", "remote", from.Remote, "node", from.Node, "cluster", from.ClusterID, "err", refusal)
	return reply, false
}

// callerLeft looks why an accepted connection ended.
func (p *Peers) callerLeft(conn *transport.Conn, l *link) {
	if cause := context.Cause(conn.Context()); errors.Is(cause, transport.ErrPeerClosed) && !l.bye.Load() && !l.from.Self {
		p.broken(l.from.Identity, fmt.Errorf("its connection for %s ended: %w", l.purpose, cause))
	}
}

// maxMethod bounds the name of a method.
const maxMethod = 255

// appendCall appends the body of a call: how long the caller waits in milliseconds (int32), the method's name behind its
// length (uint16), and the body.
func appendCall(b []byte, wait time.Duration, method string, body []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(wait.Milliseconds(), 1), 1<<31-1)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(method)))
	b = append(b, method...)
	return append(b, body...)
}

// decodeCall reads what appendCall wrote. body aliases b.
func decodeCall(b []byte) (wait time.Duration, method string, body []byte, err error) {
	if len(b) < 6 {
		return 0, "", nil, fmt.Errorf("call of %d bytes", len(b))
	}
	ms, n := int32(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint16(b[4:]))
	if b = b[6:]; ms <= 0 || n == 0 || n > maxMethod || n > len(b) {
		return 0, "", nil, fmt.Errorf("call with a wait of %d ms, a method of %d bytes and %d bytes left", ms, n, len(b))
	}
	return time.Duration(ms) * time.Millisecond, string(b[:n]), b[n:], nil
}

// The status byte of an answer to a call.
const (
	statusOK     = 0
	statusFailed = 1 // an errorText follows
)

func (h *handler) call(req *transport.Request, l *link) {
	wait, method, body, err := decodeCall(req.Body)
	if err != nil || l.purpose != forCalls {
		req.CloseConn("malformed call")
		return
	}
	// The frame lives until the answer is sent: a receiver may return a part of its body.
	req.Frame.Retain()
	req.Go(func() {
		answered := false
		defer func() {
			if !answered { // a panic
				req.Frame.Release()
			}
		}()
		ctx, cancel := context.WithTimeout(req.Context(), wait)
		defer cancel()
		out, err := h.p.serveCall(ctx, l.from, method, body)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, metadata.ErrTimeout) {
			err = fmt.Errorf("%s: %w: %w", method, metadata.ErrTimeout, err) // the sentinels of package context don't travel
		}
		if err == nil && len(out) > h.p.cfg.MaxBodyBytes {
			err = fmt.Errorf("answer to %s: %w: %d bytes", method, ErrTooLarge, len(out))
		}
		status := []byte{statusOK}
		if err != nil {
			status, out = []byte{statusFailed}, metadata.EncodeError(err)
		}
		answered = true
		req.Reply(transport.Splice(&transport.Spliced{Pieces: []transport.Piece{{Header: status}, {Header: out}}, Released: req.Frame.Release}))
	})
}

func (p *Peers) serveCall(ctx context.Context, from From, method string, body []byte) ([]byte, error) {
	p.metrics.served.Add(1)
	if name, ok := trimForward(method); ok {
		serve, ok := p.receivers.Load(forwardPrefix)
		if !ok {
			return nil, fmt.Errorf("%w: it is starting", metadata.ErrNotController)
		}
		return serve.(func(context.Context, string, []byte) ([]byte, error))(ctx, name, body)
	}
	r, ok := p.receivers.Load(method)
	if !ok {
		return nil, fmt.Errorf("%q on %s: %w", method, p.cfg.Identity().name(), ErrUnknownMethod)
	}
	return r.(receiver)(ctx, from, body)
}

// answer is a response body of ready bytes.
func answer(parts ...[]byte) transport.Response {
	s := &transport.Spliced{}
	for _, part := range parts {
		s.Pieces = append(s.Pieces, transport.Piece{Header: part})
	}
	return transport.Splice(s)
}
