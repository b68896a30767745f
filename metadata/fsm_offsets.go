package metadata

import (
	"cmp"
	"iter"
)

// groupOffsets are the committed offsets of one group. They are apart from Group, and so are no part of what ChangedGroups
// compares, because they change a thousand times more often. Immutable once published.
//
// There may be a million of them in a state, for as long as the broker runs: what is kept of each is 28 bytes without a
// pointer, in arrays that the garbage collector need not look into.
type groupOffsets struct {
	owner  *edit                        // who may write to it in place
	topics tree[TopicID, *topicOffsets] // none is empty
	n      int                          // offsets in all topics
}

// topicOffsets are those of one topic, by partition. Immutable once published.
type topicOffsets struct {
	owner   *edit
	offsets tree[int32, storedOffset]
	extras  tree[int32, offsetExtras] // of those offsets whose extras is set, and of no other
}

// storedOffset is what every offset has.
type storedOffset struct {
	offset, committedAt int64
	leaderEpoch         int32
	extras              bool
}

// offsetExtras are what few offsets have.
type offsetExtras struct {
	metadata  string
	expiresAt int64
}

func newGroupOffsets(e *edit) *groupOffsets {
	return &groupOffsets{owner: e, topics: newTree[TopicID, *topicOffsets](compareTopicIDs)}
}

func newTopicOffsets(e *edit) *topicOffsets {
	return &topicOffsets{owner: e, offsets: newTree[int32, storedOffset](cmp.Compare[int32]), extras: newTree[int32, offsetExtras](cmp.Compare[int32])}
}

// len is the number of offsets.
func (of *groupOffsets) len() int { return of.n }

// get returns the offset of a partition.
func (of *groupOffsets) get(tp TopicIDPartition) (CommittedOffset, bool) {
	t, ok := of.topics.get(tp.TopicID)
	if !ok {
		return CommittedOffset{}, false
	}
	o, ok := t.offsets.get(tp.Partition)
	if !ok {
		return CommittedOffset{}, false
	}
	return t.committed(tp.Partition, o), true
}

// all yields the offsets by ascending topic id and partition.
func (of *groupOffsets) all() iter.Seq2[TopicIDPartition, CommittedOffset] {
	return func(yield func(TopicIDPartition, CommittedOffset) bool) {
		for id, t := range of.topics.all() {
			for partition, o := range t.offsets.all() {
				if !yield(TopicIDPartition{id, partition}, t.committed(partition, o)) {
					return
				}
			}
		}
	}
}

func (t *topicOffsets) committed(partition int32, o storedOffset) CommittedOffset {
	c := CommittedOffset{Offset: o.offset, LeaderEpoch: o.leaderEpoch, CommittedAt: o.committedAt}
	if o.extras {
		x, _ := t.extras.get(partition)
		c.Metadata, c.ExpiresAt = x.metadata, x.expiresAt
	}
	return c
}

// set stores an offset. Both of and what it points to on the way are e's own, or become it.
func (of *groupOffsets) set(e *edit, tp TopicIDPartition, o CommittedOffset) {
	t := of.own(e, tp.TopicID)
	offsets, at, added := t.offsets.slot(e, tp.Partition)
	t.offsets = offsets
	had := at.extras
	*at = storedOffset{offset: o.Offset, committedAt: o.CommittedAt, leaderEpoch: o.LeaderEpoch, extras: o.Metadata != "" || o.ExpiresAt != 0}
	switch {
	case at.extras:
		t.extras = t.extras.set(e, tp.Partition, offsetExtras{metadata: o.Metadata, expiresAt: o.ExpiresAt})
	case had:
		t.extras = t.extras.delete(e, tp.Partition)
	}
	if added {
		of.n++
	}
}

// own returns the offsets of a topic, empty ones if there are none, as a copy that e may change in place.
func (of *groupOffsets) own(e *edit, id TopicID) *topicOffsets {
	topics, at, added := of.topics.slot(e, id)
	of.topics = topics
	switch {
	case added:
		*at = newTopicOffsets(e)
	case (*at).owner != e:
		next := **at
		next.owner = e
		*at = &next
	}
	return *at
}

