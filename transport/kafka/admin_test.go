package kafka

import (
	"math"
	"sort"
	"strings"
	"testing"
	"time"

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

// Producer ids are never given out twice, and transactional ids are told what
// FindCoordinator tells them.
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
		require.EqualValues(t, 15, code("tx", time.Minute, -1, -1))
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
	ids := &b.handlers.ids
	ids.mu.Lock()
	ids.mu.first = ids.mu.after // what is left is lost, as at a restart
	dropped := ids.mu.after
	ids.mu.Unlock()
	req := kmsg.NewPtrInitProducerIDRequest()
	require.GreaterOrEqual(t, ask[*kmsg.InitProducerIDResponse](c, req).ProducerID, dropped)
}

func describe(version int16, kind kmsg.ConfigResourceType, name string, keys ...string) *kmsg.DescribeConfigsRequest {
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.Version, req.IncludeSynonyms, req.IncludeDocumentation = version, true, true
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName, r.ConfigNames = kind, name, keys
	req.Resources = append(req.Resources, r, r) // named twice, answered once
	return req
}

func TestDescribeConfigs(t *testing.T) {
	b := ownBroker(t, brokerEdit{static: map[string]string{"log.retention.hours": "2", "millrace.gossip.key": "secret"}})
	c, topic := b.dial(t), b.topic(t, 1, "cleanup.policy", "compact")
	one := func(req *kmsg.DescribeConfigsRequest) (kmsg.DescribeConfigsResponseResource, map[string]kmsg.DescribeConfigsResponseResourceConfig) {
		resp := ask[*kmsg.DescribeConfigsResponse](c, req)
		require.Len(t, resp.Resources, 1)
		configs := map[string]kmsg.DescribeConfigsResponseResourceConfig{}
		for _, config := range resp.Resources[0].Configs {
			configs[config.Name] = config
		}
		return resp.Resources[0], configs
	}
	for version := int16(0); version <= 4; version++ {
		rr, configs := one(describe(version, 2, topic.Name))
		require.Zero(t, rr.ErrorCode)
		for _, name := range []string{"cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas", "max.message.bytes", "segment.bytes", "segment.ms", "compression.type", "message.timestamp.type"} {
			require.NotNil(t, configs[name].Value, name)
		}
		require.Equal(t, "compact", *configs["cleanup.policy"].Value, "trap 35: Connect looks at it")
		require.Equal(t, "7200000", *configs["retention.ms"].Value)
		if version == 0 {
			require.False(t, configs["cleanup.policy"].IsDefault)
			require.True(t, configs["segment.bytes"].IsDefault)
			continue
		}
		require.EqualValues(t, 1, configs["cleanup.policy"].Source)
		require.EqualValues(t, 4, configs["retention.ms"].Source)
		require.EqualValues(t, 5, configs["segment.bytes"].Source)
		require.NotEmpty(t, configs["cleanup.policy"].ConfigSynonyms)
		if version >= 3 {
			require.EqualValues(t, kmsg.ConfigTypeList, configs["cleanup.policy"].ConfigType)
			require.NotEmpty(t, *configs["cleanup.policy"].Documentation)
		}
	}
	req := describe(4, 2, topic.Name, "cleanup.policy", "unknown.key")
	req.IncludeSynonyms, req.IncludeDocumentation = false, false
	_, configs := one(req)
	require.Len(t, configs, 1)
	require.Empty(t, configs["cleanup.policy"].ConfigSynonyms)
	require.Nil(t, configs["cleanup.policy"].Documentation)

	_, configs = one(describe(4, 4, "1"))
	require.Equal(t, "2", *configs["log.retention.hours"].Value)
	require.True(t, configs["node.id"].ReadOnly)
	require.True(t, configs["millrace.gossip.key"].IsSensitive)
	require.Nil(t, configs["millrace.gossip.key"].Value)
	_, configs = one(describe(4, 4, ""))
	require.Empty(t, configs)

	for _, bad := range []struct {
		kind kmsg.ConfigResourceType
		name string
		code int16
	}{{2, "not-there", 3}, {2, "", 17}, {2, "a b", 17}, {4, "x", 42}, {4, "9", 42}, {0, "", 42}, {16, "x", 42}} {
		rr, configs := one(describe(4, bad.kind, bad.name))
		require.Equal(t, bad.code, rr.ErrorCode, "%v %q", bad.kind, bad.name)
		require.NotNil(t, rr.ErrorMessage)
		require.Empty(t, configs)
	}
}

