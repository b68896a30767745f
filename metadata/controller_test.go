package metadata

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

// cluster opens a store with n registered brokers, in racks a, b, c in turn.
func cluster(t testing.TB, n int) *Store {
	s := openStore(t, testConfig(t, t.TempDir()))
	for id := BrokerID(1); id <= BrokerID(n); id++ {
		r := testRegistration(id, 1)
		r.Rack = string(rune('a' + int(id-1)%3))
		epoch, err := s.RegisterBroker(testContext(t), r)
		require.NoError(t, err)
		beat(t, s, id, epoch)
	}
	return s
}

// beat sends the heartbeat of a caught-up broker.
func beat(t testing.TB, s *Store, id BrokerID, epoch int64) HeartbeatReply {
	t.Helper()
	r, err := s.Heartbeat(testContext(t), Heartbeat{Broker: id, Epoch: epoch, Applied: s.Image().Version()})
	require.NoError(t, err)
	return r
}

func ptr(s string) *string { return &s }

// requireMend makes sure that an error matches its sentinel and has the three lines.
func requireMend(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	require.ErrorIs(t, err, kind)
	for _, w := range append(words, "\nwhy:   ", "\nfix:   ") {
		require.ErrorContains(t, err, w)
	}
}

func create(t testing.TB, s *Store, topic NewTopic) TopicResult {
	t.Helper()
	return s.CreateTopics(testContext(t), []NewTopic{topic}, false)[0]
}

// CreateTopics: the rules of protocol.md 4, each with its error, and none of them with an effect. validateOnly finds the
// same.
func TestCreateTopicsRules(t *testing.T) {
	s := cluster(t, 3)
	createTopics(t, s, newTopic("present", 1), newTopic("with.dot", 1))
	version := s.Image().Version()
	good := func(change func(*NewTopic)) NewTopic {
		n := newTopic("new", 2)
		change(&n)
		return n
	}
	assign := func(ids ...[]BrokerID) NewTopic {
		return NewTopic{Name: "new", Partitions: -1, ReplicationFactor: -1, Assignments: ids}
	}
	config := func(k, v string) NewTopic {
		return good(func(n *NewTopic) { n.Configs = map[string]*string{k: &v} })
	}
	for name, c := range map[string]struct {
		topic NewTopic
		want  error
		words string
	}{
		"empty name":         {newTopic("", 1), ErrInvalidTopic, "empty"},
		"dot":                {newTopic(".", 1), ErrInvalidTopic, "directory"},
		"dots":               {newTopic("..", 1), ErrInvalidTopic, "directory"},
		"long name":          {newTopic(strings.Repeat("x", 250), 1), ErrInvalidTopic, "250"},
		"slash":              {newTopic("a/b", 1), ErrInvalidTopic, `"/"`},
		"unicode":            {newTopic("é", 1), ErrInvalidTopic, "character"},
		"control":            {newTopic("a\nb", 1), ErrInvalidTopic, `"\n"`},
		"exists":             {newTopic("present", 1), ErrTopicExists, "present"},
		"collides":           {newTopic("with_dot", 1), ErrInvalidTopic, "with.dot"},
		"0 partitions":       {newTopic("new", 0), ErrInvalidPartitions, "0 partitions"},
		"-2 partitions":      {newTopic("new", -2), ErrInvalidPartitions, "-2"},
		"too many":           {newTopic("new", 10_001), ErrPolicyViolation, "10000"},
		"factor 0":           {good(func(n *NewTopic) { n.ReplicationFactor = 0 }), ErrInvalidReplicationFactor, "0"},
		"factor -2":          {good(func(n *NewTopic) { n.ReplicationFactor = -2 }), ErrInvalidReplicationFactor, "-2"},
		"factor 4":           {good(func(n *NewTopic) { n.ReplicationFactor = 4 }), ErrInvalidReplicationFactor, "only 3"},
		"numbers and places": {good(func(n *NewTopic) { n.Assignments = [][]BrokerID{{1}} }), ErrInvalidRequest, "both"},
		"factor and places":  {NewTopic{Name: "new", Partitions: -1, ReplicationFactor: 1, Assignments: [][]BrokerID{{1}}}, ErrInvalidRequest, "both"},
		"no assignment":      {NewTopic{Name: "new", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{}}, ErrInvalidAssignment, "empty"},
		"empty assignment":   {assign([]BrokerID{1}, nil), ErrInvalidAssignment, "no replica"},
		"uneven":             {assign([]BrokerID{1, 2}, []BrokerID{1}), ErrInvalidAssignment, "1 replicas"},
		"twice":              {assign([]BrokerID{1, 1}), ErrInvalidAssignment, "twice"},
		"stranger":           {assign([]BrokerID{1, 7}), ErrInvalidAssignment, "no broker 7"},
		"unknown config":     {config("retention.mss", "1"), ErrInvalidConfig, "retention.ms"},
		"bad value":          {config("retention.ms", "soon"), ErrInvalidConfig, "retention.ms"},
		"null value":         {good(func(n *NewTopic) { n.Configs = map[string]*string{"retention.ms": nil} }), ErrInvalidConfig, "no value"},
	} {
		for _, validateOnly := range []bool{true, false} {
			r := s.CreateTopics(testContext(t), []NewTopic{c.topic}, validateOnly)[0]
			require.Error(t, r.Err, name)
			requireMend(t, r.Err, c.want, c.words)
			require.Equal(t, TopicResult{Name: c.topic.Name, Partitions: -1, ReplicationFactor: -1, Err: r.Err}, r, name)
		}
	}
	require.Equal(t, version, s.Image().Version(), "nothing was proposed")
}

