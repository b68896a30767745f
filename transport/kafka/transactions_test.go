package kafka

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
)

// testProducer is a transactional producer that says exactly what it is told to.
type testProducer struct {
	c     *testConn
	id    string
	pid   int64
	epoch int16
	seq   map[string]int32 // next sequence, by partition
}

func (c *testConn) initProducer(version int16, id string, pid int64, epoch int16) *kmsg.InitProducerIDResponse {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.Version, req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = version, &id, 60_000, pid, epoch
	return ask[*kmsg.InitProducerIDResponse](c, req)
}

func (c *testConn) producer(id string) *testProducer {
	c.t.Helper()
	resp := c.initProducer(4, id, -1, -1)
	require.Zero(c.t, resp.ErrorCode)
	return &testProducer{c: c, id: id, pid: resp.ProducerID, epoch: resp.ProducerEpoch, seq: map[string]int32{}}
}

// add returns the code of the first partition.
func (p *testProducer) add(version int16, topic *metadata.Topic, partitions ...int32) int16 {
	p.c.t.Helper()
	return p.addRequest(version, topic.Name, partitions...)[0]
}

func (p *testProducer) addRequest(version int16, topic string, partitions ...int32) (codes []int16) {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch = version, p.id, p.pid, p.epoch
	rt := kmsg.NewAddPartitionsToTxnRequestTopic()
	rt.Topic, rt.Partitions = topic, partitions
	req.Topics = append(req.Topics, rt)
	tx := kmsg.NewAddPartitionsToTxnRequestTransaction()
	tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch = p.id, p.pid, p.epoch
	tt := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
	tt.Topic, tt.Partitions = topic, partitions
	tx.Topics = append(tx.Topics, tt)
	req.Transactions = append(req.Transactions, tx)
	resp := ask[*kmsg.AddPartitionsToTxnResponse](p.c, req)
	if version >= 4 {
		for _, rp := range resp.Transactions[0].Topics[0].Partitions {
			codes = append(codes, rp.ErrorCode)
		}
		return codes
	}
	for _, rp := range resp.Topics[0].Partitions {
		codes = append(codes, rp.ErrorCode)
	}
	return codes
}

// batch is the producer's next one for a partition.
func (p *testProducer) batch(topic *metadata.Topic, partition int32, transactional bool, values ...string) record.Batch {
	key := fmt.Sprint(topic.Name, partition)
	b := record.NewBuilder(record.CodecNone)
	b.Transactional, b.ProducerID, b.ProducerEpoch, b.BaseSequence = transactional, p.pid, p.epoch, p.seq[key]
	for _, v := range values {
		b.Add(time.Now().UnixMilli(), []byte("k"), []byte(v), nil)
	}
	return b.Build()
}

func (p *testProducer) request(version int16, parts ...produced) *kmsg.ProduceRequest {
	req := produceRequest(version, -1, parts...)
	req.TransactionID = &p.id
	return req
}

// produce returns the code; the sequence goes on if it is 0.
func (p *testProducer) produce(version int16, topic *metadata.Topic, partition int32, values ...string) int16 {
	p.c.t.Helper()
	resp := ask[*kmsg.ProduceResponse](p.c, p.request(version, produced{topic, partition, p.batch(topic, partition, true, values...)}))
	code := resp.Topics[0].Partitions[0].ErrorCode
	if code == 0 {
		p.seq[fmt.Sprint(topic.Name, partition)] += int32(len(values))
	}
	return code
}

// end returns the code. With version 5 the producer goes on with the pair it is told.
func (p *testProducer) end(version int16, commit bool) int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrEndTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = version, p.id, p.pid, p.epoch, commit
	resp := ask[*kmsg.EndTxnResponse](p.c, req)
	if version >= 5 && resp.ErrorCode == 0 {
		p.pid, p.epoch, p.seq = resp.ProducerID, resp.ProducerEpoch, map[string]int32{}
	}
	return resp.ErrorCode
}

// await waits until the transactional id is in a state.
func (p *testProducer) await(b *testBroker, states ...metadata.TransactionState) {
	p.c.t.Helper()
	require.Eventually(p.c.t, func() bool {
		t := b.store.Image().Transaction(p.id)
		return t != nil && slices.Contains(states, t.State)
	}, testDeadline, time.Millisecond)
}

func (p *testProducer) awaitComplete(b *testBroker) {
	p.c.t.Helper()
	p.await(b, metadata.TransactionCompleteCommit, metadata.TransactionCompleteAbort)
}

