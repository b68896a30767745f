package kafka

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestOffsetForLeaderEpoch(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(3))
	first := topic.Partitions[0].LeaderEpoch
	b = b.restart(t).restart(t)
	c = b.dial(t)
	c.produce(topic, 0, batch(2))
	epoch := b.store.Image().Topic(topic.Name).Partitions[0].LeaderEpoch
	require.Equal(t, first+2, epoch)
	for version := int16(2); version <= 4; version++ {
		for _, test := range []struct {
			name               string
			partition, current int32
			asked              int32
			code               int16
			foundEpoch         int32
			endOffset          int64
		}{
			{topic.Name, 0, -1, epoch, 0, epoch, 5},
			{topic.Name, 0, epoch, epoch, 0, epoch, 5},
			{topic.Name, 0, -1, first + 1, 0, first, 3}, // nothing was written in it
			{topic.Name, 0, -1, first, 0, first, 3},
			{topic.Name, 0, -1, epoch + 1, 0, -1, -1},
			{topic.Name, 0, epoch - 1, epoch, 74, -1, -1},
			{topic.Name, 0, epoch + 1, epoch, 75, -1, -1},
			{topic.Name, 1, -1, epoch, 3, -1, -1},
			{"not-there", 0, -1, epoch, 3, -1, -1},
		} {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.Version, req.ReplicaID = version, -1
			rt := kmsg.NewOffsetForLeaderEpochRequestTopic()
			rt.Topic = test.name
			p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = test.partition, test.current, test.asked
			rt.Partitions = append(rt.Partitions, p)
			req.Topics = append(req.Topics, rt)
			got := ask[*kmsg.OffsetForLeaderEpochResponse](c, req).Topics[0].Partitions[0]
			require.Equal(t, []any{test.code, test.foundEpoch, test.endOffset}, []any{got.ErrorCode, got.LeaderEpoch, got.EndOffset}, "%+v", test)
		}
	}
}

func TestListOffsets(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	topic := b.topic(t, 1)
	b = b.restart(t)
	c := b.dial(t)
	start := time.Now().Add(-time.Hour).UnixMilli()
	for i := range int64(4) {
		c.produce(topic, 0, dated(start+10*i, start+10*i+5))
	}
	epoch := b.store.Image().Topic(topic.Name).Partitions[0].LeaderEpoch
	require.Positive(t, epoch)
	none := int64(math.MaxInt64)
	for version := int16(1); version <= 10; version++ {
		list := func(timestamp int64, current int32, isolation int8) kmsg.ListOffsetsResponseTopicPartition {
			req := kmsg.NewPtrListOffsetsRequest()
			req.Version, req.ReplicaID, req.IsolationLevel = version, -1, isolation
			rt := kmsg.NewListOffsetsRequestTopic()
			rt.Topic = topic.Name
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Timestamp, p.CurrentLeaderEpoch = timestamp, current
			rt.Partitions = append(rt.Partitions, p)
			req.Topics = append(req.Topics, rt)
			return ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0]
		}
		for _, test := range []struct {
			spec, offset, timestamp int64
			since                   int16
		}{
			{-1, 8, -1, 1}, {-2, 0, -1, 1}, {-3, 7, start + 35, 7}, {-4, 0, -1, 8}, {-5, -1, -1, 9}, {-6, none, 0, 99}, {-7, none, 0, 99},
			{0, 0, start, 1}, {start + 1, 1, start + 5, 1}, {start + 10, 2, start + 10, 1}, {start + 35, 7, start + 35, 1}, {start + 36, -1, -1, 1},
		} {
			for _, isolation := range []int8{0, 1} {
				p := list(test.spec, -1, isolation)
				if version < test.since {
					require.EqualValues(t, 35, p.ErrorCode, "v%d spec %d", version, test.spec)
					continue
				}
				require.Zero(t, p.ErrorCode)
				require.Equal(t, test.offset, p.Offset, "v%d spec %d", version, test.spec)
				require.Equal(t, test.timestamp, p.Timestamp)
				if version >= 4 && p.Offset >= 0 {
					require.Equal(t, epoch, p.LeaderEpoch)
				}
			}
		}
		if version >= 4 {
			require.EqualValues(t, 75, list(-1, epoch+1, 0).ErrorCode)
			require.EqualValues(t, 74, list(-1, epoch-1, 0).ErrorCode)
			require.Zero(t, list(-1, epoch, 0).ErrorCode)
		}
		req := kmsg.NewPtrListOffsetsRequest()
		req.Version = version
		rt := kmsg.NewListOffsetsRequestTopic()
		rt.Topic = topic.Name
		for _, id := range []int32{0, 0, 5} {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.CurrentLeaderEpoch, p.Timestamp = id, -1, -1
			rt.Partitions = append(rt.Partitions, p)
		}
		req.Topics = append(req.Topics, rt)
		p := ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions
		require.Equal(t, [3]int16{42, 42, 3}, [3]int16{p[0].ErrorCode, p[1].ErrorCode, p[2].ErrorCode})
	}
}
