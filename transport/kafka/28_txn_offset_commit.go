package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// TxnOffsetCommit (key 28), versions 0 to 6 (KIP-98).
//
//	v2    leader epoch of the last record, stored and returned (KIP-320, G13)
//	v3    flexible; member, generation and instance: a zombie's offsets are refused (KIP-447)
//	v4    120 where the group was not added to the transaction, before it was 48
//	v5    the group is added by this request (KIP-890)
//	v6    topics by id alone
//
// What is acknowledged takes effect with the transaction, in the same step that commits it,
// or is dropped with it. The group's coordinator answers. A producer that was fenced is told
// 47 in every version.

func (h *Handlers) txnOffsetCommit(c *call, req *kmsg.TxnOffsetCommitRequest) {
	image := h.cfg.Store.Image()
	r := group.CommitTransactionRequest{
		CommitRequest:   group.CommitRequest{Group: req.Group, Generation: -1},
		TransactionalID: req.TransactionalID, ProducerID: req.ProducerID, ProducerEpoch: req.ProducerEpoch, Implicit: req.Version >= 5,
	}
	if req.Version >= 3 {
		r.Member, r.Instance, r.Generation = req.MemberID, text(req.InstanceID), req.Generation
	}
	var slots []commitSlot
	for i := range req.Topics {
		topic := &req.Topics[i]
		t, missing := findTopic(image, req.Version >= 6, topic.Topic, topic.TopicID)
		for j := range topic.Partitions {
			p := &topic.Partitions[j]
			at, err := group.TopicIDPartition{}, missing
			if err == nil {
				at, err = findPartition(t, p.Partition)
			}
			if err == nil && p.Offset < 0 {
				err = errNegativeOffset
			}
			slots = append(slots, commitSlot{err, len(r.Offsets)})
			if err != nil {
				continue
			}
			epoch := int32(-1)
			if req.Version >= 2 {
				epoch = p.LeaderEpoch
			}
			r.Offsets = append(r.Offsets, group.OffsetEntry{TopicID: at.TopicID, Partition: at.Partition, Offset: p.Offset, LeaderEpoch: epoch, Metadata: text(p.Metadata)})
		}
	}
	g := h.groupCalls.begin(c, nil)
	done := func(errs []error, err error) {
		g.answer(func(c *call) kmsg.Response { return txnCommitAnswer(c, req, slots, errs, err) })
	}
	if len(r.Offsets) == 0 && len(slots) > 0 {
		// None of the partitions exists. As Kafka does, it is not asked whose they would be.
		done(nil, nil)
		return
	}
	h.cfg.Groups.CommitTransaction(r, done)
}

func txnCommitAnswer(c *call, req *kmsg.TxnOffsetCommitRequest, slots []commitSlot, errs []error, all error) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
	resp.Topics = make([]kmsg.TxnOffsetCommitResponseTopic, 0, len(req.Topics))
	at := 0
	for i := range req.Topics {
		topic := &req.Topics[i]
		rt := kmsg.NewTxnOffsetCommitResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for j := range topic.Partitions {
			rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			rp.Partition = topic.Partitions[j].Partition
			// A partition that is missing says so, whatever is wrong with the rest.
			s := slots[at]
			err := s.err
			if err == nil {
				if err = all; err == nil {
					err = errs[s.at]
				}
			}
			rp.ErrorCode = c.error(txnCommitCode(err, req.Version))
			rt.Partitions = append(rt.Partitions, rp)
			at++
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// txnCommitCode maps an error of a commit to what clients of a version know.
func txnCommitCode(err error, version int16) int16 {
	switch {
	case errors.Is(err, metadata.ErrProducerFenced):
		return codeInvalidProducerEpoch
	case errors.Is(err, metadata.ErrInvalidTransactionState) && version >= 4:
		return codeTransactionAbortable
	case errors.Is(err, metadata.ErrConcurrentTransactions) && version < 5:
		return codeCoordinatorLoadInProgress // what clients of that age repeat their request upon
	case errors.Is(err, group.ErrGroupNotFound):
		return codeIllegalGeneration
	case errors.Is(err, metadata.ErrUnknownTopicID) && version < 6: // deleted meanwhile: clients know it by its name
		return codeUnknownTopicOrPartition
	}
	return groupCode(err)
}