// other is the same producer under another pair or id.
func (p *testProducer) other(edit func(*testProducer)) *testProducer {
	q := *p
	edit(&q)
	return &q
}

func older(p *testProducer) *testProducer {
	return p.other(func(q *testProducer) { q.epoch-- })
}
func newer(p *testProducer) *testProducer {
	return p.other(func(q *testProducer) { q.epoch++ })
}
func stranger(p *testProducer) *testProducer {
	return p.other(func(q *testProducer) { q.id = "nobody has this id" })
}
func impostor(p *testProducer) *testProducer {
	return p.other(func(q *testProducer) { q.pid += 1000 })
}

// readCommitted reads a partition from its start as a reader of committed records.
func (c *testConn) readCommitted(topic *metadata.Topic, partition int32) kmsg.FetchResponseTopicPartition {
	c.t.Helper()
	req := fetchRequest(12, fetched{topic, partition, 0})
	req.IsolationLevel = 1
	return c.fetchOne(req)
}

// KIP-98, KIP-360, KIP-588: every InitProducerId fences the producer before, whose requests get the code that their version
// knows; a producer that knows its pair goes on from it, and may ask twice.
func TestInitProducerIDTransactional(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	topic := b.topic(t, 1)
	for version := int16(0); version <= 5; version++ {
		id := fmt.Sprint("init-", version)
		first := c.initProducer(version, id, -1, -1)
		require.Zero(t, first.ErrorCode)
		require.Zero(t, first.ProducerEpoch)
		second := c.initProducer(version, id, -1, -1)
		require.Equal(t, []any{int16(0), first.ProducerID, int16(1)}, []any{second.ErrorCode, second.ProducerID, second.ProducerEpoch})

		zombie := &testProducer{c: c, id: id, pid: first.ProducerID, epoch: first.ProducerEpoch, seq: map[string]int32{}}
		for v := int16(0); v <= 5; v++ {
			fenced := codeProducerFenced
			if v < 2 {
				fenced = codeInvalidProducerEpoch
			}
			require.Equal(t, fenced, zombie.add(v, topic, 0))
			require.Equal(t, fenced, zombie.end(v, true))
		}
		for v := int16(3); v <= 13; v++ {
			require.Equal(t, codeInvalidProducerEpoch, zombie.produce(v, topic, 0, "zombie"), "v%d", v)
		}
		if version < 3 {
			continue
		}
		fenced := codeProducerFenced
		if version < 4 {
			fenced = codeInvalidProducerEpoch
		}
		for range 2 { // asked again, it is the same
			third := c.initProducer(version, id, second.ProducerID, second.ProducerEpoch)
			require.Equal(t, []any{int16(0), first.ProducerID, int16(2)}, []any{third.ErrorCode, third.ProducerID, third.ProducerEpoch})
		}
		require.Equal(t, fenced, c.initProducer(version, id, first.ProducerID, first.ProducerEpoch).ErrorCode)
		require.Equal(t, fenced, c.initProducer(version, id, first.ProducerID, 9).ErrorCode)
		require.Equal(t, fenced, c.initProducer(version, id, first.ProducerID+1000, 0).ErrorCode)
		require.Zero(t, c.initProducer(version, id+"-new", 0, 0).ErrorCode, "Flink brings pair 0, 0 to an id that is new (trap 36)")
	}
	require.Zero(t, b.end(t, topic), "nothing was written")
}

