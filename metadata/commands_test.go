package metadata

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// What a command decodes to is what was encoded: every field of every command.
func TestCommandsRoundTrip(t *testing.T) {
	id := rapid.Custom(func(t *rapid.T) [16]byte {
		var b [16]byte
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		b[0] |= 1
		return b
	})
	text := rapid.StringN(1, 10, 40)
	texts := rapid.MapOfN(text, rapid.String(), 1, 4)
	sets := rapid.Custom(func(t *rapid.T) []replicaSet {
		var out []replicaSet
		for range rapid.IntRange(1, 5).Draw(t, "partitions") {
			p := drawPartition(t)
			out = append(out, replicaSet{replicas: p.Replicas, directories: p.Directories})
		}
		return out
	})
	policy := partitionPolicy{minInsync: 2, flushLazily: true}
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom([]command{
			&initCluster{clusterID: text.Draw(t, "id"), featureLevel: rapid.Uint32().Draw(t, "level")},
			&registerBroker{expectedEpoch: rapid.Int64().Draw(t, "epoch"), tailsProven: true, policy: policy, broker: &Broker{
				PeerAddress: "h:9093", Fenced: true,
				ID: 5, Incarnation: id.Draw(t, "incarnation"), Directories: []DirectoryID{id.Draw(t, "dir"), {1}},
				Rack: "r", Version: "v", MinFeatureLevel: 1, MaxFeatureLevel: 2,
				Listeners: []Listener{{Name: "N", Host: "h", Port: 9, Protocol: "SSL"}, {Name: "O"}},
			}},
			&createTopic{id: id.Draw(t, "id"), name: text.Draw(t, "name"), configs: texts.Draw(t, "configs"), sets: sets.Draw(t, "sets")},
			&deleteTopic{id: id.Draw(t, "id"), request: id.Draw(t, "request")},
			&createPartitions{id: id.Draw(t, "id"), expectedCount: rapid.IntRange(0, 1<<30).Draw(t, "count"), sets: sets.Draw(t, "sets")},
			&alterConfigs{topic: id.Draw(t, "id"), broker: NoBroker, expectedVersion: rapid.Uint64().Draw(t, "version"),
				set: texts.Draw(t, "set"), delete: []string{"a", "b"}},
			&alterConfigs{broker: BrokerID(rapid.Int32Range(-1, 1<<30).Draw(t, "broker")), set: texts.Draw(t, "set")},
			&allocateProducerIDs{expectedNext: rapid.Int64().Draw(t, "next"), count: rapid.Int64Range(1, 1<<60).Draw(t, "count")},
			&alterPartition{leader: 3, leaderBrokerEpoch: 9, topic: id.Draw(t, "id"), partition: 4, leaderEpoch: 5, partitionEpoch: 6,
				isr: []ISRMember{{ID: 3, Epoch: -1}, {ID: 1, Epoch: 8}}, elr: []BrokerID{2}},
			&alterBalance{expectedVersion: rapid.Uint64().Draw(t, "version"), plan: drawBalancePlan(t), seen: &balanceSeen{Takers: []BrokerID{1, 2},
				Away: []brokerAway{{Broker: 3, FencedIndex: 4, SinceMillis: 5}}},
				updates: []moveUpdate{{move: 3, state: MoveDone, trouble: text.Draw(t, "trouble"), beganMillis: 1, endedMillis: 2}}},
			&assignBrokerID{directory: id.Draw(t, "dir"), want: 7, replace: true, expectedEpoch: 12},
			&assignBrokerID{directory: id.Draw(t, "dir"), want: NoBroker},
			&alterBroker{broker: 3, epoch: 9, fenced: pb.Switch_SWITCH_OFF, leaving: pb.Switch_SWITCH_ON, draining: pb.Switch_SWITCH_OFF,
				removing: pb.Switch_SWITCH_ON, fencedIndex: rapid.Uint64().Draw(t, "index"), offline: []DirectoryID{id.Draw(t, "dir")}, policy: policy},
			&alterPartitions{leader: 3, leaderBrokerEpoch: 9, policy: policy, changes: []PartitionChange{
				{TopicID: id.Draw(t, "id"), Partition: 4, LeaderEpoch: 5, PartitionEpoch: 6, ISR: []ISRMember{{3, -1}, {1, 8}}},
				{TopicID: TopicID{1}, Partition: 5, LeaderEpoch: 1, PartitionEpoch: 2, ISR: []ISRMember{{3, 9}}},
				{TopicID: TopicID{1}, Partition: 6, ISR: []ISRMember{}},
			}},
			&electLeaders{policy: policy, elections: []election{{topicIDPartition: topicIDPartition{id.Draw(t, "id"), 3}}, {topicIDPartition: topicIDPartition{TopicID{1}, 0}}}},
			&electLeaders{unclean: true, elections: []election{{topicIDPartition{id.Draw(t, "id"), 3}, 4, 5}}},
			&reassignPartition{topicIDPartition: topicIDPartition{id.Draw(t, "id"), 3}, partitionEpoch: 8, policy: policy},
			&reassignPartition{topicIDPartition: topicIDPartition{id.Draw(t, "id"), 3}, target: on(4, 2)},
			&unregisterBroker{broker: 4, epoch: 9},
			&setFeatureLevel{expected: 1, level: 2},
			&pruneTombstones{through: rapid.Uint64().Draw(t, "through")},
			&changeGroup{broker: 3, epoch: 9, group: drawGroup(t), remove: []string{"a"}, upsert: []*GroupMember{drawMember(t), {ID: "b"}},
				assign: []MemberAssignment{{"b", []byte("x")}, {Member: "c"}}, delete: rapid.Bool().Draw(t, "delete"), time: 7},
			&changeGroup{broker: 3, epoch: 9, group: drawGroup(t), remove: []string{"a"}, time: 7, seek: []OffsetEntry{
				{id.Draw(t, "id"), 0, rapid.Int64Min(-1).Draw(t, "offset"), -1, ""}, {TopicID{1}, 3, -1, -1, ""}, {TopicID{1}, 4, 4, 2, "note"}}},
			&commitOffsets{broker: 3, epoch: 9, coordinatorEpoch: 4, lane: 1, sequence: rapid.Uint64().Draw(t, "sequence"), commits: []OffsetCommit{
				{Group: "g", Member: "m", Instance: "i", Generation: rapid.Int32().Draw(t, "generation"), Time: 5, ExpiresAt: 6, Offsets: []OffsetEntry{
					{id.Draw(t, "id"), 0, rapid.Int64().Draw(t, "offset"), -1, ""}, {TopicID{1}, 3, 4, 5, "note"}, {TopicID{1}, 4, 4, -1, ""}}},
				{Group: "h", Generation: -1},
				{Group: "h", Offsets: []OffsetEntry{{TopicID{1}, 3, 4, -1, ""}}},
			}},
			&deleteOffsets{broker: 3, epoch: 9, group: "g", revision: 8, partitions: []TopicIDPartition{{id.Draw(t, "id"), 1}, {TopicID{1}, 0}}},
			&expireOffsets{broker: 3, epoch: 9, now: 4, retention: 5, groups: []string{"a", "b"}, revisions: []uint64{1, 2}, deleted: []string{"c"}},
			&expireOffsets{broker: 3, epoch: 9, groups: []string{"a", "b"}, revisions: []uint64{1, 2}, unread: []unreadTopics{{group: 1, topics: []TopicID{{1}, {2}}}}},
			&chainPart{chain: id.Draw(t, "id"), part: 1, parts: 3, data: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "data")},
		}).Draw(t, "command")
		body, err := proto.Marshal(c.message())
		require.NoError(t, err)
		back, err := decodeCommand(c.kind(), body)
		require.NoError(t, err)
		require.Equal(t, c, back)
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(back.message())
		require.NoError(t, err)
		first, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message())
		require.NoError(t, err)
		require.Equal(t, first, again, "encoding is deterministic")
	})
}

