package transport

import (
	"context"
	"sync"
	"time"
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
// Sources (source) share main: one of them holds no more than twice of what is left, so at most two thirds, and another one always finds room. The
// waits of a source are served in their order, those of different ones in turn. Whoever is held back for its source's sake may take
// the token as if main were full, and so the way out above stays open.
//
// A frame has much time to arrive (Config.FrameTimeout), for honest clients may be slow. But while somebody waits for memory that half-read
// frames hold, these have pressedTimeout instead; and a source of which one did not arrive all the same has for a while a tenth of what
// is left, and the token only when nobody else asks for it. Its frames that wait to grow are given up after distrustedPatience: they
// hold what its other connections wait for.
//
// What makes "those in work end" true lies outside: an append needs the disk and, with several replicas, the followers' fetches. Those
// arrive on an Internal listener, whose frames are charged to another budget.
type budget struct {
	main int64

	mu struct {
		sync.Mutex
		used     int64   // charged in main: 0 ≤ used ≤ main
		overflow int64   // charged by the token's owner outside of main
		token    bool    // somebody owns the token
		waiting  []*lane // those with waiters; the first is looked at first
		other    lane    // of frames without a source: its part is not bounded
		arriving arrivals
		waits    uint64 // how often somebody had to wait
	}
}

// lane is what a source has to do with a budget. Guarded by budget.mu.
type lane struct {
	held     int64 // charged in main by the source's frames
	growers  waiters
	entrants waiters
	queued   bool // in budget.mu.waiting
	// distrusted is until when the source has a smaller part, and the token after all others.
	distrusted time.Time
}

// charge is what one frame holds of a budget. Owned by the frame's reader, then by whoever releases it last.
type charge struct {
	source   *source
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

// lend charges n bytes at once on the word of a length prefix if less than half of main is in use with them and nobody of the source waits. It
// spares honest frames in normal times the copies of growing; the other half waits for bytes to arrive, but for connections that kept
// their word before.
func (b *budget) lend(s *source, n int64, trusted bool) (charge, bool) {
	limit := b.main / 2
	if trusted {
		limit = b.main
	}
	return b.tryEnter(s, n, limit)
}

// tryEnter charges n bytes for a frame that holds nothing yet, unless it would have to wait or more than limit were in use.
func (b *budget) tryEnter(s *source, n, limit int64) (charge, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := charge{source: s}
	l := b.laneLocked(s)
	if l.growers.first != nil || l.entrants.first != nil || b.mu.used+n > limit || !b.fitsLocked(l, n) {
		return charge{}, false
	}
	b.chargeLocked(&c, n)
	return c, true
}

// enter charges n bytes, at most main, for a frame that holds nothing yet. It waits in the order of the source's arrival.
func (b *budget) enter(ctx context.Context, s *source, n int64) (charge, error) {
	if c, ok := b.tryEnter(s, n, b.main); ok {
		return c, nil
	}
	c := charge{source: s}
	b.mu.Lock()
	l := b.laneLocked(s)
	w := &waiter{n: n, c: &c, ready: make(chan struct{})}
	l.entrants.push(w)
	b.queueLocked(l)
	b.grantLocked() // room may have come about since
	err := b.awaitLocked(ctx, l, &l.entrants, w)
	if err != nil {
		b.release(&c)
	}
	return c, err
}

// grow charges n more bytes for a frame that holds c, for which it may have to wait: see budget.
func (b *budget) grow(ctx context.Context, c *charge, n int64) error {
	b.mu.Lock()
	l := b.laneLocked(c.source)
	switch {
	case l.growers.first == nil && b.fitsLocked(l, n):
		b.chargeLocked(c, n)
	case c.token || b.tokenLocked(l):
		b.overflowLocked(c, n)
	default:
		w := &waiter{n: n, c: c, ready: make(chan struct{})}
		l.growers.push(w)
		b.queueLocked(l)
		return b.awaitLocked(ctx, l, &l.growers, w)
	}
	b.mu.Unlock()
	return nil
}

// awaitLocked waits until w, which is in q of l, was given what it asks for. It unlocks mu.
func (b *budget) awaitLocked(ctx context.Context, l *lane, q *waiters, w *waiter) error {
	b.mu.waits++
	b.mu.Unlock()
	began := time.Now()
	press := time.NewTicker(pressAfter)
	defer press.Stop()
	var err error
	for err == nil {
		select {
		case <-w.ready:
			return nil
		case <-press.C:
			if q == &l.growers && time.Since(began) > distrustedPatience && b.distrusts(l) {
				err = errFrameTimeout
			}
			b.press()
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-w.ready: // granted meanwhile: the caller gives them back with the rest of its charge
	default:
		q.remove(w)
		b.grantLocked() // who stood behind may fit where this one did not
	}
	return err
}

// shrink gives back n bytes of c, what it holds outside of main first.
func (b *budget) shrink(c *charge, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	over := min(n, c.overflow)
	c.overflow -= over
	b.mu.overflow -= over
	b.chargeLocked(c, over-n)
	b.grantLocked()
}

// release gives back all of c.
func (b *budget) release(c *charge) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chargeLocked(c, -c.main)
	b.mu.overflow -= c.overflow
	if c.token {
		b.mu.token = false
	}
	*c = charge{}
	b.grantLocked()
}

func (b *budget) laneLocked(s *source) *lane {
	if s == nil {
		return &b.mu.other
	}
	return &s.frames
}

// fitsLocked reports whether main has room for n more bytes of the lane.
func (b *budget) fitsLocked(l *lane, n int64) bool {
	left := b.main - b.mu.used - n
	switch {
	case left < 0:
		return false
	case l == &b.mu.other || l.held == 0:
		return true
	case l.distrusted.IsZero() || l.distrusted.Before(time.Now()):
		l.distrusted = time.Time{}
		return l.held+n <= 2*left
	}
	return l.held+n <= left/10
}

// tokenLocked reports whether a frame of l may take the token.
func (b *budget) tokenLocked(l *lane) bool {
	if b.mu.token {
		return false
	}
	if l.distrusted.IsZero() {
		return true
	}
	for _, other := range b.mu.waiting {
		if other.growers.first != nil && other.distrusted.IsZero() {
			return false
		}
	}
	return true
}

func (b *budget) chargeLocked(c *charge, n int64) {
	c.main += n
	b.mu.used += n
	b.laneLocked(c.source).held += n
}

func (b *budget) overflowLocked(c *charge, n int64) {
	c.token, b.mu.token = true, true
	c.overflow += n
	b.mu.overflow += n
}

// queueLocked lets a lane with a waiter take part in the rounds of grantLocked.
func (b *budget) queueLocked(l *lane) {
	if !l.queued {
		l.queued = true
		b.mu.waiting = append(b.mu.waiting, l)
	}
}

// grantLocked serves waiters while any can be: one of each source and round.
func (b *budget) grantLocked() {
	for refused := 0; refused < len(b.mu.waiting); {
		l := b.mu.waiting[0]
		if b.serveLocked(l) {
			refused = 0
		} else {
			refused++
		}
		n := copy(b.mu.waiting, b.mu.waiting[1:])
		if l.growers.first != nil || l.entrants.first != nil {
			b.mu.waiting[n] = l // the end of the round
			continue
		}
		refused = 0
		l.queued = false
		b.mu.waiting[n] = nil
		b.mu.waiting = b.mu.waiting[:n]
	}
}

// serveLocked serves the next waiter of l: growers in their order, by room in main or by the token, and then new frames.
func (b *budget) serveLocked(l *lane) bool {
	if w := l.growers.first; w != nil {
		switch {
		case b.fitsLocked(l, w.n):
			b.chargeLocked(w.c, w.n)
		case b.tokenLocked(l):
			b.overflowLocked(w.c, w.n)
		default:
			return false
		}
		l.growers.remove(w)
		close(w.ready)
		return true
	}
	w := l.entrants.first
	if w == nil || !b.fitsLocked(l, w.n) {
		return false
	}
	b.chargeLocked(w.c, w.n)
	l.entrants.remove(w)
	close(w.ready)
	return true
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
