package transport

import (
	"bufio"
)

// readBuffer is what a connection reads with: its buffer, and how that is filled. Connections that rest have none.
//
// A plain TCP connection's client may send ahead of our answers. While answers are held back the reader looks whether more has arrived without
// waiting for it, and writes them only if nothing has: they go out together, and yet no later than the reader would fall asleep.
type readBuffer struct {
	br   *bufio.Reader // of this readBuffer
	conn *Conn         // whose it is; nil in the pool
	look looker
}

func newReadBuffer() *readBuffer {
	b := &readBuffer{}
	b.look.init()
	b.br = bufio.NewReaderSize(b, readBufferBytes)
	return b
}

// Read implements io.Reader.
func (b *readBuffer) Read(p []byte) (int, error) {
	c := b.conn
	if c.looksAhead && c.holds() {
		if n := b.look.read(c.waits, p); n > 0 {
			c.listener.metrics.bytesIn.Add(int64(n))
			return n, nil
		}
		c.flush()
	}
	n, err := c.net.Read(p)
	c.listener.metrics.bytesIn.Add(int64(n))
	return n, err
}
