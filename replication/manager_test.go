package replication

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// broker is a metadata store, a log directory and a manager, which can be stopped and started again.
type broker struct {
	t           testing.TB
	fs          vfs.FS
	path        string
	metaDir     string
	wal         bool
	tune        func(*Config)
	tuneLog     func(*log.Config)
	store       *metadata.Store
	dir         *log.Dir
	m           *Manager
	incarnation byte
	failed      chan error
}

func newBroker(t testing.TB, tune ...func(*Config)) *broker {
	return newBrokerOn(t, vfs.NewMem(1), "data", false, tune...)
}

func newBrokerOn(t testing.TB, fsys vfs.FS, path string, wal bool, tune ...func(*Config)) *broker {
	b := &broker{t: t, fs: fsys, path: path, wal: wal, metaDir: t.TempDir(), failed: make(chan error, 4)}
	b.tune = func(c *Config) {
		for _, fn := range tune {
			fn(c)
		}
	}
	b.start()
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.openStore()
	b.register()
	b.openManager()
	require.NoError(b.t, b.m.Ready(b.ctx()))
}

func (b *broker) openStore() {
	b.t.Helper()
	cfg := log.Default()
	cfg.FS, cfg.Logger, cfg.WAL = b.fs, quiet(), b.wal
	cfg.ReserveBytes, cfg.BallastBytes = 0, 0
	cfg.WALFileBytes, cfg.WALInitialBytes = 1<<20, 1<<20
	if b.tuneLog != nil {
		b.tuneLog(&cfg)
	}
	var err error
	b.dir, err = log.OpenDir(b.path, cfg)
	require.NoError(b.t, err)
	mc := metadata.Default()
	mc.SessionTimeout = time.Hour // nobody sends heartbeats here
	mc.Dir, mc.NodeID, mc.DirectoryID, mc.Bootstrap, mc.Logger = b.metaDir, 0, b.dir.ID(), true, quiet()
	mc.OnFailure = func(err error) { b.failed <- err }
	b.store, err = metadata.Open(mc)
	require.NoError(b.t, err)
	require.NoError(b.t, b.store.Ready(b.ctx()))
	b.incarnation++
}

func (b *broker) register() {
	b.t.Helper()
	_, err := b.store.RegisterBroker(b.ctx(), metadata.Registration{
		ID: 0, Incarnation: [16]byte{b.incarnation}, Directories: []metadata.DirectoryID{b.dir.ID()}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
	})
	require.NoError(b.t, err)
}

func (b *broker) openManager() {
	b.t.Helper()
	cfg := Default()
	cfg.BrokerID, cfg.Incarnation, cfg.Dir, cfg.FS, cfg.Store, cfg.Logger = 0, [16]byte{b.incarnation}, b.dir, b.fs, b.store, quiet()
	cfg.TickInterval, cfg.RetryInterval = 2*time.Millisecond, 5*time.Millisecond
	cfg.OnFailure = func(err error) { b.failed <- err }
	if b.tune != nil {
		b.tune(&cfg)
	}
	var err error
	b.m, err = Open(cfg)
	require.NoError(b.t, err)
}

// stop ends it in the order of a broker.
func (b *broker) stop() {
	if b.m != nil {
		require.NoError(b.t, b.m.Close())
		b.m = nil
	}
	if b.store != nil {
		require.NoError(b.t, b.store.Close())
		require.NoError(b.t, b.dir.Close())
		b.store = nil
	}
}

func (b *broker) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *broker) create(name string, partitions int32, configs map[string]string) metadata.TopicID {
	b.t.Helper()
	nt := metadata.NewTopic{Name: name, Partitions: partitions, ReplicationFactor: 1, Configs: map[string]*string{}}
	for k, v := range configs {
		nt.Configs[k] = &v
	}
	res := b.store.CreateTopics(b.ctx(), []metadata.NewTopic{nt}, false)
	require.NoError(b.t, res[0].Err)
	b.await()
	return res[0].ID
}

