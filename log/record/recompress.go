package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
)

// recompressor builds a copy of a batch with another codec; the decompressed
// records are written to it as they stream by.
type recompressor struct {
	sliceWriter
	codec Codec
	c     compressor // nil for CodecNone
	pool  *sync.Pool
}

func newRecompressor(b Batch, codec Codec, level int) *recompressor {
	w := &recompressor{codec: codec}
	w.b = append(make([]byte, 0, len(b)), b[:HeaderBytes]...)
	if codec != CodecNone {
		w.pool = compressorPool(codec, level)
		w.c = w.pool.Get().(compressor)
		w.c.Reset(&w.sliceWriter)
	}
	return w
}

// Write takes the next decompressed bytes.
func (w *recompressor) Write(p []byte) (int, error) {
	if w.c == nil {
		return w.sliceWriter.Write(p)
	}
	return w.c.Write(p)
}

// finish returns the new batch, not sealed. A recompressor that is not finished
// is left to the garbage collector.
func (w *recompressor) finish() (Batch, error) {
	if w.c != nil {
		if err := w.c.Close(); err != nil {
			return nil, fmt.Errorf("recompress record batch with %s: %w", w.codec, err)
		}
		w.c.Reset(io.Discard)
		w.pool.Put(w.c)
		w.c = nil
	}
	b := Batch(w.b)
	if len(b)-lengthOverhead > math.MaxInt32 {
		return nil, tooLarge(len(b), math.MaxInt32)
	}
	binary.BigEndian.PutUint32(b[atLength:], uint32(len(b)-lengthOverhead))
	b.setAttributes(b.Attributes()&^attrCodecMask | int16(w.codec))
	return b, nil
}

// isCorrupt reports whether err is about damaged bytes rather than about limits.
func isCorrupt(err error) bool {
	return errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrDecompressedTooLarge)
}
