package group

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// Cores keep the view of topics that they are given: there is one for all of them while the topics stay as they are, whatever
// else changes, and it keeps no group alive as it was.
func TestTopicViews(t *testing.T) {
	x := newIdeal(t, 1)
	var views topicViews
	create := func(name string, partitions int) {
		require.NoError(t, x.do(func(r *metadata.Replica) error {
			return r.CreateTopic(name, metadata.TopicID{name[0]}, nil, slices.Repeat([][]metadata.BrokerID{{0}}, partitions))
		}))
	}
	create("a", 1)
	older := x.image.Load()
	first := views.at(older)
	require.EqualValues(t, 1, first.Version())

	store := idealStore{x, 0}
	for i := range 3 {
		store.ChangeGroup(metadata.GroupChange{
			Group: "g", Revision: revisionOf(x, "g"), Type: metadata.ClassicGroup, Generation: int32(i),
			Upsert: []*metadata.GroupMember{{ID: "m"}},
		}, func(_ uint64, err error) { require.NoError(t, err) })
		require.Same(t, first, views.at(x.image.Load()))
	}
	require.NotNil(t, x.image.Load().Group("g"))

	create("b", 2)
	second := views.at(x.image.Load())
	require.EqualValues(t, 2, second.Version())
	_, n, ok := second.Topic("b")
	require.True(t, ok)
	require.EqualValues(t, 2, n)
	_, _, ok = first.Topic("b")
	require.False(t, ok)
	require.Same(t, second, views.at(older), "time does not go back")
	require.Zero(t, second.im.GroupCount())
	require.NotZero(t, second.im.Version())
}

func revisionOf(x *ideal, group string) uint64 {
	if g := x.image.Load().Group(group); g != nil {
		return g.Revision
	}
	return 0
}
