package peer

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/replication"
)

// answerFrame is the memory of one answer to a fetch: pooled by size class, counted by its users. It implements
// log.Buffer, for records that a log keeps until they are on disk.
type answerFrame struct {
	buf    []byte
	size   int
	class  int // index in frameClasses, len(frameClasses) for one that is not pooled
	refs   atomic.Int32
	answer replication.FollowerAnswer // made of it; its first user's
	free   func()                     // Release, bound once
}

// frameClasses are the sizes of pooled frames: idle rounds, single batches, and the full answers of 10 MiB that a follower
// asks for by default.
var frameClasses = [...]int{2 << 10, 32 << 10, 264 << 10, 1032 << 10, 4104 << 10, 10400 << 10}

var framePools [len(frameClasses)]sync.Pool

// newAnswerFrame returns a frame of size bytes with one user.
func newAnswerFrame(size int) *answerFrame {
	class := 0
	for class < len(frameClasses) && frameClasses[class] < size {
		class++
	}
	var f *answerFrame
	if class < len(frameClasses) {
		f, _ = framePools[class].Get().(*answerFrame)
	}
	if f == nil {
		n := size
		if class < len(frameClasses) {
			n = frameClasses[class]
		}
		f = &answerFrame{buf: make([]byte, n), class: class}
		f.free = f.Release
	}
	f.size = size
	f.refs.Store(1)
	return f
}

func (f *answerFrame) bytes() []byte { return f.buf[:f.size] }

// Retain implements log.Buffer.
func (f *answerFrame) Retain() {
	if f.refs.Add(1) <= 1 {
		panic("peer: Retain of a frame that was released")
	}
}

// Release implements log.Buffer.
func (f *answerFrame) Release() {
	switch n := f.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic(fmt.Sprintf("peer: frame released %d times too often", -n))
	}
	// Records of an answer must not keep another frame alive, nor a large answer its list.
	clear(f.answer.Partitions)
	f.answer.Partitions, f.answer.Free = f.answer.Partitions[:0], nil
	if cap(f.answer.Partitions) > 1024 {
		f.answer.Partitions = nil
	}
	if f.class < len(frameClasses) {
		framePools[f.class].Put(f)
	}
}
