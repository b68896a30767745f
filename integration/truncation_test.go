package integration

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/cluster"
)

const (
	truncatedTopic = "truncated"
	// truncatedAt is where the logs fork, truncatedEnd where the one that is lost ended, which is what consumers have committed.
	truncatedAt, truncatedEnd = 10, 15
)

// truncatedReader reads the topic as the member of a group.
type truncatedReader interface {
	// read reads everything, and has its end committed.
	read(ctx context.Context, t *testing.T, group, protocol string)
	// resume goes on from the commit, and notices that what is before it is something else by now.
	resume(ctx context.Context, t *testing.T, group, protocol string)
}

// TestTruncatedLogIsDetected: a consumer has committed its place in a log, with the leader epoch of what it had read last. An unclean
// election takes the end of that log away, and others write beyond it. Whoever goes on from the commit finds out, because the epoch
// was kept, and misses none of the records that are in the place of what it had read (G13): franz-go and Java's client begin where the
// logs fork. (librdkafka compares epochs while it reads, and not when it begins.)
func TestTruncatedLogIsDetected(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers, and a program in Java")
	}
	t.Parallel() // it mostly waits
	c, err := cluster.Open(cluster.Config{
		Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"),
		Set: []string{"group.initial.rebalance.delay.ms=0", "group.consumer.heartbeat.interval.ms=500", "unclean.leader.election.interval.ms=500"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	require.NoError(t, c.Start(ctx))
	f := newForkedLog(ctx, t, c)
	f.write(ctx, "both", truncatedAt)
	require.NoError(t, f.behind.Kill())
	end := f.write(ctx, "lost", truncatedEnd-truncatedAt)
	require.EqualValues(t, truncatedEnd, end.Offset)
	f.epoch = end.LeaderEpoch

	b := &broker{t: t, Addr: f.stays.Addr, HTTP: f.stays.HTTP}
	readers := map[string]truncatedReader{"franz-go": &truncatedFranz{f}}
	here := false
	t.Run("java", func(t *testing.T) {
		requireTools(t, "java", "javac", "mvn")
		here = true
	})
	if here {
		readers["java"] = &truncatedJava{f, &sharedProgram{program: openJava(t, b).(*program)}}
	}
	each := func(part string, do func(t *testing.T, r truncatedReader, group, protocol string)) {
		t.Run(part, func(t *testing.T) {
			for name, r := range readers {
				for _, protocol := range []string{"classic", "consumer"} {
					t.Run(name+" "+protocol, func(t *testing.T) {
						t.Parallel()
						do(t, r, "truncated-"+name+"-"+protocol, protocol)
					})
				}
			}
		})
	}
	each("before", func(t *testing.T, r truncatedReader, group, protocol string) {
		r.read(ctx, t, group, protocol)
		f.committed(ctx, t, group)
	})
	f.fork(ctx)
	each("after", func(t *testing.T, r truncatedReader, group, protocol string) {
		f.committed(ctx, t, group)
		r.resume(ctx, t, group, protocol)
	})
}

// forkedLog is a partition with two replicas, one of which is behind, and a third broker that keeps the quorum.
type forkedLog struct {
	t                    *testing.T
	cl                   *kgo.Client
	adm                  *kadm.Client
	ahead, behind, stays *cluster.Node
	epoch                int32 // of the log that is lost
}

func newForkedLog(ctx context.Context, t *testing.T, c *cluster.Cluster) *forkedLog {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.MetadataMinAge(100*time.Millisecond), kgo.DefaultProduceTopic(truncatedTopic), kgo.RetryTimeout(patience))
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	f := &forkedLog{t: t, cl: cl, adm: kadm.NewClient(cl)}
	all, err := f.adm.BrokerMetadata(ctx)
	require.NoError(t, err)
	var replicas []int32
	for _, b := range all.Brokers {
		n := c.Nodes[slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))) })]
		switch {
		case b.NodeID == all.Controller:
			f.stays = n
		case f.ahead == nil:
			f.ahead, replicas = n, append(replicas, b.NodeID)
		default:
			f.behind, replicas = n, append(replicas, b.NodeID)
		}
	}
	require.Len(t, replicas, 2)
	req := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = truncatedTopic, -1, -1
	topic.ReplicaAssignment = []kmsg.CreateTopicsRequestTopicReplicaAssignment{{Partition: 0, Replicas: replicas}}
	for name, value := range map[string]string{"min.insync.replicas": "1", "unclean.leader.election.enable": "true"} {
		topic.Configs = append(topic.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: name, Value: kmsg.StringPtr(value)})
	}
	req.Topics, req.TimeoutMillis = append(req.Topics, topic), 15_000
	made, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(made.Topics[0].ErrorCode), made.Topics[0].ErrorMessage)
	return f
}

