package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

// sessionFetch is a request of a session.
func sessionFetch(version int16, id, epoch int32, parts ...fetched) *kmsg.FetchRequest {
	req := fetchRequest(version, parts...)
	req.SessionID, req.SessionEpoch = id, epoch
	return req
}

// answered lists the partitions of an answer, in its order.
func answered(resp *kmsg.FetchResponse) (ids []int32) {
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			ids = append(ids, p.Partition)
		}
	}
	return ids
}

// KIP-227, the life of a session, with names and with ids: the first answer lists
// everything, later ones only what is new.
func TestSessionIncremental(t *testing.T) {
	for _, version := range []int16{7, 12, 13, 17} {
		b := theBroker(t)
		c, topic := b.dial(t), b.topic(t, 4)
		c.produce(topic, 1, batch(1))
		first := ask[*kmsg.FetchResponse](c, sessionFetch(version, 0, 0, fetched{topic, 0, 0}, fetched{topic, 1, 0}, fetched{topic, 2, 0}))
		require.Zero(t, first.ErrorCode)
		require.NotZero(t, first.SessionID)
		require.Equal(t, []int32{0, 1, 2}, answered(first))
		id := first.SessionID

		// The position of 1 moves on; nothing is new.
		resp := ask[*kmsg.FetchResponse](c, sessionFetch(version, id, 1, fetched{topic, 1, 1}))
		require.Zero(t, resp.ErrorCode)
		require.Equal(t, id, resp.SessionID)
		require.Empty(t, answered(resp))

		c.produce(topic, 2, batch(2))
		resp = ask[*kmsg.FetchResponse](c, sessionFetch(version, id, 2))
		require.Equal(t, []int32{2}, answered(resp))
		require.Len(t, values(t, resp.Topics[0].Partitions[0].RecordBatches), 2)

		// Unchanged position: the same again. A new partition joins, one leaves.
		req := sessionFetch(version, id, 3, fetched{topic, 3, 0})
		forgotten := kmsg.NewFetchRequestForgottenTopic()
		forgotten.Topic, forgotten.TopicID, forgotten.Partitions = topic.Name, topic.ID, []int32{0, 99}
		req.ForgottenTopics = append(req.ForgottenTopics, forgotten)
		resp = ask[*kmsg.FetchResponse](c, req)
		require.ElementsMatch(t, []int32{2, 3}, answered(resp), "2 has records, 3 was never told of")

		c.produce(topic, 0, batch(1))
		resp = ask[*kmsg.FetchResponse](c, sessionFetch(version, id, 4, fetched{topic, 2, 2}))
		require.Empty(t, answered(resp), "0 was forgotten")

		// Closed, it is gone.
		resp = ask[*kmsg.FetchResponse](c, sessionFetch(version, id, -1, fetched{topic, 0, 0}))
		require.Zero(t, resp.SessionID)
		require.Equal(t, []int32{0}, answered(resp))
		resp = ask[*kmsg.FetchResponse](c, sessionFetch(version, id, 5))
		require.EqualValues(t, 70, resp.ErrorCode)
	}
}

