package metadata

import "slices"

func (st *state) transaction(id string) *Transaction {
	t, _ := st.transactions.get(id)
	return t
}

func (st *state) transactionByProducer(producerID int64) *Transaction {
	id, ok := st.producers.get(producerID)
	if !ok {
		return nil
	}
	return st.transaction(id)
}

// nextOrder draws a number that is above every Revision and every order of a pending offset.
func (d *draft) nextOrder() uint64 {
	d.st.transactionRevision++
	return d.st.transactionRevision
}

// putTransaction stores t, which must be new, under the next revision.
func (d *draft) putTransaction(t *Transaction) {
	t.Revision = d.nextOrder()
	d.indexTransaction(d.st.transaction(t.ID), t)
	d.st.transactions = d.st.transactions.set(d.edit, t.ID, t)
}

// removeTransaction takes a transactional id out.
func (d *draft) removeTransaction(t *Transaction) {
	d.nextOrder()
	d.indexTransaction(t, nil)
	d.st.transactions = d.st.transactions.delete(d.edit, t.ID)
}

// indexTransaction keeps what is derived. old and t may be nil.
func (d *draft) indexTransaction(old, t *Transaction) {
	is, was := t.producerIDs(), old.producerIDs()
	for _, id := range was {
		if id >= 0 && !slices.Contains(is[:], id) {
			d.st.producers = d.st.producers.delete(d.edit, id)
		}
	}
	for _, id := range is {
		if id >= 0 && !slices.Contains(was[:], id) {
			d.st.producers = d.st.producers.set(d.edit, id, t.ID)
		}
	}
	switch {
	case t != nil && t.State.Active():
		d.st.active = d.st.active.set(d.edit, t.ID, t)
	case old != nil && old.State.Active():
		d.st.active = d.st.active.delete(d.edit, old.ID)
	}
}

// producerIDs are the ids that are this transactional id's alone, -1 = none.
func (t *Transaction) producerIDs() [2]int64 {
	if t == nil {
		return [2]int64{-1, -1}
	}
	return [2]int64{t.ProducerID, t.MarkerProducerID}
}

// admits says whether a producer may add to its transaction. t may be nil.
func (t *Transaction) admits(producerID int64, epoch int16, fenced error) error {
	switch {
	case t == nil || t.ProducerID != producerID:
		return ErrInvalidProducerIDMapping
	case t.ProducerEpoch != epoch:
		return fenced
	case t.State.Prepared():
		return ErrConcurrentTransactions
	}
	return nil
}

// grown returns a copy of t with what is added, Ongoing. Its Revision is still to come; if it begins a transaction, begun is
// true and so is its Number.
func (t *Transaction) grown(partitions []TopicPartitions, groups []string, version int8, time int64) (next *Transaction, begun bool) {
	c := *t
	if begun = t.State != TransactionOngoing; begun {
		c.State, c.StartedAt, c.Partitions, c.Groups = TransactionOngoing, time, nil, nil
	}
	c.Version, c.UpdatedAt = version, time
	c.Partitions = addPartitions(c.Partitions, partitions)
	cloned := false
	for _, g := range groups {
		if i, found := slices.BinarySearch(c.Groups, g); !found {
			if !cloned {
				c.Groups, cloned = slices.Clone(c.Groups), true
			}
			c.Groups = slices.Insert(c.Groups, i, g)
		}
	}
	return &c, begun
}

// putGrown stores what grown returned.
func (d *draft) putGrown(t *Transaction, begun bool) {
	if begun {
		t.Number = d.st.transactionRevision + 1 // the Revision that it gets
	}
	d.putTransaction(t)
}

// apply adds to a transaction. What is there already is a repetition and changes nothing (M11).
func (a *TransactionAddition) apply(d *draft, by BrokerID) stepOutcome {
	fenced := ErrInvalidProducerEpoch // as the leader of a partition says it
	switch {
	case a.Version != 1 && a.Version != 2:
		return stepOutcome{err: ErrInvalidRequest}
	case a.Version == 1:
		if fenced = ErrProducerFenced; rendezvous(d.st.coordinators, TransactionCoordinator, a.ID) != by {
			return stepOutcome{err: ErrNotCoordinator}
		}
	}
	t := d.st.transaction(a.ID)
	if err := t.admits(a.ProducerID, a.ProducerEpoch, fenced); err != nil {
		return stepOutcome{err: err}
	}
	for _, topic := range a.Partitions {
		for _, p := range topic.Partitions {
			if _, err := d.find(topicIDPartition{topic.TopicID, p}); err != nil {
				return stepOutcome{err: err}
			}
		}
	}
	if t.State == TransactionOngoing && t.Version == a.Version && t.covers(a) {
		return stepOutcome{revision: t.Revision}
	}
	next, begun := t.grown(a.Partitions, a.Groups, a.Version, a.Time)
	d.putGrown(next, begun)
	return stepOutcome{revision: next.Revision}
}

