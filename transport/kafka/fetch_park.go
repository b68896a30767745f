package kafka

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
)

// A fetch that waits is woken by whatever comes first: enough bytes or news on one
// of its partitions, its timer, the server's draining, the end of its connection.
// All of them may come at once, on any goroutine; the first one has an effect.
const (
	fetchIdle         int32 = iota
	fetchParking            // the reader goroutine is putting it on its partitions
	fetchParked             // it waits
	fetchWokenParking       // woken while it was being parked: the reader answers
	fetchWoken              // woken: the goroutine that writes to the connection answers
)

// fetchPark is the part of a fetchCall that waits.
type fetchPark struct {
	f      *fetchCall
	state  atomic.Int32
	waiter *replication.FetchWaiter
	timer  *time.Timer
	since  time.Time    // when it was parked; zero: never
	budget atomic.Int64 // of the decode budget, given back by whoever ends the fetch

	// cleaned says that the fetch is off its partitions; guarded by the lock of
	// parkedFetches.
	cleaned bool

	// listed says that the fetch is among those of its connection, which before and next link; guarded by the lock of
	// parkedFetches.
	listed       bool
	before, next *fetchCall

	// spoiled says that a second wake may still be under way, so that the call
	// must not serve another request: the garbage collector gets it.
	spoiled atomic.Bool

	wakeFunc, expireFunc func() // methods, bound once
	answerFunc           func() transport.Response
}

func (p *fetchPark) init(f *fetchCall) {
	p.f = f
	p.wakeFunc, p.expireFunc, p.answerFunc = p.wake, p.expire, p.answer
}

// reset makes the park ready for the next request, and reports whether it may have
// one.
func (p *fetchPark) reset() bool {
	if p.spoiled.Load() {
		return false
	}
	p.state.Store(fetchIdle)
	p.waiter, p.since, p.cleaned = nil, time.Time{}, false
	return true
}

// durations splits the request's time in that of work and that of waiting.
func (p *fetchPark) durations(started time.Time) (local, remote time.Duration) {
	if p.since.IsZero() {
		return time.Since(started), 0
	}
	return p.since.Sub(started), time.Since(p.since)
}

// waitFor parks the fetch until minBytes are there to read or wait is over.
func (f *fetchCall) waitFor(minBytes int, wait time.Duration) {
	p := &f.park
	p.since = time.Now()
	p.state.Store(fetchParking)
	p.waiter = replication.NewFetchWaiter(minBytes, p.wakeFunc)
	f.h.parked.add(f)
	if s := f.session; s == nil {
		f.parkAll()
	} else {
		s.mu.Lock()
		if s.mu.epoch == f.sessionEpoch { // then f.order still is the session's
			f.parkAll()
		} else {
			p.wake() // the answer is an error already
		}
		s.mu.Unlock()
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(wait, p.expireFunc)
	} else {
		p.timer.Reset(wait)
	}
	if !p.state.CompareAndSwap(fetchParking, fetchParked) {
		f.req.Reply(p.answer())
	}
}

// parkAll puts the fetch on all partitions of f.order.
func (f *fetchCall) parkAll() {
	p := &f.park
	for _, t := range f.order {
		if p.state.Load() == fetchWokenParking {
			return // enough was there already
		}
		part, err := f.find(t)
		if err != nil { // it went away since it was read: the next read says so
			p.spoiled.Store(true)
			p.wake()
			return
		}
		part.Park(p.waiter, f.readRequest(t, int(t.maxBytes)))
	}
}

// wake makes the fetch be answered. It does not block.
func (p *fetchPark) wake() {
	// In this order: parking becomes parked, never the other way round.
	if !p.state.CompareAndSwap(fetchParking, fetchWokenParking) && p.state.CompareAndSwap(fetchParked, fetchWoken) {
		p.f.req.ReplyFunc(p.answerFunc)
	}
}

// expire is wake by the timer.
func (p *fetchPark) expire() {
	p.spoiled.Store(true)
	p.wake()
}