// What a topic gets when it does not say: num.partitions, default.replication.factor or min(3, brokers); dynamic configs
// above the static ones.
func TestCreateTopicsDefaults(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.StaticConfig = map[string]string{"num.partitions": "4"}
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	r := create(t, s, NewTopic{Name: "one", Partitions: -1, ReplicationFactor: -1})
	require.NoError(t, r.Err)
	require.Equal(t, []any{int32(4), int16(1)}, []any{r.Partitions, r.ReplicationFactor})
	for id := BrokerID(2); id <= 5; id++ {
		register(t, s, id, 1)
	}
	r = create(t, s, NewTopic{Name: "five", Partitions: -1, ReplicationFactor: -1, Configs: map[string]*string{"retention.ms": ptr("1h")}})
	require.NoError(t, r.Err)
	require.Equal(t, []any{int32(4), int16(3)}, []any{r.Partitions, r.ReplicationFactor})
	require.Equal(t, map[string]string{"retention.ms": "3600000"}, r.Configs, "in canonical form")
	require.Equal(t, r.Configs, s.Image().Topic("five").Configs)
	require.Equal(t, r.ID, s.Image().Topic("five").ID)
	require.False(t, r.ID.IsZero())
}

// One request: duplicates and collisions inside it, a partition budget for all, good ones beside bad ones, results in its
// order.
func TestCreateTopicsTogether(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.MaxPartitionsPerRequest = 10
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	for _, validateOnly := range []bool{true, false} {
		r := s.CreateTopics(testContext(t), []NewTopic{
			newTopic("a", 4), newTopic("dup", 1), newTopic("bad name", 1), newTopic("dup", 1), newTopic("x.y", 5), newTopic("x_y", 1),
			newTopic("too-many", 2), newTopic("last", 1),
		}, validateOnly)
		require.NoError(t, r[0].Err)
		requireMend(t, r[1].Err, ErrDuplicateResource)
		requireMend(t, r[2].Err, ErrInvalidTopic)
		requireMend(t, r[3].Err, ErrDuplicateResource)
		require.NoError(t, r[4].Err)
		requireMend(t, r[5].Err, ErrInvalidTopic, "x.y")
		requireMend(t, r[6].Err, ErrPolicyViolation)
		require.NoError(t, r[7].Err)
		require.Equal(t, int32(5), r[4].Partitions)
		require.Equal(t, validateOnly, r[0].ID.IsZero())
		if validateOnly {
			require.Zero(t, s.Image().TopicCount())
		}
	}
	require.Equal(t, 3, s.Image().TopicCount())
	require.Equal(t, 10, s.Image().PartitionCount())
	var names []string
	for topic := range s.Image().Topics() {
		names = append(names, topic.Name)
	}
	require.Equal(t, []string{"a", "last", "x.y"}, names)
}

