package check

import (
	"maps"
	"slices"
)

// Check judges a whole history.
func Check(ops []Op) *Report {
	c := &checker{report: &Report{Lines: len(ops)}, processes: map[int]*process{}, partitions: map[string]*partition{}, states: map[int64]state{}, shares: map[shareKey]*share{}, txns: map[int64]*txn{}}
	for i := range ops {
		c.take(&ops[i])
	}
	// What lies in files above the end that clients were told is nobody's business, so the files come last.
	for i := range ops {
		if ops[i].F == Dump {
			c.dump(&ops[i])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.processes)) {
		c.sendOrder(c.processes[id])
	}
	for _, key := range slices.Sorted(maps.Keys(c.partitions)) {
		p := c.partitions[key]
		c.readable(p)
		c.skipped(p)
		c.replicas(p)
	}
	c.transactions()
	c.groups()
	c.topics(ops)
	c.gaps(ops)
	return c.report
}

// checker holds what one pass over a history collects.
type checker struct {
	report     *Report
	processes  map[int]*process
	partitions map[string]*partition
	states     map[int64]state // by applied index
	rereads    bool            // the history has a reading at the end
	// committedRereads says that it has one of committed records too.
	committedRereads bool
	shares           map[shareKey]*share
	txns             map[int64]*txn
}

// process is one producer.
type process struct {
	id    int
	plain bool
	sends []send // by the counter in the value
}

// send is what became of one value.
type send struct {
	key     *partition // nil: a value that was not sent
	done    Type       // "" while under way
	acked   int64      // offset, -1
	found   int64      // offset of its first sight in a poll, reading or file, -1
	doubled bool       // counted as a duplicate
	txn     *txn       // nil: none
	// source and sourceOffset are the record that it was made from, "" for none.
	source       string
	sourceOffset int64
}

// partition is what is known of one key.
type partition struct {
	key   string
	cells cells
	// end is behind the highest offset that was read: at the end if the history has that, else ever. committed is
	// behind all that clients were shown or told.
	end, committed int64
	consumers      map[int]*consumer
	skips          []skip
	// committedSkips are those of readers of committed records, committedEnd is behind the highest offset that was read at
	// the end at that level.
	committedSkips         []skip
	committedEnd           int64
	marks, starts, stables regress
	copies                 map[int]*replica
}

// consumer is where one process reads; next is -1 before it is known.
type consumer struct{ next int64 }

// skip says that a consumer was given nothing between two offsets.
type skip struct {
	process  int
	from, to int64
	line     int64
}

// state is the first hash that was seen at an index.
type state struct {
	node int
	hash string
}

func (c *checker) partition(key string) *partition {
	p := c.partitions[key]
	if p == nil {
		p = &partition{key: key, consumers: map[int]*consumer{}, copies: map[int]*replica{}}
		c.partitions[key] = p
	}
	return p
}

func (c *checker) process(id int) *process {
	p := c.processes[id]
	if p == nil {
		p = &process{id: id}
		c.processes[id] = p
	}
	return p
}

func (c *checker) take(o *Op) {
	switch o.F {
	case Producer:
		c.process(o.Process).plain = o.Text == "plain"
	case Send:
		c.send(o)
	case Assign:
		c.partition(o.Key).consumers[o.Process] = &consumer{next: o.Offset}
	case Poll, Reread, PollCommitted, RereadCommitted, Take:
		if o.Type == OK {
			c.poll(o)
		}
	case HighWatermark:
		p := c.partition(o.Key)
		c.probe(o, p, &p.marks)
		if o.Type == OK {
			p.committed = max(p.committed, o.Offset)
		}
	case LogStart:
		p := c.partition(o.Key)
		c.probe(o, p, &p.starts)
	case LastStable:
		p := c.partition(o.Key)
		c.probe(o, p, &p.stables)
	case Claim, Release, Commit, FetchOffset:
		c.member(o)
	case Begin, TxnOffsets, End, Adopt:
		c.transaction(o)
	case State:
		first, known := c.states[o.Offset]
		if !known {
			c.states[o.Offset] = state{o.Node, o.Text}
		} else if first.hash != o.Text {
			c.report.add(FSMHash, "", "at index %d node %d has %s, node %d has %s", o.Offset, first.node, first.hash, o.Node, o.Text)
		}
	}
}

