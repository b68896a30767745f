package replication

import (
	"sync"
	"sync/atomic"
)

// FetchWaiter is a fetch that waits for data: parked on any number of partitions, woken once, when together they have
// gained as many bytes as it wants, or when one of them has something else to say (leadership lost, deleted, fenced,
// log start moved past it).
//
// Use: NewFetchWaiter, Park on each partition, then wait for wake or the request's own timer, then Cancel, then read
// again. One goroutine parks and cancels.
type FetchWaiter struct {
	need  atomic.Int64 // bytes still wanted; woken when it reaches zero
	fired atomic.Bool
	wake  func()
	// chunk is where entries come from: a fetch of many partitions allocates a few times, not once for each.
	chunk   []fetchEntry
	entries []*fetchEntry
}

// NewFetchWaiter returns a waiter for minBytes (at least 1) that calls wake when it should be answered: at most once,
// perhaps inside Park, perhaps from an appender or the log's committer. No lock of this package is held during the
// call; wake must not block.
func NewFetchWaiter(minBytes int, wake func()) *FetchWaiter {
	w := &FetchWaiter{wake: wake}
	w.need.Store(int64(max(minBytes, 1)))
	return w
}

// fetchEntry is one waiter on one partition: a node of the partition's list.
type fetchEntry struct {
	waiter *FetchWaiter
	home   *waiterList
	// Guarded by home's lock.
	next, prev *fetchEntry
	linked     bool
	offset     int64
	maxBytes   int64 // what the fetch can take from this partition at most
	bytes      int64 // counted so far
}

func (w *FetchWaiter) entry() *fetchEntry {
	if len(w.chunk) == 0 {
		w.chunk = make([]fetchEntry, min(max(1, 2*len(w.entries)), 64))
	}
	e := &w.chunk[0]
	w.chunk = w.chunk[1:]
	w.entries = append(w.entries, e)
	return e
}

// count adds bytes and says whether the waiter has to be woken by the caller.
func (w *FetchWaiter) count(bytes int64) bool {
	return w.need.Add(-bytes) <= 0 && w.fire()
}

// fire says whether the caller is the one to wake it.
func (w *FetchWaiter) fire() bool { return !w.fired.Load() && w.fired.CompareAndSwap(false, true) }

// Cancel takes the waiter off all partitions. After it wake is not called any more, except by a call that is under way.
// It may be called more than once.
func (w *FetchWaiter) Cancel() {
	w.fired.Store(true)
	for i, e := range w.entries {
		e.home.remove(e)
		w.entries[i] = nil
	}
	w.entries = w.entries[:0]
}

// Park lets w wait for data at r.Offset, below the high watermark, with r.Committed the last stable offset, and counts what is there
// already, up to r.MaxBytes. If the partition cannot be read at all, w is woken at once, and the next Read says why.
// Appends cost each parked fetch one addition (dataplane.md 8).
func (p *Partition) Park(w *FetchWaiter, r ReadRequest) {
	list, mark := &p.committed, p.highWatermark.Load
	switch {
	case r.ReplicaID >= 0:
		list, mark = &p.tail, p.log.EndOffset
	case r.Committed:
		list, mark = &p.stable, p.lastStable.Load
	}
	e := w.entry()
	e.waiter, e.offset, e.maxBytes = w, r.Offset, int64(max(r.MaxBytes, 1))
	list.add(e)
	// Linked first, looked second: what comes in between is counted twice at worst, and never missed.
	v := p.view.Load()
	check := v.check
	if r.FromFollower {
		check = v.checkFollower
	}
	if check(r.CurrentLeaderEpoch) != nil || r.Offset < p.log.StartOffset() {
		if w.fire() {
			w.wake()
		}
		return
	}
	limit := mark()
	if limit <= r.Offset {
		return
	}
	s, err := p.log.Read(r.Offset, limit, r.MaxBytes, true)
	n := int64(s.Len())
	s.Release()
	if err != nil && w.fire() || err == nil && list.credit(e, n) {
		w.wake()
	}
}

// waiterList is the list of fetches parked on one partition.
type waiterList struct {
	// parked is len of the list: read without the lock by those who advance, after they have published what they
	// advance to.
	parked atomic.Int32
	mu     struct {
		sync.Mutex
		head *fetchEntry
	}
}

func (l *waiterList) add(e *fetchEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.home, e.linked = l, true
	e.next = l.mu.head
	if e.next != nil {
		e.next.prev = e
	}
	l.mu.head = e
	l.parked.Add(1)
}

func (l *waiterList) remove(e *fetchEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unlinkLocked(e)
}

func (l *waiterList) unlinkLocked(e *fetchEntry) {
	if !e.linked {
		return
	}
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		l.mu.head = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	}
	e.next, e.prev, e.linked = nil, nil, false
	l.parked.Add(-1)
}

// credit counts bytes that were there when e was parked.
func (l *waiterList) credit(e *fetchEntry, bytes int64) (wake bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.countLocked(bytes)
}

func (e *fetchEntry) countLocked(bytes int64) (wake bool) {
	bytes = min(bytes, e.maxBytes-e.bytes)
	if bytes <= 0 {
		return false
	}
	e.bytes += bytes
	return e.waiter.count(bytes)
}

// advance counts bytes that have become readable below mark and collects the waiters to wake. The mark must have been
// published before.
func (l *waiterList) advance(mark, bytes int64, out *outcomes) {
	if l.parked.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.mu.head; e != nil; {
		next := e.next
		switch {
		case e.waiter.fired.Load():
			l.unlinkLocked(e)
		case mark > e.offset && e.countLocked(bytes):
			l.unlinkLocked(e)
			out.woken = append(out.woken, e.waiter)
		}
		e = next
	}
}

// wakeBelow wakes the fetches whose offset is below start; with start = math.MaxInt64 all of them.
func (l *waiterList) wakeBelow(start int64, out *outcomes) {
	if l.parked.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.mu.head; e != nil; {
		next := e.next
		if e.offset < start {
			l.unlinkLocked(e)
			if e.waiter.fire() {
				out.woken = append(out.woken, e.waiter)
			}
		}
		e = next
	}
}
