package kafka

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/log"
)

// recordSource is what the encoder needs to know about the record bytes of one
// partition: how many there are. They never pass through the encoder; it
// remembers where in the header stream they belong.
type recordSource interface {
	// Len is the number of record bytes; fixed from the moment the
	// source is given to the encoder, because the length prefix and
	// the frame size are computed from it.
	Len() int
}

// fetchTopic names the topic of a partition in a response: by name up to v12,
// by id from v13 on (KIP-516).
type fetchTopic struct {
	name string
	id   kafkaUUID
}

type kafkaUUID = [16]byte

// fetchPartition is one partition of a Fetch response, before encoding.
type fetchPartition struct {
	topic     fetchTopic
	partition int32
	errorCode int16

	// logStartOffset ≤ lastStableOffset ≤ highWatermark, all three -1 only
	// when errorCode is set and they are unknown.
	highWatermark    int64
	lastStableOffset int64
	logStartOffset   int64

	// divergingEpoch and divergingOffset (-1: none) tell a reader that its log
	// left ours (KIP-595): tag 0, v12+.
	divergingEpoch  int32
	divergingOffset int64

	// leaderID and leaderEpoch (-1: not sent) are the hint of KIP-951: tag 1.
	leaderID    int32
	leaderEpoch int32

	// preferredReplica (-1: none) is the follower that the consumer should read
	// from (KIP-392): v11+. There are no records then.
	preferredReplica int32

	// logEndOffset (-1: not sent) is for followers only: a tag of ours, see
	// replica_codec.go.
	logEndOffset int64

	// abortedNull says that AbortedTransactions is null (read_uncommitted)
	// rather than an array (read_committed).
	abortedNull bool
	// aborted are the transactions whose records the reader is to skip, sorted by
	// first offset (trap 20); none if abortedNull.
	aborted []log.AbortedTransaction

	// records may be nil: the field is then empty, never null (librdkafka logs
	// "invalid MessageSetSize -1" and backs off when it sees null).
	records recordSource
}

// newFetchPartition returns a partition with the defaults that keep optional
// tags off the wire. A fetchPartition made by literal would tell consumers to
// truncate to offset 0, exactly like a kmsg literal.
func newFetchPartition(topic fetchTopic, partition int32) fetchPartition {
	return fetchPartition{
		topic: topic, partition: partition,
		highWatermark: -1, lastStableOffset: -1, logStartOffset: -1,
		divergingEpoch: -1, divergingOffset: -1, leaderID: -1, leaderEpoch: -1,
		preferredReplica: -1, logEndOffset: -1,
	}
}

func (p *fetchPartition) recordBytes() int {
	if p.records == nil {
		return 0
	}
	return p.records.Len()
}

// fetchCut says that the records of partitions[index] follow head[:end].
type fetchCut struct {
	end   int
	index int
}

// fetchEncoder writes the body of a Fetch response as header bytes and cut
// points, so that record bytes go from the log to the socket without passing
// through a response buffer. Spliced at the cuts, its output is byte for byte
// what kmsg.FetchResponse.AppendTo writes (fuzzed for v4 to v17).
type fetchEncoder struct {
	version   int16
	flexible  bool
	head      []byte
	cuts      []fetchCut
	bodyBytes int // record bytes behind all cuts
}

// encode writes a whole body. Consecutive partitions of one topic share one
// topic entry; the order of partitions is kept, so that a rotated session may
// name a topic twice, as Kafka's own answers do.
func (e *fetchEncoder) encode(version int16, errorCode int16, sessionID int32, parts []fetchPartition, brokers []kmsg.FetchResponseBroker) {
	e.version, e.flexible = version, version >= 12
	e.head, e.cuts, e.bodyBytes = e.head[:0], e.cuts[:0], 0

	e.int32(0) // throttle time: v1+
	if version >= 7 {
		e.int16(errorCode)
		e.int32(sessionID)
	}
	e.arrayLen(countTopics(parts))
	for first := 0; first < len(parts); {
		after := first + 1
		for after < len(parts) && parts[after].topic == parts[first].topic {
			after++
		}
		if version >= 13 {
			e.head = append(e.head, parts[first].topic.id[:]...)
		} else {
			e.string(parts[first].topic.name)
		}
		e.arrayLen(after - first)
		for i := first; i < after; i++ {
			e.partition(&parts[i], i)
		}
		e.noTags()
		first = after
	}
	if !e.flexible {
		return
	}
	if len(brokers) == 0 {
		e.noTags()
		return
	}
	e.head = append(e.head, 1, 0) // one tag: 0, NodeEndpoints
	e.tagBrokers(brokers)
}

