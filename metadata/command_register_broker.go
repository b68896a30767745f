package metadata

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// registerBroker registers one process of a broker.
type registerBroker struct {
	broker *Broker // Epoch is given out by apply
	// expectedEpoch is the epoch of the registration that this one replaces, 0 if there was none. The controller has made
	// sure that its process is dead (M13); if another one registered meanwhile, that check was about the wrong process.
	expectedEpoch int64
}

// registered is the outcome of registerBroker.
type registered struct {
	Epoch int64
	// Bumped is the number of partitions whose leader epoch grew.
	Bumped int
	// Lost names partitions whose replica on this broker is gone with its directory.
	Lost []TopicPartition
	// Restarted names those of Lost that have no other replica and so start anew, empty, in another directory (I12).
	Restarted []TopicPartition
}

func (c *registerBroker) kind() pb.CommandType { return pb.CommandType_COMMAND_REGISTER_BROKER }

func (c *registerBroker) message() proto.Message {
	return &pb.RegisterBroker{Broker: encodeBroker(c.broker), ExpectedEpoch: c.expectedEpoch}
}

func decodeRegisterBroker(body []byte) (command, error) {
	var m pb.RegisterBroker
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	b, err := decodeBroker(m.Broker)
	if err != nil {
		return nil, err
	}
	return &registerBroker{broker: b, expectedEpoch: m.ExpectedEpoch}, nil
}

// apply stores the registration under the next broker epoch and visits every partition with a replica on the broker:
//   - one that it leads gets the next leader epoch, also when nothing else changes: the process may have lost its unsynced
//     tail, and would otherwise write other records under the same epoch and offsets (R14);
//   - one whose directory is not among the registered ones loses this replica from ISR and ELR (L11);
//   - one without a leader, whose ISR has the broker, is led by it.
//
// The same incarnation again is a repetition, or the same process with other listeners: it keeps its epoch.
func (c *registerBroker) apply(d *draft, _ position) (any, error) {
	b := *c.broker
	old := d.st.broker(b.ID)
	if old != nil && old.Incarnation == b.Incarnation {
		b.Epoch, b.Fenced = old.Epoch, old.Fenced
		b.Directories = old.Directories // they can't change while the process lives
		d.putBroker(&b)
		return registered{Epoch: b.Epoch}, nil
	}
	if d.st.featureLevel < b.MinFeatureLevel || d.st.featureLevel > b.MaxFeatureLevel {
		return nil, ErrPolicyViolation
	}
	var oldEpoch int64
	if old != nil {
		oldEpoch = old.Epoch
	}
	if c.expectedEpoch != oldEpoch {
		return nil, ErrStale
	}
	d.st.lastBrokerEpoch++
	b.Epoch = d.st.lastBrokerEpoch
	d.putBroker(&b)
	out := registered{Epoch: b.Epoch}

	var touched []string // collected first: changing a tree ends the walk over it
	d.st.eachTopic(func(t *Topic) bool {
		if slices.ContainsFunc(t.Partitions, func(p *Partition) bool { return slices.Contains(p.Replicas, b.ID) }) {
			touched = append(touched, t.Name)
		}
		return true
	})
	for _, name := range touched {
		d.reregister(&b, name, &out)
	}
	return out, nil
}

// reregister gives the partitions of one topic what a new registration of b means for them.
func (d *draft) reregister(b *Broker, topic string, out *registered) {
	var t *Topic // set when something of the topic changes
	for i := range d.st.topic(topic).Partitions {
		p := *d.st.topic(topic).Partitions[i]
		at := slices.Index(p.Replicas, b.ID)
		if at < 0 {
			continue
		}
		changed := false
		if !slices.Contains(b.Directories, p.Directories[at]) {
			tp := TopicPartition{Topic: topic, Partition: int32(i)}
			out.Lost = append(out.Lost, tp)
			if d.loseReplica(b, &p, at) {
				out.Restarted = append(out.Restarted, tp)
			}
			changed = true
		}
		if p.Leader == b.ID || p.Leader == NoBroker && slices.Contains(p.ISR, b.ID) {
			p.Leader, p.LastLeader = b.ID, b.ID
			p.LeaderEpoch++
			out.Bumped++
			changed = true
		}
		if !changed {
			continue
		}
		p.PartitionEpoch++
		if t == nil {
			t = d.ownTopic(topic)
		}
		t.Partitions[i] = &p
	}
}

// loseReplica takes replica at of p, whose directory is gone, out of ISR and ELR, finds the partition another leader if b
// led it, and puts the replica into one of b's present directories, where it will be copied anew. If b holds the only
// replica there is nobody to copy from: the partition starts anew on b, and loseReplica reports true.
func (d *draft) loseReplica(b *Broker, p *Partition, at int) (restarted bool) {
	if len(b.Directories) > 0 {
		p.Directories = slices.Clone(p.Directories)
		p.Directories[at] = b.Directories[at%len(b.Directories)]
	}
	if len(p.Replicas) == 1 && len(b.Directories) > 0 {
		p.ISR, p.ELR = p.Replicas, nil
		return true
	}
	p.ISR = without(p.ISR, b.ID)
	p.ELR = without(p.ELR, b.ID)
	if p.Leader == b.ID {
		p.Leader = NoBroker
		p.LeaderEpoch++
		for _, id := range p.ISR {
			if other := d.st.broker(id); other != nil && !other.Fenced {
				p.Leader, p.LastLeader = id, id
				break
			}
		}
	}
	return false
}

// without returns ids without id, as a new slice; nil when nothing is left.
func without(ids []BrokerID, id BrokerID) []BrokerID {
	var out []BrokerID
	for _, other := range ids {
		if other != id {
			out = append(out, other)
		}
	}
	return out
}