// Protocol.md 6: what is wrong with a batch in a transaction has the code of the request's version, and nothing is appended.
func TestProduceTransactional(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(3); version <= 13; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			topic, beside := b.topic(t, 2), b.topic(t, 1)
			p := c.producer(fmt.Sprint("produce-", version))
			notAdded := codeInvalidTxnState
			if version >= 11 {
				notAdded = codeTransactionAbortable
			}
			switch {
			case version >= 12:
				require.Zero(t, p.produce(version, topic, 0, "a"), "the first batch adds the partition")
			default:
				require.Equal(t, notAdded, p.produce(version, topic, 0, "a"))
				require.Zero(t, p.add(3, topic, 0))
				require.Zero(t, p.produce(version, topic, 0, "a"))
			}
			require.Zero(t, p.produce(version, topic, 0, "b"))
			require.Equal(t, codeInvalidProducerEpoch, older(p).produce(version, topic, 0, "c"))
			require.Equal(t, codeInvalidProducerEpoch, newer(p).produce(version, topic, 1, "c"))
			require.Equal(t, codeInvalidProducerIDMapping, stranger(p).produce(version, topic, 1, "c"))
			require.Equal(t, codeInvalidProducerIDMapping, impostor(p).produce(version, topic, 1, "c"))
			nobody := p.other(func(q *testProducer) { q.pid, q.epoch = -1, -1 })
			require.Equal(t, codeInvalidRecord, nobody.produce(version, topic, 1, "c"))

			// Two producers in a request: the second's partition is refused.
			resp := ask[*kmsg.ProduceResponse](c, p.request(version,
				produced{topic, 0, p.batch(topic, 0, true, "d")}, produced{topic, 1, impostor(p).batch(topic, 1, true, "d")}))
			require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode)
			p.seq[fmt.Sprint(topic.Name, 0)]++
			require.Equal(t, codeInvalidProducerIDMapping, resp.Topics[len(resp.Topics)-1].Partitions[len(resp.Topics[len(resp.Topics)-1].Partitions)-1].ErrorCode)

			// Not a transactional batch, of a producer whose transaction is open here.
			resp = ask[*kmsg.ProduceResponse](c, p.request(version, produced{topic, 0, p.batch(topic, 0, false, "e")}))
			require.Equal(t, codeInvalidTxnState, resp.Topics[0].Partitions[0].ErrorCode)
			// And one of nobody in particular, in the same request as a good one.
			resp = ask[*kmsg.ProduceResponse](c, p.request(version, produced{beside, 0, batch(1)}, produced{topic, 0, p.batch(topic, 0, true, "f")}))
			for i := range resp.Topics {
				require.Zero(t, resp.Topics[i].Partitions[0].ErrorCode)
			}
			p.seq[fmt.Sprint(topic.Name, 0)]++

			require.Zero(t, p.end(3, true))
			p.awaitComplete(b)
			if version < 12 {
				require.Equal(t, notAdded, p.produce(version, topic, 0, "late"), "P7")
			}
			got := c.readCommitted(topic, 0)
			require.Equal(t, []string{"a", "b", "d", "f"}, values(t, withoutMarkers(t, got.RecordBatches)))
		})
	}
}

// withoutMarkers leaves the control batches out.
func withoutMarkers(t *testing.T, records []byte) (out []byte) {
	t.Helper()
	for len(records) > 0 {
		b, rest, err := record.Next(records)
		require.NoError(t, err)
		if !b.IsControl() {
			out = append(out, b...)
		}
		records = rest
	}
	return out
}

// P7 (KIP-890): a batch of a producer of the second protocol that comes after its transaction has ended is fenced by its epoch.
func TestLateBatchOfSecondProtocol(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	topic := b.topic(t, 1)
	p := c.producer("late")
	require.Zero(t, p.produce(12, topic, 0, "a"))
	before := *p
	require.Zero(t, p.end(5, true))
	require.Equal(t, before.epoch+1, p.epoch)
	require.Zero(t, p.produce(12, topic, 0, "b"), "the next transaction does not wait for the markers of the one before")
	require.Equal(t, codeInvalidProducerEpoch, before.produce(12, topic, 0, "late"))
	require.Equal(t, codeInvalidProducerEpoch, before.produce(11, topic, 0, "late"))

	// KAFKA-19999: the same end again is answered alike, with the pair that was given; the opposite one is not.
	require.Zero(t, p.end(5, false))
	p.awaitComplete(b)
	again := before.other(func(q *testProducer) { q.epoch++ })
	require.Zero(t, again.end(5, false))
	require.Equal(t, []any{p.pid, p.epoch}, []any{again.pid, again.epoch})
	opposite := before.other(func(q *testProducer) { q.epoch++ })
	require.Equal(t, codeInvalidTxnState, opposite.end(5, true))
	got := c.readCommitted(topic, 0)
	require.Len(t, got.AbortedTransactions, 1)
}