func (b *broker) await() { require.NoError(b.t, b.m.Await(b.ctx(), b.store.Image().Version())) }

func (b *broker) delete(name string) {
	b.t.Helper()
	require.NoError(b.t, b.store.DeleteTopics(b.ctx(), []metadata.TopicRef{{Name: name}})[0].Err)
}

func (b *broker) partition(topic string, id int32) *Partition {
	b.t.Helper()
	p, err := b.m.Partition(topic, id)
	require.NoError(b.t, err)
	return p
}

func produce(t testing.TB, p *Partition, values ...string) AppendResult {
	t.Helper()
	r := newResult()
	p.Append(AppendRequest{Records: batch(values...), Acks: -1, Timeout: 20 * time.Second, CurrentLeaderEpoch: -1, Waiter: r})
	res := r.wait(t)
	require.NoError(t, res.Err)
	return res
}

// entries lists the log directory.
func (b *broker) entries() (names []string) {
	list, err := b.fs.List(b.path)
	require.NoError(b.t, err)
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names
}

func hasPrefix(names []string, prefix, suffix string) bool {
	for _, n := range names {
		if strings.HasPrefix(n, prefix) && strings.HasSuffix(n, suffix) {
			return true
		}
	}
	return false
}

// A topic's life: created by the metadata, led, produced to, deleted; its name is free at once and a new topic under it
// begins at zero (D14, M21).
func TestTopicLifecycle(t *testing.T) {
	b := newBroker(t)
	first := b.create("orders", 3, nil)
	p := b.partition("orders", 2)
	require.True(t, p.IsLeader())
	require.Equal(t, int64(0), produce(t, p, "a").BaseOffset)
	byID, err := b.m.PartitionByID(first, 2)
	require.NoError(t, err)
	require.Same(t, p, byID)
	w, woken := waiter(1)
	p.Park(w, NewReadRequest(1, 1000))
	b.delete("orders")
	<-woken
	w.Cancel()
	b.await()
	_, err = b.m.Partition("orders", 2)
	require.ErrorIs(t, err, ErrUnknownTopicOrPartition)
	_, err = b.m.PartitionByID(first, 2)
	require.ErrorIs(t, err, ErrUnknownTopicID)
	require.False(t, hasPrefix(b.entries(), "orders-2", "orders-2"))
	second := b.create("orders", 1, nil)
	require.NotEqual(t, first, second)
	require.Equal(t, int64(0), produce(t, b.partition("orders", 0), "b").BaseOffset)
	require.Empty(t, b.failed)
}

// What was acknowledged is there after a restart, with the high watermark at the durable end, in a new leader epoch
// (R14).
func TestRestart(t *testing.T) {
	for _, flush := range []string{"true", "false"} {
		t.Run("flush.ack="+flush, func(t *testing.T) {
			b := newBroker(t)
			b.create("orders", 1, map[string]string{"millrace.flush.ack": flush})
			p := b.partition("orders", 0)
			produce(t, p, "a", "b")
			epoch := p.LeaderEpoch()
			b.stop()
			b.start()
			p = b.partition("orders", 0)
			require.Greater(t, p.LeaderEpoch(), epoch)
			require.Equal(t, int64(2), p.HighWatermark())
			offset, _, _, err := p.ListOffset(OffsetLatest, false, -1)
			require.NoError(t, err)
			require.Equal(t, int64(2), offset)
			require.Equal(t, []string{"a", "b"}, readValues(t, p, 0))
		})
	}
}

