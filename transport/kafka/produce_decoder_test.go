package kafka

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// sameProduce reports whether our decoder and kmsg's understood the same.
func sameProduce(p *produceBody, req *kmsg.ProduceRequest) bool {
	if p.acks != req.Acks || p.timeoutMillis != req.TimeoutMillis || len(p.topics) != len(req.Topics) {
		return false
	}
	for i, topic := range req.Topics {
		got := p.topics[i]
		if got.name != topic.Topic || got.id != topic.TopicID || got.after-got.first != len(topic.Partitions) {
			return false
		}
		for j, part := range topic.Partitions {
			gp := p.partitions[got.first+j]
			if gp.topic != i || gp.partition != part.Partition || !bytes.Equal(gp.records, part.Records) || (gp.records == nil) != (part.Records == nil) {
				return false
			}
		}
	}
	return true
}

func drawProduce(t *rapid.T, version int16) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version = version
	if rapid.Bool().Draw(t, "transactional") {
		req.TransactionID = kmsg.StringPtr(rapid.StringN(0, 5, 20).Draw(t, "id"))
	}
	req.Acks, req.TimeoutMillis = rapid.Int16().Draw(t, "acks"), rapid.Int32().Draw(t, "timeout")
	for range rapid.IntRange(0, 4).Draw(t, "topics") {
		topic := kmsg.NewProduceRequestTopic()
		if version >= 13 {
			topic.TopicID = kafkaUUID{rapid.Byte().Draw(t, "topic id")}
		} else {
			topic.Topic = rapid.StringN(0, 200, 200).Draw(t, "topic")
		}
		for range rapid.IntRange(0, 4).Draw(t, "partitions") {
			part := kmsg.NewProduceRequestTopicPartition()
			part.Partition = rapid.Int32().Draw(t, "partition")
			if size := rapid.IntRange(-1, 300).Draw(t, "size"); size >= 0 {
				part.Records = bytes.Repeat([]byte{byte(size)}, size)
				if part.Records == nil {
					part.Records = []byte{}
				}
			}
			if version >= 9 && rapid.Bool().Draw(t, "tag") {
				part.UnknownTags.Set(rapid.Uint32Range(0, 9).Draw(t, "key"), []byte("abc"))
			}
			topic.Partitions = append(topic.Partitions, part)
		}
		req.Topics = append(req.Topics, topic)
	}
	return req
}

// What kmsg writes we read alike, whole, with bytes behind it, and not at all
// when the end is missing.
func TestProduceDecoderEqualsKmsg(t *testing.T) {
	var p produceBody
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.Int16Range(3, 13).Draw(t, "version")
		req := drawProduce(t, version)
		body := req.AppendTo(nil)
		if err := p.decode(version, append(body[:len(body):len(body)], "behind"...)); err != nil || !sameProduce(&p, req) {
			t.Fatalf("v%d: %v: %x", version, err, body)
		}
		if cut := rapid.IntRange(0, len(body)-1).Draw(t, "cut"); p.decode(version, body[:cut]) == nil {
			t.Fatalf("v%d: accepted %d of %d bytes", version, cut, len(body))
		}
	})
}

// N4: a request of empty partitions can't ask for more memory than its share.
func TestProduceDecoderBoundsPartitions(t *testing.T) {
	req := kmsg.NewPtrProduceRequest()
	req.Version = 9
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "t"
	topic.Partitions = make([]kmsg.ProduceRequestTopicPartition, maxProducePartitions+1)
	req.Topics = append(req.Topics, topic)
	var p produceBody
	require.ErrorIs(t, p.decode(9, req.AppendTo(nil)), errMalformed)
	require.Empty(t, p.partitions)

	req.Topics[0].Partitions = req.Topics[0].Partitions[1:]
	require.NoError(t, p.decode(9, req.AppendTo(nil)))
	require.Len(t, p.partitions, maxProducePartitions)

	req.Topics = make([]kmsg.ProduceRequestTopic, maxProducePartitions+1)
	require.ErrorIs(t, p.decode(9, req.AppendTo(nil)), errMalformed)
}

// FuzzProduceDecoder: no bytes make the decoder panic, and what it accepts is
// what kmsg reads.
func FuzzProduceDecoder(f *testing.F) {
	for version := int16(3); version <= 13; version++ {
		req := kmsg.NewPtrProduceRequest()
		req.Version = version
		topic := kmsg.NewProduceRequestTopic()
		topic.Partitions = append(topic.Partitions, kmsg.NewProduceRequestTopicPartition())
		topic.Partitions[0].Records = []byte("records")
		req.Topics = append(req.Topics, topic)
		f.Add(version, req.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, version int16, body []byte) {
		if version < 3 || version > 13 {
			return
		}
		var p produceBody
		if p.decode(version, body) != nil {
			return
		}
		req := kmsg.NewPtrProduceRequest()
		req.Version = version
		if err := req.ReadFrom(body); err != nil {
			t.Fatalf("v%d: accepted what kmsg refuses (%v): %x", version, err, body)
		}
		if !sameProduce(&p, req) {
			t.Fatalf("v%d: read differently: %x", version, body)
		}
	})
}
