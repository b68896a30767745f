package metadata

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answered runs a method that answers by callback and returns what it answered.
func answered[T any](t testing.TB, begin func(done func(T, error))) (T, error) {
	t.Helper()
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 2)
	begin(func(v T, err error) { c <- answer{v, err} })
	select {
	case a := <-c:
		return a.v, a.err
	case <-time.After(20 * time.Second):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func changeGroup1(t testing.TB, s *Store, c GroupChange) (uint64, error) {
	t.Helper()
	return answered(t, func(done func(uint64, error)) { s.ChangeGroup(c, done) })
}

func commit(t testing.TB, s *Store, c OffsetCommit) ([]error, error) {
	t.Helper()
	return answered(t, func(done func([]error, error)) { s.CommitOffsets(c, done) })
}

func deleteGroup(t testing.TB, s *Store, group string) error {
	t.Helper()
	_, err := answered(t, func(done func(none, error)) {
		s.DeleteGroup(group, time.Now(), func(err error) { done(none{}, err) })
	})
	return err
}

func deleteOffsetsOf(t testing.TB, s *Store, d OffsetDeletion) error {
	t.Helper()
	_, err := answered(t, func(done func(none, error)) { s.DeleteOffsets(d, func(err error) { done(none{}, err) }) })
	return err
}

// entriesFor are offsets of the first n partitions of a topic.
func entriesFor(id TopicID, n int, offset int64) (out []OffsetEntry) {
	for p := range n {
		out = append(out, OffsetEntry{TopicID: id, Partition: int32(p), Offset: offset, LeaderEpoch: -1})
	}
	return out
}

// What a coordinator does to a group is seen in its Image when it is answered (G3, M12), survives a restart, and a commit is
// refused as the fence of Apply says (G1).
func TestGroupsThroughStore(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 3))[0].ID

	entries, err := commit(t, s, OffsetCommit{Group: "simple", Generation: -1, Time: 5, Offsets: []OffsetEntry{
		{id, 0, 10, 3, "note"}, {TopicID{9}, 0, 1, -1, ""}, {id, 3, 1, -1, ""}, {id, -1, 1, -1, ""}, {id, 1, -5, -1, ""}, {id, 2, 7, -1, ""},
	}})
	require.NoError(t, err)
	for i, want := range []error{nil, ErrUnknownTopicID, ErrUnknownPartition, ErrUnknownPartition, ErrInvalidRequest, nil} {
		require.ErrorIs(t, entries[i], want, "entry %d", i)
	}
	o, ok := s.Offset("simple", id, 0)
	require.True(t, ok)
	require.Equal(t, CommittedOffset{Offset: 10, LeaderEpoch: 3, Metadata: "note", CommittedAt: 5}, o, "with its leader epoch (G13)")
	require.Len(t, entriesOfSeq(s.Offsets("simple")), 2)
	require.Equal(t, ClassicGroup, s.Image().Group("simple").Type)
	require.Empty(t, s.Image().Group("simple").ProtocolType)
	entries, err = commit(t, s, OffsetCommit{Group: "simple", Generation: -1, Offsets: entriesFor(id, 3, 11)})
	require.NoError(t, err)
	require.Nil(t, entries)

	_, err = commit(t, s, OffsetCommit{Group: "nobody", Member: "m", Generation: 3, Offsets: entriesFor(id, 1, 1)})
	require.ErrorIs(t, err, ErrGroupNotFound)
	change := GroupChange{Group: "g", Type: ClassicGroup, State: GroupCompleting, Generation: 1, ProtocolType: "consumer", Protocol: "range", Leader: "a",
		Upsert: []*GroupMember{{ID: "b", SessionTimeout: time.Second}, {ID: "a", InstanceID: "i"}}}
	revision, err := changeGroup1(t, s, change)
	require.NoError(t, err)
	g := s.Image().Group("g")
	require.Equal(t, revision, g.Revision)
	require.Equal(t, []string{"a", "b"}, []string{g.Members[0].ID, g.Members[1].ID})
	_, err = changeGroup1(t, s, change)
	require.ErrorIs(t, err, ErrStale, "it is there already")
	for _, c := range []struct {
		member, instance string
		generation       int32
		want             error
	}{
		{"", "", -1, ErrUnknownMember}, {"c", "", 1, ErrUnknownMember}, {"b", "", 0, ErrIllegalGeneration}, {"b", "", 2, ErrIllegalGeneration},
		{"b", "", -1, ErrIllegalGeneration}, {"b", "i", 1, ErrFencedInstance}, {"old", "i", 1, ErrFencedInstance}, {"b", "j", 1, ErrUnknownMember},
		{"b", "", 1, nil}, {"a", "i", 1, nil},
	} {
		_, err := commit(t, s, OffsetCommit{Group: "g", Member: c.member, Instance: c.instance, Generation: c.generation, Offsets: entriesFor(id, 1, 20)})
		require.ErrorIs(t, err, c.want, "%+v", c)
	}
	require.ErrorIs(t, deleteGroup(t, s, "g"), ErrGroupNotEmpty)
	require.ErrorIs(t, deleteGroup(t, s, "nobody"), ErrGroupNotFound)
	require.ErrorIs(t, deleteOffsetsOf(t, s, OffsetDeletion{Group: "g", Revision: revision + 1, Partitions: []TopicIDPartition{{id, 0}}}), ErrStale)
	require.NoError(t, deleteOffsetsOf(t, s, OffsetDeletion{Group: "g", Revision: revision, Partitions: []TopicIDPartition{{id, 0}, {id, 2}}}))
	require.Empty(t, entriesOfSeq(s.Offsets("g")))

	require.NoError(t, s.Close())
	s = openStore(t, cfg)
	register(t, s, 1, 2)
	require.Len(t, entriesOfSeq(s.Offsets("simple")), 3)
	g = s.Image().Group("g")
	require.True(t, g.Interrupted, "its coordinator did not say good-bye (D6)")
	_, err = changeGroup1(t, s, GroupChange{Group: "g", Revision: revision, Type: ClassicGroup, Generation: 2})
	require.ErrorIs(t, err, ErrStale, "the mark is a change of the group")
	_, err = changeGroup1(t, s, GroupChange{Group: "g", Revision: g.Revision, Type: ClassicGroup, Generation: 2, EmptySince: 9, PutOutAt: 8, Remove: []string{"a", "b", "x"}})
	require.NoError(t, err)
	require.Equal(t, int64(9), s.Image().Group("g").EmptySince)
	require.Equal(t, int64(8), s.Image().Group("g").PutOutAt)
	require.NoError(t, deleteGroup(t, s, "g"))
	require.Nil(t, s.Image().Group("g"))
	require.Equal(t, int32(2), s.Image().LastGeneration("g"))
	_, err = changeGroup1(t, s, GroupChange{Group: "g", Type: ClassicGroup, Generation: 1})
	require.ErrorIs(t, err, ErrStale, "a generation is never used again (I15)")
	_, err = changeGroup1(t, s, GroupChange{Group: "g", Type: ClassicGroup, Generation: 3})
	require.NoError(t, err)
}

