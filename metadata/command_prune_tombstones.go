package metadata

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// pruneTombstones drops the tombstones of topics deleted up to an index that every registered broker has acted on: none of
// them has a copy of such a topic any more (L12).
type pruneTombstones struct{ through uint64 }

func (c *pruneTombstones) kind() pb.CommandType { return pb.CommandType_COMMAND_PRUNE_TOMBSTONES }

func (c *pruneTombstones) message() proto.Message { return &pb.PruneTombstones{Through: c.through} }

func decodePruneTombstones(body []byte) (command, error) {
	var m pb.PruneTombstones
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	return &pruneTombstones{through: m.Through}, nil
}

// apply returns how many it dropped, an int.
func (c *pruneTombstones) apply(d *draft, _ position) (any, error) {
	var gone []TopicID // collected first: changing a tree ends the walk over it
	for id, stone := range d.st.tombstones.all() {
		if stone.Index <= c.through {
			gone = append(gone, id)
		}
	}
	for _, id := range gone {
		d.st.tombstones = d.st.tombstones.delete(d.edit, id)
	}
	return len(gone), nil
}
