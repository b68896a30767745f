package transport

import (
	"context"
	"sync"
	"time"
)

// Handler gives requests their meaning. Package transport/kafka implements it.
type Handler interface {
	// Accept reports whether requests of this key and version are served, and whether the version is flexible (KIP-482), which
	// decides the request header's layout. A request that is not ok closes the connection without an answer (N11); a handler that
	// wants to answer an ApiVersions request from the future returns true for every version of key 18. It is called before memory
	// is taken for the request.
	Accept(key, version int16) (flexible, ok bool)

	// Handle serves one request. It is called on the connection's present reader goroutine, one request of a connection after the other in
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

// ConnWatcher is implemented by a Handler that wants to hear of the end of connections: for less memory than a [context.AfterFunc] of each
// of them takes.
type ConnWatcher interface {
	// Ended is called once for each connection, after its context is done, from any goroutine and with no lock of this package held. A
	// request of the connection may still be on its way through Handle. It must not block.
	Ended(c *Conn)
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

	slot     slot
	recycled bool // see Recycle
	direct   bool // see ReplyDirect
}

// Recycle says that the handler has answered and keeps nothing of the request, whose memory then serves another one. It may be called
// during Handle only, and is the last that the handler does with the request. For small requests of which there are very many.
func (r *Request) Recycle() { r.recycled = true }

// requests are those that were recycled.
var requests = sync.Pool{New: func() any { return new(Request) }}

// Context ends when the connection dies (N2); its cause says why. A parked request whose context is done need not be answered, though
// answering it is harmless.
func (r *Request) Context() context.Context { return r.Conn.ctx }

// Draining is closed when the server begins to shut down: a long poll may then answer at once with what it has.
func (r *Request) Draining() <-chan struct{} { return r.Conn.server.draining }

// Reply answers the request. A Message is encoded before Reply returns. Reply doesn't touch the socket and doesn't block: what it
// queued is written by the reader goroutine after Handle returned, or by the writer goroutine if that was before. A second answer to the same
// request is logged and dropped.
func (r *Request) Reply(resp Response) { r.Conn.answer(r, resp, "") }

// ReplyDirect is Reply for a late answer, by a goroutine that holds no lock and answers many connections in a row: where nothing else of the
// connection is in work it writes the answer itself, in one try that does not wait for room in the socket, which spares waking a
// writer goroutine for each of them. What does not go out so, the writer sends as ever.
func (r *Request) ReplyDirect(resp Response) {
	r.direct = true
	r.Conn.answer(r, resp, "")
}

// ReplyThrottled is Reply for a response that carries mute as its throttle time (KIP-219): the connection's socket isn't read for so
// long, since not every client obeys.
func (r *Request) ReplyThrottled(resp Response, mute time.Duration) {
	r.Conn.mute(mute)
	r.Conn.answer(r, resp, "")
}

// ReplyThenClose is Reply, after which the connection is closed, once everything up to this response has been sent. Requests behind this one
// are no longer handled.
func (r *Request) ReplyThenClose(resp Response, reason string) {
	if reason == "" {
		reason = "closed by the handler"
	}
	r.Conn.answer(r, resp, reason)
}

// ReplyFunc answers the request with what fn returns. fn runs when the request's turn has come, on the goroutine that writes to the
// connection; it isn't called when the connection has died by then. For answers that are made by reading, such as a woken fetch: the
// waker pays nothing, and what is read is sent at once. fn must not block.
func (r *Request) ReplyFunc(fn func() Response) { r.Conn.settle(r, slot{fn: fn}) }

// ReplyNothing ends the request without an answer: produce with acks=0.
func (r *Request) ReplyNothing() { r.Conn.settle(r, slot{}) }

// CloseConn ends the request by closing the connection, after the answers to earlier requests have been sent: what a client with acks=0
// is told of an error. Requests behind this one are no longer handled.
func (r *Request) CloseConn(reason string) {
	if reason == "" {
		reason = "closed by the handler"
	}
	r.Conn.settle(r, slot{closeReason: reason})
}

// Go runs fn on a goroutine of the server, for a handler that has to block, such as one that waits for Raft. It must be called during
// Handle. A panic in fn is handled like one in Handle; fn should end soon after the request's context. The connection's later
// requests are handled meanwhile.
func (r *Request) Go(fn func()) {
	s := r.Conn.server
	s.tasks.Go(func() { r.Conn.guard("a request's goroutine", fn) })
}
