package group

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/metadata"
)

// subscriptionOf is what a classic consumer says: topics, and what it owns of topic a.
func subscriptionOf(topic string, owned ...int32) []byte {
	b := binary.BigEndian.AppendUint16(nil, 1)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint16(b, uint16(len(topic)))
	b = append(b, topic...)
	b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	return append(b, appendAssignment(nil, []namedPartitions{{topic, owned}})[2:]...)
}

// join sends JoinGroup of a classic consumer and returns the answer, if there is one by now.
func (b *consumerBench) join(id string, owned ...int32) *JoinResult {
	n := len(b.joins)
	b.step(&Join{JoinRequest: &JoinRequest{
		Group: "g", Member: id, SessionTimeout: 30 * time.Second, RebalanceTimeout: time.Minute, ProtocolType: "consumer",
		Protocols: []Protocol{{Name: "cooperative-sticky", Metadata: subscriptionOf("a", owned...)}},
	}, NewID: "classic", Waiter: id, Settings: &b.settings, Topics: &b.topics})
	if len(b.joins) == n {
		return nil
	}
	return &b.joins[len(b.joins)-1]
}

func (b *consumerBench) sync(id string, generation int32, assignments ...Assignment) SyncResult {
	b.t.Helper()
	n := len(b.syncs)
	b.step(&Sync{SyncRequest: &SyncRequest{Group: "g", Member: id, Generation: generation, Assignments: assignments}, Waiter: id, Topics: &b.topics})
	require.Len(b.t, b.syncs, n+1)
	return b.syncs[n]
}

func (b *consumerBench) heartbeat(id string, generation int32) error {
	acts := b.core.Step(b.now, &Heartbeat{&HeartbeatRequest{Group: "g", Member: id, Generation: generation}})
	return acts[0].Err
}

// A classic consumer works on while its group becomes a consumer group and back: at each step it has what it is told, and
// nobody else does (I18).
func TestLiveMigration(t *testing.T) {
	b := newConsumerBench(t)
	b.settings.InitialRebalanceDelay = 0
	res := b.join("")
	require.NoError(t, res.Err)
	generation := res.Generation
	require.NoError(t, b.sync("classic", generation, Assignment{"classic", appendAssignment(nil, []namedPartitions{{"a", []int32{0, 1, 2, 3}}})}).Err)
	require.NoError(t, b.heartbeat("classic", generation))

	bad := joinRequest("new", "a")
	bad.HasAssignor, bad.Assignor = true, "fairest"
	require.ErrorIs(t, b.beat(bad).Err, ErrUnsupportedAssignor)
	require.Equal(t, metadata.ClassicGroup, b.record.Type)

	joined := b.beat(joinRequest("new", "a"))
	require.NoError(t, joined.Err)
	require.Empty(t, joined.Assignment, "the classic member has all of it")
	require.Equal(t, metadata.ConsumerGroup, b.record.Type)
	require.Greater(t, joined.Epoch, generation)
	require.NoError(t, b.commitAs("classic", generation), "its commits go on")
	require.ErrorIs(t, b.heartbeat("classic", generation), ErrRebalanceInProgress)
	require.ErrorIs(t, b.heartbeat("new", joined.Epoch), ErrUnknownMember, "it does not speak that protocol")

	res = b.join("classic", 0, 1, 2, 3)
	require.NoError(t, res.Err)
	require.Equal(t, generation, res.Generation, "it has yet to give up two")
	require.Empty(t, res.Leader)
	kept, err := readAssignment(b.sync("classic", generation).Assignment)
	require.NoError(t, err)
	require.Equal(t, []namedPartitions{{"a", []int32{0, 1}}}, kept)
	require.False(t, b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: joined.Epoch, RebalanceTimeout: -1}).HasAssignment)
	require.ErrorIs(t, b.heartbeat("classic", generation), ErrRebalanceInProgress)
	res = b.join("classic", 0, 1)
	require.Equal(t, joined.Epoch, res.Generation)
	got := b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: joined.Epoch, RebalanceTimeout: -1})
	require.Equal(t, set(1, 2, 3), plain(got.Assignment))
	require.NoError(t, b.sync("classic", res.Generation).Err)
	require.NoError(t, b.heartbeat("classic", res.Generation))
	require.ErrorIs(t, b.heartbeat("classic", generation), ErrIllegalGeneration)

	// Another broker takes over.
	b.core = NewCore("g")
	b.step(&Loaded{Group: b.record, LastGeneration: b.record.Generation, Topics: &b.topics})
	require.NoError(t, b.heartbeat("classic", res.Generation))

	b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: -1})
	require.Equal(t, metadata.ClassicGroup, b.record.Type)
	require.Nil(t, b.core.consumer)
	require.Equal(t, StatePreparing, b.core.classic.state)
	after := b.record.Generation
	require.Greater(t, after, res.Generation)
	require.ErrorIs(t, b.heartbeat("classic", after), ErrRebalanceInProgress)
	list, err := readAssignment(b.record.Member("classic").Assignment)
	require.NoError(t, err)
	require.Equal(t, []namedPartitions{{"a", []int32{0, 1}}}, list)
	res = b.join("classic", 0, 1)
	require.NoError(t, res.Err)
	require.Equal(t, "classic", res.Leader)
	require.Greater(t, res.Generation, after)
}

