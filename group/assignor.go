package group

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/metadata"
)

// Assignor divides the partitions of the subscribed topics among the members of a consumer group (KIP-848): a pure
// function, so that whoever coordinates the group comes to the same result. It answers with the target of each member, in
// the order of the members; each target ascends by topic id and partition.
type Assignor func(AssignorInput) [][]metadata.TopicPartitions

// AssignorInput is what an Assignor goes by. It keeps nothing of it.
type AssignorInput struct {
	Members []AssignorMember // ascending by ID
	// Topics are those that at least one member subscribes to, ascending by id, and exist.
	Topics []AssignorTopic
}

// AssignorMember is one member of the group.
type AssignorMember struct {
	// ID is the instance id of a static member, else the member id: what stays the same when a member comes back.
	ID string
	// Topics are indexes into AssignorInput.Topics, ascending: what the member subscribes to.
	Topics []int
	// Target is what the member had been given before, nil for a new one.
	Target []metadata.TopicPartitions
}

// AssignorTopic is a topic and its number of partitions.
type AssignorTopic struct {
	ID         metadata.TopicID
	Partitions int32
}

// Names of the assignors, as members ask for them; the first is the one of those who do not ask.
const (
	AssignorUniform = "uniform"
	AssignorRange   = "range"
)

// Assignors names those there are, the default first.
var Assignors = []string{AssignorUniform, AssignorRange}

// UnknownAssignor reports whether there is no assignor of that name.
func UnknownAssignor(name string) bool { return assignors[name] == nil }

// assignors are those of [Assignors].
var assignors = map[string]Assignor{AssignorUniform: assignUniform, AssignorRange: assignRange}

// target collects the partitions of one member, for a topic after the other in ascending order of ids.
type target []metadata.TopicPartitions

// add appends a partition; topics come in order, partitions of a topic in any.
func (t *target) add(topic metadata.TopicID, partition int32) {
	if n := len(*t); n == 0 || (*t)[n-1].TopicID != topic {
		*t = append(*t, metadata.TopicPartitions{TopicID: topic})
	}
	last := &(*t)[len(*t)-1]
	last.Partitions = append(last.Partitions, partition)
}

// assignRange gives each member of a topic one run of its partitions, the first members one more if they do not divide
// evenly. Topics with as many partitions and the same subscribers are cut alike, so that partitions of one number, which
// hold the same keys, go to one member. Members have their place by their ID: a static member that returns has its runs
// again. A member's runs move when members come and go; uniform is for those who mind.
func assignRange(in AssignorInput) [][]metadata.TopicPartitions {
	targets := make([]target, len(in.Members))
	subscribers := make([][]int, len(in.Topics)) // by topic, in the order of members
	for i, m := range in.Members {
		for _, topic := range m.Topics {
			subscribers[topic] = append(subscribers[topic], i)
		}
	}
	for topic, members := range subscribers {
		t := in.Topics[topic]
		next := int32(0)
		for place, i := range members {
			n := t.Partitions / int32(len(members))
			if int32(place) < t.Partitions%int32(len(members)) {
				n++
			}
			for range n {
				targets[i].add(t.ID, next)
				next++
			}
		}
	}
	return targetsOf(targets)
}

func targetsOf(targets []target) [][]metadata.TopicPartitions {
	out := make([][]metadata.TopicPartitions, len(targets))
	for i, t := range targets {
		for k := range t {
			slices.Sort(t[k].Partitions)
		}
		out[i] = t
	}
	return out
}

// compareTopicIDs orders topic ids by their bytes.
func compareTopicIDs(a, b metadata.TopicID) int { return slices.Compare(a[:], b[:]) }

// comparePartitions orders partitions of a list by topic.
func comparePartitions(a, b metadata.TopicPartitions) int {
	return cmp.Compare(compareTopicIDs(a.TopicID, b.TopicID), 0)
}
