package metadata

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// uxKeys is the table of keys and defaults that users were promised, family by family. "" means: no fixed default.
var uxKeys = map[string]string{
	"listeners": "PLAINTEXT://:9092", "advertised.listeners": "", "listener.security.protocol.map": "*",
	"inter.broker.listener.name": "", "controller.listener.names": "CONTROLLER",
	"node.id": "", "broker.rack": "", "process.roles": "broker,controller", "log.dirs": "./millrace-data", "metadata.log.dir": "",
	"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "",
	"num.partitions": "1", "default.replication.factor": "", "min.insync.replicas": "",
	"auto.create.topics.enable": "true", "delete.topic.enable": "true",
	"unclean.leader.election.enable": "false", "auto.leader.rebalance.enable": "true",
	"leader.imbalance.check.interval.seconds": "300", "leader.imbalance.per.broker.percentage": "10",
	"log.retention.ms": "", "log.retention.minutes": "", "log.retention.hours": "168", "log.retention.bytes": "-1",
	"log.retention.check.interval.ms": "300000",
	"log.segment.bytes":               "1073741824", "log.roll.ms": "", "log.roll.hours": "168", "log.segment.delete.delay.ms": "60000",
	"log.roll.jitter.ms": "", "log.roll.jitter.hours": "0",
	"log.index.interval.bytes": "4096", "log.index.size.max.bytes": "10485760",
	"millrace.flush.ack": "true", "millrace.wal": "on",
	"log.flush.interval.messages": maxLong, "log.flush.interval.ms": "",
	"millrace.group.failover": "rebalance",
	"log.cleanup.policy":      "delete", "log.cleaner.enable": "true", "log.cleaner.threads": "1", "log.cleaner.dedupe.buffer.size": "134217728",
	"log.cleaner.io.buffer.size": "524288", "log.cleaner.backoff.ms": "15000", "log.cleaner.io.max.bytes.per.second": "*",
	"log.cleaner.min.cleanable.ratio": "0.5", "log.cleaner.min.compaction.lag.ms": "0", "log.cleaner.max.compaction.lag.ms": maxLong,
	"log.cleaner.delete.retention.ms": "86400000",
	"compression.type":                "producer", "log.message.timestamp.type": "CreateTime", "log.message.timestamp.before.max.ms": maxLong,
	"log.message.timestamp.after.max.ms": "3600000",
	"message.max.bytes":                  "1048588", "replica.fetch.max.bytes": "1048576", "fetch.max.bytes": "57671680", "socket.request.max.bytes": "104857600",
	"replica.lag.time.max.ms": "30000", "replica.fetch.wait.max.ms": "500", "num.replica.fetchers": "",
	"broker.heartbeat.interval.ms": "2000", "broker.session.timeout.ms": "9000",
	"group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000", "group.initial.rebalance.delay.ms": "3000", "group.max.size": "2147483647",
	"group.consumer.session.timeout.ms": "45000", "group.consumer.heartbeat.interval.ms": "5000", "group.consumer.assignors": "uniform,range",
	"group.consumer.max.size": "2147483647", "group.consumer.min.session.timeout.ms": "45000", "group.consumer.max.session.timeout.ms": "60000",
	"group.consumer.min.heartbeat.interval.ms": "5000", "group.consumer.max.heartbeat.interval.ms": "15000",
	"group.share.session.timeout.ms": "45000", "group.share.heartbeat.interval.ms": "5000",
	"offsets.retention.minutes": "10080", "offsets.retention.check.interval.ms": "600000", "offset.metadata.max.bytes": "4096",
	"offsets.topic.num.partitions": "50", "offsets.topic.replication.factor": "3",
	"transaction.max.timeout.ms": "900000", "transactional.id.expiration.ms": "604800000", "producer.id.expiration.ms": "86400000",
	"transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
	"connections.max.idle.ms":                                     "600000", "max.connections": "2147483647", "max.connections.per.ip": "2147483647",
	"max.connection.creation.rate": "2147483647", "queued.max.request.bytes": "-1",
	"ssl.keystore.type": "PEM", "ssl.keystore.location": "", "ssl.truststore.location": "", "ssl.client.auth": "none",
	"sasl.enabled.mechanisms": "", "sasl.oauthbearer.jwks.endpoint.url": "", "super.users": "", "allow.everyone.if.no.acl.found": "false",
	"num.network.threads": "3", "num.io.threads": "8", "background.threads": "10", "socket.send.buffer.bytes": "102400", "socket.receive.buffer.bytes": "102400",
	"remote.log.storage.system.enable": "false", "log.local.retention.ms": "-2", "log.local.retention.bytes": "-2",
	"millrace.join": "", "millrace.bootstrap.expect": "0", "millrace.quorum.size": "3", "millrace.metadata.snapshot.entries": "4096",
	"millrace.gossip.listener": ":9094", "millrace.gossip.key": "",
	"millrace.http.listener": ":9644", "millrace.http.auth": "none",
	"millrace.balancer.mode": "node-change", "millrace.balancer.throttle.bytes.per.sec": "52428800", "millrace.balancer.grace.ms": "600000",
	"millrace.disk.reject.percent": "95", "millrace.retention.disk.percent": "",
	"authorizer.class.name": "", "sasl.server.callback.handler.class": "", "sasl.login.callback.handler.class": "", "sasl.client.callback.handler.class": "",
	"millrace.metrics.partition.level": "auto", "millrace.telemetry.otlp.endpoint": "", "millrace.trace.sample": "0", "millrace.console.write": "false",
}

