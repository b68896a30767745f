package broker

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/transport/console"
)

// ailing are groups of real clients on one broker, each with something wrong or nothing.
type ailing struct {
	t   *testing.T
	ctx context.Context
	b   *Broker
	adm *kadm.Client
	cl  *kgo.Client
}

func newAiling(t *testing.T, patience time.Duration) *ailing {
	c := testConfig(t.TempDir())
	c.groupPatience = patience
	c.Static = map[string]string{"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000"}
	a := &ailing{t: t, b: startBroker(t, c)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	a.ctx = ctx
	a.cl = client(t, a.b, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	a.adm = kadm.NewClient(a.cl)
	return a
}

// topic makes a topic of the name, with records of a size in each partition.
func (a *ailing) topic(name string, partitions int32, records, size int) {
	_, err := a.adm.CreateTopic(a.ctx, partitions, 1, nil, name)
	require.NoError(a.t, err)
	for p := range partitions {
		for range records {
			require.NoError(a.t, a.cl.ProduceSync(a.ctx, &kgo.Record{Topic: name, Partition: p, Value: make([]byte, size)}).FirstErr())
		}
	}
}

// member joins the group that is called as its topic, under a client id, and polls until the context ends; each gets what it polled.
func (a *ailing) member(ctx context.Context, group, id string, each func(*kgo.Client, []*kgo.Record), opts ...kgo.Opt) *kgo.Client {
	cl := client(a.t, a.b, append([]kgo.Opt{
		kgo.ClientID(id), kgo.ConsumerGroup(group), kgo.ConsumeTopics(group), kgo.HeartbeatInterval(100 * time.Millisecond), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitInterval(100 * time.Millisecond), kgo.Balancers(kgo.RangeBalancer()),
	}, opts...)...)
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			if records := cl.PollRecords(ctx, 10).Records(); each != nil && len(records) > 0 {
				each(cl, records)
			}
		}
	})
	a.t.Cleanup(func() { cl.Close(); work.Wait() })
	return cl
}

// found waits until a diagnosis has just the findings, each with a part of its cause; with none, until it is well.
func (a *ailing) found(group string, want map[string]string) {
	a.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		d := diagnosisOf(a.t, a.b, group)
		got := map[string]string{}
		for _, f := range d.Findings {
			got[f.Subject] += f.What + ": " + f.Why + ": " + f.Fix + "\n"
		}
		if slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			for subject, part := range want {
				require.Contains(a.t, got[subject], part)
			}
			return
		}
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			a.t.Fatalf("group %s: found %v, expected %v\n%+v", group, got, want, d.GroupReport)
		}
	}
}

// What keeps a group from reading is found with real clients that it happens to, not with reports that were made up: each has the
// finding that is for it and no other, and groups that nothing is wrong with have none all the while.
func TestDiagnosisOfReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("short: waits for several looks at what clients do")
	}
	a := newAiling(t, 4*time.Second)
	stop := a.ctx

	// Nothing is wrong: at rest, and busy.
	a.topic("rest", 2, 3, 100)
	a.member(stop, "rest", "rest-a", nil)
	a.topic("busy", 2, 3, 100)
	a.member(stop, "busy", "busy-a", nil)
	a.member(stop, "busy", "busy-b", nil)
	var producing sync.WaitGroup
	t.Cleanup(producing.Wait)
	producing.Go(func() {
		for stop.Err() == nil {
			for p := range int32(2) {
				if a.cl.ProduceSync(stop, &kgo.Record{Topic: "busy", Partition: p, Value: []byte("v")}).FirstErr() != nil {
					return
				}
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-stop.Done():
			}
		}
	})

	// A program that does not get past a record, and tries again.
	a.topic("poison", 1, 3, 100)
	a.member(stop, "poison", "poison-a", func(cl *kgo.Client, records []*kgo.Record) {
		cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{"poison": {0: {Epoch: -1, Offset: records[0].Offset}}})
	}, kgo.DisableAutoCommit())

	// A client that cannot receive what a batch has: the broker sends it whole all the same, as Kafka's does.
	a.topic("oversized", 1, 1, 400_000)
	a.member(stop, "oversized", "oversized-a", nil, kgo.BrokerMaxReadBytes(100_000), kgo.FetchMaxBytes(50_000), kgo.FetchMaxPartitionBytes(50_000))

	// A batch larger than the client asks for that it can receive is none.
	a.topic("large", 1, 2, 400_000)
	a.member(stop, "large", "large-a", nil, kgo.FetchMaxBytes(50_000), kgo.FetchMaxPartitionBytes(50_000))

	// A program that never commits.
	a.topic("uncommitted", 1, 3, 100)
	a.member(stop, "uncommitted", "uncommitted-a", nil, kgo.DisableAutoCommit())

	// A partition that is paused.
	a.topic("paused", 1, 20, 100)
	a.member(stop, "paused", "paused-a", func(cl *kgo.Client, records []*kgo.Record) {
		cl.PauseFetchPartitions(map[string][]int32{"paused": {0}})
	}, kgo.FetchMaxBytes(300), kgo.FetchMaxPartitionBytes(300))

	// A transaction that nobody ends.
	a.topic("held", 1, 3, 100)
	tx := client(t, a.b, kgo.TransactionalID("ledger-7"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, tx.BeginTransaction())
	require.NoError(t, tx.ProduceSync(a.ctx, &kgo.Record{Topic: "held", Value: []byte("v")}).FirstErr())
	a.member(stop, "held", "held-a", nil, kgo.FetchIsolationLevel(kgo.ReadCommitted()))

	// A batch whose bytes on disk are others than were written.
	a.topic("corrupt", 1, 5, 3000)
	flipByte(t, filepath.Join(a.b.cfg.DataDir), "corrupt-0", 2*3000)
	a.member(stop, "corrupt", "corrupt-a", nil)

	a.found("poison", map[string]string{"poison_batch": "client poison-a at /127.0.0.1 has asked for offset 0 again and again"})
	a.found("oversized", map[string]string{"oversized_batch": "raise max.partition.fetch.bytes"})
	a.found("uncommitted", map[string]string{"no_commits": "its reader, uncommitted-a"})
	a.found("paused", map[string]string{"stuck": "has paused the partition"})
	a.found("held", map[string]string{"open_transaction": `transaction "ledger-7"`})
	a.found("corrupt", map[string]string{"corrupt_log": "broker 1 has the only copy that counts"})
	for _, group := range []string{"rest", "busy", "large"} {
		a.found(group, nil)
	}
}

