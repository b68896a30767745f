package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// readBufferBytes is the size of a connection's read buffer. Idle connections are many, so it is small; a body that
	// doesn't fit is read straight into its frame.
	readBufferBytes = 4 << 10
	// prefixBytes is the frame's size, an int32.
	prefixBytes = 4
	// minRequestBytes is key, version and correlation id: no request is shorter.
	minRequestBytes = 8
)

var (
	// errFrameSize is a size prefix that is negative, too small for a header, or above the cap.
	errFrameSize = errors.New("impossible request size")
	// errTLSOnPlaintext is a TLS handshake on a plain listener.
	errTLSOnPlaintext = errors.New("TLS handshake on a PLAINTEXT listener")
	// errHTTP is an HTTP request on a Kafka listener.
	errHTTP = errors.New("HTTP request on a Kafka listener")
	// errStream is a connection that speaks another protocol of its listener. All its bytes are unread.
	errStream = errors.New("another protocol of this listener")
	// errFrameTimeout is a request that didn't arrive in time once it had begun.
	errFrameTimeout = errors.New("request not received in time")
)

// frameReader cuts frames from a stream. It belongs to a connection's reader goroutine.
type frameReader struct {
	br     *bufio.Reader // of buffer
	buffer *readBuffer   // nil while the connection rests
	budget *budget
	source *source // nil: none
	// arm sets the deadline of the following reads. It returns an error when no more should be read.
	arm func(time.Time) error
	// beforeWait is called before a wait for the budget, which may be long: answers held back must go out first. waited is
	// told after it for how long the client could do nothing.
	beforeWait func()
	waited     func(time.Duration)
	// max is Config.MaxRequestBytes, and timeout Config.FrameTimeout.
	max     int
	timeout time.Duration
	// stream says whether a connection that begins with this byte speaks another protocol of the listener; nil: there is none.
	stream func(first byte) bool
	// largest is the size of the largest frame that arrived.
	largest int
	// arrival is the frame that is read by readLarge.
	arrival arrival
	// sniffed says that the first bytes of the stream were seen to be a Kafka frame.
	sniffed bool
}

// preamble is the part of a frame that is looked at before memory is taken for it.
type preamble struct {
	size         int // without the prefix, at least minRequestBytes and at most the cap
	key, version int16
}

// buffered reports whether the next frame, whatever it is, has arrived completely and waits in the read buffer.
func (r *frameReader) buffered() bool {
	n := r.br.Buffered()
	if n < prefixBytes {
		return false
	}
	p, _ := r.br.Peek(prefixBytes)
	size := int32(binary.BigEndian.Uint32(p))
	return size < 0 || n-prefixBytes >= int(size) // a negative size is as complete as it gets
}

// next waits for the preamble of the next frame and leaves it in the buffer. The prefix is judged alone, for a peer that sends a few bytes and
// waits for an answer. It returns io.EOF at the end of the stream between frames and io.ErrUnexpectedEOF within one; an error of
// the connection's deadline leaves the reader usable.
func (r *frameReader) next() (preamble, error) {
	p, err := r.br.Peek(prefixBytes)
	if err == nil {
		if !r.sniffed {
			if r.stream != nil && r.stream(p[0]) {
				return preamble{}, errStream
			}
			if err := sniff(p); err != nil {
				return preamble{}, err
			}
			r.sniffed = true
		}
		size := int32(binary.BigEndian.Uint32(p))
		if size < minRequestBytes || int(size) > r.max {
			return preamble{}, fmt.Errorf("%w: %d bytes, the limit is %d", errFrameSize, size, r.max)
		}
		if p, err = r.br.Peek(prefixBytes + 4); err == nil {
			return preamble{
				size:    int(size),
				key:     int16(binary.BigEndian.Uint16(p[4:])),
				version: int16(binary.BigEndian.Uint16(p[6:])),
			}, nil
		}
	}
	if errors.Is(err, io.EOF) && len(p) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return preamble{}, err
}

