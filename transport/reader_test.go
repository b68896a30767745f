package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// newTestReader is a frame reader without a connection.
func newTestReader(r io.Reader, b *budget, limit int) *frameReader {
	return &frameReader{
		br: bufio.NewReaderSize(r, readBufferBytes), budget: b, max: limit, timeout: time.Second,
		arm: func(time.Time) error { return nil }, beforeWait: func() {}, waited: func(time.Duration) {},
	}
}

// choppyReader returns at most n random bytes at a time.
type choppyReader struct {
	r   io.Reader
	rnd *rand.Rand
	n   int
}

func (c choppyReader) Read(p []byte) (int, error) {
	return c.r.Read(p[:min(len(p), 1+c.rnd.IntN(c.n))])
}

// FuzzFrameReader: from any bytes and a run of zeros behind them (so that small inputs make large frames), in any pieces, the reader cuts the same
// frames as a naive one, holds no more of the budget than a frame's size class, and gives all of it back.
func FuzzFrameReader(f *testing.F) {
	f.Add(append(metadataFrame(1, "a"), produceFrame(2, -1, 5000)...), uint32(0), uint16(7), true)
	f.Add(prefix(300<<10), uint32(300<<10-8), uint16(9000), false)
	f.Add(prefix(1<<20), uint32(1<<20), uint16(9000), true)
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"), uint32(0), uint16(1), false)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint32(0), uint16(1), false)
	f.Add(prefix(99<<20), uint32(9000), uint16(100), true)
	f.Add(prefix(0xffffffff), uint32(0), uint16(100), true)
	f.Add([]byte{0, 0, 0, 8, 0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 7}, uint32(0), uint16(3), true)
	f.Fuzz(func(t *testing.T, stream []byte, zeros uint32, chop uint16, contended bool) {
		stream = append(stream[:len(stream):len(stream)], make([]byte, zeros%(1<<20+1))...)
		chop += uint16(len(stream) >> 8)
		const limit = 1 << 20
		b := newBudget(2 << 20)
		var other charge
		if contended { // nothing is lent
			other, _ = b.tryEnter(nil, b.main*2/3, b.main)
		}
		r := newTestReader(choppyReader{bytes.NewReader(stream), rand.New(rand.NewPCG(1, uint64(chop))), 1 + int(chop)}, b, limit)
		for at := 0; ; {
			pre, err := r.next()
			rest := stream[at:]
			size := -1
			if len(rest) >= 4 {
				size = int(int32(binary.BigEndian.Uint32(rest)))
			}
			switch {
			case at == 0 && len(rest) >= 4 && sniff(rest) != nil:
				require.ErrorIs(t, err, sniff(rest))
			case len(rest) == 0:
				require.Equal(t, io.EOF, err)
			case len(rest) < 4:
				require.Equal(t, io.ErrUnexpectedEOF, err)
			case size < minRequestBytes || size > limit:
				require.ErrorIs(t, err, errFrameSize)
			case len(rest) < 8:
				require.Equal(t, io.ErrUnexpectedEOF, err)
			default:
				require.NoError(t, err)
				require.Equal(t, preamble{size, int16(binary.BigEndian.Uint16(rest[4:])), int16(binary.BigEndian.Uint16(rest[6:]))}, pre)
			}
			if err != nil {
				break
			}
			frame, err := r.read(context.Background(), pre.size)
			if len(rest) < 4+size {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				break
			}
			require.NoError(t, err)
			require.True(t, bytes.Equal(rest[4:4+size], frame.Bytes()))
			require.Equal(t, frameBytes(size)+other.main, b.inUse())
			if h, err := parseHeader(frame.Bytes(), true); err == nil {
				require.LessOrEqual(t, len(h.body)+len(h.clientID), size)
			}
			frame.Release()
			at += 4 + size
		}
		b.release(&other)
		require.Zero(t, b.inUse())
	})
}

// placesReader notes where it is asked to put bytes, and how many are charged then.
type placesReader struct {
	r       io.Reader
	b       *budget
	read    int
	charged []int64
}

