package broker

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/transport/console"
)

// groupSeries are the series of groups in the metrics of a broker, by name and labels as they are written.
func groupSeries(t *testing.T, b *Broker) map[string]string {
	_, text := get(t, b, "/metrics")
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "kafka_consumergroup_") || strings.HasPrefix(line, "millrace_group_retention_left_seconds{") {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
			out[name+"}"] = value
		}
	}
	return out
}

// ux.md 6: the series of groups under the names that dashboards know, with their labels, and with the lag of every kind of
// offset: one that is up to date, one that is behind, one whose records were deleted before they were read, one beyond the end.
// They go with the offsets, the topic and the group.
func TestGroupMetrics(t *testing.T) {
	b := startBroker(t, testConfig(t.TempDir()))
	cl := client(t, b, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	adm := kadm.NewClient(cl)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for topic, partitions := range map[string]int32{"orders": 4, "bills": 1} {
		_, err := adm.CreateTopic(ctx, partitions, 1, nil, topic)
		require.NoError(t, err)
		for p := range partitions {
			for range 10 {
				require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: p, Value: []byte("v"), Timestamp: time.Now().Add(-time.Hour)}).FirstErr())
			}
		}
	}
	commit := func(group, topic string, offsets ...int64) {
		o := kadm.Offsets{}
		for p, at := range offsets {
			if at >= 0 {
				o.Add(kadm.Offset{Topic: topic, Partition: int32(p), At: at, LeaderEpoch: -1})
			}
		}
		require.NoError(t, adm.CommitAllOffsets(ctx, group, o))
	}
	commit("g", "orders", 10, 4, 2, 25) // up to date, behind, eaten by retention, beyond the end
	commit("g", "bills", 9)
	commit("other", "bills", 3)
	deleted := kadm.Offsets{}
	deleted.Add(kadm.Offset{Topic: "orders", Partition: 2, At: 7})
	_, err := adm.DeleteRecords(ctx, deleted)
	require.NoError(t, err)

	series := groupSeries(t, b)
	at := func(name, labels string) string { return "kafka_consumergroup_" + name + "{" + labels + "}" }
	of := func(p string) string { return `consumergroup="g",partition="` + p + `",topic="orders"` }
	for p, lag := range map[string]string{"0": "0", "1": "6", "2": "3", "3": "0"} {
		require.Equal(t, lag, series[at("lag", of(p))], "partition %s", p)
	}
	require.Equal(t, "4", series[at("current_offset", of("1"))])
	require.Equal(t, "0", series[at("lag_seconds", of("0"))])
	require.Equal(t, "0", series[at("lag_seconds", of("3"))])
	for _, p := range []string{"1", "2"} {
		require.Regexp(t, regexp.MustCompile(`^3(59|6[0-9])\d`), series[at("lag_seconds", of(p))], "an hour")
	}
	require.Equal(t, "9", series[at("lag_sum", `consumergroup="g",topic="orders"`)])
	require.Equal(t, "41", series[at("current_offset_sum", `consumergroup="g",topic="orders"`)])
	require.Equal(t, "0", series[at("members", `consumergroup="g"`)])
	require.Regexp(t, regexp.MustCompile(`^3(59|6[0-9])\d`), series[at("lag_seconds_max", `consumergroup="g",topic="orders"`)])
	left, err := strconv.ParseFloat(series[`millrace_group_retention_left_seconds{consumergroup="g",topic="orders"}`], 64)
	require.NoError(t, err)
	require.InDelta(t, (7*24-1)*3600, left, 120, "a week, of which the records have used up an hour")
	names := map[string]int{}
	for name := range series {
		name, _, _ = strings.Cut(name, "{")
		names[name]++
	}
	require.Equal(t, map[string]int{
		"kafka_consumergroup_current_offset": 6, "kafka_consumergroup_lag": 6, "kafka_consumergroup_lag_seconds": 6,
		"kafka_consumergroup_current_offset_sum": 3, "kafka_consumergroup_lag_sum": 3, "kafka_consumergroup_members": 2,
		"kafka_consumergroup_lag_seconds_max": 3, "millrace_group_retention_left_seconds": 3,
	}, names)

	_, err = adm.DeleteTopics(ctx, "orders")
	require.NoError(t, err)
	_, err = adm.DeleteGroups(ctx, "other")
	require.NoError(t, err)
	rest := groupSeries(t, b)
	require.Len(t, rest, 8, "of one group and one topic")
	for name := range rest {
		require.False(t, strings.Contains(name, "orders") || strings.Contains(name, "other"), name)
	}
}

