package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	// Metadata is the number of partitions of a topic.
	Metadata(ctx context.Context, topic string) (int, error)
	CreateTopic(ctx context.Context, topic string, partitions int) error
	DeleteTopic(ctx context.Context, topic string) error
	// Produce sends with acks=all to one partition, in order, in one or several
	// batches of the codec. The library's own limit on the size of a record is
	// above the broker's.
	Produce(ctx context.Context, topic string, partition int, codec string, idempotent bool, records []wireRecord) error
	// Consume reads n records of one partition from an offset on; where that is
	// out of range from the start, or errOutOfRange if the library leaves a
	// reset to its user.
	Consume(ctx context.Context, topic string, partition int, from int64, n int) ([]wireRecord, error)
	// OffsetAt is the offset of the first record at or behind a time in ms; -1
	// asks for the end, -2 for the start.
	OffsetAt(ctx context.Context, topic string, partition int, ts int64) (int64, error)
}

// errOutOfRange is the answer of a library without a reset policy.
var errOutOfRange = errors.New("the offset is out of range")

// A client is a library and what it cannot do for reasons of its own.
type client struct {
	name string
	open func(t *testing.T, b *broker) clientLibrary
	// sends maps the records of the script to what the library can send; seen
	// maps what was sent to how the library shows it. nil is everything.
	sends, seen func([]wireRecord) []wireRecord
	// leavesSmall: a batch which its codec would not make smaller, as one of a
	// single record, is sent without.
	leavesSmall bool
	// stamps: records get the time of sending.
	stamps bool
	// notIdempotent: the library has no idempotent producer.
	notIdempotent bool
	// groupsOnly: the library reads in consumer groups only; kcat reads back.
	groupsOnly bool
	// noAdmin: the library cannot create or delete topics; franz-go does.
	noAdmin bool
}

var clients = []client{
	{name: "franz-go", open: func(_ *testing.T, b *broker) clientLibrary { return &franzGo{b: b} }, leavesSmall: true},
	{name: "sarama", open: func(_ *testing.T, b *broker) clientLibrary { return &saramaClient{addr: b.Addr} }},
	{name: "kafka-go", open: func(_ *testing.T, b *broker) clientLibrary { return &kafkaGo{addr: b.Addr} }, seen: emptyIsNull, notIdempotent: true},
	{name: "java", open: openJava},
	{name: "confluent-go", open: openConfluentGo, leavesSmall: true},
	{name: "confluent-python", open: openPython("confluent-kafka"), leavesSmall: true},
	{name: "kafka-python", open: openPython("kafka-python"), sends: neverBothNull, leavesSmall: true},
	{name: "aiokafka", open: openPython("aiokafka"), sends: neverBothNull, leavesSmall: true},
	{name: "kafkajs", open: openNode("kafkajs"), sends: headersByName, groupsOnly: true},
	{name: "platformatic", open: openNode("platformatic"), groupsOnly: true},
	{name: "kcat", open: openKcat, sends: kcatSends, stamps: true, noAdmin: true, leavesSmall: true},
}

var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

// TestClients runs the same script against every client library: what they
// wrote comes back byte for byte, to themselves and to franz-go, and the log
// holds the codec that was asked for, since a client that dislikes our versions
// falls back silently.
func TestClients(t *testing.T) {
	b := startBroker(t)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &clientScript{client: c, b: b, lib: c.open(t, b), reader: &franzGo{b: b}, topic: "clients-" + c.name}
			s.admin, s.consumer = s.lib, s.lib
			if c.noAdmin {
				s.admin = s.reader
			}
			if c.groupsOnly {
				s.consumer = openKcat(t, b)
				s.seen = kcatShows
			}
			s.run(t)
		})
	}
}

// clientScript is the script of checks for one client.
type clientScript struct {
	client
	b      *broker
	lib    clientLibrary
	reader clientLibrary // reads strictly what any client wrote
	topic  string
	// admin and consumer are lib, or stand in for what it cannot do.
	admin, consumer clientLibrary
}

