package kafka

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
)

// Every version stores what was sent and says where; what differs between versions
// is in the answer only when it exists.
func TestProduceVersions(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 2)
	next := int64(0)
	for version := int16(3); version <= 13; version++ {
		for _, acks := range []int16{-1, 1} {
			resp := ask[*kmsg.ProduceResponse](c, produceRequest(version, acks, produced{topic, 1, batch(3)}, produced{topic, 9, batch(1)}))
			require.Len(t, resp.Topics, 1)
			require.Len(t, resp.Topics[0].Partitions, 2)
			if version < 13 {
				require.Equal(t, topic.Name, resp.Topics[0].Topic)
			} else {
				require.EqualValues(t, topic.ID, resp.Topics[0].TopicID)
			}
			p := resp.Topics[0].Partitions[0]
			require.EqualValues(t, 1, p.Partition)
			require.Zero(t, p.ErrorCode, "v%d", version)
			require.Equal(t, next, p.BaseOffset)
			require.EqualValues(t, -1, p.LogAppendTime)
			if version >= 5 {
				require.Zero(t, p.LogStartOffset)
			}
			require.Nil(t, p.ErrorMessage)
			require.EqualValues(t, -1, p.CurrentLeader.LeaderID)
			next += 3
			p = resp.Topics[0].Partitions[1]
			require.EqualValues(t, codeUnknownTopicOrPartition, p.ErrorCode)
			require.EqualValues(t, -1, p.BaseOffset)
			require.Equal(t, version >= 8, p.ErrorMessage != nil)
			require.Empty(t, resp.Brokers)
		}
	}
	require.Len(t, values(t, c.fetchOne(fetchRequest(12, fetched{topic, 1, 0})).RecordBatches), int(next))
}

// What can be wrong with one partition, and the code for it; nothing is appended,
// and the partition beside it is served all the same.
func TestProduceErrors(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	topic, small := b.topic(t, 1), b.topic(t, 1, "max.message.bytes", "500")
	compacted := b.topic(t, 1, "cleanup.policy", "compact")
	bounded := b.topic(t, 1, "message.timestamp.before.max.ms", "60000")
	dense := b.topic(t, 1, "max.decompressed.message.bytes", "1000")
	bomb := record.NewBuilder(record.CodecZstd)
	bomb.Add(time.Now().UnixMilli(), nil, make([]byte, 2000), nil)
	gone := &metadata.Topic{Name: "never-made", ID: metadata.TopicID{0xff, 1}}
	flipped := batch(2)
	flipped[len(flipped)-1] ^= 1
	control := batch(1, func(r *record.Builder) { r.Control = true })
	transactional := batch(1, func(r *record.Builder) {
		r.Transactional, r.ProducerID, r.ProducerEpoch, r.BaseSequence = true, 7, 0, 0
	})
	old := record.NewBuilder(record.CodecNone)
	old.Add(time.Now().Add(-time.Hour).UnixMilli(), nil, []byte("old"), nil)
	zstd := record.NewBuilder(record.CodecZstd)
	zstd.Add(time.Now().UnixMilli(), nil, []byte("zstd"), nil)
	two := append(append([]byte{}, batch(1)...), batch(1)...)
	offset := batch(1)
	offset.SetBaseOffset(5)

	for _, test := range []struct {
		name    string
		version int16
		part    produced
		code    int16
		records int // entries of ErrorRecords
	}{
		{"unknown topic", 9, produced{gone, 0, batch(1)}, 3, 0},
		{"unknown topic id", 13, produced{gone, 0, batch(1)}, 100, 0},
		{"unknown partition", 9, produced{topic, 1, batch(1)}, 3, 0},
		{"negative partition", 9, produced{topic, -1, batch(1)}, 3, 0},
		{"null records", 9, produced{topic, 0, nil}, 87, 0},
		{"no records", 9, produced{topic, 0, []byte{}}, 87, 0},
		{"two batches", 9, produced{topic, 0, two}, 87, 0},
		{"cut short", 9, produced{topic, 0, batch(1)[:40]}, 87, 0},
		{"checksum", 9, produced{topic, 0, flipped}, 2, 0},
		{"control", 9, produced{topic, 0, control}, 87, 0},
		{"base offset", 9, produced{topic, 0, offset}, 87, 0},
		{"transactional without an id", 9, produced{topic, 0, transactional}, 53, 0},
		{"too large", 9, produced{small, 0, batch(200)}, 10, 0},
		{"too large once decompressed", 9, produced{dense, 0, bomb.Build()}, 10, 0},
		{"zstd too early", 6, produced{topic, 0, zstd.Build()}, 76, 0},
		{"no key on compacted", 9, produced{compacted, 0, batch(2)}, 87, 2},
		{"timestamp", 9, produced{bounded, 0, old.Build()}, 32, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := b.end(t, test.part.topic)
			resp := ask[*kmsg.ProduceResponse](c, produceRequest(test.version, -1, test.part, produced{b.topic(t, 1), 0, batch(1)}))
			p := resp.Topics[0].Partitions[0]
			require.Equal(t, test.code, p.ErrorCode)
			require.EqualValues(t, -1, p.BaseOffset)
			if test.version >= 8 {
				require.NotNil(t, p.ErrorMessage)
				require.NotEmpty(t, *p.ErrorMessage)
			}
			require.Len(t, p.ErrorRecords, test.records)
			for i, r := range p.ErrorRecords {
				require.EqualValues(t, i, r.RelativeOffset)
				require.NotNil(t, r.ErrorMessage)
			}
			require.Zero(t, resp.Topics[1].Partitions[0].ErrorCode)
			require.Equal(t, before, b.end(t, test.part.topic), "something was appended (I17)")
		})
	}
}

