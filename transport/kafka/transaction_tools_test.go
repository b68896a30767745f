package kafka

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// offsetsOf asks for the committed offset of partition 0.
func (c *testConn) offsetOf(group string, topic *metadata.Topic, stable bool) (offset int64, code int16) {
	c.t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.RequireStable = 8, stable
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	rt := kmsg.NewOffsetFetchRequestGroupTopic()
	rt.Topic, rt.Partitions = topic.Name, []int32{0}
	g.Topics = append(g.Topics, rt)
	req.Groups = append(req.Groups, g)
	p := ask[*kmsg.OffsetFetchResponse](c, req).Groups[0].Topics[0].Partitions[0]
	return p.Offset, p.ErrorCode
}

// commitOffset returns the codes of partitions 0 and of one that is not there.
func (p *testProducer) commitOffset(version int16, group string, topic *metadata.Topic, offset int64, edit ...func(*kmsg.TxnOffsetCommitRequest)) []int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrTxnOffsetCommitRequest()
	req.Version, req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = version, p.id, group, p.pid, p.epoch, -1
	rt := kmsg.NewTxnOffsetCommitRequestTopic()
	rt.Topic, rt.TopicID = topic.Name, topic.ID
	for _, partition := range []int32{0, 7} {
		rp := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset, rp.LeaderEpoch = partition, offset, 3
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	for _, f := range edit {
		f(req)
	}
	resp := ask[*kmsg.TxnOffsetCommitResponse](p.c, req)
	return []int16{resp.Topics[0].Partitions[0].ErrorCode, resp.Topics[0].Partitions[1].ErrorCode}
}

func (p *testProducer) addOffsets(version int16, group string) int16 {
	p.c.t.Helper()
	req := kmsg.NewPtrAddOffsetsToTxnRequest()
	req.Version, req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = version, p.id, p.pid, p.epoch, group
	return ask[*kmsg.AddOffsetsToTxnResponse](p.c, req).ErrorCode
}

// KIP-98, KIP-447, trap 23: offsets of a transaction are seen by nobody before it is committed, by those who ask for stable
// ones not even those before; an abort clears that too. Codes are those of the request's version.
func TestTxnOffsetCommit(t *testing.T) {
	b := ownBroker(t, brokerEdit{grouped: true})
	c := b.dial(t)
	topic := b.topic(t, 1)
	for version := int16(0); version <= 6; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			group := fmt.Sprint("g", version)
			p := c.producer("offsets-" + group)
			missing := codeUnknownTopicOrPartition
			switch {
			case version < 4:
				require.Equal(t, []int16{codeInvalidTxnState, missing}, p.commitOffset(version, group, topic, 5))
			case version < 5:
				require.Equal(t, []int16{codeTransactionAbortable, missing}, p.commitOffset(version, group, topic, 5))
			}
			for v := int16(0); version < 5 && v <= 4; v++ {
				fenced := codeProducerFenced
				if v < 2 {
					fenced = codeInvalidProducerEpoch
				}
				require.Equal(t, fenced, older(p).addOffsets(v, group))
				require.Equal(t, codeInvalidProducerIDMapping, stranger(p).addOffsets(v, group))
				require.Zero(t, p.addOffsets(v, group))
			}
			require.Equal(t, []int16{0, missing}, p.commitOffset(version, group, topic, 5))
			for _, wrong := range []*testProducer{older(p), newer(p)} {
				require.Equal(t, []int16{codeInvalidProducerEpoch, missing}, wrong.commitOffset(version, group, topic, 6))
			}
			require.Equal(t, []int16{codeInvalidProducerIDMapping, missing}, impostor(p).commitOffset(version, group, topic, 6))
			require.Equal(t, []int16{codeInvalidProducerIDMapping, missing}, stranger(p).commitOffset(version, group, topic, 6))
			require.Equal(t, []int16{codeInvalidGroupID, missing}, p.commitOffset(version, "", topic, 6))
			if version >= 3 {
				require.Equal(t, []int16{codeUnknownMemberID, missing}, p.commitOffset(version, group, topic, 6, func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID, r.Generation = "m", 3 }))
			}
			if version >= 6 {
				require.Equal(t, []int16{codeUnknownTopicID, codeUnknownTopicID}, p.commitOffset(version, group, &metadata.Topic{ID: metadata.TopicID{9}}, 6))
			}

			offset, code := c.offsetOf(group, topic, true)
			require.Equal(t, []any{int64(-1), codeUnstableOffsetCommit}, []any{offset, code})
			offset, code = c.offsetOf(group, topic, false)
			require.Equal(t, []any{int64(-1), codeNone}, []any{offset, code})
			require.Zero(t, p.end(5, true))
			offset, code = c.offsetOf(group, topic, true)
			require.Equal(t, []any{int64(5), codeNone}, []any{offset, code}, "with the transaction's end")

			require.Equal(t, []int16{0, missing}, p.commitOffset(max(version, 5), group, topic, 9))
			offset, code = c.offsetOf(group, topic, true)
			require.Equal(t, []any{int64(-1), codeUnstableOffsetCommit}, []any{offset, code})
			offset, _ = c.offsetOf(group, topic, false)
			require.EqualValues(t, 5, offset)
			require.Zero(t, p.end(5, false))
			offset, code = c.offsetOf(group, topic, true)
			require.Equal(t, []any{int64(5), codeNone}, []any{offset, code}, "it was aborted")
		})
	}
}

