package transport

import "sync/atomic"

// Frame is the memory of one request: pooled by size class, counted in the frame budget, returned when its last reference is released.
// It implements log.Buffer.
type Frame struct {
	buf  []byte // the whole allocation
	size int    // bytes of buf in use
	refs atomic.Int32
}

// Bytes is the request as received, header included and size prefix excluded.
func (f *Frame) Bytes() []byte { return f.buf[:f.size] }

// Retain adds a reference. It must be called by someone who holds one.
func (f *Frame) Retain() { f.refs.Add(1) }

// Release drops a reference. With the last one the bytes belong to someone else.
func (f *Frame) Release() { f.refs.Add(-1) }
