package kafka

import (
	"context"
	"errors"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/metadata"
)

func createTopic(name string, partitions int32, replicas int16, configs ...string) kmsg.CreateTopicsRequestTopic {
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, replicas
	for i := 0; i < len(configs); i += 2 {
		config := kmsg.NewCreateTopicsRequestTopicConfig()
		config.Name, config.Value = configs[i], &configs[i+1]
		topic.Configs = append(topic.Configs, config)
	}
	return topic
}

func createRequest(version int16, topics ...kmsg.CreateTopicsRequestTopic) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis, req.Topics = version, 20_000, topics
	return req
}

// A created topic can be used with the next request; v5+ say what was made, v7 its
// id.
func TestCreateTopicsVersions(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c := b.dial(t)
	for version := int16(0); version <= 7; version++ {
		name := "created-" + string('a'+rune(version))
		if version >= 1 {
			req := createRequest(version, createTopic(name, 2, 1))
			req.ValidateOnly = true
			require.Zero(t, ask[*kmsg.CreateTopicsResponse](c, req).Topics[0].ErrorCode)
			require.Nil(t, b.store.Image().Topic(name))
		}
		resp := ask[*kmsg.CreateTopicsResponse](c, createRequest(version, createTopic(name, 2, 1, "retention.ms", "1000")))
		rt := resp.Topics[0]
		require.Zero(t, rt.ErrorCode)
		require.Equal(t, name, rt.Topic)
		topic := b.store.Image().Topic(name)
		require.NotNil(t, topic)
		if version >= 5 {
			require.EqualValues(t, 2, rt.NumPartitions)
			require.EqualValues(t, 1, rt.ReplicationFactor)
			require.True(t, sort.SliceIsSorted(rt.Configs, func(i, j int) bool { return rt.Configs[i].Name < rt.Configs[j].Name }))
			found := map[string]kmsg.CreateTopicsResponseTopicConfig{}
			for _, config := range rt.Configs {
				found[config.Name] = config
			}
			require.Equal(t, "1000", *found["retention.ms"].Value)
			require.EqualValues(t, 1, found["retention.ms"].Source)
			require.Equal(t, "delete", *found["cleanup.policy"].Value)
			require.EqualValues(t, 5, found["cleanup.policy"].Source)
		}
		if version >= 7 {
			require.EqualValues(t, topic.ID, rt.TopicID)
		}
		c.produce(topic, 1, batch(1))
	}
}

// Every way in which a topic can be refused has its code, and the message says the
// mend; the topics beside it are created all the same.
func TestCreateTopicsErrors(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, there := b.dial(t), b.topic(t, 1)
	assigned := func(name string, replicas ...[]int32) kmsg.CreateTopicsRequestTopic {
		topic := createTopic(name, -1, -1)
		for i, r := range replicas {
			a := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
			a.Partition, a.Replicas = int32(i), r
			topic.ReplicaAssignment = append(topic.ReplicaAssignment, a)
		}
		return topic
	}
	gap := assigned("gap", []int32{1}, []int32{1})
	gap.ReplicaAssignment[1].Partition = 2
	twice := assigned("again", []int32{1}, []int32{1})
	twice.ReplicaAssignment[1].Partition = 0
	both := assigned("both", []int32{1})
	both.NumPartitions = 1
	null := createTopic("null-config", 1, 1, "retention.ms", "")
	null.Configs[0].Value = nil
	for _, test := range []struct {
		name  string
		topic kmsg.CreateTopicsRequestTopic
		code  int16
	}{
		{"exists", createTopic(there.Name, 1, 1), 36},
		{"bad name", createTopic("a/b", 1, 1), 17},
		{"empty name", createTopic("", 1, 1), 17},
		{"dots", createTopic("..", 1, 1), 17},
		{"long", createTopic(strings.Repeat("x", 250), 1, 1), 17},
		{"no partitions", createTopic("p0", 0, 1), 37},
		{"negative partitions", createTopic("p2", -2, 1), 37},
		{"no replicas", createTopic("r0", 1, 0), 38},
		{"more replicas than brokers", createTopic("r2", 1, 2), 38},
		{"unknown config", createTopic("c1", 1, 1, "retention.mss", "1"), 40},
		{"bad value", createTopic("c2", 1, 1, "retention.ms", "x"), 40},
		{"config twice", createTopic("c3", 1, 1, "retention.ms", "1", "retention.ms", "2"), 40},
		{"null config", null, 40},
		{"gap", gap, 39},
		{"partition twice", twice, 39},
		{"unknown broker", assigned("who", []int32{9}), 39},
		{"no replicas assigned", assigned("none", []int32{}), 39},
		{"replica twice", assigned("dup", []int32{1, 1}), 39},
		{"both ways", both, 42},
	} {
		t.Run(test.name, func(t *testing.T) {
			good := createTopic("beside-"+strings.ReplaceAll(test.name, " ", "-"), 1, 1)
			resp := ask[*kmsg.CreateTopicsResponse](c, createRequest(7, test.topic, good))
			require.Len(t, resp.Topics, 2)
			for _, rt := range resp.Topics {
				if rt.Topic == good.Topic {
					require.Zero(t, rt.ErrorCode)
					continue
				}
				require.Equal(t, test.code, rt.ErrorCode, "%v", rt.ErrorMessage)
				require.NotNil(t, rt.ErrorMessage)
				require.EqualValues(t, -1, rt.NumPartitions)
				require.Zero(t, rt.TopicID)
			}
		})
	}
	resp := ask[*kmsg.CreateTopicsResponse](c, createRequest(7, createTopic("d", 1, 1), createTopic("e", 1, 1), createTopic("d", 1, 1)))
	require.Len(t, resp.Topics, 2)
	require.Equal(t, []any{"d", int16(42), "e", int16(0)}, []any{resp.Topics[0].Topic, resp.Topics[0].ErrorCode, resp.Topics[1].Topic, resp.Topics[1].ErrorCode})
	// Traps 35 and 38: -1 is the broker's default, also for clients from before.
	for version := int16(0); version <= 7; version++ {
		require.Zero(t, ask[*kmsg.CreateTopicsResponse](c, createRequest(version, createTopic("default-"+string('a'+rune(version)), -1, -1))).Topics[0].ErrorCode)
	}
}

