package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
)

// AddOffsetsToTxn (key 25), versions 0 to 4 (KIP-98).
//
//	v2    90 for fenced producers, before it was 47
//	v3    flexible
//	v4    as v3 (KIP-890)
//
// It makes offsets of a group part of the producer's transaction, which begins with it if
// there is none.

func (h *Handlers) addOffsetsToTxn(c *call, req *kmsg.AddOffsetsToTxnRequest) {
	r := txn.AddOffsetsRequest{ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Group: req.Group}
	h.cfg.Transactions.AddOffsets(r, answerTransaction(h, c, func(c *call, err error) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.AddOffsetsToTxnResponse)
		resp.ErrorCode = c.error(transactionCode(err, req.Version, 2))
		return resp
	}))
}