// The cluster id is given once and never changes (I15).
func TestInitCluster(t *testing.T) {
	f := newTestFSM(t)
	f.must(&initCluster{clusterID: "a", featureLevel: 1})
	f.must(&initCluster{clusterID: "a", featureLevel: 1})
	_, err := f.do(&initCluster{clusterID: "b", featureLevel: 1})
	require.ErrorIs(t, err, ErrStale)
	require.Equal(t, "a", f.image().ClusterID())
}

// R14, I15: every registration has a new broker epoch and bumps the leader epoch of every partition the broker leads, and
// of no other. The same incarnation again is no new registration.
func TestRegisterBroker(t *testing.T) {
	f := threeBrokers(t)
	first := f.must(f.again(broker(1, 2))).(registered)
	require.Equal(t, registered{Epoch: 4, Bumped: 1}, first)
	p := f.image().Topic("orders").Partitions
	require.Equal(t, []int32{1, 0}, []int32{p[0].LeaderEpoch, p[1].LeaderEpoch})
	require.Equal(t, []int32{1, 0}, []int32{p[0].PartitionEpoch, p[1].PartitionEpoch})
	require.Equal(t, BrokerID(1), p[0].Leader)
	require.Equal(t, []BrokerID{1, 2, 3}, p[0].ISR, "with its directory it stays (I12)")

	again := f.again(broker(1, 2))
	again.broker.Rack = "r2"
	require.Equal(t, registered{Epoch: 4}, f.must(again))
	require.Equal(t, int32(1), f.image().Topic("orders").Partitions[0].LeaderEpoch)
	require.Equal(t, "r2", f.image().Broker(1).Rack)

	second := f.must(f.again(broker(1, 3))).(registered)
	require.Equal(t, int64(5), second.Epoch)
	require.Equal(t, int32(2), f.image().Topic("orders").Partitions[0].LeaderEpoch)

	// M13: the controller checked another process than the one that is registered now.
	stale := broker(1, 9)
	stale.expectedEpoch = 4
	_, err := f.do(stale)
	require.ErrorIs(t, err, ErrStale)
	_, err = f.do(broker(1, 9))
	require.ErrorIs(t, err, ErrStale)
	newcomer := broker(8, 1)
	newcomer.expectedEpoch = 3
	_, err = f.do(newcomer)
	require.ErrorIs(t, err, ErrStale)

	// D17: a binary that does not know the cluster's feature level.
	for _, levels := range [][2]uint32{{2, 3}, {0, 0}} {
		other := broker(9, 1)
		other.broker.MinFeatureLevel, other.broker.MaxFeatureLevel = levels[0], levels[1]
		_, err = f.do(other)
		require.ErrorIs(t, err, ErrPolicyViolation)
	}
	checkState(t, f.st)
}