// The errors of sessions: 70 unknown, 71 wrong epoch, 106 names and ids mixed; each
// with session id 0 and no topics. The session survives 71 and 106.
func TestSessionErrors(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	refused := func(code int16, req *kmsg.FetchRequest) {
		t.Helper()
		req.MaxWaitMillis, req.MinBytes = 600_000, 1<<20
		resp := ask[*kmsg.FetchResponse](c, req)
		require.Equal(t, code, resp.ErrorCode)
		require.Zero(t, resp.SessionID)
		require.Empty(t, resp.Topics)
	}
	byName := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 0})).SessionID
	byID := ask[*kmsg.FetchResponse](c, sessionFetch(13, 0, 0, fetched{topic, 0, 0})).SessionID
	refused(70, sessionFetch(12, 12345, 1))
	refused(70, sessionFetch(12, 0, 1))
	refused(70, sessionFetch(12, -1, 1))
	refused(71, sessionFetch(12, byName, 2))
	refused(71, sessionFetch(12, byName, -2))
	refused(106, sessionFetch(13, byName, 1))
	refused(106, sessionFetch(12, byID, 1))
	require.Zero(t, ask[*kmsg.FetchResponse](c, sessionFetch(12, byName, 1)).ErrorCode)
	require.Zero(t, ask[*kmsg.FetchResponse](c, sessionFetch(13, byID, 1)).ErrorCode)
	refused(71, sessionFetch(12, byName, 1))

	// (id, 0) closes the session and makes another.
	again := ask[*kmsg.FetchResponse](c, sessionFetch(12, byName, 0, fetched{topic, 0, 0}))
	require.NotZero(t, again.SessionID)
	require.NotEqual(t, byName, again.SessionID)
	refused(70, sessionFetch(12, byName, 2))
	// Nothing to remember: no session.
	require.Zero(t, ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0)).SessionID)
}

// After an error a partition is told again, and when the error is over too.
func TestSessionErrorIsToldAgain(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(1))
	id := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 5}, fetched{topic, 9, 0})).SessionID
	resp := ask[*kmsg.FetchResponse](c, sessionFetch(12, id, 1))
	require.Equal(t, []int32{0, 9}, answered(resp))
	require.EqualValues(t, 1, resp.Topics[0].Partitions[0].ErrorCode)
	require.EqualValues(t, 3, resp.Topics[0].Partitions[1].ErrorCode)
	resp = ask[*kmsg.FetchResponse](c, sessionFetch(12, id, 2, fetched{topic, 0, 1}))
	require.Equal(t, []int32{0, 9}, answered(resp), "empty, and its marks are told after the error")
	require.Zero(t, resp.Topics[0].Partitions[0].ErrorCode)
	require.EqualValues(t, 1, resp.Topics[0].Partitions[0].HighWatermark)
	resp = ask[*kmsg.FetchResponse](c, sessionFetch(12, id, 3))
	require.Equal(t, []int32{9}, answered(resp))
}

// A partition that was served goes behind the others, so that a hot one can't
// starve them when the answer is full.
func TestSessionRotation(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 3)
	for i := range int32(3) {
		c.produce(topic, i, batch(1))
	}
	req := sessionFetch(12, 0, 0, fetched{topic, 0, 0}, fetched{topic, 1, 0}, fetched{topic, 2, 0})
	id := ask[*kmsg.FetchResponse](c, req).SessionID
	var served []int32
	for epoch := int32(1); epoch <= 6; epoch++ {
		// Nothing is consumed: all three have records all the time, and there is
		// room for one.
		req := sessionFetch(12, id, epoch)
		req.MaxBytes = 1
		resp := ask[*kmsg.FetchResponse](c, req)
		require.Len(t, answered(resp), 1)
		served = append(served, answered(resp)[0])
	}
	require.Equal(t, []int32{0, 1, 2, 0, 1, 2}, served)
}

// A fetch that waits in a session is answered with 71 when the session went on
// without it, on another connection.
func TestSessionOvertaken(t *testing.T) {
	b := theBroker(t)
	c, d, topic := b.dial(t), b.dial(t), b.topic(t, 1)
	id := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 0})).SessionID
	waits := sessionFetch(12, id, 1)
	waits.MaxWaitMillis = 600_000
	c.send(waits)
	b.awaitParked(t, 1)
	require.Zero(t, ask[*kmsg.FetchResponse](d, sessionFetch(12, id, 2)).ErrorCode)
	d.produce(topic, 0, batch(1))
	require.EqualValues(t, 71, c.receive(waits).(*kmsg.FetchResponse).ErrorCode)
	require.Equal(t, []int32{0}, answered(ask[*kmsg.FetchResponse](d, sessionFetch(12, id, 3))))
}

