package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/proxy"
	"github.com/millrace/millrace/log/record"
)

// API keys of the requests that are held.
const (
	keyProduce         = 0
	keyOffsetCommit    = 8
	keyEndTxn          = 26
	keyTxnOffsetCommit = 28
)

// lateTransaction bounds the transactions of a lateProducer that nobody ends.
const lateTransaction = 10 * time.Second

// lateProducer is a transactional producer that is led request by request, in one of the two protocols, so that it is known
// which request was held and which transaction it was a part of.
type lateProducer struct {
	r       *run
	client  string // client id, by which the proxy knows it
	id      string // transactional
	process int
	second  bool // the protocol of KIP-890
	cl      *kgo.Client

	producerID int64
	epoch      int16
	sequences  map[int32]int32 // next, by partition
	values     int64
	txns       int64
	added      map[int32]bool // partitions of the open transaction
	held       []func()       // lets go what is held, and takes the rules out
}

func (r *run) lateProducer(client, id string, second bool) (*lateProducer, error) {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(keyProduce, 12) // topics by name
	versions.SetMaxKeyVersion(9, 8)
	versions.SetMaxKeyVersion(24, 3)
	versions.SetMaxKeyVersion(keyTxnOffsetCommit, 5)
	if !second {
		versions.SetMaxKeyVersion(keyProduce, 11)
		versions.SetMaxKeyVersion(keyEndTxn, 4)
		versions.SetMaxKeyVersion(keyTxnOffsetCommit, 4)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.ClientID(client), kgo.MaxVersions(versions), kgo.MetadataMinAge(50*time.Millisecond), kgo.RequestRetries(3),
		kgo.RetryTimeout(3*time.Second), kgo.RequestTimeoutOverhead(5*time.Second), kgo.DialTimeout(3*time.Second))
	if err != nil {
		return nil, err
	}
	p := &lateProducer{r: r, client: client, id: id, process: r.newProcess(), second: second, cl: cl}
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: p.process, Text: "transactional"})
	return p, nil
}

func (p *lateProducer) close() {
	for _, release := range p.held {
		release()
	}
	p.cl.Close()
}