// L11: a broker that comes back without a directory is in no ISR and no ELR of the partitions that were in it, leads none
// of them, and gets its replicas assigned to a directory it has.
func TestRegisterBrokerWithoutItsDirectory(t *testing.T) {
	f := threeBrokers(t)
	f.must(topicCommand(2, "alone", on(1)))
	f.must(&alterPartition{leader: 2, leaderBrokerEpoch: 2, topic: TopicID{1}, partition: 1, isr: []ISRMember{{2, 2}, {3, 3}}, elr: []BrokerID{1}})
	fresh := DirectoryID{77}
	out := f.must(f.again(broker(1, 2, fresh))).(registered)
	require.Equal(t, []TopicPartition{{"alone", 0}, {"orders", 0}, {"orders", 1}}, out.Lost)
	require.Equal(t, []TopicPartition{{"alone", 0}}, out.Restarted)
	orders := f.image().Topic("orders").Partitions
	require.Equal(t, led(Partition{
		Leader: 2, LeaderEpoch: 1, PartitionEpoch: 1, Replicas: []BrokerID{1, 2, 3}, ISR: []BrokerID{2, 3},
		Directories: []DirectoryID{fresh, {2}, {3}},
	}), orders[0])
	require.Equal(t, led(Partition{
		Leader: 2, LeaderEpoch: 0, PartitionEpoch: 2, Replicas: []BrokerID{2, 3, 1}, ISR: []BrokerID{2, 3},
		Directories: []DirectoryID{{2}, {3}, fresh},
	}), orders[1])
	require.Equal(t, led(Partition{
		Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, Replicas: []BrokerID{1}, ISR: []BrokerID{1}, Directories: []DirectoryID{fresh},
	}), f.image().Topic("alone").Partitions[0], "nobody else is left (I12)")

	// When the last member of an ISR loses its directory, an eligible replica follows it (KIP-966).
	f.must(&alterPartition{leader: 2, leaderBrokerEpoch: 2, topic: TopicID{1}, partition: 0, leaderEpoch: 1, partitionEpoch: 1,
		isr: []ISRMember{{2, 2}}, elr: []BrokerID{3}})
	f.must(f.again(broker(2, 2, DirectoryID{78})))
	p := f.image().Topic("orders").Partitions[0]
	require.Equal(t, BrokerID(3), p.Leader)
	require.Equal(t, []BrokerID{3}, p.ISR)
	require.Empty(t, p.ELR)
	require.Equal(t, int32(2), p.LeaderEpoch)
	checkState(t, f.st)
}

