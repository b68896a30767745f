package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/log/record"
)

// Pace of the workload: some hundred operations a second find as many bugs as a hundred thousand.
const (
	idempotentPause    = 12 * time.Millisecond
	idempotentInFlight = 16 // per partition
	plainPause         = 60 * time.Millisecond
	produceTimeout     = 5 * time.Second
)

// recordValue is the value of a history as bytes. Most records are small; some are large enough to go to the segment
// directly and not through the write-ahead log.
func recordValue(v int64) []byte {
	_, n := check.SplitValue(v)
	size := 60
	if n%41 == 40 {
		size = 12_000
	}
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, uint64(v))
	return b
}

// valueOf undoes recordValue; -1 for what no workload wrote.
func valueOf(b []byte) int64 {
	if len(b) < 8 {
		return -1
	}
	return int64(binary.BigEndian.Uint64(b))
}

// produceIdempotent sends to all partitions with a franz-go producer that never gives up. Should one end with an error
// all the same, the process ends, and another begins.
func (r *run) produceIdempotent() {
	for r.sending.Err() == nil {
		r.idempotentLife()
	}
}

func (r *run) idempotentLife() {
	process := r.newProcess()
	cl, err := kgo.NewClient(
		kgo.SeedBrokers(r.cluster.Seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(-1), kgo.ProduceRequestTimeout(produceTimeout), kgo.RequestTimeoutOverhead(r.requestPatience()), kgo.DialTimeout(3*time.Second),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return time.Duration(min(tries, 5)) * 50 * time.Millisecond }), kgo.RequestRetries(1<<20), kgo.RetryTimeout(time.Hour),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	if err != nil {
		r.fail("a producer: %v", err)
		return
	}
	r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: process, Text: "idempotent"})
	inFlight := make([]atomic.Int32, len(topics)*r.perTopic)
	var broken atomic.Bool
	tick := time.NewTicker(idempotentPause)
	defer tick.Stop()
	for n := int64(0); r.sending.Err() == nil && !broken.Load(); n++ {
		select {
		case <-tick.C:
		case <-r.sending.Done():
		}
		at := int(n) % len(inFlight)
		if inFlight[at].Load() >= idempotentInFlight {
			continue // its partition has no leader now
		}
		topic, partition := topics[at/r.perTopic], int32(at%r.perTopic)
		o := check.Op{F: check.Send, Type: check.Invoke, Process: process, Key: check.Key(topic, partition), Value: check.Value(process, n)}
		r.history.Log(o)
		inFlight[at].Add(1)
		cl.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: partition, Value: recordValue(o.Value)}, func(rec *kgo.Record, err error) {
			o.Type, o.Offset = check.OK, rec.Offset
			if err != nil {
				// Which of several attempts this error speaks of is not known.
				o.Type, o.Offset, o.Error = check.Info, 0, err.Error()
				broken.Store(true)
			}
			r.history.Log(o)
			inFlight[at].Add(-1)
		})
	}
	flush, cancel := context.WithTimeout(context.Background(), r.drainPatience())
	defer cancel()
	if err := cl.Flush(flush); err != nil && r.sending.Err() != nil {
		r.fail("producer %d: %d records are not answered %s after the end of the faults", process, cl.BufferedProduceRecords(), r.drainPatience())
	}
	cl.Close() // fails what is left, as indefinite
}

// producePlain sends to one partition, without idempotence and without retries of its own, so that each answer is about
// one attempt.
func (r *run) producePlain(topic string, partition int32) {
	random := rand.New(rand.NewPCG(r.seed, uint64(partition)))
	key := check.Key(topic, partition)
	clients := map[*cluster.Node]*kgo.Client{}
	defer func() {
		for _, cl := range clients {
			cl.Close()
		}
	}()
	client := func(n *cluster.Node) *kgo.Client {
		if clients[n] == nil {
			cl, err := direct(n)
			if err != nil {
				r.fail("a producer: %v", err)
				return nil
			}
			clients[n] = cl
		}
		return clients[n]
	}
	process, n := 0, int64(0)
	for {
		select {
		case <-r.sending.Done():
			return
		case <-time.After(plainPause * time.Duration(r.perTopic) / partitionsPerTopic):
		}
		to := r.epochs.of(key).node
		if to == nil { // nobody leads, or nothing is known: ask anybody
			if cl := client(r.cluster.Nodes[random.IntN(len(r.cluster.Nodes))]); cl != nil {
				_, _ = r.refresh(r.sending, cl)
			}
			continue
		}
		cl := client(to)
		if cl == nil {
			return
		}
		if process == 0 {
			process, n = r.newProcess(), 0
			r.history.Log(check.Op{F: check.Producer, Type: check.OK, Process: process, Text: "plain"})
		}
		var values []int64
		for range 1 + random.IntN(3) {
			values = append(values, check.Value(process, n))
			n++
		}
		o := check.Op{F: check.Send, Type: check.Invoke, Process: process, Key: key}
		for _, v := range values {
			o.Value = v
			r.history.Log(o)
		}
		base, err := sendOnce(cl, topic, partition, values)
		for i, v := range values {
			o.Value, o.Type, o.Offset, o.Error = v, check.OK, base+int64(i), ""
			if err != nil {
				o.Type, o.Offset, o.Error = outcome(err), 0, err.Error()
			}
			r.history.Log(o)
		}
		if err != nil {
			if outcome(err) == check.Info {
				process = 0
			}
			r.settled(r.sending, 200*time.Millisecond) // nobody hammers at a broker that is down
			if cl := client(r.cluster.Nodes[random.IntN(len(r.cluster.Nodes))]); cl != nil {
				_, _ = r.refresh(r.sending, cl)
			}
		}
	}
}

// sendOnce is one Produce request with acks=all.
func sendOnce(cl *kgo.Client, topic string, partition int32, values []int64) (base int64, err error) {
	b := record.NewBuilder(record.CodecNone)
	now := time.Now().UnixMilli()
	for _, v := range values {
		b.Add(now, nil, recordValue(v), nil)
	}
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(produceTimeout.Milliseconds())
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: partition, Records: b.Build()}}}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*produceTimeout)
	defer cancel()
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return 0, err
	}
	resp := answer.(*kmsg.ProduceResponse)
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("an answer for %d topics", len(resp.Topics))
	}
	p := resp.Topics[0].Partitions[0]
	return p.BaseOffset, kerr.ErrorForCode(p.ErrorCode)
}

// outcome sorts an error of a single attempt as part 2 of correctness.md does: definite, nothing was appended, or
// indefinite.
func outcome(err error) check.Type {
	for _, definite := range []error{kerr.CorruptMessage, kerr.UnknownTopicOrPartition, kerr.NotLeaderForPartition, kerr.MessageTooLarge, kerr.NotEnoughReplicas, kerr.InvalidRecord} {
		if errors.Is(err, definite) {
			return check.Fail
		}
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return check.Fail // nothing was sent
	}
	return check.Info
}
