package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
)

// EndTxn (key 26), versions 0 to 5 (KIP-98).
//
//	v2    90 for fenced producers, before it was 47
//	v3    flexible
//	v5    every end gives the producer a new epoch, which the answer tells (KIP-890)
//
// The answer comes when the decision is committed; the markers follow by themselves. The
// same request again is answered alike, the opposite one is 48, and so is one for which
// nothing is open: but in v5 a producer may abort what it has not begun.
//
// Before v5 an EndTxn that is held up on its way may decide the next transaction of its
// producer (P8, KAFKA-17754): nothing in it tells the two apart. v5 closes that.

func (h *Handlers) endTxn(c *call, req *kmsg.EndTxnRequest) {
	r := txn.EndRequest{ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Commit: req.Commit, Version: 1}
	if req.Version >= 5 {
		r.Version = 2
	}
	h.cfg.Transactions.End(r, answerTransaction(h, c, func(c *call, r txn.EndResult) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.EndTxnResponse)
		resp.ErrorCode = c.error(transactionCode(r.Err, req.Version, 2))
		if req.Version >= 5 {
			resp.ProducerID, resp.ProducerEpoch = r.ProducerID, r.ProducerEpoch
		}
		return resp
	}))
}