// kafkaTopicKeys are the topic configs of Kafka 4 (TopicConfig and LogConfig), and ours.
const kafkaTopicKeys = `cleanup.policy retention.ms retention.bytes segment.bytes segment.ms segment.jitter.ms segment.index.bytes
index.interval.bytes max.message.bytes min.insync.replicas compression.type compression.gzip.level compression.lz4.level
compression.zstd.level delete.retention.ms min.compaction.lag.ms max.compaction.lag.ms min.cleanable.dirty.ratio
file.delete.delay.ms flush.messages flush.ms message.timestamp.type message.timestamp.before.max.ms
message.timestamp.after.max.ms message.timestamp.difference.max.ms message.format.version message.downconversion.enable
preallocate leader.replication.throttled.replicas follower.replication.throttled.replicas
remote.storage.enable local.retention.ms local.retention.bytes remote.log.copy.disable remote.log.delete.on.disable
max.decompressed.message.bytes remote.copy.lag.ms remote.copy.lag.bytes internal.segment.bytes errors.deadletterqueue.group.enable millrace.flush.ack`

// Every promised key is in the table, with the promised default and a class; a key without effect says why.
func TestConfigTableHasEveryPromisedKey(t *testing.T) {
	for name, def := range uxKeys {
		k, ok := LookupConfig(ConfigBroker, name)
		if !ok {
			t.Errorf("broker config %s has no class", name)
			continue
		}
		if def != "*" && def != k.Default {
			t.Errorf("broker config %s has default %q, promised is %q", name, k.Default, def)
		}
	}
	for _, name := range strings.Fields(kafkaTopicKeys) {
		if _, ok := LookupConfig(ConfigTopic, name); !ok {
			t.Errorf("topic config %s has no class", name)
		}
	}
}