// D14: a topic is created once per id and name; a repetition is recognized, also after a deletion.
func TestCreateTopicCommand(t *testing.T) {
	f := threeBrokers(t)
	c := topicCommand(5, "a.b", on(2, 1), on(3))
	c.configs = map[string]string{"retention.ms": "1"}
	created := f.must(c).(*Topic)
	require.Equal(t, created, f.image().Topic("a.b"))
	require.Equal(t, created, f.image().TopicByID(TopicID{5}))
	require.Equal(t, led(Partition{Leader: 2, Replicas: []BrokerID{2, 1}, ISR: []BrokerID{2, 1}, Directories: []DirectoryID{{2}, {1}}}), created.Partitions[0])
	require.Equal(t, created, f.must(c), "a repetition")
	for name, c := range map[string]*createTopic{
		"name":      topicCommand(6, "a.b", on(1)),
		"collision": topicCommand(6, "a_b", on(1)),
		"id":        topicCommand(5, "c", on(1)),
		"broker":    topicCommand(6, "c", on(1, 4)),
		"directory": topicCommand(6, "c", replicaSet{[]BrokerID{1}, []DirectoryID{{9}}}),
	} {
		want := map[string]error{"name": ErrTopicExists, "collision": ErrInvalidTopic}[name]
		if want == nil {
			want = ErrStale
		}
		before := stateHash(f.st, 0)
		_, err := f.do(c)
		require.ErrorIs(t, err, want, name)
		require.Equal(t, before, stateHash(f.st, 0), "refused without effect")
	}
	f.must(&deleteTopic{id: TopicID{5}})
	_, err := f.do(c)
	require.ErrorIs(t, err, ErrStale, "the id is used up")
	require.NotNil(t, f.must(topicCommand(7, "a_b", on(1))), "the collision is gone with the topic")
	checkState(t, f.st)
}

// A fenced broker leads nothing and is in no ISR of a new partition.
func TestCreateTopicOnFencedBroker(t *testing.T) {
	f := threeBrokers(t)
	fenced := *f.st.broker(1)
	fenced.Fenced = true
	d := newDraft(f.st)
	d.putBroker(&fenced)
	f.st = d.publish()
	p := f.must(topicCommand(2, "a", on(1, 2))).(*Topic).Partitions[0]
	require.Equal(t, BrokerID(2), p.Leader)
	require.Equal(t, []BrokerID{2}, p.ISR)
	_, err := f.do(topicCommand(3, "b", on(1)))
	require.ErrorIs(t, err, ErrStale)
}

