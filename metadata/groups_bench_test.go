package metadata

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// benchCluster is three stores on disk, with an in-memory network, that forward to each other.
type benchCluster struct {
	*bubbleCluster
	topic TopicID
}

type benchForwarder struct{ c **bubbleCluster }

func (f benchForwarder) Forward(ctx context.Context, controller BrokerID, _, method string, body []byte) ([]byte, error) {
	return (*f.c).stores[controller-1].ServeForward(ctx, method, body)
}

func newBenchCluster(b *testing.B) *benchCluster {
	c := &benchCluster{}
	c.bubbleCluster = newBubbleCluster(b, func(_ int, cfg *Config) { cfg.Forwarder = benchForwarder{&c.bubbleCluster} })
	for i, s := range c.stores {
		r := testRegistration(BrokerID(i+1), 1)
		r.PeerAddress = "x"
		epoch, err := s.RegisterBroker(b.Context(), r)
		require.NoError(b, err)
		for fenced := true; fenced; {
			reply, err := s.Heartbeat(b.Context(), Heartbeat{Broker: r.ID, Epoch: epoch, Applied: s.Image().Version()})
			require.NoError(b, err)
			fenced = reply.Fenced
		}
	}
	lead := c.controller()
	c.topic = createTopics(b, lead, NewTopic{Name: "orders", Partitions: 1000, ReplicationFactor: 3})[0].ID
	for _, s := range c.stores {
		s.waitVersion(b.Context(), lead.Image().Version())
	}
	b.Cleanup(c.close)
	return c
}

// coordinator returns the store that coordinates a group.
func (c *benchCluster) coordinator(group string) *Store {
	id, _ := c.stores[0].Image().Coordinator(GroupCoordinator, group)
	return c.stores[id-1]
}

// load commits from clients that each wait for their answer, until stop, and returns the latencies of all.
func (c *benchCluster) load(b *testing.B, clients int, more func() bool) (latencies []time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			group := fmt.Sprintf("load-%d", client)
			s, done := c.coordinator(group), make(chan error, 1)
			var own []time.Duration
			for i := 0; more(); i++ {
				begun := time.Now()
				s.CommitOffsets(OffsetCommit{Group: group, Generation: -1, Time: 1, Offsets: []OffsetEntry{{c.topic, int32(client+i) % 1000, int64(i), 5, ""}}},
					func(_ []error, err error) { done <- err })
				if err := <-done; err != nil {
					b.Error(err)
					return
				}
				own = append(own, time.Since(begun))
			}
			mu.Lock()
			latencies = append(latencies, own...)
			mu.Unlock()
		})
	}
	wg.Wait()
	slices.Sort(latencies)
	return latencies
}

func percentile(sorted []time.Duration, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Microseconds()) / 1000
}

// Offset commits of one partition each, by clients that wait for their answer, through three stores on one machine; the
// groups are spread over the three coordinators.
func BenchmarkCommitOffsets(b *testing.B) {
	for _, clients := range []int{1, 10, 100, 1000, 5000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			c := newBenchCluster(b)
			lead := c.controller()
			term, before := lead.raft.CurrentTerm(), lead.raft.LastIndex()
			var n atomic.Int64
			cpu := processCPU()
			b.ResetTimer()
			latencies := c.load(b, clients, func() bool { return n.Add(1) <= int64(b.N) })
			b.StopTimer()
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(b.N)/seconds, "commits/s")
			b.ReportMetric(float64(b.N)/float64(lead.raft.LastIndex()-before), "commits/entry")
			b.ReportMetric(percentile(latencies, 0.5), "p50-ms")
			b.ReportMetric(percentile(latencies, 0.99), "p99-ms")
			b.ReportMetric(float64(processCPU()-cpu)/float64(b.Elapsed()), "cores")
			b.ReportMetric(float64(lead.raft.CurrentTerm()-term), "elections")
		})
	}
}

// fillOffsets makes a state with groups × partitions offsets.
func fillOffsets(st *state, topic *Topic, groups, partitions int) *state {
	d := newDraft(st)
	d.st.featureLevel = GroupsFeatureLevel
	for g := range groups {
		name := fmt.Sprintf("consumer-group-%06d", g)
		d.createGroup(&Group{Name: name, Type: ClassicGroup})
		of := d.ownOffsets(name)
		for p := range partitions {
			// As commits come: of some partition, not in their order.
			d.putOffset(of, TopicIDPartition{topic.ID, int32((p*7919 + g) % partitions)}, CommittedOffset{Offset: int64(g) << 20, LeaderEpoch: 5, CommittedAt: 1_780_000_000_000 + int64(p)})
		}
	}
	return d.publish()
}

