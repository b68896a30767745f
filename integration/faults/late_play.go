package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
)

// Offsets of the transaction whose request is late, and of the next one.
const (
	offsetBefore = 20
	offsetNext   = 25
)

// latePlay is one card on the table: transaction a has a request held, comes to its end, the next transaction b begins or not,
// and then the request arrives.
type latePlay struct {
	r      *run
	card   lateCard
	random *rand.Rand
	// partition is what the late request is about, name the transactional id and the group.
	partition, elsewhere int32
	name                 string

	p *lateProducer
	// retried: the producer sends its offsets again and commits them; what is late is a second copy.
	retried  bool
	a, b     int64 // transactions; b is 0 until it is begun
	sent     check.Op
	answered func(check.Type, error) // of the end of a, when that is what is held
	// expected is the committed offset at the end.
	expected int64
	stored   int64 // offset that b commits, -1 none
}

// run plays the card and returns what became of the late request. An error says that nothing can be said.
func (l *latePlay) run(ctx context.Context, client string) (verdict string, err error) {
	if l.p, err = l.r.lateProducer(client, l.name, l.card.second); err != nil {
		return "", err
	}
	defer l.p.close()
	l.expected, l.stored = -1, -1
	l.retried = l.card.key == keyTxnOffsetCommit && !l.card.timedOut && l.random.IntN(2) == 0
	held, err := l.begin(ctx)
	if err != nil {
		return "", err
	}
	if err := l.endOfA(ctx); err != nil {
		return "", err
	}
	if l.card.next != lateNothing {
		err = l.beginB(ctx)
	} else {
		err = l.p.complete(ctx) // where its marker is not written yet, what is late is a part of it, and ends with it
	}
	if err != nil {
		return "", err
	}
	verdict, over, err := l.arrive(ctx, held)
	if err != nil {
		return "", err
	}
	if !over {
		if err := l.endOfB(ctx); err != nil {
			return "", err
		}
	}
	return verdict, l.settled(ctx)
}

// begin opens a, with one acknowledged record in it, and has the request held.
func (l *latePlay) begin(ctx context.Context) (*late, error) {
	timeout := lateTransaction
	if l.card.timedOut {
		timeout = lateShort
	}
	if err := l.p.init(ctx, timeout); err != nil {
		return nil, err
	}
	l.a = l.p.begin()
	where := l.partition
	if l.card.key == keyProduce && l.random.IntN(2) == 0 {
		where = l.elsewhere // what is late will be the first that the partition sees of this producer
	}
	if err := l.p.send(ctx, l.a, where); err != nil {
		return nil, err
	}
	switch l.card.key {
	case keyProduce:
		if err := l.p.add(ctx, l.partition); err != nil {
			return nil, err
		}
		l.sent = l.p.value(l.a, l.partition)
		return l.p.holdBatch(ctx, l.p.batch(l.sent, l.partition))
	case keyTxnOffsetCommit:
		if err := l.p.addGroup(ctx, l.name); err != nil {
			return nil, err
		}
		l.p.noteOffset(l.a, l.name, l.partition, offsetBefore)
		held, err := l.p.hold(ctx, l.p.offset(l.name, l.partition, offsetBefore), l.p.cl)
		if err == nil && l.retried {
			err = l.p.again(ctx, func() error {
				resp, err := l.p.offset(l.name, l.partition, offsetBefore).RequestWith(ctx, l.p.cl)
				if err == nil {
					err = offsetTaken(resp)
				}
				return err
			})
		}
		return held, err
	}
	l.answered = l.p.asks(l.a, true)
	return l.p.hold(ctx, l.p.endRequest(true), l.p.cl)
}

// endOfA ends a without the request.
func (l *latePlay) endOfA(ctx context.Context) error {
	switch {
	case l.card.timedOut:
		if err := l.stable(ctx); err != nil { // by then it was aborted
			return err
		}
		return l.p.init(ctx, lateTransaction)
	case l.card.key == keyEndTxn: // the producer asks again
		err := l.p.endAs(ctx, true)
		if err != nil {
			l.answered(check.Info, err)
			return err
		}
		l.answered(check.OK, nil)
		return nil
	}
	if l.retried {
		l.expected = offsetBefore
	}
	return l.p.end(ctx, l.a, l.retried)
}

// beginB opens b, in the place of the late request or elsewhere.
func (l *latePlay) beginB(ctx context.Context) error {
	l.b = l.p.begin()
	where := l.elsewhere
	if l.card.next == lateSame {
		where = l.partition
		switch l.card.key {
		case keyProduce:
			if !l.card.second {
				return l.p.add(ctx, where) // what is late would be its first batch there
			}
		case keyTxnOffsetCommit:
			if err := l.p.addGroup(ctx, l.name); err != nil {
				return err
			}
			if err := l.p.sendOffset(ctx, l.b, l.name, l.partition, offsetNext); err != nil {
				return err
			}
			l.stored = offsetNext
		}
	}
	return l.p.send(ctx, l.b, where)
}