// Each row is consistent in itself: reason, documentation, a default that its own check takes, synonyms that exist.
func TestConfigTableRows(t *testing.T) {
	for _, scope := range []ConfigScope{ConfigBroker, ConfigTopic} {
		for _, k := range ConfigKeys(scope) {
			require.NotEmpty(t, k.Doc, k.Name)
			require.NotEmpty(t, k.Type.String(), k.Name)
			require.Equal(t, k.Class != ConfigHonoured, k.Reason != "", "%s: class %s, reason %q", k.Name, k.Class, k.Reason)
			if !k.NoDefault && k.Default != "" && k.Default != "-1" {
				c, err := k.Canonical(k.Default)
				require.NoError(t, err, k.Name)
				require.Equal(t, k.Default, c, "the default of %s is not canonical", k.Name)
			}
			for _, s := range k.Synonyms {
				b, ok := LookupConfig(ConfigBroker, s)
				require.True(t, ok, "synonym %s of %s", s, k.Name)
				require.False(t, scope == ConfigTopic && b.Class == ConfigRefused, "%s", s)
				if scope == ConfigTopic && k.Class == ConfigHonoured {
					require.Equal(t, ConfigHonoured, b.Class, "%s is honoured, its synonym %s is not", k.Name, s)
				}
			}
			if scope == ConfigTopic && len(k.Synonyms) > 0 && k.DefaultNote == "" {
				last, _ := LookupConfig(ConfigBroker, k.Synonyms[len(k.Synonyms)-1])
				ms, err := toMilliseconds(last, last.Default)
				require.NoError(t, err)
				require.Equal(t, k.Default, ms, "default of %s and of its synonym %s", k.Name, last.Name)
			}
		}
	}
}

// The broker's defaults resolve to Kafka's numbers.
func TestResolveTopicSettingsDefaults(t *testing.T) {
	s, err := ResolveTopicSettings(nil, nil)
	require.NoError(t, err)
	require.Equal(t, TopicSettings{
		Delete: true, RetentionAge: 168 * time.Hour, RetentionBytes: -1,
		SegmentBytes: 1 << 30, SegmentAge: 168 * time.Hour, SegmentIndexBytes: 10 << 20, IndexIntervalBytes: 4096, FileDeleteDelay: time.Minute,
		MaxMessageBytes: 1048588, MaxDecompressedBytes: 134217728, CompressionType: "producer", GzipLevel: -1, LZ4Level: 9, ZstdLevel: 3,
		TimestampBeforeMax: -1, TimestampAfterMax: time.Hour, FlushAck: true, FlushMessages: 1<<63 - 1, FlushInterval: -1,
		DeleteRetention: 24 * time.Hour, MaxCompactionLag: -1, MinCleanableRatio: 0.5, ProducerExpiration: 24 * time.Hour,
	}, s)
	for rf, want := range []int{1, 1, 1, 2, 2, 2} {
		require.Equal(t, want, s.MinISR(rf), "replication factor %d", rf)
	}
	s.MinInsyncReplicas = 4
	for rf, want := range []int{1, 1, 2, 3, 4, 4} {
		require.Equal(t, want, s.MinISR(rf), "replication factor %d", rf)
	}
}

