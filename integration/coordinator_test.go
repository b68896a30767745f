package integration

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/cluster"
)

// coordinatedCluster is a cluster and names of groups that one of its brokers coordinates, the victim: its death is that of the
// coordinator for the groups of all rows of a table, which would take minutes one by one.
type coordinatedCluster struct {
	*cluster.Cluster
	cl     *kgo.Client // of the test, which produces
	adm    *kadm.Client
	victim *cluster.Node
	id     int32   // of the victim
	others []int32 // ids of the other brokers
	groups []string
}

func startCoordinatedCluster(ctx context.Context, t *testing.T, brokers int, set ...string) *coordinatedCluster {
	t.Helper()
	inner, err := cluster.Open(cluster.Config{Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers"), Brokers: brokers, Set: set})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range inner.Nodes {
				t.Logf("log of broker %d:\n%s", n.Index, n.LogTail(8<<10))
			}
		}
		require.NoError(t, inner.Close())
	})
	require.NoError(t, inner.Start(ctx))
	c := &coordinatedCluster{Cluster: inner}
	c.cl = c.client(t, kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
	c.adm = kadm.NewClient(c.cl)
	candidates := make([]string, 60)
	for i := range candidates {
		candidates[i] = "group-" + strconv.Itoa(i)
	}
	for _, found := range c.adm.FindGroupCoordinators(ctx, candidates...).Sorted() {
		require.NoError(t, found.Err)
		if c.victim == nil {
			// Ids follow the order of addresses, not that of our list.
			c.victim = c.Nodes[slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == net.JoinHostPort(found.Host, fmt.Sprint(found.Port)) })]
			c.id = found.NodeID
		}
		if found.NodeID == c.id {
			c.groups = append(c.groups, found.Name)
		} else if !slices.Contains(c.others, found.NodeID) {
			c.others = append(c.others, found.NodeID)
		}
	}
	require.Len(t, c.others, brokers-1)
	return c
}

// client opens a client that finds a new coordinator or leader soon, and ends with the test.
func (c *coordinatedCluster) client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(soon(c.Seeds()), opts...)...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

// soon are options of clients that try again soon. Metadata are fresh because franz-go goes on to send the heartbeats of KIP-848 to
// a coordinator that is gone, until it has something to commit or does not find that broker in its metadata any more.
func soon(seeds []string) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Second), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond })}
}

// topic makes a topic with a replica on each broker, all of whose partitions one broker leads, and returns its id.
func (c *coordinatedCluster) topic(ctx context.Context, t *testing.T, name string, partitions int, leader int32) [16]byte {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, -1, -1
	replicas := []int32{leader}
	for _, id := range append([]int32{c.id}, c.others...) {
		if id != leader {
			replicas = append(replicas, id)
		}
	}
	for p := range partitions {
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(p), Replicas: replicas})
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Topics = append(req.Topics, topic)
	req.TimeoutMillis = int32(patience.Milliseconds())
	resp, err := req.RequestWith(ctx, c.cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.Topics[0].ErrorCode))
	return resp.Topics[0].TopicID
}

// produce sends numbered records, and waits until all are acknowledged.
func (c *coordinatedCluster) produce(ctx context.Context, t *testing.T, topic string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		c.cl.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(i))}, nil)
	}
	require.NoError(t, c.cl.Flush(ctx))
}

// kill ends the victim with SIGKILL, and waits until other brokers coordinate its groups.
func (c *coordinatedCluster) kill(ctx context.Context) error {
	if err := c.victim.Kill(); err != nil {
		return err
	}
	for {
		moved := true
		for _, now := range c.adm.FindGroupCoordinators(ctx, c.groups...) {
			moved = moved && now.Err == nil && now.NodeID != c.id
		}
		if moved {
			return nil
		}
		breathe(ctx, 20*time.Millisecond)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nobody else coordinates: %w", err)
		}
	}
}

// meeting is where the rows of a table wait for each other.
type meeting struct {
	missing sync.WaitGroup
	over    chan struct{}
	err     error
}

// newMeeting is one of so many rows; once all have come, do is called.
func newMeeting(rows int, do func() error) *meeting {
	m := &meeting{over: make(chan struct{})}
	m.missing.Add(rows)
	go func() {
		m.missing.Wait()
		m.err = do()
		close(m.over)
	}()
	return m
}

// seat returns how a row comes: once. A row that fails before comes by its deferred call, so that nobody waits for it.
func (m *meeting) seat() func() { return sync.OnceFunc(m.missing.Done) }

// wait waits until what they met for is done.
func (m *meeting) wait(ctx context.Context) error {
	select {
	case <-m.over:
		return m.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// runTogether runs each row as a subtest, all of them at once: those that meet cannot share the slots of t.Parallel.
func runTogether[R any](t *testing.T, rows []R, name func(R) string, run func(*testing.T, R)) {
	var work sync.WaitGroup
	for _, row := range rows {
		work.Go(func() { t.Run(name(row), func(t *testing.T) { run(t, row) }) })
	}
	work.Wait()
}
