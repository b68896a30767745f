package metadata

import "sync"

// Watcher tells its owner that a newer Image is there. Signals coalesce: however many Images were published since the
// owner last received from C, one signal waits. The owner then takes Store.Image and compares it with the one it knows.
type Watcher struct {
	c      chan struct{}
	remove func()
}

// C returns the channel that holds one signal whenever an Image was published since the last receive. A new Watcher
// starts with a signal, so that its owner's first round needs no special case. The channel is never closed.
func (w *Watcher) C() <-chan struct{} { return w.c }

// Close ends the watch. It may be called more than once.
func (w *Watcher) Close() { w.remove() }

// watchers is the set of open Watchers of a Store.
type watchers struct {
	mu struct {
		sync.Mutex
		set map[*Watcher]struct{}
	}
}

func (ws *watchers) add() *Watcher {
	w := &Watcher{c: make(chan struct{}, 1)}
	w.remove = func() {
		ws.mu.Lock()
		delete(ws.mu.set, w)
		ws.mu.Unlock()
	}
	w.c <- struct{}{}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.mu.set == nil {
		ws.mu.set = make(map[*Watcher]struct{})
	}
	ws.mu.set[w] = struct{}{}
	return w
}

// signal must be called after the new Image can be read.
func (ws *watchers) signal() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.mu.set {
		select {
		case w.c <- struct{}{}:
		default: // one waits already
		}
	}
}

// NewWatcher returns a Watcher of something else than a Store, such as a Replica that a test changes, and the function
// that signals it after each change.
func NewWatcher() (w *Watcher, signal func()) {
	ws := new(watchers)
	return ws.add(), ws.signal
}
