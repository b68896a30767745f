package replication

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet is the logger of tests; MILLRACE_TEST_LOG shows it.
func quiet() *slog.Logger {
	if os.Getenv("MILLRACE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

// tb is what the helpers need of a test: *testing.T, *testing.B and *rapid.T have it.
type tb interface {
	require.TestingT
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bench is one partition on a log of its own, led by broker 0 in epoch 5 unless told otherwise, without metadata.
type bench struct {
	t    tb
	fs   vfs.FS
	dir  *log.Dir
	m    *Manager
	p    *Partition
	fail chan error
	rec  metadata.Partition
}

type benchOption func(*benchConfig)

type benchConfig struct {
	fs       vfs.FS
	path     string
	wal      bool
	settings metadata.TopicSettings
	replicas []metadata.BrokerID
	tune     func(*log.Config)
}

func withoutFlush(c *benchConfig) { c.settings.FlushAck = false }
func withWAL(c *benchConfig)      { c.wal = true }
func withMinInsync(n int) benchOption {
	return func(c *benchConfig) { c.settings.MinInsyncReplicas = n }
}
func withReplicas(ids ...metadata.BrokerID) benchOption {
	return func(c *benchConfig) { c.replicas = ids }
}
func withFS(fsys vfs.FS, path string) benchOption {
	return func(c *benchConfig) { c.fs, c.path = fsys, path }
}

func defaultSettings(t tb) metadata.TopicSettings {
	s, err := metadata.ResolveTopicSettings(nil, nil)
	require.NoError(t, err)
	return s
}

func openDir(t tb, c *benchConfig) *log.Dir {
	cfg := log.Default()
	cfg.FS, cfg.Logger, cfg.WAL = c.fs, quiet(), c.wal
	cfg.WALFileBytes, cfg.WALInitialBytes = 1<<20, 1<<20
	cfg.ReserveBytes, cfg.BallastBytes = 0, 0
	if c.tune != nil {
		c.tune(&cfg)
	}
	dir, err := log.OpenDir(c.path, cfg)
	require.NoError(t, err)
	return dir
}

// newBench returns a led partition; everything is closed with the test.
func newBench(t testing.TB, opts ...benchOption) *bench {
	b := makeBench(t, opts...)
	t.Cleanup(b.close)
	return b
}

// makeBench is newBench for callers that close it themselves.
func makeBench(t tb, opts ...benchOption) *bench {
	c := benchConfig{fs: vfs.NewMem(1), path: "data", settings: defaultSettings(t), replicas: []metadata.BrokerID{0}}
	for _, o := range opts {
		o(&c)
	}
	b := &bench{t: t, fs: c.fs, fail: make(chan error, 1)}
	b.dir = openDir(t, &c)
	cfg := Default()
	cfg.Dir, cfg.FS, cfg.Logger = b.dir, c.fs, quiet()
	cfg.OnFailure = func(err error) { b.fail <- err }
	cfg.Store = noMetadata{}
	require.NoError(t, cfg.Validate())
	b.m = newManager(cfg)
	b.m.cancel = func() {}
	b.m.tasks.Go(b.m.drainLoop)
	topic := &topicState{name: "orders", id: metadata.TopicID{1}, metrics: new(topicMetrics)}
	topic.settings.Store(&c.settings)
	l, ok := b.dir.Lookup(topic.id, 0)
	if !ok {
		var err error
		l, err = b.dir.Create(topic.name, topic.id, 0, 0, logSettings(&c.settings))
		require.NoError(t, err)
	}
	restart := Restart{Clean: b.dir.CleanStart(), StartOffset: l.StartOffset(), DurableEnd: l.DurableEnd(), EndOffset: l.EndOffset(), LastEpoch: l.LastEpoch(), Policy: cfg.policy(&c.settings, len(c.replicas))}
	b.p = newPartition(b.m, topic, 0, l, restart)
	next := newTable()
	next.put(&placement{topicState: topic, partitions: []*Partition{b.p}})
	b.m.table.Store(next)
	b.rec = metadata.Partition{Leader: 0, LeaderEpoch: 5, PartitionEpoch: 7, Replicas: c.replicas, ISR: c.replicas}
	b.change(func(*metadata.Partition) {})
	return b
}

// change applies a change of the committed record.
func (b *bench) change(fn func(*metadata.Partition)) {
	b.rec.PartitionEpoch++
	fn(&b.rec)
	d := &MetadataDelta{Leader: b.rec.Leader, LeaderEpoch: b.rec.LeaderEpoch, PartitionEpoch: b.rec.PartitionEpoch, ISR: b.rec.ISR, UncleanEpoch: -1}
	for _, id := range b.rec.Replicas {
		d.Replicas = append(d.Replicas, Peer{ID: id, BrokerEpoch: 100 + int64(id)})
	}
	b.p.apply(d)
}

func (b *bench) close() {
	require.NoError(b.t, b.m.Close())
	if b.dir.Failed() == nil {
		require.NoError(b.t, b.dir.Close())
	} else {
		_ = b.dir.Close()
	}
}

// noMetadata is a Metadata that is never asked.
type noMetadata struct{}

func (noMetadata) Image() *metadata.Image   { return nil }
func (noMetadata) Watch() *metadata.Watcher { return nil }
func (noMetadata) AlterPartition(_ context.Context, _ metadata.BrokerID, _ int64, changes []metadata.PartitionChange) []metadata.PartitionResult {
	results := make([]metadata.PartitionResult, len(changes))
	for i := range results {
		results[i].Err = metadata.ErrNotController
	}
	return results
}

func (noMetadata) MarkersWritten(_ []metadata.WrittenMarker, done func(error)) {
	done(metadata.ErrNotController)
}

// batch makes one encoded batch of records with the given values.
func batch(values ...string) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	for i, v := range values {
		b.Add(1000+int64(i), nil, []byte(v), nil)
	}
	return b.Build()
}

// result waits for the one result of an append.
type result chan AppendResult

func newResult() result { return make(result, 1) }

// Appended implements AppendWaiter; a second result does not fit and panics the test.
func (r result) Appended(_ int, res AppendResult) {
	select {
	case r <- res:
	default:
		panic("an append was answered twice")
	}
}

func (r result) pending(t tb) {
	t.Helper()
	select {
	case res := <-r:
		t.Fatalf("answered already: %+v", res)
	default:
	}
}

func (r result) wait(t tb) AppendResult {
	t.Helper()
	select {
	case res := <-r:
		return res
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func (b *bench) append(acks int16, values ...string) result {
	r := newResult()
	b.p.Append(AppendRequest{Records: batch(values...), Acks: acks, Timeout: 10 * time.Second, CurrentLeaderEpoch: -1, Waiter: r})
	return r
}

// produce appends with acks=all and waits.
func (b *bench) produce(values ...string) AppendResult {
	b.t.Helper()
	res := b.append(-1, values...).wait(b.t)
	require.NoError(b.t, res.Err)
	return res
}

// read returns the values a consumer gets from an offset on.
func (b *bench) read(offset int64) []string {
	b.t.Helper()
	return readValues(b.t, b.p, offset)
}

func readValues(t tb, p *Partition, offset int64) []string {
	t.Helper()
	var values []string
	for {
		res := p.Read(NewReadRequest(offset, 1<<20))
		require.NoError(t, res.Err)
		if res.Slice.Len() == 0 {
			return values
		}
		buf := make([]byte, res.Slice.Len())
		_, err := res.Slice.ReadAt(buf, 0)
		require.NoError(t, err)
		next := res.Slice.NextOffset()
		res.Slice.Release()
		for rest := buf; len(rest) > 0; {
			var batch record.Batch
			batch, rest, err = record.Next(rest)
			require.NoError(t, err)
			require.True(t, batch.CheckCRC())
			base := batch.BaseOffset()
			require.NoError(t, batch.Each(1<<20, func(r record.Record) error {
				if base+int64(r.OffsetDelta) >= offset {
					values = append(values, string(r.Value))
				}
				return nil
			}))
		}
		offset = next
	}
}

// eventually waits until a condition holds, looking again after each change that ch announces, or often.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !cond() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("never came true: %s", what)
		}
	}
}

// decodeValues returns the values of whole batches.
func decodeValues(t tb, b []byte) (values []string) {
	t.Helper()
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		require.NoError(t, err)
		require.True(t, batch.CheckCRC())
		require.NoError(t, batch.Each(1<<20, func(r record.Record) error {
			values = append(values, string(r.Value))
			return nil
		}))
		b = rest
	}
	return values
}