// The group's report has the partitions of never committed and of deleted topics as what they are.
func TestGroupReportOfEveryKindOfOffset(t *testing.T) {
	b := startBroker(t, testConfig(t.TempDir()))
	cl := client(t, b, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	adm := kadm.NewClient(cl)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, topic := range []string{"orders", "gone"} {
		_, err := adm.CreateTopic(ctx, 2, 1, nil, topic)
		require.NoError(t, err)
		for p := range int32(2) {
			require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: topic, Partition: p, Value: []byte("v")}).FirstErr())
		}
		o := kadm.Offsets{}
		o.Add(kadm.Offset{Topic: topic, Partition: 0, At: 5, LeaderEpoch: -1})
		require.NoError(t, adm.CommitAllOffsets(ctx, "g", o))
	}
	_, err := adm.DeleteTopics(ctx, "gone")
	require.NoError(t, err)
	member := client(t, b, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit())
	reports := groupReports{b}
	for {
		member.PollRecords(ctx, 1) // its offset is beyond the end of partition 0
		r, err := reports.GroupReport(ctx, "g")
		require.NoError(t, err)
		if r.State != "Stable" {
			continue
		}
		require.Len(t, r.Partitions, 2)
		require.False(t, slices.ContainsFunc(r.Partitions, func(p console.GroupPartition) bool { return p.Topic != "orders" || p.Member == "" }))
		beyond, never := r.Partitions[0], r.Partitions[1]
		require.Equal(t, []int64{5, 1, 0, 0}, []int64{beyond.Current, beyond.LogEnd, beyond.Lag, beyond.LagMS})
		require.Equal(t, []int64{-1, -1, 1, 1}, []int64{never.Current, never.CommittedMS, never.LogEnd, never.Lag})
		return
	}
}

// Above the bound of series there are sums, and still the times: of the partition with the most records that wait.
func TestGroupMetricsAboveTheBound(t *testing.T) {
	b := startBroker(t, testConfig(t.TempDir()))
	cl := client(t, b, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	adm := kadm.NewClient(cl)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := adm.CreateTopic(ctx, 3, 1, nil, "orders")
	require.NoError(t, err)
	for p, n := range []int{1, 4, 2} {
		for i := range n {
			at := time.Now().Add(-time.Duration(p+1) * time.Hour).Add(time.Duration(i) * time.Minute)
			require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "orders", Partition: int32(p), Value: []byte("v"), Timestamp: at}).FirstErr())
		}
	}
	o := kadm.Offsets{}
	for p := range int32(3) {
		o.Add(kadm.Offset{Topic: "orders", Partition: p, At: 0, LeaderEpoch: -1})
	}
	require.NoError(t, adm.CommitAllOffsets(ctx, "g", o))
	m := newGroupMetrics(b)
	m.series = 2
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(m))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		require.Len(t, f.Metric, 1, f.GetName())
		got[f.GetName()] = f.Metric[0].GetGauge().GetValue()
	}
	require.InDelta(t, 2*3600, got["kafka_consumergroup_lag_seconds_max"], 120)
	require.InDelta(t, (7*24-2)*3600, got["millrace_group_retention_left_seconds"], 300)
	require.Equal(t, 7., got["kafka_consumergroup_lag_sum"])
	require.NotContains(t, got, "kafka_consumergroup_lag")
}

// A scrape with 100,000 offsets of 1,000 groups, which wait at places of their own; report is what group diagnose asks of one group.
func BenchmarkGroups(b *testing.B) {
	const groups, partitions, records = 1000, 100, 1000
	broker := startBroker(b, testConfig(b.TempDir()))
	cl := client(b, broker, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(1000))
	adm := kadm.NewClient(cl)
	ctx := b.Context()
	_, err := adm.CreateTopic(ctx, partitions, 1, nil, "orders")
	require.NoError(b, err)
	for p := range int32(partitions) {
		for range records {
			cl.Produce(ctx, &kgo.Record{Topic: "orders", Partition: p, Value: make([]byte, 20)}, nil)
		}
	}
	require.NoError(b, cl.Flush(ctx))
	for g := range groups {
		o := kadm.Offsets{}
		for p := range int32(partitions) {
			o.Add(kadm.Offset{Topic: "orders", Partition: p, At: int64(g+int(p)*7) % records, LeaderEpoch: -1})
		}
		require.NoError(b, adm.CommitAllOffsets(ctx, "g"+strconv.Itoa(g), o))
	}
	m := newGroupMetrics(broker)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	b.Run("scrape", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := registry.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("report", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := (groupReports{broker}).GroupReport(ctx, "g7"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
