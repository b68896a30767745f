package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/peer"
	"github.com/millrace/millrace/log/record"
)

// requirePeer skips where Apache Kafka cannot run; in CI it must.
func requirePeer(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: Apache Kafka is not started")
	}
	if _, err := peer.Classpath(); errors.Is(err, peer.ErrNoToolchain) && os.Getenv("CI") == "" {
		t.Skip(err.Error())
	} else if err != nil {
		t.Fatal(err)
	}
}

// TestKafkaReadsOurFiles has Apache Kafka's own reader go through a partition
// that was written with every codec, rolled, killed and recovered (D9).
func TestKafkaReadsOurFiles(t *testing.T) {
	requirePeer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	b := startBroker(t, "log.segment.bytes=1048576")
	createTopic(t, b, "oracle", 1)
	n := fillOracle(ctx, t, b.Addr, "oracle", 0)
	b.Kill() // the newest files come from recovery
	b.Start()
	n = fillOracle(ctx, t, b.Addr, "oracle", n)
	require.Equal(t, 0, b.Stop())
	readByKafka(ctx, t, filepath.Join(b.Data, "oracle-0"), n)
}

// fillOracle produces 10,000 records with each codec and returns how many
// there are in all.
func fillOracle(ctx context.Context, t *testing.T, addr, topic string, have int) int {
	t.Helper()
	for i, codec := range []kgo.CompressionCodec{kgo.NoCompression(), kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(64<<10))
		require.NoError(t, err)
		records := make([]*kgo.Record, 10_000)
		for j := range records {
			records[j] = &kgo.Record{Topic: topic, Key: []byte(fmt.Sprintf("key-%d", j%50)), Value: []byte(fmt.Sprintf("%d: %d, %s", i, j, strings.Repeat("x", 10+j%200)))}
			if j%4 == 0 {
				records[j].Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}
			}
		}
		require.NoError(t, cl.ProduceSync(ctx, records...).FirstErr())
		cl.Close()
		have += len(records)
	}
	return have
}

