package record

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// corpus is what the clients write and read in these tests: nulls, empties,
// headers, unordered timestamps, enough bytes for several compressed blocks.
func corpus() []plain {
	out := []plain{
		{now, 0, []byte("k"), []byte("v"), nil},
		{now + 10, 1, nil, []byte("null key"), nil},
		{now + 3, 2, []byte("null value"), nil, []RecordHeader{{Key: []byte("a"), Value: []byte("b")}, {Key: []byte("c"), Value: []byte{}}}},
		{now - 7, 3, []byte{}, []byte{}, nil},
	}
	for i := range 40 {
		out = append(out, plain{now + int64(i), int64(4 + i), fmt.Appendf(nil, "key %d", i), bytes.Repeat([]byte{byte(i), 'x', 'y'}, 1500), nil})
	}
	return out
}

func build(codec Codec, records []plain) Batch {
	b := NewBuilder(codec)
	for _, r := range records {
		b.Add(r.timestamp, r.key, r.value, r.headers)
	}
	return b.Build()
}

var kgoCodecs = map[Codec]kgo.CompressionCodec{
	CodecNone: kgo.NoCompression(), CodecGzip: kgo.GzipCompression(), CodecSnappy: kgo.SnappyCompression(),
	CodecLZ4: kgo.Lz4Compression(), CodecZstd: kgo.ZstdCompression(),
}

// What we build, franz-go's consumer reads.
func TestFranzReadsOurs(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := corpus()
			b := build(codec, want)
			part := kmsg.NewFetchResponseTopicPartition()
			part.RecordBatches = b
			part.HighWatermark, part.LastStableOffset = 1000, 1000
			fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Topic: "t"}, &part, kgo.DefaultDecompressor(), nil)
			require.NoError(t, fetched.Err)
			require.EqualValues(t, len(want), next)
			var got []plain
			for _, r := range fetched.Records {
				p := plain{r.Timestamp.UnixMilli(), r.Offset, r.Key, r.Value, nil}
				for _, h := range r.Headers {
					p.headers = append(p.headers, RecordHeader{Key: []byte(h.Key), Value: h.Value})
				}
				got = append(got, p)
			}
			require.Equal(t, want, got)
		})
	}
}

// The header of what we build is what kmsg decodes and encodes.
func TestKmsgAgreesOnHeader(t *testing.T) {
	for _, codec := range allCodecs {
		b := build(codec, corpus())
		b.SetBaseOffset(1 << 40)
		b.SetLeaderEpoch(11)
		var k kmsg.RecordBatch
		require.NoError(t, k.ReadFrom(b))
		require.Equal(t, b.BaseOffset(), k.FirstOffset)
		require.EqualValues(t, len(b)-12, k.Length)
		require.Equal(t, b.LeaderEpoch(), k.PartitionLeaderEpoch)
		require.Equal(t, b.Magic(), k.Magic)
		require.Equal(t, b.CRC(), uint32(k.CRC))
		require.Equal(t, b.Attributes(), k.Attributes)
		require.Equal(t, b.LastOffsetDelta(), k.LastOffsetDelta)
		require.Equal(t, b.BaseTimestamp(), k.FirstTimestamp)
		require.Equal(t, b.MaxTimestamp(), k.MaxTimestamp)
		require.Equal(t, b.ProducerID(), k.ProducerID)
		require.Equal(t, b.ProducerEpoch(), k.ProducerEpoch)
		require.Equal(t, b.BaseSequence(), k.FirstSequence)
		require.Equal(t, b.Count(), k.NumRecords)
		require.Equal(t, b.Payload(), k.Records)
		require.Equal(t, []byte(b), k.AppendTo(nil))
	}
}

// kmsg's encoding of markers is ours.
func TestKmsgAgreesOnMarkers(t *testing.T) {
	b := Marker{Commit: true, CoordinatorEpoch: 12}.Batch(5, 1, now)
	var record kmsg.Record
	require.NoError(t, record.ReadFrom(b.Payload()))
	require.EqualValues(t, 1, binary.BigEndian.Uint16(record.Key[2:]))
	marker := kmsg.NewEndTxnMarker()
	marker.CoordinatorEpoch = 12
	require.Equal(t, marker.AppendTo(nil), record.Value)
	key := kmsg.NewControlRecordKey()
	key.Type = kmsg.ControlRecordKeyTypeCommit
	require.Equal(t, key.AppendTo(nil), record.Key)
}