func (p *placesReader) Read(b []byte) (int, error) {
	p.charged = append(p.charged, p.b.inUse()-int64(p.read))
	n, err := p.r.Read(b)
	p.read += n
	return n, err
}

// TestLargeBodiesAreReadInPlace: all but the first 4 KiB of a large body go from the socket to the frame without a copy, while the budget has
// room. When it doesn't, the frame grows, and is never charged more than four times of what has arrived.
func TestLargeBodiesAreReadInPlace(t *testing.T) {
	const size = 1 << 20
	read := func(b *budget) (*placesReader, *Frame, [][]byte) {
		stream := append(prefix(size), make([]byte, size-8)...)
		p := &placesReader{r: bytes.NewReader(stream), b: b}
		var places [][]byte
		r := newTestReader(readerFunc(func(q []byte) (int, error) {
			n, err := p.Read(q)
			places = append(places, q[:n])
			return n, err
		}), b, size)
		pre, err := r.next()
		require.NoError(t, err)
		f, err := r.read(context.Background(), pre.size)
		require.NoError(t, err)
		return p, f, places
	}
	copied := func(f *Frame, places [][]byte) (n int) {
		for _, p := range places {
			off := int(uintptr(unsafe.Pointer(&p[0])) - uintptr(unsafe.Pointer(&f.buf[0])))
			if off < 0 || off >= len(f.buf) {
				n += len(p)
			}
		}
		return n
	}
	b := newBudget(64 << 20)
	_, f, places := read(b)
	require.LessOrEqual(t, copied(f, places), readBufferBytes)
	f.Release()

	c, ok := b.tryEnter(nil, b.main/2, b.main)
	require.True(t, ok)
	p, f, places := read(b)
	require.LessOrEqual(t, copied(f, places), size*2/5)
	for i, charged := range p.charged {
		require.LessOrEqual(t, charged-c.main, frameBytes(size), i)
	}
	require.EqualValues(t, p.charged[0], c.main, "charged before the first byte")
	f.Release()
	b.release(&c)
}

// TestTwoBatchesOfADozenPartitionsAreLent: requests of 12 MB, a batch of 1 MB for each of a dozen partitions, are read without growing, two at
// a time, and their frames are used again.
func TestTwoBatchesOfADozenPartitionsAreLent(t *testing.T) {
	const size = 12 * 1_000_100
	b := newBudget(64 << 20)
	read := func() *Frame {
		r := newTestReader(bytes.NewReader(append(prefix(size), make([]byte, size-8)...)), b, size)
		pre, err := r.next()
		require.NoError(t, err)
		f, err := r.read(context.Background(), pre.size)
		require.NoError(t, err)
		require.Equal(t, size, f.size)
		return f
	}
	one, two := read(), read()
	require.Less(t, classOf(size), len(frameClasses), "pooled")
	require.EqualValues(t, 2*frameBytes(size), b.inUse())
	require.LessOrEqual(t, 2*frameBytes(size), b.main/2)
	one.Release()
	two.Release()
	require.Zero(t, b.inUse())
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestReaderErrors: what the connection reports ends up with the caller, and frames are given back.
func TestReaderErrors(t *testing.T) {
	broken := errors.New("connection reset")
	stream := produceFrame(1, -1, 100<<10)
	for _, at := range []int{0, 3, 6, 100, 4096, 20 << 10, 90 << 10} {
		for _, contended := range []bool{false, true} {
			b := newBudget(1 << 20)
			var c charge
			if contended {
				c, _ = b.tryEnter(nil, b.main/2, b.main)
			}
			r := newTestReader(io.MultiReader(bytes.NewReader(stream[:at]), readerFunc(func([]byte) (int, error) { return 0, broken })), b, 1<<20)
			pre, err := r.next()
			if err == nil {
				_, err = r.read(context.Background(), pre.size)
			}
			require.ErrorIs(t, err, broken, at)
			b.release(&c)
			require.Zero(t, b.inUse())
		}
	}
}
