package record

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// fuzzLimit keeps the memory of a fuzzing process small.
const fuzzLimit = 1 << 20

func fuzzSeeds(f *testing.F, add func([]byte)) {
	for _, codec := range allCodecs {
		add(sample(codec, 3, 40))
		b := NewBuilder(codec)
		b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = 1, 2, 3, true
		b.Add(0, nil, nil, []RecordHeader{{Key: []byte("k"), Value: []byte("v")}, {Key: []byte{}}})
		b.Add(now, []byte{}, []byte{}, nil)
		add(b.Build())
	}
	add(Marker{Commit: true, CoordinatorEpoch: 3}.Batch(1, 2, now))
	add(assemble(CodecSnappy, 1, snappyBare([]byte{0x0c, 0, 0, 0, 1, 1, 0})))
	add(append(clone(sample(CodecNone, 1, 1)), sample(CodecGzip, 1, 1)...))
	add([]byte{})
	add(make([]byte, 200))
}

// FuzzNext walks arbitrary bytes as a segment scan does.
func FuzzNext(f *testing.F) {
	fuzzSeeds(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		h, headerErr := ParseHeader(b)
		rest := b
		for first := true; ; first = false {
			batch, after, err := Next(rest)
			if err != nil {
				if !errors.Is(err, ErrShort) && !errors.Is(err, ErrCorrupt) || batch != nil || len(after) != len(rest) {
					t.Fatalf("batch of %d, rest of %d bytes, error %v", len(batch), len(after), err)
				}
				if first && headerErr == nil && h.Size() <= len(b) {
					t.Fatalf("ParseHeader is content, Next says %v", err)
				}
				return
			}
			if len(batch) < HeaderBytes || len(batch)+len(after) != len(rest) {
				t.Fatalf("%d bytes split into %d and %d", len(rest), len(batch), len(after))
			}
			if first && (headerErr != nil || h != batch.Header() || h.Size() != len(batch)) {
				t.Fatalf("ParseHeader %+v, %v; batch of %d bytes", h, headerErr, len(batch))
			}
			if err := batch.Check(); err == nil {
				if batch.BaseOffset() < 0 || batch.NextOffset() <= batch.BaseOffset() || int64(batch.Count()) > batch.NextOffset()-batch.BaseOffset() {
					t.Fatalf("checked batch: offsets %d to %d, %d records", batch.BaseOffset(), batch.LastOffset(), batch.Count())
				}
			} else if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			rest = after
		}
	})
}

// FuzzEach decodes the records of arbitrary bytes: after a record is delivered
// every slice of it can be read, and what was delivered can be encoded again.
func FuzzEach(f *testing.F) {
	fuzzSeeds(f, func(b []byte) { f.Add(b) })
	f.Fuzz(func(t *testing.T, b []byte) {
		batch, _, err := Next(b)
		if err != nil {
			return
		}
		count, ordered := int32(0), true
		again := NewBuilder(CodecNone)
		err = batch.Each(fuzzLimit, func(r Record) error {
			count++
			for _, h := range r.Headers {
				if h.Key == nil {
					t.Fatal("null header key")
				}
			}
			if ordered = ordered && r.OffsetDelta > again.lastDelta; ordered {
				again.AddAt(r.OffsetDelta, batch.BaseTimestamp()+r.TimestampDelta, r.Key, r.Value, r.Headers)
			}
			return nil
		})
		switch {
		case err == nil:
			if count != max(batch.Count(), 0) {
				t.Fatalf("%d records of %d without error", count, batch.Count())
			}
			if ordered && count > 0 {
				re := again.Build()
				if got, want := collect(t, re), collect(t, rebased(batch)); len(got) != len(want) || !equalRecords(got, want) {
					t.Fatalf("encoded again: %v, was %v", got, want)
				}
			}
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrUnsupportedCodec), errors.Is(err, ErrDecompressedTooLarge):
		default:
			t.Fatal(err)
		}
		_, _, _ = batch.FirstSince(now, fuzzLimit)
		_, _, _ = batch.LatestTimestamp(fuzzLimit)
		_, _, _ = ParseMarker(batch)
	})
}

// rebased is b at base offset 0, as the rebuilt batch has it.
func rebased(b Batch) Batch {
	c := clone(b)
	c.SetBaseOffset(0)
	return c
}

