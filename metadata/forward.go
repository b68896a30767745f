package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Forwarder carries a call to the controller; transport/peer implements it, and calls Store.ServeForward at the other
// end. The body and the answer belong to the receiver.
//
// An error that matches ErrNotSent says that the call has not reached the other broker, so that it may be tried again. Any
// other error leaves the outcome open, but those that ServeForward itself returned, which must arrive so that they match
// ErrNotController again.
type Forwarder interface {
	Forward(ctx context.Context, controller BrokerID, address string, method string, body []byte) ([]byte, error)
}

const (
	// controllerWait bounds how long an operation waits for a controller while none is known; afterwards it fails, so that
	// callers are not kept waiting for the whole of their time when the quorum is lost (M19).
	controllerWait = 3 * time.Second
	// controllerPoll is the pause before a call is tried again that reached no controller. A new Image ends it early.
	controllerPoll = 20 * time.Millisecond
	// forwardLimit bounds a call whose caller set no deadline.
	forwardLimit = 30 * time.Second
)

// operation is one thing that only the controller can do. It has a name for the way between brokers, and local, which
// does it at the controller.
type operation[Req, Res any] struct {
	name  string
	local func(s *Store, ctx context.Context, req Req) (Res, error)
	// repeatable operations may be sent again when the outcome of the first time is unknown.
	repeatable bool
	// unseen operations don't wait until the change can be seen here (M12).
	unseen bool
	// binary is a second form of calls, nil if there is none. Only unseen operations have one: its answers have no version.
	binary *binaryForm[Req, Res]
}

// served is an operation as ServeForward finds it.
type served interface {
	method() string
	serve(s *Store, ctx context.Context, body []byte) ([]byte, error)
}

func (op *operation[Req, Res]) method() string { return op.name }

// forwardedCall is a call on its way, and forwardedAnswer what comes back. Fields are only ever added.
type forwardedCall[Req any] struct {
	// TimeoutMillis is how much time the caller has left.
	TimeoutMillis int64 `json:"timeout_ms"`
	Args          Req   `json:"args"`
}

type forwardedAnswer[Res any] struct {
	// Version is that of the controller's Image after the operation.
	Version uint64     `json:"version"`
	Error   *wireError `json:"error,omitempty"`
	Result  Res        `json:"result"`
}

// ServeForward carries out a call that another broker's Store sent. The error matches ErrNotController if this broker is
// not the controller, ErrInvalidRequest if it does not know the method or can't read the body; what the operation itself
// says, errors included, is in the answer.
func (s *Store) ServeForward(ctx context.Context, method string, body []byte) ([]byte, error) {
	if method == StatsMethod { // every broker knows how far it is
		return json.Marshal(s.Stats())
	}
	op := findOperation(method)
	if op == nil {
		return nil, &Error{
			Kind: ErrInvalidRequest,
			What: fmt.Sprintf("broker %d does not know the controller operation %s", s.cfg.NodeID, quoteShort(method)),
			Why:  "the broker that called runs another version",
			Fix:  "finish the upgrade of all brokers, then try again",
		}
	}
	if _, err := s.controller(); err != nil {
		return nil, err
	}
	return op.serve(s, ctx, body)
}

func (op *operation[Req, Res]) serve(s *Store, ctx context.Context, body []byte) ([]byte, error) {
	var c forwardedCall[Req]
	if err := json.Unmarshal(body, &c); err != nil {
		return nil, fmt.Errorf("%w: read a forwarded %s: %w", ErrInvalidRequest, op.name, err)
	}
	res, err := op.serveLocal(s, ctx, c.TimeoutMillis, c.Args)
	if errors.Is(err, ErrNotController) {
		return nil, err
	}
	return json.Marshal(forwardedAnswer[Res]{Version: s.Image().Version(), Error: newWireError(err), Result: res})
}

// serveLocal carries out a call of a caller who waits so many milliseconds more.
func (op *operation[Req, Res]) serveLocal(s *Store, ctx context.Context, ms int64, req Req) (Res, error) {
	limit := time.Duration(ms) * time.Millisecond
	if limit <= 0 || limit > forwardLimit {
		limit = forwardLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := op.local(s, ctx, req)
	if err == nil {
		err = wholly(res)
	}
	return res, err
}

// itemized is implemented by results that have an error for each item.
type itemized interface {
	// common returns the error that all items share by kind ErrNotController, else nil.
	common() error
}

// wholly returns the error of a result all of whose items met no controller.
func wholly(res any) error {
	if r, ok := res.(itemized); ok {
		return r.common()
	}
	return nil
}

// call carries an operation out: here if this broker is the controller, else at the one that is. While the answer is that
// nothing was proposed because the controller has changed, it is tried again until ctx ends, or until none was known for
// controllerWait.
func call[Req, Res any](ctx context.Context, s *Store, op *operation[Req, Res], req Req) (res Res, err error) {
	if s.cfg.Forwarder == nil {
		return op.local(s, ctx, req)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, forwardLimit)
		defer cancel()
	}
	var w *Watcher // from the first pause on
	defer func() {
		if w != nil {
			w.Close()
		}
	}()
	var unknownSince time.Time
	for {
		if s.lead.Load() != nil {
			if res, err = op.local(s, ctx, req); err == nil {
				err = wholly(res)
			}
		} else {
			res, err = forward(ctx, s, op, req)
		}
		again := errors.Is(err, ErrNotController) || op.repeatable && errors.Is(err, ErrTimeout)
		if !again || ctx.Err() != nil || s.over() {
			return res, err
		}
		if id := s.Image().ControllerID(); id != NoBroker {
			unknownSince = time.Time{}
		} else if unknownSince.IsZero() {
			unknownSince = time.Now()
		} else if time.Since(unknownSince) > controllerWait {
			return res, err
		}
		if w == nil {
			w = s.Watch()
			<-w.C() // the signal that it begins with; an Image of before this is seen after a controllerPoll
		}
		pause := time.NewTimer(controllerPoll)
		select {
		case <-w.C():
		case <-pause.C:
		case <-ctx.Done():
		case <-s.stop:
		}
		pause.Stop()
	}
}

