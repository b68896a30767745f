package kafka

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// A transactional batch is appended only to a partition that is part of its producer's open
// transaction (KIP-890). Else a batch that was held up on its way would open a transaction
// after the one it belonged to had ended, and nobody would end that (P7).
//
//	up to v11   the producer has added the partition. If this broker does not know of
//	            that, it asks for the newest metadata once, and then decides.
//	v12 and up  the partition is added here, before its first batch is appended.
//
// The connection's next request waits meanwhile: batches of one connection are appended in
// the order in which they came.

const (
	// enlistHold bounds the wait for the markers of the transaction before, which is most often a matter of milliseconds
	// (protocol.md trap 29).
	enlistHold = 500 * time.Millisecond
	// enlistTimeout bounds all of the wait of a request; the connection waits as long. What comes later is told 19, and the
	// producer tries again.
	enlistTimeout = 10 * time.Second
)

// transactionalBatch is a batch that was found to be good, before it is appended.
type transactionalBatch struct {
	index int
	part  *replication.Partition
	batch record.Batch
}

// appendTransactional is the way of a request with a transactional id.
func (p *produceCall) appendTransactional(now time.Time) {
	good := make([]transactionalBatch, 0, len(p.body.partitions))
	// The names in the frame are gone when it is answered, and the id's is kept by the metadata.
	member := txn.Membership{ProducerID: -1}
	for i := range p.body.partitions {
		part, batch := p.check(i, now)
		if part == nil {
			continue
		}
		if batch.IsTransactional() {
			id, epoch := batch.ProducerID(), batch.ProducerEpoch()
			switch {
			case id < 0:
				p.fail(i, errNoProducerID)
				continue
			case member.ProducerID < 0:
				member.ProducerID, member.ProducerEpoch = id, epoch
			case member.ProducerID != id || member.ProducerEpoch != epoch:
				p.fail(i, errTwoProducers)
				continue
			}
		}
		good = append(good, transactionalBatch{i, part, batch})
	}
	var err error
	image := p.h.cfg.Store.Image()
	if t := image.Transaction(p.body.transactionalID); t != nil {
		member.ID = t.ID // the metadata's own string: nothing needs to be copied
	} else {
		member.ID = strings.Clone(p.body.transactionalID)
	}
	second := p.req.Version >= 12 && image.FeatureLevel() >= metadata.TransactionsFeatureLevel
	if member.ProducerID >= 0 && !p.members(image, member, good) {
		err = p.join(member, good, second)
	}
	for _, b := range good {
		if !b.batch.IsTransactional() {
			p.append(b.index, b.part, b.batch)
			continue
		}
		if err != nil {
			p.fail(b.index, err)
			continue
		}
		request := p.appendRequest(b.index, b.batch)
		topic, partition := b.part.TopicID(), b.part.ID()
		verifier := p.h.verifier
		request.MayBegin = func() error { return verifier.MayBegin(member, topic, partition) }
		if request.TransactionVersion = 1; second {
			request.TransactionVersion = 2
		}
		b.part.Append(request)
	}
}

// members reports whether all partitions are part of the open transaction already, as they
// are for all batches but the first ones.
func (p *produceCall) members(image *metadata.Image, m txn.Membership, good []transactionalBatch) bool {
	for i := range good {
		if good[i].batch.IsTransactional() && !m.Has(image, good[i].part.TopicID(), good[i].part.ID()) {
			return false
		}
	}
	return true
}

// join waits until the partitions are part of the transaction, or for what is wrong.
func (p *produceCall) join(m txn.Membership, good []transactionalBatch, second bool) error {
	r := txn.EnlistRequest{Membership: m}
	for i := range good {
		if !good[i].batch.IsTransactional() {
			continue
		}
		id, partition := good[i].part.TopicID(), good[i].part.ID()
		if n := len(r.Partitions); n > 0 && r.Partitions[n-1].TopicID == id {
			r.Partitions[n-1].Partitions = append(r.Partitions[n-1].Partitions, partition)
		} else {
			r.Partitions = append(r.Partitions, metadata.TopicPartitions{TopicID: id, Partitions: []int32{partition}})
		}
	}
	outcome := make(chan error, 1)
	if second {
		p.h.enlister.Enlist(r, func(err error) { outcome <- err })
	} else {
		p.h.verifier.Verify(r, func(err error) { outcome <- err })
	}
	ctx, cancel := context.WithTimeout(p.req.Context(), enlistTimeout)
	defer cancel()
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
	case <-p.h.ctx.Done():
	}
	return txn.ErrUnverified
}

// produceCode maps an error of an append to what clients of the request's version know.
// Whatever kept the broker from finding out is 19: producers of every age repeat their
// request upon it, and do not ask for new metadata.
func (p *produceCall) produceCode(err error) int16 {
	switch {
	case errors.Is(err, metadata.ErrProducerFenced), errors.Is(err, metadata.ErrInvalidProducerEpoch):
		return codeInvalidProducerEpoch
	case errors.Is(err, metadata.ErrInvalidTransactionState):
		if p.req.Version >= 11 {
			return codeTransactionAbortable
		}
		return codeInvalidTxnState
	case errors.Is(err, metadata.ErrConcurrentTransactions):
		if p.req.Version >= 12 {
			return codeConcurrentTransactions
		}
		return codeNotEnoughReplicas
	case errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrNotCoordinator), errors.Is(err, metadata.ErrInvalidFeatureLevel):
		return codeNotEnoughReplicas
	case errors.Is(err, metadata.ErrUnknownTopicID), errors.Is(err, metadata.ErrUnknownPartition):
		return codeNotLeaderOrFollower // it is being deleted: the producer looks again
	}
	return codeOf(err)
}