var offsetShapes = []struct{ groups, partitions int }{{10_000, 100}, {1000, 1000}}

// A million committed offsets: memory, snapshot, restore, and memory after it.
func BenchmarkMillionOffsets(b *testing.B) {
	f := bigFSM(b, 1, 1000, 3)
	topic := f.st.topic("topic-00000000")
	for _, shape := range offsetShapes {
		b.Run(fmt.Sprintf("%dx%d", shape.groups, shape.partitions), func(b *testing.B) {
			for b.Loop() {
				n := float64(shape.groups * shape.partitions)
				before := heapBytes()
				st := fillOffsets(f.st, topic, shape.groups, shape.partitions)
				require.Equal(b, int(n), st.offsetCount)
				b.ReportMetric(float64(heapBytes()-before)/n, "bytes/offset")
				begun := time.Now()
				var encoded bytes.Buffer
				require.NoError(b, writeSnapshot(&encoded, st, 9))
				b.ReportMetric(float64(time.Since(begun).Milliseconds()), "snapshot-ms")
				b.ReportMetric(float64(encoded.Len())/n, "snapshot-bytes/offset")
				require.NoError(b, writeSnapshot(io.Discard, st, 9))
				before = heapBytes()
				begun = time.Now()
				back, _, err := readSnapshot(&encoded)
				require.NoError(b, err)
				b.ReportMetric(float64(time.Since(begun).Milliseconds()), "restore-ms")
				b.ReportMetric(float64(heapBytes()-before)/n, "bytes/offset-restored")
				runtime.KeepAlive(back)
				runtime.KeepAlive(st)
			}
		})
	}
}

// The longest time that a commit waited while all three stores, with a million offsets each, take snapshots. The snapshots
// begin one after the other, as their timers have them.
func BenchmarkCommitDuringSnapshot(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		c := newBenchCluster(b)
		for group := range 1000 {
			name := fmt.Sprintf("filled-%d", group)
			done := make(chan error, 1)
			c.coordinator(name).CommitOffsets(OffsetCommit{Group: name, Generation: -1, Time: 1, Offsets: entriesFor(c.topic, 1000, 1<<40)}, func(_ []error, err error) { done <- err })
			require.NoError(b, <-done)
		}
		require.Equal(b, 1_000_000, c.controller().Image().OffsetCount())
		lead := c.controller()
		term := lead.raft.CurrentTerm()
		quiet := time.Now().Add(3 * time.Second)
		calm := c.load(b, 100, func() bool { return time.Now().Before(quiet) })
		var over atomic.Bool
		var took []time.Duration
		go func() {
			for _, s := range c.stores {
				begun := time.Now()
				if err := s.raft.Snapshot().Error(); err != nil && err != raft.ErrNothingNewToSnapshot {
					b.Error(err)
				}
				took = append(took, time.Since(begun))
			}
			over.Store(true)
		}()
		begun := time.Now()
		b.StartTimer()
		busy := c.load(b, 100, func() bool { return !over.Load() })
		b.StopTimer()
		seconds := time.Since(begun).Seconds()
		b.ReportMetric(float64(len(calm))/3, "calm-commits/s")
		b.ReportMetric(float64(len(busy))/seconds, "busy-commits/s")
		b.ReportMetric(percentile(calm, 0.99), "calm-p99-ms")
		b.ReportMetric(percentile(calm, 1), "calm-max-ms")
		b.ReportMetric(percentile(busy, 0.99), "busy-p99-ms")
		b.ReportMetric(percentile(busy, 1), "busy-max-ms")
		b.ReportMetric(float64(slices.Max(took).Milliseconds()), "snapshot-ms")
		b.ReportMetric(float64(lead.raft.CurrentTerm()-term), "elections")
		b.StartTimer()
	}
}

// A broker that coordinates a third of 10 000 groups with 3 members each is fenced: what the walk costs in Apply.
func BenchmarkFenceCoordinator(b *testing.B) {
	f := bigFSM(b, 1, 10, 3)
	f.published = func(*state, uint64) {}
	d := newDraft(f.st)
	d.st.featureLevel = GroupsFeatureLevel
	for g := range 10_000 {
		group := &Group{Name: fmt.Sprintf("consumer-group-%06d", g), Type: ClassicGroup, State: GroupStable, Generation: 1}
		for m := range 3 {
			group.Members = append(group.Members, &GroupMember{ID: fmt.Sprintf("member-%d", m)})
		}
		d.createGroup(group)
	}
	before := d.publish()
	c := &alterBroker{broker: 1, epoch: before.broker(1).Epoch, fenced: 1}
	var out failover
	b.ReportAllocs()
	for b.Loop() {
		f.st = before
		v, err := f.do(c)
		if err != nil {
			b.Fatal(err)
		}
		out = v.(failover)
	}
	b.ReportMetric(float64(out.Interrupted), "groups")
}

