package check

// regress watches a bound of a partition that clients may never see go back (I4). Answers overlap in time, so one is
// compared only with those that had ended before it was asked for; and a leader that does not know yet that it was
// superseded may answer for its own epoch, so only with those of an epoch that the asker knew (KIP-320).
type regress struct {
	highest map[int32]int64 // epoch → highest answer
	pending map[int]bound   // by process
}

// bound is the least that an answer may say, and the epoch in which the question was asked.
type bound struct {
	least int64
	epoch int32
}

func (c *checker) probe(o *Op, p *partition, r *regress) {
	if o.Type == Invoke {
		if r.pending == nil {
			r.highest, r.pending = map[int32]int64{}, map[int]bound{}
		}
		b := bound{epoch: o.Epoch}
		for epoch, offset := range r.highest {
			if epoch <= o.Epoch {
				b.least = max(b.least, offset)
			}
		}
		r.pending[o.Process] = b
		return
	}
	b, asked := r.pending[o.Process]
	delete(r.pending, o.Process)
	if o.Type != OK {
		return
	}
	if !asked {
		c.report.add(Malformed, o.Key, "process %d: an answer to %s that was not asked for", o.Process, o.F)
		return
	}
	if o.Offset < b.least {
		c.report.add(HWRegress, o.Key, "%s: node %d says %d in epoch %d, though %d had been answered before it was asked (epoch %d known)", o.F, o.Node, o.Offset, o.Epoch, b.least, b.epoch)
	}
	r.highest[o.Epoch] = max(r.highest[o.Epoch], o.Offset)
}