func countTopics(parts []fetchPartition) int {
	n := 0
	for i := range parts {
		if i == 0 || parts[i].topic != parts[i-1].topic {
			n++
		}
	}
	return n
}

func (e *fetchEncoder) partition(p *fetchPartition, index int) {
	e.int32(p.partition)
	e.int16(p.errorCode)
	e.int64(p.highWatermark)
	e.int64(p.lastStableOffset) // v4+, the lowest we serve
	if e.version >= 5 {
		e.int64(p.logStartOffset)
	}
	switch {
	case e.flexible && p.abortedNull:
		e.head = append(e.head, 0)
	case p.abortedNull:
		e.int32(-1)
	default:
		e.arrayLen(len(p.aborted))
		for i := range p.aborted {
			e.int64(p.aborted[i].ProducerID)
			e.int64(p.aborted[i].FirstOffset)
			e.noTags()
		}
	}
	if e.version >= 11 {
		e.int32(p.preferredReplica)
	}
	size := p.recordBytes()
	if e.flexible {
		e.uvarint(uint32(size) + 1)
	} else {
		e.int32(int32(size))
	}
	if size > 0 {
		e.cuts = append(e.cuts, fetchCut{end: len(e.head), index: index})
		e.bodyBytes += size
	}
	if !e.flexible {
		return
	}
	diverging := p.divergingEpoch != -1 || p.divergingOffset != -1
	leader := p.leaderID != -1 || p.leaderEpoch != -1
	tags := byte(0)
	if diverging {
		tags++
	}
	if leader {
		tags++
	}
	if p.logEndOffset != -1 {
		tags++
	}
	e.head = append(e.head, tags)
	if diverging {
		e.head = append(e.head, 0, 4+8+1)
		e.int32(p.divergingEpoch)
		e.int64(p.divergingOffset)
		e.noTags()
	}
	if leader {
		e.head = append(e.head, 1, 4+4+1)
		e.int32(p.leaderID)
		e.int32(p.leaderEpoch)
		e.noTags()
	}
	if p.logEndOffset != -1 {
		e.uvarint(tagLogEndOffset)
		e.uvarint(8)
		e.int64(p.logEndOffset)
	}
}

// tagBrokers writes the NodeEndpoints array as a tag value: its size first, so
// it is built behind the place of the size and moved by the size's length.
func (e *fetchEncoder) tagBrokers(brokers []kmsg.FetchResponseBroker) {
	start := len(e.head)
	e.arrayLen(len(brokers))
	for i := range brokers {
		e.int32(brokers[i].NodeID)
		e.string(brokers[i].Host)
		e.int32(brokers[i].Port)
		if brokers[i].Rack == nil {
			e.head = append(e.head, 0)
		} else {
			e.string(*brokers[i].Rack)
		}
		e.noTags()
	}
	size := len(e.head) - start
	var prefix [binary.MaxVarintLen32]byte
	n := binary.PutUvarint(prefix[:], uint64(size))
	e.head = append(e.head, prefix[:n]...)
	copy(e.head[start+n:], e.head[start:start+size])
	copy(e.head[start:], prefix[:n])
}

func (e *fetchEncoder) int16(v int16) { e.head = binary.BigEndian.AppendUint16(e.head, uint16(v)) }
func (e *fetchEncoder) int32(v int32) { e.head = binary.BigEndian.AppendUint32(e.head, uint32(v)) }
func (e *fetchEncoder) int64(v int64) { e.head = binary.BigEndian.AppendUint64(e.head, uint64(v)) }

func (e *fetchEncoder) uvarint(v uint32) { e.head = binary.AppendUvarint(e.head, uint64(v)) }

func (e *fetchEncoder) noTags() {
	if e.flexible {
		e.head = append(e.head, 0)
	}
}

func (e *fetchEncoder) string(s string) {
	if e.flexible {
		e.uvarint(uint32(len(s)) + 1)
	} else {
		e.int16(int16(len(s)))
	}
	e.head = append(e.head, s...)
}

func (e *fetchEncoder) arrayLen(n int) {
	if e.flexible {
		e.uvarint(uint32(n) + 1)
	} else {
		e.int32(int32(n))
	}
}
