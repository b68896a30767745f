package transport

import (
	"sync/atomic"
	"time"
)

const (
	// pressAfter is how long a connection waits for memory before it presses those that hold some for frames that have not arrived.
	pressAfter = 250 * time.Millisecond
	// pressedTimeout takes the place of Config.FrameTimeout for a frame that is pressed, and pressedBytesPerSecond that of frameBytesPerSecond.
	pressedTimeout        = 500 * time.Millisecond
	pressedBytesPerSecond = 2 << 20
	frameBytesPerSecond   = 512 << 10
	// distrustedFor is how long a source has to make do with less after a pressed frame of it did not arrive.
	distrustedFor = time.Minute
	// distrustedPatience is how long frames of such a source may wait to grow.
	distrustedPatience = 5 * time.Second
)

// arrival is a frame on its way that holds memory. It belongs to its reader, but for what is atomic.
type arrival struct {
	size  int
	began atomic.Int64 // ns since epoch, what it waited for memory added
	// expire sets the deadline of a read under way.
	expire func(time.Time)
	// waiting says that it waits for memory itself, and pressed that somebody waits for what it holds.
	waiting, pressed atomic.Bool

	next, prev *arrival // guarded by budget.mu
}

// epoch is what arrival.began counts from, so that it follows the monotonic clock.
var epoch = time.Now()

// arrivals is a list of arrival.
type arrivals struct{ first *arrival }

// until is when a must have arrived if it has so much time and as much more as its bytes take.
func (a *arrival) until(timeout time.Duration, bytesPerSecond int) time.Time {
	return epoch.Add(time.Duration(a.began.Load()) + timeout + time.Duration(float64(a.size)/float64(bytesPerSecond)*float64(time.Second)))
}

// deadline is until when a frame may arrive that usually has timeout.
func (a *arrival) deadline(timeout time.Duration) time.Time {
	if a.pressed.Load() {
		return a.until(min(timeout, pressedTimeout), pressedBytesPerSecond)
	}
	return a.until(timeout, frameBytesPerSecond)
}

// arrive notes that a begins to arrive.
func (b *budget) arrive(a *arrival) {
	a.began.Store(int64(time.Since(epoch)))
	a.pressed.Store(false)
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.prev, a.next = nil, b.mu.arriving.first; a.next != nil {
		a.next.prev = a
	}
	b.mu.arriving.first = a
}

// arrived notes that a has arrived, or never will: it is not pressed any more.
func (b *budget) arrived(a *arrival) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.prev == nil {
		b.mu.arriving.first = a.next
	} else {
		a.prev.next = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.next, a.prev = nil, nil
}

// distrust notes that a frame of s which held memory that others waited for did not arrive.
func (b *budget) distrust(s *source) {
	if s == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.frames.distrusted = time.Now().Add(distrustedFor)
}

// distrusts reports whether the source of l is distrusted now.
func (b *budget) distrusts(l *lane) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Before(l.distrusted)
}

// press shortens the time that frames have to arrive. A reader that sets its deadline at the same moment may undo it for its frame; whoever
// waits presses again.
func (b *budget) press() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := b.mu.arriving.first; a != nil; a = a.next {
		a.pressed.Store(true)
		if !a.waiting.Load() {
			a.expire(a.until(pressedTimeout, pressedBytesPerSecond))
		}
	}
}
