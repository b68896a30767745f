package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// InitProducerId (key 22), versions 0 to 5 (KIP-98).
//
//	v2    flexible
//	v3    the producer may send the id and epoch it has, to go on after an error
//	      (KIP-360)
//	v4    90 for fenced producers, which are transactional
//	v5    as v4 (KIP-890)
//
// Without a transactional id every broker answers, with an id that nobody ever
// had and epoch 0, also to a producer that sends the id it had: such a producer
// starts over. With one, the transaction coordinator would have to answer. There
// is none yet, so that clients get what FindCoordinator tells them first: 15,
// retriable; an empty transactional id is 42 and an impossible timeout 50 all the
// same, so that these mistakes show at once.

func (h *Handlers) initProducerID(c *call, req *kmsg.InitProducerIDRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch = -1, -1
	switch {
	case req.Version >= 3 && (req.ProducerID == -1) != (req.ProducerEpoch == -1):
		resp.ErrorCode = c.error(codeInvalidRequest)
	case req.TransactionalID == nil:
		ctx, cancel := c.adminContext(int32(h.cfg.AdminTimeout / time.Millisecond))
		defer cancel()
		id, err := h.ids.next(ctx)
		if err != nil {
			h.logger.Warn("could not get producer ids from the controller", "client", c.req.ClientID, "error", err)
			resp.ErrorCode = c.error(codeCoordinatorNotAvailable)
			break
		}
		resp.ProducerID, resp.ProducerEpoch = id, 0
	case *req.TransactionalID == "":
		resp.ErrorCode = c.error(codeInvalidRequest)
	case req.TransactionTimeoutMillis <= 0 || time.Duration(req.TransactionTimeoutMillis)*time.Millisecond > h.settings.maxTransactionTimeout:
		resp.ErrorCode = c.error(codeInvalidTransactionTimeout)
	default:
		resp.ErrorCode = c.error(codeCoordinatorNotAvailable)
	}
	return resp
}

// producerIDs hands out producer ids from a block that the controller gave this
// broker. The rest of a block dies with the process: an id is never given out
// twice (P5).
type producerIDs struct {
	allocate func(ctx context.Context) (first int64, count int, err error)

	// refill is held while a block is asked for, so that it is asked for once.
	refill sync.Mutex

	mu struct {
		sync.Mutex
		first, after int64 // what is left of the block: first ≤ id < after
	}
}

// take returns an id of the present block, or false when it is used up.
func (p *producerIDs) take() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.first == p.mu.after {
		return 0, false
	}
	p.mu.first++
	return p.mu.first - 1, true
}

// next returns an id, waiting for the controller when the block is used up.
func (p *producerIDs) next(ctx context.Context) (int64, error) {
	for {
		if id, ok := p.take(); ok {
			return id, nil
		}
		if err := p.fill(ctx); err != nil {
			return 0, err
		}
	}
}

func (p *producerIDs) fill(ctx context.Context) error {
	p.refill.Lock()
	defer p.refill.Unlock()
	p.mu.Lock()
	filled := p.mu.first != p.mu.after
	p.mu.Unlock()
	if filled { // by the one we waited for
		return nil
	}
	first, count, err := p.allocate(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.first, p.mu.after = first, first+int64(count)
	return nil
}
