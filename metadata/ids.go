package metadata

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
)

// BrokerID is a broker's node id. Ids are ≥ 0; NoBroker (-1) means "none" wherever an id is optional.
type BrokerID int32

// NoBroker stands for "no broker": a partition without a leader, and the cluster default in Image.BrokerConfig.
const NoBroker BrokerID = -1

// String returns the id in decimal.
func (id BrokerID) String() string { return strconv.Itoa(int(id)) }

// TopicID names one incarnation of a topic. A topic that is deleted and created again under the same name gets another
// id, so that nothing of the old one is inherited (D14, M21). The zero value means "no id" and is never assigned.
type TopicID [16]byte

// String returns the id as Kafka writes UUIDs: base64 of the URL alphabet without padding, 22 characters.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// IsZero reports whether id is the zero value, which no topic has.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// ParseTopicID reads the form that String writes.
func ParseTopicID(s string) (TopicID, error) {
	var id TopicID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return id, fmt.Errorf("parse topic id %q: %w", s, err)
	}
	if len(b) != len(id) {
		return id, fmt.Errorf("parse topic id %q: %d bytes instead of %d", s, len(b), len(id))
	}
	copy(id[:], b)
	return id, nil
}

// MarshalText writes the form of String.
func (id TopicID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (id *TopicID) UnmarshalText(b []byte) (err error) {
	*id, err = ParseTopicID(string(b))
	return err
}

func compareTopicIDs(a, b TopicID) int { return bytes.Compare(a[:], b[:]) }

// DirectoryID is the random id of one log directory, made once when the directory is first opened. It tells a broker
// that came back with its data from one that came back empty under the same node id (L11).
type DirectoryID = [16]byte

// TopicPartition names a partition by topic name and index.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String returns topic-partition, as Kafka names partition directories.
func (tp TopicPartition) String() string {
	return tp.Topic + "-" + strconv.Itoa(int(tp.Partition))
}