// again repeats a request until it succeeds or fails for good: leaders and coordinators move, and markers take their time.
func (p *lateProducer) again(ctx context.Context, once func() error) error {
	for {
		err := once()
		if err == nil || !passing(err) {
			return err
		}
		if !p.r.settled(ctx, 50*time.Millisecond) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// passing says that an error tells nothing about the request: the broker that was asked is the wrong one, or not ready.
func passing(err error) bool {
	var refused *kerr.Error
	if !errors.As(err, &refused) {
		return true // the connection
	}
	return refused.Retriable || errors.Is(err, kerr.ConcurrentTransactions) || errors.Is(err, kerr.CoordinatorLoadInProgress)
}

// init gets the producer its id and epoch, and ends what was open under its transactional id.
func (p *lateProducer) init(ctx context.Context, timeout time.Duration) error {
	err := p.again(ctx, func() error {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = &p.id, int32(timeout.Milliseconds())
		resp, err := req.RequestWith(ctx, p.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil {
			p.producerID, p.epoch, p.sequences = resp.ProducerID, resp.ProducerEpoch, map[int32]int32{}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("init of %s: %w", p.id, err)
	}
	return nil
}

// begin opens a transaction of the history; the broker hears of it with the first request.
func (p *lateProducer) begin() (txn int64) {
	p.txns++
	txn, p.added = check.Value(p.process, p.txns), map[int32]bool{}
	p.r.history.Log(check.Op{F: check.Begin, Type: check.OK, Process: p.process, Txn: txn, Text: p.id})
	return txn
}

// add lets a partition into the transaction; in the second protocol the first batch does that.
func (p *lateProducer) add(ctx context.Context, partition int32) error {
	if p.second || p.added[partition] {
		return nil
	}
	err := p.again(ctx, func() error {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch = p.id, p.producerID, p.epoch
		req.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: payments, Partitions: []int32{partition}}}
		resp, err := req.RequestWith(ctx, p.cl)
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return fmt.Errorf("an answer for %d topics", len(resp.Topics))
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
	if err != nil {
		return fmt.Errorf("add partition %d to %s: %w", partition, p.id, err)
	}
	p.added[partition] = true
	return nil
}

// addGroup lets a group into the transaction.
func (p *lateProducer) addGroup(ctx context.Context, group string) error {
	if p.second {
		return nil
	}
	err := p.again(ctx, func() error {
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = p.id, p.producerID, p.epoch, group
		resp, err := req.RequestWith(ctx, p.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("add group %s to %s: %w", group, p.id, err)
	}
	return nil
}

// value is the next record of a transaction, with its line in the history.
func (p *lateProducer) value(txn int64, partition int32) check.Op {
	o := check.Op{F: check.Send, Type: check.Invoke, Process: p.process, Value: check.Value(p.process, p.values), Txn: txn, Key: check.Key(payments, partition)}
	p.values++
	p.r.history.Log(o)
	return o
}

// batch is a Produce request of one record, with the next sequence of its partition.
func (p *lateProducer) batch(o check.Op, partition int32) *kmsg.ProduceRequest {
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = p.producerID, p.epoch, p.sequences[partition], true
	b.Add(time.Now().UnixMilli(), nil, recordValue(o.Value), nil)
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &p.id, -1, int32(produceTimeout.Milliseconds())
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: payments, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: b.Build()}}}}
	return req
}

// send has a record acknowledged.
func (p *lateProducer) send(ctx context.Context, txn int64, partition int32) error {
	if err := p.add(ctx, partition); err != nil {
		return err
	}
	o := p.value(txn, partition)
	err := p.again(ctx, func() error {
		leader, err := p.leader(ctx, partition)
		if err != nil {
			return err
		}
		resp, err := p.batch(o, partition).RequestWith(ctx, leader)
		if err != nil {
			return err
		}
		o.Offset, err = produced(resp)
		return err
	})
	o.Type = check.OK
	if err != nil {
		o.Type, o.Offset, o.Error = check.Info, 0, err.Error()
	}
	p.r.history.Log(o)
	if err != nil {
		return fmt.Errorf("send of %s to %s: %w", p.id, o.Key, err)
	}
	p.sequences[partition]++
	return nil
}

// leader asks who leads a partition.
func (p *lateProducer) leader(ctx context.Context, partition int32) (*kgo.Broker, error) {
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(payments)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, p.cl)
	if err != nil {
		return nil, err
	}
	for _, t := range resp.Topics {
		for _, of := range t.Partitions {
			if of.Partition == partition && of.Leader >= 0 {
				return p.cl.Broker(int(of.Leader)), nil
			}
		}
	}
	return nil, kerr.LeaderNotAvailable
}

// produced reads the answer to a request of one batch.
func produced(resp *kmsg.ProduceResponse) (offset int64, err error) {
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	answer := resp.Topics[0].Partitions[0]
	return answer.BaseOffset, kerr.ErrorForCode(answer.ErrorCode)
}

// offset is a TxnOffsetCommit of one partition, outside of a generation.
func (p *lateProducer) offset(group string, partition int32, offset int64) *kmsg.TxnOffsetCommitRequest {
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group, req.Generation = p.id, p.producerID, p.epoch, group, -1
	one := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	one.Partition, one.Offset = partition, offset
	req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: ledger, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{one}}}
	return req
}

