package record

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// Trap L1, at the level of one decoder: whatever a crash or a bad disk leaves,
// walking the bytes with Next and Check yields the longest valid prefix.
func TestDamageEveryByte(t *testing.T) {
	var stored []byte
	ends := []int{0}
	for i, codec := range []Codec{CodecNone, CodecLZ4, CodecNone} {
		b := NewBuilder(codec)
		b.BaseOffset, b.LeaderEpoch = int64(10*i), 3
		for range 10 {
			b.Add(now, []byte("key"), []byte("value value value"), []RecordHeader{{Key: []byte("h"), Value: []byte("v")}})
		}
		stored = b.AppendTo(stored)
		ends = append(ends, len(stored))
	}
	scan := func(b []byte) (int, error) {
		good := 0
		for good < len(b) {
			batch, _, err := Next(b[good:])
			if err == nil {
				err = batch.Check()
			}
			if err != nil {
				return good, err
			}
			good += len(batch)
		}
		return good, nil
	}
	wantEnd := func(at int) int { // end of the last batch that lies wholly before at
		end := 0
		for _, e := range ends {
			if e <= at {
				end = e
			}
		}
		return end
	}

	got, err := scan(stored)
	require.NoError(t, err)
	require.Equal(t, len(stored), got)

	for cut := range len(stored) {
		got, err := scan(stored[:cut:cut])
		require.Equal(t, wantEnd(cut), got, "cut at %d", cut)
		if got != cut {
			require.ErrorIs(t, err, ErrShort, "cut at %d", cut)
		}
	}

	// Offset and epoch lie outside the checksum: what a flip there does is for
	// the log to notice, which knows what must come next.
	unchecked := func(at int) bool {
		in := at - wantEnd(at)
		return in < atLength || in >= atLeaderEpoch && in < atMagic
	}
	for at := range len(stored) {
		for bit := range 8 {
			stored[at] ^= 1 << bit
			got, err := scan(stored)
			stored[at] ^= 1 << bit
			if unchecked(at) && err == nil {
				continue
			}
			require.Equal(t, wantEnd(at), got, "bit %d of byte %d", bit, at)
			require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, ErrShort), "bit %d of byte %d: %v", bit, at, err)
		}
	}
}

// A flipped bit in what a producer sends is refused or, outside the checksum,
// ignored as the protocol demands (leader epoch).
func TestValidateEveryFlip(t *testing.T) {
	good := sample(CodecSnappy, 5, 100)
	rules := accepting()
	rules.MaxBytes, rules.CheckRecords = 1<<20, true
	for at := range len(good) {
		for bit := range 8 {
			b := clone(good)
			b[at] ^= 1 << bit
			_, err := Validate(b, rules)
			if at >= atLeaderEpoch && at < atMagic {
				require.NoError(t, err, "bit %d of byte %d", bit, at)
			} else {
				require.Error(t, err, "bit %d of byte %d", bit, at)
			}
		}
	}
	for cut := range len(good) {
		_, err := Validate(good[:cut:cut], rules)
		requireClass(t, err, ErrInvalidRecord)
	}
}

// Damage inside the records that a checksum doesn't show (a buggy producer, or
// memory that rotted before the checksum was made) is an error, never a panic,
// and never more records than announced. Each byte of each codec's payload takes
// a few values; the fuzz targets go on from here.
func TestDamageUnderValidChecksum(t *testing.T) {
	for _, codec := range allCodecs {
		b := NewBuilder(codec)
		for range 4 {
			b.Add(now, []byte("key"), []byte("value value value value"), []RecordHeader{{Key: []byte("h"), Value: []byte("v")}})
		}
		good := b.Build()
		for at := HeaderBytes; at < len(good); at++ {
			for _, value := range []byte{0, 1, 0x7f, 0x80, 0xff, good[at] + 1, good[at] - 1, good[at] ^ 0x80} {
				bad := edit(good, func(b Batch) { b[at] = value })
				count := 0
				err := bad.Each(1<<20, func(Record) error { count++; return nil })
				require.LessOrEqual(t, count, 4)
				if err == nil {
					require.Equal(t, 4, count)
				} else {
					require.True(t, errors.Is(err, ErrCorrupt) || errors.Is(err, ErrDecompressedTooLarge), "%v", err)
				}
			}
		}
		for cut := HeaderBytes; cut < len(good); cut++ {
			bad := assemble(codec, 4, good[HeaderBytes:cut])
			err := bad.Each(0, func(Record) error { return nil })
			if err == nil {
				// What a codec appends after the data (a checksum, an end mark)
				// may be gone without the records being wrong.
				require.Len(t, collect(t, bad), 4)
				continue
			}
			require.ErrorIs(t, err, ErrCorrupt)
		}
	}
}

