package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// Produce (key 0), versions 3 to 13; 0 to 2 are advertised and refused.
//
//	v3    record batches v2, transactional id
//	v4    may be told KAFKA_STORAGE_ERROR
//	v5    log start offset in answers
//	v7    zstd allowed (KIP-110)
//	v8    error message, and the records to blame (KIP-467)
//	v9    flexible
//	v10   who leads instead, and where it is (KIP-951): complete or not at all
//	v11   may be told 120 about transactions
//	v12   transactions, second protocol (KIP-890): a partition becomes part of the
//	      transaction with its first batch; see produce_transactional.go
//	v13   topics by id (KIP-516)
//
// Each partition stands for itself and has one entry in the answer, in the order
// of the request. The records are one batch per partition, which stays in the
// request's frame until the log has it. Appends are made here, on the
// connection's reader goroutine, so that the batches of one connection are
// appended in the order in which they came: idempotent producers with several
// requests in flight depend on it. The answer is made by whoever completes the
// last partition. Acks 0 gets none: an error then closes the connection, the only
// sign such a client can see.

// produceCall is one Produce request in work. It is recycled, with everything it
// points to, once it has been answered.
type produceCall struct {
	call
	body     produceBody
	outcomes []produceOutcome // parallel to body.partitions
	pending  atomic.Int32     // partitions without an outcome, and one for the handler itself
	appended time.Time        // when the handler was done with the appends

	resp       kmsg.ProduceResponse
	topics     []kmsg.ProduceResponseTopic
	partitions []kmsg.ProduceResponseTopicPartition
}

// produceOutcome is what became of one partition.
type produceOutcome struct {
	result   replication.AppendResult
	appendAt int64 // ms, with LogAppendTime; else -1
}

// maxPooledPartitions keeps the memory of an unusually large request from staying
// in the pool.
const maxPooledPartitions = 4096

// producePartitionBytes is about what one partition of a request costs until it is
// answered, records apart.
const producePartitionBytes = 400

func (h *Handlers) produce(c *call) {
	p := h.produceCalls.Get().(*produceCall)
	p.call = *c
	if err := p.body.decode(c.req.Version, c.req.Body); err != nil {
		p.recycle()
		c.malformed(err)
		return
	}
	n := len(p.body.partitions)
	if !p.hold(int64(n) * producePartitionBytes) {
		p.recycle()
		return
	}
	p.outcomes = slices.Grow(p.outcomes[:0], n)[:n]
	for i := range p.outcomes {
		p.outcomes[i] = produceOutcome{appendAt: -1}
	}
	p.pending.Store(int32(n) + 1)

	acks, now := p.body.acks, time.Now()
	switch {
	case acks < -1 || acks > 1:
		for i := range p.body.partitions {
			p.fail(i, replication.ErrInvalidAcks)
		}
	case p.body.transactional:
		p.appendTransactional(now)
	default:
		for i := range p.body.partitions {
			if part, batch := p.check(i, now); part != nil {
				p.append(i, part, batch)
			}
		}
	}
	p.keepNames()
	p.appended = time.Now()
	p.complete()
}

// keepNames copies the topic names that still alias the frame, which is gone when
// another goroutine makes the answer. Those of topics that exist have been
// replaced by the metadata's own.
func (p *produceCall) keepNames() {
	for i := range p.body.topics {
		if t := &p.body.topics[i]; !t.owned {
			t.name, t.owned = strings.Clone(t.name), true
		}
	}
}

// check finds one partition and validates its batch, which may be a rewritten one. If either
// fails, that is the partition's outcome, and it returns nil.
func (p *produceCall) check(i int, now time.Time) (*replication.Partition, record.Batch) {
	asked := &p.body.partitions[i]
	topic := &p.body.topics[asked.topic]
	part, err := p.lookup(topic, asked.partition)
	if (err != nil || !part.IsLeader()) && p.awaitOpening(topic, asked.partition) {
		part, err = p.lookup(topic, asked.partition)
	}
	if err != nil {
		p.fail(i, err)
		return nil, nil
	}
	if p.req.Version < 13 && !topic.owned {
		topic.name, topic.owned = part.Topic(), true
	}
	settings := part.Settings()
	rules := produceRules(settings, p.req.Version, now)
	batch, err := record.Validate(asked.records, rules)
	if err != nil {
		p.refuse(i, err, part)
		return nil, nil
	}
	if batch.IsTransactional() && !p.body.transactional {
		p.fail(i, errNoTransactionalID)
		return nil, nil
	}
	if rules.LogAppendTime {
		p.outcomes[i].appendAt = rules.Now
	}
	return part, batch
}