func (c *checker) send(o *Op) {
	owner, n := SplitValue(o.Value)
	if owner != o.Process {
		c.report.add(Malformed, o.Key, "value %s was sent by process %d", ValueString(o.Value), o.Process)
		return
	}
	p, key := c.process(o.Process), c.partition(o.Key)
	if o.Type == Invoke {
		c.report.Sent++
		if int64(len(p.sends)) > n {
			c.report.add(Malformed, o.Key, "value %s was sent twice, or behind a later one", ValueString(o.Value))
			return
		}
		for int64(len(p.sends)) < n {
			p.sends = append(p.sends, send{acked: -1, found: -1})
		}
		p.sends = append(p.sends, send{key: key, acked: -1, found: -1, txn: c.part(o), source: o.Source, sourceOffset: o.SourceOffset})
		return
	}
	if n >= int64(len(p.sends)) || p.sends[n].key != key || p.sends[n].done != "" {
		c.report.add(Malformed, o.Key, "a second or foreign completion of value %s", ValueString(o.Value))
		return
	}
	s := &p.sends[n]
	s.done = o.Type
	switch o.Type {
	case OK:
		c.report.Acknowledged++
		s.acked = o.Offset
		c.place(key, o.Offset, o.Value, cellAcked)
		c.twice(p, s, o.Value, o.Offset)
	case Fail:
		c.report.Refused++
	case Info:
		c.report.Indefinite++
	}
}

// place notes that a value stands at an offset.
func (c *checker) place(p *partition, offset, value int64, how uint8) {
	cell := p.cells.at(offset)
	if cell == nil {
		c.report.add(Malformed, p.key, "value %s at offset %d", ValueString(value), offset)
		return
	}
	if cell.flags != 0 && cell.value != value {
		c.report.add(InconsistentOffset, p.key, "offset %d: %s (%s) and %s (%s)", offset, ValueString(cell.value), cellSource(cell.flags), ValueString(value), cellSource(how))
	} else {
		cell.value = value
	}
	cell.flags |= how
	if how == cellAcked {
		return
	}
	owner, n := SplitValue(value)
	producer := c.processes[owner]
	if producer == nil || n >= int64(len(producer.sends)) || producer.sends[n].key == nil {
		c.report.add(InconsistentOffset, p.key, "offset %d holds %s, which nobody sent", offset, ValueString(value))
		return
	}
	s := &producer.sends[n]
	if s.key != p {
		c.report.add(InconsistentOffset, p.key, "offset %d holds %s, which was sent to %s", offset, ValueString(value), s.key.key)
		return
	}
	if s.found < 0 {
		s.found = offset
	}
	c.twice(producer, s, value, offset)
}

// twice looks whether a value that stands at offset stands elsewhere too.
func (c *checker) twice(producer *process, s *send, value, offset int64) {
	other := s.found
	if other == offset {
		other = s.acked
	}
	if other < 0 || other == offset || s.doubled {
		return
	}
	s.doubled = true
	if producer.plain {
		c.report.PlainDuplicates++
		return
	}
	c.report.add(Duplicate, s.key.key, "%s stands at offsets %d and %d", ValueString(value), min(offset, other), max(offset, other))
}