// Trap N4: lengths that ask for more than there is.
func TestLengthBombs(t *testing.T) {
	huge := []byte{0xfe, 0xff, 0xff, 0xff, 0x0f} // 2^31-1
	record := func(middle ...byte) []byte {
		return append([]byte{byte(2 * len(middle))}, middle...)
	}
	for name, payload := range map[string][]byte{
		"record length":         append(append([]byte{}, huge...), 0, 0, 0, 0, 0, 0),
		"record length short":   {0x0a, 0, 0, 0, 1, 1},
		"record length 6 bytes": {0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0, 0, 0},
		"record length -1":      {1, 0, 0, 0, 1, 1, 0},
		"key length":            record(append([]byte{0, 0, 0}, append(huge, 1, 0)...)...),
		"key one byte too long": record(0, 0, 0, 8, 1, 1, 0),
		"value one too long":    record(0, 0, 0, 1, 4, 0),
		"key length -2":         record(0, 0, 0, 3, 1, 0),
		"value length":          record(append([]byte{0, 0, 0, 1}, append(huge, 0)...)...),
		"header count":          record(append([]byte{0, 0, 0, 1, 1}, huge...)...),
		"header count -1":       record(0, 0, 0, 1, 1, 1),
		"header key null":       record(0, 0, 0, 1, 1, 2, 1, 1),
		"header key length":     record(append([]byte{0, 0, 0, 1, 1, 2}, huge...)...),
		"header value length":   record(append([]byte{0, 0, 0, 1, 1, 2, 0}, huge...)...),
		"header value missing":  record(0, 0, 0, 1, 1, 2, 0),
		"bytes after headers":   record(0, 0, 0, 1, 1, 2, 0, 1, 9),
		"bytes after fields":    record(0, 0, 0, 1, 1, 0, 9),
		"timestamp 11 bytes":    record(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 1, 1, 0),
		"bytes after records":   {0x0c, 0, 0, 0, 1, 1, 0, 0},
		"nothing":               {},
	} {
		t.Run(name, func(t *testing.T) {
			for _, codec := range allCodecs {
				if len(payload) == 0 && codec != CodecNone {
					continue
				}
				b := assemble(codec, 1, appendCompressed(nil, codec, 0, payload))
				err := b.Each(0, func(Record) error { return nil })
				require.ErrorIs(t, err, ErrCorrupt, "%s", codec)
				rules := accepting()
				rules.CheckRecords = true
				_, err = Validate(b, rules)
				require.ErrorIs(t, err, ErrInvalidRecord, "%s", codec)
			}
		})
	}
	require.NoError(t, assemble(CodecNone, 1, []byte{0x0c, 0, 0, 0, 1, 1, 0}).Each(0, func(Record) error { return nil }), "the smallest record")

	// A count of two thousand million in a compressed batch costs nothing.
	b := assemble(CodecGzip, 1<<31-1, appendCompressed(nil, CodecGzip, 0, []byte{0x0c, 0, 0, 0, 1, 1, 0}))
	n := 0
	require.ErrorIs(t, b.Each(0, func(Record) error { n++; return nil }), ErrCorrupt)
	require.Equal(t, 1, n)
}

