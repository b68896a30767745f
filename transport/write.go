package transport

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// errSource is a source of a spliced response that did not deliver what it promised. The size has been sent: only closing is left.
var errSource = errors.New("spliced response cut short")

// spliceInlineBytes is the size up to which a spliced response is gathered with its neighbours instead of getting a chunk: the answer of a fetch
// that found nothing is as small as a heartbeat's.
const spliceInlineBytes = 8 << 10

// Sources of at least sendFileBytes that lie in files are sent by the kernel from its page cache, in calls of at most sendFileUnit. For
// smaller ones the calls and the packets that they cut short cost more than a copy.
const (
	sendFileBytes = 64 << 10
	sendFileUnit  = 1 << 20
)

// errNoSendFile says that the file can't be sent without copying it.
var errNoSendFile = errors.New("file can't be sent without a copy")

// writeItems writes items in order and releases what they hold, on every path. finished means that the connection is to be closed after
// what was written. Only the goroutine that set flushing calls it.
func (c *Conn) writeItems(items []item) (finished bool, err error) {
	defer func() {
		for i := range items {
			items[i].drop()
		}
		clear(c.gather[:cap(c.gather)]) // an idle connection keeps no buffers alive
	}()
	c.gather = c.gather[:0]
	for i := range items {
		if b := items[i].buf; b != nil {
			c.gather = append(c.gather, b.b)
			continue
		}
		r := items[i].req
		if fn := r.slot.fn; fn != nil {
			if !c.guard("ReplyFunc", func() { c.resolve(r, fn()) }) {
				return false, errors.New("panic in ReplyFunc")
			}
			if r.slot.buf == nil && r.slot.spliced == nil {
				return false, errors.New("empty Response of a ReplyFunc")
			}
			if b := r.slot.buf; b != nil {
				c.gather = append(c.gather, b.b)
			}
		}
		if r.slot.spliced != nil {
			if err := c.writeSpliced(r); err != nil {
				return false, err
			}
		}
		if r.slot.closeReason != "" {
			c.mu.Lock()
			c.mu.closeReason = r.slot.closeReason
			c.mu.Unlock()
			return true, c.writeGathered()
		}
	}
	return false, c.writeGathered()
}

// resolve puts the response of a ReplyFunc where a Reply would have put it.
func (c *Conn) resolve(r *Request, resp Response) {
	if resp.message == nil {
		r.slot.spliced = resp.spliced
		return
	}
	b := newBuffer(c.server.hints.get(r.Key))
	b.b = appendMessage(b.b, r.CorrelationID, resp.message)
	c.server.hints.put(r.Key, len(b.b))
	r.slot.buf = b
}

// writeGathered writes the buffers gathered so far by one call if the connection can, and forgets them.
func (c *Conn) writeGathered() error {
	defer func() { c.gather = c.gather[:0] }()
	switch len(c.gather) {
	case 0:
		return nil
	case 1:
		return c.writeBytes(c.gather[0])
	}
	if c.gathers {
		c.armWrite()
		c.writing = c.gather // WriteTo advances the slice it is called on
		n, err := c.writing.WriteTo(c.net)
		c.listener.metrics.bytesOut.Add(n)
		return err
	}
	// TLS makes records of what it is given: better few large ones.
	b := newBuffer(coalesceBytes)
	defer b.free()
	for _, p := range c.gather {
		if len(b.b) > 0 && len(b.b)+len(p) > coalesceBytes {
			if err := c.writeBytes(b.b); err != nil {
				return err
			}
			b.b = b.b[:0]
		}
		if len(p) > coalesceBytes {
			if err := c.writeBytes(p); err != nil {
				return err
			}
			continue
		}
		b.b = append(b.b, p...)
	}
	if len(b.b) == 0 {
		return nil
	}
	return c.writeBytes(b.b)
}

// writeBytes writes p in pieces that one write deadline is meant for.
func (c *Conn) writeBytes(p []byte) error {
	for {
		c.armWrite()
		n, err := c.net.Write(p[:min(len(p), chunkCapacity)])
		c.listener.metrics.bytesOut.Add(int64(n))
		if p = p[n:]; err != nil || len(p) == 0 {
			return err
		}
	}
}

// armWrite sets the write deadline, unless it stands far enough in the future.
func (c *Conn) armWrite() {
	now, timeout := time.Now(), c.server.cfg.WriteTimeout
	if c.writeBefore.Sub(now) < timeout-timeout/8 {
		c.writeBefore = now.Add(timeout)
		_ = c.net.SetWriteDeadline(c.writeBefore) // fails only on a closed connection, as the write then does
	}
}

