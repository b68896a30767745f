package transport

import (
	"sync"
	"sync/atomic"
)

// buffer holds encoded responses until they are written. Buffers are shared by all connections, since most connections are idle: an idle
// one has none.
type buffer struct {
	b []byte
}

// bufferClasses are the capacities buffers are made and kept with.
var bufferClasses = [...]int{4 << 10, 64 << 10, 1 << 20}

var bufferPools [len(bufferClasses)]sync.Pool

// coalesceBytes is how far small responses are gathered in one buffer.
const coalesceBytes = 64 << 10

// newBuffer returns an empty buffer with room for size bytes, or for less: it grows.
func newBuffer(size int) *buffer {
	for i, n := range bufferClasses {
		if size > n {
			continue
		}
		if b, ok := bufferPools[i].Get().(*buffer); ok {
			return b
		}
		return &buffer{b: make([]byte, 0, n)}
	}
	return &buffer{b: make([]byte, 0, size)}
}

// free gives the buffer back: to the class whose promise its capacity keeps, unless it is larger than all.
func (b *buffer) free() {
	c := cap(b.b)
	if c > 2*bufferClasses[len(bufferClasses)-1] {
		return
	}
	b.b = b.b[:0]
	for i := len(bufferClasses) - 1; i >= 0; i-- {
		if c >= bufferClasses[i] {
			bufferPools[i].Put(b)
			return
		}
	}
}

// sizeHints remember how large the last response of each key was: growing a buffer from nothing to a megabyte costs many times what
// encoding it does.
type sizeHints [128]atomic.Int32

func (h *sizeHints) get(key int16) int {
	if key < 0 || int(key) >= len(h) {
		return 0
	}
	return int(h[key].Load())
}

func (h *sizeHints) put(key int16, size int) {
	if key < 0 || int(key) >= len(h) || int(h[key].Load()) == size {
		return
	}
	h[key].Store(int32(size))
}

// chunks hands out the buffers through which spliced responses are copied. Every connection that sends one holds a chunk, also while its
// peer doesn't read, so the number of large ones is bounded (N8): beyond it connections use small ones, rather than wait for each other.
type chunks struct {
	max    int64 // how many large chunks may be out
	out    atomic.Int64
	larges sync.Pool
	smalls sync.Pool
}

const (
	// chunkBytes is the unit of reading and writing record bytes: larger writes cost more per byte, smaller ones more calls.
	chunkBytes = 256 << 10
	// chunkCapacity has room for headers, so that a response of whole chunks of records takes as many writes and no small one after.
	chunkCapacity = chunkBytes + 2<<10
	// smallChunkBytes is used when too many large chunks are out, and for responses that need no more.
	smallChunkBytes = 16 << 10
)

// get returns an empty chunk for a response of size bytes. A source holds no more large ones than are left, so that one whose clients
// don't read leaves half of them to others.
func (p *chunks) get(s *source, size int) *buffer {
	n, pool := smallChunkBytes, &p.smalls
	if size > smallChunkBytes {
		switch out := p.out.Add(1); {
		case out > p.max, s != nil && s.chunks.Load() > max(p.max-out, 0):
			p.out.Add(-1)
		default:
			n, pool = chunkCapacity, &p.larges
			if s != nil {
				s.chunks.Add(1)
			}
		}
	}
	if b, ok := pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 0, n)}
}

func (p *chunks) put(s *source, b *buffer) {
	b.b = b.b[:0]
	if cap(b.b) != chunkCapacity {
		p.smalls.Put(b)
		return
	}
	p.larges.Put(b)
	p.out.Add(-1)
	if s != nil {
		s.chunks.Add(-1)
	}
}