// AddPartitionsToTxn is all or nothing, in every version; what is missing is told.
func TestAddPartitionsToTxn(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	topic := b.topic(t, 2)
	for version := int16(0); version <= 5; version++ {
		p := c.producer(fmt.Sprint("add-", version))
		require.Equal(t, []int16{codeOperationNotAttempted, codeUnknownTopicOrPartition, codeUnknownTopicOrPartition}, p.addRequest(version, topic.Name, 0, 7, -1))
		require.Equal(t, []int16{codeUnknownTopicOrPartition}, p.addRequest(version, "no such topic", 0))
		require.Equal(t, metadata.TransactionEmpty, b.store.Image().Transaction(p.id).State)
		require.Equal(t, codeInvalidProducerIDMapping, stranger(p).add(version, topic, 0))
		require.Equal(t, codeInvalidProducerIDMapping, impostor(p).add(version, topic, 0))
		require.Equal(t, codeInvalidRequest, p.other(func(q *testProducer) { q.id = "" }).add(version, topic, 0))
		require.Equal(t, []int16{0, 0}, p.addRequest(version, topic.Name, 0, 1))
		require.Equal(t, []int16{0}, p.addRequest(version, topic.Name, 1))
		require.Equal(t, metadata.TransactionOngoing, b.store.Image().Transaction(p.id).State)
	}

	// Questions between brokers (KIP-890): many transactions, one of them open with one of two partitions.
	p := c.producer("verified")
	require.Zero(t, p.add(3, topic, 0))
	for version := int16(4); version <= 5; version++ {
		req := kmsg.NewPtrAddPartitionsToTxnRequest()
		req.Version = version
		for _, q := range []*testProducer{p, stranger(p)} {
			tx := kmsg.NewAddPartitionsToTxnRequestTransaction()
			tx.TransactionalID, tx.ProducerID, tx.ProducerEpoch, tx.VerifyOnly = q.id, q.pid, q.epoch, true
			tt := kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
			tt.Topic, tt.Partitions = topic.Name, []int32{0, 1}
			tx.Topics = append(tx.Topics, tt)
			req.Transactions = append(req.Transactions, tx)
		}
		resp := ask[*kmsg.AddPartitionsToTxnResponse](c, req)
		abortable := codeTransactionAbortable
		if version == 4 {
			abortable = codeInvalidTxnState
		}
		codes := func(i int) []int16 {
			ps := resp.Transactions[i].Topics[0].Partitions
			return []int16{ps[0].ErrorCode, ps[1].ErrorCode}
		}
		require.Equal(t, []int16{0, abortable}, codes(0))
		require.Equal(t, []int16{codeInvalidProducerIDMapping, codeInvalidProducerIDMapping}, codes(1))
	}
}

// Every version of EndTxn: nothing open, twice, the opposite.
func TestEndTxn(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	topic := b.topic(t, 1)
	for version := int16(0); version <= 5; version++ {
		for _, commit := range []bool{true, false} {
			p := c.producer(fmt.Sprint("end-", version, commit))
			require.Equal(t, codeInvalidTxnState, p.end(version, true), "nothing is open")
			require.Equal(t, codeInvalidProducerIDMapping, stranger(p).end(version, commit))
			require.Equal(t, codeInvalidProducerIDMapping, impostor(p).end(version, commit))
			require.Equal(t, codeInvalidRequest, p.other(func(q *testProducer) { q.id = "" }).end(version, commit))
			require.Zero(t, p.add(3, topic, 0))
			require.Zero(t, p.produce(9, topic, 0, "v"))
			before := *p
			require.Zero(t, p.end(version, commit))
			require.Equal(t, version >= 5, p.epoch == before.epoch+1)
			for range 2 {
				require.Zero(t, before.other(func(*testProducer) {}).end(version, commit), "v%d %v again", version, commit)
			}
			require.Equal(t, codeInvalidTxnState, before.other(func(*testProducer) {}).end(version, !commit))
			p.awaitComplete(b)
			require.Zero(t, before.other(func(*testProducer) {}).end(version, commit), "when it is complete")
			if version >= 5 { // KIP-890: a producer may abort what it has not begun, and has a new epoch then
				require.Zero(t, p.end(version, false))
				require.Equal(t, before.epoch+2, p.epoch)
			}
		}
	}
}

