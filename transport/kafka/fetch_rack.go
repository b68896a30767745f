package kafka

import (
	"slices"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// A consumer that says its rack (client.rack) is served by a replica in the same
// rack if there is one (KIP-392): the leader sends it to a follower, which serves
// what is below its own high watermark, and sends back whoever asks for more than
// it has. Nobody is sent anywhere without a rack of its own.

// preferredReplica returns the follower that the consumer should read the
// partition from, -1 when that is this broker, its leader: because they are in
// the same rack, or nobody suitable is in the consumer's.
//
// Suitable is a follower in the ISR that is not fenced and that the consumer can
// reach on its listener. Members of the ISR hold all below the high watermark,
// which is all that a consumer can be at.
func (f *fetchCall) preferredReplica(part *replication.Partition) int32 {
	if f.rack == "" || !part.IsLeader() {
		return -1
	}
	e := f.endpoints
	topic := e.image.TopicByID(part.TopicID())
	if topic == nil || int(part.ID()) >= len(topic.Partitions) {
		return -1
	}
	p := topic.Partitions[part.ID()]
	best := metadata.NoBroker
	for _, id := range p.ISR {
		b := e.image.Broker(id)
		if b == nil || b.Rack != f.rack {
			continue
		}
		if id == f.h.cfg.BrokerID {
			return -1
		}
		if _, ok := e.ofBroker(b); !ok || b.Leaving {
			continue
		}
		// Of several the first behind the partition's preferred leader, so that those of different partitions differ.
		if best == metadata.NoBroker || slices.Index(p.Replicas, id) < slices.Index(p.Replicas, best) {
			best = id
		}
	}
	return int32(best)
}
