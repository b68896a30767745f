package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/log/record"
)

// wireRecord is a record as every client must see it.
type wireRecord struct {
	Offset     int64
	Timestamp  int64 // ms
	Key, Value []byte
	Headers    []wireHeader
}

type wireHeader struct {
	Key   string
	Value []byte
}

// clientLibrary is what the checks ask of a client library.
type clientLibrary interface {
	CreateTopic(ctx context.Context, topic string, partitions int) error
	DeleteTopic(ctx context.Context, topic string) error
	// Produce sends with acks=all to one partition, in order, in one or several
	// batches of the codec.
	Produce(ctx context.Context, topic string, partition int, codec string, records []wireRecord) error
	// Consume reads n records of one partition from an offset on.
	Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error)
	// OffsetAt is the offset of the first record at or behind a time in ms; -1
	// asks for the end, -2 for the start.
	OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error)
}

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// TestClients runs the same script against every Go client library: what they
// wrote comes back byte for byte, and the log holds the codec that was asked
// for, since a client that dislikes our versions falls back silently.
func TestClients(t *testing.T) {
	b := startBroker(t)
	libraries := map[string]clientLibrary{
		"franz-go": &franzGo{b: b},
		"sarama":   &saramaClient{addr: b.Addr},
		"kafka-go": &kafkaGo{addr: b.Addr},
	}
	for name, lib := range libraries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clientScript(t, b, name, lib)
		})
	}
}

func clientScript(t *testing.T, b *broker, name string, lib clientLibrary) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	topic := "clients-" + name
	require.NoError(t, lib.CreateTopic(ctx, topic, len(codecs)))

	base := time.Now().Add(-time.Hour).UnixMilli()
	for partition, codec := range codecs {
		sent := script(base)
		require.NoError(t, lib.Produce(ctx, topic, partition, codec, sent), codec)

		strict, err := (&franzGo{b: b}).Consume(ctx, topic, partition, 0, len(sent))
		require.NoError(t, err, codec)
		requireSame(t, codec+" read by franz-go", sent, strict)
		if name == "kafka-go" {
			sent = mergeEmpty(sent)
		}
		got, err := lib.Consume(ctx, topic, partition, 0, len(sent))
		require.NoError(t, err, codec)
		requireSame(t, codec, sent, got)

		middle := int64(len(sent) / 2)
		got, err = lib.Consume(ctx, topic, partition, middle, 10)
		require.NoError(t, err, codec)
		requireSame(t, codec+" from the middle", sent[middle:middle+10], got)

		at, err := lib.OffsetAt(ctx, topic, partition, sent[middle].Timestamp)
		require.NoError(t, err, codec)
		require.Equal(t, middle, at, "%s: offset by time", codec)
		end, err := lib.OffsetAt(ctx, topic, partition, -1)
		require.NoError(t, err, codec)
		require.Equal(t, int64(len(sent)), end, "%s: end", codec)
		start, err := lib.OffsetAt(ctx, topic, partition, -2)
		require.NoError(t, err, codec)
		require.Equal(t, int64(0), start, "%s: start", codec)

		require.Equal(t, map[string]int{codec: len(sent)}, codecsInLog(t, b.Data, topic, partition), "codec in the log")
	}

	require.NoError(t, lib.DeleteTopic(ctx, topic))
	require.NoError(t, lib.CreateTopic(ctx, topic, 1), "a deleted name is free again")
	end, err := lib.OffsetAt(ctx, topic, 0, -1)
	require.NoError(t, err)
	require.Equal(t, int64(0), end, "a recreated topic inherits nothing (I15, L21)")
}

