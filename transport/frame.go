package transport

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Frame is the memory of one request: pooled by size class, charged to a frame budget, and both given back when its last reference is
// released. It implements log.Buffer.
type Frame struct {
	buf    []byte // the whole allocation; its length is what the budget is charged
	size   int    // bytes of buf in use: the request without its size prefix
	class  int    // index in frameClasses, or len(frameClasses) for one that isn't pooled
	refs   atomic.Int32
	budget *budget
	charge charge
}

// Bytes is the request as received, header included and size prefix excluded.
func (f *Frame) Bytes() []byte { return f.buf[:f.size] }

// Retain adds a reference. Only someone who holds one may call it.
func (f *Frame) Retain() {
	if f.refs.Add(1) <= 1 {
		panic("transport: Retain of a frame that was released")
	}
}

// Release drops a reference. After the last one the bytes belong to someone else.
func (f *Frame) Release() {
	switch n := f.refs.Add(-1); {
	case n > 0:
	case n == 0:
		f.free()
	default:
		panic(fmt.Sprintf("transport: frame released %d times too often", -n))
	}
}

// frameClasses are the sizes of pooled frames. Those that hold whole batches have some room for the headers around a batch of a round
// size: producers fill 16 KiB or 1 MiB and add a topic name. The largest are for clients that send a batch of 1 MB for each of a dozen
// partitions in one request; two of 12 MB may be lent of the default budget.
var frameClasses = [...]int{1 << 10, 4 << 10, 18 << 10, 72 << 10, 264 << 10, 1032 << 10, 4104 << 10, 12280 << 10, 16416 << 10}

// firstStepClass is the class a frame starts with that doesn't fit the connection's read buffer.
const firstStepClass = 2

// framePools hold frames with their buffers. What stays unused is dropped by the garbage collector.
var framePools [len(frameClasses)]sync.Pool

// classOf is the smallest class that holds size bytes, or len(frameClasses).
func classOf(size int) int {
	for i, n := range frameClasses {
		if size <= n {
			return i
		}
	}
	return len(frameClasses)
}

// frameBytes is what a frame for size bytes takes from the budget.
func frameBytes(size int) int64 {
	if i := classOf(size); i < len(frameClasses) {
		return int64(frameClasses[i])
	}
	return int64(size)
}

// newFrame returns a frame with room for size bytes and one reference, whose charge is what c holds.
func newFrame(b *budget, c charge, size int) *Frame {
	class := classOf(size)
	var f *Frame
	if class < len(frameClasses) {
		f, _ = framePools[class].Get().(*Frame)
		if f == nil {
			f = &Frame{buf: make([]byte, frameClasses[class])}
		}
	} else {
		f = &Frame{buf: make([]byte, size)}
	}
	f.size, f.class, f.budget, f.charge = size, class, b, c
	f.refs.Store(1)
	return f
}

// free returns the charge and the memory. The order matters little: between the two a pooled buffer is counted by nobody.
func (f *Frame) free() {
	f.budget.release(&f.charge)
	f.recycle()
}

// recycle returns the memory alone.
func (f *Frame) recycle() {
	poison(f.buf)
	f.budget = nil
	if f.class < len(frameClasses) {
		framePools[f.class].Put(f)
	} else {
		f.buf = nil
	}
}
