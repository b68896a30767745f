package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// decompressor streams the records out of a compressed payload. Instances are
// pooled: open, Read, release, again and again.
type decompressor interface {
	io.Reader
	// open starts on src, which must stay valid until release. limit is what
	// the caller will take at most; a stream that announces more may fail at once.
	open(src []byte, limit int) error
	// release drops the references to src.
	release()
	// tooLarge reports whether err means that the data exceeds a bound, not
	// that it is damaged.
	tooLarge(err error) bool
}

// decompressors is indexed by codec.
var decompressors = [...]*sync.Pool{
	CodecNone:   nil,
	CodecGzip:   {New: func() any { return new(gzipDecompressor) }},
	CodecSnappy: {New: func() any { return new(snappyDecompressor) }},
	CodecLZ4:    {New: func() any { return new(lz4Decompressor) }},
	CodecZstd:   {New: func() any { return new(zstdDecompressor) }},
}

// gzipDecompressor holds a 32 KiB window.
type gzipDecompressor struct {
	in bytes.Reader
	gzip.Reader
}

func (d *gzipDecompressor) open(src []byte, _ int) error {
	d.in.Reset(src)
	return d.Reader.Reset(&d.in)
}

func (d *gzipDecompressor) release()            { d.in.Reset(nil) }
func (d *gzipDecompressor) tooLarge(error) bool { return false }

// lz4Decompressor reads the frame format, also with dependent blocks. It holds
// one block, 4 MiB at most (8 in the legacy format).
type lz4Decompressor struct {
	in bytes.Reader
	r  *lz4.Reader
}

func (d *lz4Decompressor) open(src []byte, _ int) error {
	d.in.Reset(src)
	if d.r == nil {
		d.r = lz4.NewReader(&d.in)
	} else {
		d.r.Reset(&d.in)
	}
	return nil
}

func (d *lz4Decompressor) Read(p []byte) (int, error) { return d.r.Read(p) }

func (d *lz4Decompressor) release() {
	d.in.Reset(nil)
	d.r.Reset(&d.in) // returns the block
}

func (d *lz4Decompressor) tooLarge(error) bool { return false }

const (
	// zstdWindowBytes is the largest window the streaming decoder allocates.
	// RFC 8878 asks decoders to support it; levels up to 19 need no more.
	zstdWindowBytes = 8 << 20
	// zstdWholeBytes bounds the records of a batch with a larger window
	// (levels 20 to 22), which is decoded in memory instead: its window may
	// be 128 MiB on paper, yet it can't refer back beyond its own output.
	zstdWholeBytes = 16 << 20
	// zstdBlockBytes and zstdMinBlockBytes bound the ratio of the format: a
	// block has 3 bytes of header, one of content, and yields 128 KiB.
	zstdBlockBytes    = 128 << 10
	zstdMinBlockBytes = 4
)

// zstdDecompressor holds a window of up to zstdWindowBytes.
type zstdDecompressor struct {
	in    bytes.Reader
	r     *zstd.Decoder
	whole *zstd.Decoder // for large windows, made at the first need
	rest  []byte        // unread output of whole
	inMem bool
}

var errZstdContentSize = errors.New("zstd frame announces more than its bytes can hold")

func (d *zstdDecompressor) open(src []byte, limit int) error {
	d.inMem = false
	var h zstd.Header
	if err := h.Decode(src); err == nil {
		possible := zstdMaxOutput(src)
		if h.HasFCS && h.FrameContentSize > possible {
			return errZstdContentSize
		}
		if h.HasFCS && h.FrameContentSize > uint64(limit) {
			return zstd.ErrDecoderSizeExceeded
		}
		if h.WindowSize > zstdWindowBytes || h.SingleSegment && h.FrameContentSize > zstdWindowBytes {
			return d.openWhole(src)
		}
	}
	if d.r == nil {
		// Concurrency 1 starts no goroutine. The options can't be wrong.
		d.r, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindowBytes))
	}
	d.in.Reset(src)
	return d.r.Reset(&d.in)
}

// zstdMaxOutput is the most that src can decompress to.
func zstdMaxOutput(src []byte) uint64 {
	return uint64(len(src)/zstdMinBlockBytes+1) * zstdBlockBytes
}

