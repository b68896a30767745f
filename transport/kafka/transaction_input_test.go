package kafka

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// What no producer can have is refused in every version with the code that Apache Kafka has for it, and changes nothing: neither
// the transaction that is open, nor what the partition knows of its producers. integration compares more of it with Kafka.
func TestBadTransactionInput(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	topic := b.topic(t, 2)
	p := c.producer("good")
	require.Zero(t, p.add(3, topic, 0))
	require.Zero(t, p.produce(9, topic, 0, "a"))
	before, end := b.store.Image().Transaction(p.id), b.end(t, topic)
	unchanged := func(what string) {
		t.Helper()
		require.Same(t, before, b.store.Image().Transaction(p.id), what)
		require.Equal(t, end, b.end(t, topic), what)
		require.Len(t, c.describeProducers(topic.Name, 0).ActiveProducers, 1, what)
	}

	for version := int16(3); version <= 5; version++ {
		fenced := codeProducerFenced
		if version < 4 {
			fenced = codeInvalidProducerEpoch
		}
		for _, bad := range []struct {
			pid   int64
			epoch int16
			code  int16
		}{
			{-7, -7, fenced}, {p.pid, math.MaxInt16, fenced}, {p.pid, -7, fenced}, {math.MaxInt64, 0, fenced},
			{-7, -1, codeInvalidRequest}, {-1, -7, codeInvalidRequest}, {-1, 0, codeInvalidRequest}, {p.pid, -1, codeInvalidRequest},
		} {
			require.Equal(t, bad.code, c.initProducer(version, p.id, bad.pid, bad.epoch).ErrorCode, "v%d %v", version, bad)
		}
		unchanged(fmt.Sprint("init v", version))
	}
	for version := int16(0); version <= 5; version++ {
		fenced := codeProducerFenced
		if version < 2 {
			fenced = codeInvalidProducerEpoch
		}
		for _, epoch := range []int16{-7, math.MaxInt16} {
			q := p.other(func(q *testProducer) { q.epoch = epoch })
			require.Equal(t, fenced, q.add(version, topic, 1))
			require.Equal(t, fenced, q.end(version, true))
		}
		for _, pid := range []int64{-7, math.MaxInt64} {
			q := p.other(func(q *testProducer) { q.pid = pid })
			require.Equal(t, codeInvalidProducerIDMapping, q.add(version, topic, 1))
			require.Equal(t, codeInvalidProducerIDMapping, q.end(version, false))
		}
		require.Equal(t, []int16{codeUnknownTopicOrPartition}, p.addRequest(version, strings.Repeat("n", 300), 0))
		require.Equal(t, []int16{codeOperationNotAttempted, codeUnknownTopicOrPartition, codeUnknownTopicOrPartition}, p.addRequest(version, topic.Name, 1, math.MinInt32, math.MaxInt32))
		require.Empty(t, p.addRequest(version, topic.Name))
		require.Equal(t, []int16{0, 0}, p.addRequest(version, topic.Name, 0, 0), "it is there")
		unchanged(fmt.Sprint("add and end v", version))
	}
	for version := int16(1); version <= 2; version++ {
		for _, bad := range []struct {
			pid         int64
			epoch       int16
			coordinator int32
			partition   int32
			code        int16
		}{
			{-7, 0, 5, 0, codeInvalidProducerEpoch}, {-1, -1, 5, 0, codeInvalidProducerEpoch}, {999, -7, 5, 0, codeInvalidProducerEpoch},
			{999, 0, -7, 0, codeTransactionCoordinatorFenced}, {999, 0, 5, -1, codeUnknownTopicOrPartition}, {-7, -7, -7, math.MaxInt32, codeUnknownTopicOrPartition},
		} {
			req := kmsg.NewPtrWriteTxnMarkersRequest()
			req.Version = version
			m, mt := kmsg.NewWriteTxnMarkersRequestMarker(), kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch = bad.pid, bad.epoch, bad.coordinator
			mt.Topic, mt.Partitions = topic.Name, []int32{bad.partition}
			m.Topics = append(m.Topics, mt)
			req.Markers = append(req.Markers, m)
			require.Equal(t, bad.code, ask[*kmsg.WriteTxnMarkersResponse](c, req).Markers[0].Topics[0].Partitions[0].ErrorCode, "v%d %v", version, bad)
		}
		unchanged(fmt.Sprint("marker v", version))
	}
	for name, code := range map[string]int16{strings.Repeat("n", 300): codeInvalidTopic, "": codeInvalidTopic, "nowhere": codeUnknownTopicOrPartition} {
		require.Equal(t, code, c.describeProducers(name, 0).ErrorCode, "%.10q", name)
	}
	require.Zero(t, p.end(3, true))
	p.await(b, metadata.TransactionCompleteCommit)
}
