package transport

import (
	"sync"
	"syscall"
	"time"
)

// maxDirectBytes is how large an answer may be that is written by whoever made it: more is work, which belongs to the writer.
const maxDirectBytes = 4 << 10

// directWrite is one try to write to a socket.
type directWrite struct {
	try func(fd uintptr) bool
	p   []byte
	n   int // bytes written
}

// directWrites hold the memory of tries, with their function: to make one for each would cost more than it is worth.
var directWrites = sync.Pool{New: func() any {
	w := new(directWrite)
	w.try = func(fd uintptr) bool {
		w.n, _ = syscall.Write(int(fd), w.p) // an error comes again with the write of the writer goroutine
		return true                          // also without room: nobody waits here
	}
	return w
}}

// writeDirectLocked tries to write a single small answer, and reports whether nothing is left to be written. It unlocks mu while writing. No
// other goroutine may be flushing.
func (c *Conn) writeDirectLocked() bool {
	if !c.looksAhead || c.mu.dead || c.mu.finished || len(c.mu.out) != 1 || c.mu.out[0].buf == nil || len(c.mu.out[0].buf.b) > maxDirectBytes {
		return false
	}
	buf := c.mu.out[0].buf
	c.mu.out[0] = item{}
	c.mu.out = c.mu.out[:0]
	c.mu.flushing = true
	c.mu.held = 0
	c.mu.Unlock()

	w := directWrites.Get().(*directWrite)
	w.p, w.n = buf.b, 0
	if err := c.waits.Write(w.try); err != nil {
		w.n = 0
	}
	n := max(w.n, 0)
	w.p = nil
	directWrites.Put(w)
	c.listener.metrics.bytesOut.Add(int64(n))
	left := len(buf.b) - n
	if left == 0 {
		buf.free()
	} else {
		buf.b = buf.b[:copy(buf.b, buf.b[n:])]
	}
	c.touch(time.Now())

	c.mu.Lock()
	c.mu.flushing = false
	c.mu.outBytes -= n
	switch {
	case left > 0 && c.mu.dead:
		buf.free()
	case left > 0:
		c.mu.out = append(c.mu.out, item{})
		copy(c.mu.out[1:], c.mu.out)
		c.mu.out[0] = item{buf: buf}
	}
	if c.mu.readerWaits {
		c.room.Signal()
	}
	return len(c.mu.out) == 0
}
