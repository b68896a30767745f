package metadata

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// alterBroker changes what a registered broker may do. It is small however many partitions the broker has a part in: Apply
// visits them and gives each the ISR and the leader that follow.
type alterBroker struct {
	broker                              BrokerID
	epoch                               int64 // of the registration it is about
	fenced, leaving, draining, removing pb.Switch
	// fencedIndex, with fenced off, names the fence that is lifted: the broker has caught up with that one, not with a later.
	fencedIndex uint64
	offline     []DirectoryID // further directories that can't be used
	policy      partitionPolicy
}

func (c *alterBroker) kind() pb.CommandType { return pb.CommandType_COMMAND_ALTER_BROKER }

func (c *alterBroker) message() proto.Message {
	return &pb.AlterBroker{
		Broker: int32(c.broker), Epoch: c.epoch,
		Fenced: c.fenced, Leaving: c.leaving, Draining: c.draining, Removing: c.removing,
		FencedIndex: c.fencedIndex, Offline: encodeIDs(c.offline), Policy: c.policy.message(),
	}
}

func decodeAlterBroker(body []byte) (command, error) {
	var m pb.AlterBroker
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	for _, sw := range []pb.Switch{m.Fenced, m.Leaving, m.Draining, m.Removing} {
		if sw < pb.Switch_SWITCH_UNCHANGED || sw > pb.Switch_SWITCH_OFF {
			return nil, fmt.Errorf("alter broker: switch %d: %w", sw, errNewerVersion)
		}
	}
	offline, err := decodeIDs(m.Offline)
	if err != nil {
		return nil, err
	}
	return &alterBroker{
		broker: BrokerID(m.Broker), epoch: m.Epoch,
		fenced: m.Fenced, leaving: m.Leaving, draining: m.Draining, removing: m.Removing,
		fencedIndex: m.FencedIndex, offline: offline, policy: decodePolicy(m.Policy),
	}, nil
}

// apply returns a failover. The same command again finds nothing to change, but for leaders that can move only now.
func (c *alterBroker) apply(d *draft, at position) (any, error) {
	old := d.st.broker(c.broker)
	switch {
	case old == nil:
		return nil, ErrUnknownBroker
	case old.Epoch != c.epoch:
		return nil, ErrStaleBrokerEpoch
	case c.fenced == pb.Switch_SWITCH_OFF && old.Fenced && old.fencedIndex != c.fencedIndex:
		return nil, ErrStale
	}
	b := *old
	set(&b.Fenced, c.fenced)
	set(&b.Leaving, c.leaving)
	set(&b.Draining, c.draining)
	set(&b.Removing, c.removing)
	if b.Fenced && !old.Fenced {
		b.fencedIndex = at.index
	}
	for _, dir := range c.offline {
		if slices.Contains(b.Directories, dir) && !slices.Contains(b.Offline, dir) {
			b.Offline = append(slices.Clone(b.Offline), dir)
		}
	}
	coordinators := d.st.coordinators
	d.putBroker(&b)
	var out failover
	if b.Fenced && !old.Fenced && !old.Leaving {
		// A broker that leaves has handed its groups over; this one is lost.
		out.Interrupted = d.interrupt(b.ID, coordinators)
	}
	d.replicasOf(b.ID, c.policy, &out, func(r *revision, at int) { r.follow(&b, at) })
	return out, nil
}

func set(flag *bool, sw pb.Switch) {
	if sw != pb.Switch_SWITCH_UNCHANGED {
		*flag = sw == pb.Switch_SWITCH_ON
	}
}

// follow gives the partition, whose replica at position at is on b, the ISR and leader that follow from b's present state.
func (r *revision) follow(b *Broker, at int) {
	switch {
	case !r.usable(at):
		r.shrink(b.ID, true)
	case b.Leaving && slices.Contains(r.ISR, b.ID):
		// It is about to stop: while it is in the ISR, acknowledgements would wait for it.
		if next := r.pick(without(r.ISR, b.ID)); next != NoBroker {
			if r.Leader == b.ID {
				r.Leader = next
			}
			r.shrink(b.ID, true)
		}
	}
	if r.Leader == NoBroker || r.Leader == b.ID {
		r.elect()
	}
}