// readByKafka runs DumpLogSegments over a partition directory, deep, and with
// the sanity check of its indexes, and compares the batches it prints with
// ours.
func readByKafka(ctx context.Context, t *testing.T, dir string, records int) {
	t.Helper()
	var files, indexes []string
	for _, kind := range []string{"*.log", "*.index", "*.timeindex", "*.snapshot"} {
		found, err := filepath.Glob(filepath.Join(dir, kind))
		require.NoError(t, err)
		require.NotEmpty(t, found, "%s in %s", kind, dir)
		files = append(files, found...)
		if strings.HasSuffix(kind, "index") {
			indexes = append(indexes, found...)
		}
	}
	segments, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.Greater(t, len(segments), 2, "several segments")

	out, err := peer.DumpLog(ctx, "--deep-iteration", "--files", strings.Join(files, ","))
	require.NoError(t, err)
	requireNoFault(t, out)
	require.Equal(t, records, strings.Count(out, "\n| offset: "), "records that Kafka's reader sees")

	out, err = peer.DumpLog(ctx, "--index-sanity-check", "--files", strings.Join(indexes, ","))
	require.NoError(t, err)
	require.Equal(t, len(indexes), strings.Count(out, "passed sanity check"), "%s", out)

	// Batch by batch: Kafka's words against ours.
	out, err = peer.DumpLog(ctx, "--files", strings.Join(segments, ","))
	require.NoError(t, err)
	var want []string
	for _, line := range strings.Split(out, "\n") {
		if m := kafkaBatch.FindStringSubmatch(line); m != nil {
			want = append(want, strings.Join(m[1:], " "))
		}
	}
	var got []string
	for _, name := range segments {
		rest, err := os.ReadFile(name)
		require.NoError(t, err)
		for len(rest) > 0 {
			var batch record.Batch
			batch, rest, err = record.Next(rest)
			require.NoError(t, err)
			require.True(t, batch.CheckCRC())
			got = append(got, strings.TrimSpace(fmt.Sprintln(batch.BaseOffset(), batch.LastOffset(), batch.Count(), batch.BaseSequence(), batch.LastSequence(), batch.ProducerID(), batch.ProducerEpoch(), batch.LeaderEpoch(), len(batch), codecs[batch.Attributes()&7], batch.CRC())))
		}
	}
	require.Equal(t, want, got)

	// And what `log dump` prints, which takes the same files.
	text, err := exec.CommandContext(ctx, millraceBinary(t), append([]string{"log", "dump"}, files...)...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	verify, err := exec.CommandContext(ctx, millraceBinary(t), "log", "verify", filepath.Dir(dir)).CombinedOutput()
	require.NoError(t, err, "%s", verify)
}

// TestKafkaReadsOurTransactions has Apache Kafka's own reader go through a partition with transactions, a third of them
// aborted: their markers, the indexes of aborted transactions and the producer snapshots, before and after a kill (D9).
func TestKafkaReadsOurTransactions(t *testing.T) {
	requirePeer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	b := startBroker(t, "log.segment.bytes=1048576")
	createTopic(t, b, "oracle", 1)
	committed := fillTransactions(ctx, t, b.Addr, "oracle", "first")
	b.Kill() // the newest files come from recovery
	b.Start()
	committed += fillTransactions(ctx, t, b.Addr, "oracle", "second")
	require.Equal(t, committed, readCommitted(ctx, t, b.Addr, "oracle"))
	require.Equal(t, 0, b.Stop())

	dir := filepath.Join(b.Data, "oracle-0")
	indexes, err := filepath.Glob(filepath.Join(dir, "*.txnindex"))
	require.NoError(t, err)
	require.Greater(t, len(indexes), 2)
	files := slices.Clone(indexes)
	for _, kind := range []string{"*.log", "*.snapshot"} {
		found, err := filepath.Glob(filepath.Join(dir, kind))
		require.NoError(t, err)
		require.NotEmpty(t, found)
		files = append(files, found...)
	}
	out, err := peer.DumpLog(ctx, "--deep-iteration", "--files", strings.Join(files, ","))
	require.NoError(t, err)
	requireNoFault(t, out)
	ours, err := exec.CommandContext(ctx, millraceBinary(t), append([]string{"log", "dump", "--deep"}, files...)...).Output()
	require.NoError(t, err)
	for what, line := range map[string]*regexp.Regexp{
		"aborted transactions": regexp.MustCompile(`(?m)^version: 0 producerId: \d+ firstOffset: \d+ lastOffset: \d+ lastStableOffset: \d+$`),
		"markers":              regexp.MustCompile(`endTxnMarker: \w+ coordinatorEpoch: -?\d+`),
		"producers":            regexp.MustCompile(`(?m)^producerId: \d+ producerEpoch: \d+ coordinatorEpoch: -?\d+`),
	} {
		theirs := line.FindAllString(out, -1)
		require.Greater(t, len(theirs), 3, what)
		require.Equal(t, theirs, line.FindAllString(string(ours), -1), what)
	}
	verify, err := exec.CommandContext(ctx, millraceBinary(t), "log", "verify", b.Data).CombinedOutput()
	require.NoError(t, err, "%s", verify)

	// An index that is gone is made anew: readers are shown no aborted record (I3).
	for _, name := range indexes {
		require.NoError(t, os.Remove(name))
	}
	b.Start()
	require.Equal(t, committed, readCommitted(ctx, t, b.Addr, "oracle"))
	again, err := filepath.Glob(filepath.Join(dir, "*.txnindex"))
	require.NoError(t, err)
	require.Equal(t, indexes, again)
	require.Equal(t, 0, b.Stop())
}

// fillTransactions writes transactions of two producers and returns how many records of them are committed.
func fillTransactions(ctx context.Context, t *testing.T, addr, topic, id string) (committed int) {
	t.Helper()
	const transactions, records = 40, 150
	var clients [2]*kgo.Client
	for i := range clients {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID(fmt.Sprint(id, i)), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(16<<10))
		require.NoError(t, err)
		defer cl.Close()
		clients[i] = cl
	}
	value := []byte(strings.Repeat("x", 200))
	for n := range transactions {
		// The transactions of both overlap.
		for _, cl := range clients {
			require.NoError(t, cl.BeginTransaction())
			batch := make([]*kgo.Record, records)
			for j := range batch {
				batch[j] = &kgo.Record{Topic: topic, Value: value}
			}
			require.NoError(t, cl.ProduceSync(ctx, batch...).FirstErr())
		}
		for i, cl := range clients {
			end := kgo.TryCommit
			if (n+i)%3 == 0 {
				end = kgo.TryAbort
			} else {
				committed += records
			}
			require.NoError(t, cl.EndTransaction(ctx, end))
		}
	}
	return committed
}

