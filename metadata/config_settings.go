package metadata

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// TopicSettings are the typed values of a topic's honoured keys, with the broker's values where the topic says
// nothing. It is a value: whoever holds one sees it unchanged.
type TopicSettings struct {
	Delete  bool // cleanup.policy has delete: retention by time and size applies
	Compact bool // cleanup.policy has compact: retention never deletes, unless Delete too

	RetentionAge   time.Duration // < 0: no limit
	RetentionBytes int64         // < 0: no limit

	SegmentBytes       int64
	SegmentAge         time.Duration
	SegmentJitter      time.Duration
	SegmentIndexBytes  int64
	IndexIntervalBytes int64
	FileDeleteDelay    time.Duration

	MaxMessageBytes int // largest batch as stored

	MaxDecompressedBytes int // largest batch once decompressed

	// MinInsyncReplicas is 0 when neither topic nor broker says; MinISR then goes by the replication factor.
	MinInsyncReplicas int

	// CompressionType is "producer" or the codec's name; "uncompressed" is none.
	CompressionType string
	GzipLevel       int // -1: the codec's default
	LZ4Level        int
	ZstdLevel       int

	LogAppendTime      bool
	TimestampBeforeMax time.Duration // < 0: no limit
	TimestampAfterMax  time.Duration // < 0: no limit

	FlushAck      bool          // millrace.flush.ack: acknowledgements wait for fsync
	FlushMessages int64         // MaxInt64: no further flushes
	FlushInterval time.Duration // < 0: no further flushes

	// Stored for the log cleaner.
	DeleteRetention   time.Duration
	MinCompactionLag  time.Duration
	MaxCompactionLag  time.Duration // < 0: no limit
	MinCleanableRatio float64

	UncleanLeaderElection bool

	// ProducerExpiration is producer.id.expiration.ms, a key of the broker alone: after how long without a batch the
	// sequence state of an idempotent producer is forgotten.
	ProducerExpiration time.Duration
}

// MinISR returns how many replicas must have a record before acks=all is answered, for a topic of that
// replication factor: what was configured, else 2 of 3 or more replicas, else 1. It is never more than the
// replicas there are, as in Apache Kafka 4.4: a topic of one replica with min.insync.replicas=2 takes acks=all.
func (s *TopicSettings) MinISR(replicationFactor int) int {
	switch {
	case s.MinInsyncReplicas > 0:
		return min(s.MinInsyncReplicas, max(replicationFactor, 1))
	case replicationFactor >= 3:
		return 2
	}
	return 1
}

// DefaultReplicationFactor is what a topic gets when neither it nor default.replication.factor says:
// 3 replicas, or one on each broker when there are fewer.
func DefaultReplicationFactor(broker map[string]string, brokers int) int {
	if v, err := strconv.Atoi(broker["default.replication.factor"]); err == nil && v > 0 {
		return v
	}
	return max(1, min(3, brokers))
}

