package group

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/metadata"
)

// drawInput draws a group whose members subscribe to some of a few topics; alike: all to all.
func drawInput(t *rapid.T, alike bool) AssignorInput {
	var in AssignorInput
	for i := range rapid.IntRange(1, 5).Draw(t, "topics") {
		in.Topics = append(in.Topics, AssignorTopic{ID: metadata.TopicID{15: byte(i + 1)}, Partitions: rapid.Int32Range(0, 12).Draw(t, "partitions")})
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "members") {
		m := AssignorMember{ID: fmt.Sprint("m", i)}
		for topic := range in.Topics {
			if alike || rapid.Bool().Draw(t, "subscribes") {
				m.Topics = append(m.Topics, topic)
			}
		}
		in.Members = append(in.Members, m)
	}
	return in
}

// checkTargets: every partition that somebody subscribes to has one owner, who subscribes to it, and targets ascend.
func checkTargets(t require.TestingT, in AssignorInput, targets [][]metadata.TopicPartitions) (load []int) {
	require.Len(t, targets, len(in.Members))
	owners := map[TopicIDPartition]int{}
	for m, target := range targets {
		n := 0
		require.True(t, slices.IsSortedFunc(target, comparePartitions))
		for _, tp := range target {
			require.True(t, slices.IsSorted(tp.Partitions))
			topic := slices.IndexFunc(in.Topics, func(a AssignorTopic) bool { return a.ID == tp.TopicID })
			require.Contains(t, in.Members[m].Topics, topic)
			for _, p := range tp.Partitions {
				require.Less(t, p, in.Topics[topic].Partitions)
				owners[TopicIDPartition{TopicID: tp.TopicID, Partition: p}]++
				n++
			}
		}
		load = append(load, n)
	}
	for i, topic := range in.Topics {
		wanted := slices.ContainsFunc(in.Members, func(m AssignorMember) bool { return slices.Contains(m.Topics, i) })
		for p := range topic.Partitions {
			want := 0
			if wanted {
				want = 1
			}
			require.Equal(t, want, owners[TopicIDPartition{TopicID: topic.ID, Partition: p}])
		}
	}
	return load
}

// kept counts the partitions that a member had and has.
func kept(before, after []metadata.TopicPartitions) (n int) {
	for _, b := range before {
		for _, a := range after {
			if a.TopicID != b.TopicID {
				continue
			}
			for _, p := range b.Partitions {
				if slices.Contains(a.Partitions, p) {
					n++
				}
			}
		}
	}
	return n
}

func size(target []metadata.TopicPartitions) (n int) {
	for _, tp := range target {
		n += len(tp.Partitions)
	}
	return n
}

// I18: both assignors give each partition to one member that subscribes to it.
func TestAssignorsGiveEachPartitionOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, false)
		for _, name := range Assignors {
			checkTargets(t, in, assignors[name](in))
		}
	})
}

// Uniform is as even as the subscriptions allow: no member has two more than one that could have one of its partitions.
func TestUniformIsEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "alike"))
		targets := assignUniform(in)
		load := checkTargets(t, in, targets)
		for a, target := range targets {
			for b, m := range in.Members {
				if load[a] < load[b]+2 {
					continue
				}
				for _, tp := range target {
					topic := slices.IndexFunc(in.Topics, func(x AssignorTopic) bool { return x.ID == tp.TopicID })
					require.NotContains(t, m.Topics, topic, "member %d has %d, member %d could take from it and has %d", a, load[a], b, load[b])
				}
			}
		}
	})
}

// A chain: b can give to a only by way of what both of them and c subscribe to.
func TestUniformMovesAlongChains(t *testing.T) {
	topic := func(i byte) metadata.TopicID { return metadata.TopicID{15: i} }
	in := AssignorInput{
		Topics: []AssignorTopic{{topic(1), 2}, {topic(2), 4}},
		Members: []AssignorMember{
			{ID: "a", Topics: []int{0}},
			{ID: "b", Topics: []int{0, 1}, Target: []metadata.TopicPartitions{{TopicID: topic(1), Partitions: []int32{0, 1}}}},
			{ID: "c", Topics: []int{1}, Target: []metadata.TopicPartitions{{TopicID: topic(2), Partitions: []int32{0, 1, 2, 3}}}},
		},
	}
	require.Equal(t, []int{2, 2, 2}, checkTargets(t, in, assignUniform(in)))
}

// Uniform moves nothing without a reason; when a member leaves, the others keep what they have, and when one comes, they
// give up what it gets and nothing more.
func TestUniformIsSticky(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		if len(in.Members) == 0 {
			return
		}
		first := assignUniform(in)
		for i := range in.Members {
			in.Members[i].Target = first[i]
		}
		require.Equal(t, first, assignUniform(in))

		gone := rapid.IntRange(0, len(in.Members)-1).Draw(t, "gone")
		fewer := in
		fewer.Members = slices.Delete(slices.Clone(in.Members), gone, gone+1)
		after := assignUniform(fewer)
		checkTargets(t, fewer, after)
		for i, m := range fewer.Members {
			require.Equal(t, size(m.Target), kept(m.Target, after[i]))
		}

		more := in
		more.Members = append(slices.Clone(in.Members), AssignorMember{ID: "z", Topics: in.Members[0].Topics})
		after = assignUniform(more)
		load := checkTargets(t, more, after)
		moved := 0
		for i, m := range in.Members {
			moved += size(m.Target) - kept(m.Target, after[i])
		}
		require.Equal(t, load[len(load)-1], moved)
	})
}

// Range puts partitions of one number of topics with as many partitions together, and the first members get what is over.
func TestRangeGoesTogether(t *testing.T) {
	a, b := metadata.TopicID{15: 1}, metadata.TopicID{15: 2}
	in := AssignorInput{Topics: []AssignorTopic{{a, 5}, {b, 5}}, Members: []AssignorMember{{ID: "x", Topics: []int{0, 1}}, {ID: "y", Topics: []int{0, 1}}}}
	require.Equal(t, [][]metadata.TopicPartitions{
		{{TopicID: a, Partitions: []int32{0, 1, 2}}, {TopicID: b, Partitions: []int32{0, 1, 2}}},
		{{TopicID: a, Partitions: []int32{3, 4}}, {TopicID: b, Partitions: []int32{3, 4}}},
	}, assignRange(in))
	in.Members = append(in.Members, AssignorMember{ID: "z"})
	require.Len(t, assignRange(in), 3)
	require.Empty(t, assignRange(in)[2])
}

func BenchmarkAssignUniform(b *testing.B) {
	for _, members := range []int{3, 200} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			in := AssignorInput{Topics: []AssignorTopic{{metadata.TopicID{15: 1}, 1000}, {metadata.TopicID{15: 2}, 1000}}}
			for i := range members {
				in.Members = append(in.Members, AssignorMember{ID: fmt.Sprintf("m%03d", i), Topics: []int{0, 1}})
			}
			targets := assignUniform(in)
			for i := range in.Members {
				in.Members[i].Target = targets[i]
			}
			in.Members = append(in.Members, AssignorMember{ID: "z", Topics: []int{0, 1}})
			for b.Loop() {
				assignUniform(in)
			}
		})
	}
}