// L12, M11: a deletion leaves a tombstone, is recognized when repeated, and is "unknown" for any other request.
func TestDeleteTopicCommand(t *testing.T) {
	f := threeBrokers(t)
	require.False(t, f.image().Tombstone(TopicID{1}))
	f.must(&deleteTopic{id: TopicID{1}, request: requestID{1}})
	require.True(t, f.image().Tombstone(TopicID{1}))
	require.Nil(t, f.image().Topic("orders"))
	require.Nil(t, f.image().TopicByID(TopicID{1}))
	f.must(&deleteTopic{id: TopicID{1}, request: requestID{1}})
	_, err := f.do(&deleteTopic{id: TopicID{1}, request: requestID{2}})
	require.ErrorIs(t, err, ErrUnknownTopicID)
	_, err = f.do(&deleteTopic{id: TopicID{99}, request: requestID{1}})
	require.ErrorIs(t, err, ErrUnknownTopicID)
	require.False(t, f.image().Tombstone(TopicID{99}), "an id nobody knew gets no tombstone (I16)")

	// A late deletion of the old id leaves a new topic of the same name alone.
	f.must(topicCommand(2, "orders", on(1)))
	f.must(&deleteTopic{id: TopicID{1}, request: requestID{1}})
	require.NotNil(t, f.image().Topic("orders"))
	checkState(t, f.st)
}

func TestCreatePartitionsCommand(t *testing.T) {
	f := threeBrokers(t)
	old := f.image()
	grown := f.must(&createPartitions{id: TopicID{1}, expectedCount: 2, sets: []replicaSet{on(3, 1)}}).(*Topic)
	require.Len(t, grown.Partitions, 3)
	require.Equal(t, BrokerID(3), grown.Partitions[2].Leader)
	require.Len(t, old.Topic("orders").Partitions, 2, "the old Image is as it was")
	require.Equal(t, 3, f.image().PartitionCount())
	_, err := f.do(&createPartitions{id: TopicID{1}, expectedCount: 2, sets: []replicaSet{on(3, 1)}})
	require.ErrorIs(t, err, ErrStale)
	_, err = f.do(&createPartitions{id: TopicID{9}, expectedCount: 2, sets: []replicaSet{on(3, 1)}})
	require.ErrorIs(t, err, ErrUnknownTopicID)
	_, err = f.do(&createPartitions{id: TopicID{1}, expectedCount: 3, sets: []replicaSet{on(7)}})
	require.ErrorIs(t, err, ErrStale)
	checkState(t, f.st)
}

// Configs change only from the version they were decided on; two changes decided on one version can't both win, not even
// in one entry.
func TestAlterConfigsCommand(t *testing.T) {
	f := threeBrokers(t)
	v := f.st.topic("orders").configVersion
	set := func(key, value string) *alterConfigs {
		return &alterConfigs{topic: TopicID{1}, broker: NoBroker, expectedVersion: v, set: map[string]string{key: value}}
	}
	results := f.Apply(f.entry(set("a", "1"), set("b", "2"))).([]result)
	require.NoError(t, results[0].err)
	require.ErrorIs(t, results[1].err, ErrStale)
	require.Equal(t, map[string]string{"a": "1"}, f.image().Topic("orders").Configs)
	old := f.image()
	v = f.st.topic("orders").configVersion
	c := set("b", "2")
	c.delete = []string{"a", "never set"}
	f.must(c)
	require.Equal(t, map[string]string{"b": "2"}, f.image().Topic("orders").Configs)
	require.Equal(t, map[string]string{"a": "1"}, old.Topic("orders").Configs)
	_, err := f.do(&alterConfigs{topic: TopicID{9}, broker: NoBroker})
	require.ErrorIs(t, err, ErrUnknownTopicID)

	for _, id := range []BrokerID{NoBroker, 2} {
		require.Nil(t, f.image().BrokerConfig(id))
		f.must(&alterConfigs{broker: id, set: map[string]string{"k": "v"}})
		require.Equal(t, map[string]string{"k": "v"}, f.image().BrokerConfig(id))
		_, err = f.do(&alterConfigs{broker: id, set: map[string]string{"k": "w"}})
		require.ErrorIs(t, err, ErrStale)
		f.must(&alterConfigs{broker: id, expectedVersion: f.st.brokerConfigs(id).Version, delete: []string{"k"}})
		require.Nil(t, f.image().BrokerConfig(id))
		_, err = f.do(&alterConfigs{broker: id, set: map[string]string{"k": "w"}})
		require.ErrorIs(t, err, ErrStale, "emptied is not the same as never set")
	}
	_, err = f.do(&alterConfigs{broker: 44, set: map[string]string{"k": "v"}})
	require.ErrorIs(t, err, ErrUnknownBroker)
	checkState(t, f.st)
}

