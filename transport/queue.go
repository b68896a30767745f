package transport

import (
	"time"
)

// slotState is how far the answer to a request is. Guarded by Conn.mu.
type slotState uint8

const (
	slotPending slotState = iota // nobody answered
	slotClaimed                  // an answer is being encoded
	slotSettled                  // the answer is here, and waits for its turn
	slotLeft                     // the slot left the queue, its answer is in the output
)

// slot is the place of a request's answer in its connection's queue. A settled slot holds at most one of buf, spliced and fn, and none for
// a request without answer.
type slot struct {
	next     *Request
	state    slotState
	handling bool // the reader is in Handle with this request, and will look at the queue after

	buf         *buffer
	spliced     *Spliced
	fn          func() Response
	closeReason string // close the connection after the answer
}

// item is a piece of a connection's output: encoded responses of one or more requests, or what a single request's slot says.
type item struct {
	buf *buffer
	req *Request // when buf is nil: its spliced, fn or closeReason
}

// drop releases what an item holds without writing it.
func (i *item) drop() {
	if i.buf != nil {
		i.buf.free()
	} else {
		i.req.slot.drop()
	}
	*i = item{}
}

// drop releases what a slot holds.
func (s *slot) drop() {
	if s.buf != nil {
		s.buf.free()
	}
	if s.spliced != nil {
		s.spliced.release()
	}
	s.buf, s.spliced, s.fn = nil, nil, nil
}

// enqueue appends the request's slot to the queue. False means that the request must not be handled any more.
func (c *Conn) enqueue(r *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.dead || c.mu.stopReading {
		return false
	}
	r.slot.handling = true
	if c.mu.tail == nil {
		c.mu.head = r
	} else {
		c.mu.tail.slot.next = r
	}
	c.mu.tail = r
	c.mu.pending++
	return true
}

// claimLocked takes the right to answer r.
func (c *Conn) claimLocked(r *Request) bool {
	if r.slot.state == slotPending {
		r.slot.state = slotClaimed
		return true
	}
	c.server.logger.Error("a request was answered twice: the second answer is dropped", "key", r.Key, "version", r.Version, "conn", c.id)
	return false
}

// answer settles r with a response.
func (c *Conn) answer(r *Request, resp Response, closeReason string) {
	switch {
	case resp.message == nil && resp.spliced == nil: // the client would wait for ever, or take the next answer for this one
		c.server.logger.Error("a request was answered with an empty Response: connection closed", "key", r.Key, "version", r.Version, "conn", c.id)
		c.settle(r, slot{closeReason: "no answer"})
		return
	case resp.message == nil:
		c.settle(r, slot{spliced: resp.spliced, closeReason: closeReason})
		return
	}
	hint := c.server.hints.get(r.Key)
	c.mu.Lock()
	if !c.claimLocked(r) || c.mu.dead {
		c.mu.Unlock()
		return
	}
	// While r is the head and claimed, nobody else appends to out. Its last buffer leaves out for as long as r is encoded
	// behind what it holds: a flusher that comes along waits for its bytes no longer than for r's.
	var buf *buffer
	if n := len(c.mu.out); c.mu.head == r && n > 0 && c.mu.out[n-1].buf.fits(hint) {
		buf = c.mu.out[n-1].buf
		c.mu.out = c.mu.out[:n-1]
	}
	c.mu.Unlock()

	if buf == nil {
		buf = newBuffer(hint)
	}
	start := len(buf.b)
	if !c.guard("encoding a response", func() { buf.b = appendMessage(buf.b, r.CorrelationID, resp.message) }) {
		return // the connection is closed, and the half-written buffer is left to the garbage collector
	}
	size := len(buf.b) - start
	c.server.hints.put(r.Key, size)

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.dead {
		buf.free()
		return
	}
	c.mu.outBytes += size
	if start > 0 {
		// Others' answers are in buf, so it goes back to where it was.
		c.mu.out = append(c.mu.out, item{buf: buf})
		buf = nil
	}
	c.settleLocked(r, slot{buf: buf, closeReason: closeReason})
}

