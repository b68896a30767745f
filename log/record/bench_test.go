package record

import (
	"fmt"
	"testing"
)

func BenchmarkParseHeader(b *testing.B) {
	batch := sample(CodecNone, 10, 100)
	b.ReportAllocs()
	var sum int64
	for b.Loop() {
		h, _ := ParseHeader(batch)
		sum += h.BaseOffset
	}
	_ = sum
}

func BenchmarkNext(b *testing.B) {
	batch := sample(CodecNone, 10, 100)
	b.ReportAllocs()
	for b.Loop() {
		_, _, _ = Next(batch)
	}
}

var shapes = []struct{ records, size int }{{1, 100}, {16, 1000}, {1000, 1000}, {9000, 100}}

func eachShape(b *testing.B, codecs []Codec, run func(b *testing.B, batch Batch)) {
	for _, codec := range codecs {
		for _, s := range shapes {
			b.Run(fmt.Sprintf("%s/%dx%dB", codec, s.records, s.size), func(b *testing.B) {
				batch := sample(codec, s.records, s.size)
				b.ReportAllocs()
				b.SetBytes(int64(s.records * s.size))
				run(b, batch)
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*s.records), "ns/record")
			})
		}
	}
}

func BenchmarkCheckCRC(b *testing.B) {
	eachShape(b, []Codec{CodecNone}, func(b *testing.B, batch Batch) {
		for b.Loop() {
			if !batch.CheckCRC() {
				b.Fatal("checksum")
			}
		}
	})
}

// BenchmarkValidate/raw minus BenchmarkCheckCRC is what the raw path costs.
func BenchmarkValidate(b *testing.B) {
	raw := accepting()
	raw.MaxBytes = 2 << 20
	check := raw
	check.CheckRecords = true
	stamp := raw
	stamp.LogAppendTime = true
	run := func(rules Rules) func(*testing.B, Batch) {
		return func(b *testing.B, batch Batch) {
			for b.Loop() {
				if _, err := Validate(batch, rules); err != nil {
					b.Fatal(err)
				}
				if rules.LogAppendTime {
					batch.setAttributes(batch.Attributes() &^ attrLogAppendTime)
					batch.Seal()
				}
			}
		}
	}
	b.Run("raw", func(b *testing.B) { eachShape(b, []Codec{CodecNone}, run(raw)) })
	b.Run("checked", func(b *testing.B) { eachShape(b, allCodecs, run(check)) })
	b.Run("stamped", func(b *testing.B) { eachShape(b, []Codec{CodecNone}, run(stamp)) })
}

func BenchmarkRecompress(b *testing.B) {
	for _, codec := range allCodecs[1:] {
		b.Run(codec.String(), func(b *testing.B) {
			rules := accepting()
			rules.Codec = codec
			batch := sample(CodecNone, 1000, 1000)
			b.ReportAllocs()
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				if _, err := Validate(batch, rules); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEach(b *testing.B) {
	eachShape(b, allCodecs, func(b *testing.B, batch Batch) {
		for b.Loop() {
			if err := batch.Each(0, func(Record) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkFirstSince(b *testing.B) {
	eachShape(b, []Codec{CodecNone}, func(b *testing.B, batch Batch) {
		for b.Loop() {
			if _, found, _ := batch.FirstSince(batch.MaxTimestamp(), 0); !found {
				b.Fatal("not found")
			}
		}
	})
}

func BenchmarkBuild(b *testing.B) {
	value := make([]byte, 1000)
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			builder := NewBuilder(codec)
			var out []byte
			b.ReportAllocs()
			b.SetBytes(1_000_000)
			for b.Loop() {
				builder.Reset()
				for range 1000 {
					builder.Add(now, nil, value, nil)
				}
				out = builder.AppendTo(out[:0])
			}
		})
	}
}