// end is the end offset of a topic's first partition, -1 when there is none.
func (b *testBroker) end(t *testing.T, topic *metadata.Topic) int64 {
	t.Helper()
	p, err := b.replicas.Partition(topic.Name, 0)
	if err != nil {
		return -1
	}
	return p.EndOffset()
}

// acks other than -1, 0 and 1 are refused with 21 for every partition.
func TestProduceInvalidAcks(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 2)
	for _, acks := range []int16{2, -2, 127} {
		resp := ask[*kmsg.ProduceResponse](c, produceRequest(9, acks, produced{topic, 0, batch(1)}, produced{topic, 1, batch(1)}))
		for _, p := range resp.Topics[0].Partitions {
			require.EqualValues(t, 21, p.ErrorCode)
		}
	}
	require.Zero(t, b.end(t, topic))
}

// Trap 30: acks=0 is answered with silence, and with a closed connection when
// something is wrong.
func TestProduceAcks0(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	c.send(produceRequest(9, 0, produced{topic, 0, batch(2)}))
	c.sent--            // its correlation id is never answered
	c.formatterSkips(t) // the next response belongs to the next request
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Topics = []kmsg.MetadataRequestTopic{}
	metadata.Version = 1
	ask[*kmsg.MetadataResponse](c, metadata)
	require.EqualValues(t, 2, b.end(t, topic))

	c.send(produceRequest(9, 0, produced{topic, 5, batch(1)}))
	c.requireClosed()
}

// formatterSkips documents that correlation ids may be used again once a request
// was sent that has no answer.
func (c *testConn) formatterSkips(t *testing.T) { require.Equal(t, c.sent, c.received) }