func TestNext(t *testing.T) {
	good := sample(CodecNone, 1, 10)
	two := append(clone(good), sample(CodecNone, 2, 10)...)
	b, rest, err := Next(two)
	require.NoError(t, err)
	require.Equal(t, good, b)
	require.Equal(t, len(b), cap(b), "appending to a batch must not overwrite the next one")
	b, rest, err = Next(rest)
	require.NoError(t, err)
	require.EqualValues(t, 2, b.Count())
	require.Empty(t, rest)

	for name, c := range map[string]struct {
		b  []byte
		is error
	}{
		"nothing":           {nil, ErrShort},
		"before the length": {good[:11], ErrShort},
		"before the magic":  {good[:16], ErrShort},
		"header only":       {good[:61], ErrShort},
		"last byte missing": {good[:len(good)-1], ErrShort},
		"length one below":  {editLength(good, 48), ErrCorrupt},
		"length 0":          {editLength(good, 0), ErrCorrupt},
		"length negative":   {editLength(good, -1), ErrCorrupt},
		"length bad, cut":   {editLength(good, 48)[:12], ErrCorrupt},
		"length huge":       {editLength(good, 1<<31-1), ErrShort},
		"magic 1":           {edit(good, func(b Batch) { b[atMagic] = 1 }), ErrCorrupt},
		"magic 1, cut":      {edit(good, func(b Batch) { b[atMagic] = 1 })[:17], ErrCorrupt},
	} {
		b, rest, err := Next(c.b)
		requireClass(t, err, c.is)
		require.Nil(t, b, name)
		require.Equal(t, c.b, rest, name)
		if name != "last byte missing" && name != "header only" && name != "length huge" {
			_, err = ParseHeader(c.b)
			requireClass(t, err, c.is)
		}
	}
	h, err := ParseHeader(good[:61])
	require.NoError(t, err)
	require.Equal(t, len(good), h.Size())
	_, err = ParseHeader(good[:60])
	requireClass(t, err, ErrShort)
}

func TestCheckStored(t *testing.T) {
	stored := func(change func(Batch)) Batch {
		return edit(sample(CodecNone, 4, 20), change)
	}
	require.NoError(t, stored(func(Batch) {}).Check())
	compacted := NewBuilder(CodecGzip)
	compacted.BaseOffset = 100
	compacted.AddAt(3, now, []byte("k"), nil, nil)
	compacted.Extend(9)
	b := compacted.Build()
	require.NoError(t, b.Check())
	require.EqualValues(t, 1, b.Count())
	require.EqualValues(t, 110, b.NextOffset())
	require.EqualValues(t, 103, collect(t, b)[0].offset)

	empty := NewBuilder(CodecGzip) // trap L18: keeps a producer's last sequence
	empty.ProducerID, empty.BaseSequence = 5, 17
	empty.Extend(9)
	b = empty.Build()
	require.NoError(t, b.Check())
	require.EqualValues(t, 26, b.LastSequence())
	require.Empty(t, collect(t, b))

	for name, change := range map[string]func(Batch){
		"negative base offset":      func(b Batch) { b.SetBaseOffset(-1) },
		"offsets overflow":          func(b Batch) { b.SetBaseOffset(1<<63 - 4) },
		"negative epoch":            func(b Batch) { b.SetLeaderEpoch(-1) },
		"negative delta":            func(b Batch) { put32(b, atLastOffsetDelta, -1); put32(b, atCount, 0) },
		"negative count":            func(b Batch) { put32(b, atCount, -1) },
		"more records than offsets": func(b Batch) { put32(b, atCount, 5) },
		"more records than bytes":   func(b Batch) { put32(b, atCount, 1<<20); put32(b, atLastOffsetDelta, 1<<20) },
		"no such codec":             func(b Batch) { setCodec(b, 6) },
	} {
		require.ErrorIs(t, stored(change).Check(), ErrCorrupt, name)
	}
	good := stored(func(Batch) {})
	require.ErrorIs(t, good[:len(good)-1].Check(), ErrCorrupt)
	require.ErrorIs(t, good[:60].Check(), ErrCorrupt)
	require.ErrorIs(t, Batch(nil).Check(), ErrCorrupt)
	require.NoError(t, stored(func(b Batch) { b.SetBaseOffset(1<<63 - 5) }).Check(), "the last offset there is")
}