// A session that waits is woken for partitions that its request does not name.
func TestSessionWaits(t *testing.T) {
	b := theBroker(t)
	c, d, topic := b.dial(t), b.dial(t), b.topic(t, 2)
	id := ask[*kmsg.FetchResponse](c, sessionFetch(13, 0, 0, fetched{topic, 0, 0}, fetched{topic, 1, 0})).SessionID
	for epoch := int32(1); epoch < 4; epoch++ {
		req := sessionFetch(13, id, epoch)
		if epoch > 1 {
			req = sessionFetch(13, id, epoch, fetched{topic, 1, int64(epoch - 1)})
		}
		req.MaxWaitMillis = 600_000
		c.send(req)
		b.awaitParked(t, 1)
		d.produce(topic, 1, batch(1))
		resp := c.receive(req).(*kmsg.FetchResponse)
		require.Equal(t, []int32{1}, answered(resp))
		require.Equal(t, id, resp.SessionID)
	}
}

// A topic that is made again under its name has another id: a session by id is told
// so, one by name reads the new one (D14, M21).
func TestSessionOfRecreatedTopic(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	byName := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 0})).SessionID
	byID := ask[*kmsg.FetchResponse](c, sessionFetch(13, 0, 0, fetched{topic, 0, 0})).SessionID
	require.NoError(t, b.store.DeleteTopics(t.Context(), []metadata.TopicRef{{Name: topic.Name}})[0].Err)
	result := b.store.CreateTopics(t.Context(), []metadata.NewTopic{{Name: topic.Name, Partitions: 1, ReplicationFactor: 1}}, false)[0]
	require.NoError(t, result.Err)
	require.NoError(t, b.replicas.Await(t.Context(), b.store.Image().Version()))
	again := b.store.Image().Topic(topic.Name)
	require.NotEqual(t, topic.ID, again.ID)
	c.produce(again, 0, batch(1))
	resp := ask[*kmsg.FetchResponse](c, sessionFetch(12, byName, 1))
	require.Equal(t, []int32{0}, answered(resp))
	require.Len(t, values(t, resp.Topics[0].Partitions[0].RecordBatches), 1)
	resp = ask[*kmsg.FetchResponse](c, sessionFetch(13, byID, 1))
	require.EqualValues(t, 100, resp.Topics[0].Partitions[0].ErrorCode)
	require.EqualValues(t, topic.ID, resp.Topics[0].TopicID)
}

// A partition whose marks moved is told so even when there is no room for its
// records, and once only.
func TestSessionTellsMarks(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 2)
	id := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 0}, fetched{topic, 1, 0})).SessionID
	c.produce(topic, 0, batch(1))
	c.produce(topic, 1, batch(1))
	small := func(epoch int32) *kmsg.FetchResponse {
		req := sessionFetch(12, id, epoch)
		req.MaxBytes = 1
		return ask[*kmsg.FetchResponse](c, req)
	}
	resp := small(1)
	require.Equal(t, []int32{0, 1}, answered(resp))
	require.NotEmpty(t, resp.Topics[0].Partitions[0].RecordBatches)
	require.Empty(t, resp.Topics[0].Partitions[1].RecordBatches)
	require.EqualValues(t, 1, resp.Topics[0].Partitions[1].HighWatermark)
	resp = small(2)
	require.Equal(t, []int32{1}, answered(resp))
	require.NotEmpty(t, resp.Topics[0].Partitions[0].RecordBatches)

	p, err := b.replicas.Partition(topic.Name, 1)
	require.NoError(t, err)
	_, err = p.DeleteRecords(t.Context(), 1, -1)
	require.NoError(t, err)
	resp = small(3) // 0 has records, and 1 another start, where its reader is not any more
	require.Equal(t, []int32{0, 1}, answered(resp))
	require.EqualValues(t, 1, resp.Topics[0].Partitions[1].ErrorCode)
	require.EqualValues(t, -1, resp.Topics[0].Partitions[1].LogStartOffset)
}