// P1, P3, P4 on the wire: duplicates succeed with the original offset, gaps are 45,
// old epochs 47, unknown producers may begin anywhere.
func TestProduceIdempotent(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1)
	send := func(pid int64, epoch int16, sequence int32, n int) (code int16, offset int64) {
		records := batch(n, func(r *record.Builder) { r.ProducerID, r.ProducerEpoch, r.BaseSequence = pid, epoch, sequence })
		p := ask[*kmsg.ProduceResponse](c, produceRequest(9, -1, produced{topic, 0, records})).Topics[0].Partitions[0]
		return p.ErrorCode, p.BaseOffset
	}
	expect := func(pid int64, epoch int16, sequence int32, n int, wantCode int16, wantOffset int64) {
		t.Helper()
		code, offset := send(pid, epoch, sequence, n)
		require.Equal(t, []any{wantCode, wantOffset}, []any{code, offset})
	}
	expect(100, 0, 0, 2, 0, 0)
	expect(100, 0, 2, 3, 0, 2)
	expect(100, 0, 2, 3, 0, 2) // again
	expect(100, 0, 0, 2, 0, 0) // the one before, again
	expect(100, 0, 6, 1, 45, -1)
	expect(100, 0, 5, 1, 0, 5)
	expect(100, 1, 3, 1, 45, -1) // a new epoch begins at 0
	expect(100, 1, 0, 1, 0, 6)
	expect(100, 0, 6, 1, 47, -1)
	for i := range int32(5) {
		expect(100, 1, 1+i, 1, 0, 7+int64(i))
	}
	expect(100, 1, 0, 1, 45, -1)      // older than the last five
	expect(200, 3, 77, 1, 0, 12)      // nothing known of it
	expect(300, 0, 1<<31-2, 2, 0, 13) // to the edge
	expect(300, 0, 0, 1, 0, 15)       // and around it
}

// Trap 21: with LogAppendTime the answer and the stored batch carry the broker's
// time, and the checksum is right again.
func TestProduceLogAppendTime(t *testing.T) {
	b := theBroker(t)
	c, topic := b.dial(t), b.topic(t, 1, "message.timestamp.type", "LogAppendTime")
	before := time.Now().UnixMilli()
	old := record.NewBuilder(record.CodecLZ4)
	old.Add(5, []byte("k"), []byte("v"), nil)
	p := ask[*kmsg.ProduceResponse](c, produceRequest(9, -1, produced{topic, 0, old.Build()})).Topics[0].Partitions[0]
	require.Zero(t, p.ErrorCode)
	require.GreaterOrEqual(t, p.LogAppendTime, before)
	require.LessOrEqual(t, p.LogAppendTime, time.Now().UnixMilli())
	stored, _, err := record.Next(c.fetchOne(fetchRequest(12, fetched{topic, 0, 0})).RecordBatches)
	require.NoError(t, err)
	require.True(t, stored.CheckCRC())
	require.Equal(t, p.LogAppendTime, stored.MaxTimestamp())
}

// compression.type of the topic: producer keeps the bytes as they came, another
// codec rewrites the batch, and both read back the same.
func TestProduceCompression(t *testing.T) {
	b := theBroker(t)
	c := b.dial(t)
	for _, stored := range []string{"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"} {
		topic := b.topic(t, 1, "compression.type", stored)
		want := record.CodecNone
		if stored != "uncompressed" && stored != "producer" {
			var err error
			want, err = record.ParseCodec(stored)
			require.NoError(t, err)
		}
		offset := int64(0)
		for codec := record.CodecNone; codec <= record.CodecZstd; codec++ {
			sent := record.NewBuilder(codec)
			for i := range 50 {
				sent.Add(time.Now().UnixMilli(), nil, fmt.Appendf(nil, "value %d", i), nil)
			}
			bytes := sent.Build()
			copied := append(record.Batch{}, bytes...)
			c.produce(topic, 0, bytes)
			got, _, err := record.Next(c.fetchOne(fetchRequest(12, fetched{topic, 0, offset})).RecordBatches)
			require.NoError(t, err)
			if stored == "producer" {
				require.Equal(t, codec, got.Codec())
				require.Equal(t, []byte(copied[record.HeaderBytes:]), []byte(got[record.HeaderBytes:]))
			} else {
				require.Equal(t, want, got.Codec(), "%v stored as %s", codec, stored)
			}
			require.Len(t, values(t, got), 50)
			offset += 50
		}
	}
}