// A config change shares the partitions with the version before it; a change of a partition in the same batch must not
// reach into that version.
func TestConfigChangeSharesNoWrites(t *testing.T) {
	f := threeBrokers(t)
	old, hash := f.image(), stateHash(f.st, f.index)
	f.Apply(f.entry(
		&alterConfigs{topic: TopicID{1}, broker: NoBroker, expectedVersion: f.st.topic("orders").configVersion, set: map[string]string{"a": "1"}},
		f.again(broker(1, 2)),
	))
	require.Equal(t, int32(1), f.image().Topic("orders").Partitions[0].LeaderEpoch)
	require.Equal(t, hash, stateHash(old.st, old.version))
	// And the other way round.
	old, hash = f.image(), stateHash(f.st, f.index)
	f.Apply(f.entry(
		f.again(broker(1, 3)),
		&alterConfigs{topic: TopicID{1}, broker: NoBroker, expectedVersion: f.st.topic("orders").configVersion, set: map[string]string{"a": "2"}},
		f.again(broker(2, 3)),
	))
	require.Equal(t, int32(1), f.image().Topic("orders").Partitions[1].LeaderEpoch)
	require.Equal(t, hash, stateHash(old.st, old.version))
}

// P5: a block is given out to whoever saw the present end, once.
func TestAllocateProducerIDsCommand(t *testing.T) {
	f := newTestFSM(t)
	require.Equal(t, int64(0), f.must(&allocateProducerIDs{count: 1000}))
	_, err := f.do(&allocateProducerIDs{count: 1000})
	require.ErrorIs(t, err, ErrStale)
	require.Equal(t, int64(1000), f.must(&allocateProducerIDs{expectedNext: 1000, count: 1}))
	require.Equal(t, int64(1001), f.must(&allocateProducerIDs{expectedNext: 1001, count: 1<<63 - 1 - 1001}))
	_, err = f.do(&allocateProducerIDs{expectedNext: 1<<63 - 1, count: 1})
	require.ErrorIs(t, err, ErrPolicyViolation)
}

// R11, R12: an ISR change counts only for the leader, the epochs and the incarnations it was decided on.
func TestAlterPartitionCommand(t *testing.T) {
	f := threeBrokers(t)
	base := alterPartition{leader: 1, leaderBrokerEpoch: 1, topic: TopicID{1}, isr: []ISRMember{{1, 1}, {3, -1}}, elr: []BrokerID{2}}
	for name, c := range map[string]struct {
		change func(*alterPartition)
		want   error
	}{
		"broker epoch":     {func(c *alterPartition) { c.leaderBrokerEpoch = 2 }, ErrStaleBrokerEpoch},
		"unknown broker":   {func(c *alterPartition) { c.leader = 9 }, ErrStaleBrokerEpoch},
		"topic":            {func(c *alterPartition) { c.topic = TopicID{9} }, ErrUnknownTopicID},
		"partition":        {func(c *alterPartition) { c.partition = 2 }, ErrUnknownPartition},
		"negative":         {func(c *alterPartition) { c.partition = -1 }, ErrUnknownPartition},
		"not the leader":   {func(c *alterPartition) { c.leader, c.leaderBrokerEpoch = 2, 2 }, ErrFencedLeaderEpoch},
		"leader epoch":     {func(c *alterPartition) { c.leaderEpoch = 1 }, ErrFencedLeaderEpoch},
		"partition epoch":  {func(c *alterPartition) { c.partitionEpoch = 1 }, ErrStale},
		"no replica":       {func(c *alterPartition) { c.isr = []ISRMember{{1, 1}, {4, -1}} }, ErrInvalidRequest},
		"twice":            {func(c *alterPartition) { c.isr = []ISRMember{{1, 1}, {1, 1}} }, ErrInvalidRequest},
		"without leader":   {func(c *alterPartition) { c.isr = []ISRMember{{3, 3}} }, ErrInvalidRequest},
		"empty":            {func(c *alterPartition) { c.isr = nil }, ErrInvalidRequest},
		"old incarnation":  {func(c *alterPartition) { c.isr = []ISRMember{{1, 1}, {3, 2}} }, ErrIneligibleReplica},
		"ELR in ISR":       {func(c *alterPartition) { c.elr = []BrokerID{3} }, ErrInvalidRequest},
		"ELR twice":        {func(c *alterPartition) { c.elr = []BrokerID{2, 2} }, ErrInvalidRequest},
		"ELR of strangers": {func(c *alterPartition) { c.elr = []BrokerID{5} }, ErrInvalidRequest},
	} {
		changed := base
		c.change(&changed)
		before := stateHash(f.st, 0)
		_, err := f.do(&changed)
		require.ErrorIs(t, err, c.want, name)
		require.Equal(t, before, stateHash(f.st, 0), name)
	}
	p := f.must(&base).(Partition)
	require.Equal(t, p, *f.image().Topic("orders").Partitions[0])
	require.Equal(t, []BrokerID{1, 3}, p.ISR)
	require.Equal(t, []BrokerID{2}, p.ELR)
	require.Equal(t, int32(1), p.PartitionEpoch)
	require.Equal(t, int32(0), p.LeaderEpoch)
	_, err := f.do(&base)
	require.ErrorIs(t, err, ErrStale, "a replayed proposal")
	checkState(t, f.st)
}

