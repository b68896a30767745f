package group

import (
	"errors"

	"github.com/millrace/millrace/metadata"
)

// consumerProtocolType is the protocol type of consumers, as opposed to Connect's and others.
const consumerProtocolType = metadata.ConsumerProtocolType

var errSubscription = errors.New("malformed consumer subscription")

// subscribedTopics reads the topics out of a consumer's metadata.
func subscribedTopics(b []byte) ([]string, error) { return metadata.SubscribedTopics(b) }