// writeSpliced sends the spliced response of r: what has been gathered, the headers, and the sources' bytes. Large runs of a file the
// kernel sends without a copy; all else is copied into a chunk at its final place and written when the chunk is full. Most responses of
// a few hundred KiB are thus one write, and no response, however large, takes more memory than a chunk.
func (c *Conn) writeSpliced(r *Request) error {
	s := r.slot.spliced
	size := s.Len()
	total := size + maxResponseHeaderBytes
	if total <= spliceInlineBytes {
		b := newBuffer(total)
		r.slot.buf = b // freed with the item
		b.b = appendResponseHeader(b.b, size, r.CorrelationID, s.Flexible)
		for i := range s.Pieces {
			p := &s.Pieces[i]
			b.b = append(b.b, p.Header...)
			if p.Body != nil {
				n := len(b.b)
				b.b = b.b[:n+p.Body.Len()]
				if err := readFull(p.Body, b.b[n:], 0); err != nil {
					return err
				}
			}
		}
		c.gather = append(c.gather, b.b)
		return nil
	}

	gathered := 0
	for _, p := range c.gather {
		gathered += len(p)
	}
	if gathered > spliceInlineBytes {
		if err := c.writeGathered(); err != nil {
			return err
		}
		gathered = 0
	}
	c.openTurns()
	c.turns.begin()
	defer c.turns.end()
	chunk := c.server.chunks.get(c.source, gathered+total-c.uncopied(s))
	defer c.server.chunks.put(c.source, chunk)
	for _, p := range c.gather {
		chunk.b = append(chunk.b, p...)
	}
	c.gather = c.gather[:0]
	chunk.b = appendResponseHeader(chunk.b, size, r.CorrelationID, s.Flexible)
	for i := range s.Pieces {
		if err := c.writePiece(chunk, &s.Pieces[i]); err != nil {
			return err
		}
	}
	if len(chunk.b) == 0 {
		return nil
	}
	return c.writeChunk(chunk.b)
}

// writeChunk is writeBytes for bytes of records, which are written in turns (turns).
func (c *Conn) writeChunk(p []byte) error {
	c.turns.filled()
	if c.turns == nil || c.listener.tls != nil { // TLS writes its records through c.turns
		return c.writeBytes(p)
	}
	c.armWrite()
	n, err := c.turns.Write(p)
	c.listener.metrics.bytesOut.Add(int64(n))
	return err
}

// uncopied is how many bytes of s need no copy.
func (c *Conn) uncopied(s *Spliced) int {
	n := 0
	for i := range s.Pieces {
		if _, _, ok := c.fileRange(s.Pieces[i].Body); ok {
			n += s.Pieces[i].Body.Len()
		}
	}
	return n
}

// fileRange is where the bytes of a source lie, if they are to be sent from there.
func (c *Conn) fileRange(s Source) (fd uintptr, offset int64, ok bool) {
	f, ok := s.(FileSource)
	if !ok || s.Len() < sendFileBytes {
		return 0, 0, false
	}
	if !c.triedFiles {
		c.triedFiles = true
		c.files = newFileSender(c.net, c.turns)
	}
	if c.files == nil {
		return 0, 0, false
	}
	return f.FileRange()
}

// writePiece sends a piece's body from its file, or copies it into the chunk, which is written whenever it is full.
func (c *Conn) writePiece(chunk *buffer, p *Piece) error {
	room := func() ([]byte, error) {
		n := len(chunk.b)
		if n == cap(chunk.b) {
			if err := c.writeChunk(chunk.b); err != nil {
				return nil, err
			}
			n = 0
			c.turns.end() // it's the others' turn
			c.turns.begin()
		}
		chunk.b = chunk.b[:n]
		return chunk.b[n:cap(chunk.b)], nil
	}
	for header := p.Header; len(header) > 0; {
		free, err := room()
		if err != nil {
			return err
		}
		n := copy(free, header)
		chunk.b, header = chunk.b[:len(chunk.b)+n], header[n:]
	}
	if p.Body == nil {
		return nil
	}
	if fd, offset, ok := c.fileRange(p.Body); ok {
		err := c.writeMore(c.files, chunk.b)
		if chunk.b = chunk.b[:0]; err == nil {
			err = c.sendFile(c.files, fd, offset, p.Body.Len())
		}
		if err != errNoSendFile {
			return err
		}
		c.files = nil // nor will others on this connection
	}
	for off, size := 0, p.Body.Len(); off < size; {
		free, err := room()
		if err != nil {
			return err
		}
		free = free[:min(len(free), size-off)]
		if err := readFull(p.Body, free, off); err != nil {
			return err
		}
		chunk.b = chunk.b[:len(chunk.b)+len(free)]
		off += len(free)
	}
	return nil
}

// readFull fills p from the source.
func readFull(s Source, p []byte, off int) error {
	if len(p) == 0 {
		return nil
	}
	switch n, err := s.ReadAt(p, off); {
	case n == len(p):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errSource, err)
	default:
		return fmt.Errorf("%w: %d of %d bytes at %d", errSource, n, len(p), off)
	}
}

// release releases the sources of s.
func (s *Spliced) release() {
	for i := range s.Pieces {
		if b := s.Pieces[i].Body; b != nil {
			b.Release()
			s.Pieces[i].Body = nil
		}
	}
	if s.Released != nil {
		s.Released()
	}
}

// writeFailed finds out what an error of writing means.
func (c *Conn) writeFailed(err error) error {
	switch {
	case errors.Is(err, errSource):
		c.log().Error("a response could not be read: connection closed", "err", err)
		return err
	case isTimeout(err):
		c.reject(rejectSlowReader, "client does not read its answers: connection closed", "timeout", c.server.cfg.WriteTimeout)
		return ErrSlowReader
	case errors.Is(err, net.ErrClosed):
		return ErrPeerClosed
	}
	return fmt.Errorf("%w: %w", ErrPeerClosed, err)
}
