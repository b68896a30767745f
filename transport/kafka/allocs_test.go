package kafka

import (
	"encoding/binary"
	"io"
	"math"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// rawClient sends prepared bytes and reads answers without allocating, so that what
// is counted is the broker's.
type rawClient struct {
	t    testing.TB
	conn net.Conn
	buf  []byte
}

func (b *testBroker) rawClient(t testing.TB) *rawClient {
	conn, err := net.Dial("tcp", b.addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &rawClient{t: t, conn: conn, buf: make([]byte, 8<<20)}
}

// exchange sends one request and reads one answer.
func (c *rawClient) exchange(request []byte) []byte {
	if _, err := c.conn.Write(request); err != nil {
		c.t.Fatal(err)
	}
	return c.read()
}

func (c *rawClient) read() []byte {
	if _, err := io.ReadFull(c.conn, c.buf[:4]); err != nil {
		c.t.Fatal(err)
	}
	size := binary.BigEndian.Uint32(c.buf)
	if _, err := io.ReadFull(c.conn, c.buf[:size]); err != nil {
		c.t.Fatal(err)
	}
	return c.buf[:size]
}

func encodeRequest(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("tester")).AppendRequest(nil, req, 7)
}

// valueBatch is a batch with one value of size bytes.
func valueBatch(size int) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	b.Add(1_900_000_000_000, nil, make([]byte, size), nil)
	return b.Build()
}

// measure runs f n times and returns allocations and allocated bytes for one run,
// over the whole process: the least of a few rounds, because what else the process
// does meanwhile counts too, and is more the slower the machine is.
func measure(n int, f func()) (allocations, bytes float64) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 10 {
		f() // pools and buffers grow
	}
	allocations, bytes = math.Inf(1), math.Inf(1)
	for range 4 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range n / 2 {
			f()
		}
		runtime.ReadMemStats(&after)
		allocations = min(allocations, float64(after.Mallocs-before.Mallocs)/float64(n/2))
		bytes = min(bytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(n/2))
	}
	return allocations, bytes
}

// guardTopic is a topic with data in it for the guards.
func guardTopic(t testing.TB, b *testBroker, batches, size int) *metadata.Topic {
	topic := b.topic(t, 1, "message.timestamp.after.max.ms", "9223372036854775807")
	c := b.rawClient(t)
	for range batches {
		c.exchange(encodeRequest(produceRequest(9, -1, produced{topic, 0, valueBatch(size)})))
	}
	return topic
}

// Guards of the figures to reach: allocations for one Produce of one partition, from
// the socket through the log to the answer. Those of the records' own size do not
// depend on it: record bytes are never copied into fresh memory.
func TestProduceAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations differ under the race detector")
	}
	b := ownBroker(t, brokerEdit{fs: vfs.OS(), dir: t.TempDir()})
	for _, test := range []struct {
		version, acks int16
		size          int
	}{{9, 1, 100}, {9, -1, 100}, {13, -1, 100}, {9, -1, 900_000}} {
		topic := b.topic(t, 1, "millrace.flush.ack", "false", "message.timestamp.after.max.ms", "9223372036854775807")
		c := b.rawClient(t)
		request := encodeRequest(produceRequest(test.version, test.acks, produced{topic, 0, valueBatch(test.size)}))
		allocations, bytes := measure(100, func() { c.exchange(request) })
		t.Logf("produce v%d acks=%d of %d bytes: %.1f allocations, %.0f bytes", test.version, test.acks, test.size, allocations, bytes)
		require.LessOrEqual(t, allocations, 5.0)
		require.Less(t, bytes, float64(16<<10))
	}
}

// The same for Fetch: of a partition with records, of a session with nothing new to
// say, and of one that is woken from its wait.
func TestFetchAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations differ under the race detector")
	}
	b := theBroker(t)
	small, large := guardTopic(t, b, 1, 100), guardTopic(t, b, 1, 900_000)
	for _, test := range []struct {
		name        string
		version     int16
		topic       *metadata.Topic
		allocations float64
	}{
		{"small", 11, small, 5},
		{"by id", 13, small, 5},
		{"large", 13, large, 5},
	} {
		c := b.rawClient(t)
		req := fetchRequest(test.version, fetched{test.topic, 0, 0})
		req.SessionEpoch = -1
		request := encodeRequest(req)
		allocations, bytes := measure(200, func() { c.exchange(request) })
		t.Logf("fetch v%d %s: %.1f allocations, %.0f bytes", test.version, test.name, allocations, bytes)
		require.LessOrEqual(t, allocations, test.allocations)
		require.Less(t, bytes, float64(8<<10), "record bytes were copied into fresh memory")
	}

	// A consumer at the end of the log: parked, woken by a produce.
	c, p := b.rawClient(t), b.rawClient(t)
	topic := guardTopic(t, b, 1, 100)
	produce := encodeRequest(produceRequest(9, -1, produced{topic, 0, valueBatch(100)}))
	offset := int64(1)
	req := fetchRequest(11, fetched{topic, 0, 0})
	req.SessionEpoch, req.MaxWaitMillis = -1, 600_000
	wait := encodeRequest(req)
	at := len(wait) - offsetFromEnd(req)
	allocations, bytes := measure(200, func() {
		binary.BigEndian.PutUint64(wait[at:], uint64(offset))
		offset++
		if _, err := c.conn.Write(wait); err != nil {
			t.Fatal(err)
		}
		p.exchange(produce)
		c.read()
	})
	t.Logf("fetch that waits and the produce that wakes it: %.1f allocations, %.0f bytes", allocations, bytes)
	require.LessOrEqual(t, allocations, 14.0)
}

