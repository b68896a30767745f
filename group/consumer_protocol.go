package group

import (
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// What members that speak the classic protocol say and are told in a consumer group: the formats of Kafka's consumers, of
// which older readers skip what they do not know. It is the coordinator that assigns there, so it has to read them.

// classicSubscription is what a classic consumer says of itself.
type classicSubscription struct {
	topics []string
	owned  []namedPartitions // since version 1, of cooperative consumers
}

// owns reports whether it has any partition.
func (s *classicSubscription) owns() bool {
	return slices.ContainsFunc(s.owned, func(t namedPartitions) bool { return len(t.partitions) > 0 })
}

type namedPartitions struct {
	topic      string
	partitions []int32
}

// reader reads big-endian fields; after a failure everything is empty.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.b, r.bad = nil, true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) int16() int16 {
	if b := r.take(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (r *reader) int32() int32 {
	if b := r.take(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

// count reads the length of an array whose elements take at least size bytes each; null is empty.
func (r *reader) count(size int) int {
	n := int(r.int32())
	if n > len(r.b)/size {
		r.b, r.bad = nil, true
	}
	if r.bad {
		return 0
	}
	return max(n, 0)
}

func (r *reader) text() string { return string(r.take(int(r.int16()))) }

func (r *reader) partitions() (out []namedPartitions) {
	for range r.count(6) {
		t := namedPartitions{topic: r.text()}
		for range r.count(4) {
			t.partitions = append(t.partitions, r.int32())
		}
		out = append(out, t)
	}
	return out
}

// readSubscription reads the metadata of a classic consumer.
func readSubscription(b []byte) (s classicSubscription, err error) {
	r := reader{b: b}
	version := r.int16()
	for range r.count(2) {
		s.topics = append(s.topics, r.text())
	}
	if r.bad || version < 0 {
		return s, errSubscription
	}
	if version >= 1 {
		r.take(max(int(r.int32()), 0)) // what its assignor wants to know
		if s.owned = r.partitions(); r.bad {
			s.owned = nil // the topics count all the same, as they do for other readers
		}
	}
	return s, nil
}

// readAssignment reads what a leader has given to a classic consumer.
func readAssignment(b []byte) ([]namedPartitions, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := reader{b: b}
	version := r.int16()
	list := r.partitions()
	if r.bad || version < 0 {
		return nil, errSubscription
	}
	return list, nil
}

// appendAssignment writes what a classic consumer is told, in the version that all of them read.
func appendAssignment(b []byte, list []namedPartitions) []byte {
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	for _, t := range list {
		b = binary.BigEndian.AppendUint16(b, uint16(len(t.topic)))
		b = append(b, t.topic...)
		b = binary.BigEndian.AppendUint32(b, uint32(len(t.partitions)))
		for _, p := range t.partitions {
			b = binary.BigEndian.AppendUint32(b, uint32(p))
		}
	}
	return binary.BigEndian.AppendUint32(b, 0xffffffff) // nothing for its assignor
}

// identified gives the partitions of existing topics their ids.
func identified(list []namedPartitions, topics Topics) []metadata.TopicPartitions {
	var out []metadata.TopicPartitions
	for _, t := range list {
		id, partitions, ok := topics.Topic(t.topic)
		if !ok {
			continue
		}
		tp := metadata.TopicPartitions{TopicID: id}
		for _, p := range t.partitions {
			if p >= 0 && p < partitions {
				tp.Partitions = append(tp.Partitions, p)
			}
		}
		out = append(out, tp)
	}
	return normalized(out)
}

// named gives topics their names; those that were deleted have none.
func named(set []metadata.TopicPartitions, topics Topics) (out []namedPartitions) {
	for _, tp := range set {
		if name, ok := topics.Name(tp.TopicID); ok {
			out = append(out, namedPartitions{name, tp.Partitions})
		}
	}
	return out
}
