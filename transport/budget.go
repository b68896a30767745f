package transport

import (
	"context"
	"sync"
)

// budget bounds the memory of frames in flight. A connection that can't be given what its next frame needs waits here instead of reading,
// and TCP carries the waiting back to the client.
//
// A frame larger than what has already arrived of it grows in steps (N3), so it waits for more while it holds some: hold and wait, the
// recipe of a deadlock. The way out is a reserve that only one frame at a time may draw on:
//
//	total  |<-------------- main, 3/4 --------------->|<- reserve, 1/4 ->| one frame above, if larger than the reserve
//
// A new frame waits, holding nothing, until main has room (enter). A frame that must grow and finds main full takes the token if it is free
// and from then on draws on the reserve, and above it if it must: it never waits again. Another one waits for room in main or for
// the token, ahead of all new frames. So of the frames that hold something, those fully read are in work and end without needing
// a frame; and of the partial ones at least the token's owner moves, or is cut off by its frame timeout and passes the token on. Nobody
// waits for ever, whatever the sizes.
//
// Memory is bounded by total, or by 3/4 of it and the class of the largest frame together with the class that this frame outgrew and is copied
// from, whichever is more.
//
// What makes "those in work end" true lies outside: an append needs the disk and, with several replicas, the followers' fetches. Those
// arrive on an Internal listener, whose frames are charged to another budget.
type budget struct {
	main int64

	mu struct {
		sync.Mutex
		used     int64 // charged in main: 0 ≤ used ≤ main
		overflow int64 // charged by the token's owner outside of main
		token    bool  // somebody owns the token
		growers  waiters
		entrants waiters
		waits    uint64 // how often somebody had to wait
	}
}

// charge is what one frame holds of a budget. Owned by the frame's reader, then by whoever releases it last.
type charge struct {
	main     int64
	overflow int64
	token    bool
}

// waiter is a frame's wait for n bytes.
type waiter struct {
	n     int64
	c     *charge
	ready chan struct{} // closed once c holds the bytes

	next, prev *waiter
}

// waiters is a FIFO of waiters.
type waiters struct{ first, last *waiter }

func (q *waiters) push(w *waiter) {
	if w.prev = q.last; w.prev == nil {
		q.first = w
	} else {
		w.prev.next = w
	}
	q.last = w
}

func (q *waiters) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.next, w.prev = nil, nil
}

// minBudgetBytes keeps main large enough for the first step of a frame.
const minBudgetBytes = 64 << 10

func newBudget(total int64) *budget {
	return &budget{main: max(total, minBudgetBytes) / 4 * 3}
}

// lend charges n bytes at once on the word of a length prefix if less than half of main is in use with them and nobody waits. It spares
// honest frames in normal times the copies of growing; the other half always waits for bytes to arrive.
func (b *budget) lend(n int64) (charge, bool) { return b.tryEnter(n, b.main/2) }

// tryEnter charges n bytes for a frame that holds nothing yet, unless it would have to wait or more than limit were in use.
func (b *budget) tryEnter(n, limit int64) (charge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.growers.first != nil || b.mu.entrants.first != nil || b.mu.used+n > limit {
		return charge{}, false
	}
	b.mu.used += n
	return charge{main: n}, true
}

// enter charges n bytes, at most main, for a frame that holds nothing yet. It waits in the order of arrival.
func (b *budget) enter(ctx context.Context, n int64) (charge, error) {
	if c, ok := b.tryEnter(n, b.main); ok {
		return c, nil
	}
	var c charge
	b.mu.Lock()
	w := &waiter{n: n, c: &c, ready: make(chan struct{})}
	b.mu.entrants.push(w)
	b.grantLocked() // room may have come about since
	err := b.awaitLocked(ctx, &b.mu.entrants, w)
	if err != nil {
		b.release(&c)
	}
	return c, err
}

// grow charges n more bytes for a frame that holds c, for which it may have to wait: see budget.
func (b *budget) grow(ctx context.Context, c *charge, n int64) error {
	b.mu.Lock()
	switch {
	case b.mu.growers.first == nil && b.mu.used+n <= b.main:
		b.chargeLocked(c, n)
	case c.token || !b.mu.token:
		b.overflowLocked(c, n)
	default:
		w := &waiter{n: n, c: c, ready: make(chan struct{})}
		b.mu.growers.push(w)
		return b.awaitLocked(ctx, &b.mu.growers, w)
	}
	b.mu.Unlock()
	return nil
}

// awaitLocked waits until w, which is in q, was given what it asks for. It unlocks mu.
func (b *budget) awaitLocked(ctx context.Context, q *waiters, w *waiter) error {
	b.mu.waits++
	b.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // granted meanwhile: the caller gives them back with the rest of its charge
	default:
		q.remove(w)
		b.grantLocked() // who stood behind may fit where this one did not
	}
	return context.Cause(ctx)
}

// shrink gives back n bytes of c, what it holds outside of main first.
func (b *budget) shrink(c *charge, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	over := min(n, c.overflow)
	c.overflow -= over
	b.mu.overflow -= over
	c.main -= n - over
	b.mu.used -= n - over
	b.grantLocked()
}

// release gives back all of c.
func (b *budget) release(c *charge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.used -= c.main
	b.mu.overflow -= c.overflow
	if c.token {
		b.mu.token = false
	}
	*c = charge{}
	b.grantLocked()
}

func (b *budget) chargeLocked(c *charge, n int64) {
	c.main += n
	b.mu.used += n
}

func (b *budget) overflowLocked(c *charge, n int64) {
	c.token, b.mu.token = true, true
	c.overflow += n
	b.mu.overflow += n
}

// grantLocked serves waiters: growers in their order, by room in main or by the token, and then new frames while they fit.
func (b *budget) grantLocked() {
	for w := b.mu.growers.first; w != nil; w = b.mu.growers.first {
		switch {
		case b.mu.used+w.n <= b.main:
			b.chargeLocked(w.c, w.n)
		case !b.mu.token:
			b.overflowLocked(w.c, w.n)
		default:
			return
		}
		b.mu.growers.remove(w)
		close(w.ready)
	}
	for w := b.mu.entrants.first; w != nil && b.mu.used+w.n <= b.main; w = b.mu.entrants.first {
		b.chargeLocked(w.c, w.n)
		b.mu.entrants.remove(w)
		close(w.ready)
	}
}

// inUse is the number of bytes charged.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.used + b.mu.overflow
}

// waitCount is how often a frame had to wait.
func (b *budget) waitCount() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.waits
}