// answer reads again and makes the response of what is there now.
func (p *fetchPark) answer() transport.Response {
	f := p.f
	p.clean()
	if _, code := f.read(func(int, bool) bool { return true }); code != codeNone {
		f.parts, f.session = f.parts[:0], nil
		return f.response(f.error(code))
	}
	return f.response(codeNone)
}

// clean takes the fetch off its partitions and stops its timer.
func (p *fetchPark) clean() {
	if p.f.h.parked.remove(p.f) {
		p.stop()
	}
}

func (p *fetchPark) stop() {
	p.waiter.Cancel()
	if !p.timer.Stop() {
		p.spoiled.Store(true)
	}
}

// parkedFetches knows all fetches that wait, by connection, and nothing of a connection without one.
type parkedFetches struct {
	h  *Handlers
	mu struct {
		sync.Mutex
		conns    map[*transport.Conn]*fetchCall // the first of each connection's
		watching bool                           // somebody waits for the server to drain
		draining bool                           // nothing waits any more
	}
}

func (ps *parkedFetches) init(h *Handlers) {
	ps.h = h
	ps.mu.conns = map[*transport.Conn]*fetchCall{}
}

// add is called while f is in the state fetchParking, on the connection's reader goroutine.
func (ps *parkedFetches) add(f *fetchCall) {
	conn := f.req.Conn
	ps.mu.Lock()
	if ps.mu.draining {
		f.park.spoiled.Store(true)
		f.park.wake()
	}
	if !ps.mu.watching && !ps.mu.draining {
		ps.mu.watching = true
		draining := f.req.Draining()
		ps.h.work.Go(func() {
			select {
			case <-draining:
			case <-ps.h.ctx.Done():
			}
			ps.drain()
		})
	}
	p := &f.park
	if p.next = ps.mu.conns[conn]; p.next != nil {
		p.next.park.before = f
	}
	p.listed = true
	ps.mu.conns[conn] = f
	ps.mu.Unlock()
	if conn.Context().Err() != nil {
		ps.abandon(conn) // who ended the connection may have looked before this fetch was there
	}
}

// remove reports whether f still has to be taken off its partitions. From its
// return on, nobody here knows f any more.
func (ps *parkedFetches) remove(f *fetchCall) (dirty bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := &f.park
	if p.listed {
		switch {
		case p.before != nil:
			p.before.park.next = p.next
		case p.next != nil:
			ps.mu.conns[f.req.Conn] = p.next
		default:
			delete(ps.mu.conns, f.req.Conn)
		}
		if p.next != nil {
			p.next.park.before = p.before
		}
		p.listed, p.before, p.next = false, nil, nil
	}
	dirty = !p.cleaned
	p.cleaned = true
	return dirty
}

// drain wakes everything, now and from now on.
func (ps *parkedFetches) drain() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.mu.draining = true
	for _, f := range ps.mu.conns {
		for ; f != nil; f = f.park.next {
			f.park.spoiled.Store(true)
			f.park.wake()
		}
	}
}

// has reports whether fetches of a connection wait.
func (ps *parkedFetches) has(conn *transport.Conn) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.mu.conns[conn] != nil
}

// abandon ends the fetches of a dead connection: they may have been woken or not,
// but perhaps nobody will call for their answer (N2). What the reader goroutine is
// parking at the moment it ends itself.
func (ps *parkedFetches) abandon(conn *transport.Conn) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for f := ps.mu.conns[conn]; f != nil; {
		p := &f.park
		next := p.next
		p.listed, p.before, p.next = false, nil, nil
		p.spoiled.Store(true)
		if !p.state.CompareAndSwap(fetchParking, fetchWokenParking) && p.state.Load() != fetchWokenParking {
			p.state.Store(fetchWoken)
			p.cleaned = true
			p.stop()
			f.releaseBudget()
		}
		f = next
	}
	delete(ps.mu.conns, conn)
}
