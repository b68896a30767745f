package integration

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/cluster"
)

// TestPausedCoordinatorKnowsNoOffsets: a question for committed offsets lies in the socket of a coordinator that is paused.
// Meanwhile another one coordinates, and acknowledges the group's first commit. When the old one goes on it must not answer
// from what it knew: that there is no offset, upon which a consumer would begin anew, or skip everything (I18, G4).
func TestPausedCoordinatorKnowsNoOffsets(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers")
	}
	t.Parallel() // it mostly waits
	const group, topic = "zombies", "orders"
	c, err := cluster.Open(cluster.Config{Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	coordinator := func(adm *kadm.Client) *cluster.Node {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		found := adm.FindGroupCoordinators(ctx, group)[group]
		i := slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == net.JoinHostPort(found.Host, fmt.Sprint(found.Port)) })
		if found.Err != nil || i < 0 {
			return nil
		}
		return c.Nodes[i]
	}
	client := func(patience time.Duration, seeds ...string) *kgo.Client {
		versions := kversion.Stable()
		versions.SetMaxKeyVersion(9, 8) // topics by name
		cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MaxVersions(versions), kgo.MetadataMinAge(100*time.Millisecond), kgo.RequestTimeoutOverhead(patience))
		require.NoError(t, err)
		t.Cleanup(cl.Close)
		return cl
	}
	all := kadm.NewClient(client(3*time.Second, c.Seeds()...))
	made, err := all.CreateTopic(ctx, 1, 3, nil, topic)
	require.NoError(t, err)
	require.NoError(t, made.Err)
	var old *cluster.Node
	require.Eventually(t, func() bool { old = coordinator(all); return old != nil }, patience, 20*time.Millisecond)

	ask := client(time.Minute, old.Addr).SeedBrokers()[0]
	req := kmsg.NewPtrOffsetFetchRequest()
	of := kmsg.NewOffsetFetchRequestGroup()
	of.Group, of.Topics = group, []kmsg.OffsetFetchRequestGroupTopic{{Topic: topic, Partitions: []int32{0}}}
	req.Groups = append(req.Groups, of)
	fetch := func() (int64, error) {
		answer, err := ask.Request(ctx, req)
		if err != nil {
			return 0, err
		}
		g := answer.(*kmsg.OffsetFetchResponse).Groups[0]
		if g.ErrorCode != 0 {
			return 0, kerr.ErrorForCode(g.ErrorCode)
		}
		return g.Topics[0].Partitions[0].Offset, kerr.ErrorForCode(g.Topics[0].Partitions[0].ErrorCode)
	}
	at, err := fetch()
	require.NoError(t, err)
	require.EqualValues(t, -1, at)

	require.NoError(t, old.Pause())
	type outcome struct {
		at  int64
		err error
	}
	answered := make(chan outcome, 1)
	go func() {
		at, err := fetch()
		answered <- outcome{at, err}
	}()
	var others []string
	for _, n := range c.Nodes {
		if n != old {
			others = append(others, n.Addr)
		}
	}
	next := kadm.NewClient(client(2*time.Second, others...))
	require.Eventually(t, func() bool { n := coordinator(next); return n != nil && n != old }, patience, 50*time.Millisecond, "another broker coordinates")
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var offsets kadm.Offsets
		offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 0, LeaderEpoch: -1})
		done, err := next.CommitOffsets(ctx, group, offsets)
		return err == nil && done.Error() == nil
	}, patience, 50*time.Millisecond, "it takes the first commit")
	require.NoError(t, old.Resume())
	select {
	case o := <-answered:
		if o.err == nil {
			require.Zero(t, o.at, "the answer of a coordinator that no longer is one")
		}
		t.Logf("answered %d, %v", o.at, o.err)
	case <-ctx.Done():
		t.Fatal("no answer at all")
	}
}

// TestPutOutMemberAfterTakeover: a member of a consumer group (KIP-848) is put out, its coordinator dies before it knows, and it commits
// to the next one where it is, under its id and without an epoch, as Java's does: refused, or what was committed in its place
// meanwhile would be undone. A commit from outside counts.
func TestPutOutMemberAfterTakeover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers")
	}
	t.Parallel() // it mostly waits
	const group, topic = "zombies", "orders"
	c, err := cluster.Open(cluster.Config{Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond), kgo.RequestTimeoutOverhead(2*time.Second), kgo.RetryTimeout(time.Second))
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	made, err := adm.CreateTopic(ctx, 1, 3, nil, topic)
	require.NoError(t, err)
	require.NoError(t, made.Err)

	beat := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	beat.Group, beat.MemberID, beat.RebalanceTimeoutMillis, beat.SubscribedTopicNames = group, "m", 30_000, []string{topic}
	beat.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	require.Eventually(t, func() bool {
		resp, err := beat.RequestWith(ctx, cl)
		return err == nil && resp.ErrorCode == 0
	}, patience, 20*time.Millisecond)
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.Members = group, []kmsg.LeaveGroupRequestMember{{MemberID: "m"}}
	left, err := leave.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.Zero(t, left.ErrorCode)

	commit := func(member string, offset int64) (err error) {
		req := kmsg.NewPtrOffsetCommitRequest()
		req.Group, req.MemberID, req.Generation = group, member, -1
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Offset, p.LeaderEpoch = offset, -1
		req.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: topic, TopicID: made.ID, Partitions: []kmsg.OffsetCommitRequestTopicPartition{p}}}
		require.Eventually(t, func() bool { // until there is a coordinator that answers
			resp, asked := req.RequestWith(ctx, cl)
			if asked != nil {
				return false
			}
			err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
			return !kerr.IsRetriable(err)
		}, patience, 50*time.Millisecond)
		return err
	}
	require.NoError(t, commit("", 7))
	require.ErrorIs(t, commit("m", 3), kerr.UnknownMemberID)

	found := adm.FindGroupCoordinators(ctx, group)[group]
	require.NoError(t, found.Err)
	old := slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == net.JoinHostPort(found.Host, fmt.Sprint(found.Port)) })
	require.GreaterOrEqual(t, old, 0)
	require.NoError(t, c.Nodes[old].Kill())
	require.ErrorIs(t, commit("m", 3), kerr.UnknownMemberID, "the next coordinator")
	offsets, err := adm.FetchOffsets(ctx, group)
	require.NoError(t, err)
	at, ok := offsets.Lookup(topic, 0)
	require.True(t, ok)
	require.EqualValues(t, 7, at.At)
	require.NoError(t, commit("", 8))
}