// Topic beats broker; among broker keys the finest unit that is set wins, whatever order they were set in.
func TestResolveTopicSettingsPrecedence(t *testing.T) {
	f := func(want time.Duration, topic, broker map[string]string) {
		t.Helper()
		s, err := ResolveTopicSettings(broker, topic)
		require.NoError(t, err)
		require.Equal(t, want, s.RetentionAge)
	}
	hours := map[string]string{"log.retention.hours": "2"}
	f(2*time.Hour, nil, hours)
	f(30*time.Minute, nil, map[string]string{"log.retention.hours": "2", "log.retention.minutes": "30"})
	f(time.Second, nil, map[string]string{"log.retention.hours": "2", "log.retention.minutes": "30", "log.retention.ms": "1000"})
	f(-1, nil, map[string]string{"log.retention.hours": "-1"})
	f(-1, nil, map[string]string{"log.retention.hours": "2", "log.retention.ms": "-1"})
	f(7*24*time.Hour, map[string]string{"retention.ms": "7d"}, hours)
	f(-1, map[string]string{"retention.ms": "-1"}, hours)
	f(36*time.Hour, nil, map[string]string{"log.retention.hours": "36h"})
	f(2*time.Hour, nil, map[string]string{"log.retention.ms": "", "log.retention.hours": "2"})

	s, err := ResolveTopicSettings(nil, map[string]string{"cleanup.policy": "compact", "internal.segment.bytes": "1000", "min.insync.replicas": "3"})
	require.NoError(t, err)
	require.True(t, s.Compact)
	require.False(t, s.Delete)
	require.EqualValues(t, 1000, s.SegmentBytes)
	require.Equal(t, 3, s.MinISR(3))

	_, err = ResolveTopicSettings(nil, map[string]string{"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
	require.ErrorIs(t, err, ErrInvalidConfig)
}

// Sizes and durations with units become Kafka's plain numbers; plain numbers stay.
func TestConfigCanonical(t *testing.T) {
	f := func(scope ConfigScope, name, in, want string) {
		t.Helper()
		got, err := CheckConfig(scope, name, in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	f(ConfigTopic, "retention.ms", "604800000", "604800000")
	f(ConfigTopic, "retention.ms", " 7d ", "604800000")
	f(ConfigTopic, "retention.ms", "1h30m", "5400000")
	f(ConfigTopic, "retention.ms", "1.5s", "1500")
	f(ConfigTopic, "retention.ms", "250ms", "250")
	f(ConfigTopic, "retention.ms", "-1", "-1")
	f(ConfigTopic, "segment.bytes", "512MiB", "536870912")
	f(ConfigTopic, "segment.bytes", "64m", "67108864")
	f(ConfigTopic, "retention.bytes", "10GB", "10000000000")
	f(ConfigTopic, "retention.bytes", "1.5 GiB", "1610612736")
	f(ConfigTopic, "cleanup.policy", "compact, delete", "compact,delete")
	f(ConfigTopic, "millrace.flush.ack", "FALSE", "false")
	f(ConfigTopic, "min.cleanable.dirty.ratio", "0.1", "0.1")
	f(ConfigTopic, "compression.gzip.level", "-1", "-1")
	f(ConfigBroker, "log.retention.hours", "7d", "168")
	f(ConfigBroker, "log.retention.minutes", "2h", "120")
	f(ConfigBroker, "leader.imbalance.check.interval.seconds", "5m", "300")
	f(ConfigBroker, "listeners", "PLAINTEXT://:9092, SSL://[::1]:9093", "PLAINTEXT://:9092,SSL://[::1]:9093")
	f(ConfigBroker, "listener.name.external.ssl.keystore.location", "/etc/k.pem", "/etc/k.pem")
	f(ConfigBroker, "listener.name.external.scram-sha-256.sasl.jaas.config", "x", "x")
	f(ConfigBroker, "rsm.config.bucket", "b", "b")
	f(ConfigBroker, "authorizer.class.name", "", "")
	f(ConfigTopic, "remote.storage.enable", "false", "false")
	f(ConfigTopic, "leader.replication.throttled.replicas", "0:1,1:2", "0:1,1:2")
	f(ConfigTopic, "leader.replication.throttled.replicas", "*", "*")
}

// A bad key or value names itself, why, and what to type; it matches ErrInvalidConfig.
func TestConfigErrors(t *testing.T) {
	f := func(scope ConfigScope, name, value string, parts ...string) {
		t.Helper()
		_, err := CheckConfig(scope, name, value)
		require.ErrorIs(t, err, ErrInvalidConfig, name+"="+value)
		lines := strings.Split(err.Error(), "\n")
		require.Len(t, lines, 3, "%s", err)
		require.True(t, strings.HasPrefix(lines[1], "why:   "), "%s", err)
		require.True(t, strings.HasPrefix(lines[2], "fix:   "), "%s", err)
		for _, p := range parts {
			require.Contains(t, err.Error(), p)
		}
	}
	f(ConfigTopic, "retention.ms", "abc", `retention.ms="abc" is not valid`, "duration such as 7d", "604800000 (the default)")
	f(ConfigTopic, "retention.ms", "", "whole number")
	f(ConfigTopic, "retention.ms", "7x", "whole number")
	f(ConfigTopic, "retention.ms", "-2", "at least -1")
	f(ConfigTopic, "retention.ms", "0.1ms", "not a whole number")
	f(ConfigTopic, "retention.ms", "9223372036854775808", "between")
	f(ConfigTopic, "retention.ms", "999999999999999w", "too large")
	f(ConfigTopic, "segment.bytes", "1000", "at least 1048576")
	f(ConfigTopic, "segment.bytes", "4GiB", "between")
	f(ConfigTopic, "flush.messages", "7d", "a whole number")
	f(ConfigTopic, "cleanup.policy", "", "at least 1")
	f(ConfigTopic, "cleanup.policy", "shred", "shred")
	f(ConfigTopic, "cleanup.policy", "delete,delete", "twice")
	f(ConfigTopic, "compression.type", "brotli", "one of")
	f(ConfigTopic, "compression.gzip.level", "0", "1 and 9")
	f(ConfigTopic, "millrace.flush.ack", "yes", "true or false")
	f(ConfigTopic, "min.cleanable.dirty.ratio", "2", "between 0 and 1")
	f(ConfigTopic, "min.cleanable.dirty.ratio", "NaN", "number")
	f(ConfigTopic, "remote.storage.enable", "true", "refused", "tiered")
	f(ConfigTopic, "leader.replication.throttled.replicas", "0-1", "partition:broker")
	f(ConfigTopic, "retension.ms", "1", "did you mean retention.ms?")
	f(ConfigTopic, "log.retention.hours", "1", "it is a broker config", "did you mean retention.ms?")
	f(ConfigBroker, "retention.ms", "1", "it is a topic config", "did you mean log.retention.ms?")
	f(ConfigBroker, "log.segmnet.bytes", "1", "did you mean log.segment.bytes?")
	f(ConfigBroker, "zookeeper.connect", "a:2181", "refused", "ZooKeeper")
	f(ConfigBroker, "authorizer.class.name", "kafka.security.Acl", "refused")
	f(ConfigBroker, "sasl.server.callback.handler.class", "x", "refused")
	f(ConfigBroker, "ssl.keystore.type", "JKS", "refused", "ssl.keystore.type=PEM")
	f(ConfigBroker, "process.roles", "controller", "refused", "process.roles=broker,controller")
	f(ConfigBroker, "listeners", "9092", "NAME://host:port")
	f(ConfigBroker, "listeners", "A://:1,B://:1", "port 1")
	f(ConfigBroker, "listeners", "A://:1,a://:2", "twice")
	f(ConfigBroker, "listeners", "A://::1:9092", "brackets")
	f(ConfigBroker, "advertised.listeners", "PLAINTEXT://0.0.0.0:9092", "every address")
	f(ConfigBroker, "advertised.listeners", "PLAINTEXT://:9092", "needs a host")
	f(ConfigBroker, "controller.quorum.voters", "localhost:9093", "id@host:port")
	f(ConfigBroker, "millrace.http.listener", "nowhere", "port")

	_, err := CheckConfig(ConfigTopic, "zzzzzz.unheard.of", "1")
	require.Contains(t, err.Error(), "leave it out")
	// S7: the value of a secret is in no message.
	_, err = CheckConfig(ConfigBroker, "ssl.key.password", "hunter2")
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.NotContains(t, err.Error(), "hunter2")
	_, err = CheckConfig(ConfigTopic, "segment.bytes", strings.Repeat("9é", 5000))
	require.Less(t, len(err.Error()), 600)
	require.False(t, errors.Is(err, ErrUnknownTopic))
}

// DescribeConfigs names the source of each value and every synonym, the winner first, in the key's own unit.
func TestDescribeTopicConfigs(t *testing.T) {
	layers := BrokerLayers{
		Static:         map[string]string{"log.retention.hours": "2", "log.segment.bytes": "2MiB"},
		DynamicDefault: map[string]string{"log.segment.bytes": "3145728"},
		Dynamic:        map[string]string{"log.segment.bytes": "4194304"},
	}
	got := map[string]DescribedConfig{}
	for _, d := range DescribeTopicConfigs(layers, map[string]string{"cleanup.policy": "compact"}, nil, 3) {
		got[d.Name] = d
	}
	require.NotContains(t, got, "internal.segment.bytes")
	retention := got["retention.ms"]
	require.Equal(t, "7200000", *retention.Value)
	require.Equal(t, SourceStaticBroker, retention.Source)
	require.False(t, retention.ReadOnly)
	require.Len(t, retention.Synonyms, 1)
	require.Equal(t, "log.retention.hours", retention.Synonyms[0].Name)
	require.Equal(t, "2", *retention.Synonyms[0].Value)
	require.Equal(t, "compact", *got["cleanup.policy"].Value)
	require.Equal(t, SourceTopic, got["cleanup.policy"].Source)
	require.Equal(t, "2", *got["min.insync.replicas"].Value)
	segment := got["segment.bytes"]
	require.Equal(t, "4194304", *segment.Value)
	require.Equal(t, SourceDynamicBroker, segment.Source)
	var values []string
	for _, s := range segment.Synonyms {
		values = append(values, s.Source.String()+"="+*s.Value)
	}
	require.Equal(t, []string{"DYNAMIC_BROKER_CONFIG=4194304", "DYNAMIC_DEFAULT_BROKER_CONFIG=3145728", "STATIC_BROKER_CONFIG=2097152", "DEFAULT_CONFIG=1073741824"}, values)

	require.Len(t, DescribeTopicConfigs(layers, nil, []string{"retention.ms", "nonsense"}, 1), 1)
	require.Empty(t, DescribeTopicConfigs(layers, nil, []string{}, 1))
}

func TestDescribeBrokerConfigs(t *testing.T) {
	layers := BrokerLayers{Static: map[string]string{
		"log.retention.minutes": "5", "sasl.jaas.config": "SECRET", "listener.name.ext.sasl.jaas.config": "SECRET2", "listener.name.ext.ssl.client.auth": "required"}}
	got := map[string]DescribedConfig{}
	for _, d := range DescribeBrokerConfigs(layers, nil, 7, 2) {
		got[d.Name] = d
	}
	require.Equal(t, "7", *got["node.id"].Value)
	require.True(t, got["node.id"].ReadOnly)
	require.Equal(t, "2", *got["default.replication.factor"].Value)
	require.Equal(t, "1", *got["min.insync.replicas"].Value)
	require.Equal(t, "5", *got["log.retention.minutes"].Value)
	require.Equal(t, "168", *got["log.retention.hours"].Value, "a key of the family that does not win keeps its own value")
	require.Nil(t, got["log.retention.ms"].Value)
	require.NotContains(t, got, "zookeeper.connect")
	// S7
	require.True(t, got["sasl.jaas.config"].Sensitive)
	require.Nil(t, got["sasl.jaas.config"].Value)
	for _, s := range got["sasl.jaas.config"].Synonyms {
		require.Nil(t, s.Value)
	}
	named := DescribeBrokerConfigs(layers, []string{"listener.name.ext.sasl.jaas.config", "listener.name.ext.ssl.client.auth"}, 7, 2)
	require.Len(t, named, 2)
	require.Nil(t, named[0].Value)
	require.Equal(t, "required", *named[1].Value)

	defaults := DescribeBrokerDefaults(map[string]string{"log.retention.ms": "1000"}, nil)
	require.Len(t, defaults, 1)
	require.Equal(t, SourceDynamicBrokerDefault, defaults[0].Source)
}

func TestConfigLists(t *testing.T) {
	require.Equal(t, "a,b,c", AppendConfigList("a, b", "b,c"))
	require.Equal(t, "x", AppendConfigList("", "x"))
	require.Equal(t, "a", SubtractConfigList("a,b", " b ,c"))
	require.Equal(t, "", SubtractConfigList("a", "a"))
}

func TestSplitListener(t *testing.T) {
	f := func(in, name, host string, port int) {
		t.Helper()
		n, h, p, err := SplitListener(in)
		require.NoError(t, err)
		require.Equal(t, []any{name, host, port}, []any{n, h, p})
	}
	f("PLAINTEXT://:9092", "PLAINTEXT", "", 9092)
	f("external://b1.example.com:19092", "EXTERNAL", "b1.example.com", 19092)
	f("SSL://[::1]:0", "SSL", "::1", 0)
}