func equalRecords(a, b []plain) bool {
	for i := range a {
		if a[i].timestamp != b[i].timestamp || a[i].offset != b[i].offset || !bytes.Equal(a[i].key, b[i].key) || !bytes.Equal(a[i].value, b[i].value) ||
			(a[i].key == nil) != (b[i].key == nil) || (a[i].value == nil) != (b[i].value == nil) || len(a[i].headers) != len(b[i].headers) {
			return false
		}
	}
	return true
}

// FuzzValidate judges arbitrary bytes under arbitrary rules. Whatever is
// accepted must pass the check that recovery, followers and the scrubber apply
// (or a restart would cut off what was acknowledged, L1, L22).
func FuzzValidate(f *testing.F) {
	fuzzSeeds(f, func(b []byte) {
		f.Add(b, false, uint16(0))
		f.Add(b, true, uint16(0xffff))
		f.Add(b, true, uint16(0x0231))
	})
	f.Fuzz(func(t *testing.T, b []byte, reseal bool, knobs uint16) {
		b = bytes.Clone(b)
		if reseal && len(b) >= HeaderBytes { // let damage get past the checksum
			Batch(b).Seal()
		}
		r := Rules{
			MaxBytes: 1 << 20, ProduceVersion: int16(knobs & 15), LogAppendTime: knobs&16 != 0, KeyRequired: knobs&32 != 0,
			CheckRecords: knobs&64 != 0, Codec: Codec(knobs>>7&7%6) - 1, Now: now, BeforeMax: -1, AfterMax: time.Hour, DecompressedLimit: fuzzLimit,
		}
		if !r.Codec.Valid() {
			r.Codec = CodecProducer
		}
		if knobs&1024 != 0 {
			r.BeforeMax = time.Hour
		}
		original := bytes.Clone(b)
		got, err := Validate(b, r)
		if err != nil {
			if !bytes.Equal(b, original) {
				t.Fatalf("a refused batch was changed: %v", err)
			}
			for _, class := range []error{ErrCorrupt, ErrTooLarge, ErrUnsupportedCodec, ErrInvalidTimestamp, ErrInvalidRecord, ErrDecompressedTooLarge} {
				if errors.Is(err, class) {
					return
				}
			}
			t.Fatal(err)
		}
		got.SetBaseOffset(1 << 50)
		got.SetLeaderEpoch(1 << 20)
		if err := got.Check(); err != nil {
			t.Fatalf("accepted, yet %v", err)
		}
		if next, rest, err := Next(got); err != nil || len(rest) != 0 || len(next) != len(got) {
			t.Fatalf("accepted, yet %d bytes are left: %v", len(rest), err)
		}
		if r.CheckRecords {
			n := int32(0)
			if err := got.Each(fuzzLimit, func(rec Record) error {
				if rec.OffsetDelta != n || r.KeyRequired && rec.Key == nil {
					t.Fatalf("record %d has offset delta %d", n, rec.OffsetDelta)
				}
				n++
				return nil
			}); err != nil || n != got.Count() {
				t.Fatalf("%d of %d records: %v", n, got.Count(), err)
			}
		}
	})
}

// FuzzVarint holds the readers against the encoder: what is decoded encodes to
// the same number, and to no more bytes than were read.
func FuzzVarint(f *testing.F) {
	for _, v := range []int64{0, -1, 1, 63, -64, 64, 1<<31 - 1, -1 << 31, 1<<63 - 1, -1 << 63} {
		f.Add(appendVarint(nil, v))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x1f})
	f.Add([]byte{0x80, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		v32, n32 := readVarint(b)
		v64, n64 := readVarlong(b)
		if n32 > 0 && (n64 != n32 || v64 != int64(v32)) {
			t.Fatalf("%x is %d (%d bytes) and %d (%d bytes)", b, v32, n32, v64, n64)
		}
		if n64 > 0 {
			e := appendVarint(nil, v64)
			back, n := readVarlong(e)
			if back != v64 || n != len(e) || len(e) > n64 || len(e) != varintLen(v64) {
				t.Fatalf("%x is %d, encoded as %x of length %d", b, v64, e, varintLen(v64))
			}
			if v64 == int64(int32(v64)) && n64 == len(e) && n32 != n64 {
				t.Fatalf("%x is %d, which fits 32 bits, but took %d", b, v64, n32)
			}
		}
	})
}
