package record

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The model is a slice of records. Any such slice survives building,
// validation, recompression to any codec and back, and both searches answer as a loop over
// the slice does.
func TestModelRoundTrip(t *testing.T) {
	blob := rapid.Custom(func(t *rapid.T) []byte {
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0:
			return nil
		case 1:
			return []byte{}
		case 2:
			return make([]byte, rapid.IntRange(0, 200_000).Draw(t, "zeros")) // over a window and over a block
		default:
			return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
		}
	})
	header := rapid.Custom(func(t *rapid.T) RecordHeader {
		return RecordHeader{Key: rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "header key"), Value: blob.Draw(t, "header value")}
	})
	codec := rapid.SampledFrom(allCodecs)
	rapid.Check(t, func(t *rapid.T) {
		b := NewBuilder(codec.Draw(t, "codec"))
		b.BaseOffset = rapid.Int64Range(0, 1<<40).Draw(t, "base offset")
		if rapid.Bool().Draw(t, "idempotent") {
			b.ProducerID = rapid.Int64Range(0, 1<<40).Draw(t, "producer id")
			b.ProducerEpoch = int16(rapid.IntRange(0, 1<<15-1).Draw(t, "producer epoch"))
			b.BaseSequence = int32(rapid.IntRange(0, 1<<31-1).Draw(t, "base sequence"))
			b.Transactional = rapid.Bool().Draw(t, "transactional")
		}
		var want []plain
		for i := range rapid.IntRange(1, 30).Draw(t, "records") {
			p := plain{
				timestamp: now + rapid.Int64Range(-1000, 1000).Draw(t, "timestamp"),
				offset:    b.BaseOffset + int64(i),
				key:       blob.Draw(t, "key"),
				value:     blob.Draw(t, "value"),
			}
			for range rapid.IntRange(0, 3).Draw(t, "headers") {
				p.headers = append(p.headers, header.Draw(t, "header"))
			}
			want = append(want, p)
			b.Add(p.timestamp, p.key, p.value, p.headers)
		}
		built := b.Build()
		require.NoError(t, built.Check())
		requireRecords(t, want, built)

		rules := accepting()
		rules.CheckRecords = true
		rules.Codec = codec.Draw(t, "topic codec")
		rules.Level = rapid.IntRange(-3, 22).Draw(t, "level")
		sent := clone(built)
		sent.SetBaseOffset(0)
		stored, err := Validate(sent, rules)
		require.NoError(t, err)
		stored.SetBaseOffset(b.BaseOffset)
		require.NoError(t, stored.Check())
		require.Equal(t, rules.Codec, stored.Codec())
		requireRecords(t, want, stored)
		h, g := built.Header(), stored.Header()
		h.CRC, h.Length, h.Attributes, g.CRC, g.Length, g.Attributes = 0, 0, 0, 0, 0, 0
		require.Equal(t, h, g)

		since := now + rapid.Int64Range(-1100, 1100).Draw(t, "since")
		var first, latest *Position
		for _, p := range want {
			at := Position{p.offset, p.timestamp}
			if first == nil && p.timestamp >= since {
				first = &at
			}
			if latest == nil || p.timestamp > latest.Timestamp {
				latest = &at
			}
		}
		got, found, err := stored.FirstSince(since, 0)
		require.NoError(t, err)
		require.Equal(t, first != nil, found)
		if found {
			require.Equal(t, *first, got)
		}
		got, found, err = stored.LatestTimestamp(0)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, *latest, got)
		require.Equal(t, latest.Timestamp, stored.MaxTimestamp())
	})
}

func requireRecords(t *rapid.T, want []plain, b Batch) {
	i := 0
	require.NoError(t, b.Each(0, func(r Record) error {
		w := want[i]
		require.Equal(t, w.timestamp, b.BaseTimestamp()+r.TimestampDelta)
		require.Equal(t, w.offset, b.BaseOffset()+int64(r.OffsetDelta))
		require.Equal(t, w.key, r.Key)
		require.Equal(t, w.value, r.Value)
		require.Len(t, r.Headers, len(w.headers))
		for j := range w.headers {
			require.Equal(t, w.headers[j].Value, r.Headers[j].Value)
			require.Equal(t, string(w.headers[j].Key), string(r.Headers[j].Key))
		}
		i++
		return nil
	}))
	require.Equal(t, len(want), i)
}

