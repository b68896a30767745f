package metadata

import (
	"cmp"
	"iter"
)

// groupOffsets are the committed offsets of one group. They are apart from Group, and so are no part of what ChangedGroups
// compares, because they change a thousand times more often. Immutable once published.
type groupOffsets struct {
	offsets tree[TopicIDPartition, CommittedOffset]
}

func compareTopicIDPartitions(a, b TopicIDPartition) int {
	return cmp.Or(compareTopicIDs(a.TopicID, b.TopicID), cmp.Compare(a.Partition, b.Partition))
}

// offset returns an offset that a group committed, if its topic is still there.
func (st *state) offset(group string, id TopicID, partition int32) (CommittedOffset, bool) {
	of, ok := st.offsets.get(group)
	if !ok {
		return CommittedOffset{}, false
	}
	o, ok := of.offsets.get(TopicIDPartition{id, partition})
	if !ok || st.topicByID(id) == nil {
		return CommittedOffset{}, false
	}
	return o, true
}

// visibleOffsets yields the offsets of a group whose topics are still there.
func (st *state) visibleOffsets(group string) iter.Seq2[TopicIDPartition, CommittedOffset] {
	return func(yield func(TopicIDPartition, CommittedOffset) bool) {
		of, ok := st.offsets.get(group)
		if !ok {
			return
		}
		var id TopicID
		exists := false
		for tp, o := range of.offsets.all() {
			if tp.TopicID != id { // never zero; a topic's partitions follow each other
				id, exists = tp.TopicID, st.topicByID(tp.TopicID) != nil
			}
			if exists && !yield(tp, o) {
				return
			}
		}
	}
}

// ownOffsets returns the offsets of a group, empty ones if it has none, as a copy that this draft may change in place. What
// is put into it has to be kept with keepOffsets.
func (d *draft) ownOffsets(group string) *groupOffsets {
	of, ok := d.st.offsets.get(group)
	if d.ownedOffsets[of] {
		return of
	}
	next := &groupOffsets{offsets: newTree[TopicIDPartition, CommittedOffset](compareTopicIDPartitions)}
	if ok {
		*next = *of
	}
	if d.ownedOffsets == nil {
		d.ownedOffsets = make(map[*groupOffsets]bool)
	}
	d.ownedOffsets[next] = true
	d.st.offsets = d.st.offsets.set(d.edit, group, next)
	return next
}

// putOffset stores an offset among those that ownOffsets returned.
func (d *draft) putOffset(of *groupOffsets, tp TopicIDPartition, o CommittedOffset) {
	d.st.offsetCount -= of.offsets.len()
	of.offsets = of.offsets.set(d.edit, tp, o)
	d.st.offsetCount += of.offsets.len()
}

// dropOffsets takes offsets of a group out. Those that are not there are passed over.
func (d *draft) dropOffsets(group string, partitions []TopicIDPartition) {
	if _, ok := d.st.offsets.get(group); !ok || len(partitions) == 0 {
		return
	}
	of := d.ownOffsets(group)
	d.st.offsetCount -= of.offsets.len()
	for _, tp := range partitions {
		of.offsets = of.offsets.delete(d.edit, tp)
	}
	d.st.offsetCount += of.offsets.len()
	if of.offsets.len() == 0 {
		d.dropAllOffsets(group)
	}
}

// dropAllOffsets takes all offsets of a group out.
func (d *draft) dropAllOffsets(group string) {
	of, ok := d.st.offsets.get(group)
	if !ok {
		return
	}
	delete(d.ownedOffsets, of)
	d.st.offsetCount -= of.offsets.len()
	d.st.offsets = d.st.offsets.delete(d.edit, group)
}
