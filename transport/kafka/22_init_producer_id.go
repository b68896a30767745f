package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
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
// starts over. With one, the transaction coordinator answers: a new epoch for the
// id's producer, which ends the one before, and what that one has left open.

func (h *Handlers) initProducerID(c *call, req *kmsg.InitProducerIDRequest) {
	switch {
	case req.Version >= 3 && (req.ProducerID == -1) != (req.ProducerEpoch == -1):
		c.reply(initProducerAnswer(c, req, -1, -1, codeInvalidRequest))
	case req.TransactionalID == nil:
		if id, ok := h.ids.take(); ok {
			c.reply(initProducerAnswer(c, req, id, 0, codeNone))
			return
		}
		c.release()
		c.req.Go(func() {
			ctx, cancel := c.adminContext(int32(h.cfg.AdminTimeout / time.Millisecond))
			defer cancel()
			id, err := h.ids.Next(ctx)
			if err != nil {
				h.logger.Warn("could not get producer ids from the controller", "client", c.req.ClientID, "error", err)
				c.reply(initProducerAnswer(c, req, -1, -1, codeCoordinatorNotAvailable))
				return
			}
			c.reply(initProducerAnswer(c, req, id, 0, codeNone))
		})
	default:
		r := txn.InitRequest{ID: *req.TransactionalID, Timeout: time.Duration(req.TransactionTimeoutMillis) * time.Millisecond, ProducerID: -1, ProducerEpoch: -1}
		if req.Version >= 3 {
			r.ProducerID, r.ProducerEpoch = req.ProducerID, req.ProducerEpoch
		}
		h.cfg.Transactions.InitProducerID(r, answerTransaction(h, c, func(c *call, r txn.InitResult) kmsg.Response {
			return initProducerAnswer(c, req, r.ProducerID, r.ProducerEpoch, transactionCode(r.Err, req.Version, 4))
		}))
	}
}

func initProducerAnswer(c *call, req *kmsg.InitProducerIDRequest, id int64, epoch, code int16) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.InitProducerIDResponse)
	resp.ProducerID, resp.ProducerEpoch, resp.ErrorCode = id, epoch, c.error(code)
	return resp
}
