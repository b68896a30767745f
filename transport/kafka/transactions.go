package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/metadata"
)

// Transactions is what the handlers ask of the transaction coordinator of this broker;
// *txn.Coordinator is one.
type Transactions interface {
	InitProducerID(r txn.InitRequest, done func(txn.InitResult))
	AddPartitions(r txn.AddRequest, done func(partitions []error, err error))
	AddOffsets(r txn.AddOffsetsRequest, done func(error))
	End(r txn.EndRequest, done func(txn.EndResult))
	Describe(id string) (*metadata.Transaction, error)
	List(f txn.Filter) ([]*metadata.Transaction, error)
}

// transactionCode maps an error of the transaction coordinator to what clients of a
// request's version know. Before fencedSince a fenced producer is told 47, which those
// clients took for their end; 90 came with KIP-588 for requests, and says the same.
// Whatever says that the coordinator's work did not get through, or may not have, is 15:
// they look for the coordinator again.
func transactionCode(err error, version, fencedSince int16) int16 {
	if errors.Is(err, metadata.ErrProducerFenced) || errors.Is(err, metadata.ErrInvalidProducerEpoch) {
		if version < fencedSince {
			return codeInvalidProducerEpoch
		}
		return codeProducerFenced
	}
	return groupCode(err)
}

// transactionTopic is a topic with partitions as AddPartitionsToTxn names it.
type transactionTopic struct {
	name       string
	partitions []int32
}

// transactionPartitions finds what a request names in the metadata. If something is
// missing, missing has a code for each partition in the order of the request: 3 where there
// is none, 55 where there is one, which is not tried alone.
func transactionPartitions(image *metadata.Image, topics []transactionTopic) (found []metadata.TopicPartitions, missing []int16) {
	var codes []int16
	good := true
	for i := range topics {
		t := image.Topic(topics[i].name)
		for _, p := range topics[i].partitions {
			code := codeOperationNotAttempted
			if _, err := findPartition(t, p); err != nil {
				code, good = codeUnknownTopicOrPartition, false
			}
			codes = append(codes, code)
		}
		if t != nil {
			found = append(found, metadata.TopicPartitions{TopicID: t.ID, Partitions: topics[i].partitions})
		}
	}
	if good {
		return found, nil
	}
	return nil, codes
}

// transactionState returns the state that Kafka's name says.
func transactionState(name string) (metadata.TransactionState, bool) {
	for s := metadata.TransactionEmpty; s <= metadata.TransactionCompleteAbort; s++ {
		if s.String() == name {
			return s, true
		}
	}
	return 0, false
}

// answerTransaction makes the answer of a call from an outcome that comes later, from any
// goroutine: the coordinator holds a request back for a moment at most.
func answerTransaction[R any](h *Handlers, c *call, build func(c *call, result R) kmsg.Response) func(R) {
	g := h.groupCalls.begin(c, nil)
	return func(result R) { g.answer(func(c *call) kmsg.Response { return build(c, result) }) }
}
