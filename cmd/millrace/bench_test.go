package main

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/record"
)

// A quantile of the histogram is the exact one, or longer by less than a 128th: never shorter, so that no latency is
// told too good.
func TestHistogramQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 300).Draw(t, "values")
		var h, other histogram
		for i, v := range values {
			if i%3 == 0 {
				other.add(time.Duration(v))
			} else {
				h.add(time.Duration(v))
			}
		}
		h.merge(&other)
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.95, 0.99, 0.999, 1} {
			at := max(int(q*float64(len(values))+0.5), 1) - 1
			exact := values[at] / 1000 * 1000 // counted in µs
			got := int64(h.quantile(q))
			if got < exact || float64(got) > float64(exact)*(1+1.0/128)+1000 {
				t.Fatalf("quantile %g of %d values: %d, exact %d", q, len(values), got, exact)
			}
		}
		require.EqualValues(t, len(values), h.count)
		require.EqualValues(t, values[len(values)-1], h.max)
	})
}

func TestHistogramBuckets(t *testing.T) {
	last := -1
	for us := uint64(0); us < 1<<20; us++ {
		b := bucketOf(us)
		require.True(t, b == last || b == last+1, "bucket %d follows %d at %d µs", b, last, us)
		require.GreaterOrEqual(t, bucketTop(b), us)
		if b > last && b > 0 {
			require.Equal(t, us-1, bucketTop(b-1))
		}
		last = b
	}
	require.Equal(t, histogramBuckets-1, bucketOf(math.MaxInt64/1000))
	var empty histogram
	require.Zero(t, empty.quantile(0.99))
	require.Equal(t, latencyJSON{}, empty.summary())
	var h histogram
	h.add(-time.Second) // a clock that was set back
	require.Zero(t, h.max)
}

// The batch that --raw replays keeps the size that was asked for, has at least one record, and every broker takes it.
func TestRawBatch(t *testing.T) {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		for _, size := range []int{512, 16 << 10, 1 << 20} {
			p, err := newPayload("", 1000)
			require.NoError(t, err)
			s := &sendSettings{codec: codec, batchBytes: size, payload: p}
			b, n := s.batch()
			require.Equal(t, max(1, (size-record.HeaderBytes)/1010), max(n, 1), "records of %d bytes", size)
			if n > 1 {
				require.LessOrEqual(t, len(b), size)
			}
			got, err := record.Validate(b, record.Rules{MaxBytes: 2 << 20, ProduceVersion: 9, BeforeMax: -1, AfterMax: -1, Codec: record.CodecProducer, DecompressedLimit: 4 << 20, CheckRecords: true})
			require.NoError(t, err)
			require.EqualValues(t, n, got.Count())
		}
	}
}

// Values are text that shrinks: noise would make every codec look bad, and a constant every codec good.
func TestPayload(t *testing.T) {
	p, err := newPayload("", 1024)
	require.NoError(t, err)
	require.Len(t, p.value(1<<40), 1024)
	require.NotEqual(t, p.value(0), p.value(1))
	again, err := newPayload("", 1024)
	require.NoError(t, err)
	require.Equal(t, p.values, again.values)
	s := &sendSettings{codec: "lz4", batchBytes: 64 << 10, payload: p}
	b, n := s.batch()
	shrunk := float64(len(b)) / float64(n*1024)
	require.True(t, shrunk > 0.2 && shrunk < 0.9, "lz4 leaves %.2f", shrunk)
	require.False(t, bytes.Equal(p.value(0), p.value(payloadValues-1)))
}
