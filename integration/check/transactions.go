package check

import (
	"maps"
	"math"
	"slices"
)

// txn is one transaction.
type txn struct {
	number    int64
	producer  int
	id        string // transactional id
	sends     []int64
	adopted   []int64 // sends of another transaction that may have come into this one
	offsets   map[shareKey]int64
	asked     string // how it was told to end, "" never
	askedAt   int64
	done      Type // of its end, "" while under way
	doneAt    int64
	seen      int64 // offset at which a reader of committed records first saw a part of it, -1
	seenKey   string
	seenEarly bool // before anybody asked to commit it
	reported  bool
}

// committed says that the client was told so.
func (t *txn) committed() bool { return t.asked == CommitIt && t.done == OK }

// aborted says that nothing of it may ever be visible: nobody asked to commit it, or that was refused.
func (t *txn) aborted() bool { return t.asked != CommitIt || t.done == Fail }

// part returns the transaction that a line belongs to, nil for none.
func (c *checker) part(o *Op) *txn {
	if o.Txn == 0 {
		return nil
	}
	t := c.txns[o.Txn]
	if t == nil || t.producer != o.Process || t.asked != "" {
		c.report.add(Malformed, o.Key, "process %d: %s in a transaction that is not open", o.Process, o.F)
		return nil
	}
	if o.F == Send {
		t.sends = append(t.sends, o.Value)
	}
	return t
}

// transaction takes in a line of one.
func (c *checker) transaction(o *Op) {
	switch o.F {
	case Begin:
		if owner, _ := SplitValue(o.Txn); c.txns[o.Txn] != nil || owner != o.Process {
			c.report.add(Malformed, "", "process %d: transaction %s began twice, or is another's", o.Process, ValueString(o.Txn))
			return
		}
		c.txns[o.Txn] = &txn{number: o.Txn, producer: o.Process, id: o.Text, offsets: map[shareKey]int64{}, seen: -1}
	case TxnOffsets:
		if o.Type != Invoke {
			return // what counts is whether the transaction was told to commit after it
		}
		if t := c.part(o); t != nil {
			t.offsets[shareKey{o.Group, o.Key}] = o.Offset
		}
	case Adopt:
		t, s := c.txns[o.Txn], c.sendOf(o.Value)
		if t == nil || t.asked != "" || s == nil || s.txn == nil || s.txn == t || s.txn.producer != t.producer {
			c.report.add(Malformed, o.Key, "process %d: %s cannot have come into transaction %s", o.Process, ValueString(o.Value), ValueString(o.Txn))
			return
		}
		s.txn.sends = slices.DeleteFunc(s.txn.sends, func(v int64) bool { return v == o.Value })
		s.txn, t.adopted = t, append(t.adopted, o.Value)
	case End:
		t := c.txns[o.Txn]
		if t == nil || (o.Type == Invoke) != (t.asked == "") || t.done != "" {
			c.report.add(Malformed, "", "process %d: an end of transaction %s that does not belong there", o.Process, ValueString(o.Txn))
			return
		}
		if o.Type == Invoke {
			t.asked, t.askedAt = o.Text, o.Time
		} else {
			t.done, t.doneAt = o.Type, o.Time
		}
	}
}

// txnOf returns the transaction that a value was sent in, nil for none.
func (c *checker) txnOf(value int64) *txn {
	if s := c.sendOf(value); s != nil {
		return s.txn
	}
	return nil
}

// sendOf returns what is known of a value, nil when nobody sent it.
func (c *checker) sendOf(value int64) *send {
	owner, n := SplitValue(value)
	p := c.processes[owner]
	if p == nil || n >= int64(len(p.sends)) || p.sends[n].key == nil {
		return nil
	}
	return &p.sends[n]
}

// committedOnly says that a line was read at the level read_committed.
func (c *checker) committedOnly(o *Op) bool {
	return o.F == PollCommitted || o.F == RereadCommitted || o.F == Take && o.Text == ReadCommitted
}

// readCommitted notes that a reader of committed records was given a value.
func (c *checker) readCommitted(p *partition, offset, value, at int64) {
	t := c.txnOf(value)
	if t == nil {
		return
	}
	if t.seen < 0 {
		t.seen, t.seenKey = offset, p.key
	}
	t.seenEarly = t.seenEarly || t.asked == ""
}

