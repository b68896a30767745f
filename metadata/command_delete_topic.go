package metadata

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/millrace/millrace/metadata/metadatapb"
)

// deleteTopic deletes one incarnation of a topic, by id: a topic that was meanwhile created anew under the same name is
// another one and stays (D14).
type deleteTopic struct {
	id      TopicID
	request requestID
}

func (c *deleteTopic) kind() pb.CommandType { return pb.CommandType_COMMAND_DELETE_TOPIC }

func (c *deleteTopic) message() proto.Message {
	return &pb.DeleteTopic{RequestId: c.request[:], TopicId: c.id[:]}
}

func decodeDeleteTopic(body []byte) (command, error) {
	var m pb.DeleteTopic
	if err := unmarshal(body, &m); err != nil {
		return nil, err
	}
	request, err := bytes16(m.RequestId, "request id")
	if err != nil {
		return nil, err
	}
	id, err := bytes16(m.TopicId, "topic id")
	if err != nil {
		return nil, err
	}
	return &deleteTopic{id: id, request: request}, nil
}

// apply leaves a tombstone, by which a broker that was away learns that its copies may go (L12). Transactions wait for no
// marker in its partitions any more (P12).
func (c *deleteTopic) apply(d *draft, at position) (any, error) {
	t := d.st.topicByID(c.id)
	if t == nil {
		if stone, ok := d.st.tombstones.get(c.id); ok && stone.Request == c.request {
			return nil, nil // a repetition
		}
		return nil, ErrUnknownTopicID
	}
	d.removeTopic(t, tombstone{Request: c.request, Index: at.index})
	d.forgetTopic(t.ID)
	return nil, nil
}