// fits reports whether another response, expected to have size bytes, should go into the same buffer. A nil buffer has no room.
func (b *buffer) fits(size int) bool {
	return b != nil && len(b.b) < coalesceBytes && (len(b.b)+size <= cap(b.b) || size <= bufferClasses[0])
}

// settle gives r the answer that s describes.
func (c *Conn) settle(r *Request, s slot) {
	c.mu.Lock()
	if !c.claimLocked(r) || c.mu.dead {
		c.mu.Unlock()
		s.drop() // releases sources: not under the lock
		return
	}
	c.settleLocked(r, s)
	c.mu.Unlock()
}

// settleLocked stores the answer of r, moves all slots whose turn has come to the output, and sees to it that somebody writes them.
func (c *Conn) settleLocked(r *Request, s slot) {
	s.next, s.handling, s.state = r.slot.next, r.slot.handling, slotSettled
	r.slot = s
	if s.closeReason != "" && !c.mu.stopReading {
		c.mu.stopReading = true
		_ = c.raw.SetReadDeadline(time.Unix(1, 0)) // never blocks; see stop
	}
	moved := c.mu.unordered && c.overtakeLocked(r)
	for h := c.mu.head; h != nil && h.slot.state == slotSettled; h = c.mu.head {
		c.mu.head = h.slot.next
		if c.mu.head == nil {
			c.mu.tail = nil
		}
		h.slot.next = nil
		h.slot.state = slotLeft
		c.mu.pending--
		c.pushLocked(h)
		moved = true
	}
	if !moved {
		return
	}
	if c.mu.readerWaits {
		c.room.Signal()
	}
	if len(c.mu.out) == 0 || c.mu.flushing || r.slot.handling {
		return
	}
	if r.direct && c.mu.pending == 0 && c.writeDirectLocked() {
		return
	}
	if !c.mu.writer {
		c.mu.writer = true
		c.server.tasks.Go(c.write)
	}
	c.work.Signal()
}

// overtakeLocked moves the answer of r to the output though it isn't the head's turn yet. False: r is the head.
func (c *Conn) overtakeLocked(r *Request) bool {
	before := c.mu.head
	if before == r {
		return false
	}
	for before.slot.next != r { // few are in work, and r is among them: it wasn't settled before
		before = before.slot.next
	}
	before.slot.next = r.slot.next
	if c.mu.tail == r {
		c.mu.tail = before
	}
	r.slot.next = nil
	r.slot.state = slotLeft
	c.mu.pending--
	c.pushLocked(r)
	return true
}

// pushLocked moves the answer of r, whose turn it is, to the output.
func (c *Conn) pushLocked(r *Request) {
	if b := r.slot.buf; b != nil {
		r.slot.buf = nil
		if n := len(c.mu.out); n > 0 && len(b.b) <= bufferClasses[0] && c.mu.out[n-1].buf.fits(len(b.b)) {
			last := c.mu.out[n-1].buf
			last.b = append(last.b, b.b...)
			b.free()
		} else {
			c.mu.out = append(c.mu.out, item{buf: b})
		}
	}
	if r.slot.spliced != nil || r.slot.fn != nil || r.slot.closeReason != "" {
		c.mu.out = append(c.mu.out, item{req: r})
	}
}

// handled is called by the reader when Handle has returned for r.
func (c *Conn) handled(r *Request) {
	c.mu.Lock()
	r.slot.handling = false
	c.mu.held++
	spent := r.recycled && r.slot.state == slotLeft && r.slot.spliced == nil && r.slot.fn == nil && r.slot.closeReason == ""
	if c.dueLocked() {
		c.flushLocked()
	}
	c.mu.Unlock()
	if c.recycles = spent; spent { // nobody knows it any more: its answer is in a buffer
		*r = Request{}
		requests.Put(r)
	}
}

// dueLocked reports whether the reader should write what is in out, rather than leave it until the requests that wait in its buffer are
// answered too: one write for many small answers is worth 4.5 times the throughput.
func (c *Conn) dueLocked() bool {
	switch n := len(c.mu.out); {
	case n == 0 || c.mu.flushing:
		return false
	case n > 1 || c.mu.out[0].buf == nil || len(c.mu.out[0].buf.b) >= coalesceBytes:
		return true
	}
	if c.looksAhead && c.lastLarge && c.mu.held < maxHeldRequests {
		return false
	}
	return !c.frames.buffered()
}