// What a real franz-go producer puts on the wire passes Validate untouched and
// decodes to what was produced.
func TestWeReadFranz(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := corpus()
			raw := produceWithFranz(t, codec, want)
			first, rest, err := Next(raw)
			require.NoError(t, err)
			require.Empty(t, rest)

			require.Equal(t, codec, first.Codec())
			rules := accepting()
			rules.CheckRecords = true
			got, err := Validate(raw, rules)
			require.NoError(t, err)
			require.Equal(t, &raw[0], &got[0], "same bytes, not a copy")
			require.Equal(t, want, collect(t, got))
			require.Equal(t, now+39, got.MaxTimestamp())
			require.EqualValues(t, 8899, got.ProducerID())
			require.EqualValues(t, 0, got.BaseSequence())
		})
	}
}

// produceWithFranz lets a kgo client produce the records as one batch to a
// broker made of the answers it needs, and returns the batch.
//
// A slow machine lets the client cut the records into two batches; then it gets
// another try, for the test compares one batch.
func produceWithFranz(t *testing.T, codec Codec, records []plain) []byte {
	for range 5 {
		if batch := tryWithFranz(t, codec, records); batch != nil {
			return batch
		}
	}
	t.Fatal("the client never sent all records in one batch")
	return nil
}

func tryWithFranz(t *testing.T, codec Codec, records []plain) []byte {
	produced := make(chan []byte, len(records)) // never full: a cut costs a try, not the answer
	client, err := kgo.NewClient(
		kgo.SeedBrokers("broker:9092"),
		kgo.Dialer(func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go answerProducer(ours, produced)
			return theirs, nil
		}),
		kgo.ProducerBatchCompression(kgoCodecs[codec]),
		kgo.ProducerLinger(time.Minute), // Flush sends
		kgo.DefaultProduceTopic("t"),
	)
	require.NoError(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, p := range records {
		r := &kgo.Record{Key: p.key, Value: p.value, Timestamp: time.UnixMilli(p.timestamp)}
		for _, h := range p.headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
		}
		client.Produce(ctx, r, nil)
	}
	require.NoError(t, client.Flush(ctx))
	if batch := <-produced; int(Batch(batch).Count()) == len(records) {
		return batch
	}
	return nil
}

