package group

import (
	"encoding/binary"
	"errors"
)

// consumerProtocolType is the protocol type of consumers, as opposed to Connect's and others.
const consumerProtocolType = "consumer"

var errSubscription = errors.New("malformed consumer subscription")

// subscribedTopics reads the topics out of a consumer's metadata: version int16, then an array of strings, then what does
// not matter here. It is the one place that looks into what members say: whether a topic is subscribed decides about
// OffsetDelete and about static members that return.
func subscribedTopics(b []byte) ([]string, error) {
	if len(b) < 6 || int16(binary.BigEndian.Uint16(b)) < 0 {
		return nil, errSubscription
	}
	n := int(int32(binary.BigEndian.Uint32(b[2:])))
	b = b[6:]
	if n < 0 || n > len(b)/2 {
		return nil, errSubscription
	}
	topics := make([]string, 0, n)
	for range n {
		if len(b) < 2 {
			return nil, errSubscription
		}
		size := int(int16(binary.BigEndian.Uint16(b)))
		if size < 0 || size > len(b)-2 {
			return nil, errSubscription
		}
		topics = append(topics, string(b[2:2+size]))
		b = b[2+size:]
	}
	return topics, nil
}
