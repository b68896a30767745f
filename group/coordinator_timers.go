package group

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// timers orders the deadlines of all groups.
type timers struct {
	mu   sync.Mutex
	heap entryHeap
	wake chan struct{} // holds a signal when the first deadline has come nearer
}

type entryHeap []*entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *entryHeap) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}
func (h *entryHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = -1
	return e
}

func (t *timers) set(e *entry, at Instant) {
	t.mu.Lock()
	e.at = at
	if e.index >= 0 {
		heap.Fix(&t.heap, e.index)
	} else {
		heap.Push(&t.heap, e)
	}
	first := e.index == 0
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

func (t *timers) remove(e *entry) {
	t.mu.Lock()
	if e.index >= 0 {
		heap.Remove(&t.heap, e.index)
	}
	t.mu.Unlock()
}

// pop returns an entry whose deadline has come, or nil and when the next comes.
func (t *timers) pop(now Instant) (*entry, Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.heap) == 0:
		return nil, Never
	case t.heap[0].at > now:
		return nil, t.heap[0].at
	}
	return heap.Pop(&t.heap).(*entry), 0
}

const (
	// beatInterval is how often the time keeper looks at the clock, whatever the deadlines are.
	beatInterval = Instant(time.Second)
	// stallMin is from when on a process that could not run counts as held up. What its members sent meanwhile lies in
	// sockets that nobody has read: they get the time back (G6).
	stallMin = Instant(2 * time.Second)
)

// keepTime ends sessions and phases when their deadlines come.
func (c *Coordinator) keepTime(ctx context.Context) {
	timer := time.NewTimer(time.Duration(beatInterval))
	defer timer.Stop()
	last, leased := c.now(), true
	for {
		now := c.now()
		if gap := now - last - beatInterval; gap > stallMin {
			c.logger.Warn("groups get back the time in which this process could not run", "duration", time.Duration(gap))
			c.each(func(e *entry) { c.with(e, &Extend{By: now - last}) })
		}
		last = now
		if !c.cfg.Leased() {
			leased = false // members are not heard, so none is given up
		} else {
			if !leased {
				leased = true
				c.each(c.reload)
			}
			c.fire(now)
		}
		_, next := c.timers.pop(-1)
		timer.Reset(time.Duration(max(0, min(next-c.now(), beatInterval))))
		if !leased {
			timer.Reset(time.Duration(beatInterval))
		}
		select {
		case <-timer.C:
		case <-c.timers.wake:
		case <-c.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// fire lets the time pass for the groups whose deadlines have come.
func (c *Coordinator) fire(now Instant) {
	for {
		e, _ := c.timers.pop(now)
		if e == nil {
			return
		}
		e.mu.Lock()
		e.mu.due = Never
		e.mu.Unlock()
		c.with(e, &Tick{})
	}
}
