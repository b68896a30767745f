package replication

import "slices"

// waiting is an appended batch whose request has not been answered.
type waiting struct {
	waiter   Waiter
	base     int64
	next     int64 // answered once the awaited mark reaches it
	deadline Instant
}

// waitQueue holds waiting requests in the order of the offset they wait for. Appends come in that order, so a push is
// at the tail; only the duplicate of an earlier batch is sorted in. The slice is reused: a steady state allocates
// nothing.
type waitQueue struct {
	items []waiting // items[head:] wait
	head  int
	// earliest is a lower bound of the deadlines, Never when empty.
	earliest Instant
}

func (q *waitQueue) len() int { return len(q.items) - q.head }

func (q *waitQueue) push(w waiting) {
	if q.len() == 0 {
		q.items, q.head, q.earliest = q.items[:0], 0, Never
	} else if q.head > 64 && q.head*2 > len(q.items) {
		q.items = slices.Delete(q.items, 0, q.head)
		q.head = 0
	}
	q.earliest = min(q.earliest, w.deadline)
	i := len(q.items)
	for i > q.head && q.items[i-1].next > w.next {
		i--
	}
	q.items = slices.Insert(q.items, i, w)
}

// pop returns the first request whose offset has been reached.
func (q *waitQueue) pop(reached int64) (waiting, bool) {
	if q.len() == 0 || q.items[q.head].next > reached {
		return waiting{}, false
	}
	w := q.items[q.head]
	q.head++
	return w, true
}

// expire removes the requests whose deadline has come and hands each to fn.
func (q *waitQueue) expire(now Instant, fn func(waiting)) {
	if q.len() == 0 || now < q.earliest {
		return
	}
	q.earliest = Never
	kept := q.items[:q.head]
	for _, w := range q.items[q.head:] {
		if w.deadline <= now {
			fn(w)
			continue
		}
		q.earliest = min(q.earliest, w.deadline)
		kept = append(kept, w)
	}
	q.items = kept
}

// drain removes all requests and hands each to fn.
func (q *waitQueue) drain(fn func(waiting)) {
	for _, w := range q.items[q.head:] {
		fn(w)
	}
	q.items, q.head, q.earliest = q.items[:0], 0, Never
}

// deadline returns the earliest deadline, Never when nothing waits.
func (q *waitQueue) deadline() Instant {
	if q.len() == 0 {
		return Never
	}
	return q.earliest
}
