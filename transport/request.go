package transport

import (
	"context"
	"time"
)

// Handler gives requests their meaning. Package transport/kafka implements it.
type Handler interface {
	// Accept reports whether requests of this key and version are served, and whether the version is flexible (KIP-482), which
	// decides the request header's layout. A request that is not ok closes the connection without an answer (N11); a handler that
	// wants to answer an ApiVersions request from the future returns true for every version of key 18. It is called before memory
	// is taken for the request.
	Accept(key, version int16) (flexible, ok bool)

	// Handle serves one request. It is called on the connection's reader goroutine, one request of a connection after the other in
	// the order they arrived, and must lead to exactly one call of Reply, ReplyThrottled, ReplyFunc, ReplyThenClose, ReplyNothing
	// or CloseConn on the request: at once or later, from any goroutine. It should not block for long: whatever must wait, parks
	// the request and returns, or moves to a goroutine with [Request.Go].
	//
	// Request.Body is valid until Handle returns. Whoever needs the bytes longer (package log, while a record set waits to be
	// written) calls Request.Frame.Retain before that and Frame.Release after use. Strings read by kmsg's ReadFrom are copies and
	// need no such care; those of UnsafeReadFrom alias the frame.
	Handle(req *Request)
}

// RequestLimiter is implemented by a Handler that accepts less than Config.MaxRequestBytes for some requests: decoding may cost many times
// a body's size (24 times for Metadata), so that only Produce deserves the full cap.
type RequestLimiter interface {
	// MaxRequestBytes returns the largest frame accepted for the key and version; 0 means Config.MaxRequestBytes. Longer ones
	// close the connection before any memory is taken for them.
	MaxRequestBytes(key, version int16) int
}

// Request is one request of a connection and the slot of its answer.
type Request struct {
	Key           int16
	Version       int16
	CorrelationID int32  // echoed bit for bit by the transport
	ClientID      string // "" when null
	// Body is what follows the request header. It aliases Frame.
	Body []byte
	// Frame holds the memory of Body. The transport's reference ends when Handle returns.
	Frame *Frame
	// Conn is the connection the request came in on.
	Conn *Conn
	// Received is when the whole request had been read, on the monotonic clock.
	Received time.Time

	slot slot
}

// Context ends when the connection dies (N2); its cause says why. A parked request whose context is done need not be answered, though
// answering it is harmless.
func (r *Request) Context() context.Context { return r.Conn.ctx }

// Draining is closed when the server begins to shut down: a long poll may then answer at once with what it has.
func (r *Request) Draining() <-chan struct{} { return r.Conn.server.draining }
