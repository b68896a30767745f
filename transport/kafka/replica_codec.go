package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// The Fetch of brokers among themselves: Kafka's Fetch in version 17, of topic ids, with the replica's state in tag 1.
// Both directions are read and written here without kmsg: a follower's answer holds megabytes of records that must not
// be copied, and its request goes out after every append. What is written is what kmsg writes, but for one tag of our
// own; unknown tags are skipped.

const (
	// replicaFetchVersion is the one version that brokers fetch from each other with.
	replicaFetchVersion int16 = 17
	// tagLogEndOffset is a tag of ours on a partition of the answer: the leader's log end offset (int64), which a
	// follower needs when it is out of range and Kafka's answer has no place for.
	tagLogEndOffset = 1000
)

// ErrReplicaAnswer is a leader's answer that can't be read: nothing behind it on its connection can be trusted.
var ErrReplicaAnswer = errors.New("malformed answer to a fetch between brokers")

// ReplicaSession is what a fetcher's requests and answers say of its session (KIP-227): zero for a new one.
type ReplicaSession struct{ ID, Epoch int32 }

// Next is the session for the request after an answer that carried id.
func (s ReplicaSession) Next(id int32) ReplicaSession {
	if id == noSession {
		return ReplicaSession{}
	}
	return ReplicaSession{ID: id, Epoch: nextSessionEpoch(s.Epoch)}
}

