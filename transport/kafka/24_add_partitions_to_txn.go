package kafka

import (
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
)

// AddPartitionsToTxn (key 24), versions 0 to 5 (KIP-98).
//
//	v2    90 for fenced producers, before it was 47
//	v3    flexible
//	v4    many transactions at once, and questions: between brokers (KIP-890)
//	v5    as v4
//
// It is all or nothing: where a partition is missing it is 3, and the others are 55, not
// tried. What is wrong with the producer or its transaction is the error of each partition.
//
// Brokers of ours do not send it: the leader of a partition looks into its own metadata. The
// versions for brokers are served all the same, as Kafka does.

func (h *Handlers) addPartitionsToTxn(c *call, req *kmsg.AddPartitionsToTxnRequest) {
	if req.Version >= 4 {
		h.addPartitionsToTxns(c, req)
		return
	}
	topics := make([]transactionTopic, len(req.Topics))
	for i := range req.Topics {
		topics[i] = transactionTopic{req.Topics[i].Topic, req.Topics[i].Partitions}
	}
	r := txn.AddRequest{ID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch}
	answer := answerTransaction(h, c, func(c *call, codes []int16) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for i := range topics {
			rt := kmsg.NewAddPartitionsToTxnResponseTopic()
			rt.Topic = topics[i].name
			for _, p := range topics[i].partitions {
				rp := kmsg.NewAddPartitionsToTxnResponseTopicPartition()
				rp.Partition, rp.ErrorCode, codes = p, c.error(codes[0]), codes[1:]
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp
	})
	h.addPartitions(r, topics, req.Version, answer)
}

// addPartitions asks the coordinator. done gets a code for each partition in the order of
// the request.
func (h *Handlers) addPartitions(r txn.AddRequest, topics []transactionTopic, version int16, done func(codes []int16)) {
	n := 0
	for i := range topics {
		n += len(topics[i].partitions)
	}
	found, missing := transactionPartitions(h.cfg.Store.Image(), topics)
	if missing != nil || n == 0 {
		done(missing)
		return
	}
	r.Partitions = found
	h.cfg.Transactions.AddPartitions(r, func(partitions []error, err error) {
		codes := make([]int16, n)
		for i := range codes {
			of := err
			if err == nil && partitions != nil {
				of = partitions[i]
			}
			codes[i] = addCode(of, version)
		}
		done(codes)
	})
}

// addCode maps an error of an addition.
func addCode(err error, version int16) int16 {
	code := transactionCode(err, version, 2)
	switch {
	case code == codeUnknownTopicID: // the topic was deleted meanwhile: clients named it, and know it by its name
		return codeUnknownTopicOrPartition
	case code == codeTransactionAbortable && version == 4: // 120 came with v5
		return codeInvalidTxnState
	}
	return code
}

// addPartitionsToTxns is the form that brokers use.
func (h *Handlers) addPartitionsToTxns(c *call, req *kmsg.AddPartitionsToTxnRequest) {
	results := make([][]int16, len(req.Transactions))
	answer := answerTransaction(h, c, func(c *call, _ struct{}) kmsg.Response {
		resp := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for i := range req.Transactions {
			asked, codes := &req.Transactions[i], results[i]
			rt := kmsg.NewAddPartitionsToTxnResponseTransaction()
			rt.TransactionalID = asked.TransactionalID
			for j := range asked.Topics {
				topic := kmsg.NewAddPartitionsToTxnResponseTransactionTopic()
				topic.Topic = asked.Topics[j].Topic
				for _, p := range asked.Topics[j].Partitions {
					rp := kmsg.NewAddPartitionsToTxnResponseTransactionTopicPartition()
					rp.Partition, rp.ErrorCode, codes = p, c.error(codes[0]), codes[1:]
					topic.Partitions = append(topic.Partitions, rp)
				}
				rt.Topics = append(rt.Topics, topic)
			}
			resp.Transactions = append(resp.Transactions, rt)
		}
		return resp
	})
	var pending atomic.Int32
	pending.Store(int32(len(req.Transactions)) + 1)
	done := func() {
		if pending.Add(-1) == 0 {
			answer(struct{}{})
		}
	}
	for i := range req.Transactions {
		asked := &req.Transactions[i]
		topics := make([]transactionTopic, len(asked.Topics))
		for j := range asked.Topics {
			topics[j] = transactionTopic{asked.Topics[j].Topic, asked.Topics[j].Partitions}
		}
		r := txn.AddRequest{ID: asked.TransactionalID, ProducerID: asked.ProducerID, ProducerEpoch: asked.ProducerEpoch, VerifyOnly: asked.VerifyOnly}
		h.addPartitions(r, topics, req.Version, func(codes []int16) {
			results[i] = codes
			done()
		})
	}
	done()
}
