package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// flip turns one bit of the segment that holds the start of partition 0 round.
func flip(t *testing.T, fs vfs.FS, topic *metadata.Topic, at int64) {
	t.Helper()
	f, err := fs.Open(fmt.Sprintf("/data/%s-0/%020d.log", topic.Name, 0))
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 4
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

// I19, L9: a consumer that can't get past a damaged batch asks for it again, and by that takes the replica offline: with
// a session or without, and when its client forgot the partition meanwhile. Before, it was given the same bytes for ever.
func TestConsumersComplaintIsHeard(t *testing.T) {
	for _, kind := range []string{"session", "forgotten", "sessionless", "by name"} {
		t.Run(kind, func(t *testing.T) {
			fs := vfs.NewMem(1)
			b := ownBroker(t, brokerEdit{fs: fs})
			c, topic, other := b.dial(t), b.topic(t, 1), b.topic(t, 1)
			good := batch(1)
			c.produce(topic, 0, good)
			c.produce(topic, 0, batch(1))
			c.produce(other, 0, batch(1))
			flip(t, fs, topic, int64(len(good))+64)
			version, session, epoch := int16(17), noSession, finalEpoch
			switch kind {
			case "by name":
				version = 11
			case "session", "forgotten":
				epoch = initialEpoch
			}
			fetch := func(parts ...fetched) *kmsg.FetchResponse {
				t.Helper()
				req := sessionFetch(version, session, epoch, parts...)
				req.MaxWaitMillis = 0
				if kind == "forgotten" && len(parts) == 1 && parts[0].topic == other {
					forgotten := kmsg.NewFetchRequestForgottenTopic()
					forgotten.TopicID, forgotten.Partitions = topic.ID, []int32{0}
					req.ForgottenTopics = append(req.ForgottenTopics, forgotten)
				}
				resp := ask[*kmsg.FetchResponse](c, req)
				require.Zero(t, resp.ErrorCode)
				if session = resp.SessionID; session != noSession {
					epoch = nextSessionEpoch(epoch)
				}
				return resp
			}
			part := func(resp *kmsg.FetchResponse) kmsg.FetchResponseTopicPartition {
				t.Helper()
				for _, rt := range resp.Topics {
					if rt.Topic == topic.Name || rt.TopicID == [16]byte(topic.ID) {
						return rt.Partitions[0]
					}
				}
				require.Fail(t, "not in the answer")
				panic("unreachable")
			}
			// From the start: the good batch, the damaged one behind it. The consumer goes on behind the good one.
			require.Zero(t, part(fetch(fetched{topic, 0, 0}, fetched{other, 0, 0})).ErrorCode)
			p := part(fetch(fetched{topic, 0, 1}))
			require.Zero(t, p.ErrorCode, "nothing shows that it was not liked")
			damaged, _, err := record.Next(p.RecordBatches)
			require.NoError(t, err)
			require.False(t, damaged.CheckCRC())
			if kind == "forgotten" {
				fetch(fetched{other, 0, 1})
			}
			p = part(fetch(fetched{topic, 0, 1}))
			require.NotZero(t, p.ErrorCode)
			require.Empty(t, p.RecordBatches)
			l, ok := b.dir.Lookup(topic.ID, 0)
			require.True(t, ok)
			require.ErrorIs(t, l.Corrupt(), log.ErrCorrupt)
			require.Equal(t, 1, strings.Count(b.logs.String(), "partition is corrupt and goes offline"))
			require.NotZero(t, part(fetch(fetched{topic, 0, 1})).ErrorCode)
			require.Equal(t, 1, strings.Count(b.logs.String(), "partition is corrupt and goes offline"))
		})
	}
}

// A client that reads the same records again for reasons of its own gets them, and they are looked at once, however
// often it does.
func TestReadingAgainIsCheckedOnce(t *testing.T) {
	fs := vfs.NewMem(1)
	b := ownBroker(t, brokerEdit{fs: fs})
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(2))
	for range 2 {
		require.Len(t, values(t, c.fetchOne(fetchRequest(17, fetched{topic, 0, 0})).RecordBatches), 2)
	}
	flip(t, fs, topic, 64)
	for range 4 {
		require.Zero(t, c.fetchOne(fetchRequest(17, fetched{topic, 0, 0})).ErrorCode, "it was looked at already")
	}
	require.Zero(t, c.fetchOne(fetchRequest(17, fetched{topic, 0, 1})).ErrorCode)
	require.Zero(t, c.fetchOne(fetchRequest(17, fetched{topic, 0, 0})).ErrorCode, "it went elsewhere meanwhile")
	require.NotZero(t, c.fetchOne(fetchRequest(17, fetched{topic, 0, 0})).ErrorCode)
}

// I20: a consumer that ends at a damaged batch and is started again begins there on a connection of its own.
func TestRestartedConsumersComplaintIsHeard(t *testing.T) {
	fs := vfs.NewMem(1)
	b := ownBroker(t, brokerEdit{fs: fs})
	c, topic := b.dial(t), b.topic(t, 1)
	good := batch(1)
	c.produce(topic, 0, good)
	c.produce(topic, 0, batch(1))
	flip(t, fs, topic, int64(len(good))+64)
	p := c.fetchOne(fetchRequest(17, fetched{topic, 0, 0}))
	require.Zero(t, p.ErrorCode)
	require.Greater(t, len(p.RecordBatches), len(good), "only the first batch is looked at, and the answer is as long as ever")
	require.NotZero(t, b.dial(t).fetchOne(fetchRequest(17, fetched{topic, 0, 1})).ErrorCode)
	require.Equal(t, 1, strings.Count(b.logs.String(), "partition is corrupt and goes offline"))
}

// Marks tell partitions and offsets apart, and are never those of an empty place.
func TestFetchMarks(t *testing.T) {
	b := theBroker(t)
	topic := b.topic(t, 4)
	seen, places := map[fetchMark]bool{}, map[uint8]bool{}
	for id := range int32(4) {
		p, err := b.replicas.PartitionByID(topic.ID, id)
		require.NoError(t, err)
		for offset := range int64(1000) {
			m := markOf(p, offset)
			require.NotZero(t, m.value)
			require.False(t, seen[m] || seen[m.checked()])
			require.NotEqual(t, m, m.checked())
			seen[m], places[m.place] = true, true
		}
	}
	require.LessOrEqual(t, len(places), 4, "one place for a partition, whatever the offset")
}