// offsetsOfOne are the offsets of a group in few partitions of one topic, all that lies between its name and them in one piece:
// most groups are so, and a commit to one copies this, and two arrays.
type offsetsOfOne struct {
	of    groupOffsets
	node  treeNode[TopicID, *topicOffsets]
	id    [1]TopicID
	at    [1]*topicOffsets
	topic topicOffsets
	leaf  treeNode[int32, storedOffset]
}

// private returns a copy that e owns.
func (of *groupOffsets) private(e *edit) *groupOffsets {
	root := of.topics.root
	if root == nil || root.kids != nil || len(root.keys) != 1 || root.vals[0].offsets.root == nil || root.vals[0].offsets.root.kids != nil {
		next := *of
		next.owner = e
		return &next
	}
	leaf := root.vals[0].offsets.root
	one := &offsetsOfOne{of: *of, id: [1]TopicID{root.keys[0]}, topic: *root.vals[0]}
	one.leaf = treeNode[int32, storedOffset]{
		owner: e,
		keys:  append(make([]int32, 0, len(leaf.keys)), leaf.keys...),
		vals:  append(make([]storedOffset, 0, len(leaf.vals)), leaf.vals...),
	}
	one.topic.owner, one.topic.offsets.root = e, &one.leaf
	one.at[0] = &one.topic
	one.node = treeNode[TopicID, *topicOffsets]{owner: e, keys: one.id[:], vals: one.at[:]}
	one.of.owner, one.of.topics.root = e, &one.node
	return &one.of
}

// delete takes an offset out, if it is there.
func (of *groupOffsets) delete(e *edit, tp TopicIDPartition) {
	t, ok := of.topics.get(tp.TopicID)
	if !ok {
		return
	}
	if _, ok := t.offsets.get(tp.Partition); !ok {
		return
	}
	of.n--
	if t.offsets.len() == 1 {
		of.topics = of.topics.delete(e, tp.TopicID)
		return
	}
	t = of.own(e, tp.TopicID)
	t.offsets = t.offsets.delete(e, tp.Partition)
	t.extras = t.extras.delete(e, tp.Partition)
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
	o, ok := of.get(TopicIDPartition{id, partition})
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
		for tp, o := range of.all() {
			if tp.TopicID != id { // never zero; a topic's partitions follow each other
				id, exists = tp.TopicID, st.topicByID(tp.TopicID) != nil
			}
			if exists && !yield(tp, o) {
				return
			}
		}
	}
}

// ownOffsets returns the offsets of a group, empty ones if it has none, as a copy that this draft may change in place. An
// offset has to be put into them.
func (d *draft) ownOffsets(group string) *groupOffsets {
	offsets, at, added := d.st.offsets.slot(d.edit, group)
	d.st.offsets = offsets
	switch {
	case added:
		*at = newGroupOffsets(d.edit)
	case (*at).owner != d.edit:
		*at = (*at).private(d.edit)
	}
	return *at
}

// putOffset stores an offset among those that ownOffsets returned.
func (d *draft) putOffset(of *groupOffsets, tp TopicIDPartition, o CommittedOffset) {
	d.st.offsetCount -= of.len()
	of.set(d.edit, tp, o)
	d.st.offsetCount += of.len()
}

// dropOffsets takes offsets of a group out. Those that are not there are passed over.
func (d *draft) dropOffsets(group string, partitions []TopicIDPartition) {
	if _, ok := d.st.offsets.get(group); !ok || len(partitions) == 0 {
		return
	}
	of := d.ownOffsets(group)
	d.st.offsetCount -= of.len()
	for _, tp := range partitions {
		of.delete(d.edit, tp)
	}
	d.st.offsetCount += of.len()
	if of.len() == 0 {
		d.dropAllOffsets(group)
	}
}

// dropAllOffsets takes all offsets of a group out.
func (d *draft) dropAllOffsets(group string) {
	of, ok := d.st.offsets.get(group)
	if !ok {
		return
	}
	d.st.offsetCount -= of.len()
	d.st.offsets = d.st.offsets.delete(d.edit, group)
}