// AppendReplicaFetch appends a whole request frame: size, header, body.
func AppendReplicaFetch(b []byte, correlationID int32, replica metadata.BrokerID, session ReplicaSession, req *replication.FollowerFetch) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(keyFetch))
	b = binary.BigEndian.AppendUint16(b, uint16(replicaFetchVersion))
	b = binary.BigEndian.AppendUint32(b, uint32(correlationID))
	b = append(b, 0xff, 0xff, 0) // no client id, no tags

	b = binary.BigEndian.AppendUint32(b, uint32(min(max(req.MaxWait.Milliseconds(), 0), 1<<31-1)))
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(req.MinBytes, 0), 1<<31-1)))
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(req.MaxBytes, 0), 1<<31-1)))
	b = append(b, 0) // read_uncommitted
	b = binary.BigEndian.AppendUint32(b, uint32(session.ID))
	b = binary.BigEndian.AppendUint32(b, uint32(session.Epoch))
	b = appendRuns(b, req.Changed, func(p *FetchPosition) metadata.TopicID { return p.TopicID }, func(b []byte, p *FetchPosition) []byte {
		b = binary.BigEndian.AppendUint32(b, uint32(p.Partition))
		b = binary.BigEndian.AppendUint32(b, uint32(p.LeaderEpoch))
		b = binary.BigEndian.AppendUint64(b, uint64(p.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(p.LastEpoch))
		b = binary.BigEndian.AppendUint64(b, uint64(p.LogStartOffset))
		b = binary.BigEndian.AppendUint32(b, uint32(min(max(p.MaxBytes, 0), 1<<31-1)))
		return append(b, 0)
	})
	b = appendRuns(b, req.Forgotten, func(p *replication.TopicIDPartition) metadata.TopicID { return p.TopicID }, func(b []byte, p *replication.TopicIDPartition) []byte {
		return binary.BigEndian.AppendUint32(b, uint32(p.Partition))
	})
	b = append(b, 1)           // no rack
	b = append(b, 1, 1, 4+8+1) // one tag: 1, ReplicaState
	b = binary.BigEndian.AppendUint32(b, uint32(replica))
	b = binary.BigEndian.AppendUint64(b, uint64(req.BrokerEpoch))
	b = append(b, 0)
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// FetchPosition is replication's, for short.
type FetchPosition = replication.FetchPosition

// appendRuns appends a compact array of topics, each with a compact array of its partitions. Consecutive items of one
// topic share an entry.
func appendRuns[T any](b []byte, items []T, topic func(*T) metadata.TopicID, item func([]byte, *T) []byte) []byte {
	topics := 0
	for i := range items {
		if i == 0 || topic(&items[i]) != topic(&items[i-1]) {
			topics++
		}
	}
	b = binary.AppendUvarint(b, uint64(topics)+1)
	for first := 0; first < len(items); {
		id, after := topic(&items[first]), first+1
		for after < len(items) && topic(&items[after]) == id {
			after++
		}
		b = append(b, id[:]...)
		b = binary.AppendUvarint(b, uint64(after-first)+1)
		for ; first < after; first++ {
			b = item(b, &items[first])
		}
		b = append(b, 0)
	}
	return b
}

// replicaFetch is a decoded request. Its slices are reused.
type replicaFetch struct {
	replica metadata.BrokerID
	session ReplicaSession
	replication.FollowerFetch
}

// decode reads the body of a request. Nothing of it is aliased.
func (f *replicaFetch) decode(body []byte) error {
	r := wireReader{src: body}
	f.replica, f.BrokerEpoch = metadata.NoBroker, -1
	f.Changed, f.Forgotten = f.Changed[:0], f.Forgotten[:0]
	f.MaxWait = time.Duration(max(r.int32(), 0)) * time.Millisecond
	f.MinBytes, f.MaxBytes = int(r.int32()), int(r.int32())
	r.take(1)
	f.session = ReplicaSession{r.int32(), r.int32()}
	for range r.array(true, 16+1+1) {
		id := r.uuid()
		n := r.array(true, 4+4+8+4+8+4+1)
		f.Changed = slices.Grow(f.Changed, n)
		for range n {
			f.Changed = append(f.Changed, FetchPosition{
				TopicID: id, Partition: r.int32(), LeaderEpoch: r.int32(), Offset: r.int64(), LastEpoch: r.int32(),
				LogStartOffset: r.int64(), MaxBytes: int(r.int32()),
			})
			r.skipTags()
		}
		r.skipTags()
	}
	for range r.array(true, 16+1+1) {
		id := r.uuid()
		for range r.array(true, 4) {
			f.Forgotten = append(f.Forgotten, replication.TopicIDPartition{TopicID: id, Partition: r.int32()})
		}
		r.skipTags()
	}
	r.bytes(true) // rack
	r.tags(func(tag uint32, value *wireReader) {
		if tag == 1 {
			f.replica, f.BrokerEpoch = metadata.BrokerID(value.int32()), value.int64()
			value.skipTags()
		}
	})
	if r.bad || len(r.src) > 0 {
		return errMalformed
	}
	return nil
}

// ReadReplicaAnswer reads the answer to a request, behind its correlation id, into partitions, which it returns. Records
// alias b, and their Owner is owner. A top-level error means that the session is over.
func ReadReplicaAnswer(b []byte, owner log.Buffer, partitions []replication.FetchedPartition) (_ []replication.FetchedPartition, sessionID int32, err error) {
	r := wireReader{src: b}
	r.skipTags() // of the header
	r.int32()    // throttle time
	code := r.int16()
	sessionID = r.int32()
	for range r.array(true, 16+1+1) {
		id := r.uuid()
		n := r.array(true, 4+2+8+8+8+1+4+1+1)
		partitions = slices.Grow(partitions, n)
		for range n {
			partitions = append(partitions, replication.FetchedPartition{
				TopicID: id, Partition: r.int32(), Err: replicaError(r.int16()), HighWatermark: r.int64(), LogEndOffset: -1, DivergingEpoch: -1, DivergingEnd: -1,
			})
			p := &partitions[len(partitions)-1]
			r.int64() // last stable offset: a follower knows its own
			p.LogStartOffset = r.int64()
			for range r.array(true, 8+8+1) { // aborted transactions: none for replicas
				r.take(16)
				r.skipTags()
			}
			r.int32() // preferred replica
			if p.Records = r.bytes(true); len(p.Records) > 0 {
				p.Owner = owner
			}
			r.tags(func(tag uint32, value *wireReader) {
				switch tag {
				case 0:
					p.DivergingEpoch, p.DivergingEnd = value.int32(), value.int64()
					value.skipTags()
				case tagLogEndOffset:
					p.LogEndOffset = value.int64()
				}
			})
			if r.bad {
				break
			}
		}
		r.skipTags()
		if r.bad {
			break
		}
	}
	r.skipTags() // node endpoints
	switch {
	case r.bad || len(r.src) > 0:
		return partitions, noSession, ErrReplicaAnswer
	case code != codeNone:
		return partitions, noSession, fmt.Errorf("fetch refused by the leader: %w", replicaError(code))
	}
	return partitions, sessionID, nil
}

func (r *wireReader) int64() int64 {
	if p := r.take(8); p != nil {
		return int64(binary.BigEndian.Uint64(p))
	}
	return 0
}

func (r *wireReader) uuid() (id kafkaUUID) {
	copy(id[:], r.take(len(id)))
	return id
}

// tags reads a section of tagged fields and gives each to field. One whose value does not end where its size says spoils
// the reader.
func (r *wireReader) tags(field func(tag uint32, value *wireReader)) {
	for n := r.uvarint(); n > 0 && !r.bad; n-- {
		tag := r.uvarint()
		value := wireReader{src: r.take(int(r.uvarint()))}
		if r.bad {
			return
		}
		field(tag, &value)
		r.bad = r.bad || value.bad
	}
}