// arrive lets the request go and judges the answer; over: it has ended b.
func (l *latePlay) arrive(ctx context.Context, held *late) (verdict string, over bool, err error) {
	hole := l.card.hole()
	ended := func(check.Type, error) {}
	if hole { // what may follow is written down before it can
		switch l.card.key {
		case keyProduce:
			l.r.history.Log(check.Op{F: check.Adopt, Type: check.OK, Process: l.p.process, Key: l.sent.Key, Txn: l.b, Value: l.sent.Value})
		case keyEndTxn:
			ended = l.p.asks(l.b, true)
			over = true
		}
	}
	offset, refused := held.arrive(ctx)
	if refused != nil && !refusal(refused) {
		l.complete(check.Info, 0, refused)
		ended(check.Info, refused)
		return "", over, fmt.Errorf("the late request: %w", refused)
	}
	if refused != nil {
		l.complete(check.Fail, 0, refused)
		ended(check.Fail, refused)
		code := &kerr.Error{}
		errors.As(refused, &code)
		return "refused with " + code.Message, over, nil // b, if it is open, is left to its timeout
	}
	l.complete(check.OK, offset, nil)
	ended(check.OK, nil)
	switch {
	case hole && l.card.key == keyProduce:
		l.p.sequences[l.partition]++
		return "let into the next transaction, as the first protocol has it", false, nil
	case hole && l.card.key == keyTxnOffsetCommit:
		l.p.noteOffset(l.b, l.name, l.partition, offsetBefore)
		l.stored = offsetBefore
		return "let into the next transaction, as the first protocol has it", false, nil
	case hole:
		return "has ended the next transaction, as the first protocol has it", true, nil
	case l.card.key == keyEndTxn && !l.card.timedOut && (l.card.second || l.b == 0):
		// Of b, which has another epoch, the coordinator may not know yet; that the answer has changed nothing is seen from
		// its end.
		return "told again what was decided", false, nil
	}
	l.r.fail("accepted, though it came too late: %s", l.card)
	if l.card.key == keyProduce {
		l.p.sequences[l.partition]++
	}
	return "ACCEPTED", false, nil
}

// complete notes what became of the late request.
func (l *latePlay) complete(done check.Type, offset int64, err error) {
	switch l.card.key {
	case keyProduce:
		o := l.sent
		o.Type, o.Offset = done, offset
		if err != nil {
			o.Error = err.Error()
		}
		l.r.history.Log(o)
	case keyEndTxn:
		if l.card.timedOut {
			l.answered(done, err)
		}
	}
}

// endOfB ends b, or a whole transaction behind the late request, in the place that it was about.
func (l *latePlay) endOfB(ctx context.Context) error {
	if l.b == 0 {
		l.b = l.p.begin()
	}
	if l.card.key != keyTxnOffsetCommit || l.card.next == lateNothing {
		if err := l.p.send(ctx, l.b, l.partition); err != nil {
			return err
		}
	}
	// An abort would hide a record that came in too late, so more are committed.
	commit := l.random.IntN(4) > 0
	if err := l.p.end(ctx, l.b, commit); err != nil {
		return err
	}
	if commit && l.stored >= 0 {
		l.expected = l.stored
	}
	return nil
}

// settled looks whether anything is held up for ever: by a transaction that nobody ends, or an offset that waits for one.
func (l *latePlay) settled(ctx context.Context) error {
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.r.drainPatience())
	defer cancel()
	if err := l.stable(bound); err != nil {
		l.r.fail("%s: a transaction is open %s after its end: %v", l.card, l.r.drainPatience(), err)
		return nil
	}
	if l.card.key != keyTxnOffsetCommit {
		return nil
	}
	cl, err := l.r.byName()
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		all, err := l.r.offsets(bound, cl, l.r.newProcess(), groupSpec{name: l.name, topics: []string{ledger}})
		if err == nil {
			if got := all[check.Key(ledger, l.partition)]; got != l.expected {
				l.r.fail("%s: the committed offset is %d, not %d", l.card, got, l.expected)
			}
			return nil
		}
		if !l.r.settled(bound, 200*time.Millisecond) {
			l.r.fail("%s: the offsets are not stable %s after the end of their transactions: %v", l.card, l.r.drainPatience(), err)
			return nil
		}
	}
}

// stable waits until no transaction holds anything back in the partitions of this play that is there now.
func (l *latePlay) stable(ctx context.Context) error {
	ends := map[int32]int64{}
	for _, partition := range []int32{l.partition, l.elsewhere} {
		err := l.p.again(ctx, func() (err error) {
			ends[partition], err = l.askEnd(ctx, partition, 0)
			return err
		})
		if err != nil {
			return err
		}
	}
	for partition, end := range ends {
		for {
			at := int64(-1)
			err := l.p.again(ctx, func() (err error) {
				at, err = l.askEnd(ctx, partition, 1)
				return err
			})
			if err != nil {
				return err
			}
			if at >= end {
				break
			}
			if !l.r.settled(ctx, 50*time.Millisecond) {
				return fmt.Errorf("%s is stable up to %d of %d: %w", check.Key(payments, partition), at, end, ctx.Err())
			}
		}
	}
	return nil
}

func (l *latePlay) askEnd(ctx context.Context, partition int32, level int8) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, level
	one := kmsg.NewListOffsetsRequestTopicPartition()
	one.Partition, one.Timestamp = partition, -1
	req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: payments, Partitions: []kmsg.ListOffsetsRequestTopicPartition{one}}}
	resp, err := req.RequestWith(ctx, l.p.cl)
	if err != nil {
		return 0, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	answer := resp.Topics[0].Partitions[0]
	return answer.Offset, kerr.ErrorForCode(answer.ErrorCode)
}