// P13, trap 20: readers of committed records see nothing of an open transaction, and everything up to it; the aborted ones
// are named, sorted by their first offset, in every version. A reader that waits is woken by the marker.
func TestReadCommitted(t *testing.T) {
	b := theBroker(t)
	c, reader := b.dial(t), b.dial(t)
	topic := b.topic(t, 1)
	first, second, third := c.producer("read-1"), c.producer("read-2"), c.producer("read-3")
	for _, p := range []*testProducer{first, second, third} {
		require.Zero(t, p.add(3, topic, 0))
	}
	require.Zero(t, second.produce(9, topic, 0, "2a")) // 0
	require.Zero(t, first.produce(9, topic, 0, "1a"))  // 1
	c.produce(topic, 0, batch(1))                      // 2
	require.Zero(t, third.produce(9, topic, 0, "3a"))  // 3
	got := reader.readCommitted(topic, 0)
	require.Equal(t, []any{int64(4), int64(0), 0}, []any{got.HighWatermark, got.LastStableOffset, len(got.RecordBatches)})

	listed := func(isolation int8) int64 {
		req := kmsg.NewPtrListOffsetsRequest()
		req.Version, req.IsolationLevel = 6, isolation
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic.Name
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Timestamp = -1
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		return ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0].Offset
	}
	require.Equal(t, []int64{4, 0}, []int64{listed(0), listed(1)})

	waiting := fetchRequest(12, fetched{topic, 0, 0})
	waiting.IsolationLevel, waiting.MaxWaitMillis = 1, 60_000
	reader.send(waiting)
	b.awaitParked(t, 1)
	require.Zero(t, second.end(3, false)) // marker at 4; the first one holds on from 1
	resp := reader.receive(waiting).(*kmsg.FetchResponse).Topics[0].Partitions[0]
	require.EqualValues(t, 1, resp.LastStableOffset)
	require.Len(t, resp.AbortedTransactions, 1)
	second.awaitComplete(b)

	require.Zero(t, first.end(3, true)) // 5
	first.awaitComplete(b)
	require.Zero(t, third.end(3, false)) // 6
	third.awaitComplete(b)
	require.Equal(t, []int64{7, 7}, []int64{listed(0), listed(1)})
	for version := int16(4); version <= 17; version++ {
		for isolation := int8(0); isolation <= 1; isolation++ {
			req := fetchRequest(version, fetched{topic, 0, 0})
			req.IsolationLevel = isolation
			p := reader.fetchOne(req)
			require.Equal(t, []int64{7, 7}, []int64{p.HighWatermark, p.LastStableOffset})
			require.Len(t, values(t, withoutMarkers(t, p.RecordBatches)), 4)
			if isolation == 0 {
				require.Nil(t, p.AbortedTransactions)
				continue
			}
			var aborted []int64
			for _, a := range p.AbortedTransactions {
				aborted = append(aborted, a.ProducerID, a.FirstOffset)
			}
			require.Equal(t, []int64{second.pid, 0, third.pid, 3}, aborted, "v%d", version)
		}
	}
	req := fetchRequest(12, fetched{topic, 0, 5}) // behind the second's marker
	req.IsolationLevel = 1
	p := reader.fetchOne(req)
	require.Len(t, p.AbortedTransactions, 1)
	require.EqualValues(t, 3, p.AbortedTransactions[0].FirstOffset)
}

// D17: a cluster whose feature level has no transactions yet has no coordinators for them, and no batch gets in.
func TestTransactionsNeedFeatureLevel(t *testing.T) {
	b := ownBroker(t, brokerEdit{level: metadata.GroupsFeatureLevel})
	c := b.dial(t)
	topic := b.topic(t, 1)
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorType, find.CoordinatorKey = 1, 1, "early"
	require.Equal(t, codeCoordinatorNotAvailable, ask[*kmsg.FindCoordinatorResponse](c, find).ErrorCode)
	require.Equal(t, codeNotCoordinator, c.initProducer(4, "early", -1, -1).ErrorCode)
	p := &testProducer{c: c, id: "early", pid: 1, seq: map[string]int32{}}
	require.Equal(t, codeNotCoordinator, p.add(3, topic, 0))
	for version := int16(3); version <= 12; version++ {
		require.NotZero(t, p.produce(version, topic, 0, "v"))
	}
	require.Zero(t, b.end(t, topic))

	require.Zero(t, ask[*kmsg.UpdateFeaturesResponse](c, updateFeaturesRequest(1, featureUpdate("transaction.version", 2, 1))).ErrorCode)
	finalized, _ := c.finalizedFeatures(4)
	require.EqualValues(t, 2, finalized["transaction.version"])
	require.Eventually(t, func() bool { return ask[*kmsg.FindCoordinatorResponse](c, find).ErrorCode == 0 }, testDeadline, time.Millisecond)
	require.Eventually(t, func() bool { return c.initProducer(4, "early", -1, -1).ErrorCode == 0 }, testDeadline, time.Millisecond)
}
