package replication

import (
	"math"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// logSettings translates a topic's settings into those of its logs.
func logSettings(t *metadata.TopicSettings) log.Settings {
	s := log.DefaultSettings()
	s.SegmentBytes = t.SegmentBytes
	s.SegmentAge, s.SegmentJitter = t.SegmentAge, t.SegmentJitter
	s.SegmentIndexBytes, s.IndexIntervalBytes = t.SegmentIndexBytes, t.IndexIntervalBytes
	s.RetentionAge, s.RetentionBytes = t.RetentionAge, t.RetentionBytes
	s.Delete, s.Compact = t.Delete, t.Compact
	s.FileDeleteDelay = t.FileDeleteDelay
	s.FlushAck, s.FlushMessages, s.FlushInterval = t.FlushAck, t.FlushMessages, t.FlushInterval
	if s.FlushInterval < 0 {
		s.FlushInterval = time.Duration(math.MaxInt64)
	}
	s.MaxBatchBytes, s.ProducerExpiration = t.MaxMessageBytes, t.ProducerExpiration
	return s
}

// policy is what the core needs to know of a topic's settings for a partition of that many replicas.
func (c *Config) policy(t *metadata.TopicSettings, replicas int) Policy {
	return Policy{
		MinInsync: t.MinISR(replicas), FlushAck: t.FlushAck, LagMax: Instant(c.ReplicaLagMax),
		RetryMin: Instant(c.FetchRetryMin), RetryMax: Instant(c.FetchRetryMax), ProposalTimeout: Instant(c.ProposalTimeout),
	}
}
