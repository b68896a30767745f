package transport

import (
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// aheadReader reads a plain TCP connection of a client that may send ahead of our answers. While answers are held back it looks whether
// more has arrived without waiting for it, and writes them only if nothing has: they go out together, and yet no later than the reader
// would fall asleep. It belongs to the connection's reader goroutine.
type aheadReader struct {
	c   *Conn
	raw syscall.RawConn
	n   *atomic.Int64

	try func(fd uintptr) bool // reads into p, never waits
	p   []byte
	got int
}

// newAheadReader returns nil if c is not a plain TCP connection.
func newAheadReader(c *Conn, n *atomic.Int64) *aheadReader {
	t, ok := c.net.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	r := &aheadReader{c: c, raw: raw, n: n}
	r.try = func(fd uintptr) bool {
		r.got, _ = unix.Read(int(fd), r.p) // an error comes again with the read that waits
		return true
	}
	return r
}

func (r *aheadReader) Read(p []byte) (int, error) {
	if r.c.holds() {
		r.p, r.got = p, 0
		err := r.raw.Read(r.try)
		r.p = nil
		if err == nil && r.got > 0 {
			r.n.Add(int64(r.got))
			return r.got, nil
		}
		r.c.flush()
	}
	n, err := r.c.net.Read(p)
	r.n.Add(int64(n))
	return n, err
}