// DeleteTopics by name and by id; what is deleted is unknown at once.
func TestDeleteTopics(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 6; version++ {
		topic := b.topic(t, 1)
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis = version, 20_000
		req.TopicNames = []string{topic.Name, "not-there"}
		for i := range req.TopicNames {
			rt := kmsg.NewDeleteTopicsRequestTopic()
			rt.Topic = &req.TopicNames[i]
			req.Topics = append(req.Topics, rt)
		}
		resp := ask[*kmsg.DeleteTopicsResponse](c, req)
		require.Equal(t, []int16{0, 3}, []int16{resp.Topics[0].ErrorCode, resp.Topics[1].ErrorCode})
		require.Equal(t, topic.Name, *resp.Topics[0].Topic)
		if version >= 6 {
			require.EqualValues(t, topic.ID, resp.Topics[0].TopicID)
		}
		require.Nil(t, b.store.Image().Topic(topic.Name))
		got := ask[*kmsg.ProduceResponse](c, produceRequest(9, 1, produced{topic, 0, batch(1)})).Topics[0].Partitions[0]
		require.EqualValues(t, 3, got.ErrorCode)
	}
	topic, twice := b.topic(t, 1), b.topic(t, 1)
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.Version, req.TimeoutMillis = 6, 20_000
	add := func(name *string, id metadata.TopicID) {
		rt := kmsg.NewDeleteTopicsRequestTopic()
		rt.Topic, rt.TopicID = name, id
		req.Topics = append(req.Topics, rt)
	}
	add(nil, topic.ID)
	add(nil, metadata.TopicID{0xff, 4})
	add(nil, metadata.TopicID{})
	add(&topic.Name, topic.ID)
	add(nil, twice.ID)
	add(&twice.Name, metadata.TopicID{})
	codes := map[int16]int{}
	for _, rt := range ask[*kmsg.DeleteTopicsResponse](c, req).Topics {
		codes[rt.ErrorCode]++
	}
	require.NotNil(t, b.store.Image().Topic(twice.Name), "named twice: it stays")
	require.Equal(t, 1, codes[100])
	require.GreaterOrEqual(t, codes[42], 3)

	off := ownBroker(t, brokerEdit{static: map[string]string{"delete.topic.enable": "false"}})
	kept := off.topic(t, 1)
	for version := int16(0); version <= 6; version++ {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TopicNames = version, []string{kept.Name}
		rt := kmsg.NewDeleteTopicsRequestTopic()
		rt.Topic = &kept.Name
		req.Topics = append(req.Topics, rt)
		want := codeTopicDeletionDisabled
		if version < 3 {
			want = codeInvalidRequest
		}
		require.Equal(t, want, ask[*kmsg.DeleteTopicsResponse](off.dial(t), req).Topics[0].ErrorCode)
	}
	require.NotNil(t, off.store.Image().Topic(kept.Name))
}