func (b *consumerBench) commitAs(id string, generation int32) error {
	acts := b.core.Step(b.now, &Commit{&CommitRequest{Group: "g", Member: id, Generation: generation}})
	return acts[0].Err
}

// A classic member that is told to join again and does not is given up after its rebalance timeout.
func TestClassicMemberMustFollow(t *testing.T) {
	b := newConsumerBench(t)
	b.beat(joinRequest("new", "a"))
	res := b.join("")
	require.NoError(t, res.Err)
	require.Equal(t, "classic", res.Member)
	b.topics.set("a", 1, 6)
	require.NoError(t, b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: 1, RebalanceTimeout: -1}).Err)
	for range 3 {
		require.ErrorIs(t, b.heartbeat("classic", res.Generation), ErrRebalanceInProgress)
		b.now.At += Instant(25 * time.Second)
		b.beat(ConsumerHeartbeatRequest{Member: "new", Epoch: b.core.consumer.members["new"].record.MemberEpoch, RebalanceTimeout: -1})
		b.step(&Tick{})
	}
	require.ErrorIs(t, b.heartbeat("classic", res.Generation), ErrUnknownMember)
}

// A group that is not of consumers does not change its protocol, whatever its members' metadata looks like.
func TestConnectGroupIsNotMigrated(t *testing.T) {
	b := newConsumerBench(t)
	b.settings.InitialRebalanceDelay = 0
	b.step(&Join{JoinRequest: &JoinRequest{Group: "g", SessionTimeout: 30 * time.Second, ProtocolType: "connect", Protocols: []Protocol{{Name: "x", Metadata: subscriptionOf("a")}}}, NewID: "w", Settings: &b.settings})
	require.NoError(t, b.joins[0].Err)
	require.ErrorIs(t, b.beat(joinRequest("new", "a")).Err, ErrGroupNotFound)
	require.Equal(t, "connect", b.record.ProtocolType)
}

// I23: what members say never makes the coordinator fail, and what it writes it can read.
func TestConsumerProtocolBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		_, _ = readSubscription(b)
		_, _ = readAssignment(b)
		topic := rapid.String().Draw(t, "topic")
		owned := rapid.SliceOfN(rapid.Int32(), 1, 5).Draw(t, "owned")
		s, err := readSubscription(subscriptionOf(topic, owned...))
		require.NoError(t, err)
		require.Equal(t, classicSubscription{topics: []string{topic}, owned: []namedPartitions{{topic, owned}}}, s)
	})
	_, err := readSubscription([]byte{0, 0, 0x7f, 0xff, 0xff, 0xff})
	require.Error(t, err)
}
