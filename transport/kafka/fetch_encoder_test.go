package kafka

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log"
)

// bytesSource is a record source in memory.
type bytesSource []byte

func (b bytesSource) Len() int { return len(b) }

// spliced joins the encoder's header bytes and the records at its cuts.
func (e *fetchEncoder) spliced(parts []fetchPartition) []byte {
	var out []byte
	at := 0
	for _, cut := range e.cuts {
		out = append(out, e.head[at:cut.end]...)
		out = append(out, parts[cut.index].records.(bytesSource)...)
		at = cut.end
	}
	return append(out, e.head[at:]...)
}

// kmsgFetch is the same response as a kmsg struct.
func kmsgFetch(version, errorCode int16, sessionID int32, parts []fetchPartition, brokers []kmsg.FetchResponseBroker) *kmsg.FetchResponse {
	resp := kmsg.NewPtrFetchResponse()
	resp.Version, resp.ErrorCode, resp.SessionID, resp.Brokers = version, errorCode, sessionID, brokers
	for i := range parts {
		p := &parts[i]
		if i == 0 || p.topic != parts[i-1].topic {
			topic := kmsg.NewFetchResponseTopic()
			topic.Topic, topic.TopicID = p.topic.name, p.topic.id
			resp.Topics = append(resp.Topics, topic)
		}
		topic := &resp.Topics[len(resp.Topics)-1]
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.Partition, rp.ErrorCode = p.partition, p.errorCode
		rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = p.highWatermark, p.lastStableOffset, p.logStartOffset
		rp.DivergingEpoch.Epoch, rp.DivergingEpoch.EndOffset = p.divergingEpoch, p.divergingOffset
		rp.CurrentLeader.LeaderID, rp.CurrentLeader.LeaderEpoch = p.leaderID, p.leaderEpoch
		if !p.abortedNull {
			rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{}
			for _, a := range p.aborted {
				ra := kmsg.NewFetchResponseTopicPartitionAbortedTransaction()
				ra.ProducerID, ra.FirstOffset = a.ProducerID, a.FirstOffset
				rp.AbortedTransactions = append(rp.AbortedTransactions, ra)
			}
		}
		rp.PreferredReadReplica = p.preferredReplica
		rp.RecordBatches = []byte{}
		if p.records != nil {
			rp.RecordBatches = append(rp.RecordBatches, p.records.(bytesSource)...)
		}
		topic.Partitions = append(topic.Partitions, rp)
	}
	return resp
}

// drawFetch draws the parts of a response: some topics named twice in a row or
// apart, tags present or not, records from none to more than one uvarint byte
// can count.
func drawFetch(t *rapid.T) ([]fetchPartition, []kmsg.FetchResponseBroker) {
	topics := []fetchTopic{
		{"a", kafkaUUID{1}}, {"orders", kafkaUUID{2}}, {"topic-with-a-name-longer-than-" + string(bytes.Repeat([]byte{'x'}, 120)), kafkaUUID{3}},
	}
	int64s := rapid.OneOf(rapid.Just(int64(-1)), rapid.Int64())
	var parts []fetchPartition
	for range rapid.IntRange(0, 9).Draw(t, "partitions") {
		p := newFetchPartition(rapid.SampledFrom(topics).Draw(t, "topic"), rapid.Int32().Draw(t, "partition"))
		p.errorCode = rapid.Int16().Draw(t, "error")
		p.highWatermark, p.lastStableOffset, p.logStartOffset = int64s.Draw(t, "hw"), int64s.Draw(t, "lso"), int64s.Draw(t, "start")
		if p.abortedNull = rapid.Bool().Draw(t, "null"); !p.abortedNull {
			for range rapid.IntRange(0, 3).Draw(t, "aborted") {
				p.aborted = append(p.aborted, log.AbortedTransaction{ProducerID: rapid.Int64().Draw(t, "producer"), FirstOffset: rapid.Int64().Draw(t, "first")})
			}
		}
		if rapid.Bool().Draw(t, "diverging") {
			p.divergingEpoch, p.divergingOffset = rapid.Int32().Draw(t, "epoch"), int64s.Draw(t, "end")
		}
		if rapid.Bool().Draw(t, "preferred") {
			p.preferredReplica = rapid.Int32().Draw(t, "preferred id")
		}
		if rapid.Bool().Draw(t, "leader") {
			p.leaderID, p.leaderEpoch = rapid.Int32().Draw(t, "id"), rapid.Int32().Draw(t, "epoch")
		}
		if size := rapid.SampledFrom([]int{-1, 0, 1, 61, 126, 127, 128, 20000}).Draw(t, "size"); size >= 0 {
			p.records = bytesSource(bytes.Repeat([]byte{byte(size)}, size))
		}
		parts = append(parts, p)
	}
	var brokers []kmsg.FetchResponseBroker
	for range rapid.IntRange(0, 3).Draw(t, "brokers") {
		b := kmsg.NewFetchResponseBroker()
		b.NodeID, b.Port = rapid.Int32().Draw(t, "node"), rapid.Int32().Draw(t, "port")
		b.Host = rapid.StringN(0, 60, 150).Draw(t, "host")
		if rapid.Bool().Draw(t, "rack") {
			rack := rapid.StringN(0, 5, 20).Draw(t, "rack name")
			b.Rack = &rack
		}
		brokers = append(brokers, b)
	}
	return parts, brokers
}

// The encoder writes what kmsg writes, byte for byte, in every served version
// (protocol.md 10).
func TestFetchEncoderEqualsKmsg(t *testing.T) {
	var e fetchEncoder // reused, as the handler does
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(4, 17).Draw(t, "version")
		errorCode, sessionID := rapid.Int16().Draw(t, "error"), rapid.Int32().Draw(t, "session")
		parts, brokers := drawFetch(t)
		e.encode(version, errorCode, sessionID, parts, brokers)
		want := kmsgFetch(version, errorCode, sessionID, parts, brokers).AppendTo(nil)
		if got := e.spliced(parts); !bytes.Equal(want, got) {
			t.Fatalf("v%d\nwant %x\ngot  %x", version, want, got)
		}
		if len(e.head)+e.bodyBytes != len(want) {
			t.Fatalf("v%d: size %d+%d, want %d", version, len(e.head), e.bodyBytes, len(want))
		}
	})
}

// Trap 1: the records of a partition are empty, never null, with an error too.
func TestFetchRecordsNeverNull(t *testing.T) {
	for version := int16(4); version <= 17; version++ {
		p := newFetchPartition(fetchTopic{"t", kafkaUUID{7}}, 0)
		p.errorCode = codeOffsetOutOfRange
		var e fetchEncoder
		e.encode(version, 0, 0, []fetchPartition{p}, nil)
		resp := kmsg.NewPtrFetchResponse()
		resp.Version = version
		require.NoError(t, resp.ReadFrom(e.head))
		got := resp.Topics[0].Partitions[0]
		require.NotNil(t, got.RecordBatches, "v%d", version)
		require.Empty(t, got.RecordBatches)
		require.EqualValues(t, -1, got.PreferredReadReplica)
		require.EqualValues(t, -1, got.DivergingEpoch.Epoch)
		require.EqualValues(t, -1, got.CurrentLeader.LeaderID)
	}
}
