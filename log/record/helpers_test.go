package record

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

var allCodecs = []Codec{CodecNone, CodecGzip, CodecSnappy, CodecLZ4, CodecZstd}

// now is the leader's clock in these tests.
const now = int64(1_796_000_000_000)

// accepting are rules that change nothing and parse nothing.
func accepting() Rules {
	return Rules{ProduceVersion: 13, BeforeMax: -1, AfterMax: -1, Now: now, Codec: CodecProducer}
}

// sample builds a batch of n records of about size bytes each that compress
// somewhat, dated now, now+1, ...
func sample(codec Codec, n, size int) Batch {
	b := NewBuilder(codec)
	value := make([]byte, size)
	x := uint32(1)
	for i := range value {
		x = x*1664525 + 1013904223
		value[i] = "abcdefghijklmnop"[x>>28]
	}
	for i := range n {
		b.Add(now+int64(i), fmt.Appendf(nil, "key-%d", i), value, nil)
	}
	return b.Build()
}

// plain is a record with its own memory, for comparisons.
type plain struct {
	timestamp  int64
	offset     int64
	key, value []byte
	headers    []RecordHeader
}

func copyBytes(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}

func collect(t testing.TB, b Batch) []plain {
	t.Helper()
	var out []plain
	require.NoError(t, b.Each(0, func(r Record) error {
		p := plain{
			timestamp: b.BaseTimestamp() + r.TimestampDelta,
			offset:    b.BaseOffset() + int64(r.OffsetDelta),
			key:       copyBytes(r.Key),
			value:     copyBytes(r.Value),
		}
		for _, h := range r.Headers {
			p.headers = append(p.headers, RecordHeader{Key: append([]byte{}, h.Key...), Value: copyBytes(h.Value)})
		}
		out = append(out, p)
		return nil
	}))
	return out
}

// clone copies a batch so that a test may damage it.
func clone(b Batch) Batch { return append(Batch(nil), b...) }

// edit returns a copy of b after change, with a checksum that fits.
func edit(b Batch, change func(Batch)) Batch {
	c := clone(b)
	change(c)
	c.Seal()
	return c
}

func setCodec(b Batch, c Codec) { b.setAttributes(b.Attributes()&^attrCodecMask | int16(c)) }

func put32(b Batch, at int, v int32) { binary.BigEndian.PutUint32(b[at:], uint32(v)) }
func put64(b Batch, at int, v int64) { binary.BigEndian.PutUint64(b[at:], uint64(v)) }

// assemble makes a sealed batch around a payload as it stands.
func assemble(codec Codec, count int32, payload []byte) Batch {
	b := NewBuilder(CodecNone).Build()
	b = append(b, payload...)
	put32(b, atLength, int32(len(b)-lengthOverhead))
	put32(b, atLastOffsetDelta, count-1)
	put32(b, atCount, count)
	put64(b, atBaseTimestamp, now)
	put64(b, atMaxTimestamp, now)
	setCodec(b, codec)
	b.Seal()
	return b
}
