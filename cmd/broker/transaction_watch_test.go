package broker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// heldView is what operators see of the partitions that transactions hold back in some brokers: series and lines.
type heldView struct {
	t       *testing.T
	brokers []*Broker
	ahead   atomic.Int64 // of the clock by which ages are told
	watches []*transactionWatch
	lines   bytes.Buffer
}

// newHeldView gives brokers that do not run yet a clock that can be moved.
func newHeldView(t *testing.T, brokers ...*Broker) *heldView {
	v := &heldView{t: t, brokers: brokers}
	logger := slog.New(slog.NewJSONHandler(&v.lines, nil))
	for _, b := range brokers {
		b.now = func() time.Time { return time.Now().Add(time.Duration(v.ahead.Load())) }
		v.watches = append(v.watches, &transactionWatch{b: b, logger: logger})
	}
	return v
}

// series are "topic/partition transactionalid producerid" of the gauge, of one broker.
func (v *heldView) series(b *Broker) (all []string) {
	v.t.Helper()
	families, err := b.Registry().Gather()
	require.NoError(v.t, err)
	for _, f := range families {
		if f.GetName() != "millrace_transaction_held_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			require.GreaterOrEqual(v.t, m.GetGauge().GetValue(), heldAfter.Seconds())
			all = append(all, fmt.Sprintf("%s/%s %q %s", of["topic"], of["partition"], of["transactionalid"], of["producerid"]))
		}
	}
	return all
}

// allSeries are those of all brokers that run, in order.
func (v *heldView) allSeries() (all []string) {
	v.t.Helper()
	for _, b := range v.brokers {
		all = append(all, v.series(b)...)
	}
	slices.Sort(all)
	return all
}

// gauge sums a gauge over the brokers.
func (v *heldView) gauge(name string) (sum float64) {
	v.t.Helper()
	for _, b := range v.brokers {
		families, err := b.Registry().Gather()
		require.NoError(v.t, err)
		for _, f := range families {
			if f.GetName() == name {
				require.Len(v.t, f.GetMetric(), 1)
				sum += f.GetMetric()[0].GetGauge().GetValue()
			}
		}
	}
	return sum
}

// said has every broker look, and returns what it wrote: "topic/partition transactionalid producerid" in order.
func (v *heldView) said() (all []string) {
	v.t.Helper()
	v.lines.Reset()
	for _, w := range v.watches {
		w.look()
	}
	for line := range strings.Lines(v.lines.String()) {
		var of struct {
			Level, Msg, Topic, TransactionalID, Open string
			Partition                                int32
			ProducerID                               int64
		}
		require.NoError(v.t, json.Unmarshal([]byte(line), &of))
		require.Equal(v.t, "WARN", of.Level)
		open, err := time.ParseDuration(of.Open)
		require.NoError(v.t, err)
		require.GreaterOrEqual(v.t, open, watchAfter)
		if of.TransactionalID == "" {
			require.Contains(v.t, of.Msg, "millrace txn find-hanging")
		}
		all = append(all, fmt.Sprintf("%s/%d %q %d", of.Topic, of.Partition, of.TransactionalID, of.ProducerID))
	}
	slices.Sort(all)
	return all
}

// openedProducer has a transaction open.
type openedProducer struct {
	*kgo.Client
	id  string
	pid int64
}

