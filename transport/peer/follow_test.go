package peer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport/kafka"
)

// testCluster is brokers 1 and 2 with real logs, partitions, handlers and connections; they share one metadata store.
type testCluster struct {
	t       testing.TB
	store   *metadata.Store
	brokers map[metadata.BrokerID]*testBroker
	log     *logBuffer
}

type testBroker struct {
	*testPeer
	id       metadata.BrokerID
	epoch    int64
	replicas *replication.Manager
	handlers *kafka.Handlers
}

func startCluster(t testing.TB) *testCluster {
	t.Helper()
	c := &testCluster{t: t, brokers: map[metadata.BrokerID]*testBroker{}, log: &logBuffer{}}
	logger := slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	dirs := map[metadata.BrokerID]*log.Dir{}
	fs := map[metadata.BrokerID]vfs.FS{}
	for id := metadata.BrokerID(1); id <= 2; id++ {
		cfg := log.Default()
		fs[id] = vfs.NewMem(uint64(id))
		cfg.FS, cfg.Logger, cfg.WAL, cfg.ReserveBytes, cfg.BallastBytes = fs[id], logger, false, 0, 0
		dir, err := log.OpenDir("/data", cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = dir.Close() })
		dirs[id] = dir
	}
	sc := metadata.Default()
	sc.Dir, sc.NodeID, sc.DirectoryID, sc.Bootstrap, sc.Logger, sc.OnFailure = t.TempDir(), 1, dirs[1].ID(), true, logger, func(err error) { panic(err) }
	sc.SessionTimeout = time.Hour // nobody sends heartbeats
	store, err := metadata.Open(sc)
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	ctx := deadline(t)
	require.NoError(t, store.Ready(ctx))
	c.store = store

	for id := metadata.BrokerID(1); id <= 2; id++ {
		who := Identity{ClusterID: store.Image().ClusterID(), Node: id, Directory: dirs[id].ID()}
		who.Incarnation[3] = byte(id)
		b := &testBroker{id: id, testPeer: start(t, who)}
		epoch, err := store.RegisterBroker(ctx, metadata.Registration{
			ID: id, Incarnation: who.Incarnation, Directories: []metadata.DirectoryID{dirs[id].ID()}, PeerAddress: b.Advertised(),
			Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 1, Protocol: "PLAINTEXT"}},
		})
		require.NoError(t, err)
		_, err = store.Heartbeat(ctx, metadata.Heartbeat{Broker: id, Epoch: epoch, Applied: store.Image().Version()})
		require.NoError(t, err)
		b.epoch = epoch
		c.brokers[id] = b
	}
	for id, b := range c.brokers {
		b.knows(c.brokers[1].testPeer, c.brokers[2].testPeer)
		rc := replication.Default()
		rc.BrokerID, rc.Incarnation, rc.Dir, rc.FS, rc.Store, rc.Logger, rc.Peers = id, b.mu.id.Incarnation, dirs[id], fs[id], store, logger, b.Peers
		b.replicas, err = replication.Open(rc)
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.replicas.Close() })
		require.NoError(t, b.replicas.Ready(ctx))
		kc := kafka.Default()
		kc.BrokerID, kc.Store, kc.Replicas, kc.Groups, kc.Transactions, kc.Logger = id, store, b.replicas, &group.Coordinator{}, &txn.Coordinator{}, logger
		b.handlers, err = kafka.New(kc)
		require.NoError(t, err)
		t.Cleanup(func() { _ = b.handlers.Close() })
		b.ServeReplicas(b.handlers.Replicas())
	}
	return c
}

// topic makes a topic whose partitions broker 1 leads and broker 2 follows, and waits until both have it.
func (c *testCluster) topic(name string, partitions int, configs ...string) *metadata.Topic {
	c.t.Helper()
	nt := metadata.NewTopic{Name: name, Partitions: -1, ReplicationFactor: -1, Configs: map[string]*string{}}
	for range partitions {
		nt.Assignments = append(nt.Assignments, []metadata.BrokerID{1, 2})
	}
	for i := 0; i < len(configs); i += 2 {
		nt.Configs[configs[i]] = &configs[i+1]
	}
	ctx := deadline(c.t)
	require.NoError(c.t, c.store.CreateTopics(ctx, []metadata.NewTopic{nt}, false)[0].Err)
	for _, b := range c.brokers {
		require.NoError(c.t, b.replicas.Await(ctx, c.store.Image().Version()))
	}
	return c.store.Image().Topic(name)
}

func (b *testBroker) partition(t testing.TB, topic string, partition int32) *replication.Partition {
	t.Helper()
	p, err := b.replicas.Partition(topic, partition)
	require.NoError(t, err)
	return p
}

// appended receives the outcome of appends.
type appended chan replication.AppendResult

func (a appended) Appended(_ int, r replication.AppendResult) { a <- r }

func batchOf(size int) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	b.Add(1_900_000_000_000, nil, make([]byte, size), nil)
	return b.Build()
}

// produce appends one batch and waits for its acknowledgement by all.
func produce(t testing.TB, p *replication.Partition, size int) replication.AppendResult {
	t.Helper()
	done := make(appended, 1)
	p.Append(replication.AppendRequest{Records: batchOf(size), Acks: -1, Timeout: testDeadline, CurrentLeaderEpoch: -1, Waiter: done})
	return <-done
}

