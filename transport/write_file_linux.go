package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSender sends bytes of files over a plain TCP connection without copying them: the kernel hands the pages of the file to the
// socket. It belongs to the goroutine that flushes.
type fileSender struct {
	raw   syscall.RawConn
	turns *turnWriter

	// Of the call in progress.
	file   int
	offset int64
	length int
	header []byte
	sent   int
	err    error
	again  bool // the socket has room, and the turn is somebody else's by now

	send func(fd uintptr) bool // of the file
	more func(fd uintptr) bool // header, to be followed by more
}

// newFileSender returns nil if c is not a plain TCP connection.
func newFileSender(c net.Conn, turns *turnWriter) *fileSender {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	s := &fileSender{raw: raw, turns: turns}
	s.send = func(fd uintptr) bool {
		if s.again = !s.turns.held(); s.again {
			return true
		}
		return s.finished(unix.Sendfile(int(fd), s.file, &s.offset, s.length))
	}
	s.more = func(fd uintptr) bool {
		if s.again = !s.turns.held(); s.again {
			return true
		}
		return s.finished(unix.SendmsgN(int(fd), s.header, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL))
	}
	return s
}

// finished keeps the outcome of a call; false means that the socket has no room and the call is to be made again when it has.
func (s *fileSender) finished(n int, err error) bool {
	switch {
	case n > 0:
		s.sent, s.err = n, nil
	case errors.Is(err, unix.EAGAIN):
		s.turns.give()
		return false
	default:
		s.sent, s.err = 0, err
	}
	return true
}

// call makes one call as often as it is interrupted. The error is the connection's, a deadline that passed included, or the call's.
func (s *fileSender) call(fn func(fd uintptr) bool) (int, error) {
	for {
		s.turns.take()
		if err := s.raw.Write(fn); err != nil {
			return 0, err
		}
		if !s.again && s.err != unix.EINTR {
			return s.sent, s.err
		}
	}
}

// sendFile sends n bytes at offset of the open file; the connection's deadline holds for each sendFileUnit. errNoSendFile comes before
// anything is sent, and leaves the connection as it was.
func (c *Conn) sendFile(s *fileSender, file uintptr, offset int64, n int) error {
	for s.file, s.offset = int(file), offset; n > 0; {
		c.armWrite()
		s.length = min(n, sendFileUnit)
		sent, err := s.call(s.send)
		c.listener.metrics.bytesOut.Add(int64(sent))
		switch n -= sent; {
		case err == nil && sent > 0:
			if n > 0 {
				c.turns.end() // it's the others' turn
				c.turns.begin()
			}
		case err == nil && sent == 0:
			return fmt.Errorf("%w: %w", errSource, io.ErrUnexpectedEOF) // the file ends before the source
		case err == unix.EINVAL, err == unix.ENOSYS, err == unix.EOPNOTSUPP, err == unix.ESPIPE:
			if s.offset == offset {
				return errNoSendFile
			}
			fallthrough
		case err == unix.EIO:
			return fmt.Errorf("%w: %w", errSource, err)
		case err != nil:
			return err
		}
	}
	return nil
}

// writeMore writes p, which more follows at once: the kernel keeps a last part that fills no packet back for it.
func (c *Conn) writeMore(s *fileSender, p []byte) error {
	for len(p) > 0 {
		c.armWrite()
		s.header = p
		n, err := s.call(s.more)
		s.header = nil
		c.listener.metrics.bytesOut.Add(int64(n))
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