func (s *clientScript) run(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	require.NoError(t, s.admin.CreateTopic(ctx, s.topic, len(codecs)+1))
	partitions, err := s.lib.Metadata(ctx, s.topic)
	require.NoError(t, err)
	require.Equal(t, len(codecs)+1, partitions, "partitions in the metadata")

	for partition, codec := range codecs {
		s.codec(ctx, t, partition, codec)
	}
	s.idempotent(ctx, t, len(codecs))
	s.tooLarge(ctx, t, 0)
	s.outOfRange(ctx, t, 0)

	require.NoError(t, s.admin.DeleteTopic(ctx, s.topic))
	require.NoError(t, s.admin.CreateTopic(ctx, s.topic, 1), "a deleted name is free again")
	end, err := s.lib.OffsetAt(ctx, s.topic, 0, -1)
	require.NoError(t, err)
	require.Equal(t, int64(0), end, "a recreated topic inherits nothing (I15, L21)")
}

// codec sends records of every shape with one codec to an empty partition.
func (s *clientScript) codec(ctx context.Context, t *testing.T, partition int, codec string) {
	sent := applied(s.sends, shapes(time.Now().Add(-time.Hour).UnixMilli()))
	require.NoError(t, s.lib.Produce(ctx, s.topic, partition, codec, false, sent), codec)

	strict, err := s.reader.Consume(ctx, s.topic, partition, 0, len(sent))
	require.NoError(t, err, codec)
	if s.stamps {
		sent = stampedAs(sent, strict)
	}
	requireSame(t, codec+" read by franz-go", sent, strict)
	shown := applied(s.seen, sent)
	got, err := s.consumer.Consume(ctx, s.topic, partition, 0, len(sent))
	require.NoError(t, err, codec)
	requireSame(t, codec, shown, got)

	middle := len(sent) / 2
	got, err = s.consumer.Consume(ctx, s.topic, partition, int64(middle), 10)
	require.NoError(t, err, codec)
	requireSame(t, codec+" from the middle", shown[middle:middle+10], got)

	first := slices.IndexFunc(sent, func(r wireRecord) bool { return r.Timestamp >= sent[middle].Timestamp })
	s.requireOffset(ctx, t, partition, sent[middle].Timestamp, first)
	s.requireOffset(ctx, t, partition, -1, len(sent))
	s.requireOffset(ctx, t, partition, -2, 0)
	counts := s.inLog(t, partition, codecOf)
	if s.leavesSmall && codec != "none" {
		require.Less(t, counts["none"], len(sent)/10, "records left uncompressed")
		counts[codec] += counts["none"]
		delete(counts, "none")
	}
	require.Equal(t, map[string]int{codec: len(sent)}, counts, "codec in the log")
}

// idempotent sends a batch of 10,000 records under a producer id.
func (s *clientScript) idempotent(ctx context.Context, t *testing.T, partition int) {
	sent := make([]wireRecord, 10_000)
	for i := range sent {
		sent[i] = wireRecord{Offset: int64(i), Timestamp: 1_700_000_000_000 + int64(i), Key: []byte{byte(i)}, Value: []byte(fmt.Sprint(i))}
	}
	sent = applied(s.sends, sent)
	require.NoError(t, s.lib.Produce(ctx, s.topic, partition, "none", !s.notIdempotent, sent))
	got, err := s.reader.Consume(ctx, s.topic, partition, 0, len(sent))
	require.NoError(t, err)
	if s.stamps {
		sent = stampedAs(sent, got)
	}
	requireSame(t, "a batch of 10,000", sent, got)
	s.requireOffset(ctx, t, partition, -1, len(sent))
	ids := s.inLog(t, partition, func(b record.Batch) string { return fmt.Sprint("producer id: ", b.ProducerID() >= 0) })
	require.Equal(t, map[string]int{fmt.Sprint("producer id: ", !s.notIdempotent): len(sent)}, ids)
}

var sizeComplaint = regexp.MustCompile(`(?i)too[ _]?large|larger than|max\.message\.bytes`)