// M20: a command in parts has no effect before its last part, and then all of it.
func TestChain(t *testing.T) {
	f := threeBrokers(t)
	whole, err := encodeCommand(topicCommand(2, "big", on(1), on(2), on(3)), testTerm)
	require.NoError(t, err)
	part := func(id byte, i, n int) *chainPart {
		size := (len(whole) + n - 1) / n
		return &chainPart{chain: requestID{id}, part: uint32(i), parts: uint32(n), data: whole[i*size : min((i+1)*size, len(whole))]}
	}
	f.must(part(1, 0, 3))
	f.must(part(1, 0, 3)) // a repetition
	_, err = f.do(part(1, 2, 3))
	require.ErrorIs(t, err, ErrStale, "a part is missing")
	_, err = f.do(part(1, 1, 4))
	require.ErrorIs(t, err, ErrStale, "of another length")
	f.must(part(1, 1, 3))
	require.Nil(t, f.image().Topic("big"))
	require.Len(t, f.must(part(1, 2, 3)).(*Topic).Partitions, 3)
	require.Empty(t, f.st.chains)

	// Chains whose proposer died make room for others, the oldest first.
	for i := range maxChains + 1 {
		f.must(part(byte(10+i), 0, 3))
	}
	require.Len(t, f.st.chains, maxChains)
	_, err = f.do(part(10, 1, 3))
	require.ErrorIs(t, err, ErrStale)
	f.must(part(11, 1, 3))
	require.Len(t, f.st.chains, maxChains)
}

// Placements name directories by index, few and many of them.
func TestPlacementRoundTrip(t *testing.T) {
	for _, n := range []int{1, fewDirectories - 1, fewDirectories, fewDirectories + 1, 200} {
		var sets []replicaSet
		for i := range 3 * n {
			sets = append(sets, replicaSet{[]BrokerID{1, 2}, []DirectoryID{{byte(i % n), 1}, {byte(i * 7 % n), 1}}})
		}
		m := encodePlacement(sets)
		require.LessOrEqual(t, len(m.Directories), n)
		back, err := decodePlacement(m)
		require.NoError(t, err)
		require.Equal(t, sets, back)
	}
}

func drawGroup(t *rapid.T) *Group {
	g := draw(t, reflect.TypeFor[Group]()).Interface().(Group)
	g.Members = nil // travel beside it
	g.Type, g.State = ConsumerGroup, GroupStable
	return &g
}

func drawMember(t *rapid.T) *GroupMember {
	m := draw(t, reflect.TypeFor[GroupMember]()).Interface().(GroupMember)
	return &m
}

func drawBalancePlan(t *rapid.T) *balancePlan {
	p := draw(t, reflect.TypeFor[balancePlan]()).Interface().(balancePlan)
	return &p
}
