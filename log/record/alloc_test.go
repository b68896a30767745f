package record

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The hot path allocates nothing: accessors, framing, checksum, the raw path of
// Validate, and a walk or search over uncompressed records.
func TestAllocations(t *testing.T) {
	b := sample(CodecNone, 100, 100)
	zipped := sample(CodecZstd, 100, 100)
	h := NewBuilder(CodecNone)
	h.Add(now, nil, nil, []RecordHeader{{Key: []byte("a")}, {Key: []byte("b"), Value: []byte("c")}})
	headers := h.Build()
	rules := accepting()
	rules.MaxBytes = 1 << 20
	stamp := rules
	stamp.LogAppendTime = true
	parse := rules
	parse.CheckRecords = true
	var sink int64
	for name, c := range map[string]struct {
		run func()
		max float64
	}{
		"accessors": {func() {
			sink += b.BaseOffset() + int64(b.LeaderEpoch()) + int64(b.Magic()) + int64(b.CRC()) + int64(b.Attributes()) + int64(b.Codec()) +
				int64(b.TimestampType()) + int64(b.LastOffsetDelta()) + b.LastOffset() + b.NextOffset() + b.BaseTimestamp() + b.MaxTimestamp() +
				b.ProducerID() + int64(b.ProducerEpoch()) + int64(b.BaseSequence()) + int64(b.LastSequence()) + int64(b.Count()) + int64(len(b.Payload()))
			if b.IsTransactional() || b.IsControl() || b.HasDeleteHorizon() {
				sink++
			}
			b.SetBaseOffset(0)
			b.SetLeaderEpoch(1)
			b.Seal()
		}, 0},
		"Next":            {func() { _, _, _ = Next(b) }, 0},
		"ParseHeader":     {func() { h, _ := ParseHeader(b); sink += h.BaseOffset }, 0},
		"Header.Check":    {func() { h := b.Header(); _ = h.Check() }, 0},
		"Check":           {func() { _ = b.Check() }, 0},
		"Validate":        {func() { _, _ = Validate(b, rules) }, 0},
		"Validate zstd":   {func() { _, _ = Validate(zipped, rules) }, 0},
		"Validate parse":  {func() { _, _ = Validate(b, parse) }, 0},
		"Each":            {func() { _ = b.Each(0, func(r Record) error { sink += r.TimestampDelta; return nil }) }, 0},
		"Each headers":    {func() { _ = headers.Each(0, func(r Record) error { sink += int64(len(r.Headers)); return nil }) }, 0},
		"FirstSince":      {func() { p, _, _ := b.FirstSince(now+50, 0); sink += p.Offset }, 0},
		"LatestTimestamp": {func() { p, _, _ := b.LatestTimestamp(0); sink += p.Offset }, 0},
		// Decompressors are pooled; what is left are small things inside the libraries.
		"Each gzip":   {eachOf(CodecGzip), 2},
		"Each snappy": {eachOf(CodecSnappy), 1},
		"Each lz4":    {eachOf(CodecLZ4), 4},
		"Each zstd":   {eachOf(CodecZstd), 4},
	} {
		c.run()
		if raceEnabled {
			continue // sync.Pool drops at random under the race detector
		}
		require.LessOrEqual(t, testing.AllocsPerRun(100, c.run), c.max, name)
	}
	_, err := Validate(sample(CodecNone, 100, 100), stamp)
	require.NoError(t, err)
}

func eachOf(codec Codec) func() {
	b := sample(codec, 100, 100)
	return func() { _ = b.Each(0, func(Record) error { return nil }) }
}