// write has so many records acknowledged by whoever is in sync, and returns where the log ends then.
func (f *forkedLog) write(ctx context.Context, value string, n int) kadm.ListedOffset {
	for range n {
		require.NoError(f.t, f.cl.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr())
	}
	ends, err := f.adm.ListEndOffsets(ctx, truncatedTopic)
	require.NoError(f.t, err)
	end, _ := ends.Lookup(truncatedTopic, 0)
	require.NoError(f.t, end.Err)
	return end
}

// committed waits until the group has committed the end of the log that is lost, with its epoch.
func (f *forkedLog) committed(ctx context.Context, t *testing.T, group string) {
	var last kadm.OffsetResponse
	require.Eventually(t, func() bool {
		offsets, err := f.adm.FetchOffsets(ctx, group)
		if err == nil {
			last, _ = offsets.Lookup(truncatedTopic, 0)
		}
		return last.At == truncatedEnd
	}, patience, 20*time.Millisecond, "%s has not committed the end: %v", group, &last)
	require.Equal(t, f.epoch, last.LeaderEpoch, "the leader epoch of what it read last")
}

// fork kills the replica that has everything, and lets the other go on from what it has, beyond where the first one ended.
func (f *forkedLog) fork(ctx context.Context) {
	require.NoError(f.t, f.ahead.Kill())
	require.NoError(f.t, f.behind.Start())
	require.Eventually(f.t, func() bool {
		ends, err := f.adm.ListEndOffsets(ctx, truncatedTopic)
		if err != nil {
			return false
		}
		end, ok := ends.Lookup(truncatedTopic, 0)
		return ok && end.Err == nil && end.LeaderEpoch > f.epoch && end.Offset == truncatedAt
	}, 2*patience, 50*time.Millisecond, "the replica that is behind is elected")
	f.write(ctx, "instead", truncatedEnd)
}

// truncatedFranz is franz-go.
type truncatedFranz struct{ f *forkedLog }

func (r *truncatedFranz) client(ctx context.Context, t *testing.T, group, protocol string) *kgo.Client {
	ctx = context.WithoutCancel(ctx)
	if protocol == "consumer" {
		//lint:ignore SA1029 it is the key that the library looks for
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	cl, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(r.f.stays.Addr), kgo.ConsumerGroup(group), kgo.ConsumeTopics(truncatedTopic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MetadataMinAge(100*time.Millisecond), kgo.DisableAutoCommit())
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func (r *truncatedFranz) read(ctx context.Context, t *testing.T, group, protocol string) {
	cl := r.client(ctx, t, group, protocol)
	for n := 0; n < truncatedEnd; {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		n += fetches.NumRecords()
	}
	require.NoError(t, cl.CommitUncommittedOffsets(ctx))
}

func (r *truncatedFranz) resume(ctx context.Context, t *testing.T, group, protocol string) {
	cl := r.client(ctx, t, group, protocol)
	var loss *kgo.ErrDataLoss
	for {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, ctx.Err())
		for _, err := range fetches.Errors() {
			require.True(t, errors.As(err.Err, &loss), "%v", err.Err)
		}
		if records := fetches.Records(); len(records) > 0 {
			require.NotNil(t, loss, "it reads on at %d as if nothing had happened", records[0].Offset)
			require.EqualValues(t, truncatedAt, records[0].Offset)
			require.Equal(t, "instead", string(records[0].Value))
			break
		}
	}
	require.EqualValues(t, truncatedEnd, loss.ConsumedTo)
	require.EqualValues(t, truncatedAt, loss.ResetTo)
}

// truncatedJava is Apache Kafka's client, which is told to begin anew where it is lost.
type truncatedJava struct {
	f       *forkedLog
	program *sharedProgram
}

func (r *truncatedJava) read(ctx context.Context, t *testing.T, group, protocol string) {
	_, err := r.program.do(ctx, "member", group, group, protocol, "range", truncatedTopic, "sync")
	require.NoError(t, err)
	r.f.committed(ctx, t, group)
	_, err = r.program.do(ctx, "leave", group)
	require.NoError(t, err)
}

func (r *truncatedJava) resume(ctx context.Context, t *testing.T, group, protocol string) {
	_, err := r.program.do(ctx, "member", group, group, protocol, "range", truncatedTopic, "sync")
	require.NoError(t, err)
	heard := ""
	require.Eventually(t, func() bool {
		heard, err = r.program.do(ctx, "heard", group)
		return err != nil || heard != ""
	}, patience, 20*time.Millisecond, "it reads nothing")
	require.NoError(t, err)
	first, _, _ := strings.Cut(heard, ",")
	require.Equal(t, "0:"+strconv.Itoa(truncatedAt), first, "where it goes on")
	_, err = r.program.do(ctx, "leave", group)
	require.NoError(t, err)
}
