package transport

import (
	"runtime"
	"sync"
)

// turns orders the writes of record bytes. Reading a topic from its start keeps a connection busy without end; with a hundred of them whoever
// sends a small request would wait for a hundred chunks to be written before its goroutine runs. So only a few connections fill and write
// chunks at a time; a turn is one chunk, and turns go round the sources and, within a source, round its connections. A connection whose
// socket is full waits for it without a turn, and one whose records come from a disk loses it. All other answers are written without one.
type turns struct {
	mu struct {
		sync.Mutex
		free    int
		waiting []*turnLane // those with waiters; the first is next
		other   turnLane    // of connections without a source
	}
}

// turnLane is the queue of a source, in the order of arrival. Guarded by turns.mu.
type turnLane struct {
	first, last *turnWaiter
}

// turnWaiter is a connection's wait for a turn.
type turnWaiter struct {
	ready chan struct{} // has room for one
	next  *turnWaiter
}

// newTurns allows half of the cores to move chunks: the other half is for everybody else.
func newTurns() *turns {
	t := &turns{}
	t.mu.free = max(1, runtime.NumCPU()/2)
	return t
}

// take waits for a turn. The holder gives it back without waiting for anything.
func (t *turns) take(s *source, w *turnWaiter) {
	t.mu.Lock()
	if t.mu.free > 0 {
		t.mu.free--
		t.mu.Unlock()
		return
	}
	l := &t.mu.other
	if s != nil {
		l = &s.writes
	}
	if w.next = nil; l.last == nil {
		l.first = w
		t.mu.waiting = append(t.mu.waiting, l)
	} else {
		l.last.next = w
	}
	l.last = w
	t.mu.Unlock()
	<-w.ready
}

// give hands a turn on.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.waiting) == 0 {
		t.mu.free++
		return
	}
	l := t.mu.waiting[0]
	w := l.first
	n := copy(t.mu.waiting, t.mu.waiting[1:])
	t.mu.waiting[n] = nil
	t.mu.waiting = t.mu.waiting[:n]
	if l.first = w.next; l.first == nil {
		l.last = nil
	} else {
		t.mu.waiting = append(t.mu.waiting, l) // to the end of the round
	}
	w.ready <- struct{}{}
}
