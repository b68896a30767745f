package log

// durable is the bookkeeping of one partition's durable end (W4): which offsets are on stable storage, by whichever
// path. The end advances only over contiguous intervals: a small set that is in the write-ahead log already must not
// be acknowledged while a large one before it is still unsynced.
type durable struct {
	// end: all below is durable.
	end int64
	// done are the durable intervals above end, sorted, disjoint, not touching.
	done []interval
}

type interval struct{ from, to int64 }

// complete notes that [from, to) is durable and says whether the end advanced.
func (d *durable) complete(from, to int64) bool {
	if to <= d.end || from >= to {
		return false
	}
	if from > d.end {
		d.insert(interval{from, to})
		return false
	}
	d.end = to
	n := 0
	for n < len(d.done) && d.done[n].from <= d.end {
		d.end = max(d.end, d.done[n].to)
		n++
	}
	d.done = append(d.done[:0], d.done[n:]...)
	return true
}

func (d *durable) insert(in interval) {
	i := 0
	for i < len(d.done) && d.done[i].to < in.from {
		i++
	}
	j := i
	for j < len(d.done) && d.done[j].from <= in.to {
		in.from, in.to = min(in.from, d.done[j].from), max(in.to, d.done[j].to)
		j++
	}
	if i == j {
		d.done = append(d.done, interval{})
		copy(d.done[i+1:], d.done[i:])
	} else {
		d.done = append(d.done[:i+1], d.done[j:]...)
	}
	d.done[i] = in
}

// reset starts a new history that is durable up to end (W13).
func (d *durable) reset(end int64) { d.end, d.done = end, d.done[:0] }

// completed notes that [from, to) of the history logID is durable. A completion that belongs to an older history is
// void (W7). Caller holds no lock.
func (l *Log) completed(logID uint64, from, to int64) {
	if l.dir.failed() != nil {
		return // no further answer (W17)
	}
	l.mu.Lock()
	if l.dir.cfg.mutants.has(mutantHoles) {
		from = 0
	}
	advanced := (l.mu.logID == logID || l.dir.cfg.mutants.has(mutantOldCompletion)) && l.mu.closed == nil && l.mu.durable.complete(from, to)
	l.mu.Unlock()
	if advanced {
		l.tellDurable()
	}
}