// tooLarge sends a record above max.message.bytes.
func (s *clientScript) tooLarge(ctx context.Context, t *testing.T, partition int) {
	end, err := s.lib.OffsetAt(ctx, s.topic, partition, -1)
	require.NoError(t, err)
	err = s.lib.Produce(ctx, s.topic, partition, "none", false, []wireRecord{{Timestamp: time.Now().UnixMilli(), Key: []byte("k"), Value: bytes.Repeat([]byte("y"), 3<<20)}})
	require.Error(t, err, "a record of 3 MiB")
	require.Regexp(t, sizeComplaint, err.Error())
	s.requireOffset(ctx, t, partition, -1, int(end))
}

// outOfRange reads from an offset that does not exist.
func (s *clientScript) outOfRange(ctx context.Context, t *testing.T, partition int) {
	first, err := s.reader.Consume(ctx, s.topic, partition, 0, 1)
	require.NoError(t, err)
	got, err := s.consumer.Consume(ctx, s.topic, partition, 5_000_000, 1)
	if errors.Is(err, errOutOfRange) {
		return
	}
	require.NoError(t, err)
	requireSame(t, "reset to the start", applied(s.seen, first), got)
}

func (s *clientScript) requireOffset(ctx context.Context, t *testing.T, partition int, ts int64, want int) {
	t.Helper()
	got, err := s.lib.OffsetAt(ctx, s.topic, partition, ts)
	require.NoError(t, err)
	require.Equal(t, int64(want), got, "partition %d: offset at %d", partition, ts)
}

func (s *clientScript) inLog(t *testing.T, partition int, of func(record.Batch) string) map[string]int {
	t.Helper()
	return countsInLog(t, s.b.Data, s.topic, partition, of)
}

// countsInLog counts the records in the segments of a partition by what of
// tells of their batch.
func countsInLog(t *testing.T, data, topic string, partition int, of func(record.Batch) string) map[string]int {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(data, fmt.Sprintf("%s-%d", topic, partition), "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, segments, "segments of %s-%d below %s", topic, partition, data)
	counts := map[string]int{}
	for _, name := range segments {
		rest, err := os.ReadFile(name)
		require.NoError(t, err)
		for len(rest) > 0 {
			var batch record.Batch
			batch, rest, err = record.Next(rest)
			require.NoError(t, err, name)
			counts[of(batch)] += int(batch.Count())
		}
	}
	return counts
}

func codecOf(b record.Batch) string { return codecs[b.Attributes()&7] }

// shapes is 10,000 records of every shape: keys, null keys, empty and null
// values, headers with repeated and empty names, binary, and a long one.
func shapes(base int64) []wireRecord {
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

func applied(f func([]wireRecord) []wireRecord, records []wireRecord) []wireRecord {
	if f == nil {
		return records
	}
	return f(slices.Clone(records))
}

// stampedAs takes the timestamps of what was read.
func stampedAs(records, read []wireRecord) []wireRecord {
	out := slices.Clone(records)
	for i := range min(len(out), len(read)) {
		out[i].Timestamp = read[i].Timestamp
	}
	return out
}

// emptyIsNull makes empty values null, for a library that cannot tell one from
// the other when it reads.
func emptyIsNull(records []wireRecord) []wireRecord {
	for i := range records {
		if len(records[i].Value) == 0 {
			records[i].Value = nil
		}
	}
	return records
}

// neverBothNull gives a key to records without one and without a value, for a
// library that refuses those.
func neverBothNull(records []wireRecord) []wireRecord {
	for i := range records {
		if records[i].Key == nil && records[i].Value == nil {
			records[i].Key = []byte("key")
		}
	}
	return records
}

// headersByName brings repeated headers together, for a library whose headers
// are a map of name to values.
func headersByName(records []wireRecord) []wireRecord {
	for i := range records {
		headers := slices.Clone(records[i].Headers)
		slices.SortStableFunc(headers, func(a, b wireHeader) int { return strings.Compare(a.Key, b.Key) })
		records[i].Headers = headers
	}
	return records
}
