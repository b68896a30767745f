package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// DescribeTransactions (key 65), version 0 (KIP-664): what is committed of transactional
// ids that this broker coordinates. Topics are those of an open transaction, and of one that
// is being ended those whose markers are still missing. Offsets of groups are no partitions
// here: they live in the metadata (D1).

func (h *Handlers) describeTransactions(c *call, req *kmsg.DescribeTransactionsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeTransactionsResponse)
	image := h.cfg.Store.Image()
	for _, id := range req.TransactionalIDs {
		rs := kmsg.NewDescribeTransactionsResponseTransactionState()
		rs.TransactionalID = id
		t, err := h.cfg.Transactions.Describe(id)
		rs.ErrorCode = c.groupCode(err)
		if err == nil {
			describeTransaction(image, t, &rs)
		}
		resp.TransactionStates = append(resp.TransactionStates, rs)
	}
	return resp
}

func describeTransaction(image *metadata.Image, t *metadata.Transaction, rs *kmsg.DescribeTransactionsResponseTransactionState) {
	rs.State, rs.TimeoutMillis = t.State.String(), int32(t.Timeout.Milliseconds())
	rs.ProducerID, rs.ProducerEpoch = t.ProducerID, t.ProducerEpoch
	rs.StartTimestamp = -1
	if t.StartedAt > 0 && t.State != metadata.TransactionEmpty { // of an Empty one it is that of an earlier producer
		rs.StartTimestamp = t.StartedAt
	}
	for i := range t.Partitions {
		topic := image.TopicByID(t.Partitions[i].TopicID)
		if topic == nil {
			continue // deleted: it will be taken out
		}
		rt := kmsg.NewDescribeTransactionsResponseTransactionStateTopic()
		rt.Topic, rt.Partitions = topic.Name, t.Partitions[i].Partitions
		rs.Topics = append(rs.Topics, rt)
	}
}