// L12, I16: a partition the metadata does not know is set aside with all its files, never deleted.
func TestStrayIsKept(t *testing.T) {
	b := newBroker(t)
	b.stop()
	b.openStore()
	l, err := b.dir.Create("ghost", [16]byte{9}, 0, 0, log.DefaultSettings())
	require.NoError(t, err)
	out := make([]log.Appended, 1)
	require.NoError(t, l.Append(1, []log.Set{{Records: batch("a")}}, out))
	b.register()
	b.openManager()
	require.NoError(t, b.m.Ready(b.ctx()))
	require.True(t, hasPrefix(b.entries(), "ghost-0.", "-stray"), "%v", b.entries())
	_, ok := b.dir.Lookup([16]byte{9}, 0)
	require.False(t, ok)
}

// L12: a topic that was deleted while this broker was away is deleted when it comes back, because its tombstone is
// committed.
func TestTombstoneDeletes(t *testing.T) {
	b := newBroker(t)
	id := b.create("orders", 2, nil)
	produce(t, b.partition("orders", 0), "a")
	require.NoError(t, b.m.Close())
	b.m = nil
	b.delete("orders")
	_, ok := b.dir.Lookup(id, 0)
	require.True(t, ok, "nobody was there to delete it")
	b.openManager()
	require.NoError(t, b.m.Ready(b.ctx()))
	_, ok = b.dir.Lookup(id, 0)
	require.False(t, ok)
	require.False(t, hasPrefix(b.entries(), "orders-", "-stray"), "deleted, not kept: %v", b.entries())
}

// L21: the directory holds the topic id; a name that belongs to another topic is a stray, and the topic gets a log of
// its own.
func TestNameMismatch(t *testing.T) {
	b := newBroker(t)
	id := b.create("orders", 1, nil)
	require.NoError(t, b.m.Close())
	b.m = nil
	l, ok := b.dir.Lookup(id, 0)
	require.True(t, ok)
	require.NoError(t, b.dir.SetAside(l))
	_, err := b.dir.Create("payments", id, 0, 0, log.DefaultSettings())
	require.NoError(t, err)
	b.openManager()
	require.NoError(t, b.m.Ready(b.ctx()))
	require.True(t, hasPrefix(b.entries(), "payments-0.", "-stray"), "%v", b.entries())
	require.Equal(t, int64(0), produce(t, b.partition("orders", 0), "a").BaseOffset)
}

// M16: no replica starts before the metadata shows this process's own registration, and until then nobody is told that
// a topic is unknown (protocol.md trap 12).
func TestWaitsForRegistration(t *testing.T) {
	b := newBroker(t)
	b.create("orders", 1, nil)
	b.stop()
	b.openStore()
	b.openManager()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.m.Ready(ctx), context.DeadlineExceeded)
	_, err := b.m.Partition("orders", 0)
	require.ErrorIs(t, err, ErrNotLeader)
	_, err = b.m.Partition("nothing", 0)
	require.ErrorIs(t, err, ErrUnknownTopicOrPartition)
	b.register()
	require.NoError(t, b.m.Ready(b.ctx()))
	require.True(t, b.partition("orders", 0).IsLeader())
}

// M13: another process under this broker's id ends this one.
func TestSuperseded(t *testing.T) {
	b := newBroker(t)
	b.create("orders", 1, nil)
	p := b.partition("orders", 0)
	b.incarnation++
	b.register()
	require.ErrorIs(t, <-b.failed, errSuperseded)
	r := newResult()
	p.Append(AppendRequest{Records: batch("x"), Acks: 1, CurrentLeaderEpoch: -1, Waiter: r})
	require.ErrorIs(t, r.wait(t).Err, errSuperseded)
}

