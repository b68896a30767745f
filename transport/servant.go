package transport

import (
	"iter"
	"sync/atomic"
)

// servants lend their stacks to connections that wake up. A goroutine that waits for bytes has a stack of 2 KiB, and must not serve a request
// on it: it would grow, and stay so. Another goroutine would do, but starting one, or waking one up, wakes up a thread, which at rest is
// most of what a heartbeat costs. A coroutine takes the place of its caller on the same thread instead, in a fraction of a microsecond.
type servants struct {
	idle   [16]atomic.Pointer[servant]
	closed atomic.Bool
}

// servant is a coroutine that serves one connection after the other.
type servant struct {
	next func() (rests, ok bool) // serves conn
	stop func()                  // ends the coroutine

	conn   *Conn
	waited error
}

func newServant() *servant {
	v := &servant{}
	v.next, v.stop = iter.Pull(func(yield func(bool) bool) {
		for {
			rests := v.conn.serve(v.waited)
			v.conn, v.waited = nil, nil
			if !yield(rests) {
				return
			}
		}
	})
	return v
}

// take returns a servant that is idle, nil if there is none. Its caller may be at the end of a small stack.
func (p *servants) take() *servant {
	for i := range p.idle {
		if p.idle[i].Load() != nil {
			if v := p.idle[i].Swap(nil); v != nil {
				return v
			}
		}
	}
	return nil
}

// put takes a servant back, or ends it if there are enough.
func (p *servants) put(v *servant) {
	for i := range p.idle {
		if p.idle[i].Load() == nil && p.idle[i].CompareAndSwap(nil, v) {
			if p.closed.Load() {
				p.end()
			}
			return
		}
	}
	v.stop()
}

// hire makes a servant if there is room for one.
func (p *servants) hire() {
	if p.idle[len(p.idle)-1].Load() == nil {
		p.put(newServant())
	}
}

// end stops those that are idle, and from now on those that come back.
func (p *servants) end() {
	p.closed.Store(true)
	for v := p.take(); v != nil; v = p.take() {
		v.stop()
	}
}