func (d *zstdDecompressor) openWhole(src []byte) error {
	if d.whole == nil {
		// The library caps the window by the memory limit if it is given one;
		// the capacity of the output is a limit that leaves the window alone.
		d.whole, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(128<<20), zstd.WithDecodeAllCapLimit(true))
	}
	out, err := d.whole.DecodeAll(src, make([]byte, 0, min(zstdMaxOutput(src), zstdWholeBytes)))
	if err != nil {
		return err
	}
	d.inMem, d.rest = true, out
	return nil
}

func (d *zstdDecompressor) Read(p []byte) (int, error) {
	if !d.inMem {
		return d.r.Read(p)
	}
	if len(d.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func (d *zstdDecompressor) release() {
	d.in.Reset(nil)
	d.rest = nil
	if d.r != nil {
		d.r.Reset(nil)
	}
}

func (d *zstdDecompressor) tooLarge(err error) bool {
	return errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded)
}

// The framing that snappy-java (xerial) puts around blocks of snappy: 8 bytes
// magic, version i32, lowest compatible version i32, then blocks, each with its
// compressed size i32 before it. Java clients and brokers write it; librdkafka
// and most others write one bare block of snappy, and all read both.
const (
	xerialMagic       = "\x82SNAPPY\x00"
	xerialHeaderBytes = 16
	xerialBlockBytes  = 32 << 10 // uncompressed bytes per block we write, as snappy-java
	xerialVersion     = 1
	// snappyMaxRatio is the format's: a copy of 64 bytes takes 3.
	snappyMaxRatio = 22
)

var (
	errSnappySize   = errors.New("snappy block announces more than its bytes can hold")
	errSnappyLimit  = errors.New("snappy block announces more than the limit")
	errXerialHeader = errors.New("bad header of snappy framing")
	errXerialBlock  = errors.New("bad block size in snappy framing")
)

// snappyDecompressor holds one decompressed block, 32 KiB in xerial framing as
// everyone writes it, or all of a bare block. What a block announces is held
// against its compressed size and the limit before memory is allocated.
type snappyDecompressor struct {
	src   []byte // not yet decoded
	bare  bool   // src is one bare block
	limit int
	block []byte // decoded; unread from at
	at    int
}

const snappyKeepBytes = 1 << 20

func (d *snappyDecompressor) open(src []byte, limit int) error {
	d.src, d.limit, d.block, d.at = src, limit, d.block[:0], 0
	d.bare = len(src) < len(xerialMagic) || string(src[:len(xerialMagic)]) != xerialMagic
	if d.bare {
		return d.decode(src)
	}
	return nil
}

func (d *snappyDecompressor) decode(block []byte) error {
	n, err := snappy.DecodedLen(block)
	if err != nil {
		return err
	}
	if n > snappyMaxRatio*len(block) {
		return errSnappySize
	}
	if n > d.limit {
		return errSnappyLimit
	}
	d.block, err = snappy.Decode(d.block[:cap(d.block)], block)
	d.at = 0
	return err
}

func (d *snappyDecompressor) Read(p []byte) (int, error) {
	for d.at == len(d.block) {
		if d.bare || len(d.src) == 0 {
			return 0, io.EOF
		}
		if err := d.nextBlock(); err != nil {
			return 0, err
		}
	}
	n := copy(p, d.block[d.at:])
	d.at += n
	return n, nil
}

// nextBlock decodes one block of xerial framing. Streams may be concatenated,
// so a header may stand before any block; as a size it would be negative.
func (d *snappyDecompressor) nextBlock() error {
	if len(d.src) >= len(xerialMagic) && string(d.src[:len(xerialMagic)]) == xerialMagic {
		if len(d.src) < xerialHeaderBytes {
			return errXerialHeader
		}
		d.src = d.src[xerialHeaderBytes:]
		d.block, d.at = d.block[:0], 0
		return nil
	}
	if len(d.src) < 4 {
		return errXerialBlock
	}
	n := binary.BigEndian.Uint32(d.src)
	if uint64(n) > uint64(len(d.src)-4) {
		return errXerialBlock
	}
	block := d.src[4 : 4+n]
	d.src = d.src[4+n:]
	return d.decode(block)
}

func (d *snappyDecompressor) release() {
	d.src = nil
	if cap(d.block) > snappyKeepBytes {
		d.block = nil
	}
}

func (d *snappyDecompressor) tooLarge(err error) bool { return err == errSnappyLimit }