// over reports whether this Store can never again carry anything out.
func (s *Store) over() bool {
	select {
	case <-s.failed.c:
		return true
	case <-s.stop:
		return true
	default:
		return false
	}
}

// forward sends an operation to the controller that this broker knows of, once.
func forward[Req, Res any](ctx context.Context, s *Store, op *operation[Req, Res], req Req) (res Res, err error) {
	_, none := s.controller() // says why this broker can't do it
	if none == nil {
		return res, ErrNotController // it has just become the controller
	}
	id, address := s.controllerAddress()
	if !errors.Is(none, ErrNotController) || address == "" {
		return res, none
	}
	deadline, _ := ctx.Deadline()
	ms := max(time.Until(deadline).Milliseconds(), 1)
	var old oldController
	if op.binary != nil {
		old = s.asRegistered(id)
		if known := s.oldController.Load(); known == nil || *known != old {
			data, err := s.cfg.Forwarder.Forward(ctx, id, address, op.binary.method, op.binary.appendCall(ms, req))
			if !errors.Is(err, ErrInvalidRequest) {
				if err := forwardError(id, address, err); err != nil {
					return res, err
				}
				res, failed, err := op.binary.readAnswer(data)
				if err != nil {
					return res, fmt.Errorf("%w: read the controller's answer to %s: %w", ErrTimeout, op.name, err)
				}
				return res, failed
			}
			// Nothing was done. An earlier version would understand JSON; if it was something else, JSON brings it to light.
		}
	}
	body, err := json.Marshal(forwardedCall[Req]{TimeoutMillis: ms, Args: req})
	if err != nil {
		return res, fmt.Errorf("encode %s for the controller: %w", op.name, err)
	}
	data, err := s.cfg.Forwarder.Forward(ctx, id, address, op.name, body)
	if err := forwardError(id, address, err); err != nil {
		return res, err
	}
	var answer forwardedAnswer[Res]
	if err := json.Unmarshal(data, &answer); err != nil {
		return res, fmt.Errorf("%w: read the controller's answer to %s: %w", ErrTimeout, op.name, err)
	}
	if op.binary != nil {
		s.oldController.Store(&old)
	}
	if err := answer.Error.err(); err != nil {
		return answer.Result, err
	}
	if !op.unseen {
		s.waitVersion(ctx, answer.Version)
	}
	return answer.Result, nil
}

// forwardError says what an error of the way to the controller means.
func forwardError(id BrokerID, address string, err error) error {
	switch {
	case err == nil, errors.Is(err, ErrNotController), errors.Is(err, ErrInvalidRequest):
		return err
	case errors.Is(err, ErrNotSent):
		return &Error{
			Kind: ErrNotController,
			What: fmt.Sprintf("the controller, broker %d, can't be reached at %s", id, address),
			Why:  err.Error(),
			Fix:  "try again in a moment; if it lasts, see that the brokers reach each other on the listener for brokers",
		}
	}
	return &Error{
		Kind: ErrTimeout,
		What: fmt.Sprintf("no answer from the controller, broker %d at %s", id, address),
		Why:  fmt.Sprintf("the change may have been made, or not: %v", err),
		Fix:  "look at the present state before trying again",
	}
}

// controllerAddress returns the controller and where it listens for other brokers, "" when that is not known. A controller
// that has not registered yet is reached at its Raft server's address, which is the same listener.
func (s *Store) controllerAddress() (BrokerID, string) {
	im := s.Image()
	id := im.ControllerID()
	if id == NoBroker || id == s.cfg.NodeID {
		return id, ""
	}
	if b := im.Broker(id); b != nil && b.PeerAddress != "" {
		return id, b.PeerAddress
	}
	if address, server := s.raft.LeaderWithID(); brokerOf(server) == id {
		return id, string(address)
	}
	return id, ""
}

// waitVersion waits until the local Image has reached a version (M12), or until ctx ends: what was done is done.
func (s *Store) waitVersion(ctx context.Context, version uint64) {
	if s.Image().Version() >= version {
		return
	}
	w := s.Watch()
	defer w.Close()
	for s.Image().Version() < version {
		select {
		case <-w.C():
		case <-ctx.Done():
			return
		case <-s.stop:
			return
		}
	}
}