// script is 10,000 records of every shape: keys, null keys, empty and null
// values, headers with repeated and empty names, binary, and a long one.
func script(base int64) []wireRecord {
	records := make([]wireRecord, 10_000)
	for i := range records {
		r := wireRecord{Offset: int64(i), Timestamp: base + int64(i)*7}
		if i%5 != 0 {
			r.Key = []byte(fmt.Sprintf("key-%d", i%97))
		}
		switch i % 7 {
		case 0: // null value: a tombstone
		case 1:
			r.Value = []byte{}
		case 2:
			r.Value = bytes.Repeat([]byte{0, 255, byte(i)}, 50)
		default:
			r.Value = []byte(fmt.Sprintf("value %d of a line that compresses rather well, rather well", i))
		}
		if i%3 == 0 {
			r.Headers = []wireHeader{{"a", []byte("1")}, {"trace", []byte{0, 1, 2}}, {"a", []byte("3")}}
		}
		records[i] = r
	}
	records[4321].Value = bytes.Repeat([]byte("long"), 100_000)
	return records
}

func requireSame(t *testing.T, what string, want, got []wireRecord) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i := range want {
		w, g := want[i], got[i]
		same := w.Offset == g.Offset && w.Timestamp == g.Timestamp && bytes.Equal(w.Key, g.Key) && bytes.Equal(w.Value, g.Value) &&
			(w.Key == nil) == (g.Key == nil) && (w.Value == nil) == (g.Value == nil) && len(w.Headers) == len(g.Headers)
		for j := 0; same && j < len(w.Headers); j++ {
			same = w.Headers[j].Key == g.Headers[j].Key && bytes.Equal(w.Headers[j].Value, g.Headers[j].Value)
		}
		if !same {
			t.Fatalf("%s: record %d differs:\nwant %s\ngot  %s", what, i, show(w), show(g))
		}
	}
}

func show(r wireRecord) string {
	s := fmt.Sprintf("offset %d time %d key %#v value %#v headers %v", r.Offset, r.Timestamp, string(r.Key), string(r.Value), r.Headers)
	return s[:min(len(s), 300)]
}

// mergeEmpty makes empty values null, for a library that cannot tell one from
// the other when it reads.
func mergeEmpty(records []wireRecord) []wireRecord {
	out := slices.Clone(records)
	for i := range out {
		if len(out[i].Value) == 0 {
			out[i].Value = nil
		}
	}
	return out
}

// codecsInLog counts the records of each codec in the segments of a partition.
func codecsInLog(t *testing.T, data, topic string, partition int) map[string]int {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(data, fmt.Sprintf("%s-%d", topic, partition), "*.log"))
	require.NoError(t, err)
	if len(segments) == 0 {
		segments, err = filepath.Glob(filepath.Join(data, "*", fmt.Sprintf("%s-%d", topic, partition), "*.log"))
		require.NoError(t, err)
	}
	require.NotEmpty(t, segments, "segments of %s-%d below %s", topic, partition, data)
	counts := map[string]int{}
	for _, name := range segments {
		rest, err := os.ReadFile(name)
		require.NoError(t, err)
		for len(rest) > 0 {
			var batch record.Batch
			batch, rest, err = record.Next(rest)
			require.NoError(t, err, name)
			counts[codecs[batch.Attributes()&7]] += int(batch.Count())
		}
	}
	return counts
}

// --- franz-go

type franzGo struct{ b *broker }

func (f *franzGo) admin() (*kadm.Client, func(), error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.b.Addr))
	if err != nil {
		return nil, nil, err
	}
	return kadm.NewClient(cl), cl.Close, nil
}

func (f *franzGo) CreateTopic(ctx context.Context, topic string, partitions int) error {
	adm, done, err := f.admin()
	if err != nil {
		return err
	}
	defer done()
	resp, err := adm.CreateTopic(ctx, int32(partitions), -1, nil, topic)
	if err != nil {
		return err
	}
	return resp.Err
}

func (f *franzGo) DeleteTopic(ctx context.Context, topic string) error {
	adm, done, err := f.admin()
	if err != nil {
		return err
	}
	defer done()
	resp, err := adm.DeleteTopics(ctx, topic)
	if err != nil {
		return err
	}
	return resp.Error()
}