// KIP-951: who leads instead, with its address, complete or not at all, and never
// pointing back at us (trap 15).
func TestProduceAndFetchLeaderHint(t *testing.T) {
	other := metadata.Registration{
		ID: 2, Directories: []metadata.DirectoryID{{2}}, Incarnation: [16]byte{2}, Rack: "r2",
		Listeners: []metadata.Listener{{Name: "PLAINTEXT", Host: "other", Port: 9999, Protocol: "PLAINTEXT"}},
	}
	hidden := metadata.Registration{
		ID: 3, Directories: []metadata.DirectoryID{{3}}, Incarnation: [16]byte{3},
		Listeners: []metadata.Listener{{Name: "INTERNAL", Host: "hidden", Port: 9999, Protocol: "PLAINTEXT"}},
	}
	b := ownBroker(t, brokerEdit{brokers: []metadata.Registration{other, hidden}})
	c := b.dial(t)
	elsewhere := b.assigned(t, [][]metadata.BrokerID{{2}})
	unseen := b.assigned(t, [][]metadata.BrokerID{{3}})

	for version := int16(9); version <= 13; version++ {
		resp := ask[*kmsg.ProduceResponse](c, produceRequest(version, 1, produced{elsewhere, 0, batch(1)}, produced{unseen, 0, batch(1)}))
		p := resp.Topics[0].Partitions[0]
		require.EqualValues(t, 6, p.ErrorCode)
		if version < 10 {
			require.EqualValues(t, -1, p.CurrentLeader.LeaderID)
			require.Empty(t, resp.Brokers)
			continue
		}
		require.EqualValues(t, 2, p.CurrentLeader.LeaderID)
		require.Equal(t, elsewhere.Partitions[0].LeaderEpoch, p.CurrentLeader.LeaderEpoch)
		require.Len(t, resp.Brokers, 1)
		require.Equal(t, []any{int32(2), "other", int32(9999), "r2"}, []any{resp.Brokers[0].NodeID, resp.Brokers[0].Host, resp.Brokers[0].Port, *resp.Brokers[0].Rack})
		p = resp.Topics[1].Partitions[0]
		require.EqualValues(t, 6, p.ErrorCode)
		require.EqualValues(t, -1, p.CurrentLeader.LeaderID, "a broker that these clients can't reach")
		require.EqualValues(t, -1, p.CurrentLeader.LeaderEpoch)
	}
	for version := int16(12); version <= 17; version++ {
		req := fetchRequest(version, fetched{elsewhere, 0, 0}, fetched{unseen, 0, 0})
		req.MaxWaitMillis = 60_000
		resp := ask[*kmsg.FetchResponse](c, req)
		p := resp.Topics[0].Partitions[0]
		require.EqualValues(t, 6, p.ErrorCode)
		require.NotNil(t, p.RecordBatches)
		if version < 16 {
			require.EqualValues(t, -1, p.CurrentLeader.LeaderID)
			require.Empty(t, resp.Brokers)
			continue
		}
		require.EqualValues(t, 2, p.CurrentLeader.LeaderID)
		require.Len(t, resp.Brokers, 1)
		require.EqualValues(t, -1, resp.Topics[1].Partitions[0].CurrentLeader.LeaderID)
	}
}

// assigned creates a topic whose replicas are placed by hand.
func (b *testBroker) assigned(t *testing.T, assignments [][]metadata.BrokerID) *metadata.Topic {
	t.Helper()
	name := fmt.Sprintf("topic-%d", shared.topics.Add(1))
	nt := metadata.NewTopic{Name: name, Partitions: -1, ReplicationFactor: -1, Assignments: assignments}
	require.NoError(t, b.store.CreateTopics(t.Context(), []metadata.NewTopic{nt}, false)[0].Err)
	require.NoError(t, b.replicas.Await(t.Context(), b.store.Image().Version()))
	return b.store.Image().Topic(name)
}
