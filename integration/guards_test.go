package integration

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The guards count what the broker asks of the kernel. Counts do not depend on
// the speed of the machine, so they may fail a build where a time may not.

// TestGuardSystemCallsPerMiB bounds the system calls of the produce and the
// fetch path with 1 MiB batches: the unit of a call is 64 to 256 KiB.
func TestGuardSystemCallsPerMiB(t *testing.T) {
	const mib = 64
	b := startBroker(t, "millrace.flush.ack=false", "message.max.bytes=4194304")
	createTopic(t, b, "calls", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cl := b.client(kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1<<20+4096), kgo.MaxBufferedRecords(1<<20), kgo.DisableIdempotentWrite(), kgo.MaxProduceRequestsInflightPerBroker(1))
	value := bytes.Repeat([]byte{'v'}, 1000)
	produce := func(mibs int) {
		for range mibs {
			records := make([]*kgo.Record, 1024)
			for i := range records {
				records[i] = &kgo.Record{Topic: "calls", Value: value}
			}
			require.NoError(t, cl.ProduceSync(ctx, records...).FirstErr())
		}
	}
	produce(2)

	calls := traceCalls(t, b, func() { produce(mib) })
	perMiB := func(names ...string) float64 {
		n := 0
		for _, name := range names {
			n += calls[name]
		}
		return float64(n) / mib
	}
	t.Logf("produce, calls per MiB: %.1f reads, %.1f writes to files, %.1f writes to sockets, all: %v", perMiB("read", "recvfrom", "readv"), perMiB("pwrite64", "pwritev"), perMiB("write", "writev", "sendto"), calls)
	require.LessOrEqual(t, perMiB("pwrite64", "pwritev", "pwritev2"), 8.0, "writes of the segment per MiB: pieces of 256 KiB, and the index")
	require.LessOrEqual(t, perMiB("write", "writev", "sendto"), 4.0, "answers per MiB")
	require.Less(t, perMiB("fsync", "fdatasync"), 0.5, "flush.ack=false does not sync on the way")

	consumer := b.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"calls": {0: kgo.NewOffset().AtStart()}}), kgo.FetchMaxPartitionBytes(8<<20))
	calls = traceCalls(t, b, func() {
		for n := 0; n < mib*1024; {
			fetches := consumer.PollFetches(ctx)
			require.NoError(t, fetches.Err())
			n += fetches.NumRecords()
		}
	})
	t.Logf("fetch, calls per MiB: %.1f reads of files, %.1f writes to sockets, all: %v", perMiB("pread64", "preadv"), perMiB("write", "writev", "sendto", "sendfile"), calls)
	require.LessOrEqual(t, perMiB("pread64", "preadv", "sendfile"), 8.0, "reads of the segment per MiB: chunks of 256 KiB, and the header scan")
	require.LessOrEqual(t, perMiB("write", "writev", "sendto", "sendfile"), 16.0, "writes per MiB: chunks of 256 KiB, cut by a full socket")
}

// TestGuardSyncsPerAck bounds the syncs that 100 producers on 100 partitions
// cost per acknowledgement: the committer shares them (D8). One syncer per
// partition would need one sync per acknowledgement.
func TestGuardSyncsPerAck(t *testing.T) {
	const producers, each = 100, 40
	b := startBroker(t)
	createTopic(t, b, "syncs", producers)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	clients := make([]*kgo.Client, producers)
	send := func(p int) {
		require.NoError(t, clients[p].ProduceSync(ctx, &kgo.Record{Topic: "syncs", Partition: int32(p), Value: []byte("v")}).FirstErr())
	}
	for p := range clients {
		clients[p] = b.client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
		send(p) // connected, and the producer id is there
	}
	calls := traceCalls(t, b, func() {
		var all sync.WaitGroup
		for p := range clients {
			all.Go(func() {
				for range each {
					send(p)
				}
			})
		}
		all.Wait()
	})
	syncs := calls["fdatasync"] + calls["fsync"] + calls["sync_file_range"]
	perAck := float64(syncs) / (producers * each)
	t.Logf("%d syncs for %d acknowledgements: %.3f per acknowledgement", syncs, producers*each, perAck)
	require.LessOrEqual(t, perAck, 0.35, "syncs per acknowledgement")
	require.Positive(t, syncs, "durable acknowledgements without a sync")
}

// traceCalls counts the system calls of the broker while fn runs.
func traceCalls(t *testing.T, b *broker, fn func()) map[string]int {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("strace is missing")
		}
		t.Skip("strace is not installed: apt-get install strace")
	}
	out := t.TempDir() + "/calls"
	cmd := exec.Command(strace, "-f", "-c", "-o", out, "-p", strconv.Itoa(b.cmd.Process.Pid))
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { // only where fn gave up
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said := bufio.NewScanner(stderr)
	attached := false
	for said.Scan() {
		if strings.Contains(said.Text(), "attached") {
			attached = true
			break
		}
		if strings.Contains(said.Text(), "Operation not permitted") {
			break
		}
	}
	if !attached {
		_ = cmd.Wait()
		t.Skip("this machine does not let strace attach: " + said.Text())
	}
	go func() {
		for said.Scan() { // drained, so that strace never blocks on it
		}
	}()
	fn()
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait() // ends with the signal's own status
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	calls := map[string]int{}
	for line := range strings.Lines(string(text)) {
		// % time, seconds, usecs/call, calls, [errors], syscall
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if n, err := strconv.Atoi(fields[3]); err == nil {
			calls[fields[len(fields)-1]] = n
		}
	}
	require.NotEmpty(t, calls, "no counts in %s", text)
	return calls
}

// TestIdleMemory prints what an idle broker keeps resident, and fails only far
// beyond the promise of tens of megabytes.
func TestIdleMemory(t *testing.T) {
	b := startBroker(t)
	createTopic(t, b, "idle", 10)
	n := residentKB(t, b)
	if n == 0 {
		t.Skip("no /proc on this system")
	}
	t.Logf("resident: %.1f MB", float64(n)/1024)
	require.Less(t, n, 64<<10, "kilobytes resident at rest")
}