// readCommitted counts the records that a consumer of committed records gets, up to the last stable offset.
func readCommitted(ctx context.Context, t *testing.T, addr, topic string) (n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	require.NoError(t, err)
	defer cl.Close()
	adm := kadm.NewClient(cl)
	ends, err := adm.ListCommittedOffsets(ctx, topic)
	require.NoError(t, err)
	end, ok := ends.Lookup(topic, 0)
	require.True(t, ok)
	for at := int64(0); at < end.Offset; {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if !r.Attrs.IsControl() {
				n++
			}
		})
	}
	return n
}

// kafkaBatch is a batch line of DumpLogSegments.
var kafkaBatch = regexp.MustCompile(`^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (\d+) isTransactional: false isControl: false .*size: (\d+) magic: 2 compresscodec: (\w+) crc: (\d+) isvalid: true`)

// requireNoFault looks for what DumpLogSegments says when it dislikes a file.
func requireNoFault(t *testing.T, out string) {
	t.Helper()
	for _, line := range strings.Split(out, "\n") {
		fault := strings.Contains(line, "isvalid: false") || strings.Contains(line, "Mismatches in") || strings.Contains(line, "Exception") ||
			strings.Contains(line, "Found") && !strings.Contains(line, "offset") || strings.Contains(line, "out of order") || strings.Contains(line, "corrupt")
		// A segment that does not begin at 0 is announced as a gap behind -1.
		if m := kafkaGap.FindStringSubmatch(line); m != nil && m[1] != "-1" {
			fault = true
		}
		if fault {
			t.Errorf("Apache Kafka's reader: %s", line)
		}
	}
}

var kafkaGap = regexp.MustCompile(`^\s*(-?\d+) is followed by \d+`)

// TestWeReadKafkasFiles runs our reader over a data directory that Apache
// Kafka wrote.
func TestWeReadKafkasFiles(t *testing.T) {
	requirePeer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	k, err := peer.StartKafka(ctx, t.TempDir(), "log.segment.bytes=1048576")
	require.NoError(t, err)
	defer k.Close()
	for {
		err := askMetadata(ctx, k.Addr)
		if err == nil {
			break
		}
		select {
		case <-k.Done():
			t.Fatalf("Apache Kafka ended:\n%s", k.Output())
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	createTopic(t, &broker{t: t, Addr: k.Addr}, "theirs", 1)
	n := fillOracle(ctx, t, k.Addr, "theirs", fillOracle(ctx, t, k.Addr, "theirs", 0))
	k.Close()

	segments, err := filepath.Glob(filepath.Join(k.Data, "theirs-0", "*.log"))
	require.NoError(t, err)
	require.Greater(t, len(segments), 2)
	seen := 0
	for _, name := range segments {
		out, err := exec.CommandContext(ctx, millraceBinary(t), "log", "dump", "--format", "json", name).Output()
		require.NoError(t, err)
		for _, m := range countInJSON.FindAllSubmatch(out, -1) {
			c, err := strconv.Atoi(string(m[1]))
			require.NoError(t, err)
			seen += c
		}
	}
	require.Equal(t, n, seen, "records that log dump sees in Apache Kafka's files")
	out, err := exec.CommandContext(ctx, millraceBinary(t), "log", "verify", k.Data).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

var countInJSON = regexp.MustCompile(`"(?:count|records)":\s*(\d+)`)
