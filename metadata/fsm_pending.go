package metadata

import (
	"cmp"
	"iter"
	"slices"
)

// groupPending are the offsets of one group that are committed with transactions which are not decided yet. Immutable once
// published.
type groupPending struct {
	producers tree[int64, producerPending] // by producer id; none is empty
	// holders is derived: the producer ids, ascending, that have an offset of a partition.
	holders tree[TopicIDPartition, []int64]
}

// producerPending are those of one transaction.
type producerPending struct {
	offsets tree[TopicIDPartition, pendingOffset]
}

// pendingOffset is one of them. Offsets of one partition count in the order in which they were committed, whenever their
// transactions are decided, as in Kafka, where it is their order in the log.
type pendingOffset struct {
	CommittedOffset
	order uint64 // of its commit among all of the cluster's
	// superseded is set when an offset that was committed later has been decided on, or was committed without a transaction.
	superseded bool
}

// pendingOffset returns the first producer that has an offset pending.
func (st *state) pendingOffset(group string, tp TopicIDPartition) (producerID int64, ok bool) {
	of, ok := st.pending.get(group)
	if !ok {
		return 0, false
	}
	holders, ok := of.holders.get(tp)
	if !ok || st.topicByID(tp.TopicID) == nil {
		return 0, false
	}
	return holders[0], true
}

// isPending is pendingOffset of a topic that exists.
func (st *state) isPending(group string, tp TopicIDPartition) bool {
	of, ok := st.pending.get(group)
	if ok {
		_, ok = of.holders.get(tp)
	}
	return ok
}

// pendingOffsets yields what Image.PendingOffsets promises.
func (st *state) pendingOffsets(group string) iter.Seq2[TopicIDPartition, PendingOffset] {
	return func(yield func(TopicIDPartition, PendingOffset) bool) {
		of, ok := st.pending.get(group)
		if !ok {
			return
		}
		for tp, holders := range of.holders.all() {
			if st.topicByID(tp.TopicID) == nil {
				continue
			}
			for _, producerID := range holders {
				pending, _ := of.producers.get(producerID)
				o, _ := pending.offsets.get(tp)
				if !yield(tp, PendingOffset{ProducerID: producerID, CommittedOffset: o.CommittedOffset}) {
					return
				}
			}
		}
	}
}

// hasOffsets reports whether there are offsets of a group, pending ones or those of deleted topics included.
func (st *state) hasOffsets(group string) bool {
	if _, ok := st.offsets.get(group); ok {
		return true
	}
	_, ok := st.pending.get(group)
	return ok
}

// ownPending returns the pending offsets of a group, empty ones if it has none, as a copy that this draft may change in
// place. What is put into it has to be left not empty, or be dropped.
func (d *draft) ownPending(group string) *groupPending {
	of, ok := d.st.pending.get(group)
	if d.ownedPending[of] {
		return of
	}
	next := &groupPending{
		producers: newTree[int64, producerPending](cmp.Compare[int64]),
		holders:   newTree[TopicIDPartition, []int64](compareTopicIDPartitions),
	}
	if ok {
		*next = *of
	}
	if d.ownedPending == nil {
		d.ownedPending = make(map[*groupPending]bool)
	}
	d.ownedPending[next] = true
	d.st.pending = d.st.pending.set(d.edit, group, next)
	return next
}

// putPending stores offsets of a producer's transaction.
func (d *draft) putPending(group string, producerID int64, c *OffsetCommit, entries []*OffsetEntry) {
	of := d.ownPending(group)
	order := d.nextOrder()
	for _, e := range entries {
		d.putPendingOffset(of, producerID, TopicIDPartition{e.TopicID, e.Partition}, pendingOffset{CommittedOffset: e.committed(c), order: order})
	}
}

