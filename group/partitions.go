package group

import (
	"slices"

	"github.com/millrace/millrace/metadata"
)

// Sets of partitions are lists of topics that ascend by id, each with partitions that ascend; no topic is empty. They are
// immutable: the functions here share what they can and never write to what they were given.

// eachTopic walks two sets together: a and b are what each has of one topic, empty where it has nothing.
func eachTopic(as, bs []metadata.TopicPartitions, do func(a, b metadata.TopicPartitions)) {
	for len(as) > 0 || len(bs) > 0 {
		switch {
		case len(bs) == 0 || len(as) > 0 && comparePartitions(as[0], bs[0]) < 0:
			do(as[0], metadata.TopicPartitions{TopicID: as[0].TopicID})
			as = as[1:]
		case len(as) == 0 || comparePartitions(as[0], bs[0]) > 0:
			do(metadata.TopicPartitions{TopicID: bs[0].TopicID}, bs[0])
			bs = bs[1:]
		default:
			do(as[0], bs[0])
			as, bs = as[1:], bs[1:]
		}
	}
}

// pick returns the partitions of a topic that keep says yes to, with their epochs.
func pick(tp metadata.TopicPartitions, keep func(int32) bool) metadata.TopicPartitions {
	out := metadata.TopicPartitions{TopicID: tp.TopicID}
	for i, p := range tp.Partitions {
		if keep(p) {
			out.Partitions = append(out.Partitions, p)
			if tp.Epochs != nil {
				out.Epochs = append(out.Epochs, tp.Epochs[i])
			}
		}
	}
	return out
}

func appendTopic(set []metadata.TopicPartitions, tp metadata.TopicPartitions) []metadata.TopicPartitions {
	if len(tp.Partitions) == 0 {
		return set
	}
	return append(set, tp)
}

// intersect returns what a and b have in common, with the epochs of a.
func intersect(as, bs []metadata.TopicPartitions) (out []metadata.TopicPartitions) {
	eachTopic(as, bs, func(a, b metadata.TopicPartitions) {
		out = appendTopic(out, pick(a, func(p int32) bool { return hasPartition(b, p) }))
	})
	return out
}

// without returns what a has and b has not.
func without(as, bs []metadata.TopicPartitions) (out []metadata.TopicPartitions) {
	eachTopic(as, bs, func(a, b metadata.TopicPartitions) {
		out = appendTopic(out, pick(a, func(p int32) bool { return !hasPartition(b, p) }))
	})
	return out
}

// union returns what a or b have; they have nothing in common. Both have epochs, or neither.
func union(as, bs []metadata.TopicPartitions) (out []metadata.TopicPartitions) {
	eachTopic(as, bs, func(a, b metadata.TopicPartitions) {
		switch {
		case len(a.Partitions) == 0:
			out = appendTopic(out, b)
			return
		case len(b.Partitions) == 0:
			out = appendTopic(out, a)
			return
		}
		both := metadata.TopicPartitions{TopicID: a.TopicID, Partitions: make([]int32, 0, len(a.Partitions)+len(b.Partitions))}
		for i, j := 0, 0; i < len(a.Partitions) || j < len(b.Partitions); {
			from, at := &b, &j
			if j == len(b.Partitions) || i < len(a.Partitions) && a.Partitions[i] < b.Partitions[j] {
				from, at = &a, &i
			}
			both.Partitions = append(both.Partitions, from.Partitions[*at])
			if from.Epochs != nil {
				both.Epochs = append(both.Epochs, from.Epochs[*at])
			}
			*at++
		}
		out = append(out, both)
	})
	return out
}

func hasPartition(tp metadata.TopicPartitions, p int32) bool {
	_, ok := slices.BinarySearch(tp.Partitions, p)
	return ok
}

// samePartitions compares sets; epochs do not count.
func samePartitions(as, bs []metadata.TopicPartitions) bool {
	return slices.EqualFunc(as, bs, func(a, b metadata.TopicPartitions) bool {
		return a.TopicID == b.TopicID && slices.Equal(a.Partitions, b.Partitions)
	})
}

// sameWithEpochs compares sets, epochs too.
func sameWithEpochs(as, bs []metadata.TopicPartitions) bool {
	return slices.EqualFunc(as, bs, func(a, b metadata.TopicPartitions) bool {
		return a.TopicID == b.TopicID && slices.Equal(a.Partitions, b.Partitions) && slices.Equal(a.Epochs, b.Epochs)
	})
}

// givenIn returns the set with one epoch for all: the one in which they were given.
func givenIn(epoch int32, set []metadata.TopicPartitions) []metadata.TopicPartitions {
	out := make([]metadata.TopicPartitions, len(set))
	for i, tp := range set {
		out[i] = metadata.TopicPartitions{TopicID: tp.TopicID, Partitions: tp.Partitions, Epochs: make([]int32, len(tp.Partitions))}
		for k := range out[i].Epochs {
			out[i].Epochs[k] = epoch
		}
	}
	return out
}

// normalized returns what a client sent as a set: sorted, without duplicates and empty topics.
func normalized(list []metadata.TopicPartitions) []metadata.TopicPartitions {
	byTopic := map[metadata.TopicID][]int32{}
	for _, tp := range list {
		byTopic[tp.TopicID] = append(byTopic[tp.TopicID], tp.Partitions...)
	}
	out := []metadata.TopicPartitions{}
	for id, partitions := range byTopic {
		slices.Sort(partitions)
		out = appendTopic(out, metadata.TopicPartitions{TopicID: id, Partitions: slices.Compact(partitions)})
	}
	slices.SortFunc(out, comparePartitions)
	return out
}