// Two brokers, one connection between them for fetches: what is acknowledged by all is at the follower, byte for byte up
// to the end, and its high watermark follows without the next record.
func TestFollow(t *testing.T) {
	c := startCluster(t)
	const partitions, records = 20, 30
	topic := c.topic("t", partitions, "min.insync.replicas", "2")
	var group sync.WaitGroup
	for i := range int32(partitions) {
		group.Go(func() {
			p := c.brokers[1].partition(t, topic.Name, i)
			for n := range records {
				r := produce(t, p, 1+n*100)
				if !assert.NoError(t, r.Err) {
					return
				}
				assert.EqualValues(t, n, r.BaseOffset)
			}
		})
	}
	group.Wait()
	require.False(t, t.Failed(), c.log.String())
	for i := range int32(partitions) {
		f := c.brokers[2].partition(t, topic.Name, i)
		require.EqualValues(t, records, f.EndOffset())
		require.Eventually(t, func() bool { return f.HighWatermark() == records }, testDeadline, time.Millisecond)
	}
	require.EqualValues(t, 1, c.brokers[2].metrics.dials.Load(), "one connection for all partitions")

	// A batch larger than every limit comes whole (R22); the answer is larger than any pooled frame.
	p := c.brokers[1].partition(t, topic.Name, 0)
	big := c.topic("big", 1, "max.message.bytes", fmt.Sprint(32<<20), "min.insync.replicas", "2")
	require.NoError(t, produce(t, c.brokers[1].partition(t, big.Name, 0), 20<<20).Err)
	require.NoError(t, produce(t, p, 10).Err)
}

// A topic that is deleted and its successor: the follower's session goes on.
func TestFollowDeletion(t *testing.T) {
	c := startCluster(t)
	c.topic("stays", 1, "min.insync.replicas", "2")
	for range 3 {
		topic := c.topic("goes", 2, "min.insync.replicas", "2")
		require.NoError(t, produce(t, c.brokers[1].partition(t, topic.Name, 1), 10).Err)
		require.NoError(t, c.store.DeleteTopics(deadline(t), []metadata.TopicRef{{Name: "goes"}})[0].Err)
	}
	require.NoError(t, produce(t, c.brokers[1].partition(t, "stays", 0), 10).Err)
	require.EqualValues(t, 1, c.brokers[2].metrics.dials.Load())
}

// S5: who has not said hello as a broker follows nothing, and no broker fetches in another's name.
func TestFollowOnlyAsOneself(t *testing.T) {
	c := startCluster(t)
	topic := c.topic("t", 1)
	b := c.brokers[2]
	f := newFetcher(b.Peers, 1)
	t.Cleanup(f.Close)
	request := func(epoch int64) *replication.FollowerFetch {
		return &replication.FollowerFetch{BrokerEpoch: epoch, MinBytes: 1, MaxBytes: 1 << 20, Changed: []replication.FetchPosition{
			{TopicID: topic.ID, LeaderEpoch: topic.Partitions[0].LeaderEpoch, LastEpoch: -1, MaxBytes: 1 << 20}}}
	}
	// An earlier registration's fetch is refused (R12).
	a, err := f.Fetch(deadline(t), request(b.epoch-1))
	require.NoError(t, err)
	require.Len(t, a.Partitions, 1)
	require.ErrorIs(t, a.Partitions[0].Err, replication.ErrStaleBrokerEpoch)
	a.Release()
	// A request in the name of another broker costs the connection.
	who := b.cfg.Identity()
	conn, err := f.connected(context.Background())
	require.NoError(t, err)
	stranger := who
	stranger.Node = 7
	b.become(stranger)
	_, err = f.exchange(deadline(t), conn, request(b.epoch))
	require.ErrorIs(t, err, ErrBroken)
	b.become(who)
}

// A fetch that waits comes back for a wake, for its time, and with an error for its context's end and for Close; the
// session survives the first two.
func TestFetchEnds(t *testing.T) {
	c := startCluster(t)
	topic := c.topic("t", 1)
	f := newFetcher(c.brokers[2].Peers, 1)
	t.Cleanup(f.Close)
	req := &replication.FollowerFetch{BrokerEpoch: c.brokers[2].epoch, MinBytes: 1, MaxBytes: 1 << 20, Changed: []replication.FetchPosition{
		{TopicID: topic.ID, LeaderEpoch: topic.Partitions[0].LeaderEpoch, LastEpoch: -1, MaxBytes: 1 << 20}}}
	fetch := func(ctx context.Context, wait time.Duration) error {
		req.MaxWait = wait
		a, err := f.Fetch(ctx, req)
		if err == nil {
			a.Release()
			req.Changed = nil
		}
		return err
	}
	require.NoError(t, fetch(t.Context(), 0))
	require.NoError(t, fetch(t.Context(), 5*time.Millisecond)) // perhaps with marks
	session := f.session.ID
	require.NotZero(t, session)
	ended := make(chan error, 1)
	go func() { ended <- fetch(t.Context(), time.Hour) }()
	require.Eventually(t, func() bool {
		f.Wake()
		return len(ended) > 0
	}, testDeadline, time.Millisecond)
	require.NoError(t, <-ended)
	require.Equal(t, session, f.session.ID)
	f.woken.Store(false) // of a wake that came too late

	// A wake that comes before the request has gone out counts.
	f.Wake()
	require.NoError(t, fetch(t.Context(), time.Hour))

	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- fetch(ctx, time.Hour) }()
	require.Eventually(t, f.waiting.Load, testDeadline, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.False(t, c.brokers[2].suspects(1), "our own end is no sign of the other's death")

	go func() { ended <- fetch(t.Context(), time.Hour) }()
	require.Eventually(t, f.waiting.Load, testDeadline, time.Millisecond)
	f.Close()
	require.ErrorIs(t, <-ended, ErrClosed)
	require.False(t, c.brokers[1].suspects(2), "a fetcher that was closed said so")
}
