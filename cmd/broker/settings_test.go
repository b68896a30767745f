package broker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

func settings(t *testing.T, l Layers) *Settings {
	t.Helper()
	s, err := ReadSettings(l)
	require.NoError(t, err)
	return s
}

func set(t *testing.T, pairs ...string) *Settings { return settings(t, Layers{Set: pairs}) }

// A later layer wins: file, then environment, then --set. Values are stored as Kafka writes them.
func TestReadSettingsLayers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.properties")
	require.NoError(t, os.WriteFile(file, []byte("# a comment\nnum.partitions=2\nlog.retention.hours = 7d\nlog.segment.bytes:64MiB\nbroker.rack=${env:RACK}\nnum.partitions=3\nlog.dirs=\\\n  /data\n"), 0o600))
	s := settings(t, Layers{
		File:    file,
		Environ: []string{"KAFKA_NUM_PARTITIONS=4", "KAFKA_LOG_SEGMENT_BYTES=32MiB", "MILLRACE_FLUSH_ACK=false", "PATH=/bin", "KAFKA_HEAP_OPTS=-Xmx1g", "MILLRACE_BROKERS=x:1"},
		Set:     []string{"num.partitions=5", "millrace.wal=off"},
	})
	require.Equal(t, "5", s.Get("num.partitions"))
	require.Equal(t, "168", s.Get("log.retention.hours"))
	require.Equal(t, "33554432", s.Get("log.segment.bytes"))
	require.Equal(t, "${env:RACK}", s.Get("broker.rack"), "nothing is expanded, as in Kafka")
	require.Equal(t, "/data", s.Get("log.dirs"))
	require.Equal(t, "false", s.Get("millrace.flush.ack"))
	require.Equal(t, "off", s.Get("millrace.wal"))
	require.Equal(t, "true", s.Get("auto.create.topics.enable"), "the default")
	origin, ok := s.IsSet("num.partitions")
	require.True(t, ok)
	require.Equal(t, "--set", origin)
	origin, _ = s.IsSet("log.segment.bytes")
	require.Equal(t, "environment variable KAFKA_LOG_SEGMENT_BYTES", origin)
	_, ok = s.IsSet("auto.create.topics.enable")
	require.False(t, ok)
	require.Empty(t, s.Warnings)
}

// The image's rule: _ is a dot, __ an underscore, ___ a dash.
func TestEnvironKey(t *testing.T) {
	f := func(variable, want string) {
		t.Helper()
		got, ok := environKey(variable)
		require.Equal(t, want != "", ok)
		require.Equal(t, want, got)
	}
	f("KAFKA_NODE_ID", "node.id")
	f("KAFKA_A__B", "a_b")
	f("KAFKA_A___B", "a-b")
	f("KAFKA_A____B", "a-.b")
	f("KAFKA_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION", "listener.name.external.ssl.keystore.location")
	f("MILLRACE_HTTP_LISTENER", "millrace.http.listener")
	f("MILLRACE_BROKERS", "")
	f("KAFKA_OPTS", "")
	f("KAFKA_", "")
	f("HOME", "")
}

// Unknown keys are errors that name the nearest; in the environment, where others put names too, they are warnings.
func TestReadSettingsErrors(t *testing.T) {
	_, err := ReadSettings(Layers{Set: []string{"log.retension.hours=1", "num.partitions=none", "oops"}})
	require.ErrorIs(t, err, metadata.ErrInvalidConfig)
	for _, part := range []string{"did you mean log.retention.hours?", "(--set)", `num.partitions="none" is not valid`, "--set oops is not KEY=VALUE"} {
		require.Contains(t, err.Error(), part)
	}
	s := settings(t, Layers{Set: []string{"log.retension.hours=1"}, AllowUnknown: true})
	require.Len(t, s.Warnings, 1)
	s = settings(t, Layers{Environ: []string{"KAFKA_PORT=tcp://10.0.0.1:9092", "KAFKA_SERVICE_HOST=10.0.0.1", "KAFKA_LOG_RETENSION_HOURS=1", "MILLRACE_PORT_9092_TCP_ADDR=1"}})
	require.Len(t, s.Warnings, 1, "Kubernetes' names are no mistakes: %v", s.Warnings)
	require.Contains(t, s.Warnings[0], "KAFKA_LOG_RETENSION_HOURS")
	_, err = ReadSettings(Layers{Environ: []string{"KAFKA_NUM_PARTITIONS=0"}})
	require.ErrorContains(t, err, "environment variable KAFKA_NUM_PARTITIONS")
	_, err = ReadSettings(Layers{File: filepath.Join(t.TempDir(), "none")})
	require.ErrorIs(t, err, metadata.ErrInvalidConfig)
	_, err = ReadSettings(Layers{Set: []string{"authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"}})
	require.ErrorContains(t, err, "is refused")
}