func (c *checker) poll(o *Op) {
	p := c.partition(o.Key)
	reader := p.consumers[o.Process]
	if reader == nil {
		reader = &consumer{next: -1}
		p.consumers[o.Process] = reader
	}
	how, skips := cellPolled, &p.skips
	switch o.F {
	case Reread:
		how = cellReread
		if !c.rereads {
			c.rereads = true
			for _, q := range c.partitions {
				q.end = 0 // what was read before does not count any more
			}
		}
		c.report.Reread += len(o.Values)
	case RereadCommitted:
		how, skips, c.committedRereads = cellCommitted, &p.committedSkips, true
	case PollCommitted:
		skips = &p.committedSkips
		c.report.Polled += len(o.Values)
	case Take:
		c.report.Taken += len(o.Values)
	default:
		c.report.Polled += len(o.Values)
	}
	if c.committedOnly(o) {
		skips = &p.committedSkips
	}
	first, before := true, int64(-1)
	o.records(func(offset, value int64) {
		c.place(p, offset, value, how)
		switch {
		case !first && offset <= before:
			c.report.add(IntNonmonotonicPoll, p.key, "process %d: offset %d behind %d in one poll", o.Process, offset, before)
		case first && offset < reader.next:
			c.report.add(NonmonotonicPoll, p.key, "process %d: offset %d, though it had read up to %d", o.Process, offset, reader.next)
		case reader.next >= 0 && offset > reader.next:
			*skips = append(*skips, skip{process: o.Process, from: reader.next, to: offset, line: o.Time})
		}
		first, before = false, offset
		reader.next = offset + 1
		if c.committedOnly(o) {
			c.readCommitted(p, offset, value, o.Time)
		}
		if o.F == Take {
			c.share(o).take(offset, o.Time)
		}
	})
	if o.F == RereadCommitted {
		p.committedEnd = max(p.committedEnd, reader.next)
		return
	}
	if (o.F == Reread) == c.rereads {
		p.end = max(p.end, reader.next)
	}
	p.committed = max(p.committed, reader.next)
}

// sendOrder compares the order of sending with that in the log (I7). What a plain producer sent twice has two places;
// only the acknowledged one counts.
func (c *checker) sendOrder(p *process) {
	last := map[*partition]struct{ offset, n int64 }{}
	for n, s := range p.sends {
		if s.key == nil {
			continue
		}
		at := s.acked
		if at < 0 && !p.plain {
			at = s.found
		}
		if s.done == Fail && s.found >= 0 {
			c.report.add(AbortedRead, s.key.key, "%s was refused, and stands at offset %d", ValueString(Value(p.id, int64(n))), s.found)
		}
		if at < 0 {
			continue
		}
		before, known := last[s.key]
		if known && before.offset > at {
			c.report.add(NonmonotonicSend, s.key.key, "%s stands at offset %d, and %s, which was sent after it, at %d",
				ValueString(Value(p.id, before.n)), before.offset, ValueString(Value(p.id, int64(n))), at)
		}
		last[s.key] = struct{ offset, n int64 }{at, int64(n)}
	}
}

// readable looks for what was acknowledged or delivered and cannot be read.
func (c *checker) readable(p *partition) {
	read := cellPolled
	if c.rereads {
		read = cellReread
	}
	p.cells.each(func(offset int64, cell *cell) {
		switch {
		case cell.flags&read != 0 || cell.flags&(cellAcked|cellPolled) == 0:
		case offset < p.end:
			c.report.add(LostWrite, p.key, "%s (%s) at offset %d is not there, though reading got to %d", ValueString(cell.value), cellSource(cell.flags), offset, p.end)
		case cell.flags&cellPolled != 0:
			c.report.add(LostWrite, p.key, "%s was delivered from offset %d, and now the partition ends at %d", ValueString(cell.value), offset, p.end)
		default:
			c.report.add(Unseen, p.key, "%s, acknowledged at offset %d, is not readable: reading got to %d", ValueString(cell.value), offset, p.end)
		}
	})
}

// skipped looks whether something stands where a consumer was given nothing: an offset may be a control record, or for
// readers of committed records one of a transaction that was aborted.
func (c *checker) skipped(p *partition) {
	stands := func(offset int64, cell *cell) bool {
		return cell.flags&(cellAcked|cellPolled|cellReread|cellCommitted) != 0
	}
	committed := func(offset int64, cell *cell) bool {
		t := c.txnOf(cell.value)
		return stands(offset, cell) && (t == nil || t.committed())
	}
	c.missed(p, p.skips, stands)
	c.missed(p, p.committedSkips, committed)
}

func (c *checker) missed(p *partition, skips []skip, counts func(int64, *cell) bool) {
	for _, s := range skips {
		missed := int64(-1)
		p.cells.between(s.from, s.to, func(offset int64, cell *cell) bool {
			if counts(offset, cell) {
				missed = offset
			}
			return missed < 0
		})
		if missed >= 0 {
			c.report.add(PollSkip, p.key, "process %d was given offset %d behind %d, but not %d", s.process, s.to, s.from-1, missed)
		}
	}
}
