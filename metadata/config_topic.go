package metadata

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Reasons of keys that are stored and described, but change nothing in this version. Each moves to "honoured"
// with the release that brings its subject.
const (
	laterCleaner  = "it is stored, and takes effect with the log cleaner of a later release"
	laterCluster  = "it is stored, and takes effect with several brokers, in a later release"
	laterGroups   = "it is stored, and takes effect with consumer groups, in a later release"
	laterTiered   = "there is no tiered storage in this version"
	laterSecurity = "authentication and authorisation come in a later release; listeners that ask for SASL are refused"
	laterQuotas   = "quotas come in a later release"
	laterMetrics  = "the full list of metrics comes in a later release"
	noThreads     = "requests run on goroutines, so there are no pools to size"
	noJVM         = "there is no JVM to load the class into"
	noZooKeeper   = "there is no ZooKeeper"
)

// topicConfigTable lists every topic key that Kafka 4 knows, and ours. Defaults and ranges are Kafka's
// (KIP-1030 for segment.bytes and message.timestamp.after.max.ms), except where the note says otherwise.
func topicConfigTable() []*ConfigKey {
	return []*ConfigKey{
		listKey("cleanup.policy", "delete", "What happens to old segments: deleted by time and size, compacted by key, or both.").
			listOf(1, "delete", "compact").synonyms("log.cleanup.policy"),
		longKey("retention.ms", 604800000, "How long records are kept when the policy is delete; -1 keeps them for ever.").ms().atLeast(-1).
			synonyms("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
		longKey("retention.bytes", -1, "How large a partition may grow before its oldest segments are deleted; negative is no limit.").bytes().
			synonyms("log.retention.bytes"),
		intKey("segment.bytes", 1073741824, "The size at which a new segment file is begun.").bytes().atLeast(1048576).
			synonyms("log.segment.bytes"),
		intKey("internal.segment.bytes", 1073741824, "The segment size without the lower bound of segment.bytes, for tests.").bytes().
			atLeast(14).unset("segment.bytes").hidden(),
		longKey("segment.ms", 604800000, "The age at which a new segment file is begun, even when the old one is not full.").ms().atLeast(1).
			synonyms("log.roll.ms", "log.roll.hours"),
		longKey("segment.jitter.ms", 0, "The most by which a partition's segment age is shortened at random, so that not all roll at once.").ms().
			atLeast(0).synonyms("log.roll.jitter.ms", "log.roll.jitter.hours"),
		intKey("segment.index.bytes", 10485760, "The largest size of a segment's offset index and of its time index; a full index begins a new segment.").
			bytes().atLeast(4).synonyms("log.index.size.max.bytes"),
		intKey("index.interval.bytes", 4096, "How many bytes of records lie between two index entries.").bytes().atLeast(0).
			synonyms("log.index.interval.bytes"),
		intKey("max.message.bytes", 1048588, "The largest record batch that is accepted, after compression.").bytes().atLeast(0).
			synonyms("message.max.bytes"),
		intKey("max.decompressed.message.bytes", 134217728, "The largest record batch that is accepted once decompressed. Kafka's default is 2 GiB, ours bounds what a small request can cost.").bytes().atLeast(1).
			synonyms("max.decompressed.message.bytes"),
		intKey("min.insync.replicas", 1, "How many replicas must have a record before acks=all is answered.").atLeast(1).
			dependsOn("2 when the topic has 3 or more replicas, else 1").synonyms("min.insync.replicas"),
		stringKey("compression.type", "producer", "The codec of stored batches; producer keeps them as they came.").
			oneOf("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer").synonyms("compression.type"),
		intKey("compression.gzip.level", -1, "The level when compression.type is gzip; -1 is the codec's own default.").
			that("1 to 9, or -1", gzipLevel).synonyms("compression.gzip.level"),
		intKey("compression.lz4.level", 9, "The level when compression.type is lz4.").between(1, 17).synonyms("compression.lz4.level"),
		intKey("compression.zstd.level", 3, "The level when compression.type is zstd.").between(-131072, 22).synonyms("compression.zstd.level"),
		stringKey("message.timestamp.type", "CreateTime", "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).").
			oneOf("CreateTime", "LogAppendTime").synonyms("log.message.timestamp.type"),
		longKey("message.timestamp.before.max.ms", 9223372036854775807, "How far a record's timestamp may lie in the past.").ms().atLeast(0).
			synonyms("log.message.timestamp.before.max.ms"),
		longKey("message.timestamp.after.max.ms", 3600000, "How far a record's timestamp may lie in the future.").ms().atLeast(0).
			synonyms("log.message.timestamp.after.max.ms"),
		longKey("message.timestamp.difference.max.ms", 9223372036854775807, "Older name of the two limits of message.timestamp.").ms().atLeast(0).
			synonyms("log.message.timestamp.difference.max.ms").inert("Kafka 4 removed it: set message.timestamp.before.max.ms and message.timestamp.after.max.ms"),
		longKey("file.delete.delay.ms", 60000, "How long a deleted segment's file stays on disk.").ms().atLeast(0).synonyms("log.segment.delete.delay.ms"),
		longKey("flush.messages", 9223372036854775807, "A further fsync after so many records, beside those that acknowledgements ask for.").atLeast(1).
			synonyms("log.flush.interval.messages"),
		longKey("flush.ms", 9223372036854775807, "A further fsync after so long, beside those that acknowledgements ask for.").ms().atLeast(0).
			synonyms("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
		boolKey("millrace.flush.ack", true, "Whether acks=1 and acks=all wait for fsync; false gives Kafka's promise, which is memory.").
			synonyms("millrace.flush.ack"),
		longKey("delete.retention.ms", 86400000, "How long compaction keeps tombstones.").ms().atLeast(0).
			synonyms("log.cleaner.delete.retention.ms").inert(laterCleaner),
		longKey("min.compaction.lag.ms", 0, "How long a record is safe from compaction.").ms().atLeast(0).
			synonyms("log.cleaner.min.compaction.lag.ms").inert(laterCleaner),
		longKey("max.compaction.lag.ms", 9223372036854775807, "After how long a record must be compacted.").ms().atLeast(1).
			synonyms("log.cleaner.max.compaction.lag.ms").inert(laterCleaner),
		doubleKey("min.cleanable.dirty.ratio", "0.5", "The share of a log that must be dirty before it is compacted.").between(0, 1).
			synonyms("log.cleaner.min.cleanable.ratio").inert(laterCleaner),
		boolKey("preallocate", false, "Whether segment files are allocated at full size.").synonyms("log.preallocate").
			inert("segments grow as they are written; recovery never depends on preallocated space"),
		boolKey("unclean.leader.election.enable", false, "Whether a replica outside the in-sync set may become leader, losing records.").
			synonyms("unclean.leader.election.enable"),
		listKey("leader.replication.throttled.replicas", "", "Replicas whose outgoing replication is throttled, as partition:broker, or *.").
			that("a list of partition:broker, or *", throttledReplicas).inert(laterCluster),
		listKey("follower.replication.throttled.replicas", "", "Replicas whose incoming replication is throttled, as partition:broker, or *.").
			that("a list of partition:broker, or *", throttledReplicas).inert(laterCluster),
		boolKey("remote.storage.enable", false, "Whether old segments go to tiered storage.").inert(laterTiered).
			refuse(isTrue, "there is no tiered storage in this version, so the records would be kept on local disk only", "leave it out, or remote.storage.enable=false"),
		longKey("local.retention.ms", -2, "How long records stay on local disk with tiered storage; -2 is retention.ms.").ms().atLeast(-2).
			synonyms("log.local.retention.ms").inert(laterTiered),
		longKey("local.retention.bytes", -2, "How much stays on local disk with tiered storage; -2 is retention.bytes.").bytes().atLeast(-2).
			synonyms("log.local.retention.bytes").inert(laterTiered),
		longKey("remote.copy.lag.ms", 0, "How long a segment waits before it is copied to tiered storage.").ms().atLeast(-2).
			synonyms("log.remote.copy.lag.ms").inert(laterTiered),
		longKey("remote.copy.lag.bytes", -1, "How much may wait to be copied to tiered storage.").bytes().atLeast(-2).
			synonyms("log.remote.copy.lag.bytes").inert(laterTiered),
		boolKey("remote.log.copy.disable", false, "Whether copying to tiered storage is paused.").inert(laterTiered),
		boolKey("remote.log.delete.on.disable", false, "Whether disabling tiered storage deletes what it holds.").inert(laterTiered),
		boolKey("errors.deadletterqueue.group.enable", false, "Whether share groups may use the topic as dead-letter queue (KIP-1191).").inert(laterGroups),
		stringKey("message.format.version", "3.0-IV1", "Older brokers' choice of record format.").synonyms("log.message.format.version").
			inert("Kafka 4 removed it: the format on disk is always v2"),
		boolKey("message.downconversion.enable", true, "Older brokers' conversion for old consumers.").synonyms("log.message.downconversion.enable").
			inert("Kafka 4 removed it: the record format is always v2"),
	}
}

func isTrue(v string) bool { return v == "true" }

func gzipLevel(v string) error {
	if n, err := strconv.Atoi(v); err == nil && (n < 1 || n > 9) && n != -1 {
		return errors.New("it must be between 1 and 9, or -1")
	}
	return nil
}

func throttledReplicas(v string) error {
	if v == "*" {
		return nil
	}
	for _, item := range SplitConfigList(v) {
		partition, broker, ok := strings.Cut(item, ":")
		if ok {
			_, err1 := strconv.ParseUint(partition, 10, 31)
			_, err2 := strconv.ParseUint(broker, 10, 31)
			ok = err1 == nil && err2 == nil
		}
		if !ok {
			return fmt.Errorf("%s is not of the form partition:broker", quoteShort(item))
		}
	}
	return nil
}
