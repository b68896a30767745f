package drive

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/metadata"
)

// Life is that of a coordinator, from New to the end of Close. Its methods may be called from any goroutine.
type Life struct {
	closed   atomic.Bool
	stop     chan struct{}
	running  sync.WaitGroup
	entering sync.Mutex // closed and running change together: nobody enters once Close waits
}

// NewLife returns one that is not over.
func NewLife() *Life { return &Life{stop: make(chan struct{})} }

// Run calls follow, one call at a time, whenever watch has newer metadata, and beside it keepTime, which returns when its
// context ends. Run returns when ctx ends or Close is called, and keepTime has returned then, too. After Close it does
// nothing.
func (l *Life) Run(ctx context.Context, watch func() *metadata.Watcher, follow func(), keepTime func(context.Context)) {
	l.entering.Lock()
	closed := l.closed.Load()
	if !closed {
		l.running.Add(1)
	}
	l.entering.Unlock()
	if closed {
		return
	}
	defer l.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	defer cancel()
	w := watch()
	defer w.Close()
	keeping.Go(func() { keepTime(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.stop:
			return
		case <-w.C():
			follow()
		}
	}
}

// Closed reports whether Close was called.
func (l *Life) Closed() bool { return l.closed.Load() }

// Done is closed by Close.
func (l *Life) Done() <-chan struct{} { return l.stop }

// Close ends Run and waits for it. It reports whether it is the first call; another one does nothing, and does not wait.
func (l *Life) Close() (first bool) {
	l.entering.Lock()
	first = l.closed.CompareAndSwap(false, true)
	l.entering.Unlock()
	if !first {
		return false
	}
	close(l.stop)
	l.running.Wait()
	return true
}
