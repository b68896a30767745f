package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// commitAnswers compares what a member of the classic protocol in a consumer group (KIP-848) is told that commits in the generation
// before its present one, as its commits do that its own JoinGroup overtakes: of what it has kept, and of what it was given since.
func commitAnswers(ctx context.Context, t *testing.T, pair *answerPair) {
	t.Run("commits of a classic member in a consumer group", func(t *testing.T) {
		ours, kafka := newMixedGroup(t, pair.ours.addr), newMixedGroup(t, pair.kafka.addr)
		want := kafka.play(ctx)
		require.Equal(t, want, ours.play(ctx))
		t.Logf("as Apache Kafka: %v", want)
	})
}

// mixedGroup is a group of two consumers of KIP-848 and a member of the classic protocol, spoken to by hand.
type mixedGroup struct {
	t  *testing.T
	cl *kgo.Client
	// epochs are the consumers' own; owned is what they, and the classic member "k", have.
	epochs map[string]int32
	owned  map[string][]int32
	topic  kmsg.ConsumerGroupHeartbeatRequestTopic

	id         string // of the classic member
	generation int32
}

const mixedTopic, mixedPartitions = "mixed", 6

func newMixedGroup(t *testing.T, addr string) *mixedGroup {
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(8, 9) // topics by name
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MaxVersions(versions))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return &mixedGroup{t: t, cl: cl, epochs: map[string]int32{}, owned: map[string][]int32{}}
}

// play has the group come together, and one of the consumers leave, and returns the answers to commits of the classic member then.
func (g *mixedGroup) play(ctx context.Context) map[string][]int16 {
	create := kmsg.NewPtrCreateTopicsRequest()
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = mixedTopic, mixedPartitions, 1
	create.Topics, create.TimeoutMillis = append(create.Topics, rt), 15_000
	made, err := create.RequestWith(ctx, g.cl)
	require.NoError(g.t, err)
	require.Zero(g.t, made.Topics[0].ErrorCode)
	g.topic.TopicID = made.Topics[0].TopicID

	g.beat(ctx, "first", 0)
	g.beat(ctx, "second", 0)
	g.settle(ctx, "first", "second")
	before := g.generation
	kept := slices.Clone(g.owned["k"])
	g.beat(ctx, "second", -1)
	g.settle(ctx, "first")
	require.Greater(g.t, g.generation, before)
	given := slices.DeleteFunc(slices.Clone(g.owned["k"]), func(p int32) bool { return slices.Contains(kept, p) })
	require.Len(g.t, given, 1)
	others := slices.Clone(g.owned["first"])
	out := map[string][]int16{}
	for _, c := range []struct {
		what       string
		generation int32
		partitions []int32
	}{
		{"present, its own", g.generation, g.owned["k"]},
		{"present, another's", g.generation, others[:1]},
		{"before, kept", before, kept},
		{"before, given since", before, given},
		{"before, one of two given since", before, []int32{kept[0], given[0]}},
		{"before, another's", before, others[:1]},
		{"long before, kept", 0, kept},
		{"of the future", g.generation + 1, kept},
		{"none", -1, kept},
	} {
		out[c.what] = g.commit(ctx, c.generation, c.partitions)
	}
	return out
}

// settle has all members say what they have until the consumers and the classic member share all of it, in one epoch.
func (g *mixedGroup) settle(ctx context.Context, consumers ...string) {
	each := mixedPartitions / (len(consumers) + 1)
	for {
		g.join(ctx)
		whole := len(g.owned["k"]) == each
		for _, c := range consumers {
			g.beat(ctx, c, g.epochs[c])
			whole = whole && len(g.owned[c]) == each && g.epochs[c] == g.generation
		}
		if whole {
			return
		}
		require.NoError(g.t, ctx.Err(), "the members do not settle: %v in %v", g.owned, g.epochs)
		breathe(ctx, 20*time.Millisecond)
	}
}

// beat is a heartbeat of a consumer, which joins with epoch 0 and leaves with -1. It gives up, and takes up, what it is told.
func (g *mixedGroup) beat(ctx context.Context, id string, epoch int32) {
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch, req.RebalanceTimeoutMillis = mixedTopic, id, epoch, 30_000
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if epoch == 0 {
		req.SubscribedTopicNames = []string{mixedTopic}
	} else if has := g.owned[id]; len(has) > 0 {
		topic := g.topic
		topic.Partitions = has
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, g.cl)
	require.NoError(g.t, err)
	require.Zero(g.t, resp.ErrorCode, "heartbeat of %s", id)
	g.epochs[id] = resp.MemberEpoch
	if resp.Assignment != nil {
		g.owned[id] = nil
		for _, topic := range resp.Assignment.Topics {
			g.owned[id] = slices.Sorted(slices.Values(topic.Partitions))
		}
	}
}

// join is a JoinGroup of the classic member, which says what it has, and its SyncGroup.
func (g *mixedGroup) join(ctx context.Context) {
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics = 1, []string{mixedTopic}
	if has := g.owned["k"]; len(has) > 0 {
		owned := kmsg.NewConsumerMemberMetadataOwnedPartition()
		owned.Topic, owned.Partitions = mixedTopic, has
		meta.OwnedPartitions = append(meta.OwnedPartitions, owned)
	}
	req := kmsg.NewPtrJoinGroupRequest()
	req.Group, req.MemberID, req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = mixedTopic, g.id, "consumer", 45_000, 30_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "cooperative-sticky", meta.AppendTo(nil)
	req.Protocols = append(req.Protocols, p)
	resp, err := req.RequestWith(ctx, g.cl)
	require.NoError(g.t, err)
	const memberIDRequired = 79
	if g.id = resp.MemberID; resp.ErrorCode == memberIDRequired {
		g.join(ctx)
		return
	}
	require.Zero(g.t, resp.ErrorCode, "join")
	g.generation = resp.Generation
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.Generation = mixedTopic, g.id, g.generation
	sync.ProtocolType, sync.Protocol = kmsg.StringPtr("consumer"), kmsg.StringPtr("cooperative-sticky")
	got, err := sync.RequestWith(ctx, g.cl)
	require.NoError(g.t, err)
	require.Zero(g.t, got.ErrorCode, "sync")
	var assigned kmsg.ConsumerMemberAssignment
	require.NoError(g.t, assigned.ReadFrom(got.MemberAssignment))
	g.owned["k"] = nil
	for _, topic := range assigned.Topics {
		g.owned["k"] = slices.Sorted(slices.Values(topic.Partitions))
	}
}

// commit returns the error codes of partitions that the classic member commits.
func (g *mixedGroup) commit(ctx context.Context, generation int32, partitions []int32) (codes []int16) {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = mixedTopic, g.id, generation
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = mixedTopic
	for _, p := range partitions {
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset = p, 1
		topic.Partitions = append(topic.Partitions, rp)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, g.cl)
	require.NoError(g.t, err)
	require.Len(g.t, resp.Topics, 1, fmt.Sprint(partitions))
	for _, p := range resp.Topics[0].Partitions {
		codes = append(codes, p.ErrorCode)
	}
	return codes
}
