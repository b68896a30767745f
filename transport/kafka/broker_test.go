package kafka

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/group/txn"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// testBroker is a whole broker without the parts of cmd/broker: records in memory,
// metadata in a temporary directory, a real listener.
type testBroker struct {
	id       metadata.BrokerID
	store    *metadata.Store
	dir      *log.Dir
	replicas *replication.Manager
	handlers *Handlers
	server   *transport.Server
	groups   *testGroups
	registry *prometheus.Registry
	logs     *syncBuffer
	close    func()

	tmp  string
	edit brokerEdit
}

// brokerEdit changes a test broker before it starts.
type brokerEdit struct {
	static  map[string]string
	kafka   func(*Config)
	server  func(*transport.Config)
	brokers []metadata.Registration // further brokers, registered and never alive
	fenced  []metadata.Registration // registered, and nothing more
	fs      vfs.FS                  // nil: an empty one in memory
	dir     string                  // the log directory; "": /data

	grouped             bool   // with a real coordinator of groups
	level               uint32 // feature level that the cluster is formed at; 0: the newest
	partitionsInRequest int    // how many one request may create; 0: the default
}

// syncBuffer keeps log lines for tests that look at them.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startBroker starts a broker; the caller closes it.
func startBroker(tmp string, edit brokerEdit) (b *testBroker, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if edit.fs == nil {
		edit.fs = vfs.NewMem(1)
	}
	if edit.dir == "" {
		edit.dir = "/data"
	}
	b = &testBroker{id: 1, registry: prometheus.NewRegistry(), logs: &syncBuffer{}, tmp: tmp, edit: edit}
	var closers []func()
	b.close = func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
		closers = nil
	}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	logger := slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))

	logConfig := log.Default()
	logConfig.FS, logConfig.Logger, logConfig.WAL = edit.fs, logger, false
	logConfig.ReserveBytes, logConfig.BallastBytes = 0, 0
	if b.dir, err = log.OpenDir(edit.dir, logConfig); err != nil {
		return b, err
	}
	closers = append(closers, func() { _ = b.dir.Close() })

	storeConfig := metadata.Default()
	storeConfig.SessionTimeout = time.Hour // the other brokers send no heartbeats
	storeConfig.Dir, storeConfig.NodeID, storeConfig.DirectoryID, storeConfig.Bootstrap, storeConfig.Logger = tmp, b.id, b.dir.ID(), true, logger
	storeConfig.StaticConfig, storeConfig.OnFailure = edit.static, func(err error) { panic(err) }
	storeConfig.FeatureLevel = edit.level
	if edit.partitionsInRequest > 0 {
		storeConfig.MaxPartitionsPerRequest = edit.partitionsInRequest
	}
	if b.store, err = metadata.Open(storeConfig); err != nil {
		return b, err
	}
	closers = append(closers, func() { _ = b.store.Close() })
	if err = b.store.Ready(ctx); err != nil {
		return b, err
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return b, err
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	registration := metadata.Registration{
		ID: b.id, Directories: []metadata.DirectoryID{b.dir.ID()}, Version: "test",
		Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "127.0.0.1", Port: port, Protocol: "PLAINTEXT"}},
	}
	_, _ = rand.Read(registration.Incarnation[:])
	for _, r := range append([]metadata.Registration{registration}, edit.brokers...) {
		epoch, err := b.store.RegisterBroker(ctx, r)
		if err != nil {
			return b, err
		}
		beat := metadata.Heartbeat{Broker: r.ID, Epoch: epoch, Applied: b.store.Image().Version()}
		if _, err := b.store.Heartbeat(ctx, beat); err != nil {
			return b, err
		}
	}

	for _, r := range edit.fenced {
		if _, err := b.store.RegisterBroker(ctx, r); err != nil {
			return b, err
		}
	}

	replicaConfig := replication.Default()
	replicaConfig.BrokerID, replicaConfig.Incarnation, replicaConfig.Dir, replicaConfig.FS = b.id, registration.Incarnation, b.dir, logConfig.FS
	replicaConfig.Store, replicaConfig.Logger = b.store, logger
	replicaConfig.BrokerConfig = func() map[string]string { return edit.static }
	if b.replicas, err = replication.Open(replicaConfig); err != nil {
		return b, err
	}
	closers = append(closers, func() { _ = b.replicas.Close() })
	if err = b.replicas.Ready(ctx); err != nil {
		return b, err
	}

	config := Default()
	b.groups = &testGroups{}
	config.BrokerID, config.Store, config.Replicas, config.Groups, config.Logger = b.id, b.store, b.replicas, b.groups, logger
	config.Static, config.Registerer = edit.static, b.registry
	config.ProducerIDs = NewProducerIDs(b.store.AllocateProducerIDs)
	transactions, err := txn.New(txn.Config{
		Broker: b.id, Incarnation: registration.Incarnation, Store: b.store, ProducerIDs: config.ProducerIDs.Next, Logger: logger,
	})
	if err != nil {
		return b, err
	}
	config.Transactions = transactions
	var running sync.WaitGroup
	running.Go(func() { _ = transactions.Run(context.Background()) })
	closers = append(closers, func() {
		_ = transactions.Close()
		running.Wait()
	})
	if edit.grouped {
		groups, err := group.New(group.Config{Broker: b.id, Incarnation: registration.Incarnation, Store: b.store, Logger: logger})
		if err != nil {
			return b, err
		}
		config.Groups = groups
		running.Go(func() { _ = groups.Run(context.Background()) })
		closers = append(closers, func() { _ = groups.Close() })
	}
	if edit.kafka != nil {
		edit.kafka(&config)
	}
	if b.handlers, err = New(config); err != nil {
		return b, err
	}
	closers = append(closers, func() { _ = b.handlers.Close() })

	serverConfig := transport.Default()
	serverConfig.Logger = logger
	serverConfig.Listeners = []transport.ListenerConfig{{Name: "PLAINTEXT", Protocol: transport.Plaintext, Listener: listener, AdvertisedHost: "127.0.0.1", AdvertisedPort: port}}
	if edit.server != nil {
		edit.server(&serverConfig)
	}
	if b.server, err = transport.New(serverConfig, b.handlers); err != nil {
		return b, err
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = b.server.Run(context.Background())
	}()
	closers = append(closers, func() {
		_ = b.server.Close()
		<-ran
	})
	return b, nil
}