// beginIn opens a transaction with a record in each of some partitions.
func beginIn(t *testing.T, b *Broker, id, topic string, partitions ...int32) *openedProducer {
	t.Helper()
	cl := client(t, b, kgo.TransactionalID(id), kgo.TransactionTimeout(15*time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, cl.BeginTransaction())
	var records []*kgo.Record
	for _, p := range partitions {
		records = append(records, &kgo.Record{Topic: topic, Partition: p, Value: []byte(id)})
	}
	require.NoError(t, cl.ProduceSync(t.Context(), records...).FirstErr())
	pid, _, err := cl.ProducerID(t.Context())
	require.NoError(t, err)
	return &openedProducer{cl, id, pid}
}

func (p *openedProducer) in(topic string, partition int32) string {
	return fmt.Sprintf("%s/%d %q %d", topic, partition, p.id, p.pid)
}

// appended is the outcome of an append.
type appended chan replication.AppendResult

func (a appended) Appended(_ int, r replication.AppendResult) { a <- r }

// leaderIn is the broker that leads a partition, and the partition there.
func leaderIn(t *testing.T, brokers []*Broker, topic string, partition int32) (leader *Broker, part *replication.Partition) {
	t.Helper()
	eventually(t, "a leader", func() bool {
		for _, b := range brokers {
			if p, err := b.Replicas().Partition(topic, partition); err == nil && p.IsLeader() {
				leader, part = b, p
				return true
			}
		}
		return false
	})
	return leader, part
}

// P12: the transactional id that holds a partition back is named by a series of the partition's leader from 10 s on, and in a
// line from 90 s on, once; of several it is the one whose end the readers wait for. One that nobody knows is named by its
// producer id. Both go when the transaction ends, and follow the partition to its next leader.
func TestHeldPartitionsAreNamed(t *testing.T) {
	g := prepareGroup(t, 3)
	v := newHeldView(t, g.brokers...)
	g.run()
	topic := "held"
	results := g.brokers[0].Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: topic, Partitions: 4, ReplicationFactor: 3}}, false)
	require.NoError(t, results[0].Err)

	first := beginIn(t, g.brokers[0], "first", topic, 0)
	second := beginIn(t, g.brokers[1], "second", topic, 0, 1)
	const stranger = 987654321
	_, part := leaderIn(t, g.brokers, topic, 2)
	batch := record.NewBuilder(record.CodecNone)
	batch.Transactional, batch.ProducerID, batch.ProducerEpoch, batch.BaseSequence = true, stranger, 0, 0
	batch.Add(time.Now().UnixMilli(), nil, []byte("hangs"), nil)
	outcome := make(appended, 1)
	part.Append(replication.AppendRequest{Records: batch.Build(), Acks: -1, Timeout: patience, CurrentLeaderEpoch: -1, Waiter: outcome})
	require.NoError(t, (<-outcome).Err)
	hangs := fmt.Sprintf("%s/2 %q %d", topic, "", stranger)

	require.Empty(t, v.allSeries())
	require.Empty(t, v.said())
	eventually(t, "both are counted, each once", func() bool { return v.gauge("millrace_transactions_open") == 2 })
	v.ahead.Add(int64(heldAfter + time.Second))
	series := []string{first.in(topic, 0), second.in(topic, 1), hangs}
	slices.Sort(series)
	require.Equal(t, series, v.allSeries())
	require.GreaterOrEqual(t, v.gauge("millrace_transaction_oldest_seconds"), heldAfter.Seconds())
	require.Empty(t, v.said(), "not worth a line yet")
	v.ahead.Add(int64(watchAfter + time.Second))
	require.Equal(t, series, v.said())
	require.Empty(t, v.said(), "once")

	// Who waited behind another one holds the partition now.
	require.NoError(t, first.EndTransaction(t.Context(), kgo.TryCommit))
	eventually(t, "second holds partition 0", func() bool { return slices.Contains(v.allSeries(), second.in(topic, 0)) })
	require.Equal(t, []string{second.in(topic, 0)}, v.said())
	require.NoError(t, second.EndTransaction(t.Context(), kgo.TryAbort))
	eventually(t, "only what hangs is left", func() bool { return slices.Equal([]string{hangs}, v.allSeries()) })
	eventually(t, "none is open", func() bool { return v.gauge("millrace_transactions_open") == 0 })
	require.Zero(t, v.gauge("millrace_transaction_oldest_seconds"))
	require.Empty(t, v.said())

	// The next leader has known it as long.
	old, _ := leaderIn(t, g.brokers, topic, 2)
	require.NoError(t, old.Close())
	at := slices.Index(g.brokers, old)
	v.brokers, v.watches = slices.Delete(slices.Clone(g.brokers), at, at+1), slices.Delete(v.watches, at, at+1)
	next, part := leaderIn(t, v.brokers, topic, 2)
	eventually(t, "the next leader has the series", func() bool { return slices.Equal([]string{hangs}, v.series(next)) })
	require.Equal(t, []string{hangs}, v.allSeries())
	require.Equal(t, []string{hangs}, v.said())
	part.AppendMarker(replication.MarkerRequest{ProducerID: stranger, CurrentLeaderEpoch: -1, Timeout: patience, Waiter: outcome})
	require.NoError(t, (<-outcome).Err)
	require.Empty(t, v.allSeries())
	require.Empty(t, v.said())
}

// However many partitions are held back, there are 100 series and 50 lines, of those that have been for the longest, and they
// do not change from one look to the next.
func TestHeldPartitionsAreBounded(t *testing.T) {
	b, err := New(testConfig(t.TempDir()))
	require.NoError(t, err)
	v := newHeldView(t, b)
	go b.Run(context.Background())
	t.Cleanup(func() { b.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, b.Ready(ctx))
	topic, partitions := "wide", int32(heldSeries+20)
	results := b.Store().CreateTopics(ctx, []metadata.NewTopic{{Name: topic, Partitions: partitions, ReplicationFactor: 1}}, false)
	require.NoError(t, results[0].Err)
	oldest := beginIn(t, b, "oldest", topic, partitions-1)
	var rest []int32
	for p := range partitions - 1 {
		rest = append(rest, p)
	}
	eventually(t, "it is older than the others", func() bool {
		return time.Now().UnixMilli() > b.Store().Image().Transaction("oldest").StartedAt
	})
	beginIn(t, b, "wide", topic, rest...)
	v.ahead.Add(int64(time.Hour))
	series := v.allSeries()
	require.Len(t, series, heldSeries)
	require.Contains(t, series, oldest.in(topic, partitions-1))
	require.Equal(t, series, v.allSeries())
	lines := v.said()
	require.Len(t, lines, watchMost)
	require.Contains(t, lines, oldest.in(topic, partitions-1))
	require.Empty(t, v.said())
}