func (f *franzGo) Produce(ctx context.Context, topic string, partition int, codec string, records []wireRecord) error {
	compression := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.b.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(compression[codec]), kgo.MaxBufferedRecords(len(records)))
	if err != nil {
		return err
	}
	defer cl.Close()
	batch := make([]*kgo.Record, len(records))
	for i, r := range records {
		kr := &kgo.Record{Topic: topic, Partition: int32(partition), Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp)}
		for _, h := range r.Headers {
			kr.Headers = append(kr.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		batch[i] = kr
	}
	return cl.ProduceSync(ctx, batch...).FirstErr()
}

func (f *franzGo) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.b.Addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().At(from)}}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var out []wireRecord
	for len(out) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return out, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			w := wireRecord{Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
			for _, h := range r.Headers {
				w.Headers = append(w.Headers, wireHeader{h.Key, h.Value})
			}
			out = append(out, w)
		})
	}
	return out[:n], nil
}

func (f *franzGo) OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error) {
	adm, done, err := f.admin()
	if err != nil {
		return 0, err
	}
	defer done()
	var listed kadm.ListedOffsets
	switch ts {
	case -1:
		listed, err = adm.ListEndOffsets(ctx, topic)
	case -2:
		listed, err = adm.ListStartOffsets(ctx, topic)
	default:
		listed, err = adm.ListOffsetsAfterMilli(ctx, ts, topic)
	}
	if err != nil {
		return 0, err
	}
	o, ok := listed.Lookup(topic, int32(partition))
	if !ok {
		return 0, errors.New("partition not in the answer")
	}
	return o.Offset, o.Err
}

// --- sarama

type saramaClient struct{ addr string }

func (s *saramaClient) config(codec string) *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V3_6_0_0
	cfg.Producer.Return.Successes = true
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	cfg.Producer.Compression = map[string]sarama.CompressionCodec{"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD}[codec]
	cfg.Producer.Flush.Messages = 500
	cfg.Producer.Flush.Frequency = 5 * time.Millisecond
	cfg.Consumer.Return.Errors = true
	return cfg
}

func (s *saramaClient) CreateTopic(_ context.Context, topic string, partitions int) error {
	adm, err := sarama.NewClusterAdmin([]string{s.addr}, s.config("none"))
	if err != nil {
		return err
	}
	defer adm.Close()
	return adm.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}, false)
}

func (s *saramaClient) DeleteTopic(_ context.Context, topic string) error {
	adm, err := sarama.NewClusterAdmin([]string{s.addr}, s.config("none"))
	if err != nil {
		return err
	}
	defer adm.Close()
	return adm.DeleteTopic(topic)
}

func (s *saramaClient) Produce(_ context.Context, topic string, partition int, codec string, records []wireRecord) error {
	p, err := sarama.NewSyncProducer([]string{s.addr}, s.config(codec))
	if err != nil {
		return err
	}
	defer p.Close()
	msgs := make([]*sarama.ProducerMessage, len(records))
	for i, r := range records {
		m := &sarama.ProducerMessage{Topic: topic, Partition: int32(partition), Timestamp: time.UnixMilli(r.Timestamp)}
		if r.Key != nil {
			m.Key = sarama.ByteEncoder(r.Key)
		}
		if r.Value != nil {
			m.Value = sarama.ByteEncoder(r.Value)
		}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, sarama.RecordHeader{Key: []byte(h.Key), Value: h.Value})
		}
		msgs[i] = m
	}
	return p.SendMessages(msgs)
}