// Manual assignments are taken as they are, the first replica leads.
func TestCreateTopicsManual(t *testing.T) {
	s := cluster(t, 3)
	r := create(t, s, NewTopic{Name: "m", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{3, 1}, {1, 2}}})
	require.NoError(t, r.Err)
	require.Equal(t, []any{int32(2), int16(2)}, []any{r.Partitions, r.ReplicationFactor})
	p := s.Image().Topic("m").Partitions
	require.Equal(t, led(Partition{Leader: 3, Replicas: []BrokerID{3, 1}, ISR: []BrokerID{3, 1}, Directories: []DirectoryID{{3}, {1}}}), p[0])
	require.Equal(t, BrokerID(1), p[1].Leader)
}

// D16: leaders and replicas of a topic are even over the brokers, each partition's replicas in different racks, and what
// a topic can't make even is given to those who have least.
func TestPlacementSpreads(t *testing.T) {
	s := cluster(t, 6) // two brokers in each of three racks
	createTopics(t, s, NewTopic{Name: "even", Partitions: 12, ReplicationFactor: 3})
	leaders, replicas := map[BrokerID]int{}, map[BrokerID]int{}
	for i, p := range s.Image().Topic("even").Partitions {
		racks := map[string]bool{}
		for _, id := range p.Replicas {
			racks[s.Image().Broker(id).Rack] = true
			replicas[id]++
		}
		require.Len(t, racks, 3, "partition %d on %v", i, p.Replicas)
		leaders[p.Leader]++
	}
	for id := BrokerID(1); id <= 6; id++ {
		require.Equal(t, 2, leaders[id], "leaders of %d in %v", id, leaders)
		require.Equal(t, 6, replicas[id], "replicas of %d in %v", id, replicas)
	}
	for i := range 30 { // small topics go where there is least
		createTopics(t, s, NewTopic{Name: fmt.Sprintf("small-%d", i), Partitions: 1, ReplicationFactor: 1})
	}
	leaders = map[BrokerID]int{}
	for topic := range s.Image().Topics() {
		for _, p := range topic.Partitions {
			leaders[p.Leader]++
		}
	}
	require.Equal(t, []int{7, 7, 7, 7, 7, 7}, slices.Collect(maps.Values(leaders)))
}

// Replicas of a broker with several directories are even over them.
func TestPlacementUsesAllDirectories(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	r := testRegistration(1, 1)
	r.Directories = []DirectoryID{{1}, {2}, {3}}
	_, err := s.RegisterBroker(testContext(t), r)
	require.NoError(t, err)
	createTopics(t, s, newTopic("a", 4))
	createTopics(t, s, newTopic("b", 5))
	count := map[DirectoryID]int{}
	for topic := range s.Image().Topics() {
		for _, p := range topic.Partitions {
			count[p.Directories[0]]++
		}
	}
	require.Equal(t, map[DirectoryID]int{{1}: 3, {2}: 3, {3}: 3}, count)
}

func TestCreatePartitionsRules(t *testing.T) {
	s := cluster(t, 3)
	createTopics(t, s, NewTopic{Name: "a", Partitions: 2, ReplicationFactor: 2}, newTopic("b", 1), newTopic("dup", 1))
	version := s.Image().Version()
	for _, c := range []struct {
		ask   NewPartitions
		want  error
		words string
	}{
		{NewPartitions{Topic: "none", Count: 3}, ErrUnknownTopic, "none"},
		{NewPartitions{Topic: "a", Count: 2}, ErrInvalidPartitions, "it has 2"},
		{NewPartitions{Topic: "a", Count: 1}, ErrInvalidPartitions, "only ever added"},
		{NewPartitions{Topic: "a", Count: -1}, ErrInvalidPartitions, "-1"},
		{NewPartitions{Topic: "a", Count: 10_003}, ErrPolicyViolation, "10001"},
		{NewPartitions{Topic: "a", Count: 4, Assignments: [][]BrokerID{{1, 2}}}, ErrInvalidAssignment, "1 assignment"},
		{NewPartitions{Topic: "a", Count: 3, Assignments: [][]BrokerID{{1}}}, ErrInvalidAssignment, "1 replicas"},
		{NewPartitions{Topic: "a", Count: 3, Assignments: [][]BrokerID{{1, 9}}}, ErrInvalidAssignment, "no broker 9"},
		{NewPartitions{Topic: "a", Count: 3, Assignments: [][]BrokerID{}}, ErrInvalidAssignment, "0 assignment"},
	} {
		for _, validateOnly := range []bool{true, false} {
			r := s.CreatePartitions(testContext(t), []NewPartitions{c.ask}, validateOnly)[0]
			requireMend(t, r.Err, c.want, c.words)
		}
	}
	twice := s.CreatePartitions(testContext(t), []NewPartitions{{Topic: "dup", Count: 2}, {Topic: "dup", Count: 3}}, false)
	requireMend(t, twice[0].Err, ErrDuplicateResource)
	requireMend(t, twice[1].Err, ErrDuplicateResource)
	require.NoError(t, s.CreatePartitions(testContext(t), []NewPartitions{{Topic: "a", Count: 5}}, true)[0].Err)
	require.Equal(t, version, s.Image().Version())

	r := s.CreatePartitions(testContext(t), []NewPartitions{
		{Topic: "a", Count: 3, Assignments: [][]BrokerID{{3, 2}}}, {Topic: "b", Count: 4},
	}, false)
	require.NoError(t, r[0].Err)
	require.NoError(t, r[1].Err)
	require.Equal(t, int32(3), r[0].Partitions)
	require.Equal(t, int32(4), r[1].Partitions)
	require.Equal(t, []BrokerID{3, 2}, s.Image().Topic("a").Partitions[2].Replicas)
	leaders := map[BrokerID]int{}
	for _, p := range s.Image().Topic("b").Partitions {
		require.Len(t, p.Replicas, 3, "the topic's own replication factor")
		leaders[p.Leader]++
	}
	require.Len(t, leaders, 3, "the old partition counts: %v", leaders)
}

