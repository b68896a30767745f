package record

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// compressor compresses what is written to it into the writer given to Reset.
// Instances are pooled per codec and level. Writing into memory cannot fail.
type compressor interface {
	io.WriteCloser // Close ends the stream; Reset may follow
	Reset(io.Writer)
}

type compressorKey struct {
	codec Codec
	level int
}

// compressorPools maps compressorKey to *sync.Pool. The keys are the levels of
// topic configurations after normalisation, a few dozen at most.
var compressorPools sync.Map

func compressorPool(codec Codec, level int) *sync.Pool {
	key := compressorKey{codec, normalLevel(codec, level)}
	if p, ok := compressorPools.Load(key); ok {
		return p.(*sync.Pool)
	}
	p, _ := compressorPools.LoadOrStore(key, &sync.Pool{New: func() any { return newCompressor(key) }})
	return p.(*sync.Pool)
}

// normalLevel maps a level as Kafka's compression.<codec>.level takes it (KIP-390;
// 0 = the default) to the one our library for the codec understands.
func normalLevel(codec Codec, level int) int {
	switch codec {
	case CodecGzip: // -1 (default), 1 to 9
		if level == 0 {
			return gzip.DefaultCompression
		}
		return max(gzip.DefaultCompression, min(level, gzip.BestCompression))
	case CodecLZ4: // 1 to 17; Kafka's default, 9, is its fast compressor
		if level <= 0 || level == 9 {
			return int(lz4.Fast)
		}
		return int(lz4.Level1) << (min(level, 9) - 1)
	case CodecZstd: // -131072 to 22, default 3
		if level == 0 {
			return int(zstd.SpeedDefault)
		}
		return int(zstd.EncoderLevelFromZstd(level))
	}
	return 0
}

// newCompressor makes a compressor whose output every client reads: gzip as
// anyone's, snappy in xerial framing, lz4 frames with independent 64 KiB blocks
// (Java refuses dependent ones), zstd with a window of at most 2 MiB, which is
// what level 3 of the reference implementation has.
func newCompressor(key compressorKey) compressor {
	switch key.codec {
	case CodecGzip:
		w, err := gzip.NewWriterLevel(nil, key.level)
		if err != nil {
			panic(err) // normalLevel yields only valid levels
		}
		return w
	case CodecSnappy:
		return new(xerialWriter)
	case CodecLZ4:
		w := lz4.NewWriter(nil)
		err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1), lz4.CompressionLevelOption(lz4.CompressionLevel(key.level)))
		if err != nil {
			panic(err)
		}
		return w
	case CodecZstd:
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevel(key.level)), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(2<<20), zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err)
		}
		return w
	}
	panic("record: no compressor for " + key.codec.String())
}

// sliceWriter appends what is written to it.
type sliceWriter struct{ b []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

// appendCompressed appends src compressed to dst.
func appendCompressed(dst []byte, codec Codec, level int, src []byte) []byte {
	if codec == CodecNone {
		return append(dst, src...)
	}
	pool := compressorPool(codec, level)
	c := pool.Get().(compressor)
	out := &sliceWriter{dst}
	c.Reset(out)
	_, err := c.Write(src)
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		panic("record: compress into memory with " + codec.String() + ": " + err.Error())
	}
	c.Reset(io.Discard) // let go of out
	pool.Put(c)
	return out.b
}

// xerialWriter writes snappy in xerial framing, block by block.
type xerialWriter struct {
	w       io.Writer
	started bool
	in      []byte // the block being filled
	out     []byte // scratch: size and compressed block
}

func (x *xerialWriter) Reset(w io.Writer) {
	x.w, x.started, x.in = w, false, x.in[:0]
}

func (x *xerialWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		if len(x.in) == 0 && len(p) >= xerialBlockBytes {
			if err := x.block(p[:xerialBlockBytes]); err != nil {
				return 0, err
			}
			p = p[xerialBlockBytes:]
			continue
		}
		n := min(len(p), xerialBlockBytes-len(x.in))
		x.in = append(x.in, p[:n]...)
		p = p[n:]
		if len(x.in) == xerialBlockBytes {
			if err := x.block(x.in); err != nil {
				return 0, err
			}
			x.in = x.in[:0]
		}
	}
	return total, nil
}

func (x *xerialWriter) Close() error {
	if len(x.in) == 0 && x.started {
		return nil
	}
	err := x.block(x.in)
	x.in = x.in[:0]
	return err
}

func (x *xerialWriter) block(p []byte) error {
	if !x.started {
		x.started = true
		header := append([]byte(xerialMagic), 0, 0, 0, xerialVersion, 0, 0, 0, xerialVersion)
		if _, err := x.w.Write(header); err != nil {
			return err
		}
	}
	if len(p) == 0 {
		return nil
	}
	if need := 4 + snappy.MaxEncodedLen(xerialBlockBytes); cap(x.out) < need {
		x.out = make([]byte, need)
	}
	x.out = x.out[:cap(x.out)]
	n := len(snappy.Encode(x.out[4:], p))
	binary.BigEndian.PutUint32(x.out, uint32(n))
	_, err := x.w.Write(x.out[:4+n])
	return err
}