// ResolveTopicSettings merges a topic's own configs with the effective configs of a broker (both as set by
// people: only keys that were set). For each key the topic's value wins, then the first broker synonym that is
// set, the finest time unit first, then the default. Errors match ErrInvalidConfig and name the key.
func ResolveTopicSettings(broker, topic map[string]string) (TopicSettings, error) {
	r := resolver{broker: broker, topic: topic}
	s := TopicSettings{
		RetentionAge:          r.duration("retention.ms"),
		RetentionBytes:        r.number("retention.bytes"),
		SegmentBytes:          r.number("segment.bytes"),
		SegmentAge:            r.duration("segment.ms"),
		SegmentJitter:         r.duration("segment.jitter.ms"),
		SegmentIndexBytes:     r.number("segment.index.bytes"),
		IndexIntervalBytes:    r.number("index.interval.bytes"),
		FileDeleteDelay:       r.duration("file.delete.delay.ms"),
		MaxMessageBytes:       int(r.number("max.message.bytes")),
		MaxDecompressedBytes:  int(r.number("max.decompressed.message.bytes")),
		CompressionType:       r.text("compression.type"),
		GzipLevel:             int(r.number("compression.gzip.level")),
		LZ4Level:              int(r.number("compression.lz4.level")),
		ZstdLevel:             int(r.number("compression.zstd.level")),
		LogAppendTime:         r.text("message.timestamp.type") == "LogAppendTime",
		TimestampBeforeMax:    r.duration("message.timestamp.before.max.ms"),
		TimestampAfterMax:     r.duration("message.timestamp.after.max.ms"),
		FlushAck:              r.truth("millrace.flush.ack"),
		FlushMessages:         r.number("flush.messages"),
		FlushInterval:         r.duration("flush.ms"),
		DeleteRetention:       r.duration("delete.retention.ms"),
		MinCompactionLag:      r.duration("min.compaction.lag.ms"),
		MaxCompactionLag:      r.duration("max.compaction.lag.ms"),
		MinCleanableRatio:     r.ratio("min.cleanable.dirty.ratio"),
		UncleanLeaderElection: r.truth("unclean.leader.election.enable"),
		ProducerExpiration:    24 * time.Hour,
	}
	if v, ok := broker["producer.id.expiration.ms"]; ok && v != "" {
		s.ProducerExpiration = time.Duration(r.parseNumber("producer.id.expiration.ms", v)) * time.Millisecond
	}
	if v, ok := r.set("min.insync.replicas"); ok {
		s.MinInsyncReplicas = int(r.parseNumber("min.insync.replicas", v))
	}
	if v, ok := topic["internal.segment.bytes"]; ok && v != "" {
		s.SegmentBytes = r.parseNumber("internal.segment.bytes", v)
	}
	policy := SplitConfigList(r.text("cleanup.policy"))
	s.Delete, s.Compact = slices.Contains(policy, "delete"), slices.Contains(policy, "compact")
	if r.err == nil && s.MaxCompactionLag >= 0 && s.MinCompactionLag > s.MaxCompactionLag {
		r.err = &Error{
			Kind: ErrInvalidConfig,
			What: fmt.Sprintf("topic config min.compaction.lag.ms=%d is not valid", s.MinCompactionLag.Milliseconds()),
			Why:  fmt.Sprintf("it is larger than max.compaction.lag.ms=%d", s.MaxCompactionLag.Milliseconds()),
			Fix:  "set min.compaction.lag.ms to at most max.compaction.lag.ms",
		}
	}
	return s, r.err
}

// resolver keeps the first error, so that the table above reads as a table.
type resolver struct {
	broker, topic map[string]string
	err           error
}

// set returns the value that was set for a topic key, by the topic or by a broker synonym, in the topic key's
// canonical form.
func (r *resolver) set(name string) (string, bool) {
	if v, ok := r.topic[name]; ok {
		return r.canonical(topicKeys.byName[name], v), true
	}
	for _, synonym := range topicKeys.byName[name].Synonyms {
		if v, ok := r.broker[synonym]; ok && v != "" {
			k := brokerKeys.byName[synonym]
			v, err := toMilliseconds(k, r.canonical(k, v))
			if err != nil {
				r.fail(err)
			}
			return v, true
		}
	}
	return "", false
}

func (r *resolver) text(name string) string {
	if v, ok := r.set(name); ok {
		return v
	}
	return topicKeys.byName[name].Default
}

func (r *resolver) canonical(k *ConfigKey, value string) string {
	v, err := k.Canonical(value)
	if err != nil {
		r.fail(err)
	}
	return v
}

func (r *resolver) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *resolver) truth(name string) bool { return r.text(name) == "true" }

func (r *resolver) number(name string) int64 { return r.parseNumber(name, r.text(name)) }

func (r *resolver) parseNumber(name, v string) int64 {
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		r.fail(fmt.Errorf("%w: topic config %s=%s is not a whole number", ErrInvalidConfig, name, quoteShort(v)))
	}
	return n
}

func (r *resolver) ratio(name string) float64 {
	f, err := strconv.ParseFloat(r.text(name), 64)
	if err != nil && r.err == nil {
		r.fail(fmt.Errorf("%w: topic config %s is not a number", ErrInvalidConfig, name))
	}
	return f
}

// duration reads milliseconds; negative values and those beyond a time.Duration mean no limit, as -1.
func (r *resolver) duration(name string) time.Duration {
	ms := r.number(name)
	if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// toMilliseconds turns a canonical value of a key in minutes, hours or seconds into milliseconds, as topic
// keys have them; other values stay as they are. Negative values mean no limit in every unit.
func toMilliseconds(k *ConfigKey, v string) (string, error) {
	factor := int64(1)
	switch k.Unit {
	case UnitSeconds:
		factor = 1000
	case UnitMinutes:
		factor = 60_000
	case UnitHours:
		factor = 3_600_000
	default:
		return v, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return "", fmt.Errorf("%w: broker config %s=%s is not a whole number", ErrInvalidConfig, k.Name, quoteShort(v))
	}
	if n < 0 {
		return "-1", nil
	}
	return strconv.FormatInt(n*factor, 10), nil
}
