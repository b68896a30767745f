package metadata

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// assignBrokerID gives a directory its broker id. The directory makes a repetition recognizable.
type assignBrokerID struct {
	directory DirectoryID
	want      BrokerID // NoBroker = any
	// replace takes want over from a broker that is dead for good. expectedEpoch is then the registration whose process the
	// controller found dead, 0 if there is none.
	replace       bool
	expectedEpoch int64
}

func (c *assignBrokerID) kind() pb.CommandType { return pb.CommandType_COMMAND_ASSIGN_BROKER_ID }

func (c *assignBrokerID) message() proto.Message {
	return &pb.AssignBrokerID{Directory: c.directory[:], Want: int32(c.want), Replace: c.replace, ExpectedEpoch: c.expectedEpoch}
}

func decodeAssignBrokerID(body []byte) (command, error) {
	var m pb.AssignBrokerID
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	dir, err := bytes16(m.Directory, "directory id")
	if err != nil {
		return nil, err
	}
	if m.Want < int32(NoBroker) || m.Replace && m.Want < 0 {
		return nil, errors.New("assign broker id: below -1, or no id to replace")
	}
	return &assignBrokerID{directory: dir, want: BrokerID(m.Want), replace: m.Replace, expectedEpoch: m.ExpectedEpoch}, nil
}

// apply returns the BrokerID.
func (c *assignBrokerID) apply(d *draft, _ position) (any, error) {
	if id := d.st.identity(c.directory); id != nil {
		switch {
		case id.Removed:
			return nil, ErrRemoved
		case c.want != NoBroker && c.want != id.Broker:
			return nil, ErrDuplicateBroker
		}
		return id.Broker, nil
	}
	id := c.want
	if id == NoBroker {
		id = d.st.nextBrokerID
	}
	present := d.st.broker(id)
	owned := func(i *identity) bool { return i.Broker == id && !i.Removed }
	taken := present != nil || slices.ContainsFunc(d.st.identities, owned)
	switch {
	case taken && !c.replace:
		return nil, ErrDuplicateBroker
	case taken && present != nil && present.Epoch != c.expectedEpoch:
		return nil, ErrStale
	case !taken && slices.ContainsFunc(d.st.identities, func(i *identity) bool { return i.Broker == id }):
		return nil, ErrRemoved // ids are not given out again (I15)
	}
	// What the dead broker had can't come back under the same id.
	for _, old := range d.st.identities {
		if owned(old) {
			d.putIdentity(&identity{Directory: old.Directory, Broker: id, Removed: true})
		}
	}
	d.putIdentity(&identity{Directory: c.directory, Broker: id})
	return id, nil
}