// offsetFromEnd is where the fetch offset of the one partition of a v11 request lies,
// counted from its end.
func offsetFromEnd(req *kmsg.FetchRequest) int {
	const marker = 0x1122334455667788
	req.Topics[0].Partitions[0].FetchOffset = marker
	encoded := encodeRequest(req)
	req.Topics[0].Partitions[0].FetchOffset = 0
	for i := range encoded[:len(encoded)-7] {
		if binary.BigEndian.Uint64(encoded[i:]) == marker {
			return len(encoded) - i
		}
	}
	panic("no offset in a fetch request")
}

// The whole way on a real file system without fsync: socket, handler, log, answer.
func BenchmarkProduce(b *testing.B) {
	broker := ownBroker(b, brokerEdit{fs: vfs.OS(), dir: b.TempDir()})
	for _, size := range []int{100, 64 << 10, 900_000} {
		b.Run(byteName(size), func(b *testing.B) {
			topic := broker.topic(b, 1, "millrace.flush.ack", "false", "message.timestamp.after.max.ms", "9223372036854775807")
			c := broker.rawClient(b)
			request := encodeRequest(produceRequest(9, -1, produced{topic, 0, valueBatch(size)}))
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				c.exchange(request)
			}
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	broker := ownBroker(b, brokerEdit{fs: vfs.OS(), dir: b.TempDir()})
	for _, size := range []int{100, 64 << 10, 900_000} {
		b.Run(byteName(size), func(b *testing.B) {
			topic := guardTopic(b, broker, 1, size)
			c := broker.rawClient(b)
			req := fetchRequest(13, fetched{topic, 0, 0})
			req.SessionEpoch = -1
			request := encodeRequest(req)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				c.exchange(request)
			}
		})
	}
}

func byteName(n int) string {
	if n < 1<<10 {
		return "small"
	}
	if n < 1<<19 {
		return "64KiB"
	}
	return "900kB"
}

// The same of a consumer group's member that has nothing to say, and is told nothing.
func TestConsumerPulseAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations differ under the race detector")
	}
	b := ownBroker(t, brokerEdit{})
	b.groups.pulse = func(r group.ConsumerHeartbeatRequest) (group.ConsumerHeartbeatResult, bool) {
		if r.ClientHost != "/127.0.0.1" || r.ClientID != "tester" || r.RebalanceTimeout >= 0 || r.HasTopics || r.HasOwned {
			t.Error("another request", r)
		}
		return group.ConsumerHeartbeatResult{Member: "tester-0123456789", Epoch: r.Epoch, HeartbeatInterval: 5 * time.Second}, r.Group == "billing" && r.Member == "tester-0123456789"
	}
	c := b.rawClient(t)
	for version := range int16(2) {
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.MemberEpoch = version, "billing", "tester-0123456789", 3
		request := encodeRequest(req)
		resp := req.ResponseKind()
		require.NoError(t, resp.ReadFrom(c.exchange(request)[5:])) // the header of a flexible answer
		answer := resp.(*kmsg.ConsumerGroupHeartbeatResponse)
		require.Zero(t, answer.ErrorCode)
		require.Equal(t, req.MemberID, *answer.MemberID)
		require.Equal(t, int32(3), answer.MemberEpoch)
		require.Equal(t, int32(5000), answer.HeartbeatIntervalMillis)
		require.Nil(t, answer.Assignment)
		allocations, bytes := measure(400, func() { c.exchange(request) })
		t.Logf("consumer group heartbeat v%d: %.2f allocations, %.0f bytes", version, allocations, bytes)
		require.Less(t, allocations, 1.0)

		req.Group = "other" // there is more to say to it: it goes the long way, once
		beats := len(b.groups.mu.beats)
		require.NoError(t, resp.ReadFrom(c.exchange(encodeRequest(req))[5:]))
		require.Equal(t, int16(69), answer.ErrorCode)
		require.Len(t, b.groups.mu.beats, beats+1)
	}
}

// A heartbeat of a classic group's member costs nothing but a moment: with thousands of members that is all that a broker at rest
// does, and what it allocates is what its heap grows by.
func TestHeartbeatAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations differ under the race detector")
	}
	b := ownBroker(t, brokerEdit{})
	c := b.rawClient(t)
	for version := range int16(5) {
		req := kmsg.NewPtrHeartbeatRequest()
		req.Version, req.Group, req.MemberID, req.Generation = version, "billing", "tester-0123456789", 3
		request := encodeRequest(req)
		allocations, bytes := measure(400, func() { c.exchange(request) })
		t.Logf("heartbeat v%d: %.2f allocations, %.0f bytes", version, allocations, bytes)
		require.Less(t, allocations, 1.0)
	}
}