func answerProducer(conn net.Conn, produced chan<- []byte) {
	defer conn.Close()
	for {
		var size [4]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		r := kbin.Reader{Src: body}
		key, version, correlation := r.Int16(), r.Int16(), r.Int32()
		r.NullableString()
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.IsFlexible() {
			kmsg.SkipTags(&r)
		}
		if err := req.ReadFrom(r.Src); err != nil {
			return
		}
		resp := req.ResponseKind()
		resp.SetVersion(version)
		switch req := req.(type) {
		case *kmsg.ApiVersionsRequest:
			resp := resp.(*kmsg.ApiVersionsResponse)
			for key, version := range map[int16]int16{0: 9, 3: 9, 18: 3, 22: 4} {
				k := kmsg.NewApiVersionsResponseApiKey()
				k.ApiKey, k.MaxVersion = key, version
				resp.ApiKeys = append(resp.ApiKeys, k)
			}
		case *kmsg.MetadataRequest:
			resp := resp.(*kmsg.MetadataResponse)
			b := kmsg.NewMetadataResponseBroker()
			b.NodeID, b.Host, b.Port = 1, "broker", 9092
			resp.Brokers, resp.ControllerID = append(resp.Brokers, b), 1
			topic, part := kmsg.NewMetadataResponseTopic(), kmsg.NewMetadataResponseTopicPartition()
			topic.Topic = kmsg.StringPtr("t")
			part.Leader, part.Replicas, part.ISR = 1, []int32{1}, []int32{1}
			topic.Partitions = append(topic.Partitions, part)
			resp.Topics = append(resp.Topics, topic)
		case *kmsg.InitProducerIDRequest:
			resp.(*kmsg.InitProducerIDResponse).ProducerID = 8899
		case *kmsg.ProduceRequest:
			topic, part := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
			topic.Topic = req.Topics[0].Topic
			topic.Partitions = append(topic.Partitions, part)
			resp := resp.(*kmsg.ProduceResponse)
			resp.Topics = append(resp.Topics, topic)
			produced <- req.Topics[0].Partitions[0].Records
		}
		out := kbin.AppendInt32(make([]byte, 4), correlation)
		if resp.IsFlexible() && key != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// kafka-go has an encoder and decoder of its own, with snappy in xerial framing.
func TestKafkaGoBothWays(t *testing.T) {
	for _, codec := range allCodecs {
		t.Run(codec.String(), func(t *testing.T) {
			want := corpus()
			ours := build(codec, want)
			framed := binary.BigEndian.AppendUint32(nil, uint32(len(ours)))
			framed = append(framed, ours...)
			var set protocol.RecordSet
			_, err := set.ReadFrom(bytes.NewReader(framed))
			require.NoError(t, err)
			var got []plain
			for {
				r, err := set.Records.ReadRecord()
				if err == io.EOF {
					break
				}
				require.NoError(t, err)
				key, err := protocol.ReadAll(r.Key)
				require.NoError(t, err)
				value, err := protocol.ReadAll(r.Value)
				require.NoError(t, err)
				p := plain{r.Time.UnixMilli(), r.Offset, key, value, nil}
				for _, h := range r.Headers {
					p.headers = append(p.headers, RecordHeader{Key: []byte(h.Key), Value: h.Value})
				}
				got = append(got, p)
			}
			require.Equal(t, want, got)

			var records []protocol.Record
			for _, p := range want {
				r := protocol.Record{Offset: p.offset, Time: time.UnixMilli(p.timestamp), Key: protocol.NewBytes(p.key), Value: protocol.NewBytes(p.value)}
				for _, h := range p.headers {
					r.Headers = append(r.Headers, kafkago.Header{Key: string(h.Key), Value: h.Value})
				}
				records = append(records, r)
			}
			theirs := protocol.RecordSet{Version: 2, Attributes: protocol.Attributes(codec), Records: protocol.NewRecordReader(records...)}
			var buf bytes.Buffer
			_, err = theirs.WriteTo(&buf)
			require.NoError(t, err)
			rules := accepting()
			rules.CheckRecords = true
			b, err := Validate(buf.Bytes()[4:], rules)
			require.NoError(t, err)
			require.Equal(t, codec, b.Codec())
			require.Equal(t, want, collect(t, b))
		})
	}
}

// Snappy comes in two shapes and both must be read: librdkafka, sarama and
// others write a bare block, Java and kafka-go the framing of snappy-java,
// which may also be several streams put together.
func TestSnappyShapes(t *testing.T) {
	want := corpus()
	raw := build(CodecNone, want).Payload()
	framed := appendCompressed(nil, CodecSnappy, 0, raw)
	require.Equal(t, xerialMagic+"\x00\x00\x00\x01\x00\x00\x00\x01", string(framed[:16]), "we write what Java writes")
	half := len(raw) / 2
	for name, payload := range map[string][]byte{
		"bare":         snappyBare(raw),
		"framed":       framed,
		"concatenated": appendCompressed(appendCompressed(nil, CodecSnappy, 0, raw[:half]), CodecSnappy, 0, raw[half:]),
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, want, collect(t, assemble(CodecSnappy, int32(len(want)), payload)))
		})
	}
	for name, payload := range map[string][]byte{
		"header cut short": framed[:12],
		"size cut short":   framed[:18],
		"block cut short":  framed[:40],
		"size too large":   append(append([]byte{}, framed[:16]...), 0x7f, 0xff, 0xff, 0xff, 1),
		"bare lies":        {0xff, 0xff, 0xff, 0x7f, 0}, // announces 256 MiB in 5 bytes
	} {
		t.Run(name, func(t *testing.T) {
			err := assemble(CodecSnappy, 44, payload).Each(0, func(Record) error { return nil })
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

func snappyBare(b []byte) []byte { return snappy.Encode(nil, b) }

// Java's lz4 reader refuses frames with dependent blocks, and sizes its buffer
// by the block size that the frame announces.
func TestLZ4FrameSuitsJava(t *testing.T) {
	for _, level := range []int{0, 1, 9, 17} {
		payload := appendCompressed(nil, CodecLZ4, level, make([]byte, 200_000))
		require.Equal(t, []byte{0x04, 0x22, 0x4d, 0x18}, payload[:4])
		require.EqualValues(t, 1, payload[4]>>6, "version")
		require.NotZero(t, payload[4]&0x20, "independent blocks")
		require.Zero(t, payload[4]&0x03, "no dictionary, reserved bit clear")
		require.EqualValues(t, 4, payload[5]>>4, "64 KiB blocks")
	}
}