func entriesOfSeq[K comparable, V any](seq func(func(K, V) bool)) map[K]V {
	m := make(map[K]V)
	seq(func(k K, v V) bool { m[k] = v; return true })
	return m
}

// M20: a commit of very many partitions goes in parts, a change of a very large group in a chain; each is answered as one.
func TestLargeGroupsAndCommits(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("wide", 6000))[0].ID
	offsets := entriesFor(id, 6001, 3)
	for i := range offsets {
		offsets[i].Metadata = fmt.Sprintf("metadata of partition %d", i)
	}
	entries, err := commit(t, s, OffsetCommit{Group: "g", Generation: -1, Offsets: offsets})
	require.NoError(t, err)
	require.Len(t, entries, 6001)
	require.ErrorIs(t, entries[6000], ErrUnknownPartition)
	require.NoError(t, entries[5999])
	require.Equal(t, 6000, s.Image().OffsetCount())
	o, _ := s.Offset("g", id, 4321)
	require.Equal(t, "metadata of partition 4321", o.Metadata)
	_, err = commit(t, s, OffsetCommit{Group: "h", Member: "m", Generation: 1, Offsets: offsets})
	require.ErrorIs(t, err, ErrGroupNotFound, "all parts were refused")

	change := GroupChange{Group: "big", Type: ClassicGroup, State: GroupStable, Generation: 1}
	for i := range 500 {
		change.Upsert = append(change.Upsert, &GroupMember{ID: fmt.Sprintf("m%03d", i), Assignment: make([]byte, 2000)})
	}
	_, err = changeGroup1(t, s, change)
	require.NoError(t, err)
	require.Len(t, s.Image().Group("big").Members, 500)
	require.Empty(t, s.Image().st.chains)
	// What the leader says of them at its next sync goes the same way, and so does each commit: no entry is larger.
	give := GroupChange{Group: "big", Revision: s.Image().Group("big").Revision, Type: ClassicGroup, State: GroupStable, Generation: 1}
	for _, m := range change.Upsert {
		give.Assign = append(give.Assign, MemberAssignment{Member: m.ID, Assignment: append(make([]byte, 1999), 1)})
	}
	_, err = changeGroup1(t, s, give)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Image().Group("big").Members[499].Assignment[1999])
	first, err := s.logs.FirstIndex()
	require.NoError(t, err)
	last, err := s.logs.LastIndex()
	require.NoError(t, err)
	largest := 0
	for i := first; i <= last; i++ {
		largest = max(largest, len(readEntry(t, s.logs, i).Data))
	}
	require.LessOrEqual(t, largest, maxEntryBytes)
	require.Greater(t, largest, maxEntryBytes/4, "none of them was large")

	change.Group = "bigger"
	change.Upsert[0].Assignment = make([]byte, maxChangeBytes)
	_, err = changeGroup1(t, s, change)
	require.ErrorIs(t, err, ErrPolicyViolation)
}