// transactions judges all of them at the end.
func (c *checker) transactions() {
	for _, number := range slices.Sorted(maps.Keys(c.txns)) {
		t := c.txns[number]
		switch {
		case t.committed():
			c.report.Committed++
		case t.aborted():
			c.report.Aborted++
		default:
			c.report.Undecided++
		}
		switch {
		case t.seen >= 0 && t.aborted():
			c.report.add(AbortedRead, t.seenKey, "offset %d was given to a reader of committed records; transaction %s of %s was never committed (asked for: %q)", t.seen, ValueString(t.number), t.id, t.asked)
		case t.seenEarly:
			c.report.add(PrecommittedRead, t.seenKey, "offset %d was given to a reader of committed records before transaction %s of %s was told to commit", t.seen, ValueString(t.number), t.id)
		}
		c.torn(t)
		if t.asked != CommitIt || t.done == Fail {
			continue
		}
		for name, offset := range t.offsets {
			a := access{process: t.producer, write: true, sure: t.done == OK, offset: offset, call: t.askedAt, end: t.doneAt, txn: t}
			if !a.sure {
				a.end = math.MaxInt64
			}
			c.share(&Op{Group: name.group, Key: name.key}).register = append(c.share(&Op{Group: name.group, Key: name.key}).register, a)
		}
	}
	if !c.committedRereads {
		return
	}
	for _, key := range slices.Sorted(maps.Keys(c.partitions)) {
		c.readableCommitted(c.partitions[key])
	}
	c.exactlyOnce()
}

// torn looks whether some but not all of what a transaction wrote is visible at the end.
func (c *checker) torn(t *txn) {
	if !c.committedRereads || t.aborted() {
		return
	}
	visible, hidden := int64(-1), int64(-1)
	for i, v := range slices.Concat(t.sends, t.adopted) {
		s := c.sendOf(v)
		if s == nil || s.done == Fail {
			continue
		}
		if i >= len(t.sends) && s.acked < 0 && s.found < 0 {
			continue // it has come nowhere
		}
		at := s.acked
		if at < 0 {
			at = s.found
		}
		if cell := s.key.cells.at(at); at >= 0 && cell.flags&cellCommitted != 0 && cell.value == v {
			visible = v
		} else {
			hidden = v
		}
	}
	if visible >= 0 && hidden >= 0 {
		t.reported = true
		c.report.add(TornTxn, "", "transaction %s of %s (commit: %s): %s is visible, %s is not", ValueString(t.number), t.id, t.done, ValueString(visible), ValueString(hidden))
	}
}

// readableCommitted looks for what readers of committed records should have been given at the end.
func (c *checker) readableCommitted(p *partition) {
	p.cells.each(func(offset int64, cell *cell) {
		if cell.flags&cellCommitted != 0 || cell.flags&(cellAcked|cellReread) == 0 {
			return
		}
		t := c.txnOf(cell.value)
		if t != nil && (!t.committed() || t.reported) || offset >= p.end {
			return // [readable] says what is missing at both levels
		}
		kind := LostWrite
		if offset >= p.committedEnd {
			kind = Unseen
		}
		c.report.add(kind, p.key, "%s (%s) at offset %d is not given to readers of committed records, who got to %d", ValueString(cell.value), cellSource(cell.flags), offset, p.committedEnd)
	})
}

// exactlyOnce compares what groups consumed in transactions with what was made from it: below the committed offset one
// visible record for each that is visible, above it none (I8).
func (c *checker) exactlyOnce() {
	made := map[shareKey]map[int64][]int64{} // group and source, offset → visible values
	for _, t := range c.txns {
		for name := range t.offsets {
			if made[name] == nil {
				made[name] = map[int64][]int64{}
			}
		}
	}
	if len(made) == 0 {
		return
	}
	for _, t := range c.txns {
		for _, v := range t.sends {
			s := c.sendOf(v)
			if s == nil || s.source == "" {
				continue
			}
			at := max(s.acked, s.found)
			if cell := s.key.cells.at(at); at < 0 || cell.flags&cellCommitted == 0 || cell.value != v {
				continue
			}
			c.report.Made++
			for name := range t.offsets {
				if name.key == s.source {
					made[name][s.sourceOffset] = append(made[name][s.sourceOffset], v)
				}
			}
		}
	}
	for name, outputs := range made {
		s, p := c.share(&Op{Group: name.group, Key: name.key}), c.partition(name.key)
		end, known := s.last()
		if !known {
			continue
		}
		p.cells.each(func(offset int64, cell *cell) {
			n := len(outputs[offset])
			switch visible := cell.flags&cellCommitted != 0; {
			case n > 1:
				c.report.add(Duplicate, p.key, "group %s made %s and %s from offset %d", name.group, ValueString(outputs[offset][0]), ValueString(outputs[offset][1]), offset)
			case n == 0 && visible && offset < end:
				c.report.add(TornTxn, p.key, "group %s has committed %d, and made nothing of offset %d", name.group, end, offset)
			case n == 1 && offset >= end:
				c.report.add(TornTxn, p.key, "group %s made %s from offset %d, and has committed %d only", name.group, ValueString(outputs[offset][0]), offset, end)
			}
		})
	}
}

// last returns the committed offset as it was answered last.
func (s *share) last() (offset int64, known bool) {
	at := int64(-1)
	for _, a := range s.register {
		if !a.write && a.end > at {
			offset, known, at = a.offset, true, a.end
		}
	}
	return offset, known
}