// Topic configs change live: the settings, the log, and what an acknowledgement means.
func TestConfigsChangeLive(t *testing.T) {
	b := newBroker(t)
	b.create("orders", 1, nil)
	p := b.partition("orders", 0)
	require.True(t, p.Settings().FlushAck)
	set := func(key, value string) {
		t.Helper()
		errs := b.store.AlterConfigs(b.ctx(), []metadata.ConfigChange{{Resource: metadata.Resource{Type: metadata.TopicResource, Name: "orders"}, Ops: []metadata.ConfigOp{{Key: key, Value: &value}}}}, false, false)
		require.NoError(t, errs[0])
		b.await()
	}
	set("min.insync.replicas", "2")
	produce(t, p, "a") // the topic has one replica: no more can be asked for, as in Apache Kafka 4.4
	set("millrace.flush.ack", "false")
	require.False(t, p.log.Settings().FlushAck)
	require.Same(t, p, b.partition("orders", 0), "the partition goes on")
	produce(t, p, "b")
	set("millrace.flush.ack", "true")
	require.Equal(t, int64(2), p.log.DurableEnd(), "wal.md 5: switching it on syncs what was acknowledged without")
	set("segment.bytes", "1048576")
	require.Equal(t, int64(1048576), p.log.Settings().SegmentBytes)
	require.Equal(t, int64(1048576), p.Settings().SegmentBytes)
}

// Broker defaults reach the topics that say nothing of their own.
func TestBrokerConfigIsInherited(t *testing.T) {
	static := map[string]string{"log.segment.bytes": "2000000", "producer.id.expiration.ms": "5000"}
	b := newBroker(t, func(c *Config) {
		c.BrokerConfig = func() map[string]string {
			effective := map[string]string{}
			for _, layer := range []map[string]string{static, c.Store.Image().BrokerConfig(metadata.NoBroker)} {
				for k, v := range layer {
					effective[k] = v
				}
			}
			return effective
		}
	})
	b.create("orders", 1, nil)
	p := b.partition("orders", 0)
	require.Equal(t, int64(2000000), p.log.Settings().SegmentBytes)
	require.Equal(t, 5*time.Second, p.log.Settings().ProducerExpiration)
	value := "3000000"
	errs := b.store.AlterConfigs(b.ctx(), []metadata.ConfigChange{{Resource: metadata.Resource{Type: metadata.BrokerResource}, Ops: []metadata.ConfigOp{{Key: "log.segment.bytes", Value: &value}}}}, false, false)
	require.NoError(t, errs[0])
	b.await()
	require.Equal(t, int64(3000000), p.log.Settings().SegmentBytes)
}

// Retention runs on the manager's tick, and wakes a fetch that waits below the new start.
func TestRetentionTick(t *testing.T) {
	b := newBroker(t)
	b.stop()
	b.tuneLog = func(c *log.Config) { c.RetentionInterval = time.Millisecond }
	b.start()
	b.create("orders", 1, map[string]string{"internal.segment.bytes": "200", "retention.bytes": "400"})
	p := b.partition("orders", 0)
	w, woken := waiter(1 << 30)
	p.Park(w, NewReadRequest(0, 1<<30))
	for i := range 20 {
		produce(t, p, fmt.Sprint("record ", i))
	}
	<-woken
	w.Cancel()
	require.Positive(t, p.StartOffset())
	require.ErrorIs(t, p.Read(NewReadRequest(0, 1000)).Err, log.ErrOffsetOutOfRange)
	low, err := p.DeleteRecords(b.ctx(), 0, -1)
	require.NoError(t, err)
	require.Positive(t, low)
}

// Partitions added to a topic are opened, the old ones go on.
func TestPartitionsAreAdded(t *testing.T) {
	b := newBroker(t)
	b.create("orders", 1, nil)
	p := b.partition("orders", 0)
	_, err := b.m.Partition("orders", 1)
	require.ErrorIs(t, err, ErrUnknownTopicOrPartition)
	require.NoError(t, b.store.CreatePartitions(b.ctx(), []metadata.NewPartitions{{Topic: "orders", Count: 3}}, false)[0].Err)
	b.await()
	require.Same(t, p, b.partition("orders", 0))
	produce(t, b.partition("orders", 2), "a")
	n := 0
	for range b.m.Partitions() {
		n++
	}
	require.Equal(t, 3, n)
}