func (d *draft) putPendingOffset(of *groupPending, producerID int64, tp TopicIDPartition, o pendingOffset) {
	pending, ok := of.producers.get(producerID)
	if !ok {
		pending.offsets = newTree[TopicIDPartition, pendingOffset](compareTopicIDPartitions)
	}
	before := pending.offsets.len()
	pending.offsets = pending.offsets.set(d.edit, tp, o)
	of.producers = of.producers.set(d.edit, producerID, pending)
	if pending.offsets.len() == before {
		return
	}
	holders, _ := of.holders.get(tp)
	i, _ := slices.BinarySearch(holders, producerID)
	of.holders = of.holders.set(d.edit, tp, slices.Insert(slices.Clone(holders), i, producerID))
}

// commitPending makes the pending offsets of a producer committed ones, but for those that were superseded, or whose topic
// is gone.
func (d *draft) commitPending(group string, producerID int64) {
	of, ok := d.st.pending.get(group)
	if !ok {
		return
	}
	pending, ok := of.producers.get(producerID)
	if !ok {
		return
	}
	var offsets *groupOffsets
	var id TopicID
	exists := false
	for tp, o := range pending.offsets.all() {
		if tp.TopicID != id { // never zero; a topic's partitions follow each other
			id, exists = tp.TopicID, d.st.topicByID(tp.TopicID) != nil
		}
		if o.superseded || !exists {
			continue
		}
		if offsets == nil {
			offsets = d.ownOffsets(group)
		}
		d.putOffset(offsets, tp, o.CommittedOffset)
		d.supersede(group, tp, o.order)
	}
}

// supersede marks the pending offsets of a partition that were committed before an order.
func (d *draft) supersede(group string, tp TopicIDPartition, order uint64) {
	of, ok := d.st.pending.get(group)
	if !ok {
		return
	}
	holders, _ := of.holders.get(tp)
	for _, producerID := range holders {
		pending, _ := of.producers.get(producerID)
		if o, _ := pending.offsets.get(tp); o.order < order && !o.superseded {
			o.superseded = true
			of = d.ownPending(group)
			pending.offsets = pending.offsets.set(d.edit, tp, o)
			of.producers = of.producers.set(d.edit, producerID, pending)
		}
	}
}

// dropProducerPending takes out all that a producer has pending in a group.
func (d *draft) dropProducerPending(group string, producerID int64) {
	of, ok := d.st.pending.get(group)
	if !ok {
		return
	}
	pending, ok := of.producers.get(producerID)
	if !ok {
		return
	}
	if of.producers.len() == 1 {
		d.dropAllPending(group)
		return
	}
	of = d.ownPending(group)
	for tp := range pending.offsets.all() {
		d.dropHolder(of, tp, producerID)
	}
	of.producers = of.producers.delete(d.edit, producerID)
}

func (d *draft) dropHolder(of *groupPending, tp TopicIDPartition, producerID int64) {
	holders, _ := of.holders.get(tp)
	left := slices.DeleteFunc(slices.Clone(holders), func(id int64) bool { return id == producerID })
	if len(left) == 0 {
		of.holders = of.holders.delete(d.edit, tp)
		return
	}
	of.holders = of.holders.set(d.edit, tp, left)
}

// dropPending takes out what is pending in partitions of a group, whoever's it is.
func (d *draft) dropPending(group string, partitions []TopicIDPartition) {
	for _, tp := range partitions {
		of, ok := d.st.pending.get(group)
		if !ok {
			return
		}
		holders, ok := of.holders.get(tp)
		if !ok {
			continue
		}
		of = d.ownPending(group)
		for _, producerID := range holders {
			pending, _ := of.producers.get(producerID)
			if pending.offsets = pending.offsets.delete(d.edit, tp); pending.offsets.len() == 0 {
				of.producers = of.producers.delete(d.edit, producerID)
			} else {
				of.producers = of.producers.set(d.edit, producerID, pending)
			}
		}
		if of.holders = of.holders.delete(d.edit, tp); of.holders.len() == 0 {
			d.dropAllPending(group)
		}
	}
}

// dropAllPending takes out all that is pending in a group.
func (d *draft) dropAllPending(group string) {
	of, ok := d.st.pending.get(group)
	if !ok {
		return
	}
	delete(d.ownedPending, of)
	d.st.pending = d.st.pending.delete(d.edit, group)
}