// read reads the frame whose preamble next returned. The memory for it is taken as the bytes arrive: no byte of budget is held for one that
// hasn't, but what lend gives.
func (r *frameReader) read(ctx context.Context, size int) (*Frame, error) {
	whole := prefixBytes + size
	if r.br.Buffered() >= min(whole, readBufferBytes) {
		// Nothing to wait for yet, in the common case at all.
	} else if err := r.fill(min(whole, readBufferBytes), size); err != nil {
		return nil, err
	}
	first, ok := size, false
	var c charge
	if whole > readBufferBytes {
		if classOf(size) < len(frameClasses) {
			c, ok = r.budget.lend(r.source, frameBytes(size), size <= 2*r.largest)
		}
		if !ok {
			first = min(size, frameClasses[firstStepClass])
		}
	}
	if n := frameBytes(first); !ok {
		if c, ok = r.budget.tryEnter(r.source, n, r.budget.main); !ok {
			r.beforeWait()
			began := time.Now()
			var err error
			if c, err = r.budget.enter(ctx, r.source, n); err != nil {
				return nil, err
			}
			r.waited(time.Since(began))
		}
	}
	f := newFrame(r.budget, c, first)
	if _, err := r.br.Discard(prefixBytes); err != nil {
		f.Release()
		return nil, err
	}
	if whole <= readBufferBytes {
		if _, err := io.ReadFull(r.br, f.buf[:size]); err != nil { // all buffered: a copy
			f.Release()
			return nil, err
		}
		return f, nil
	}
	f, err := r.readLarge(ctx, f, size)
	if err != nil {
		f.Release()
		return nil, err
	}
	f.size = size
	r.largest = max(r.largest, size)
	return f, nil
}

// fill waits until n bytes of a frame of size bytes are buffered.
func (r *frameReader) fill(n, size int) error {
	if err := r.arm(r.deadline(size)); err != nil {
		return err
	}
	_, err := r.br.Peek(n)
	return frameError(err)
}

// readLarge reads size bytes, of which the first ones are buffered, into f or the larger frame that replaces it. The frame returned is
// the caller's also when there is an error.
func (r *frameReader) readLarge(ctx context.Context, f *Frame, size int) (*Frame, error) {
	a := &r.arrival
	a.size = size
	r.budget.arrive(a)
	defer r.budget.arrived(a)
	for filled := 0; ; {
		end := min(size, len(f.buf))
		if end-filled > r.br.Buffered() {
			if err := r.arm(a.deadline(r.timeout)); err != nil {
				return f, err
			}
		}
		n, err := io.ReadFull(r.br, f.buf[filled:end])
		filled += n
		if err != nil {
			if a.pressed.Load() && isTimeout(err) {
				r.budget.distrust(r.source)
			}
			return f, frameError(err)
		}
		if filled == size {
			return f, nil
		}
		began := time.Now()
		a.waiting.Store(true)
		f, err = r.grow(ctx, f, filled, size)
		waited := time.Since(began)
		a.began.Add(int64(waited))
		a.waiting.Store(false)
		if err != nil {
			return f, err
		}
		r.waited(waited)
	}
}

// grow moves the filled bytes of f to the next larger frame on the way to size. Both are charged until they are copied.
func (r *frameReader) grow(ctx context.Context, f *Frame, filled, size int) (*Frame, error) {
	target := size
	switch {
	case f.class < len(frameClasses)-1:
		target = min(size, max(frameClasses[f.class+1], 2*len(f.buf)))
	default:
		target = min(size, 2*len(f.buf))
	}
	if err := r.budget.grow(ctx, &f.charge, frameBytes(target)); err != nil {
		return f, err
	}
	g := newFrame(r.budget, f.charge, target)
	copy(g.buf, f.buf[:filled])
	r.budget.shrink(&g.charge, int64(len(f.buf)))
	f.charge = charge{}
	f.recycle()
	return g, nil
}

// deadline is when a frame of size bytes that begins now must have arrived: slow clients have some time, but a peer can't hold memory
// for ever by sending a byte now and then.
func (r *frameReader) deadline(size int) time.Time {
	return time.Now().Add(r.timeout + time.Duration(size/frameBytesPerSecond)*time.Second)
}

// frameError makes an end of the stream within a frame, and a deadline, recognisable.
func frameError(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case isTimeout(err):
		return fmt.Errorf("%w: %w", errFrameTimeout, err)
	}
	return err
}

// isTimeout reports whether err is a deadline's.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// sniff recognises peers that speak something else, by the first four bytes of a connection: their length prefix would be nonsense.
func sniff(p []byte) error {
	if p[0] == 0x16 && p[1] == 0x03 {
		return errTLSOnPlaintext
	}
	switch string(p[:4]) {
	case "GET ", "POST", "PUT ", "HEAD", "DELE", "OPTI", "PATC", "CONN", "TRAC", "PRI ":
		return errHTTP
	}
	return nil
}
