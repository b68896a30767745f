package broker

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/transport/console"
)

// awaitReport asks for a group's report until it is as it should be.
func awaitReport(ctx context.Context, t *testing.T, b *Broker, group string, is func(*console.GroupReport) bool) console.GroupReport {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := groupReports{b}.GroupReport(ctx, group)
		if err == nil && is(&r) {
			return r
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the report never was as it should be: %+v, %v", r, err)
		}
	}
}

// What real clients do shows in the report that a diagnosis judges by: who comes and goes, from where, and who is refused and
// what it offers; and of members of both protocols what they offer, want and are to read.
func TestGroupReportTellsOfMembers(t *testing.T) {
	c := testConfig(t.TempDir())
	c.Static = map[string]string{"group.initial.rebalance.delay.ms": "0"}
	b := startBroker(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := kadm.NewClient(client(t, b)).CreateTopic(ctx, 2, 1, nil, "orders")
	require.NoError(t, err)
	//lint:ignore SA1029 it is the key that the library looks for
	modern := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	join := func(group, id string, opts ...kgo.Opt) *kgo.Client {
		cl := client(t, b, append(opts, kgo.ClientID(id), kgo.HeartbeatInterval(50*time.Millisecond), kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"))...)
		polling, stop := context.WithCancel(ctx)
		t.Cleanup(stop)
		go func() {
			for polling.Err() == nil {
				cl.PollFetches(polling)
			}
		}()
		return cl
	}
	stable := func(r *console.GroupReport) bool {
		return r.State == "Stable" && len(r.Members) == 1 && r.Members[0].Partitions == 2 && len(r.Partitions) == 2
	}

	join("classic", "first", kgo.Balancers(kgo.RangeBalancer()))
	r := awaitReport(ctx, t, b, "classic", stable)
	require.Equal(t, []string{"range"}, r.Members[0].Offered)
	require.Equal(t, r.Members[0].ID, r.Partitions[0].Member)
	join("classic", "second", kgo.Balancers(kgo.CooperativeStickyBalancer()))
	r = awaitReport(ctx, t, b, "classic", func(r *console.GroupReport) bool { return len(r.Refused) > 0 })
	require.Equal(t, [3]any{"second", console.RefusedProtocol, "/127.0.0.1"}, [3]any{r.Refused[0].ClientID, r.Refused[0].Reason, r.Refused[0].Host})
	require.Equal(t, []string{"cooperative-sticky"}, r.Refused[0].Offered)

	other := join("classic", "third", kgo.Balancers(kgo.RangeBalancer()))
	awaitReport(ctx, t, b, "classic", func(r *console.GroupReport) bool { return len(r.Members) == 2 })
	other.Close()
	r = awaitReport(ctx, t, b, "classic", func(r *console.GroupReport) bool { return len(r.Left) == 1 && stable(r) })
	require.Equal(t, [2]string{"third", "/127.0.0.1"}, [2]string{r.Left[0].ClientID, r.Left[0].Host})
	require.Equal(t, [3]any{"third", 1, 1}, [3]any{r.Churn[0].ClientID, r.Churn[0].Came, r.Churn[0].Went})
	require.Equal(t, []console.GroupChurnReasons{{Reason: "member-left", Times: 1}}, r.Churn[0].Reasons)
	require.GreaterOrEqual(t, r.Rebalances, 3)

	join("consumers", "new", kgo.WithContext(modern))
	r = awaitReport(ctx, t, b, "consumers", stable)
	require.Equal(t, "consumer", r.Type)
	require.Equal(t, []string{"orders"}, r.Members[0].Topics)
	require.Equal(t, r.Members[0].ID, r.Partitions[1].Member)
}

// A member that reads and commits nothing is seen by where it asks for records, whichever of three brokers leads the partition; and
// of what waits for long the batch is looked at. Without members nobody is asked for.
func TestGroupReportTellsOfReaders(t *testing.T) {
	brokers := newGroup(t, 3).brokers
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin := client(t, brokers[0], kgo.RecordPartitioner(kgo.ManualPartitioner()))
	_, err := kadm.NewClient(admin).CreateTopic(ctx, 3, 1, nil, "orders")
	require.NoError(t, err)
	for p := range int32(3) {
		require.NoError(t, admin.ProduceSync(ctx, &kgo.Record{Topic: "orders", Partition: p, Value: []byte("v"), Timestamp: time.Now().Add(-time.Hour)}).FirstErr())
	}
	//lint:ignore SA1029 it is the key that the library looks for
	modern := context.WithValue(context.Background(), "opt_in_kafka_next_gen_balancer_beta", true)
	cl := client(t, brokers[0], kgo.WithContext(modern), kgo.ClientID("reader"), kgo.ConsumerGroup("billing"), kgo.ConsumeTopics("orders"), kgo.DisableAutoCommit(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	polling, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		for polling.Err() == nil {
			cl.PollFetches(polling)
		}
	}()
	for _, b := range brokers {
		r := awaitReport(ctx, t, b, "billing", func(r *console.GroupReport) bool {
			return len(r.Partitions) == 3 && !slices.ContainsFunc(r.Partitions, func(p console.GroupPartition) bool { return len(p.Readers) == 0 || p.Readers[0].Offset != 1 })
		})
		for _, p := range r.Partitions {
			require.Equal(t, [2]string{"reader", "/127.0.0.1"}, [2]string{p.Readers[0].ClientID, p.Readers[0].Host})
			require.Positive(t, p.BatchBytes)
			require.Empty(t, p.BatchTrouble)
			require.Positive(t, p.Readers[0].MaxBytes)
		}
	}
}

// How long retention leaves alone what a group without members has not read: by time, by size, with records dated in the past and in
// the future, and where it leaves it alone for ever; and what was deleted before it was read is a finding.
func TestGroupReportTellsOfRetention(t *testing.T) {
	b := startBroker(t, testConfig(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cl := client(t, b, kgo.ProducerBatchCompression(kgo.NoCompression()))
	adm := kadm.NewClient(cl)
	day, none, one := "86400000", "-1", "1"
	segments := "1048576"
	for _, c := range []struct {
		topic   string
		configs map[string]*string
		dated   time.Duration
		left    time.Duration // -1: for ever
		by      string
		finding string
	}{
		{"by-time", map[string]*string{"retention.ms": &day}, -23 * time.Hour, time.Hour, console.RetentionTime, "retention_near"},
		{"fresh", map[string]*string{"retention.ms": &day}, 0, 24 * time.Hour, console.RetentionTime, ""},
		{"long-past", map[string]*string{"retention.ms": &day}, -30 * 24 * time.Hour, 0, console.RetentionTime, "retention_near"},
		{"future", map[string]*string{"retention.ms": &day}, 50 * time.Minute, 24 * time.Hour, console.RetentionTime, ""},
		{"by-size", map[string]*string{"retention.ms": &day, "retention.bytes": &one, "segment.bytes": &segments}, -time.Hour, 0, console.RetentionSize, "retention_near"},
		{"for-ever", map[string]*string{"retention.ms": &none}, -30 * 24 * time.Hour, -1, "", ""},
		{"trimmed", map[string]*string{"retention.ms": &none}, -time.Hour, -1, "", "overtaken"},
	} {
		t.Run(c.topic, func(t *testing.T) {
			_, err := adm.CreateTopic(ctx, 1, 1, c.configs, c.topic)
			require.NoError(t, err)
			for range 5 {
				require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: c.topic, Value: make([]byte, 600_000), Timestamp: time.Now().Add(c.dated)}).FirstErr())
			}
			o := kadm.Offsets{}
			o.Add(kadm.Offset{Topic: c.topic, At: 1, LeaderEpoch: -1})
			require.NoError(t, adm.CommitAllOffsets(ctx, c.topic, o))
			if c.finding == "overtaken" {
				o := kadm.Offsets{}
				o.Add(kadm.Offset{Topic: c.topic, At: 3})
				_, err := adm.DeleteRecords(ctx, o)
				require.NoError(t, err)
			}
			d := diagnosisOf(t, b, c.topic)
			p := d.Partitions[0]
			require.Equal(t, c.by, p.RetentionBy)
			if c.left < 0 {
				require.Equal(t, int64(-1), p.RetentionMS)
			} else {
				require.InDelta(t, c.left.Seconds(), float64(p.RetentionMS)/1000, 60)
			}
			var subjects []string
			for _, f := range d.Findings {
				if f.Subject != "no_members" {
					subjects = append(subjects, f.Subject)
				}
			}
			if c.finding == "" {
				require.Empty(t, subjects)
			} else {
				require.Equal(t, []string{c.finding}, subjects)
			}
		})
	}
}

// diagnosisOf asks the admin API of a broker.
func diagnosisOf(t *testing.T, b *Broker, group string) (d console.GroupDiagnosis) {
	t.Helper()
	code, text := get(t, b, "/v1/groups/"+group+"/diagnosis")
	require.Equal(t, http.StatusOK, code, text)
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	return d
}