func (s *saramaClient) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	c, err := sarama.NewConsumer([]string{s.addr}, s.config("none"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	pc, err := c.ConsumePartition(topic, int32(partition), from)
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	var out []wireRecord
	for len(out) < n {
		select {
		case <-ctx.Done():
			return out, ctx.Err()
		case err := <-pc.Errors():
			return out, err
		case m := <-pc.Messages():
			w := wireRecord{Offset: m.Offset, Timestamp: m.Timestamp.UnixMilli(), Key: m.Key, Value: m.Value}
			for _, h := range m.Headers {
				w.Headers = append(w.Headers, wireHeader{string(h.Key), h.Value})
			}
			out = append(out, w)
		}
	}
	return out, nil
}

func (s *saramaClient) OffsetAt(_ context.Context, topic string, partition int, ts int64) (int64, error) {
	cl, err := sarama.NewClient([]string{s.addr}, s.config("none"))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	return cl.GetOffset(topic, int32(partition), ts)
}

// --- kafka-go

type kafkaGo struct{ addr string }

func (k *kafkaGo) client() *kafkago.Client {
	return &kafkago.Client{Addr: kafkago.TCP(k.addr), Timeout: patience}
}

func (k *kafkaGo) CreateTopic(ctx context.Context, topic string, partitions int) error {
	resp, err := k.client().CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}}})
	if err != nil {
		return err
	}
	return resp.Errors[topic]
}

func (k *kafkaGo) DeleteTopic(ctx context.Context, topic string) error {
	resp, err := k.client().DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return resp.Errors[topic]
}

// fixedPartition sends everything to one partition.
type fixedPartition int

func (f fixedPartition) Balance(kafkago.Message, ...int) int { return int(f) }

func (k *kafkaGo) Produce(ctx context.Context, topic string, partition int, codec string, records []wireRecord) error {
	w := &kafkago.Writer{
		Addr: kafkago.TCP(k.addr), Topic: topic, Balancer: fixedPartition(partition), RequiredAcks: kafkago.RequireAll,
		BatchSize: 1000, BatchTimeout: 5 * time.Millisecond,
		Compression: map[string]kafkago.Compression{"gzip": kafkago.Gzip, "snappy": kafkago.Snappy, "lz4": kafkago.Lz4, "zstd": kafkago.Zstd}[codec],
	}
	defer w.Close()
	msgs := make([]kafkago.Message, len(records))
	for i, r := range records {
		m := kafkago.Message{Key: r.Key, Value: r.Value, Time: time.UnixMilli(r.Timestamp)}
		for _, h := range r.Headers {
			m.Headers = append(m.Headers, kafkago.Header{Key: h.Key, Value: h.Value})
		}
		msgs[i] = m
	}
	return w.WriteMessages(ctx, msgs...)
}

func (k *kafkaGo) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	var complaints []string
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: []string{k.addr}, Topic: topic, Partition: partition, MinBytes: 1, MaxBytes: 8 << 20, MaxWait: 500 * time.Millisecond,
		ErrorLogger: kafkago.LoggerFunc(func(f string, args ...any) { complaints = append(complaints, fmt.Sprintf(f, args...)) }),
	})
	if err := r.SetOffset(from); err != nil {
		return nil, err
	}
	var out []wireRecord
	for len(out) < n {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return out, err
		}
		w := wireRecord{Offset: m.Offset, Timestamp: m.Time.UnixMilli(), Key: m.Key, Value: m.Value}
		for _, h := range m.Headers {
			w.Headers = append(w.Headers, wireHeader{h.Key, h.Value})
		}
		out = append(out, w)
	}
	if err := r.Close(); err != nil { // before complaints is read: it ends the reader's goroutines
		return out, err
	}
	for _, c := range complaints {
		if !strings.Contains(c, "context canceled") {
			return out, fmt.Errorf("the reader complained: %s", c)
		}
	}
	return out, nil
}

func (k *kafkaGo) OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error) {
	req := kafkago.TimeOffsetOf(partition, time.UnixMilli(ts))
	switch ts {
	case -1:
		req = kafkago.LastOffsetOf(partition)
	case -2:
		req = kafkago.FirstOffsetOf(partition)
	}
	resp, err := k.client().ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{topic: {req}}})
	if err != nil {
		return 0, err
	}
	for _, p := range resp.Topics[topic] {
		if p.Partition != partition {
			continue
		}
		switch ts {
		case -1:
			return p.LastOffset, p.Error
		case -2:
			return p.FirstOffset, p.Error
		}
		for offset := range p.Offsets {
			return offset, p.Error
		}
		return -1, p.Error
	}
	return 0, errors.New("partition not in the answer")
}
