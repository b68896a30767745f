package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// R16, I17: that an offset is above the log's end makes a consumer begin anew, so a leader says it only after a word with the
// quorum; without one the consumer is to ask again. What does not depend on it is answered as ever.
func TestFetchBeyondTheEndIsProven(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 2)
	c.produce(topic, 0, batch(4))
	ask := func(offset int64) kmsg.FetchResponseTopicPartition {
		req := fetchRequest(12, fetched{topic, 0, offset})
		req.SessionEpoch = -1
		return c.fetchOne(req)
	}
	require.EqualValues(t, codeOffsetOutOfRange, ask(5).ErrorCode)
	require.Zero(t, ask(4).ErrorCode)
	require.EqualValues(t, codeOffsetOutOfRange, ask(-1).ErrorCode)

	require.NoError(t, b.store.Close()) // as good as a broker that is cut off
	require.EqualValues(t, codeNotLeaderOrFollower, ask(5).ErrorCode)
	require.Len(t, values(t, ask(0).RecordBatches), 4)
	require.EqualValues(t, codeOffsetOutOfRange, ask(-1).ErrorCode, "no other leader's log begins below the start")
}

// A session's fetch that is looked at twice counts once, and brings the records of the other partitions.
func TestFetchBeyondTheEndInASession(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 2)
	c.produce(topic, 0, batch(4))
	c.produce(topic, 1, batch(2))
	resp := ask[*kmsg.FetchResponse](c, sessionFetch(12, 0, 0, fetched{topic, 0, 3}))
	require.Zero(t, resp.ErrorCode)
	require.NotZero(t, resp.SessionID)
	told := ask[*kmsg.FetchResponse](c, sessionFetch(12, resp.SessionID, 1, fetched{topic, 0, 5}, fetched{topic, 1, 0}))
	require.Zero(t, told.ErrorCode)
	codes, records := map[int32]int16{}, map[int32]int{}
	for _, p := range told.Topics[0].Partitions {
		codes[p.Partition], records[p.Partition] = p.ErrorCode, len(values(t, p.RecordBatches))
	}
	require.Equal(t, map[int32]int16{0: codeOffsetOutOfRange, 1: 0}, codes)
	require.Equal(t, map[int32]int{0: 0, 1: 2}, records)
	require.Zero(t, ask[*kmsg.FetchResponse](c, sessionFetch(12, resp.SessionID, 2, fetched{topic, 0, 4})).ErrorCode)
}