func offsetTaken(resp *kmsg.TxnOffsetCommitResponse) error {
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// sendOffset has an offset stored with the transaction.
func (p *lateProducer) sendOffset(ctx context.Context, txn int64, group string, partition int32, offset int64) error {
	p.noteOffset(txn, group, partition, offset)
	err := p.again(ctx, func() error {
		resp, err := p.offset(group, partition, offset).RequestWith(ctx, p.cl)
		if err == nil {
			err = offsetTaken(resp)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("offsets of %s: %w", p.id, err)
	}
	return nil
}

func (p *lateProducer) noteOffset(txn int64, group string, partition int32, offset int64) {
	p.r.history.Log(check.Op{F: check.TxnOffsets, Type: check.Invoke, Process: p.process, Txn: txn, Group: group, Key: check.Key(ledger, partition), Offset: offset})
}

func (p *lateProducer) endRequest(commit bool) *kmsg.EndTxnRequest {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = p.id, p.producerID, p.epoch, commit
	return req
}

// asks notes that the end of a transaction is asked for, and answered what came of it.
func (p *lateProducer) asks(txn int64, commit bool) (answered func(done check.Type, err error)) {
	o := check.Op{F: check.End, Type: check.Invoke, Process: p.process, Txn: txn, Text: check.AbortIt}
	if commit {
		o.Text = check.CommitIt
	}
	p.r.history.Log(o)
	return func(done check.Type, err error) {
		if o.Type = done; err != nil {
			o.Error = err.Error()
		}
		p.r.history.Log(o)
	}
}

// end ends a transaction.
func (p *lateProducer) end(ctx context.Context, txn int64, commit bool) error {
	answered := p.asks(txn, commit)
	err := p.endAs(ctx, commit)
	if err != nil {
		answered(check.Info, err)
		return err
	}
	answered(check.OK, nil)
	return nil
}

func (p *lateProducer) endAs(ctx context.Context, commit bool) error {
	err := p.again(ctx, func() error {
		resp, err := p.endRequest(commit).RequestWith(ctx, p.cl)
		if err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
		if err == nil && p.second && resp.ProducerID >= 0 {
			p.producerID, p.epoch, p.sequences = resp.ProducerID, resp.ProducerEpoch, map[int32]int32{}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("end of %s: %w", p.id, err)
	}
	return nil
}

// complete waits until the markers of the producer's transaction are written everywhere.
func (p *lateProducer) complete(ctx context.Context) error {
	for {
		var state string
		err := p.again(ctx, func() error {
			req := kmsg.NewPtrDescribeTransactionsRequest()
			req.TransactionalIDs = []string{p.id}
			resp, err := req.RequestWith(ctx, p.cl)
			if err != nil {
				return err
			}
			if len(resp.TransactionStates) != 1 {
				return fmt.Errorf("an answer for %d transactions", len(resp.TransactionStates))
			}
			state = resp.TransactionStates[0].State
			return kerr.ErrorForCode(resp.TransactionStates[0].ErrorCode)
		})
		if err != nil {
			return fmt.Errorf("describe %s: %w", p.id, err)
		}
		if state == "CompleteAbort" || state == "CompleteCommit" || state == "Empty" {
			return nil
		}
		if !p.r.settled(ctx, 20*time.Millisecond) {
			return fmt.Errorf("%s is %s: %w", p.id, state, ctx.Err())
		}
	}
}

// late is a request that is held.
type late struct {
	key     int16
	version int16
	release func()
	answers chan []byte
}

// holdBatch is hold of a request to the leader of a partition.
func (p *lateProducer) holdBatch(ctx context.Context, req *kmsg.ProduceRequest) (*late, error) {
	leader, err := p.leader(ctx, req.Topics[0].Partitions[0].Partition)
	if err != nil {
		return nil, err
	}
	return p.hold(ctx, req, leader)
}

// hold has the proxy keep a request back: it leaves its connection, and arrives when it is let go, though its producer is done
// with it by then.
func (p *lateProducer) hold(ctx context.Context, req kmsg.Request, to kmsg.Requestor) (*late, error) {
	l := &late{key: req.Key(), answers: make(chan []byte, 1)}
	opened, versions := make(chan struct{}), make(chan int16, 1)
	first := proxy.First(1, func(f proxy.Frame) bool {
		return f.Direction == proxy.Request && f.Key == l.key && f.ClientID == p.client
	})
	var remove []func()
	for _, n := range p.r.cluster.Nodes {
		remove = append(remove, n.Proxy.Add(func(f proxy.Frame) proxy.Verdict {
			if !first(f) {
				return proxy.Verdict{}
			}
			versions <- f.Version
			return proxy.Verdict{Late: true, Hold: opened, LateAnswer: l.answers}
		}))
	}
	released := false
	l.release = func() {
		if !released {
			released = true
			close(opened)
		}
	}
	p.held = append(p.held, l.release)
	asking, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = to.Request(asking, req)
	}()
	defer func() {
		cancel() // nobody waits for the answer, and nobody asks again
		<-done
		for _, undo := range remove {
			undo()
		}
	}()
	select {
	case l.version = <-versions:
		return l, nil
	case <-done:
		return nil, fmt.Errorf("%s was answered and not held", kmsg.NameForKey(l.key))
	case <-ctx.Done():
		return nil, fmt.Errorf("%s was not seen by the proxy: %w", kmsg.NameForKey(l.key), ctx.Err())
	}
}

// errLost says that the late request or its answer was lost, so that nothing can be said.
var errLost = errors.New("the late request, or its answer, was lost")

// arrive lets the request go and returns what it was answered.
func (l *late) arrive(ctx context.Context) (offset int64, err error) {
	l.release()
	var payload []byte
	select {
	case payload = <-l.answers:
	case <-ctx.Done():
	}
	if len(payload) < 4 {
		return 0, errLost
	}
	resp := kmsg.RequestForKey(l.key).ResponseKind()
	resp.SetVersion(l.version)
	body := payload[4:]
	if resp.IsFlexible() {
		body = body[1:] // tags of the header, none
	}
	if err := resp.ReadFrom(body); err != nil {
		return 0, fmt.Errorf("%w: %w", errLost, err)
	}
	switch resp := resp.(type) {
	case *kmsg.ProduceResponse:
		return produced(resp)
	case *kmsg.EndTxnResponse:
		return 0, kerr.ErrorForCode(resp.ErrorCode)
	case *kmsg.TxnOffsetCommitResponse:
		return 0, offsetTaken(resp)
	}
	return 0, errLost
}