// covers reports whether all of an addition has been added.
func (t *Transaction) covers(a *TransactionAddition) bool {
	for _, topic := range a.Partitions {
		for _, p := range topic.Partitions {
			if !t.HasPartition(topic.TopicID, p) {
				return false
			}
		}
	}
	return !slices.ContainsFunc(a.Groups, func(g string) bool { return !t.HasGroup(g) })
}

// apply makes a change of a coordinator.
func (c *TransactionChange) apply(d *draft, by BrokerID) stepOutcome {
	if rendezvous(d.st.coordinators, TransactionCoordinator, c.ID) != by {
		return stepOutcome{err: ErrNotCoordinator}
	}
	t := d.st.transaction(c.ID)
	if c.Revision == AnyRevision && !c.Delete {
		if done, err := c.mayEnd(t); done || err != nil {
			return stepOutcome{revision: t.revision(), err: err}
		}
	} else if c.Revision != t.revision() {
		return stepOutcome{err: ErrStale}
	}
	if err := c.check(d, t); err != nil {
		return stepOutcome{err: err}
	}
	if c.Delete {
		d.removeTransaction(t)
		return stepOutcome{revision: d.st.transactionRevision}
	}
	next := &Transaction{ID: c.ID}
	if t != nil {
		*next = *t
	}
	next.State, next.Timeout, next.Version, next.UpdatedAt = c.State, c.Timeout, c.Version, c.UpdatedAt
	next.ProducerID, next.ProducerEpoch = c.ProducerID, c.ProducerEpoch
	next.LastProducerID, next.LastProducerEpoch = c.LastProducerID, c.LastProducerEpoch
	next.MarkerProducerID, next.MarkerEpoch = -1, -1
	if c.State.Prepared() {
		d.prepare(t, next, c)
	}
	d.putTransaction(next)
	return stepOutcome{revision: next.Revision}
}

func (t *Transaction) revision() uint64 {
	if t == nil {
		return 0
	}
	return t.Revision
}

// mayEnd judges the end of a transaction that does not compare the revision. done says that it has been made already, in
// an earlier proposal of which the outcome was not known (M11).
func (c *TransactionChange) mayEnd(t *Transaction) (done bool, err error) {
	bumped := c.ProducerID != c.LastProducerID || c.ProducerEpoch > c.LastProducerEpoch
	if !c.State.Prepared() || c.Version != 2 || !bumped {
		return false, ErrInvalidRequest
	}
	if t == nil {
		return false, ErrInvalidProducerIDMapping
	}
	switch {
	case t.ProducerID == c.LastProducerID && t.ProducerEpoch == c.LastProducerEpoch:
		return false, nil
	case t.LastProducerID == c.LastProducerID && t.LastProducerEpoch == c.LastProducerEpoch && t.ended():
		if t.State == c.State || t.State == c.State+TransactionCompleteCommit-TransactionPrepareCommit {
			return true, nil
		}
		return false, ErrInvalidTransactionState // the other end
	case t.ProducerID != c.LastProducerID && t.LastProducerID != c.LastProducerID:
		return false, ErrInvalidProducerIDMapping
	}
	return false, ErrProducerFenced
}

// ended reports whether the last transaction is decided, and nothing has come after it.
func (t *Transaction) ended() bool { return t.State >= TransactionPrepareCommit }

// check says whether a change, which was decided on t, is one that there is.
func (c *TransactionChange) check(d *draft, t *Transaction) error {
	if t == nil {
		switch {
		case c.Delete:
			return ErrTransactionNotFound
		case c.State != TransactionEmpty:
			return ErrInvalidTransactionState
		}
		return c.checkPair(d, nil)
	}
	if t.State.Prepared() {
		return ErrConcurrentTransactions
	}
	ongoing := t.State == TransactionOngoing
	switch {
	case c.Delete:
		if ongoing {
			return ErrInvalidTransactionState
		}
		return nil
	case c.State == TransactionEmpty && !ongoing, c.State == TransactionPrepareCommit && ongoing, c.State == TransactionPrepareAbort:
		return c.checkPair(d, t)
	}
	return ErrInvalidTransactionState
}

// checkPair says whether the producer's pair, and that of the markers, may come after those of t, which may be nil.
func (c *TransactionChange) checkPair(d *draft, t *Transaction) error {
	switch {
	case c.Version != 1 && c.Version != 2, c.ProducerID < 0, c.ProducerEpoch < 0, c.LastProducerID < -1, c.LastProducerEpoch < -1, c.Timeout < 0:
		return ErrInvalidRequest
	case t != nil && c.ProducerID == t.ProducerID:
		if c.ProducerEpoch < t.ProducerEpoch {
			return ErrInvalidRequest
		}
	case c.ProducerID >= d.st.nextProducerID || d.st.transactionByProducer(c.ProducerID) != nil:
		return ErrInvalidRequest // nobody allocated it, or it is another's
	}
	switch {
	case !c.State.Prepared():
		return nil
	case c.MarkerProducerID != t.ProducerID || c.MarkerEpoch < t.ProducerEpoch:
		return ErrInvalidRequest
	case c.ProducerID == t.ProducerID && c.ProducerEpoch < c.MarkerEpoch:
		return ErrInvalidRequest // its own marker would fence it
	}
	return nil
}