// kraftProperties has the keys and values that Kafka 4 ships for a single node.
const kraftProperties = `
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
`

// A KRaft server.properties starts us unchanged; what has no effect is said once.
func TestKRaftPropertiesStartUnchanged(t *testing.T) {
	for _, quorum := range []string{"controller.quorum.bootstrap.servers=localhost:9093", "controller.quorum.voters=1@localhost:9093"} {
		file := filepath.Join(t.TempDir(), "server.properties")
		text := strings.Replace(kraftProperties, "controller.quorum.bootstrap.servers=localhost:9093", quorum, 1)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		c, err := FromSettings(settings(t, Layers{File: file}), Options{})
		require.NoError(t, err)
		require.EqualValues(t, 1, c.NodeID)
		require.Equal(t, "/tmp/kraft-combined-logs", c.DataDir)
		require.Len(t, c.Listeners, 1)
		require.Equal(t, transport.ListenerConfig{Name: "PLAINTEXT", Protocol: transport.Plaintext, Bind: ":9092", AdvertisedHost: "localhost", AdvertisedPort: 9092}, c.Listeners[0])
		notes := strings.Join(c.Notes, "\n")
		require.Contains(t, notes, "num.io.threads: requests run on goroutines")
		require.Contains(t, notes, "tells them to connect to localhost")
	}
}

// S1: nothing is open to the network unless somebody said so.
func TestListenersLoopbackUnlessConfigured(t *testing.T) {
	c, err := FromSettings(set(t), Options{})
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9092", c.Listeners[0].Bind)
	require.Equal(t, "127.0.0.1", c.Listeners[0].AdvertisedHost)
	require.Equal(t, "127.0.0.1:9644", c.HTTPListener)
	require.NotContains(t, strings.Join(c.Notes, "\n"), "warning")

	c, err = FromSettings(set(t), Options{Advertise: "m1.example.com"})
	require.NoError(t, err)
	require.Equal(t, ":9092", c.Listeners[0].Bind)
	require.Equal(t, "m1.example.com", c.Listeners[0].AdvertisedHost)
	require.Contains(t, strings.Join(c.Notes, "\n"), "without encryption")

	c, err = FromSettings(set(t, "listeners=PLAINTEXT://:19092,EXTERNAL://0.0.0.0:0", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
		"advertised.listeners=EXTERNAL://kafka.example.com:443", "millrace.http.listener=0.0.0.0:9644"), Options{})
	require.NoError(t, err)
	require.Equal(t, ":19092", c.Listeners[0].Bind)
	require.NotEmpty(t, c.Listeners[0].AdvertisedHost)
	require.NotContains(t, []string{"0.0.0.0", "::"}, c.Listeners[0].AdvertisedHost)
	require.Equal(t, "kafka.example.com", c.Listeners[1].AdvertisedHost)
	require.EqualValues(t, 443, c.Listeners[1].AdvertisedPort)
	require.Equal(t, "0.0.0.0:9644", c.HTTPListener)

	c, err = FromSettings(set(t, "millrace.http.listener=off"), Options{})
	require.NoError(t, err)
	require.Empty(t, c.HTTPListener)
}

