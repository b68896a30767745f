package metadata

import (
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// unregisterBroker forgets a broker without replicas. Its directories stay known as removed (M14).
type unregisterBroker struct {
	broker BrokerID
	epoch  int64
}

func (c *unregisterBroker) kind() pb.CommandType { return pb.CommandType_COMMAND_UNREGISTER_BROKER }

func (c *unregisterBroker) message() proto.Message {
	return &pb.UnregisterBroker{Broker: int32(c.broker), Epoch: c.epoch}
}

func decodeUnregisterBroker(body []byte) (command, error) {
	var m pb.UnregisterBroker
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	return &unregisterBroker{broker: BrokerID(m.Broker), epoch: m.Epoch}, nil
}

// apply leaves the identities of the broker's directories, marked as removed.
func (c *unregisterBroker) apply(d *draft, _ position) (any, error) {
	b := d.st.broker(c.broker)
	switch {
	case b == nil:
		return nil, ErrUnknownBroker
	case b.Epoch != c.epoch:
		return nil, ErrStale
	case d.st.hosts(c.broker), !b.Fenced && !b.Removing:
		return nil, ErrPolicyViolation
	}
	d.removeBroker(c.broker)
	for _, id := range d.st.identities {
		if id.Broker == c.broker {
			d.putIdentity(&identity{Directory: id.Directory, Broker: id.Broker, Removed: true})
		}
	}
	for _, dir := range b.Directories {
		d.putIdentity(&identity{Directory: dir, Broker: b.ID, Removed: true})
	}
	return nil, nil
}

// hosts reports whether any partition has a replica on the broker.
func (st *state) hosts(id BrokerID) bool {
	found := false
	st.eachTopic(func(t *Topic) bool {
		found = slices.ContainsFunc(t.Partitions, func(p *Partition) bool { return slices.Contains(p.Replicas, id) })
		return !found
	})
	return found
}