// prepare decides the transaction of t, which next is to take the place of.
func (d *draft) prepare(t, next *Transaction, c *TransactionChange) {
	next.MarkerProducerID, next.MarkerEpoch = c.MarkerProducerID, c.MarkerEpoch
	next.CoordinatorEpoch = d.st.coordinatorEpoch
	if t.State != TransactionOngoing {
		next.StartedAt = c.UpdatedAt // it never began
	}
	for _, group := range t.Groups {
		if c.State == TransactionPrepareCommit {
			d.commitPending(group, t.ProducerID)
		}
		d.dropProducerPending(group, t.ProducerID)
	}
	next.Groups = nil
	next.completeIfMarked()
}

// completeIfMarked completes a prepared transaction, which must be private to the draft, if no marker is missing.
func (t *Transaction) completeIfMarked() {
	if len(t.Partitions) > 0 || !t.State.Prepared() {
		return
	}
	t.State += TransactionCompleteCommit - TransactionPrepareCommit
	t.Partitions, t.MarkerProducerID, t.MarkerEpoch = nil, -1, -1
}

// apply takes the partitions out of the transactions whose markers they have. A report of what is not missing, or of
// another transaction, has no effect.
func (ms writtenMarkers) apply(d *draft, _ BrokerID) stepOutcome {
	for _, m := range ms {
		t := d.st.transactionByProducer(m.ProducerID)
		if t == nil || !t.State.Prepared() || t.Number != m.Number || t.MarkerProducerID != m.ProducerID || t.MarkerEpoch != m.Epoch {
			continue
		}
		d.unmark(t, m.Partitions)
	}
	return stepOutcome{}
}

// unmark takes partitions out of a transaction, and completes it if it waits for no other.
func (d *draft) unmark(t *Transaction, gone []TopicPartitions) {
	left := withoutPartitions(t.Partitions, gone)
	if countPartitions(left) == countPartitions(t.Partitions) {
		return
	}
	next := *t
	next.Partitions = left
	next.completeIfMarked()
	d.putTransaction(&next)
}

func countPartitions(topics []TopicPartitions) (n int) {
	for i := range topics {
		n += len(topics[i].Partitions)
	}
	return n
}

// forgetTopic takes the partitions of a deleted topic out of all transactions: there will be no marker in them (P12).
func (d *draft) forgetTopic(id TopicID) {
	var of []*Transaction // collected first: changing a tree ends the walk over it
	d.st.active.all()(func(_ string, t *Transaction) bool {
		if _, found := findTopic(t.Partitions, id); found {
			of = append(of, t)
		}
		return true
	})
	for _, t := range of {
		i, _ := findTopic(t.Partitions, id)
		d.unmark(t, t.Partitions[i:i+1])
	}
}

// apply commits offsets with a transaction: the fence is that of a commit (G1, G14), and that of an addition.
func (o *TransactionOffsets) apply(d *draft, by BrokerID) (out stepOutcome) {
	if rendezvous(d.st.coordinators, GroupCoordinator, o.Group) != by {
		return stepOutcome{err: ErrNotCoordinator}
	}
	t := d.st.transaction(o.TransactionalID)
	if err := t.admits(o.ProducerID, o.ProducerEpoch, ErrProducerFenced); err != nil {
		return stepOutcome{err: err}
	}
	switch {
	case o.Implicit:
	case t.State != TransactionOngoing || !t.HasGroup(o.Group):
		return stepOutcome{err: ErrInvalidTransactionState}
	case t.Number != o.number:
		return stepOutcome{err: ErrStale} // held up, or its broker had not heard of this one
	}
	g := d.st.group(o.Group)
	// Clients from before KIP-447 name neither member nor generation. They are fenced by their producer's epoch alone, as the
	// group's members are by theirs.
	if named := o.Generation >= 0 || o.Member != "" || o.Instance != ""; named {
		if err := g.mayCommit(&o.OffsetCommit); err != nil {
			return stepOutcome{err: err}
		}
	}
	accepted := make([]*OffsetEntry, 0, len(o.Offsets))
	var topic *Topic
	for i := range o.Offsets {
		e := &o.Offsets[i]
		if topic == nil || topic.ID != e.TopicID {
			topic = d.st.topicByID(e.TopicID)
		}
		if err := topic.mayHaveOffset(e); err != nil {
			if out.entries == nil {
				out.entries = make([]error, len(o.Offsets))
			}
			out.entries[i] = err
			continue
		}
		accepted = append(accepted, e)
	}
	if len(accepted) == 0 {
		return out
	}
	if t.State != TransactionOngoing || !t.HasGroup(o.Group) {
		next, begun := t.grown(nil, []string{o.Group}, 2, o.Time)
		d.putGrown(next, begun)
	}
	if g == nil {
		d.createGroup(&Group{Name: o.Group, Type: ClassicGroup, Generation: d.st.lastGeneration(o.Group)})
	}
	d.putPending(o.Group, o.ProducerID, &o.OffsetCommit, accepted)
	return out
}