// append appends one partition's batch.
func (p *produceCall) append(i int, part *replication.Partition, batch record.Batch) {
	part.Append(p.appendRequest(i, batch))
}

func (p *produceCall) appendRequest(i int, batch record.Batch) replication.AppendRequest {
	request := replication.AppendRequest{
		Records: batch, Owner: p.req.Frame, Acks: p.body.acks, CurrentLeaderEpoch: -1,
		Timeout: time.Duration(max(p.body.timeoutMillis, 0)) * time.Millisecond,
		Waiter:  p, Index: i,
	}
	if &batch[0] != &p.body.partitions[i].records[0] {
		request.Owner = heapBuffer{} // rewritten: no longer in the frame
	}
	return request
}

// heapBuffer owns record bytes that the garbage collector looks after.
type heapBuffer struct{}

func (heapBuffer) Retain()  {}
func (heapBuffer) Release() {}

func (p *produceCall) lookup(topic *produceTopic, partition int32) (*replication.Partition, error) {
	if p.req.Version >= 13 {
		return p.h.cfg.Replicas.PartitionByID(topic.id, partition)
	}
	return p.h.cfg.Replicas.Partition(topic.name, partition)
}

// openingWait bounds how long a request waits for this broker to take up the lead that the metadata gives it.
const openingWait = time.Second

// awaitOpening waits, when this broker is about to lead the partition, until it does: a new topic's first record would be
// refused otherwise, and its client come back much later. The connection's other requests wait too.
func (p *produceCall) awaitOpening(topic *produceTopic, partition int32) bool {
	version, opening := p.h.cfg.Replicas.Opening(topic.name, topic.id, partition)
	if !opening {
		return false
	}
	ctx, cancel := context.WithTimeout(p.h.ctx, openingWait)
	defer cancel()
	return p.h.cfg.Replicas.Await(ctx, version) == nil
}

// produceRules are the topic's demands on a batch.
func produceRules(s *metadata.TopicSettings, version int16, now time.Time) record.Rules {
	r := record.Rules{
		MaxBytes: s.MaxMessageBytes, ProduceVersion: version,
		LogAppendTime: s.LogAppendTime, BeforeMax: s.TimestampBeforeMax, AfterMax: s.TimestampAfterMax,
		Now: now.UnixMilli(), KeyRequired: s.Compact, Codec: record.CodecProducer, DecompressedLimit: s.MaxDecompressedBytes,
		// Who sets a limit wants it checked for each batch; the default only bounds
		// what is decompressed for another reason.
		CheckRecords: s.MaxDecompressedBytes < record.DefaultDecompressedLimit,
	}
	switch s.CompressionType {
	case "uncompressed":
		r.Codec = record.CodecNone
	case "gzip":
		r.Codec, r.Level = record.CodecGzip, max(s.GzipLevel, 0)
	case "snappy":
		r.Codec = record.CodecSnappy
	case "lz4":
		r.Codec, r.Level = record.CodecLZ4, s.LZ4Level
	case "zstd":
		r.Codec, r.Level = record.CodecZstd, s.ZstdLevel
	}
	return r
}

// fail is the outcome of a partition that was not handed to replication.
func (p *produceCall) fail(i int, err error) {
	r := replication.AppendResult{BaseOffset: -1, LogStartOffset: -1, LeaderID: metadata.NoBroker, LeaderEpoch: -1, Err: err}
	p.Appended(i, r)
}

// refuse is the outcome of a partition whose batch is not accepted. As Kafka
// does, it tells where the log begins when the batch was whole and what it says
// was wrong, and does not when there was no batch to look into.
func (p *produceCall) refuse(i int, err error, part *replication.Partition) {
	r := replication.AppendResult{BaseOffset: -1, LogStartOffset: -1, LeaderID: metadata.NoBroker, LeaderEpoch: -1, Err: err}
	var invalid *record.InvalidError
	if errors.As(err, &invalid) {
		if _, rest, shape := record.Next(p.body.partitions[i].records); shape == nil && len(rest) == 0 {
			r.LogStartOffset = part.StartOffset()
		}
	}
	p.Appended(i, r)
}

// Appended implements replication.AppendWaiter. It may run on the log's committer:
// what it does when the last partition completes is to encode a small answer.
func (p *produceCall) Appended(i int, r replication.AppendResult) {
	p.outcomes[i].result = r
	p.complete()
}

// complete counts down; the last one answers.
func (p *produceCall) complete() {
	if p.pending.Add(-1) > 0 {
		return
	}
	if p.body.acks == 0 {
		p.unacknowledged()
	} else {
		p.answer()
	}
	p.h.metrics.duration(keyProduce, p.appended.Sub(p.started), time.Since(p.appended))
	p.release()
	p.recycle()
}

