package record

import (
	"math"
	"time"
)

// Rules is what a leader demands of a batch that a producer sent: the topic's
// settings and the facts of the request. Beware of the zero value: it asks for
// uncompressed batches and refuses zstd; Codec and ProduceVersion must be set.
type Rules struct {
	// MaxBytes is max.message.bytes, the largest size of a batch, header
	// included, before and after recompression; ≤ 0 means no limit.
	MaxBytes int
	// ProduceVersion is the version of the Produce request. Below 7, zstd is
	// refused (KIP-110).
	ProduceVersion int16
	// LogAppendTime is message.timestamp.type=LogAppendTime: the batch gets the
	// time Now, and the producer's timestamps are not looked at.
	LogAppendTime bool
	// BeforeMax and AfterMax are message.timestamp.before.max.ms and
	// .after.max.ms: how far a record's timestamp may lie before or after Now.
	// < 0 or math.MaxInt64 means no bound. A BeforeMax makes Validate parse
	// every record, as no header field bounds the timestamps from below.
	BeforeMax, AfterMax time.Duration
	// Now is the wall clock in ms since 1970.
	Now int64
	// KeyRequired refuses null keys, as compacted topics must (L19).
	KeyRequired bool
	// Codec is compression.type: CodecProducer keeps the batch's own.
	Codec Codec
	// Level is the compression level used for Codec, as in Kafka's
	// compression.<codec>.level (KIP-390); 0 is the codec's default.
	Level int
	// DecompressedLimit bounds the bytes of the records once decompressed;
	// ≤ 0 means DefaultDecompressedLimit.
	DecompressedLimit int
	// CheckRecords parses every record even if nothing else demands it. It
	// finds records that contradict their header, which a checksum cannot. It
	// is off by default because it costs 35 to 45 ns per record where the raw
	// path costs about 20 ns per batch and the checksum: a tenth of all a
	// broker spends on 1 KiB records, and two thirds of it on 100 B records.
	CheckRecords bool
}

func bounded(d time.Duration) bool { return d >= 0 && d != math.MaxInt64 }

// timestampOK reports whether ts may be the timestamp of a record. Producers
// that do not date their records send -1.
func (r *Rules) timestampOK(ts int64) bool {
	if r.LogAppendTime || ts == noTimestamp {
		return true
	}
	if bounded(r.AfterMax) && ts > r.Now+r.AfterMax.Milliseconds() {
		return false
	}
	return !bounded(r.BeforeMax) || ts >= r.Now-r.BeforeMax.Milliseconds()
}
