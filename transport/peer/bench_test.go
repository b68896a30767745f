package peer

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

func benchPeers(b *testing.B) (*testPeer, *testPeer) {
	one, two := start(b, identity("c", 1)), start(b, identity("c", 2))
	two.Handle("now", func(_ context.Context, _ From, body []byte) ([]byte, error) { return body, nil })
	return one, two
}

// A call and its answer, one at a time and 50 at once.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 50} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			one, two := benchPeers(b)
			ctx := b.Context()
			body := make([]byte, 200)
			b.ReportAllocs()
			var group sync.WaitGroup
			for i := range callers {
				group.Go(func() {
					for n := i; n < b.N; n += callers {
						if _, err := one.Call(ctx, two.Advertised(), "now", body); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			group.Wait()
		})
	}
}

// position asks for a partition from an offset on.
func position(topic *metadata.Topic, partition int32, offset int64, last int32) replication.FetchPosition {
	return replication.FetchPosition{TopicID: topic.ID, Partition: partition, LeaderEpoch: topic.Partitions[partition].LeaderEpoch, Offset: offset, LastEpoch: last, MaxBytes: 1 << 20}
}

// detached is a topic that broker 1 leads and whose other replica, broker 2, is played by the benchmark.
func detached(b *testing.B, partitions int) (c *testCluster, topic *metadata.Topic, f *fetcher) {
	c = startCluster(b)
	require.NoError(b, c.brokers[2].replicas.Close())
	nt := metadata.NewTopic{Name: "t", Partitions: -1, ReplicationFactor: -1}
	for range partitions {
		nt.Assignments = append(nt.Assignments, []metadata.BrokerID{1, 2})
	}
	ctx := deadline(b)
	require.NoError(b, c.store.CreateTopics(ctx, []metadata.NewTopic{nt}, false)[0].Err)
	require.NoError(b, c.brokers[1].replicas.Await(ctx, c.store.Image().Version()))
	f = newFetcher(c.brokers[2].Peers, 1)
	b.Cleanup(f.Close)
	return c, c.store.Image().Topic("t"), f
}

// cpu is the time this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Full answers of 1 MiB batches, both ends in this process: CPU per GiB of leader and follower together, without the
// follower's append.
func BenchmarkFetch(b *testing.B) {
	const partitions, batch = 10, 1 << 20
	c, topic, f := detached(b, partitions)
	for i := range int32(partitions) {
		done := make(appended, 1)
		c.brokers[1].partition(b, "t", i).Append(replication.AppendRequest{Records: batchOf(batch - 200), Acks: 1, Timeout: testDeadline, CurrentLeaderEpoch: -1, Waiter: done})
		require.NoError(b, (<-done).Err)
	}
	req := &replication.FollowerFetch{BrokerEpoch: c.brokers[2].epoch, MaxWait: time.Second, MinBytes: 1, MaxBytes: partitions * batch}
	ctx := b.Context()
	b.SetBytes(partitions * batch)
	b.ReportAllocs()
	began := cpu()
	for b.Loop() {
		req.Changed = req.Changed[:0]
		for i := range int32(partitions) {
			req.Changed = append(req.Changed, position(topic, i, 0, -1))
		}
		f.session.ID, f.session.Epoch = 0, 0 // each a new one, which asks for everything again
		a, err := f.Fetch(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for i := range a.Partitions {
			n += len(a.Partitions[i].Records)
		}
		if n < partitions*(batch-400) {
			b.Fatal(n, a.Partitions)
		}
		a.Release()
	}
	b.ReportMetric(float64(cpu()-began)/float64(b.N)/(partitions*batch)*(1<<30)/1e9, "cpu-s/GiB")
}

// One record on one of many partitions of a session: what the round costs must not depend on how many there are.
func BenchmarkFetchOneOf(b *testing.B) {
	for _, partitions := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			c, topic, f := detached(b, partitions)
			req := &replication.FollowerFetch{BrokerEpoch: c.brokers[2].epoch, MinBytes: 1, MaxBytes: 10 << 20}
			for i := range int32(partitions) {
				req.Changed = append(req.Changed, position(topic, i, 0, -1))
			}
			ctx := b.Context()
			a, err := f.Fetch(ctx, req)
			require.NoError(b, err)
			a.Release()
			p, done := c.brokers[1].partition(b, "t", 0), make(appended, 1)
			source := batchOf(100)
			records := make(record.Batch, len(source))
			req.MaxWait = time.Minute
			next := int64(0)
			b.ReportAllocs()
			for b.Loop() {
				copy(records, source)
				p.Append(replication.AppendRequest{Records: records, Acks: 1, Timeout: testDeadline, CurrentLeaderEpoch: -1, Waiter: done})
				if r := <-done; r.Err != nil {
					b.Fatal(r.Err)
				}
				for got := false; !got; {
					req.Changed = append(req.Changed[:0], position(topic, 0, next, lastEpoch(topic, next)))
					a, err := f.Fetch(ctx, req)
					if err != nil {
						b.Fatal(err)
					}
					for i := range a.Partitions {
						if q := &a.Partitions[i]; q.Err != nil {
							b.Fatal(q.Err)
						} else if len(q.Records) > 0 {
							got = true
						}
					}
					a.Release()
				}
				next++
			}
		})
	}
}

func lastEpoch(topic *metadata.Topic, next int64) int32 {
	if next == 0 {
		return -1
	}
	return topic.Partitions[0].LeaderEpoch
}

// A round in which nothing happened, on a session of 10,000 partitions: both ends.
func BenchmarkFetchIdle(b *testing.B) {
	const partitions = 10_000
	c, topic, f := detached(b, partitions)
	req := &replication.FollowerFetch{BrokerEpoch: c.brokers[2].epoch, MinBytes: 1, MaxBytes: 10 << 20}
	for i := range int32(partitions) {
		req.Changed = append(req.Changed, position(topic, i, 0, -1))
	}
	ctx := b.Context()
	for range 3 {
		a, err := f.Fetch(ctx, req)
		require.NoError(b, err)
		a.Release()
		req.Changed = nil
	}
	b.ReportAllocs()
	for b.Loop() {
		a, err := f.Fetch(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		a.Release()
	}
}

var _ log.Buffer = (*answerFrame)(nil)