func TestCreatePartitions(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 3; version++ {
		topic, same := b.topic(t, 1), b.topic(t, 2)
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Version, req.TimeoutMillis = version, 20_000
		add := func(name string, count int32, assignment ...[]int32) {
			rt := kmsg.NewCreatePartitionsRequestTopic()
			rt.Topic, rt.Count = name, count
			for _, replicas := range assignment {
				a := kmsg.NewCreatePartitionsRequestTopicAssignment()
				a.Replicas = replicas
				rt.Assignment = append(rt.Assignment, a)
			}
			req.Topics = append(req.Topics, rt)
		}
		add(topic.Name, 3, []int32{1}, []int32{1})
		add(same.Name, 2)
		add("not-there", 2)
		add("twice", 2)
		add("twice", 3)
		codes := map[string]int16{}
		for _, rt := range ask[*kmsg.CreatePartitionsResponse](c, req).Topics {
			codes[rt.Topic] = rt.ErrorCode
			require.Equal(t, rt.ErrorCode != 0, rt.ErrorMessage != nil)
		}
		require.Equal(t, map[string]int16{topic.Name: 0, same.Name: 37, "not-there": 3, "twice": 42}, codes)
		topic = b.store.Image().Topic(topic.Name)
		require.Len(t, topic.Partitions, 3)
		c.produce(topic, 2, batch(1))
	}
}

// Producer ids are never given out twice, with a transactional id or without; what cannot be
// is told in every version.
func TestInitProducerID(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	seen := map[int64]bool{}
	for version := int16(0); version <= 5; version++ {
		for range 3 {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version = version
			resp := ask[*kmsg.InitProducerIDResponse](c, req)
			require.Zero(t, resp.ErrorCode)
			require.Zero(t, resp.ProducerEpoch)
			require.GreaterOrEqual(t, resp.ProducerID, int64(0))
			require.False(t, seen[resp.ProducerID])
			seen[resp.ProducerID] = true
		}
		code := func(id string, timeout time.Duration, pid int64, epoch int16) int16 {
			req := kmsg.NewPtrInitProducerIDRequest()
			req.Version, req.TransactionalID, req.TransactionTimeoutMillis = version, &id, int32(timeout/time.Millisecond)
			req.ProducerID, req.ProducerEpoch = pid, epoch
			resp := ask[*kmsg.InitProducerIDResponse](c, req)
			require.Equal(t, []any{int64(-1), int16(-1)}, []any{resp.ProducerID, resp.ProducerEpoch})
			return resp.ErrorCode
		}
		require.EqualValues(t, 42, code("", time.Minute, -1, -1))
		require.EqualValues(t, 50, code("tx", 16*time.Minute, -1, -1))
		require.EqualValues(t, 50, code("tx", 0, -1, -1))
		if version >= 3 {
			require.EqualValues(t, 42, code("tx", time.Minute, 5, -1))
			require.EqualValues(t, 42, code("tx", time.Minute, -1, 0))
		}
	}
}

// P5: a block that is used up is followed by another one.
func TestInitProducerIDAcrossBlocks(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	ids := b.handlers.ids
	ids.mu.Lock()
	ids.mu.first = ids.mu.after // what is left is lost, as at a restart
	dropped := ids.mu.after
	ids.mu.Unlock()
	req := kmsg.NewPtrInitProducerIDRequest()
	require.GreaterOrEqual(t, ask[*kmsg.InitProducerIDResponse](c, req).ProducerID, dropped)
}

