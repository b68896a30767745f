package integration

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace/integration/peer"
	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
)

var askKafka = flag.Bool("kafka.update", false, "have Apache Kafka's brokers say what its tool must print, and write it down in testdata")

// toolCommands are given to kafka-transactions.sh, in this order: all that it can do, well and wrongly used. In partition 0 a
// transaction hangs, in 1 one is open, in 2 one is over.
var toolCommands = []string{
	"list",
	"list --transactional-id-pattern li.*",
	"list --duration-filter 3600000",
	"list --duration-filter 0",
	"describe --transactional-id live",
	"describe --transactional-id nobody",
	"describe-producers --topic tool --partition 0",
	"describe-producers --topic tool --partition 0 --broker-id 1",
	"describe-producers --topic tool --partition 2",
	"find-hanging --topic tool",
	"find-hanging --topic tool --partition 1",
	"find-hanging --broker-id 1",
	"find-hanging --topic tool --max-transaction-timeout 120",
	"abort --topic tool --partition 0 --start-offset 5",
	"abort --topic tool --partition 0 --producer-id 987654321 --producer-epoch 2 --coordinator-epoch 0",
	"abort --topic tool --partition 0 --start-offset 0",
	"abort --topic tool --partition 0 --start-offset 0",
	"abort --topic tool --partition 0 --producer-id 987654321 --producer-epoch 2 --coordinator-epoch 0",
	"abort --topic tool --partition 0 --producer-id 987654321 --producer-epoch 3 --coordinator-epoch -1",
	"abort --topic tool --partition 0 --producer-id 987654321 --producer-epoch 3 --coordinator-epoch 0",
	"find-hanging --topic tool",
	"forceTerminateTransaction --transactionalId live",
	"describe --transactional-id live",
	"forceTerminateTransaction --transactionalId live",
	"find-hanging",
}

// TestKafkasTransactionsTool has Apache Kafka's own tool look for a transaction that hangs, and end it (KIP-664). What it
// prints, and its exit codes, must be what it prints of Apache Kafka's brokers.
func TestKafkasTransactionsTool(t *testing.T) {
	requirePeer(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	golden := filepath.Join("testdata", "transactions_tool.txt")
	if *askKafka {
		require.NoError(t, os.WriteFile(golden, []byte(askKafkasTool(ctx, t)), 0o644))
	}
	b := startBroker(t)
	prepareTool(ctx, t, b.Addr)
	b.Kill()
	cfg := log.Default()
	cfg.Logger = slog.New(slog.DiscardHandler)
	dir, err := log.OpenDir(b.Data, cfg)
	require.NoError(t, err)
	at := slices.IndexFunc(dir.Logs(), func(l *log.Log) bool { return l.Topic() == "tool" && l.Partition() == 0 })
	require.NoError(t, appendHanging(dir.Logs()[at], strangeProducer, strangeEpoch))
	require.NoError(t, dir.Close())
	b.Start()
	said := runTool(ctx, t, b.Addr)
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), said)
}

// askKafkasTool runs the tool against Apache Kafka, with a broker that appends what no coordinator knows.
func askKafkasTool(ctx context.Context, t *testing.T) string {
	k, err := peer.StartKafka(ctx, t.TempDir(), "transaction.state.log.num.partitions=1", "transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1", "transaction.partition.verification.enable=false")
	require.NoError(t, err)
	defer k.Close()
	for peer.AskMetadata(ctx, k.Addr) != nil {
		select {
		case <-ctx.Done():
			t.Fatal("Apache Kafka does not answer")
		case <-k.Done():
			t.Fatalf("Apache Kafka ended:\n%s", k.Output())
		case <-time.After(50 * time.Millisecond):
		}
	}
	prepareTool(ctx, t, k.Addr)
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), 9)
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.MaxVersions(versions))
	require.NoError(t, err)
	defer cl.Close()
	id := "nobody"
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &id, -1, 10_000
	rt, rp := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	rt.Topic, rp.Records = "tool", hangingBatch(strangeProducer, strangeEpoch)
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, cl)
	require.NoError(t, err)
	require.NoError(t, kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode))
	return runTool(ctx, t, k.Addr)
}

// prepareTool makes a topic with a transaction that is open and one that is over, of producers that have gone.
func prepareTool(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	plain, err := kgo.NewClient(kgo.SeedBrokers(addr))
	require.NoError(t, err)
	defer plain.Close()
	made, err := kadm.NewClient(plain).CreateTopic(ctx, 3, 1, nil, "tool")
	require.NoError(t, err)
	require.NoError(t, made.Err)
	for i, id := range []string{"live", "done"} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute))
		require.NoError(t, err)
		defer cl.Close()
		require.NoError(t, cl.BeginTransaction())
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "tool", Partition: int32(i + 1), Value: []byte("v"), Timestamp: longAgo()}).FirstErr())
		if id == "done" {
			require.NoError(t, cl.EndTransaction(ctx, kgo.TryCommit))
		}
	}
}

// What changes from run to run in what the tool prints.
var toolScrubs = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(` *\t *`), "\t"}, // columns are as wide as what is in them
	{regexp.MustCompile(`\b1\d{12}\b`), "TIME"},
	{regexp.MustCompile(`(Ongoing\t600000\tTIME\t)\d+`), "${1}AGE"},
	{regexp.MustCompile(`(?m)^(1\t1\t)[01](\t-1\tTIME\tNone\t)$`), "${1}EPOCH$2"}, // each has its own way to count coordinators
	{regexp.MustCompile(`(?m)\tTIME\t6\d\t$`), "\tTIME\tMINUTES\t"},
}

func runTool(ctx context.Context, t *testing.T, addr string) string {
	t.Helper()
	classpath, err := peer.Classpath()
	require.NoError(t, err)
	cmd := exec.CommandContext(ctx, "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath, filepath.Join("testdata", "TransactionsTool.java"), addr)
	cmd.Stdin = strings.NewReader(strings.Join(toolCommands, "\n"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	said := string(out)
	for _, s := range toolScrubs {
		said = s.pattern.ReplaceAllString(said, s.with)
	}
	// A list has no order.
	blocks := strings.Split(said, "> ")
	for i, b := range blocks {
		if lines := strings.Split(b, "\n"); strings.HasPrefix(b, "list") && len(lines) > 4 {
			slices.Sort(lines[2 : len(lines)-2])
			blocks[i] = strings.Join(lines, "\n")
		}
	}
	return strings.Join(blocks, "> ")
}

// hangingBatch is one record in a transaction, of long ago.
func hangingBatch(producerID int64, epoch int16) record.Batch {
	b := record.NewBuilder(record.CodecNone)
	b.Transactional, b.ProducerID, b.ProducerEpoch, b.BaseSequence = true, producerID, epoch, 0
	b.Add(longAgo().UnixMilli(), nil, []byte("hangs"), nil)
	return b.Build()
}

// appendHanging has a transaction begin in the files of a replica, of which no broker knows.
func appendHanging(l *log.Log, producerID int64, epoch int16) error {
	out := make([]log.Appended, 1)
	if err := l.Append(max(l.LastEpoch(), 0), []log.Set{{Records: hangingBatch(producerID, epoch)}}, out); err != nil {
		return err
	}
	if out[0].Err != nil {
		return fmt.Errorf("append to %s: %w", l, out[0].Err)
	}
	return l.Flush()
}
