package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
)

// killByTransactions needs no fault: enough transactions are aborted, and enough readers read along.
func killByTransactions(ctx context.Context, r *run) error {
	r.startWorkload()
	r.settled(ctx, 15*time.Second)
	return nil
}

// killLateProduce has batches of the first protocol arrive behind the end of their transactions, some while the next one is
// open elsewhere, and then commits others behind them.
func killLateProduce(ctx context.Context, r *run) error {
	var cards []lateCard
	for range 3 {
		cards = append(cards, lateCard{key: keyProduce, next: lateNothing}, lateCard{key: keyProduce, next: lateElsewhere})
	}
	r.startLate(cards)
	r.endLate(ctx)
	return nil
}

// killSkipMarker commits a transaction that has written to every partition of a topic.
func killSkipMarker(ctx context.Context, r *run) error {
	p, err := r.lateProducer("whole", "pay-everywhere", true)
	if err != nil {
		return err
	}
	defer p.close()
	ctx, cancel := context.WithTimeout(ctx, healPatience)
	defer cancel()
	if err := p.init(ctx, lateTransaction); err != nil {
		return err
	}
	txn := p.begin()
	for partition := range int32(r.perTopic) {
		if err := p.send(ctx, txn, partition); err != nil {
			return err
		}
	}
	return p.end(ctx, txn, true)
}

// killOffsetsBeforeEnd sends offsets in a transaction, which it then aborts.
func killOffsetsBeforeEnd(ctx context.Context, r *run) error {
	if err := r.scripted().sendAcked(ctx, 5); err != nil {
		return err
	}
	m, err := r.rawMember("aborting")
	if err != nil {
		return err
	}
	defer m.cl.Close()
	const id = "pay-by-hand"
	txn := check.Value(m.process, 1)
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: m.process, Text: "transactional"})
	begin := kmsg.NewPtrInitProducerIDRequest()
	transactional := id
	begin.TransactionalID, begin.TransactionTimeoutMillis = &transactional, 30_000
	began, err := begin.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(began.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	r.history.Log(check.Op{F: check.Begin, Type: check.OK, Process: m.process, Txn: txn, Text: id})
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = id, began.ProducerID, began.ProducerEpoch, m.group
	added, err := add.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(added.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("add the group: %w", err)
	}
	o := check.Op{F: check.TxnOffsets, Type: check.Invoke, Process: m.process, Txn: txn, Group: m.group, Key: check.Key(topics[0], 0)}
	r.history.Log(o)
	offsets := kmsg.NewPtrTxnOffsetCommitRequest()
	offsets.TransactionalID, offsets.ProducerID, offsets.ProducerEpoch, offsets.Group, offsets.Generation = id, began.ProducerID, began.ProducerEpoch, m.group, -1
	t, p := kmsg.NewTxnOffsetCommitRequestTopic(), kmsg.NewTxnOffsetCommitRequestTopicPartition()
	t.Topic = topics[0]
	t.Partitions = append(t.Partitions, p)
	offsets.Topics = append(offsets.Topics, t)
	sent, err := offsets.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(sent.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("send the offsets: %w", err)
	}
	o = check.Op{F: check.End, Type: check.Invoke, Process: m.process, Txn: txn, Text: check.AbortIt}
	r.history.Log(o)
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch = id, began.ProducerID, began.ProducerEpoch
	ended, err := end.RequestWith(ctx, m.cl)
	if err == nil {
		err = kerr.ErrorForCode(ended.ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	o.Type = check.OK
	r.history.Log(o)
	return r.askOffsets(ctx, m.group)
}