// I18, G7: a member that commits, and without waiting for the answer gives the partition up or leaves, has committed; what of its
// requests came first is applied first.
func TestChangesFollowCommits(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 1))[0].ID
	const groups = 20
	names := make([]string, groups)
	revisions := make([]uint64, groups)
	member := func() []*GroupMember { return []*GroupMember{{ID: "m", MemberEpoch: 1, SessionTimeout: time.Hour}} }
	for i := range names {
		names[i] = fmt.Sprintf("g%d", i)
		var err error
		revisions[i], err = changeGroup1(t, s, GroupChange{Group: names[i], Type: ClassicGroup, State: GroupStable, Generation: 1, ProtocolType: "consumer", Upsert: member()})
		require.NoError(t, err)
	}
	for round := range 40 {
		type outcome struct {
			group    int
			revision uint64
			err      error
		}
		done := make(chan outcome, 2*groups)
		for i, name := range names {
			s.CommitOffsets(OffsetCommit{Group: name, Member: "m", Generation: int32(1 + 2*round), Offsets: entriesFor(id, 1, int64(round))}, func(entries []error, err error) {
				done <- outcome{-1, 0, errors.Join(append(entries, err)...)}
			})
			// It leaves, and joins again: two generations.
			s.ChangeGroup(GroupChange{Group: name, Revision: revisions[i], Type: ClassicGroup, State: GroupEmpty, Generation: int32(2 + 2*round), ProtocolType: "consumer", Remove: []string{"m"}}, func(revision uint64, err error) {
				done <- outcome{i, revision, err}
			})
		}
		for range 2 * groups {
			o := <-done
			require.NoError(t, o.err)
			if o.group >= 0 {
				revisions[o.group] = o.revision
			}
		}
		for i, name := range names {
			o, ok := s.Offset(name, id, 0)
			require.True(t, ok)
			require.EqualValues(t, round, o.Offset)
			var err error
			revisions[i], err = changeGroup1(t, s, GroupChange{Group: name, Revision: revisions[i], Type: ClassicGroup, State: GroupStable, Generation: int32(3 + 2*round), ProtocolType: "consumer", Upsert: member()})
			require.NoError(t, err)
		}
	}
	require.Empty(t, s.outbox.order.groups)
}

// What is no text can't be kept; it is refused, and nothing else with it.
func TestTextThatIsNone(t *testing.T) {
	s := openStore(t, testConfig(t, t.TempDir()))
	register(t, s, 1, 1)
	id := createTopics(t, s, newTopic("orders", 3))[0].ID
	offsets := entriesFor(id, 2, 5)
	offsets[1].Metadata = "\xff"
	_, err := commit(t, s, OffsetCommit{Group: "billing", Generation: -1, Offsets: offsets})
	require.ErrorIs(t, err, ErrInvalidRequest)
	_, err = changeGroup1(t, s, GroupChange{Group: "billing", Type: ClassicGroup, Upsert: []*GroupMember{{ID: "a", ClientID: "\xff"}}})
	require.ErrorIs(t, err, ErrInvalidRequest)
	require.Nil(t, s.Image().Group("billing"))
	_, err = commit(t, s, OffsetCommit{Group: "billing", Generation: -1, Offsets: offsets[:1]})
	require.NoError(t, err)
}

// A broker of the level before would stop at a field that it does not know (D17).
func TestPutOutAtNeedsFeatureLevel(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.FeatureLevel = GroupsFeatureLevel
	s := openStore(t, cfg)
	register(t, s, 1, 1)
	_, err := changeGroup1(t, s, GroupChange{Group: "g", Type: ConsumerGroup, Generation: 1, EmptySince: 9, PutOutAt: 9})
	require.NoError(t, err)
	require.Zero(t, s.Image().Group("g").PutOutAt)
}