// P5: many at once get ids of their own, and ask for no more blocks than they use.
func TestProducerIDsConcurrently(t *testing.T) {
	var blocks atomic.Int64
	ids := NewProducerIDs(func(context.Context) (int64, int, error) { return 10 * (blocks.Add(1) - 1), 10, nil })
	var seen sync.Map
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() {
			for range 50 {
				id, err := ids.Next(t.Context())
				assert.NoError(t, err)
				_, twice := seen.LoadOrStore(id, true)
				assert.False(t, twice, "id %d was given out twice", id)
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 100, blocks.Load())

	broken := errors.New("no controller")
	ids.allocate = func(context.Context) (int64, int, error) { return 0, 0, broken }
	_, err := ids.Next(t.Context())
	require.ErrorIs(t, err, broken)
}

func TestDeleteRecords(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 2; version++ {
		topic, compacted := b.topic(t, 2), b.topic(t, 1, "cleanup.policy", "compact")
		c.produce(topic, 0, batch(5), batch(5))
		c.produce(topic, 1, batch(3))
		req := kmsg.NewPtrDeleteRecordsRequest()
		req.Version, req.TimeoutMillis = version, 20_000
		add := func(name string, offsets ...int64) {
			rt := kmsg.NewDeleteRecordsRequestTopic()
			rt.Topic = name
			for i, offset := range offsets {
				p := kmsg.NewDeleteRecordsRequestTopicPartition()
				p.Partition, p.Offset = int32(i), offset
				rt.Partitions = append(rt.Partitions, p)
			}
			req.Topics = append(req.Topics, rt)
		}
		add(topic.Name, 7, -1, 0)
		add(compacted.Name, 0)
		add("not-there", 0)
		resp := ask[*kmsg.DeleteRecordsResponse](c, req)
		p := resp.Topics[0].Partitions
		require.Equal(t, []any{int16(0), int64(7), int16(0), int64(3), int16(3), int64(-1)},
			[]any{p[0].ErrorCode, p[0].LowWatermark, p[1].ErrorCode, p[1].LowWatermark, p[2].ErrorCode, p[2].LowWatermark})
		require.EqualValues(t, 44, resp.Topics[1].Partitions[0].ErrorCode)
		require.EqualValues(t, 3, resp.Topics[2].Partitions[0].ErrorCode)

		// The start moves at once; the batch that holds it stays whole.
		fetch := fetchRequest(11, fetched{topic, 0, 6})
		fetch.SessionEpoch = -1
		require.EqualValues(t, 1, c.fetchOne(fetch).ErrorCode)
		fetch = fetchRequest(11, fetched{topic, 0, 7})
		fetch.SessionEpoch = -1
		got := c.fetchOne(fetch)
		require.EqualValues(t, 7, got.LogStartOffset)
		require.Len(t, values(t, got.RecordBatches), 5)

		req.Topics = req.Topics[:0]
		add(topic.Name, 11, 4)
		for _, p := range ask[*kmsg.DeleteRecordsResponse](c, req).Topics[0].Partitions {
			require.EqualValues(t, 1, p.ErrorCode)
			require.EqualValues(t, -1, p.LowWatermark)
		}
	}
}

func TestDescribeLogDirs(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, one, two := b.dial(t), b.topic(t, 2), b.topic(t, 1)
	c.produce(one, 1, batch(100))
	for version := int16(0); version <= 4; version++ {
		req := kmsg.NewPtrDescribeLogDirsRequest()
		req.Version = version
		resp := ask[*kmsg.DescribeLogDirsResponse](c, req)
		require.Zero(t, resp.ErrorCode)
		require.Len(t, resp.Dirs, 1)
		require.Zero(t, resp.Dirs[0].ErrorCode)
		require.Equal(t, "/data", resp.Dirs[0].Dir)
		require.Len(t, resp.Dirs[0].Topics, 2)
		require.Equal(t, one.Name, resp.Dirs[0].Topics[0].Topic)
		require.Len(t, resp.Dirs[0].Topics[0].Partitions, 2)
		p := resp.Dirs[0].Topics[0].Partitions[1]
		require.EqualValues(t, 1, p.Partition)
		require.Greater(t, p.Size, int64(500))
		require.Zero(t, p.OffsetLag)
		require.False(t, p.IsFuture)

		rt := kmsg.NewDescribeLogDirsRequestTopic()
		rt.Topic, rt.Partitions = two.Name, []int32{0, 7}
		req.Topics = append(req.Topics, rt)
		resp = ask[*kmsg.DescribeLogDirsResponse](c, req)
		require.Len(t, resp.Dirs[0].Topics, 1)
		require.Len(t, resp.Dirs[0].Topics[0].Partitions, 1)
		req.Topics = []kmsg.DescribeLogDirsRequestTopic{}
		require.Empty(t, ask[*kmsg.DescribeLogDirsResponse](c, req).Dirs[0].Topics)
	}
}