// shared is the broker of all tests that need no special one: they use topics of
// their own.
var shared struct {
	sync.Once
	broker *testBroker
	err    error
	tmp    string
	topics atomic.Int64
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.broker != nil {
		shared.broker.close()
	}
	if shared.tmp != "" {
		_ = os.RemoveAll(shared.tmp)
	}
	if fuzzed.broker != nil {
		fuzzed.broker.close()
		_ = os.RemoveAll(fuzzed.broker.tmp)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// theBroker returns the shared broker.
func theBroker(t testing.TB) *testBroker {
	t.Helper()
	shared.Do(func() {
		if shared.tmp, shared.err = os.MkdirTemp("", "millrace-kafka-"); shared.err == nil {
			shared.broker, shared.err = startBroker(shared.tmp, brokerEdit{})
		}
	})
	require.NoError(t, shared.err)
	return shared.broker
}

// ownBroker starts a broker for one test.
func ownBroker(t testing.TB, edit brokerEdit) *testBroker {
	t.Helper()
	b, err := startBroker(t.TempDir(), edit)
	require.NoError(t, err)
	t.Cleanup(b.close)
	return b
}

// topic creates a topic with a name of its own.
func (b *testBroker) topic(t testing.TB, partitions int32, configs ...string) *metadata.Topic {
	t.Helper()
	name := fmt.Sprintf("topic-%d", shared.topics.Add(1))
	nt := metadata.NewTopic{Name: name, Partitions: partitions, ReplicationFactor: 1, Configs: map[string]*string{}}
	for i := 0; i < len(configs); i += 2 {
		nt.Configs[configs[i]] = &configs[i+1]
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(t, b.store.CreateTopics(ctx, []metadata.NewTopic{nt}, false)[0].Err)
	require.NoError(t, b.replicas.Await(ctx, b.store.Image().Version()))
	return b.store.Image().Topic(name)
}

// restart stops the broker and starts it again on the same data. Every partition
// begins a new leader epoch (R14).
func (b *testBroker) restart(t testing.TB) *testBroker {
	t.Helper()
	b.close()
	again, err := startBroker(b.tmp, b.edit)
	require.NoError(t, err)
	t.Cleanup(again.close)
	return again
}

// addr is the address of the listener.
func (b *testBroker) addr() string { return b.server.Listeners()[0].Addr().String() }

// testConn is a client that speaks kmsg, one request after the other or pipelined.
type testConn struct {
	net.Conn
	t         testing.TB
	formatter *kmsg.RequestFormatter
	sent      int32
	received  int32
}

func (b *testBroker) dial(t testing.TB) *testConn {
	t.Helper()
	conn, err := net.Dial("tcp", b.addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &testConn{Conn: conn, t: t, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID("tester"))}
}

// send writes a request in the version that it holds.
func (c *testConn) send(req kmsg.Request) {
	c.t.Helper()
	c.sent++
	_, err := c.Write(c.formatter.AppendRequest(nil, req, c.sent))
	require.NoError(c.t, err)
}

// testDeadline is how long a test waits for what should come at once.
const testDeadline = 20 * time.Second

// frame reads the next response, header included.
func (c *testConn) frame() ([]byte, error) {
	if err := c.SetReadDeadline(time.Now().Add(testDeadline)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(c, frame)
	return frame, err
}

// receive reads the response to the oldest request that has none: responses come
// in order.
func (c *testConn) receive(req kmsg.Request) kmsg.Response {
	c.t.Helper()
	frame, err := c.frame()
	require.NoError(c.t, err, "%s v%d", kmsg.NameForKey(req.Key()), req.GetVersion())
	c.received++
	require.EqualValues(c.t, c.received, binary.BigEndian.Uint32(frame), "correlation id")
	resp := req.ResponseKind()
	body := frame[4:]
	if resp.IsFlexible() && resp.Key() != keyAPIVersions {
		require.Zero(c.t, body[0], "tags in the response header")
		body = body[1:]
	}
	require.NoError(c.t, resp.ReadFrom(body), "%s v%d", kmsg.NameForKey(req.Key()), req.GetVersion())
	// Nothing may be left over: a decoder that tolerates it would hide a
	// wrong layout.
	require.Equal(c.t, len(resp.AppendTo(nil)), len(body), "%s v%d", kmsg.NameForKey(req.Key()), req.GetVersion())
	return resp
}

// ask sends a request and reads its response.
func ask[R kmsg.Response](c *testConn, req kmsg.Request) R {
	c.t.Helper()
	c.send(req)
	return c.receive(req).(R)
}

// requireClosed demands that the broker closes the connection without a byte.
func (c *testConn) requireClosed() {
	c.t.Helper()
	frame, err := c.frame()
	require.Empty(c.t, frame)
	var timeout net.Error
	require.False(c.t, errors.As(err, &timeout) && timeout.Timeout(), "the connection is still open")
	require.Error(c.t, err)
}

// batch makes a record batch with n records with values v0, v1, …
func batch(n int, edit ...func(*record.Builder)) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	for _, f := range edit {
		f(b)
	}
	for i := range n {
		b.Add(time.Now().UnixMilli(), nil, fmt.Appendf(nil, "v%d", i), nil)
	}
	return b.Build()
}

// produced names what a produce request holds for one partition.
type produced struct {
	topic     *metadata.Topic
	partition int32
	records   []byte
}

func produceRequest(version, acks int16, parts ...produced) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = version, acks, 10_000
	for _, p := range parts {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != p.topic.ID {
			topic := kmsg.NewProduceRequestTopic()
			topic.Topic, topic.TopicID = p.topic.Name, p.topic.ID
			req.Topics = append(req.Topics, topic)
		}
		part := kmsg.NewProduceRequestTopicPartition()
		part.Partition, part.Records = p.partition, p.records
		topic := &req.Topics[len(req.Topics)-1]
		topic.Partitions = append(topic.Partitions, part)
	}
	return req
}

// produce appends batches one by one and demands success.
func (c *testConn) produce(topic *metadata.Topic, partition int32, batches ...record.Batch) {
	c.t.Helper()
	for _, b := range batches {
		resp := ask[*kmsg.ProduceResponse](c, produceRequest(9, -1, produced{topic, partition, b}))
		require.Zero(c.t, resp.Topics[0].Partitions[0].ErrorCode)
	}
}

// fetched names what a fetch request asks of one partition.
type fetched struct {
	topic     *metadata.Topic
	partition int32
	offset    int64
}

func fetchRequest(version int16, parts ...fetched) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes = version, 1, 10<<20
	for _, p := range parts {
		if n := len(req.Topics); n == 0 || req.Topics[n-1].TopicID != p.topic.ID {
			topic := kmsg.NewFetchRequestTopic()
			topic.Topic, topic.TopicID = p.topic.Name, p.topic.ID
			req.Topics = append(req.Topics, topic)
		}
		part := kmsg.NewFetchRequestTopicPartition()
		part.Partition, part.FetchOffset, part.PartitionMaxBytes = p.partition, p.offset, 1<<20
		part.CurrentLeaderEpoch, part.LastFetchedEpoch = -1, -1
		topic := &req.Topics[len(req.Topics)-1]
		topic.Partitions = append(topic.Partitions, part)
	}
	return req
}

// fetchOne asks for one partition and returns its part of the answer.
func (c *testConn) fetchOne(req *kmsg.FetchRequest) kmsg.FetchResponseTopicPartition {
	c.t.Helper()
	resp := ask[*kmsg.FetchResponse](c, req)
	require.Zero(c.t, resp.ErrorCode)
	require.Len(c.t, resp.Topics, 1)
	require.Len(c.t, resp.Topics[0].Partitions, 1)
	return resp.Topics[0].Partitions[0]
}

// values returns the values of all records in fetched bytes.
func values(t testing.TB, records []byte) (vs []string) {
	t.Helper()
	for len(records) > 0 {
		b, rest, err := record.Next(records)
		require.NoError(t, err)
		require.True(t, b.CheckCRC())
		require.NoError(t, b.Each(1<<20, func(r record.Record) error {
			vs = append(vs, string(r.Value))
			return nil
		}))
		records = rest
	}
	return vs
}

// dated makes a batch with a record for each timestamp.
func dated(timestamps ...int64) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	for _, ts := range timestamps {
		b.Add(ts, nil, []byte("dated"), nil)
	}
	return b.Build()
}
