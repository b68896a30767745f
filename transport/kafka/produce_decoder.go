package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/millrace/millrace/transport"
)

// errMalformed is a request body that does not hold what its version says. The
// connection is closed: nothing can be trusted after it.
var errMalformed = errors.New("malformed request body")

// maxProducePartitions bounds the entries of one Produce request. Six bytes of
// body are enough for a partition that costs us some hundred bytes of memory,
// so without it a 100 MiB request of empty partitions would ask for gigabytes
// (N4). It is many times what a client with every partition of a large cluster
// sends at once.
const maxProducePartitions = 100_000

// wireReader reads Kafka's primitive types from src. After the first value
// that is not there it is bad, and every further value is zero.
type wireReader struct {
	src []byte
	bad bool
}

func (r *wireReader) take(n int) []byte {
	if n < 0 || n > len(r.src) {
		r.bad, r.src = true, nil
		return nil
	}
	// Clipped, so that nobody who appends to the value writes into the
	// next one.
	b := r.src[:n:n]
	r.src = r.src[n:]
	return b
}

func (r *wireReader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *wireReader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// uvarint reads an unsigned varint of at most 32 bits.
func (r *wireReader) uvarint() uint32 {
	v, n := binary.Uvarint(r.src)
	if n <= 0 || v > 1<<32-1 {
		r.bad, r.src = true, nil
		return 0
	}
	r.src = r.src[n:]
	return uint32(v)
}

// length reads the length of a string, array or bytes field: -1 is null.
func (r *wireReader) length(flexible bool, narrow bool) int {
	switch {
	case flexible:
		return int(r.uvarint()) - 1
	case narrow:
		return int(r.int16())
	default:
		return int(r.int32())
	}
}

// string aliases the source. ok is false for null.
func (r *wireReader) string(flexible bool) (s string, ok bool) {
	n := r.length(flexible, true)
	if n == -1 {
		return "", false
	}
	b := r.take(n)
	return unsafe.String(unsafe.SliceData(b), len(b)), true
}

// bytes aliases the source; null is nil, and empty is not.
func (r *wireReader) bytes(flexible bool) []byte {
	n := r.length(flexible, false)
	if n == -1 {
		return nil
	}
	return r.take(n)
}

// array reads the number of elements; null counts as none. Each element has at
// least minBytes, so a length that the rest cannot hold is refused before
// anything is allocated for it.
func (r *wireReader) array(flexible bool, minBytes int) int {
	n := r.length(flexible, false)
	if n == -1 {
		return 0
	}
	if n < 0 || n > len(r.src)/minBytes {
		r.bad, r.src = true, nil
		return 0
	}
	return n
}

// skipTags passes over tagged fields; none of those in Produce means anything
// to us, and unknown ones are ignored everywhere.
func (r *wireReader) skipTags() {
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		r.uvarint()
		r.take(int(r.uvarint()))
	}
}

// produceTopic is one topic of a Produce request: partitions[first:after]
// belong to it. Two entries may name the same topic.
type produceTopic struct {
	name         string // aliases the body until owned; empty from v13 on
	owned        bool
	id           kafkaUUID
	first, after int
}

// produceBody is a decoded Produce request. It is flat, so that a request of
// any shape costs two slices which are used again for the next one; names and
// records alias the body, which must stay alive and unchanged as long.
type produceBody struct {
	transactional   bool   // a transactional id was given, "" included
	transactionalID string // aliases the body
	acks            int16
	timeoutMillis   int32
	topics          []produceTopic
	partitions      []producePartition
}

// producePartition is one partition of a request.
type producePartition struct {
	topic     int // index into topics
	partition int32
	records   []byte // nil: null
}

// decode reads a body of version 3 to 13. Bytes behind the last field are
// tolerated, as in every other request.
func (p *produceBody) decode(version int16, body []byte) error {
	p.topics, p.partitions = p.topics[:0], p.partitions[:0]
	flexible := version >= 9
	r := wireReader{src: body}
	p.transactionalID, p.transactional = r.string(flexible)
	p.transactionalID = transport.ValidText(p.transactionalID) // a copy, if it was not
	p.acks = r.int16()
	p.timeoutMillis = r.int32()

	minTopic, minPartition := 2+4, 4+4
	if flexible {
		minTopic, minPartition = 1+1+1, 4+1+1
	}
	if version >= 13 {
		minTopic = 16 + 1 + 1
	}
	topics := r.array(flexible, minTopic)
	if topics > maxProducePartitions {
		return fmt.Errorf("%w: %d topics in one request, at most %d are served", errMalformed, topics, maxProducePartitions)
	}
	for range topics {
		topic := produceTopic{first: len(p.partitions)}
		if version >= 13 {
			copy(topic.id[:], r.take(16))
		} else {
			var named bool
			if topic.name, named = r.string(flexible); !named {
				return fmt.Errorf("%w: a topic without a name", errMalformed)
			}
		}
		partitions := r.array(flexible, minPartition)
		if len(p.partitions)+partitions > maxProducePartitions {
			return fmt.Errorf("%w: more than %d partitions in one request", errMalformed, maxProducePartitions)
		}
		for range partitions {
			part := producePartition{topic: len(p.topics), partition: r.int32(), records: r.bytes(flexible)}
			if flexible {
				r.skipTags()
			}
			p.partitions = append(p.partitions, part)
		}
		if flexible {
			r.skipTags()
		}
		if r.bad {
			return errMalformed
		}
		topic.after = len(p.partitions)
		p.topics = append(p.topics, topic)
	}
	if flexible {
		r.skipTags()
	}
	if r.bad {
		return errMalformed
	}
	return nil
}

// release drops every reference to the body, so that a pooled request does not
// keep a frame alive.
func (p *produceBody) release() {
	clear(p.topics)
	clear(p.partitions)
	p.topics, p.partitions, p.transactionalID = p.topics[:0], p.partitions[:0], ""
}
