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
	// tailsProven: see Registration.TailsProven.
	tailsProven bool
	policy      partitionPolicy
}

// registered is the outcome of registerBroker.
type registered struct {
	Epoch int64
	// Bumped is the number of partitions that it led before or leads now.
	Bumped int
	failover
	// Lost names partitions whose replica on this broker is gone with its directory.
	Lost []TopicPartition
	// Restarted names those of Lost that have no other replica and so start anew, empty, in another directory (I12).
	Restarted []TopicPartition
}

func (c *registerBroker) kind() pb.CommandType { return pb.CommandType_COMMAND_REGISTER_BROKER }

func (c *registerBroker) message() proto.Message {
	return &pb.RegisterBroker{
		Broker: encodeBroker(c.broker), ExpectedEpoch: c.expectedEpoch, TailsProven: c.tailsProven, Policy: c.policy.message(),
	}
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
	return &registerBroker{
		broker: b, expectedEpoch: m.ExpectedEpoch, tailsProven: m.TailsProven, policy: decodePolicy(m.Policy),
	}, nil
}

// apply stores the registration under the next broker epoch and visits every partition with a replica on the broker:
//   - one that it leads gets the next leader epoch, also when nothing else changes: the process may have lost its unsynced
//     tail, and would otherwise write other records under the same epoch and offsets (R14);
//   - one whose directory is not among the registered ones loses this replica from ISR and ELR (L11);
//   - so does one whose records may have been acknowledged without a sync, unless the broker proves that it has them (I12);
//   - any other keeps its place, or with a registration that is fenced becomes eligible at most.
//
// The same incarnation again is a repetition, or the same process with other listeners: it keeps its epoch.
func (c *registerBroker) apply(d *draft, at position) (any, error) {
	b := *c.broker
	old := d.st.broker(b.ID)
	if old != nil && old.Incarnation == b.Incarnation {
		again := *old // directories can't change while the process lives
		again.Rack, again.Listeners, again.PeerAddress, again.Version = b.Rack, b.Listeners, b.PeerAddress, b.Version
		again.MinFeatureLevel, again.MaxFeatureLevel = b.MinFeatureLevel, b.MaxFeatureLevel
		d.putBroker(&again)
		return registered{Epoch: again.Epoch}, nil
	}
	if d.st.featureLevel < b.MinFeatureLevel || d.st.featureLevel > b.MaxFeatureLevel {
		return nil, ErrPolicyViolation
	}
	for _, dir := range b.Directories {
		switch id := d.st.identity(dir); {
		case id == nil:
		case id.Removed:
			return nil, ErrRemoved
		case id.Broker != b.ID:
			return nil, ErrDuplicateBroker
		}
	}
	var oldEpoch int64
	if old != nil {
		oldEpoch = old.Epoch
		b.Draining, b.Removing = old.Draining, old.Removing
	}
	if c.expectedEpoch != oldEpoch {
		return nil, ErrStale
	}
	d.st.lastBrokerEpoch++
	b.Epoch = d.st.lastBrokerEpoch
	b.Leaving, b.Offline = false, nil
	if b.Fenced {
		b.fencedIndex = at.index
	}
	coordinators := d.st.coordinators
	d.putBroker(&b)
	for _, dir := range b.Directories {
		d.putIdentity(&identity{Directory: dir, Broker: b.ID})
	}
	out := registered{Epoch: b.Epoch}
	if old != nil && !old.Fenced && !old.Leaving {
		// Its process died, and this one came before anybody noticed.
		out.Interrupted = d.interrupt(b.ID, coordinators)
	}
	d.replicasOf(b.ID, c.policy, &out.failover, func(r *revision, at int) {
		r.reregister(&b, at, c.tailsProven, &out)
	})
	return out, nil
}

// reregister gives the partition what a new registration of b, where its replica at is, means for it.
func (r *revision) reregister(b *Broker, at int, tailsProven bool, out *registered) {
	led := r.Leader == b.ID
	switch {
	case !slices.Contains(b.Directories, r.Directories[at]):
		tp := TopicPartition{Topic: r.topic.Name, Partition: int32(r.index)}
		out.Lost = append(out.Lost, tp)
		if r.lose(b, at) {
			out.Restarted = append(out.Restarted, tp)
		}
	case !tailsProven && !r.policy.flushes(r.topic):
		r.shrink(b.ID, false)
	case b.Fenced:
		r.shrink(b.ID, true)
	}
	if led || r.Leader == NoBroker {
		r.elect()
	}
	if led || r.Leader == b.ID {
		r.renew = true
		out.Bumped++
	}
}

// lose takes the replica at position at, whose directory is gone, out of ISR and ELR, and puts it into one of b's present
// directories, where it will be copied anew. If b holds the only replica there is nobody to copy from: the partition starts
// anew on b, and lose reports true. With other replicas, b is no longer the last known leader: to elect it would have the
// others cut their logs to nothing.
func (r *revision) lose(b *Broker, at int) (restarted bool) {
	if len(b.Directories) > 0 {
		r.Directories = slices.Clone(r.Directories)
		r.Directories[at] = b.Directories[at%len(b.Directories)]
	}
	if len(r.Replicas) == 1 && len(b.Directories) > 0 {
		r.ISR, r.ELR = r.Replicas, nil
		if b.Fenced {
			r.ISR, r.ELR = nil, r.Replicas
		}
		return true
	}
	r.shrink(b.ID, false)
	if r.LastLeader == b.ID {
		r.LastLeader = NoBroker
	}
	if r.Leader == b.ID {
		r.Leader = NoBroker
	}
	return false
}