// One batch of 100 commits, of a group with 100 members each: what Apply takes per commit.
func BenchmarkApplyCommits(b *testing.B) {
	f := bigFSM(b, 1, 1000, 3)
	f.published = func(*state, uint64) {}
	f.st = fillOffsets(f.st, f.st.topic("topic-00000000"), 10_000, 100)
	id := f.st.topic("topic-00000000").ID
	f.batches = 1
	by, epoch := f.by("consumer-group-000000")
	c := &commitOffsets{broker: by, epoch: epoch, coordinatorEpoch: f.st.coordinatorEpoch}
	for g := 0; len(c.commits) < 100; g += 7 {
		name := fmt.Sprintf("consumer-group-%06d", g)
		if at, _ := f.by(name); at == by {
			c.commits = append(c.commits, OffsetCommit{Group: name, Generation: -1, Time: 5, Offsets: []OffsetEntry{{id, int32(g % 100), 77, 5, ""}}})
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		c.sequence++
		v, err := f.do(c)
		if err != nil || v.([]commitOutcome)[99].err != nil {
			b.Fatal(err, v)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/100, "µs/commit")
}

// memberCommits is a state with groups of three members that read a topic of twelve partitions, each with a committed offset,
// and batches of commits as one coordinator sends them: of one partition each, of as many groups as it has.
func memberCommits(f *testFSM, groups, perBatch int) (batches []*commitOffsets) {
	topic := f.st.topic("topic-00000000")
	f.st = fillOffsets(f.st, topic, groups, len(topic.Partitions))
	d := newDraft(f.st)
	for g := range groups {
		name := fmt.Sprintf("consumer-group-%06d", g)
		group := &Group{Name: name, Type: ClassicGroup, State: GroupStable, Generation: 3}
		for m := range 3 {
			group.Members = append(group.Members, &GroupMember{ID: fmt.Sprintf("consumer-%d-9b1deb4d-3b7d-4bad-9bdd-2b0d7b3d%04d", m, g)})
		}
		d.putGroup(group)
	}
	f.st = d.publish()
	for i := range 12 {
		c := &commitOffsets{coordinatorEpoch: f.st.coordinatorEpoch}
		c.broker, c.epoch = f.by(fmt.Sprintf("consumer-group-%06d", i%3))
		for g := i * groups / 12; len(c.commits) < perBatch; g++ {
			name := fmt.Sprintf("consumer-group-%06d", g%groups)
			if by, _ := f.by(name); by != c.broker {
				continue
			}
			member := f.st.group(name).Members[(g+i)%3].ID
			c.commits = append(c.commits, OffsetCommit{
				Group: name, Member: member, Generation: 3, Time: 1_780_000_000_000, Offsets: []OffsetEntry{{topic.ID, int32(g+i) % 12, 77, 5, ""}},
			})
		}
		batches = append(batches, c)
	}
	return batches
}

// A batch of commits of members, as three brokers with a thousand members send it: what reading it and Apply take per commit.
func BenchmarkApplyMemberCommits(b *testing.B) {
	f := bigFSM(b, 1, 12, 3)
	f.published = func(*state, uint64) {}
	const perBatch = 45
	batches := memberCommits(f, 334, perBatch)
	var entries []*raft.Log
	for range 100 {
		for _, c := range batches {
			f.batches++
			c.sequence = f.batches
			entries = append(entries, f.entry(c))
		}
	}
	start := f.st
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%len(entries) == 0 {
			f.st = start // the numbers of batches begin again
		}
		results := f.Apply(entries[i%len(entries)]).([]result)
		if out, ok := results[0].value.([]commitOutcome); !ok || out[perBatch-1].err != nil {
			b.Fatal(results)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/perBatch, "ns/commit")
}

// processCPU is the CPU time that this process has used, in steps of 10 ms; 0 where the system does not tell.
func processCPU() time.Duration {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := bytes.Fields(rest)
	var ticks int
	for _, field := range fields[11:13] { // utime and stime
		n, _ := strconv.Atoi(string(field))
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
