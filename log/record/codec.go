package record

import "fmt"

// Codec is a compression codec as numbered in the attributes of a batch.
type Codec int8

// The codecs of the format, and the two values of compression.type that are not
// codecs of a batch.
const (
	// CodecProducer is compression.type=producer: keep whatever the producer chose.
	// It never stands in a batch. Beware that the zero Codec is CodecNone.
	CodecProducer Codec = -1

	CodecNone   Codec = 0
	CodecGzip   Codec = 1
	CodecSnappy Codec = 2
	CodecLZ4    Codec = 3
	CodecZstd   Codec = 4
)

// DefaultDecompressedLimit is the limit in bytes that stands in for a limit ≤ 0.
// It is above 100 times the default max.message.bytes; decompression is
// streamed, so the limit bounds work rather than memory.
const DefaultDecompressedLimit = 128 << 20

// String is the name of the codec in compression.type.
func (c Codec) String() string {
	switch c {
	case CodecProducer:
		return "producer"
	case CodecNone:
		return "uncompressed"
	case CodecGzip:
		return "gzip"
	case CodecSnappy:
		return "snappy"
	case CodecLZ4:
		return "lz4"
	case CodecZstd:
		return "zstd"
	}
	return fmt.Sprintf("codec %d", int8(c))
}

// Valid reports whether c can stand in the attributes of a batch.
func (c Codec) Valid() bool { return c >= CodecNone && c <= CodecZstd }

// ParseCodec reads a value of compression.type. "none" is a synonym of
// "uncompressed", as in the producer's setting.
func ParseCodec(name string) (Codec, error) {
	switch name {
	case "producer":
		return CodecProducer, nil
	case "uncompressed", "none":
		return CodecNone, nil
	case "gzip":
		return CodecGzip, nil
	case "snappy":
		return CodecSnappy, nil
	case "lz4":
		return CodecLZ4, nil
	case "zstd":
		return CodecZstd, nil
	}
	return CodecNone, fmt.Errorf("read compression type %q: %w", name, ErrUnsupportedCodec)
}
