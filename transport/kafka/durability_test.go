package kafka

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// gateFS holds back the syncs of segments while its gate is shut: records are then
// in the log and not below the high watermark.
type gateFS struct {
	vfs.FS
	mu   sync.Mutex
	open *sync.Cond
	shut bool
}

func newGateFS() *gateFS {
	g := &gateFS{FS: vfs.NewMem(1)}
	g.open = sync.NewCond(&g.mu)
	return g
}

func (g *gateFS) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.open.Broadcast()
}

func (g *gateFS) Create(name string) (vfs.File, error) {
	f, err := g.FS.Create(name)
	return g.wrap(name, f, err)
}

func (g *gateFS) Open(name string) (vfs.File, error) {
	f, err := g.FS.Open(name)
	return g.wrap(name, f, err)
}

func (g *gateFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &gateFile{f, g}, nil
}

type gateFile struct {
	vfs.File
	gate *gateFS
}

func (f *gateFile) Sync() error {
	f.gate.mu.Lock()
	for f.gate.shut {
		f.gate.open.Wait()
	}
	f.gate.mu.Unlock()
	return f.File.Sync()
}

// I2, I3 and protocol.md 4: between the high watermark and the end of the log there
// is nothing to read and no error; "latest" is the high watermark; a producer that
// asked for a durable acknowledgement is told 7 when it does not come in time, and
// its records stay.
func TestBetweenHighWatermarkAndEnd(t *testing.T) {
	gate := newGateFS()
	b := ownBroker(t, brokerEdit{fs: gate})
	t.Cleanup(func() { gate.set(false) })
	c, topic := b.dial(t), b.topic(t, 1)
	c.produce(topic, 0, batch(2))
	gate.set(true)

	req := produceRequest(9, -1, produced{topic, 0, batch(3)})
	req.TimeoutMillis = 50
	p := ask[*kmsg.ProduceResponse](c, req).Topics[0].Partitions[0]
	require.EqualValues(t, 7, p.ErrorCode)
	require.EqualValues(t, -1, p.BaseOffset)
	require.EqualValues(t, 5, b.end(t, topic), "the append stays")

	for offset, code := range map[int64]int16{2: 0, 3: 0, 5: 0, 6: 1} {
		fetch := fetchRequest(12, fetched{topic, 0, offset})
		fetch.SessionEpoch = -1
		got := c.fetchOne(fetch)
		require.Equal(t, code, got.ErrorCode, "offset %d", offset)
		require.Empty(t, got.RecordBatches)
		mark := int64(2)
		if code != 0 {
			mark = -1
		}
		require.Equal(t, mark, got.HighWatermark)
		require.Equal(t, mark, got.LastStableOffset)
	}
	fetch := fetchRequest(12, fetched{topic, 0, 0})
	fetch.SessionEpoch = -1
	require.Len(t, values(t, c.fetchOne(fetch).RecordBatches), 2)
	require.EqualValues(t, 2, c.latest(topic))

	// A consumer at the high watermark waits, and is woken when it moves.
	wait := fetchRequest(12, fetched{topic, 0, 2})
	wait.SessionEpoch, wait.MaxWaitMillis = -1, 600_000
	c.send(wait)
	b.awaitParked(t, 1)
	gate.set(false)
	require.Len(t, values(t, c.receive(wait).(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches), 3)
	require.EqualValues(t, 5, c.latest(topic))
}

// latest asks for the end of a topic's first partition.
func (c *testConn) latest(topic *metadata.Topic) int64 {
	c.t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 6
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic.Name
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Timestamp, p.CurrentLeaderEpoch = -1, -1
	rt.Partitions = append(rt.Partitions, p)
	req.Topics = append(req.Topics, rt)
	got := ask[*kmsg.ListOffsetsResponse](c, req).Topics[0].Partitions[0]
	require.Zero(c.t, got.ErrorCode)
	return got.Offset
}

// A produce of several partitions is answered when the last of them is done, and
// what was pipelined behind it keeps its place.
func TestProduceWaitsForAllPartitions(t *testing.T) {
	gate := newGateFS()
	b := ownBroker(t, brokerEdit{fs: gate})
	t.Cleanup(func() { gate.set(false) })
	c, durable, loose := b.dial(t), b.topic(t, 1), b.topic(t, 1, "millrace.flush.ack", "false")
	gate.set(true)
	// The names are sent back when the frame they came in belongs to others: those of
	// topics that do not exist have to be kept.
	unknown, empty := &metadata.Topic{Name: strings.Repeat("never-made", 20), ID: metadata.TopicID{1}}, "and-no-partitions"
	both := produceRequest(9, -1, produced{durable, 0, batch(1)}, produced{loose, 0, batch(1)}, produced{loose, 9, batch(1)}, produced{unknown, 0, batch(1)})
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = empty
	both.Topics = append(both.Topics, rt)
	behind := produceRequest(9, 1, produced{loose, 0, batch(100)})
	c.send(both)
	c.send(behind)
	require.Eventually(t, func() bool { return b.end(t, loose) == 101 }, testDeadline, time.Millisecond, "both were appended, in order, while the first waits")
	gate.set(false)
	resp := c.receive(both).(*kmsg.ProduceResponse)
	require.Equal(t, []int16{0, 0, 3}, []int16{resp.Topics[0].Partitions[0].ErrorCode, resp.Topics[1].Partitions[0].ErrorCode, resp.Topics[1].Partitions[1].ErrorCode})
	require.Zero(t, resp.Topics[1].Partitions[0].BaseOffset)
	require.Equal(t, []string{durable.Name, loose.Name, unknown.Name, empty}, []string{resp.Topics[0].Topic, resp.Topics[1].Topic, resp.Topics[2].Topic, resp.Topics[3].Topic})
	require.EqualValues(t, 3, resp.Topics[2].Partitions[0].ErrorCode)
	require.EqualValues(t, 1, c.receive(behind).(*kmsg.ProduceResponse).Topics[0].Partitions[0].BaseOffset)
}
