package kafka

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/transport"
)

// groupCall is a request whose answer comes from the group coordinator, at once or
// after minutes: JoinGroup waits for the other members, SyncGroup for the leader,
// a commit for the quorum. It is answered by whoever comes first: the coordinator,
// the server's draining, the end of its connection. While it waits it holds no
// goroutine, no frame and nothing of a budget.
type groupCall struct {
	cs *groupCalls

	mu struct {
		sync.Mutex
		// c is nil once the call is over, so that a coordinator which answers
		// late keeps nothing of a connection alive that is gone (N2).
		c *call
		// gone tells the coordinator that the connection has ended; nil where it need not know.
		gone  func()
		ended bool // the connection, before the answer
	}
	// busy makes the answer of a broker that stops: the client will find the next
	// coordinator. nil: the call ends soon by itself, and its outcome is worth
	// waiting for.
	busy func(c *call) kmsg.Response

	// waits says that the call is among those of its connection, which before and next link; guarded by the lock of groupCalls.
	waits        bool
	before, next *groupCall
}

// groupCalls knows all calls that wait, by connection. Of a connection without one it knows nothing: a member that beats its
// heart costs no memory here.
type groupCalls struct {
	h  *Handlers
	mu struct {
		sync.Mutex
		conns    map[*transport.Conn]*groupCall // the first of each connection's
		count    int
		watching bool // somebody waits for the server to drain
		draining bool // nothing waits any more
	}
}

func (cs *groupCalls) init(h *Handlers) {
	cs.h = h
	cs.mu.conns = map[*transport.Conn]*groupCall{}
}

// begin is called on the connection's reader goroutine, before the coordinator
// gets the request, of which no bytes may alias the frame. Exactly one call of
// answer must follow, at any time. nil: the broker stops, and has said so.
func (cs *groupCalls) begin(c *call, busy func(c *call) kmsg.Response) *groupCall {
	c.release() // what was decoded is the coordinator's now
	g := &groupCall{cs: cs, busy: busy}
	g.mu.c = c
	conn := c.req.Conn
	cs.mu.Lock()
	if cs.mu.draining && busy != nil {
		cs.mu.Unlock()
		c.reply(busy(c))
		return nil
	}
	if !cs.mu.watching && busy != nil {
		cs.mu.watching = true
		draining := c.req.Draining()
		cs.h.work.Go(func() {
			select {
			case <-draining:
			case <-cs.h.ctx.Done():
			}
			cs.drain()
		})
	}
	if g.next = cs.mu.conns[conn]; g.next != nil {
		g.next.before = g
	}
	g.waits = true
	cs.mu.conns[conn] = g
	cs.mu.count++
	cs.mu.Unlock()
	if conn.Context().Err() != nil {
		cs.abandon(conn) // who ended the connection may have looked before this call was there
	}
	return g
}

// answer ends the call with what build makes of it. The first one counts.
func (g *groupCall) answer(build func(c *call) kmsg.Response) {
	if c := g.finish(); c != nil {
		c.reply(build(c))
	}
}

// answerDirect is answer for callers without locks (transport.Request.ReplyDirect).
func (g *groupCall) answerDirect(build func(c *call) kmsg.Response) {
	if c := g.finish(); c != nil {
		c.replyDirect(build(c))
	}
}

// finish is take, after which the connection does not know of the call.
func (g *groupCall) finish() *call {
	c := g.take()
	if c != nil {
		g.cs.remove(g, c.req.Conn)
	}
	return c
}

// take returns the call to whoever is to end it, once.
func (g *groupCall) take() *call {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.mu.c
	g.mu.c, g.mu.gone = nil, nil
	return c
}

func (cs *groupCalls) remove(g *groupCall, conn *transport.Conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !g.waits {
		return
	}
	switch {
	case g.before != nil:
		g.before.next = g.next
	case g.next != nil:
		cs.mu.conns[conn] = g.next
	default:
		delete(cs.mu.conns, conn)
	}
	if g.next != nil {
		g.next.before = g.before
	}
	g.waits, g.before, g.next = false, nil, nil
	cs.mu.count--
}

// whenGone has gone called if the connection ends before the answer, at once if it has.
func (g *groupCall) whenGone(gone func()) {
	g.mu.Lock()
	ended := g.mu.ended
	if g.mu.c != nil {
		g.mu.gone = gone
	}
	g.mu.Unlock()
	if ended {
		gone()
	}
}

// end is take for a connection that is over.
func (g *groupCall) end() (c *call, gone func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, gone = g.mu.c, g.mu.gone
	g.mu.ended = c != nil
	g.mu.c, g.mu.gone = nil, nil
	return c, gone
}

// drain answers everything, now and from now on.
func (cs *groupCalls) drain() {
	cs.mu.Lock()
	cs.mu.draining = true
	var waiting []*groupCall
	for _, g := range cs.mu.conns {
		for ; g != nil; g = g.next {
			if g.busy != nil {
				waiting = append(waiting, g)
			}
		}
	}
	cs.mu.Unlock()
	for _, g := range waiting {
		g.answer(g.busy)
	}
}

// takeAll takes the calls of a connection out.
func (cs *groupCalls) takeAll(conn *transport.Conn) (calls []*groupCall) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for g := cs.mu.conns[conn]; g != nil; {
		next := g.next
		g.waits, g.before, g.next = false, nil, nil
		calls = append(calls, g)
		g = next
	}
	delete(cs.mu.conns, conn)
	cs.mu.count -= len(calls)
	return calls
}

// abandon ends the calls of a dead connection. The coordinator goes on: a member of a
// generation may come back by another connection, and has its session for that. Of
// joins it is told, so that who is not in one yet holds up nobody.
func (cs *groupCalls) abandon(conn *transport.Conn) {
	for _, g := range cs.takeAll(conn) {
		c, gone := g.end()
		if c != nil {
			c.done()
		}
		if gone != nil {
			gone()
		}
	}
}

// has reports whether calls of a connection wait.
func (cs *groupCalls) has(conn *transport.Conn) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.mu.conns[conn] != nil
}

// waiting returns how many calls wait.
func (cs *groupCalls) waiting() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.mu.count
}