// Answers that are held back until the reader would wait (readBuffer) are so for no more than maxHeldRequests further requests outside
// the read buffer, and for none larger than maxHeldFrameBytes: about the time that a write and the wake-up of its reader take.
const (
	maxHeldRequests   = 8
	maxHeldFrameBytes = 64 << 10
)

// holds reports whether there are answers that nobody writes.
func (c *Conn) holds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.out) > 0 && !c.mu.flushing
}

// flush writes what is in out, if nobody does.
func (c *Conn) flush() {
	c.mu.Lock()
	if !c.mu.flushing {
		c.flushLocked()
	}
	c.mu.Unlock()
}

// flushLocked writes until out is empty. It unlocks mu while writing. No other goroutine may be flushing.
func (c *Conn) flushLocked() {
	c.mu.flushing = true
	c.mu.held = 0
	for len(c.mu.out) > 0 && !c.mu.dead {
		items, written := c.mu.out, 0
		c.mu.out, c.mu.spare = c.mu.spare[:0], nil
		for i := range items {
			if items[i].buf != nil {
				written += len(items[i].buf.b)
			}
		}
		finished := c.mu.finished
		c.mu.Unlock()
		if finished { // answers behind the one that closed the connection
			for i := range items {
				items[i].drop()
			}
		} else {
			var err error
			if finished, err = c.writeItems(items); err != nil {
				c.kill(c.writeFailed(err))
			}
		}
		clear(items)
		c.mu.Lock()
		c.mu.outBytes -= written
		if cap(items) <= 64 {
			c.mu.spare = items[:0]
		}
		c.mu.finished = finished
	}
	c.mu.flushing = false
	c.touch(time.Now())
	if c.mu.readerWaits {
		c.room.Signal()
	}
}

// write is the writer goroutine. It ends with the connection, or when that rests; the next late answer starts another.
func (c *Conn) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.mu.dead {
		switch {
		case len(c.mu.out) > 0 && !c.mu.flushing:
			c.flushLocked()
		case c.mu.rests:
			c.mu.writer = false
			return
		default:
			c.work.Wait()
		}
	}
}

// waitRoom returns nil when the reader may read the next request: when the connection isn't muted, and not too many requests or answers
// wait. Before it waits, and before a read that would, it writes what is ready.
func (c *Conn) waitRoom() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		full := c.mu.pending >= c.server.cfg.MaxInFlight || c.mu.outBytes >= c.server.cfg.MaxOutboundBytes
		var muted time.Duration
		if !c.mu.muteUntil.IsZero() {
			if muted = time.Until(c.mu.muteUntil); muted <= 0 {
				c.mu.muteUntil = time.Time{}
				c.muted.Store(false)
			}
		}
		switch {
		case c.mu.dead, c.mu.finished:
			return errStopReading
		case len(c.mu.out) > 0 && !c.mu.flushing && (full || muted > 0 || c.mu.stopReading || c.dueLocked()):
			c.flushLocked()
		case c.mu.stopReading && c.mu.pending == 0 && len(c.mu.out) == 0 && !c.mu.flushing:
			c.mu.finished = true
		case c.mu.stopReading, full:
			c.mu.readerWaits = true
			c.room.Wait()
			c.mu.readerWaits = false
		case muted > 0:
			alarm := time.AfterFunc(muted, func() {
				c.mu.Lock()
				c.room.Signal()
				c.mu.Unlock()
			})
			c.mu.readerWaits = true
			c.room.Wait()
			c.mu.readerWaits = false
			alarm.Stop()
		default:
			return nil
		}
	}
}

// mute stops the reading of the socket for d from now on.
func (c *Conn) mute(d time.Duration) {
	if d <= 0 {
		return
	}
	c.server.metrics.throttled(d)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := time.Now().Add(d); t.After(c.mu.muteUntil) {
		c.mu.muteUntil = t
		c.muted.Store(true)
	}
}
