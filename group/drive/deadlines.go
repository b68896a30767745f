package drive

import (
	"container/heap"
	"sync"
)

// Slot is where an entry stands among the deadlines. Entries embed it; only [Deadlines] looks into it.
type Slot struct {
	at    int64
	place int // in the heap, from 1; 0: not there
}

func (s *Slot) slot() *Slot { return s }

// Slotted is an entry that embeds a [Slot].
type Slotted interface {
	comparable
	slot() *Slot
}

// Deadlines orders entries by when something is due for them. T is the coordinator's measure of time. Its methods may be
// called from any goroutine.
type Deadlines[E Slotted, T ~int64] struct {
	mu   sync.Mutex
	heap slots[E]
	wake chan struct{} // holds a signal when the first deadline has come nearer
}

type slots[E Slotted] []E

func (h slots[E]) Len() int           { return len(h) }
func (h slots[E]) Less(i, j int) bool { return h[i].slot().at < h[j].slot().at }
func (h slots[E]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot().place, h[j].slot().place = i+1, j+1
}
func (h *slots[E]) Push(x any) {
	*h = append(*h, x.(E))
	x.(E).slot().place = len(*h)
}
func (h *slots[E]) Pop() any {
	var none E
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = none
	*h = old[:len(old)-1]
	e.slot().place = 0
	return e
}

// NewDeadlines returns one without any.
func NewDeadlines[E Slotted, T ~int64]() *Deadlines[E, T] {
	return &Deadlines[E, T]{wake: make(chan struct{}, 1)}
}

// Set gives an entry its deadline, instead of the one it had.
func (d *Deadlines[E, T]) Set(e E, at T) {
	d.mu.Lock()
	s := e.slot()
	s.at = int64(at)
	if s.place > 0 {
		heap.Fix(&d.heap, s.place-1)
	} else {
		heap.Push(&d.heap, e)
	}
	first := s.place == 1
	d.mu.Unlock()
	if first {
		select {
		case d.wake <- struct{}{}:
		default:
		}
	}
}

// Remove takes the deadline of an entry away, if it has one.
func (d *Deadlines[E, T]) Remove(e E) {
	d.mu.Lock()
	if s := e.slot(); s.place > 0 {
		heap.Remove(&d.heap, s.place-1)
	}
	d.mu.Unlock()
}

// Pop takes the entry out whose deadline came first, if it has come; else it returns nil.
func (d *Deadlines[E, T]) Pop(now T) (e E) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 || d.heap[0].slot().at > int64(now) {
		return e
	}
	return heap.Pop(&d.heap).(E)
}

// Next is when the first deadline comes; never, if there is none.
func (d *Deadlines[E, T]) Next() T {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 {
		return T(1<<63 - 1)
	}
	return T(d.heap[0].slot().at)
}

// Nearer receives when the first deadline has become an earlier one, or may have.
func (d *Deadlines[E, T]) Nearer() <-chan struct{} { return d.wake }
