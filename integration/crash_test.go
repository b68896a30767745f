package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestKillNine ends the broker with SIGKILL again and again below idempotent
// producers that wait for acks=all. Every acknowledged record must be at its
// acknowledged offset, once, in send order (I1, I2, I7, L8).
func TestKillNine(t *testing.T) {
	for _, wal := range []string{"on", "off"} {
		t.Run("wal="+wal, func(t *testing.T) {
			t.Parallel()
			killNine(t, wal)
		})
	}
}

func killNine(t *testing.T, wal string) {
	const (
		partitions = 4
		kills      = 6
		perLife    = 1500 // acknowledgements that the killer waits for
	)
	b := startBroker(t, "millrace.wal="+wal, "log.segment.bytes=1048576")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	createTopic(t, b, "crash", partitions)

	var acked struct {
		sync.Mutex
		offsets map[string]int64 // value → offset
		count   int
	}
	acked.offsets = map[string]int64{}
	enough := make(chan struct{}, 1)
	stop := make(chan struct{})
	var producers sync.WaitGroup
	for p := range partitions {
		cl := b.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.RetryTimeout(patience),
			kgo.RequestRetries(1<<20), kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }))
		producers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					if err := cl.Flush(ctx); err != nil {
						t.Error(err)
					}
					return
				default:
				}
				value := fmt.Sprintf("%d-%d", p, i)
				cl.Produce(ctx, &kgo.Record{Topic: "crash", Partition: int32(p), Value: []byte(value)}, func(r *kgo.Record, err error) {
					if err != nil {
						t.Errorf("record %s: %v", value, err)
						return
					}
					acked.Lock()
					acked.offsets[value] = r.Offset
					acked.count++
					if acked.count%perLife == 0 {
						select {
						case enough <- struct{}{}:
						default:
						}
					}
					acked.Unlock()
				})
				if i%50 == 49 { // keep a few batches in flight, not millions
					if err := cl.Flush(ctx); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range kills {
		select {
		case <-enough:
		case <-ctx.Done():
			t.Fatal("the producers do not get on")
		}
		b.Kill()
		b.Start()
	}
	select {
	case <-enough:
	case <-ctx.Done():
		t.Fatal("the producers do not get on after the last start")
	}
	close(stop)
	producers.Wait()

	found := map[string]int64{}
	for p := range partitions {
		last := -1
		for _, r := range readAll(ctx, t, b, "crash", int32(p)) {
			value := string(r.Value)
			if at, dup := found[value]; dup {
				t.Fatalf("record %s stands at offsets %d and %d", value, at, r.Offset)
			}
			found[value] = r.Offset
			_, n, _ := bytes.Cut(r.Value, []byte("-"))
			i, err := strconv.Atoi(string(n))
			require.NoError(t, err)
			if i <= last {
				t.Fatalf("partition %d: record %d behind record %d", p, i, last)
			}
			last = i
		}
	}
	for value, offset := range acked.offsets {
		at, ok := found[value]
		if !ok {
			t.Fatalf("acknowledged record %s (offset %d) is lost", value, offset)
		}
		if at != offset {
			t.Fatalf("acknowledged record %s: acknowledged at offset %d, found at %d", value, offset, at)
		}
	}
	require.Equal(t, 0, b.Stop(), "exit code at SIGTERM")
}

func createTopic(t testing.TB, b *broker, topic string, partitions int32, configs ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cfg := map[string]*string{}
	for i := 0; i+1 < len(configs); i += 2 {
		cfg[configs[i]] = &configs[i+1]
	}
	resp, err := kadm.NewClient(b.client()).CreateTopic(ctx, partitions, -1, cfg, topic)
	require.NoError(t, err)
	require.NoError(t, resp.Err)
}

// readAll reads a partition from its start to the end that it has now.
func readAll(ctx context.Context, t testing.TB, b *broker, topic string, partition int32) []*kgo.Record {
	t.Helper()
	cl := b.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	require.NoError(t, err)
	end, ok := ends.Lookup(topic, partition)
	require.True(t, ok)
	require.NoError(t, end.Err)
	var out []*kgo.Record
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			out = append(out, r)
			next = r.Offset + 1
		})
	}
	return out
}

// TestMillionLines is the acceptance of the first release: a million lines go
// through kcat and come back the same, with a kill -9 between the halves.
func TestMillionLines(t *testing.T) {
	kcat, err := exec.LookPath("kcat")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("kcat is missing")
		}
		t.Skip("kcat is not installed: apt-get install kcat")
	}
	lines := 1_000_000
	if testing.Short() {
		lines = 100_000
	}
	b := startBroker(t)
	produce := func(from, to int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, kcat, "-P", "-b", b.Addr, "-t", "t", "-z", "zstd", "-X", "acks=all")
		var in bytes.Buffer
		for i := from; i <= to; i++ {
			fmt.Fprintln(&in, i)
		}
		cmd.Stdin = &in
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	produce(1, lines/2)
	b.Kill()
	b.Start()
	produce(lines/2+1, lines)

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, kcat, "-C", "-b", b.Addr, "-t", "t", "-o", "beginning", "-e", "-q")
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	if !bytes.Equal(want.Bytes(), got) {
		t.Fatalf("read %d bytes of %d, or in another order", len(got), want.Len())
	}
	// librdkafka leaves a batch uncompressed that would not get smaller, as the
	// first with its handful of lines.
	require.Greater(t, countsInLog(t, b.Data, "t", 0, codecOf)["zstd"], lines*9/10, "records in zstd batches")
}
