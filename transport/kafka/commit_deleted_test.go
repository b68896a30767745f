package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/group"
	"github.com/millrace/millrace/metadata"
)

// A topic that is deleted while a commit is on its way is refused in the words of the request's version: by name it is 3, and
// 100 only where the request names ids.
func TestCommitOfDeletedTopic(t *testing.T) {
	b := ownBroker(t, brokerEdit{})
	c, topic := b.dial(t), b.topic(t, 1)
	b.groups.commit = func(r group.CommitRequest) ([]error, error) { return []error{metadata.ErrUnknownTopicID}, nil }
	for version := int16(1); version <= 10; version++ {
		want := codeUnknownTopicOrPartition
		if version == 10 {
			want = codeUnknownTopicID
		}
		require.Equal(t, [][]int16{{want}}, commitCodes(ask[*kmsg.OffsetCommitResponse](c, commitRequest(version, commitTopic(topic, 7)))), "v%d", version)
	}
	for version := int16(0); version <= 6; version++ {
		want := codeUnknownTopicOrPartition
		if version == 6 {
			want = codeUnknownTopicID
		}
		require.Equal(t, want, txnCommitCode(metadata.ErrUnknownTopicID, version), "v%d", version)
	}
}