func (c *testConn) describeTransactions(ids ...string) []kmsg.DescribeTransactionsResponseTransactionState {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = ids
	return ask[*kmsg.DescribeTransactionsResponse](c, req).TransactionStates
}

func (c *testConn) listTransactions(version int16, edit func(*kmsg.ListTransactionsRequest)) *kmsg.ListTransactionsResponse {
	req := kmsg.NewPtrListTransactionsRequest()
	req.Version = version
	edit(req)
	return ask[*kmsg.ListTransactionsResponse](c, req)
}

func (c *testConn) describeProducers(topic string, partition int32) kmsg.DescribeProducersResponseTopicPartition {
	req := kmsg.NewPtrDescribeProducersRequest()
	rt := kmsg.NewDescribeProducersRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{partition}
	req.Topics = append(req.Topics, rt)
	return ask[*kmsg.DescribeProducersResponse](c, req).Topics[0].Partitions[0]
}

// KIP-664: what is open can be found, by transactional id and by partition, and ended by a marker that an administrator
// writes; a marker of a coordinator that is older than the last one's is refused (52).
func TestTransactionTools(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	topic := b.topic(t, 1)
	require.Empty(t, c.listTransactions(2, func(*kmsg.ListTransactionsRequest) {}).TransactionStates)
	p, idle := c.producer("tool-1"), c.producer("tool-2")
	require.Zero(t, p.produce(12, topic, 0, "a"))

	states := c.describeTransactions("tool-1", "tool-2", "nobody", "")
	require.Equal(t, []int16{0, 0, codeTransactionalIDNotFound, codeInvalidRequest}, []int16{states[0].ErrorCode, states[1].ErrorCode, states[2].ErrorCode, states[3].ErrorCode})
	require.Equal(t, "Ongoing", states[0].State)
	require.EqualValues(t, 60_000, states[0].TimeoutMillis)
	require.InDelta(t, time.Now().UnixMilli(), states[0].StartTimestamp, 60_000)
	require.Equal(t, topic.Name, states[0].Topics[0].Topic)
	require.Equal(t, []int32{0}, states[0].Topics[0].Partitions)
	require.Equal(t, []any{"Empty", int64(-1), idle.pid}, []any{states[1].State, states[1].StartTimestamp, states[1].ProducerID})

	ids := func(resp *kmsg.ListTransactionsResponse) (ids []string) {
		require.Zero(t, resp.ErrorCode)
		for _, s := range resp.TransactionStates {
			ids = append(ids, s.TransactionalID)
		}
		return ids
	}
	require.Equal(t, []string{"tool-1", "tool-2"}, ids(c.listTransactions(0, func(*kmsg.ListTransactionsRequest) {})))
	require.Equal(t, []string{"tool-1"}, ids(c.listTransactions(0, func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Ongoing", "Dead"} })))
	require.Equal(t, []string{"tool-2"}, ids(c.listTransactions(1, func(r *kmsg.ListTransactionsRequest) { r.ProducerIDFilters = []int64{idle.pid} })))
	require.Empty(t, ids(c.listTransactions(1, func(r *kmsg.ListTransactionsRequest) { r.DurationFilterMillis = 3_600_000 })))
	require.Equal(t, []string{"tool-2"}, ids(c.listTransactions(2, func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("t.*-2") })))
	require.Empty(t, ids(c.listTransactions(2, func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = kmsg.StringPtr("ool-2") })), "the whole id")
	for _, pattern := range []string{"(", "a)|(b", "(?P<"} {
		require.Equal(t, codeInvalidRegularExpression, c.listTransactions(2, func(r *kmsg.ListTransactionsRequest) { r.TransactionalIDPattern = &pattern }).ErrorCode)
	}
	resp := c.listTransactions(0, func(r *kmsg.ListTransactionsRequest) { r.StateFilters = []string{"Asleep"} })
	require.Equal(t, []string{"Asleep"}, resp.UnknownStateFilters)
	require.Empty(t, ids(resp))

	rp := c.describeProducers(topic.Name, 0)
	require.Zero(t, rp.ErrorCode)
	require.Len(t, rp.ActiveProducers, 1)
	require.Equal(t, []any{p.pid, int64(0)}, []any{rp.ActiveProducers[0].ProducerID, rp.ActiveProducers[0].CurrentTxnStartOffset})
	require.Equal(t, codeUnknownTopicOrPartition, c.describeProducers(topic.Name, 7).ErrorCode)
	require.Equal(t, codeUnknownTopicOrPartition, c.describeProducers("nowhere", 0).ErrorCode)

	for version := int16(1); version <= 2; version++ {
		marker := func(epoch int16, coordinatorEpoch int32) []int16 {
			req := kmsg.NewPtrWriteTxnMarkersRequest()
			req.Version = version
			m := kmsg.NewWriteTxnMarkersRequestMarker()
			m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch = p.pid, epoch, coordinatorEpoch
			mt := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
			mt.Topic, mt.Partitions = topic.Name, []int32{0, 7}
			m.Topics = append(m.Topics, mt)
			req.Markers = append(req.Markers, m)
			ps := ask[*kmsg.WriteTxnMarkersResponse](c, req).Markers[0].Topics[0].Partitions
			return []int16{ps[0].ErrorCode, ps[1].ErrorCode}
		}
		require.Equal(t, []int16{0, codeUnknownTopicOrPartition}, marker(p.epoch, 5))
		require.Equal(t, []int16{codeTransactionCoordinatorFenced, codeUnknownTopicOrPartition}, marker(p.epoch, 4))
	}
	require.EqualValues(t, -1, c.describeProducers(topic.Name, 0).ActiveProducers[0].CurrentTxnStartOffset)
	got := c.readCommitted(topic, 0)
	require.Len(t, got.AbortedTransactions, 1)
	require.Equal(t, got.HighWatermark, got.LastStableOffset)

	// A request with very many markers does not fill the disk with log lines.
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	req.Version = 1
	m, mt := kmsg.NewWriteTxnMarkersRequestMarker(), kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	m.ProducerID, m.ProducerEpoch, m.CoordinatorEpoch = p.pid, p.epoch, 4
	mt.Topic, mt.Partitions = topic.Name, make([]int32, 500)
	m.Topics = append(m.Topics, mt)
	req.Markers = append(req.Markers, m)
	ask[*kmsg.WriteTxnMarkersResponse](c, req)
	require.Less(t, strings.Count(b.logs.String(), "transaction marker written by request"), 300)
	require.Contains(t, b.logs.String(), "of which not all are logged\" markers=500")
}
