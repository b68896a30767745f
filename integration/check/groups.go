package check

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// shareKey names a partition as one group sees it.
type shareKey struct{ group, key string }

// share is what is known of a partition in a group.
type share struct {
	group, key string
	// taken has when a member was first given each offset.
	taken map[int64]int64
	// claims has who had the partition in each generation, latest the claim of the newest line.
	claims map[int32]string
	held   []claim
	calls  map[call]*Op // commits and questions under way
	// register has the commits that may have happened and the answers, in the order of their ends.
	register []access
}

// claim is one time that a member was given the partition.
type claim struct {
	who        string
	process    int
	generation int32
	at         int64
}

// call names a call under way.
type call struct {
	process int
	f       F
}

// access is a commit or a question about the committed offset, from its invocation to its end.
type access struct {
	process   int
	write     bool
	sure      bool // a write that was acknowledged
	offset    int64
	call, end int64 // end MaxInt64: nobody knows
	txn       *txn  // whose end a write belongs to
}

func (c *checker) share(o *Op) *share {
	name := shareKey{o.Group, o.Key}
	s := c.shares[name]
	if s == nil {
		s = &share{group: o.Group, key: o.Key, taken: map[int64]int64{}, claims: map[int32]string{}, calls: map[call]*Op{}}
		c.shares[name] = s
	}
	return s
}

// take notes that a member was given an offset.
func (s *share) take(offset, at int64) {
	if _, before := s.taken[offset]; !before {
		s.taken[offset] = at
	}
}

// member takes in a line of a group.
func (c *checker) member(o *Op) {
	s := c.share(o)
	switch o.F {
	case Claim:
		c.report.Claims++
		if other, had := s.claims[o.Epoch]; had && other != o.Text {
			c.report.add(DoubleOwner, s.key, "group %s, generation %d: %s has it, and so has %s", s.group, o.Epoch, other, o.Text)
		}
		s.claims[o.Epoch] = o.Text
		s.held = append(s.held, claim{o.Text, o.Process, o.Epoch, o.Time})
		c.partition(o.Key).consumers[o.Process] = &consumer{next: -1} // until it says where it begins
	case Commit, FetchOffset:
		c.access(s, o)
	}
}

// access takes in a line about the committed offset of a partition.
func (c *checker) access(s *share, o *Op) {
	who := call{o.Process, o.F}
	if o.Type == Invoke {
		s.calls[who] = o
		return
	}
	began := s.calls[who]
	delete(s.calls, who)
	if began == nil || o.F == Commit && began.Offset != o.Offset {
		c.report.add(Malformed, o.Key, "process %d: an answer to %s that was not asked for", o.Process, o.F)
		return
	}
	switch {
	case o.Type == Fail || o.F == FetchOffset && o.Type == Info:
		return
	case o.F == FetchOffset:
		if reader := c.partition(o.Key).consumers[o.Process]; reader != nil && reader.next < 0 {
			reader.next = max(o.Offset, 0) // a member begins there; without a commit, at the start
		}
	case o.Type == OK:
		c.report.Commits++
		c.zombie(s, began, o)
	}
	a := access{process: o.Process, write: o.F == Commit, sure: o.Type == OK, offset: o.Offset, call: began.Time, end: o.Time}
	if o.Type == Info {
		a.end = math.MaxInt64
	}
	s.register = append(s.register, a)
}

// zombie looks whether a commit was accepted from one that had lost the partition, to the knowledge of the one that has it,
// before it asked (G1, G14).
func (c *checker) zombie(s *share, began, done *Op) {
	own := len(s.held) - 1 // its last one: a member that was forgotten joins again under another id
	for own >= 0 && s.held[own].process != done.Process {
		own--
	}
	if own < 0 || done.Epoch < 0 || began.Epoch < 0 {
		return
	}
	who, generation := s.held[own].who, max(began.Epoch, done.Epoch)
	for _, h := range slices.Backward(s.held) {
		if h.who == who {
			return // nobody had it since, or a successor under the same name
		}
		// One that moved on to another generation meanwhile may have lost the partition in it, behind its commit.
		if h.at < began.Time && (h.generation > generation || h.generation == generation && began.Epoch == done.Epoch) {
			c.report.add(DoubleOwner, s.key, "group %s: a commit of %d by %s in generation %d was accepted, though %s had it in generation %d before it was sent",
				s.group, done.Offset, who, done.Epoch, h.who, h.generation)
			return
		}
	}
}

// groups judges what the whole history shows of each group.
func (c *checker) groups() {
	for _, name := range slices.SortedFunc(maps.Keys(c.shares), func(a, b shareKey) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.key, b.key))
	}) {
		s := c.shares[name]
		for who, o := range s.calls {
			if who.f == Commit {
				s.register = append(s.register, access{process: o.Process, write: true, offset: o.Offset, call: o.Time, end: math.MaxInt64})
			}
		}
		c.ahead(s)
		if !c.regressed(s) {
			c.linear(s)
		}
	}
}

// ahead looks for commits behind records that no member had been given yet.
func (c *checker) ahead(s *share) {
	var writes []access
	for _, a := range s.register {
		if a.write {
			writes = append(writes, a)
		}
	}
	if len(writes) == 0 {
		return
	}
	slices.SortFunc(writes, func(a, b access) int { return cmp.Compare(a.offset, b.offset) })
	p := c.partition(s.key)
	next, latest, which := 0, int64(math.MinInt64), int64(-1)
	judge := func(below int64) {
		for ; next < len(writes) && writes[next].offset <= below; next++ {
			if w := writes[next]; latest > w.call {
				c.report.add(CommitAhead, s.key, "group %s: process %d committed %d, and nobody had been given offset %d (%s)", s.group, w.process, w.offset, which, c.describe(p, which))
			}
		}
	}
	p.cells.each(func(offset int64, cell *cell) {
		judge(offset)
		if cell.flags&(cellAcked|cellPolled|cellReread) == 0 {
			return
		}
		if t := c.txnOf(cell.value); t != nil && !t.committed() {
			return // readers of committed records are not given it
		}
		at, taken := s.taken[offset]
		if !taken {
			at = math.MaxInt64
		}
		if at > latest {
			latest, which = at, offset
		}
	})
	judge(math.MaxInt64)
}

func (c *checker) describe(p *partition, offset int64) string {
	if cell := p.cells.at(offset); cell != nil && cell.flags != 0 {
		return ValueString(cell.value) + ", " + cellSource(cell.flags)
	}
	return "unknown"
}

// regressed looks for answers below an acknowledged commit that nothing explains: every commit of what was answered had ended
// before the other began.
func (c *checker) regressed(s *share) (found bool) {
	for _, read := range s.register {
		if read.write {
			continue
		}
		for _, w := range s.register {
			if !w.write || !w.sure || w.end >= read.call || w.offset <= read.offset {
				continue
			}
			explained := slices.ContainsFunc(s.register, func(x access) bool {
				return x.write && x.offset == read.offset && x.end > w.call && x.call < read.end
			})
			if !explained {
				c.report.add(CommitRegress, s.key, "group %s: the committed offset is %d, though %d was acknowledged before it was asked for", s.group, read.offset, w.offset)
				found = true
				break
			}
		}
	}
	return found
}