func TestAlterConfigs(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 2; version++ {
		topic := b.topic(t, 1, "retention.ms", "5", "segment.ms", "100")
		alter := func(validateOnly bool, name string, kind kmsg.ConfigResourceType, pairs ...string) int16 {
			req := kmsg.NewPtrAlterConfigsRequest()
			req.Version, req.ValidateOnly = version, validateOnly
			r := kmsg.NewAlterConfigsRequestResource()
			r.ResourceType, r.ResourceName = kind, name
			for i := 0; i < len(pairs); i += 2 {
				config := kmsg.NewAlterConfigsRequestResourceConfig()
				config.Name, config.Value = pairs[i], &pairs[i+1]
				r.Configs = append(r.Configs, config)
			}
			req.Resources = append(req.Resources, r)
			resp := ask[*kmsg.AlterConfigsResponse](c, req)
			require.Equal(t, name, resp.Resources[0].ResourceName)
			require.Equal(t, resp.Resources[0].ErrorCode != 0, resp.Resources[0].ErrorMessage != nil)
			return resp.Resources[0].ErrorCode
		}
		require.Zero(t, alter(true, topic.Name, 2, "retention.ms", "6"))
		require.Equal(t, "5", b.store.Image().Topic(topic.Name).Configs["retention.ms"])
		require.Zero(t, alter(false, topic.Name, 2, "retention.ms", "6"))
		require.Equal(t, map[string]string{"retention.ms": "6"}, b.store.Image().Topic(topic.Name).Configs, "the whole set is replaced")
		require.EqualValues(t, 40, alter(false, topic.Name, 2, "retention.mss", "6"))
		require.EqualValues(t, 40, alter(false, topic.Name, 2, "retention.ms", "soon"))
		require.EqualValues(t, 3, alter(false, "not-there", 2, "retention.ms", "6"))
		require.EqualValues(t, 42, alter(false, "x", 8, "a", "b"))
	}
}

func TestIncrementalAlterConfigs(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for version := int16(0); version <= 1; version++ {
		topic := b.topic(t, 1, "retention.ms", "5", "segment.ms", "100")
		alter := func(ops ...any) int16 {
			req := kmsg.NewPtrIncrementalAlterConfigsRequest()
			req.Version = version
			r := kmsg.NewIncrementalAlterConfigsRequestResource()
			r.ResourceType, r.ResourceName = 2, topic.Name
			for i := 0; i < len(ops); i += 3 {
				config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
				config.Name, config.Op = ops[i].(string), kmsg.IncrementalAlterConfigOp(ops[i+1].(int))
				if v, ok := ops[i+2].(string); ok {
					config.Value = &v
				}
				r.Configs = append(r.Configs, config)
			}
			req.Resources = append(req.Resources, r)
			return ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources[0].ErrorCode
		}
		require.Zero(t, alter("retention.ms", 0, "6", "segment.ms", 1, nil, "cleanup.policy", 2, "compact"))
		require.Equal(t, map[string]string{"retention.ms": "6", "cleanup.policy": "delete,compact"}, b.store.Image().Topic(topic.Name).Configs)
		require.Zero(t, alter("cleanup.policy", 3, "delete"))
		require.Equal(t, "compact", b.store.Image().Topic(topic.Name).Configs["cleanup.policy"])
		require.EqualValues(t, 42, alter("retention.ms", 0, "6", "retention.ms", 0, "7"))
		require.EqualValues(t, 42, alter("retention.ms", 9, "6"))
		require.EqualValues(t, 40, alter("retention.ms", 2, "6"), "not a list")
		require.EqualValues(t, 40, alter("retention.mss", 0, "6"))
		require.Equal(t, "6", b.store.Image().Topic(topic.Name).Configs["retention.ms"])
	}
	// Keys of brokers: those that may change while they run, for one or for all.
	alterBroker := func(name, key, value string) int16 {
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		r := kmsg.NewIncrementalAlterConfigsRequestResource()
		r.ResourceType, r.ResourceName = 4, name
		config := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
		config.Name, config.Value = key, &value
		r.Configs = append(r.Configs, config)
		req.Resources = append(req.Resources, r)
		return ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources[0].ErrorCode
	}
	require.Zero(t, alterBroker("1", "log.roll.ms", "86400000"))
	require.Zero(t, alterBroker("", "log.roll.ms", "86400001"))
	require.NotZero(t, alterBroker("1", "node.id", "7"))
	require.NotZero(t, alterBroker("x", "log.roll.ms", "7"))
	require.EqualValues(t, 40, alterBroker("1", "log.roll.ms", "never"))
	described := ask[*kmsg.DescribeConfigsResponse](c, describe(4, 4, "1", "log.roll.ms")).Resources[0].Configs[0]
	require.Equal(t, "86400000", *described.Value)
	require.EqualValues(t, 2, described.Source)
	require.Len(t, described.ConfigSynonyms, 2)

	// A resource named twice is refused in each place.
	topic := b.topic(t, 1)
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	r.ResourceType, r.ResourceName = 2, topic.Name
	req.Resources = append(req.Resources, r, r)
	for _, rr := range ask[*kmsg.IncrementalAlterConfigsResponse](c, req).Resources {
		require.EqualValues(t, 42, rr.ErrorCode)
	}
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
	c, topic := b.dial(t), b.topic(t, 1)
	b = b.restart(t)
	c = b.dial(t)
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