func TestDeleteTopicsRules(t *testing.T) {
	s := cluster(t, 1)
	ids := map[string]TopicID{}
	for _, r := range createTopics(t, s, newTopic("a", 1), newTopic("b", 2), newTopic("c", 1), newTopic("d", 1)) {
		ids[r.Name] = r.ID
	}
	r := s.DeleteTopics(testContext(t), []TopicRef{
		{Name: "a"}, {ID: ids["b"]}, {Name: "none"}, {ID: TopicID{7}}, {}, {Name: "d", ID: ids["d"]}, {Name: "c"}, {ID: ids["c"]},
	})
	require.NoError(t, r[0].Err)
	require.Equal(t, ids["a"], r[0].ID)
	require.NoError(t, r[1].Err)
	require.Equal(t, "b", r[1].Name)
	requireMend(t, r[2].Err, ErrUnknownTopic, "none")
	requireMend(t, r[3].Err, ErrUnknownTopicID)
	requireMend(t, r[4].Err, ErrInvalidRequest)
	requireMend(t, r[5].Err, ErrInvalidRequest)
	requireMend(t, r[6].Err, ErrDuplicateResource)
	requireMend(t, r[7].Err, ErrDuplicateResource)
	require.Equal(t, 2, s.Image().TopicCount())
	require.True(t, s.Image().Tombstone(ids["a"]))
	require.False(t, s.Image().Tombstone(ids["c"]))
	requireMend(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: "a"}})[0].Err, ErrUnknownTopic)
}

