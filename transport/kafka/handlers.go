package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// Config says what the handlers work on. Start from Default and set at least
// BrokerID, Store, Replicas, Groups, Transactions and Logger.
type Config struct {
	// BrokerID is this broker's id: the one it is registered under in Store.
	BrokerID metadata.BrokerID
	// Store is the cluster's metadata. The listeners must not accept before
	// Store.Ready: a broker that has not caught up would call existing topics
	// unknown, and idempotent producers would start over (trap 12).
	Store *metadata.Store
	// Replicas are this broker's partitions.
	Replicas *replication.Manager
	// Groups is the group coordinator of this broker.
	Groups Groups
	// Transactions is the transaction coordinator of this broker.
	Transactions Transactions
	// ProducerIDs are those of producers without transactions; the coordinator may share them. nil: a block of their own.
	ProducerIDs *ProducerIDs
	// Static is what the broker was started with: file, environment and --set
	// merged, canonical values by key. The keys of this package that may
	// change later come from the metadata on top of it.
	Static map[string]string
	// MaxRequestBytes caps every request but Produce. Decoding costs up to
	// decodeFactor times a body's size, so the cap of 100 MiB that records
	// need would be no cap at all. 2 MiB.
	MaxRequestBytes int
	// DecodeBudgetBytes bounds the memory of all larger decoded requests
	// together; a request waits for its share. 64 MiB.
	DecodeBudgetBytes int64
	// AdminTimeout bounds what a client can ask an admin request to wait. 60 s.
	AdminTimeout time.Duration

	// Logger must not be nil.
	Logger *slog.Logger
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Default returns a Config without its required fields.
func Default() Config {
	return Config{MaxRequestBytes: 2 << 20, DecodeBudgetBytes: 64 << 20, AdminTimeout: time.Minute}
}

// Validate reports the first field that cannot work.
func (c *Config) Validate() error {
	switch {
	case c.Store == nil, c.Replicas == nil, c.Groups == nil, c.Transactions == nil, c.Logger == nil:
		return errors.New("kafka handlers: Store, Replicas, Groups, Transactions and Logger are required")
	case c.BrokerID < 0:
		return fmt.Errorf("kafka handlers: broker id %d", c.BrokerID)
	case c.MaxRequestBytes < 64<<10, c.DecodeBudgetBytes < int64(c.MaxRequestBytes), c.AdminTimeout <= 0:
		return errors.New("kafka handlers: MaxRequestBytes, DecodeBudgetBytes or AdminTimeout is out of range")
	}
	return nil
}

// Handlers answers the requests of a [transport.Server].
type Handlers struct {
	cfg    Config
	logger *slog.Logger

	apis     []api
	byKey    [maxKey]*api
	versions apiVersionsAnswers

	metrics  *metrics
	decoding *semaphore.Weighted
	noise    *rate.Limiter // of log lines that any client can cause
	// markerNoise is that of markers, which noise of other kinds must not hide.
	markerNoise *rate.Limiter
	sessions    *sessionCache
	settings    brokerSettings
	creator     topicCreator
	readers     fetchReaders
	parked      parkedFetches

	groupCalls groupCalls

	produceCalls, fetchCalls, heartbeats, pulses sync.Pool
	ids                                          *ProducerIDs

	// verifier and enlister see to it that a transactional batch belongs to an open transaction: of producers of the first
	// protocol, and of the second (KIP-890).
	verifier *txn.Verifier
	enlister *txn.Enlister

	// ctx ends with Close; work is what was started under it.
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// New returns handlers for a broker whose Store and Replicas are open.
func New(cfg Config) (*Handlers, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	h := &Handlers{cfg: cfg, logger: cfg.Logger, apis: table()}
	h.byKey = index(h.apis)
	h.versions = newAPIVersionsAnswers(h.apis)
	h.noise, h.markerNoise = rate.NewLimiter(10, 50), rate.NewLimiter(10, 50)
	h.decoding = semaphore.NewWeighted(cfg.DecodeBudgetBytes)
	h.settings.init(cfg)
	h.sessions = newSessionCache(h.settings.sessionSlots(), sessionPartitions, time.Now)
	h.metrics = newMetrics(cfg.Registerer, h.apis, h.sessions)
	h.produceCalls.New = func() any { return new(produceCall) }
	h.fetchCalls.New = newFetchCall
	h.heartbeats.New = func() any { return new(heartbeatCall) }
	h.pulses.New = func() any { return new(pulseCall) }
	h.creator.init(h)
	h.parked.init(h)
	h.groupCalls.init(h)
	if h.ids = cfg.ProducerIDs; h.ids == nil {
		h.ids = NewProducerIDs(cfg.Store.AllocateProducerIDs)
	}
	h.verifier = txn.NewVerifier(cfg.Store)
	h.enlister = txn.NewEnlister(cfg.Store, enlistHold, nil, cfg.Logger)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h, nil
}

// Close ends what runs in the background. Requests that still arrive are
// answered as far as the packages below answer.
func (h *Handlers) Close() error {
	h.cancel()
	h.creator.stop()
	h.parked.drain()
	h.groupCalls.drain()
	h.enlister.Close()
	h.work.Wait()
	return nil
}

// Accept implements [transport.Handler]. Every version of ApiVersions is
// accepted: one from the future is answered in the layout of version 0.
func (h *Handlers) Accept(key, version int16) (flexible, ok bool) {
	a := h.lookup(key, version)
	if a == nil {
		return key == keyAPIVersions && version >= 3, key == keyAPIVersions
	}
	return a.flexible >= 0 && version >= a.flexible, true
}

// MaxRequestBytes implements [transport.RequestLimiter].
func (h *Handlers) MaxRequestBytes(key, version int16) int {
	if key == keyProduce {
		return 0 // the transport's own cap
	}
	return h.cfg.MaxRequestBytes
}

// Ended implements [transport.ConnWatcher]: what waits for the answers of a dead connection waits no more (N2).
func (h *Handlers) Ended(conn *transport.Conn) {
	if h.groupCalls.has(conn) {
		go h.groupCalls.abandon(conn) // it calls the coordinator
	}
	if h.parked.has(conn) {
		go h.parked.abandon(conn) // it takes locks of partitions
	}
}

// Handle implements [transport.Handler].
func (h *Handlers) Handle(req *transport.Request) {
	a := h.lookup(req.Key, req.Version)
	switch {
	case a != nil && a.key == keyHeartbeat:
		h.metrics.request(req.Key, req.Version)
		h.beat(req)
	case a != nil && a.key == keyConsumerGroupHeartbeat && h.pulse(req):
	case a != nil:
		h.metrics.request(req.Key, req.Version)
		a.serve(h, &call{h: h, req: req, started: req.Received})
	case req.Key == keyAPIVersions:
		// The body may have any layout: it is not read.
		h.metrics.error(req.Key, codeUnsupportedVersion)
		req.Reply(transport.Message(h.versions.unsupported()))
	default:
		// The transport asked Accept before; a request that comes here all the
		// same gets what the protocol wants for it.
		req.CloseConn(fmt.Sprintf("API key %d version %d is not served", req.Key, req.Version))
	}
}

// call is one request on its way through a handler.
type call struct {
	h       *Handlers
	req     *transport.Request
	started time.Time

	// held is what the request holds of the decode budget.
	held int64
}

// Decoding allocates up to decodeFactor times the body (measured for the worst
// request, Metadata); a request that can't exceed decodeFree is covered by the
// bound of requests in work per connection and pays nothing.
const (
	decodeFactor = 24
	decodeFree   = 64 << 10
)

// admit waits for the memory that decoding may take (N4). It returns false when
// the connection died meanwhile.
func (c *call) admit() bool { return c.hold(int64(len(c.req.Body)) * decodeFactor) }

// hold waits for bytes of the decode budget, which the call has until release.
func (c *call) hold(bytes int64) bool {
	cost := min(bytes, c.h.cfg.DecodeBudgetBytes)
	if cost <= decodeFree {
		return true
	}
	if c.h.decoding.Acquire(c.req.Context(), cost) != nil {
		c.req.CloseConn("the connection ended while its request waited for memory")
		return false
	}
	c.held = cost
	return true
}

// decode reads the body into msg, after its memory was accounted for. The handler
// goes on only if it returns true; otherwise the connection is being closed.
// Strings are copies, and valid UTF-8: they may outlive the frame.
func (c *call) decode(msg kmsg.Request) bool {
	if !c.admit() {
		return false
	}
	msg.SetVersion(c.req.Version)
	err := msg.ReadFrom(c.req.Body)
	if err == nil {
		err = validate(msg)
	}
	if err != nil {
		c.malformed(err)
		return false
	}
	return true
}

// release returns what the request holds of the decode budget.
func (c *call) release() {
	if c.held > 0 {
		c.h.decoding.Release(c.held)
		c.held = 0
	}
}

// malformed closes the connection of a request whose body is not what its
// version says. Nothing after it on the connection can be trusted.
func (c *call) malformed(err error) {
	c.release()
	name := c.h.byKey[c.req.Key].name
	if c.h.noise.Allow() {
		c.h.logger.Warn("malformed request: closing the connection", "request", name, "version", c.req.Version,
			"client", c.req.ClientID, "address", c.req.Conn.RemoteAddr(), "error", err)
	}
	c.req.CloseConn(fmt.Sprintf("malformed %s v%d: %v", name, c.req.Version, err))
}

// reply sends the answer and ends the call.
func (c *call) reply(resp kmsg.Response) {
	c.req.Reply(transport.Message(resp))
	c.done()
}

// replyDirect is reply for whoever holds no lock and answers many clients in a row.
func (c *call) replyDirect(resp kmsg.Response) {
	c.req.ReplyDirect(transport.Message(resp))
	c.done()
}

// done ends the call's accounting.
func (c *call) done() {
	c.h.metrics.duration(c.req.Key, time.Since(c.started), 0)
	c.release()
}

// error counts a code that goes out in the response and returns it.
func (c *call) error(code int16) int16 {
	c.h.metrics.error(c.req.Key, code)
	return code
}

// code maps an error to its code, and counts and returns it.
func (c *call) code(err error) int16 { return c.error(codeOf(err)) }

// request is what the adapters below need to know of a request type Q.
type request[Q any] interface {
	*Q
	kmsg.Request
}

// answer adapts a handler that answers before it returns, on the connection's
// reader goroutine.
func answer[Q any, R request[Q]](f func(*Handlers, *call, R) kmsg.Response) func(*Handlers, *call) {
	return func(h *Handlers, c *call) {
		defer c.release() // on a panic too: the transport goes on without us
		msg := R(new(Q))
		if c.decode(msg) {
			c.reply(f(h, c, msg))
		}
	}
}

// answerWaiting adapts a handler that waits for the controller: it gets a
// goroutine of its own, so that the connection goes on. Kafka would serve the
// connection's next request only after this one; nobody who pipelines behind an
// admin request can tell, since answers stay in order.
func answerWaiting[Q any, R request[Q]](f func(*Handlers, *call, R) kmsg.Response) func(*Handlers, *call) {
	return func(h *Handlers, c *call) {
		msg := R(new(Q))
		if c.decode(msg) {
			c.req.Go(func() {
				defer c.release()
				c.reply(f(h, c, msg))
			})
		}
	}
}

// minAdminTimeout is what a request gets that does not want to wait at all: long
// enough for its command to be on its way, which is what Kafka gives it too.
const minAdminTimeout = 100 * time.Millisecond

// adminContext bounds an admin request by its own timeout and by the broker's;
// it ends with the connection and with the handlers.
func (c *call) adminContext(timeoutMillis int32) (context.Context, context.CancelFunc) {
	timeout := min(max(time.Duration(timeoutMillis)*time.Millisecond, minAdminTimeout), c.h.cfg.AdminTimeout)
	ctx, cancel := context.WithTimeout(c.req.Context(), timeout)
	stop := context.AfterFunc(c.h.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// await waits until this broker has acted upon all metadata there is, so that a
// client that comes back with an answer finds what the answer says: leaders of a
// new topic, the end of a deleted one, changed settings (M12). The error is an
// ErrTimeout: what was committed stands, and goes on.
func (h *Handlers) await(ctx context.Context) error {
	if err := h.cfg.Replicas.Await(ctx, h.cfg.Store.Image().Version()); err != nil {
		return fmt.Errorf("%w: the change is committed and being carried out: %w", metadata.ErrTimeout, err)
	}
	return nil
}

// settle is await for the topics of one request: those that were good become
// indefinite when time runs out.
func (h *Handlers) settle(ctx context.Context, results []metadata.TopicResult) {
	if err := h.await(ctx); err != nil {
		for i := range results {
			if results[i].Err == nil {
				results[i].Err = err
			}
		}
	}
}
