package record

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// bombBytes is 1 GiB. The race detector makes both ends ten times slower and
// proves nothing here.
var bombBytes = map[bool]int{false: 1 << 30, true: 64 << 20}[raceEnabled]

// bomb compresses head and then zeros up to bombBytes as one stream.
func bomb(codec Codec, level int, head []byte) []byte {
	var out sliceWriter
	c := compressorPool(codec, level).Get().(compressor)
	c.Reset(&out)
	c.Write(head)
	zeros := make([]byte, 1<<20)
	for left := bombBytes - len(head); left > 0; left -= len(zeros) {
		c.Write(zeros)
	}
	c.Close()
	return out.b
}

// allocated runs fn and returns the bytes it allocated in all, which no peak
// exceeds; 0 under the race detector, where pools forget at random.
func allocated(fn func()) int {
	if raceEnabled {
		fn()
		return 0
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// Trap N5: 1 GiB of zeros in each codec. Decompression stops at the limit, and
// memory follows the limit for one huge record, or a decompressor's window for
// many small ones; never the 1 GiB.
func TestDecompressionBombs(t *testing.T) {
	const limit = 16 << 20
	huge := appendVarint(nil, int64(bombBytes-100))
	huge = append(huge, 0, 0, 0, 1) // then a value that never ends
	huge = appendVarint(huge, int64(bombBytes-200))
	for _, codec := range []Codec{CodecGzip, CodecSnappy, CodecLZ4, CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			level := 0
			if codec == CodecGzip {
				level = 1
			}
			payload := bomb(codec, level, huge)
			b := assemble(codec, 1, payload)
			ratio := bombBytes / len(b)
			bytes := allocated(func() {
				err := b.Each(limit, func(Record) error { return nil })
				require.ErrorIs(t, err, ErrDecompressedTooLarge)
			})
			// The window doubles up to the limit, which adds up to twice the limit;
			// the rest is the decompressor's.
			require.Less(t, bytes, 2*limit+24<<20, "one record of 1 GiB, ratio %d", ratio)

			rules := accepting()
			rules.CheckRecords, rules.DecompressedLimit = true, limit
			bytes = allocated(func() {
				_, err := Validate(b, rules)
				require.ErrorIs(t, err, ErrDecompressedTooLarge)
			})
			require.Less(t, bytes, 2*limit+24<<20)
			rules.CheckRecords, rules.Codec = false, CodecNone
			_, err := Validate(b, rules)
			require.ErrorIs(t, err, ErrDecompressedTooLarge)
			_, _, err = b.FirstSince(now, limit)
			require.ErrorIs(t, err, ErrDecompressedTooLarge)
			_, _, err = b.LatestTimestamp(limit)
			require.ErrorIs(t, err, ErrDecompressedTooLarge)
		})
	}
}

// Many small records whose sum exceeds the limit: the window stays small.
func TestDecompressionBombOfSmallRecords(t *testing.T) {
	limit := 32 << 20
	if raceEnabled {
		limit = 4 << 20
	}
	for _, codec := range []Codec{CodecGzip, CodecSnappy, CodecLZ4, CodecZstd} {
		b := NewBuilder(codec)
		for i := 0; b.Size() < limit+1<<20; i++ {
			b.Add(now, nil, make([]byte, 4000), nil)
		}
		batch := b.Build()
		n := 0
		bytes := allocated(func() {
			require.ErrorIs(t, batch.Each(limit, func(Record) error { n++; return nil }), ErrDecompressedTooLarge)
		})
		require.Greater(t, n, limit/4100, "records up to the limit are delivered")
		require.Less(t, bytes, 16<<20, "%s", codec)
	}
}

// A bare block of snappy is decoded in one piece, so its announced size is held
// against the limit before there is memory for it.
func TestBareSnappyBomb(t *testing.T) {
	b := assemble(CodecSnappy, 1, snappyBare(make([]byte, 64<<20)))
	require.Less(t, allocated(func() {
		require.ErrorIs(t, b.Each(1<<20, nil), ErrDecompressedTooLarge)
	}), 1<<20)
}

// A frame may announce a window of 128 MiB or a content of gigabytes in a few
// bytes; neither is allocated on its word.
func TestZstdAnnouncements(t *testing.T) {
	frame := func(window byte, content uint64, blocks ...byte) []byte {
		b := []byte{0x28, 0xb5, 0x2f, 0xfd}
		if content == 0 {
			b = append(b, 0x00, window) // window descriptor, no content size
		} else {
			b = append(b, 0xe0) // single segment, 8 bytes of content size
			b = binary.LittleEndian.AppendUint64(b, content)
		}
		return append(b, blocks...)
	}
	raw := []byte{0x0c, 0, 0, 0, 1, 1, 0} // the smallest record
	block := append([]byte{byte(len(raw))<<3 | 1, 0, 0}, raw...)
	window128MiB := byte(17 << 3)
	require.Less(t, allocated(func() {
		b := assemble(CodecZstd, 1, frame(window128MiB, 0, block...))
		require.Len(t, collect(t, b), 1, "a large window alone is no crime: level 22 announces it")
	}), 4<<20)
	err := assemble(CodecZstd, 1, frame(0, 7<<20, block...)).Each(0, nil)
	require.ErrorIs(t, err, errZstdContentSize, "7 MiB fit the window but not the bytes")
	require.ErrorIs(t, err, ErrCorrupt)
	for name, payload := range map[string][]byte{
		"content 1 TiB":         frame(0, 1<<40, block...),
		"content 100 MiB":       frame(0, 100<<20, block...),
		"window 2 GiB":          frame(21<<3, 0, block...),
		"window 3.75 TiB":       frame(0xff, 0, block...),
		"second frame's window": append(frame(0x50, 0, block...), frame(window128MiB, 0, block...)...),
	} {
		t.Run(name, func(t *testing.T) {
			require.Less(t, allocated(func() {
				require.Error(t, assemble(CodecZstd, 2, payload).Each(0, func(Record) error { return nil }))
			}), 20<<20)
		})
	}
}

// Levels 20 to 22 of the reference implementation announce windows that the
// streaming decoder refuses; such batches are decoded whole up to 16 MiB.
func TestZstdLargeWindow(t *testing.T) {
	encode := func(src []byte) []byte {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out, zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
		require.NoError(t, err)
		_, err = w.Write(src)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return out.Bytes()
	}
	size := func(n int) (int32, []byte) {
		b := NewBuilder(CodecNone)
		for b.Size() < n {
			b.Add(now, nil, make([]byte, 100_000), nil)
		}
		return int32(b.Count()), b.Build().Payload()
	}
	count, payload := size(12 << 20)
	require.Len(t, collect(t, assemble(CodecZstd, count, encode(payload))), int(count))
	count, payload = size(17 << 20)
	err := assemble(CodecZstd, count, encode(payload)).Each(0, func(Record) error { return nil })
	require.ErrorIs(t, err, ErrDecompressedTooLarge)
}