// AlterConfigs: incremental and replacing, topics and brokers, each error of protocol.md 4.
func TestAlterConfigs(t *testing.T) {
	s := cluster(t, 1)
	createTopics(t, s, newTopic("a", 1))
	topic := Resource{TopicResource, "a"}
	alter := func(r Resource, replaceAll, validateOnly bool, ops ...ConfigOp) error {
		return s.AlterConfigs(testContext(t), []ConfigChange{{r, ops}}, replaceAll, validateOnly)[0]
	}
	set := func(k, v string) ConfigOp { return ConfigOp{k, ConfigSet, &v} }
	configs := func() map[string]string { return s.Image().Topic("a").Configs }

	require.NoError(t, alter(topic, false, true, set("retention.ms", "1000")))
	require.Nil(t, configs(), "validated only")
	require.NoError(t, alter(topic, false, false, set("retention.ms", "1s"), set("segment.bytes", "1MiB")))
	require.Equal(t, map[string]string{"retention.ms": "1000", "segment.bytes": "1048576"}, configs())
	version := s.Image().Version()
	require.NoError(t, alter(topic, false, false, set("retention.ms", "1000"), ConfigOp{"flush.ms", ConfigDelete, nil}))
	require.Equal(t, version, s.Image().Version(), "no change, no entry")

	require.NoError(t, alter(topic, false, false, ConfigOp{"cleanup.policy", ConfigAppend, ptr("compact")}))
	require.Equal(t, "delete,compact", configs()["cleanup.policy"], "appended to the default")
	require.NoError(t, alter(topic, false, false, ConfigOp{"cleanup.policy", ConfigAppend, ptr("compact")}))
	require.Equal(t, "delete,compact", configs()["cleanup.policy"])
	require.NoError(t, alter(topic, false, false, ConfigOp{"cleanup.policy", ConfigSubtract, ptr("delete")}, ConfigOp{"retention.ms", ConfigDelete, nil}))
	require.Equal(t, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1048576"}, configs())
	require.NoError(t, alter(topic, true, false, set("max.message.bytes", "2000")))
	require.Equal(t, map[string]string{"max.message.bytes": "2000"}, configs())
	require.NoError(t, alter(topic, true, false))
	require.Empty(t, configs())

	for name, c := range map[string]struct {
		r          Resource
		replaceAll bool
		ops        []ConfigOp
		want       error
	}{
		"unknown topic":   {Resource{TopicResource, "none"}, false, []ConfigOp{set("retention.ms", "1")}, ErrUnknownTopic},
		"unknown key":     {topic, false, []ConfigOp{set("retention.mss", "1")}, ErrInvalidConfig},
		"bad value":       {topic, false, []ConfigOp{set("retention.ms", "x")}, ErrInvalidConfig},
		"null":            {topic, false, []ConfigOp{{"retention.ms", ConfigSet, nil}}, ErrInvalidRequest},
		"null, replacing": {topic, true, []ConfigOp{{"retention.ms", ConfigSet, nil}}, ErrInvalidRequest},
		"key twice":       {topic, false, []ConfigOp{set("retention.ms", "1"), set("retention.ms", "1")}, ErrInvalidRequest},
		"no list":         {topic, false, []ConfigOp{{"retention.ms", ConfigAppend, ptr("1")}}, ErrInvalidConfig},
		"unknown op":      {topic, false, []ConfigOp{{"retention.ms", 4, ptr("1")}}, ErrInvalidRequest},
		"op, replacing":   {topic, true, []ConfigOp{{"cleanup.policy", ConfigAppend, ptr("delete")}}, ErrInvalidRequest},
		"no broker":       {Resource{BrokerResource, "9"}, false, []ConfigOp{set("log.retention.ms", "1")}, ErrInvalidRequest},
		"broker name":     {Resource{BrokerResource, "one"}, false, []ConfigOp{set("log.retention.ms", "1")}, ErrInvalidRequest},
		"not dynamic":     {Resource{BrokerResource, "1"}, false, []ConfigOp{set("node.id", "2")}, ErrInvalidRequest},
		"topic key":       {Resource{BrokerResource, ""}, false, []ConfigOp{set("retention.ms", "2")}, ErrInvalidConfig},
		"resource type":   {Resource{99, "x"}, false, nil, ErrInvalidRequest},
	} {
		before := s.Image()
		requireMend(t, alter(c.r, c.replaceAll, false, c.ops...), c.want)
		require.Same(t, before, s.Image(), name)
	}
	good := ConfigChange{topic, []ConfigOp{set("retention.ms", "5")}}
	bad := ConfigChange{Resource{TopicResource, "none"}, good.Ops}
	errs := s.AlterConfigs(testContext(t), []ConfigChange{bad, good}, false, false)
	require.ErrorIs(t, errs[0], ErrUnknownTopic)
	require.NoError(t, errs[1])
	errs = s.AlterConfigs(testContext(t), []ConfigChange{good, good}, false, false)
	require.ErrorIs(t, errs[0], ErrDuplicateResource)
	require.ErrorIs(t, errs[1], ErrDuplicateResource)

	for _, name := range []string{"", "1"} {
		require.NoError(t, alter(Resource{BrokerResource, name}, false, false, set("log.retention.ms", "7d")))
	}
	require.Equal(t, map[string]string{"log.retention.ms": "604800000"}, s.Image().BrokerConfig(NoBroker))
	require.Equal(t, map[string]string{"log.retention.ms": "604800000"}, s.Image().BrokerConfig(1))
}

// Appending starts from what the topic inherits: here the broker's own log.cleanup.policy.
func TestAppendToInheritedList(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.StaticConfig = map[string]string{"log.cleanup.policy": "compact"}
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	createTopics(t, s, newTopic("a", 1))
	ops := []ConfigOp{{"cleanup.policy", ConfigAppend, ptr("delete")}}
	require.NoError(t, s.AlterConfigs(testContext(t), []ConfigChange{{Resource{TopicResource, "a"}, ops}}, false, false)[0])
	require.Equal(t, "compact,delete", s.Image().Topic("a").Configs["cleanup.policy"])
}

func TestRegisterBrokerRules(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	alive := false
	cfg.Probe = func(_ context.Context, b *Broker) error {
		if alive && b.ID == 1 && b.Epoch == 1 {
			return nil
		}
		return errTestIO
	}
	s := openStore(t, cfg)
	require.Equal(t, int64(1), register(t, s, 1, 1))
	for name, change := range map[string]func(*Registration){
		"id":           func(r *Registration) { r.ID = -1 },
		"incarnation":  func(r *Registration) { r.Incarnation = [16]byte{} },
		"no directory": func(r *Registration) { r.Directories = nil },
		"zero":         func(r *Registration) { r.Directories = []DirectoryID{{}} },
		"twice":        func(r *Registration) { r.Directories = []DirectoryID{{1}, {1}} },
	} {
		r := testRegistration(1, 2)
		change(&r)
		_, err := s.RegisterBroker(testContext(t), r)
		require.ErrorIs(t, err, ErrInvalidRequest, name)
	}
	r := testRegistration(1, 2)
	r.MinFeatureLevel, r.MaxFeatureLevel = MaxFeatureLevel+1, MaxFeatureLevel+2
	_, err := s.RegisterBroker(testContext(t), r)
	require.ErrorIs(t, err, ErrPolicyViolation)
	alive = true
	_, err = s.RegisterBroker(testContext(t), testRegistration(1, 2))
	require.ErrorIs(t, err, ErrDuplicateBroker, "M13")
	require.Equal(t, int64(1), register(t, s, 1, 1), "the living process itself")
	alive = false
	require.Equal(t, int64(2), register(t, s, 1, 2))
	b := s.Image().Broker(1)
	require.Equal(t, int64(2), b.Epoch)
	require.Equal(t, []Listener{{"PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"}}, b.Listeners)
	require.Equal(t, MaxFeatureLevel, b.MaxFeatureLevel)
}

// AlterPartition works out the ELR of KIP-966 and hands Apply's refusals through.
func TestAlterPartition(t *testing.T) {
	s := cluster(t, 3)
	id := createTopics(t, s, NewTopic{Name: "a", Partitions: -1, ReplicationFactor: -1, Assignments: [][]BrokerID{{1, 2, 3}}})[0].ID
	change := func(partitionEpoch int32, isr ...BrokerID) PartitionResult {
		ch := PartitionChange{TopicID: id, PartitionEpoch: partitionEpoch}
		for _, b := range isr {
			ch.ISR = append(ch.ISR, ISRMember{b, s.Image().Broker(b).Epoch})
		}
		return s.AlterPartition(testContext(t), 1, 1, []PartitionChange{ch})[0]
	}
	r := change(0, 1, 2)
	require.NoError(t, r.Err)
	require.Empty(t, r.Partition.ELR, "2 of min.insync.replicas 2")
	r = change(1, 1)
	require.Equal(t, []BrokerID{2}, r.Partition.ELR)
	require.ErrorIs(t, change(1, 1).Err, ErrStale)
	r = change(2, 1, 3)
	require.Empty(t, r.Partition.ELR)
	require.Equal(t, r.Partition, *s.Image().Topic("a").Partitions[0])
	require.ErrorIs(t, s.AlterPartition(testContext(t), 1, 1, []PartitionChange{{TopicID: TopicID{9}}})[0].Err, ErrUnknownTopicID)
	require.ErrorIs(t, s.AlterPartition(testContext(t), 1, 9, []PartitionChange{{TopicID: id}})[0].Err, ErrStaleBrokerEpoch)
}

// A store that is not the controller, or closed, refuses every operation, and says who is.
func TestOperationsWithoutLead(t *testing.T) {
	s := cluster(t, 1)
	s.lead.Store(nil)
	all := func() []error {
		_, registerErr := s.RegisterBroker(testContext(t), testRegistration(1, 2))
		_, _, idErr := s.AllocateProducerIDs(testContext(t))
		return []error{
			registerErr, idErr,
			create(t, s, newTopic("a", 1)).Err,
			s.DeleteTopics(testContext(t), []TopicRef{{Name: "a"}})[0].Err,
			s.CreatePartitions(testContext(t), []NewPartitions{{Topic: "a", Count: 2}}, false)[0].Err,
			s.AlterConfigs(testContext(t), []ConfigChange{{}}, false, false)[0],
			s.AlterPartition(testContext(t), 1, 1, []PartitionChange{{}})[0].Err,
		}
	}
	for _, err := range all() {
		requireMend(t, err, ErrNotController)
	}
	require.NoError(t, s.Close())
	for _, err := range all() {
		require.ErrorIs(t, err, ErrClosed)
	}
	require.ErrorIs(t, s.Ready(context.Background()), ErrClosed)
}

// An operation with a context that has ended reports that nothing was proposed.
func TestOperationWithEndedContext(t *testing.T) {
	s := cluster(t, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 50 {
		r := s.CreateTopics(ctx, []NewTopic{newTopic("a", 1)}, false)[0]
		if r.Err == nil {
			s.DeleteTopics(testContext(t), []TopicRef{{Name: "a"}})
			continue // the answer came first
		}
		if !is(r.Err, ErrBusy, ErrTimeout, ErrTopicExists) {
			t.Fatal(r.Err)
		}
	}
}

// Replicas of a partition are in different racks for as long as there are racks, even when that makes the load uneven.
func TestPlacementPrefersRacks(t *testing.T) {
	d := newDraft(newState())
	for i, rack := range []string{"a", "a", "a", "a", "b", "c"} {
		d.putBroker(&Broker{ID: BrokerID(i + 1), Rack: rack, Directories: []DirectoryID{{byte(i + 1)}}})
	}
	p := newPlacement(&Image{st: d.publish()}, 3)
	p.begin(nil)
	for i, set := range p.spread(24, 3) {
		require.Contains(t, set.replicas, BrokerID(5), "partition %d", i)
		require.Contains(t, set.replicas, BrokerID(6), "partition %d", i)
	}
	for i, set := range p.spread(5, 6) {
		require.Len(t, set.replicas, 6, "partition %d", i)
		require.False(t, hasDuplicates(set.replicas))
	}
}

// Changes that overtake each other are decided anew: of concurrent appends to one list none is lost, and of concurrent
// growths of one topic each is either made on top of the others or refused for what the topic has become.
func TestOvertakenDecisions(t *testing.T) {
	s := cluster(t, 1)
	createTopics(t, s, newTopic("a", 1))
	const clients, rounds = 6, 5
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for round := range rounds {
				item := fmt.Sprintf("%d:%d", round, client)
				ops := []ConfigOp{{"leader.replication.throttled.replicas", ConfigAppend, &item}}
				errs := s.AlterConfigs(testContext(t), []ConfigChange{{Resource{TopicResource, "a"}, ops}}, false, false)
				if errs[0] != nil {
					t.Error(errs[0])
				}
			}
		})
		wg.Go(func() {
			for round := range rounds {
				count := int32(2 + client + clients*round)
				r := s.CreatePartitions(testContext(t), []NewPartitions{{Topic: "a", Count: count}}, false)[0]
				if r.Err != nil && !is(r.Err, ErrInvalidPartitions) {
					t.Error(r.Err)
				}
			}
		})
	}
	wg.Wait()
	list := SplitConfigList(s.Image().Topic("a").Configs["leader.replication.throttled.replicas"])
	require.Len(t, list, clients*rounds, "%v", list)
	require.Len(t, s.Image().Topic("a").Partitions, 1+clients*rounds)
}

// A change that is overtaken again and again ends with a definite refusal, after a bounded number of attempts.
func TestOvertakenForEver(t *testing.T) {
	s := cluster(t, 1)
	attempts := 0
	var got error
	s.carryOut(testContext(t), []plan{{
		decide: func(*Image) (command, error) {
			attempts++
			return &allocateProducerIDs{expectedNext: -1, count: 1}, nil
		},
		done: func(_ any, err error) { got = err },
	}})
	requireMend(t, got, ErrStale, "32 times")
	require.Equal(t, maxAttempts, attempts)
}

// The controller's periodic work keeps no Image: what it has looked at last, on a broker that leads no more, would hold offsets and
// groups of long ago.
func TestPeriodicWorkKeepsNoImage(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	work := periodic{began: time.Now()}
	s.periodicWork(s.lead.Load(), &work, time.Now())
	seen := weak.Make(s.Image())
	createTopics(t, s, newTopic("orders", 1))
	eventually(t, func() bool { runtime.GC(); return seen.Value() == nil })
	runtime.KeepAlive(&work)
}
