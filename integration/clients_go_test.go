package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/IBM/sarama"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// --- franz-go

type franzGo struct{ b *broker }

func (f *franzGo) admin() (*kadm.Client, func(), error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.b.Addr))
	if err != nil {
		return nil, nil, err
	}
	return kadm.NewClient(cl), cl.Close, nil
}

func (f *franzGo) Metadata(ctx context.Context, topic string) (int, error) {
	adm, done, err := f.admin()
	if err != nil {
		return 0, err
	}
	defer done()
	topics, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return 0, err
	}
	return len(topics[topic].Partitions), topics[topic].Err
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

func (f *franzGo) Produce(ctx context.Context, topic string, partition int, codec string, idempotent bool, records []wireRecord) error {
	compression := map[string]kgo.CompressionCodec{"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}
	opts := []kgo.Opt{kgo.SeedBrokers(f.b.Addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(compression[codec]), kgo.MaxBufferedRecords(len(records))}
	if !idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	}
	if len(records) == 1 {
		opts = append(opts, kgo.ProducerBatchMaxBytes(10<<20))
	}
	cl, err := kgo.NewClient(opts...)
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
	cl, err := kgo.NewClient(kgo.SeedBrokers(f.b.Addr), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().At(from)}}))
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
	cfg.Producer.MaxMessageBytes = 10 << 20
	cfg.Producer.Flush.MaxMessages = 1000
	cfg.Consumer.Return.Errors = true
	return cfg
}

func (s *saramaClient) Metadata(_ context.Context, topic string) (int, error) {
	cl, err := sarama.NewClient([]string{s.addr}, s.config("none"))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	partitions, err := cl.Partitions(topic)
	return len(partitions), err
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

func (s *saramaClient) Produce(_ context.Context, topic string, partition int, codec string, idempotent bool, records []wireRecord) error {
	cfg := s.config(codec)
	cfg.Net.MaxOpenRequests = 1
	cfg.Producer.Idempotent = idempotent
	p, err := sarama.NewSyncProducer([]string{s.addr}, cfg)
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
	err = p.SendMessages(msgs)
	var failed sarama.ProducerErrors
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %w", err, failed[0].Err)
	}
	return err
}

func (s *saramaClient) Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error) {
	c, err := sarama.NewConsumer([]string{s.addr}, s.config("none"))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	pc, err := c.ConsumePartition(topic, int32(partition), from)
	if errors.Is(err, sarama.ErrOffsetOutOfRange) {
		return nil, errOutOfRange
	}
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

func (k *kafkaGo) Metadata(ctx context.Context, topic string) (int, error) {
	resp, err := k.client().Metadata(ctx, &kafkago.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return 0, err
	}
	return len(resp.Topics[0].Partitions), resp.Topics[0].Error
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

func (k *kafkaGo) Produce(ctx context.Context, topic string, partition int, codec string, _ bool, records []wireRecord) error {
	w := &kafkago.Writer{
		Addr: kafkago.TCP(k.addr), Topic: topic, Balancer: fixedPartition(partition), RequiredAcks: kafkago.RequireAll,
		BatchSize: 1000, BatchBytes: 10 << 20, BatchTimeout: 5 * time.Millisecond,
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: []string{k.addr}, Topic: topic, Partition: partition, MinBytes: 1, MaxBytes: 8 << 20, MaxWait: 500 * time.Millisecond,
		ErrorLogger: kafkago.LoggerFunc(func(f string, args ...any) {
			complaints = append(complaints, fmt.Sprintf(f, args...))
			for _, a := range args {
				if err, ok := a.(error); ok && errors.Is(err, kafkago.OffsetOutOfRange) {
					cancel(errOutOfRange) // the reader itself tries again for ever
				}
			}
		}),
	})
	if err := r.SetOffset(from); err != nil {
		return nil, err
	}
	var out []wireRecord
	for len(out) < n {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return out, errors.Join(context.Cause(ctx), err, r.Close())
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
		// Its own deadline for a fetch at the end may pass on a busy machine, with Apache Kafka as well.
		if !strings.Contains(c, "context canceled") && !strings.Contains(c, "i/o timeout") {
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