func TestSearch(t *testing.T) {
	b := NewBuilder(CodecLZ4) // all records carry the append time
	b.BaseOffset, b.LogAppendTime, b.AppendTime = 50, true, now+77
	b.AddAt(2, now, nil, nil, nil)
	b.AddAt(4, now+500, nil, nil, nil)
	batch := b.Build()
	p, found, err := batch.FirstSince(now+77, 0)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, Position{52, now + 77}, p)
	_, found, err = batch.FirstSince(now+78, 0)
	require.NoError(t, err)
	require.False(t, found)
	p, found, err = batch.LatestTimestamp(0)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, Position{52, now + 77}, p)

	tie := NewBuilder(CodecNone)
	for _, ts := range []int64{now, now + 5, now + 5, now + 1} {
		tie.Add(ts, nil, nil, nil)
	}
	p, _, err = tie.Build().LatestTimestamp(0)
	require.NoError(t, err)
	require.Equal(t, Position{1, now + 5}, p, "the first of equals")

	empty := NewBuilder(CodecNone)
	empty.Extend(3)
	_, found, err = empty.Build().LatestTimestamp(0)
	require.NoError(t, err)
	require.False(t, found)
}

// A callback's error ends the walk and comes back as it is.
func TestEachStops(t *testing.T) {
	for _, codec := range allCodecs {
		b := sample(codec, 10, 10)
		n := 0
		err := b.Each(0, func(Record) error {
			if n++; n == 3 {
				return errStop
			}
			return nil
		})
		require.Equal(t, errStop, err)
		require.Equal(t, 3, n)
		require.Len(t, collect(t, b), 10, "the pooled decoder is clean afterwards")
	}
	require.ErrorIs(t, edit(sample(CodecNone, 1, 1), func(b Batch) { setCodec(b, 5) }).Each(0, nil), ErrUnsupportedCodec)
}

type stopError struct{}

func (stopError) Error() string { return "stop" }

var errStop error = stopError{}

// Decoders are pooled and used by many goroutines at once, also from inside a
// callback.
func TestEachConcurrently(t *testing.T) {
	batches := map[Codec]Batch{}
	for _, codec := range allCodecs {
		batches[codec] = build(codec, corpus())
	}
	want := collect(t, batches[CodecNone])
	t.Run("group", func(t *testing.T) {
		for worker := range 4 {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for i := range 40 {
					outer := batches[allCodecs[(worker+i)%len(allCodecs)]]
					inner := batches[allCodecs[(worker*i)%len(allCodecs)]]
					n := 0
					require.NoError(t, outer.Each(0, func(r Record) error {
						if string(r.Value) != string(want[n].value) {
							t.Errorf("record %d: value changed under the callback", n)
						}
						if n%16 == 0 {
							require.Equal(t, want, collect(t, inner))
							if string(r.Value) != string(want[n].value) {
								t.Errorf("record %d: a nested walk overwrote it", n)
							}
						}
						n++
						return nil
					}))
					rules := accepting()
					rules.Codec = inner.Codec()
					got, err := Validate(clone(outer), rules)
					require.NoError(t, err)
					require.Equal(t, want, collect(t, got))
				}
			})
		}
	})
}

func TestParseCodec(t *testing.T) {
	for _, c := range append([]Codec{CodecProducer}, allCodecs...) {
		got, err := ParseCodec(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	got, err := ParseCodec("none")
	require.NoError(t, err)
	require.Equal(t, CodecNone, got)
	_, err = ParseCodec("brotli")
	require.ErrorIs(t, err, ErrUnsupportedCodec)
}
