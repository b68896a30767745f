package replication

import "sync"

// slot holds the waiter of an unanswered request; [Waiter] is its index in the table plus one.
type slot struct {
	waiter  AppendWaiter
	index   int
	produce bool // counts as a produce request
}

// waiterTable gives requests small numbers, so that the core needs no pointers. Guarded by the partition's lock.
type waiterTable struct {
	slots []slot
	free  []int32
}

func (t *waiterTable) add(s slot) Waiter {
	if n := len(t.free); n > 0 {
		i := t.free[n-1]
		t.free = t.free[:n-1]
		t.slots[i] = s
		return Waiter(i + 1)
	}
	t.slots = append(t.slots, s)
	return Waiter(len(t.slots))
}

func (t *waiterTable) remove(w Waiter) slot {
	i := int32(w - 1)
	s := t.slots[i]
	t.slots[i] = slot{}
	t.free = append(t.free, i)
	return s
}

// outcomes are the calls to make once the partition's lock is released: results of appends and wakes of parked fetches.
type outcomes struct {
	results []outcome
	woken   []*FetchWaiter
	wakes   []func()
}

type outcome struct {
	slot
	result AppendResult
}

func (o *outcomes) empty() bool { return len(o.results) == 0 && len(o.woken) == 0 && len(o.wakes) == 0 }

// deliver makes the calls and empties the lists.
func (o *outcomes) deliver() {
	for i := range o.results {
		r := &o.results[i]
		r.waiter.Appended(r.index, r.result)
	}
	for _, w := range o.woken {
		w.wake()
	}
	for _, wake := range o.wakes {
		wake()
	}
	clear(o.results)
	clear(o.woken)
	clear(o.wakes)
	o.results, o.woken, o.wakes = o.results[:0], o.woken[:0], o.wakes[:0]
}

// outcomesPool recycles the lists: they are delivered without the lock, so a partition cannot own one.
var outcomesPool = sync.Pool{New: func() any { return new(outcomes) }}