// flipByte changes a byte of the first segment of a partition.
func flipByte(t *testing.T, dir, partition string, at int64) {
	var name string
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if strings.Contains(path, partition) && strings.HasSuffix(path, ".log") {
			name = path
		}
		return err
	}))
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	one := make([]byte, 1)
	_, err = f.ReadAt(one, at)
	require.NoError(t, err)
	one[0] ^= 0x10
	_, err = f.WriteAt(one, at)
	require.NoError(t, err)
}

// The same of what members do to each other.
func TestDiagnosisOfMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("short: waits for several rebalances")
	}
	a := newAiling(t, 500*time.Millisecond)
	stop := a.ctx
	two := func(d *console.GroupReport) bool { return d.State == "Stable" && len(d.Members) == 2 }

	// A roll of two static members, which come back within their sessions, and a group that has just grown.
	a.topic("roll", 2, 3, 100)
	rolled, roll := context.WithCancel(stop)
	var old []*kgo.Client
	for _, id := range []string{"roll-a", "roll-b"} {
		old = append(old, a.member(rolled, "roll", id, nil, kgo.InstanceID(id)))
	}
	awaitReport(stop, t, a.b, "roll", two)
	roll()
	for i, id := range []string{"roll-a", "roll-b"} {
		old[i].Close()
		a.member(stop, "roll", id, nil, kgo.InstanceID(id))
	}

	// A static member that is gone.
	a.topic("gone", 2, 3, 100)
	a.member(stop, "gone", "gone-a", nil, kgo.InstanceID("pay-1"), kgo.SessionTimeout(time.Minute))
	ended, end := context.WithCancel(stop)
	lost := a.member(ended, "gone", "gone-b", nil, kgo.InstanceID("pay-2"), kgo.SessionTimeout(time.Minute))
	awaitReport(stop, t, a.b, "gone", two)
	end()
	lost.Close() // static members do not leave

	// Two lists of assignors.
	a.topic("mixed", 2, 3, 100)
	a.member(stop, "mixed", "mixed-a", nil)
	a.member(stop, "mixed", "mixed-b", nil, kgo.Balancers(kgo.CooperativeStickyBalancer(), kgo.RangeBalancer()))

	// A member that restarts again and again.
	a.topic("loop", 2, 3, 100)
	a.member(stop, "loop", "loop-a", nil)
	for range 12 {
		once := client(t, a.b, kgo.ClientID("loop-b"), kgo.ConsumerGroup("loop"), kgo.ConsumeTopics("loop"), kgo.HeartbeatInterval(50*time.Millisecond), kgo.Balancers(kgo.RangeBalancer()))
		go once.PollFetches(stop)
		awaitReport(stop, t, a.b, "loop", func(r *console.GroupReport) bool {
			return slices.ContainsFunc(r.Members, func(m console.GroupMember) bool { return m.ClientID == "loop-b" })
		})
		once.Close()
	}

	// A member whose program hangs while the others rebalance.
	a.topic("hangs", 2, 3, 100)
	hanging := make(chan struct{})
	defer close(hanging)
	a.member(stop, "hangs", "hangs-a", nil, kgo.RebalanceTimeout(500*time.Millisecond), kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) {
		select {
		case <-hanging:
		case <-stop.Done():
		}
	}))
	awaitReport(stop, t, a.b, "hangs", func(r *console.GroupReport) bool { return r.State == "Stable" })
	a.member(stop, "hangs", "hangs-b", nil, kgo.RebalanceTimeout(500*time.Millisecond))

	a.found("gone", map[string]string{"static_member_gone": "static member pay-2, "})
	a.found("mixed", map[string]string{"mixed_assignors": "cooperative-sticky,range"})
	a.found("loop", map[string]string{"rebalance_loop": "client loop-b at /127.0.0.1 came 12 times and went 12 times"})
	a.found("hangs", map[string]string{"poll_timeout": "client hangs-a"})
	a.found("roll", nil)
}
