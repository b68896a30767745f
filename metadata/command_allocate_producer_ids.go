package metadata

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// allocateProducerIDs moves the first free producer id on. The block before it then belongs to the proposer, for ever:
// what it has not used when it dies is lost, never given out again (P5).
type allocateProducerIDs struct {
	expectedNext int64
	count        int64
}

func (c *allocateProducerIDs) kind() pb.CommandType {
	return pb.CommandType_COMMAND_ALLOCATE_PRODUCER_IDS
}

func (c *allocateProducerIDs) message() proto.Message {
	return &pb.AllocateProducerIDs{ExpectedNext: c.expectedNext, Count: c.count}
}

func decodeAllocateProducerIDs(body []byte) (command, error) {
	var m pb.AllocateProducerIDs
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	if m.Count <= 0 {
		return nil, fmt.Errorf("allocate producer ids: count %d", m.Count)
	}
	return &allocateProducerIDs{expectedNext: m.ExpectedNext, count: m.Count}, nil
}

// apply returns the first id of the block, an int64.
func (c *allocateProducerIDs) apply(d *draft, _ position) (any, error) {
	first := d.st.nextProducerID
	if first != c.expectedNext {
		return nil, ErrStale
	}
	if first > math.MaxInt64-c.count {
		return nil, ErrPolicyViolation // 2^63 ids are used up
	}
	d.st.nextProducerID = first + c.count
	return first, nil
}