func TestFromSettingsErrors(t *testing.T) {
	f := func(part string, pairs ...string) {
		t.Helper()
		s, err := ReadSettings(Layers{Set: pairs})
		if err == nil {
			var c Config
			if c, err = FromSettings(s, Options{}); err == nil {
				err = c.Validate()
			}
		}
		require.ErrorIs(t, err, metadata.ErrInvalidConfig, "%v", pairs)
		require.Contains(t, err.Error(), part)
		require.Contains(t, err.Error(), "\nwhy:   ")
		require.Contains(t, err.Error(), "\nfix:   ")
	}
	f("--bootstrap-expect 1 with --join", "millrace.join=m1,m2", "millrace.bootstrap.expect=1")
	f("--bootstrap-expect is 2", "millrace.join=m1,m2,m3,m4", "millrace.bootstrap.expect=2")
	f("does not fit broker.session.timeout.ms", "broker.heartbeat.interval.ms=6000")
	f("millrace.gossip.key can't be used", "millrace.join=m1", "millrace.gossip.key=short")
	f("asks for SASL_SSL", "millrace.join=m1", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL")
	f("no certificate", "millrace.join=m1", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SSL")
	f("asks for SASL_SSL", "listeners=SASL_SSL://:9092")
	f("no certificate", "listeners=SSL://:9092")
	f("cannot read", "listeners=SSL://:9092", "ssl.keystore.location=/does/not/exist.pem")
	f("no authorities", "listeners=SSL://:9092", "ssl.keystore.location=/does/not/exist.pem", "ssl.client.auth=required")
	f("no security protocol", "listeners=INSIDE://:9092")
	f("there is no listener", "listeners=PLAINTEXT://:9092", "advertised.listeners=EXTERNAL://a:1")
	f("no listener for clients", "listeners=CONTROLLER://:9093")
	f("2 directories", "log.dirs=/a,/b")
	f("min.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms=10", "log.cleaner.max.compaction.lag.ms=5")
}

// Settings reach the part that honours them.
func TestFromSettingsParts(t *testing.T) {
	c, err := FromSettings(set(t, "node.id=7", "broker.rack=r1", "log.dirs=/d", "metadata.log.dir=/m", "millrace.wal=off", "log.retention.check.interval.ms=1s", "millrace.disk.reject.percent=90",
		"num.partitions=6", "default.replication.factor=1", "socket.request.max.bytes=1MiB", "connections.max.idle.ms=5s", "max.connections=10", "max.connections.per.ip=3",
		"queued.max.request.bytes=2MiB", "millrace.memory.limit.bytes=1GiB", "num.recovery.threads.per.data.dir=3"), Options{DataDir: "/ignored"})
	require.NoError(t, err)
	require.EqualValues(t, 7, c.NodeID)
	require.Equal(t, "r1", c.Rack)
	require.Equal(t, "/d", c.DataDir)
	require.Equal(t, "/m", c.MetadataDir)
	require.False(t, c.Log.WAL)
	require.Equal(t, time.Second, c.Log.RetentionInterval)
	require.EqualValues(t, 10, c.Log.ReservePercent)
	require.Equal(t, 3, c.Log.RecoveryWorkers)
	require.Equal(t, "6", c.Static["num.partitions"])
	require.Equal(t, "1", c.Static["default.replication.factor"])
	require.Equal(t, 1<<20, c.Transport.MaxRequestBytes)
	require.Equal(t, 5*time.Second, c.Transport.IdleTimeout)
	require.Equal(t, 10, c.Transport.Limits.MaxConnections)
	require.Equal(t, 3, c.Transport.Limits.MaxConnectionsPerIP)
	require.EqualValues(t, 2<<20, c.Transport.FrameBudgetBytes)
	require.EqualValues(t, 1<<30, c.MemoryLimitBytes)

	c, err = FromSettings(set(t, "connections.max.idle.ms=-1"), Options{DataDir: "/d"})
	require.NoError(t, err)
	require.Equal(t, "/d", c.DataDir)
	require.Greater(t, c.Transport.IdleTimeout, 24*365*time.Hour)
	require.Zero(t, c.Transport.Limits.MaxConnections)
	require.EqualValues(t, metadata.NoBroker, c.NodeID)
}
