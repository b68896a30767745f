package transport

import (
	"context"
	"net"
	"time"
)

const minRequestBytes = 8

type slot struct{ next *Request }

// Conn is one client connection.
type Conn struct {
	server   *Server
	listener *Listener
	ctx      context.Context
}

// ID is unique among the connections of this process; for logs.
func (c *Conn) ID() uint64 { return 0 }

// Listener is the listener the connection came in on: answers name its advertised address.
func (c *Conn) Listener() *Listener { return c.listener }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return nil }

// Context ends when the connection dies.
func (c *Conn) Context() context.Context { return c.ctx }

// SetSoftware records what the client said of itself in ApiVersions (KIP-511); metrics and logs show it.
func (c *Conn) SetSoftware(name, version string) {}

// Software is what SetSoftware recorded; both empty before.
func (c *Conn) Software() (name, version string) { return "", "" }

// SetAuthenticated lifts the frame cap of a RequireAuth listener (S4).
func (c *Conn) SetAuthenticated() {}

// Value returns what SetValue stored under key, or nil.
func (c *Conn) Value(key any) any { return nil }

// SetValue keeps a value with the connection, such as a session.
func (c *Conn) SetValue(key, value any) {}

// Reply answers the request. It never blocks on the socket unless called during Handle by the reader; it may be called from any goroutine.
func (r *Request) Reply(resp Response) {}

// ReplyThrottled is Reply for a response that carries mute as its throttle time (KIP-219): the connection's socket isn't read for so long.
func (r *Request) ReplyThrottled(resp Response, mute time.Duration) {}

// ReplyFunc answers the request with what fn returns. fn runs when the request's turn has come, on the goroutine that writes to the
// connection; it isn't called when the connection has died by then. For answers that are made by reading, such as a woken fetch: the waker
// pays nothing, and what is read is sent at once.
func (r *Request) ReplyFunc(fn func() Response) {}

// ReplyThenClose is Reply, after which the connection is closed once everything up to this response has been sent.
func (r *Request) ReplyThenClose(resp Response, reason string) {}

// ReplyNothing ends the request without an answer: produce with acks=0.
func (r *Request) ReplyNothing() {}

// CloseConn ends the request by closing the connection, after the answers to earlier requests have been sent.
func (r *Request) CloseConn(reason string) {}

// Go runs fn on a goroutine of the server, for a handler that has to block, such as one that waits for Raft. A panic in fn is handled
// like one in Handle. Later requests of the connection are handled meanwhile.
func (r *Request) Go(fn func()) {}