// A partition whose log cannot be made is offline, told so, and made when the disk allows it (I21).
func TestCreateIsRetried(t *testing.T) {
	b := newBroker(t)
	faulty := &refusingFS{FS: b.fs}
	b.stop()
	b.fs = faulty
	b.start()
	faulty.refuse.Store(true)
	b.create("orders", 1, nil)
	_, err := b.m.Partition("orders", 0)
	require.ErrorIs(t, err, ErrOffline)
	require.ErrorIs(t, err, log.ErrNoSpace)
	faulty.refuse.Store(false)
	eventually(t, "the partition is made", func() bool {
		_, err := b.m.Partition("orders", 0)
		return err == nil
	})
	produce(t, b.partition("orders", 0), "a")
}

// L5: the checkpoint holds what is durable, is written while the broker runs, and a bad one is ignored.
func TestCheckpointIsWritten(t *testing.T) {
	b := newBroker(t, func(c *Config) { c.CheckpointInterval = time.Millisecond })
	id := b.create("orders", 2, nil)
	produce(t, b.partition("orders", 1), "a", "b")
	eventually(t, "the checkpoint names the high watermark", func() bool {
		marks, err := readCheckpoint(b.fs, "data")
		require.NoError(t, err)
		return marks[TopicIDPartition{id, 1}] == 2
	})
	b.stop()
	f, err := b.fs.Open("data/" + checkpointName)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("9"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	b.start()
	require.Equal(t, int64(2), b.partition("orders", 1).HighWatermark(), "with one replica it follows from the log")
}

// L9: a partition whose files are damaged is offline, says why, and keeps its files; the others are served.
func TestDamagedPartitionIsOffline(t *testing.T) {
	b := newBroker(t)
	b.create("orders", 2, nil)
	produce(t, b.partition("orders", 0), "a")
	produce(t, b.partition("orders", 1), "b")
	b.stop()
	f, err := b.fs.Open("data/orders-0/millrace.state")
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("xxxx"), 20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	b.start()
	_, err = b.m.Partition("orders", 0)
	require.ErrorIs(t, err, ErrOffline)
	require.ErrorIs(t, err, log.ErrCorrupt)
	require.True(t, hasPrefix(b.entries(), "orders-0", "orders-0"))
	require.Equal(t, []string{"b"}, readValues(t, b.partition("orders", 1), 0))
}

// L5: with flush.ack=false the high watermark runs ahead of the disk; the checkpoint does not speak of what a power cut
// would take.
func TestCheckpointIsDurable(t *testing.T) {
	gate := newSyncGate(vfs.NewMem(1))
	b := newBench(t, withFS(gate, "data"), withoutFlush)
	b.produce("a")
	require.NoError(t, b.p.log.Flush())
	gate.close()
	b.append(-1, "b").wait(t)
	require.Equal(t, int64(2), b.p.HighWatermark())
	gate.open()
	require.NoError(t, b.m.checkpoint())
	marks, err := readCheckpoint(gate, "data")
	require.NoError(t, err)
	require.Equal(t, map[TopicIDPartition]int64{{b.p.topic.id, 0}: 1}, marks)
}

// A leader of several replicas cannot tell from its own disk what is committed: after a restart it begins with the
// checkpointed high watermark.
func TestRestartWithReplicas(t *testing.T) {
	b := newBroker(t)
	epoch, err := b.store.RegisterBroker(b.ctx(), metadata.Registration{
		ID: 1, Incarnation: [16]byte{99}, Directories: []metadata.DirectoryID{{7}}, Version: "test",
		Listeners:       []metadata.Listener{{Name: "PLAINTEXT", Host: "localhost", Port: 9093, Protocol: "PLAINTEXT"}},
		MinFeatureLevel: metadata.MinFeatureLevel, MaxFeatureLevel: metadata.MaxFeatureLevel,
	})
	require.NoError(t, err)
	_, err = b.store.Heartbeat(b.ctx(), metadata.Heartbeat{Broker: 1, Epoch: epoch, Applied: b.store.Image().Version()})
	require.NoError(t, err)
	res := b.store.CreateTopics(b.ctx(), []metadata.NewTopic{{Name: "orders", Partitions: -1, ReplicationFactor: -1, Assignments: [][]metadata.BrokerID{{0, 1}, {1, 0}}}}, false)
	require.NoError(t, res[0].Err)
	b.await()
	p := b.partition("orders", 0)
	require.True(t, p.IsLeader())
	other := b.partition("orders", 1)
	require.False(t, other.IsLeader())
	leader, _ := other.Leader()
	require.Equal(t, metadata.BrokerID(1), leader)
	require.ErrorIs(t, other.Read(NewReadRequest(0, 10)).Err, ErrNotLeader)

	follow := func(p *Partition, offset int64) ReadResult {
		r := NewReadRequest(offset, 1<<20)
		r.ReplicaID, r.BrokerEpoch, r.LogStartOffset, r.CurrentLeaderEpoch = 1, epoch, 0, p.LeaderEpoch()
		res := p.Read(r)
		res.Slice.Release()
		return res
	}
	for i := range 2 {
		r := newResult()
		p.Append(AppendRequest{Records: batch("x"), Acks: -1, Timeout: time.Minute, CurrentLeaderEpoch: -1, Waiter: r})
		eventually(t, "durable", func() bool { return p.log.DurableEnd() == int64(i+1) })
		if i == 0 {
			require.NoError(t, follow(p, 1).Err)
			require.NoError(t, r.wait(t).Err)
		} else {
			r.pending(t)
		}
	}
	require.Equal(t, int64(1), p.HighWatermark())
	b.stop()
	b.start()
	// The other broker led meanwhile; it takes this one back into the ISR, and the preferred leader is elected.
	self := b.store.Image().Broker(0)
	_, err = b.store.Heartbeat(b.ctx(), metadata.Heartbeat{Broker: 0, Epoch: self.Epoch, Applied: b.store.Image().Version()})
	require.NoError(t, err)
	tp := metadata.TopicPartition{Topic: "orders"}
	rec := b.store.Image().Topic("orders").Partitions[0]
	require.Equal(t, metadata.BrokerID(1), rec.Leader)
	altered := b.store.AlterPartition(b.ctx(), 1, epoch, []metadata.PartitionChange{{
		TopicID: p.topic.id, LeaderEpoch: rec.LeaderEpoch, PartitionEpoch: rec.PartitionEpoch,
		ISR: []metadata.ISRMember{{ID: 1, Epoch: epoch}, {ID: 0, Epoch: self.Epoch}},
	}})
	require.NoError(t, altered[0].Err)
	require.NoError(t, b.store.ElectLeaders(b.ctx(), metadata.Preferred, []metadata.TopicPartition{tp})[0].Err)
	b.await()
	p = b.partition("orders", 0)
	require.True(t, p.IsLeader())
	require.Equal(t, int64(2), p.EndOffset())
	require.Equal(t, int64(1), p.HighWatermark())
	_, _, _, err = p.ListOffset(OffsetLatest, false, -1)
	require.ErrorIs(t, err, ErrOffsetNotAvailable, "R7")
	require.Equal(t, int64(2), follow(p, 2).HighWatermark)
	latest, _, _, err := p.ListOffset(OffsetLatest, false, -1)
	require.NoError(t, err)
	require.Equal(t, int64(2), latest)
}

func TestLogDirs(t *testing.T) {
	b := newBroker(t)
	id := b.create("orders", 1, nil)
	produce(t, b.partition("orders", 0), "a")
	dirs := b.m.LogDirs()
	require.Len(t, dirs, 1)
	require.NoError(t, dirs[0].Err)
	require.Equal(t, "data", dirs[0].Path)
	require.Equal(t, []LogDirReplica{{Topic: "orders", TopicID: id, Partition: 0, SizeBytes: int64(len(batch("a")))}}, dirs[0].Replicas)
}
