package transport

import "net"

// FileSource is a Source whose bytes lie in a file one after the other. A plain connection sends them from a mapping of the file: copying them
// into a chunk first costs half as much again as sending them does.
type FileSource interface {
	Source
	// FileRange returns the file and where in it the source begins, both valid until Release; not ok if there is none to be mapped.
	FileRange() (fd uintptr, position int64, ok bool)
}

const (
	// mappedBytes is the size from which on a piece is sent from a mapping: to map and unmap costs as much as to copy some 16 KiB, and
	// a write of its own more.
	mappedBytes = 64 << 10
	// windowBytes is how much of a piece is mapped at a time. It bounds what a connection whose peer does not read holds mapped.
	windowBytes = 1 << 20
)

// mappable returns the file range of a piece's body that c would send from a mapping.
func (c *Conn) mappable(p *Piece) (fd uintptr, position int64, ok bool) {
	if !c.gathers || p.Body == nil || p.Body.Len() < mappedBytes {
		return 0, 0, false
	}
	source, ok := p.Body.(FileSource)
	if !ok || !canMap {
		return 0, 0, false
	}
	return source.FileRange()
}

// writeBehind writes what the chunk holds and then body, the first of it by the same call.
func (c *Conn) writeBehind(chunk *buffer, body []byte) error {
	if len(chunk.b) > 0 {
		first := min(len(body), chunkBytes)
		c.armWrite()
		c.pair = [2][]byte{chunk.b, body[:first]}
		c.writing = net.Buffers(c.pair[:]) // WriteTo advances the slice it is called on
		n, err := c.writing.WriteTo(c.net)
		c.pair = [2][]byte{}
		c.listener.metrics.bytesOut.Add(n)
		if err != nil {
			return err
		}
		chunk.b, body = chunk.b[:0], body[first:]
	}
	if len(body) == 0 {
		return nil
	}
	return c.writeBytes(body)
}