// unacknowledged ends a request with acks 0.
func (p *produceCall) unacknowledged() {
	for i := range p.outcomes {
		if err := p.outcomes[i].result.Err; err != nil {
			asked := &p.body.partitions[i]
			p.error(p.produceCode(err))
			p.req.CloseConn(fmt.Sprintf("produce with acks=0 to partition %d of topic %q failed: %v", asked.partition, p.body.topics[asked.topic].name, err))
			return
		}
	}
	p.req.ReplyNothing()
}

// answer builds and sends the response.
func (p *produceCall) answer() {
	p.resp = kmsg.NewProduceResponse()
	p.resp.Version = p.req.Version
	p.topics = p.topics[:0]
	p.partitions = slices.Grow(p.partitions[:0], len(p.outcomes))
	for i := range p.body.topics {
		asked := &p.body.topics[i]
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = asked.name, asked.id
		first := len(p.partitions)
		for j := asked.first; j < asked.after; j++ {
			p.partitions = append(p.partitions, p.partition(j))
		}
		rt.Partitions = p.partitions[first:len(p.partitions):len(p.partitions)]
		p.topics = append(p.topics, rt)
	}
	p.resp.Topics = p.topics
	p.req.Reply(transport.Message(&p.resp))
}

func (p *produceCall) partition(i int) kmsg.ProduceResponseTopicPartition {
	out := &p.outcomes[i]
	rp := kmsg.NewProduceResponseTopicPartition()
	rp.Partition = p.body.partitions[i].partition
	if err := out.result.Err; err != nil {
		rp.BaseOffset, rp.LogAppendTime, rp.LogStartOffset = -1, -1, -1
		rp.ErrorCode = p.error(p.produceCode(err))
		rp.ErrorMessage = errorMessage(err)
		var invalid *record.InvalidError
		if errors.As(err, &invalid) || p.refusedByLog(err) {
			rp.LogStartOffset = out.result.LogStartOffset
		}
		if p.req.Version >= 8 && invalid != nil {
			rp.ErrorMessage = message(invalid.Message)
			for _, r := range invalid.Records {
				er := kmsg.NewProduceResponseTopicPartitionErrorRecord()
				er.RelativeOffset, er.ErrorMessage = r.Index, message(r.Message)
				rp.ErrorRecords = append(rp.ErrorRecords, er)
			}
		}
		if p.req.Version >= 10 && rp.ErrorCode == codeNotLeaderOrFollower {
			p.hint(i, &rp)
		}
		return rp
	}
	rp.BaseOffset, rp.LogAppendTime, rp.LogStartOffset = out.result.BaseOffset, out.appendAt, out.result.LogStartOffset
	return rp
}

// refusedByLog reports whether the partition's log has looked at a batch and refused it: as
// Kafka does, the answer then tells where the log begins. In a transaction an epoch is judged
// before the log sees the batch.
func (p *produceCall) refusedByLog(err error) bool {
	return errors.Is(err, log.ErrOutOfOrderSequence) || errors.Is(err, log.ErrInvalidTransactionState) || errors.Is(err, log.ErrInvalidProducerEpoch) && !p.body.transactional
}

// hint tells a client that came to the wrong broker where to go (KIP-951).
func (p *produceCall) hint(i int, rp *kmsg.ProduceResponseTopicPartition) {
	asked := &p.body.partitions[i]
	topic := &p.body.topics[asked.topic]
	image := p.h.cfg.Store.Image()
	leader, epoch, ep, ok := p.h.endpoints(image, p.req.Conn).leaderHint(fetchTopic{name: topic.name, id: topic.id}, asked.partition)
	if !ok {
		return
	}
	rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = leader, epoch
	for j := range p.resp.Brokers {
		if p.resp.Brokers[j].NodeID == leader {
			return
		}
	}
	b := kmsg.NewProduceResponseBroker()
	b.NodeID, b.Host, b.Port, b.Rack = leader, ep.host, ep.port, ep.rack
	p.resp.Brokers = append(p.resp.Brokers, b)
}

// recycle gives the call back. Nothing of the request may be reachable from it.
func (p *produceCall) recycle() {
	if cap(p.body.partitions) > maxPooledPartitions || cap(p.body.topics) > maxPooledPartitions {
		return
	}
	p.body.release()
	clear(p.outcomes)
	clear(p.topics)
	clear(p.partitions)
	h := p.h
	p.call, p.resp = call{}, kmsg.NewProduceResponse()
	h.produceCalls.Put(p)
}
