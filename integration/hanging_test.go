package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/log"
)

// hangingCluster is three brokers with transactions that hang: batches that no broker of ours would have appended, because no
// coordinator knows of them, written into the files of all replicas while the brokers were down. So does a release without
// the verification of KIP-890 leave them behind.
type hangingCluster struct {
	*cluster.Cluster
	t   *testing.T
	adm *kadm.Client
}

const hangingTopic = "ledger"

// The partitions of hangingTopic.
const (
	hangsKnown   = int32(iota) // of a producer whose transactional id is known, and has nothing open
	hangsUnknown               // of a producer that nobody knows
	hangsBeside                // of one that has a transaction open in another partition
	holdsLive                  // held back by a transaction that is open and known
	hangingPartitions
)

const (
	knownID, besideID = "ledger-known", "ledger-beside"
	strangeProducer   = int64(987654321)
	strangeEpoch      = int16(3)
)

// longAgo is when the records of open transactions were written: longer ago than any transaction may be open.
func longAgo() time.Time { return time.Now().Add(-time.Hour) }

func openHangingCluster(ctx context.Context, t *testing.T) *hangingCluster {
	c, err := cluster.Open(cluster.Config{Binary: millraceBinary(t), Dir: filepath.Join(t.TempDir(), "brokers")})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		for _, n := range c.Nodes {
			if text, err := os.ReadFile(n.LogFile); err == nil && t.Failed() {
				t.Logf("%s: %s", n.LogFile, text[max(0, len(text)-8<<10):])
			}
		}
	})
	require.NoError(t, c.Start(ctx))
	h := &hangingCluster{Cluster: c, t: t}
	cl := h.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	h.adm = kadm.NewClient(cl)
	made, err := h.adm.CreateTopic(ctx, hangingPartitions, 3, nil, hangingTopic)
	require.NoError(t, err)
	require.NoError(t, made.Err)
	for p := range hangingPartitions {
		h.produce(ctx, cl, p, "before")
	}
	// One transactional id has committed, one has a transaction open in a partition that is free otherwise.
	known := h.begin(ctx, knownID, hangsKnown, "committed")
	require.NoError(t, known.EndTransaction(ctx, kgo.TryCommit))
	h.begin(ctx, besideID, holdsLive, "beside")
	return h
}

// client is one of the cluster's, until the test ends.
func (h *hangingCluster) client(opts ...kgo.Opt) *kgo.Client {
	h.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(h.Seeds()...), kgo.MetadataMinAge(50 * time.Millisecond)}, opts...)...)
	require.NoError(h.t, err)
	h.t.Cleanup(cl.Close)
	return cl
}

func (h *hangingCluster) produce(ctx context.Context, cl *kgo.Client, partition int32, value string) {
	h.t.Helper()
	require.NoError(h.t, cl.ProduceSync(ctx, &kgo.Record{Topic: hangingTopic, Partition: partition, Value: []byte(value), Timestamp: longAgo()}).FirstErr())
}

// begin opens a transaction with one record.
func (h *hangingCluster) begin(ctx context.Context, id string, partition int32, value string) *kgo.Client {
	h.t.Helper()
	cl := h.client(kgo.TransactionalID(id), kgo.TransactionTimeout(10*time.Minute), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(h.t, cl.BeginTransaction())
	h.produce(ctx, cl, partition, value)
	return cl
}

// hang stops the brokers, has each partition's transaction begin in the files of every replica, and starts them again.
func (h *hangingCluster) hang(ctx context.Context, producers map[int32]kadm.DescribedProducer) {
	h.t.Helper()
	for _, n := range h.Nodes {
		require.NoError(h.t, n.Stop())
	}
	cfg := log.Default()
	cfg.Logger = slog.New(slog.DiscardHandler)
	for _, n := range h.Nodes {
		dir, err := log.OpenDir(n.Data, cfg)
		require.NoError(h.t, err)
		for _, l := range dir.Logs() {
			p, ok := producers[l.Partition()]
			if l.Topic() != hangingTopic || !ok {
				continue
			}
			require.NoError(h.t, appendHanging(l, p.ProducerID, p.ProducerEpoch))
		}
		require.NoError(h.t, dir.Close())
	}
	require.NoError(h.t, h.Start(ctx))
}

// millrace runs a command, and returns what it printed and its exit code.
func (h *hangingCluster) millrace(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	cmd := exec.CommandContext(ctx, millraceBinary(h.t), args...)
	cmd.Env = append(os.Environ(), "MILLRACE_BROKERS="+strings.Join(h.Seeds(), ","), "MILLRACE_CONFIG_DIR="+h.t.TempDir())
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(h.t, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// refused runs a command that must fail, and say all of that.
func (h *hangingCluster) refused(ctx context.Context, code int, says []string, args ...string) {
	h.t.Helper()
	stdout, stderr, got := h.millrace(ctx, args...)
	require.Equal(h.t, code, got, "%v: %s%s", args, stdout, stderr)
	for _, s := range says {
		require.Contains(h.t, stderr, s)
	}
}

// foundHanging is what find-hanging says of a transaction.
type foundHanging struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	ProducerID int64  `json:"producer_id"`
	Epoch      int16  `json:"producer_epoch"`
	Start      int64  `json:"transaction_start_offset"`
	ID         string `json:"transactional_id"`
	Why        string `json:"why"`
	IdleMS     int64  `json:"idle_ms"`
	Fix        string `json:"fix"`
}

func (h *hangingCluster) findHanging(ctx context.Context, args ...string) (found []foundHanging) {
	h.t.Helper()
	stdout, stderr, code := h.millrace(ctx, append([]string{"txn", "find-hanging", "--format", "json"}, args...)...)
	require.NoError(h.t, json.Unmarshal([]byte(stdout), &found), "%s%s", stdout, stderr)
	want := 0
	if len(found) > 0 {
		want = 5
	}
	require.Equal(h.t, want, code, stderr)
	return found
}

// committed reads the values of a partition as a reader of committed records, until it has so many.
func (h *hangingCluster) committed(ctx context.Context, partition int32, n int) (values []string) {
	h.t.Helper()
	cl := h.client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{hangingTopic: {partition: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	for len(values) < n {
		fetches := cl.PollFetches(ctx)
		require.NoError(h.t, ctx.Err(), "read %v", values)
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// heldBack returns how far the last stable offset of a partition lags behind its high watermark.
func (h *hangingCluster) heldBack(ctx context.Context, partition int32) int64 {
	h.t.Helper()
	stable, err := h.adm.ListCommittedOffsets(ctx, hangingTopic)
	require.NoError(h.t, err)
	high, err := h.adm.ListEndOffsets(ctx, hangingTopic)
	require.NoError(h.t, err)
	s, _ := stable.Lookup(hangingTopic, partition)
	e, _ := high.Lookup(hangingTopic, partition)
	require.NoError(h.t, errors.Join(s.Err, e.Err))
	return e.Offset - s.Offset
}

// KIP-664, P12: transactions that no coordinator will ever end are found, named and ended, one by one, and nothing else is:
// what is open and known stays open, what is wrongly named is refused.
func TestHangingTransactions(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three brokers, twice")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	h := openHangingCluster(ctx, t)
	require.Empty(t, h.findHanging(ctx))

	described, err := h.adm.DescribeTransactions(ctx, knownID, besideID)
	require.NoError(t, err)
	pair := func(id string) kadm.DescribedProducer {
		return kadm.DescribedProducer{ProducerID: described[id].ProducerID, ProducerEpoch: described[id].ProducerEpoch}
	}
	producers := map[int32]kadm.DescribedProducer{
		hangsKnown: pair(knownID), hangsBeside: pair(besideID), hangsUnknown: {ProducerID: strangeProducer, ProducerEpoch: strangeEpoch},
	}
	h.hang(ctx, producers)
	plain := h.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range hangingPartitions {
		h.produce(ctx, plain, p, "after")
		require.Positive(t, h.heldBack(ctx, p), "partition %d", p)
	}

	start := map[int32]int64{hangsKnown: 3, hangsUnknown: 1, hangsBeside: 1} // behind "before", and "committed" with its marker
	wantWhy := map[int32]string{
		hangsKnown: "its transactional id has no open transaction: CompleteCommit", hangsUnknown: "no transactional id has that producer id",
		hangsBeside: "it is no part of the open transaction of its transactional id",
	}
	wantID := map[int32]string{hangsKnown: knownID, hangsBeside: besideID}
	found := h.findHanging(ctx)
	require.Len(t, found, 3)
	for i, f := range found {
		p := int32(i)
		require.Equal(t, foundHanging{
			Topic: hangingTopic, Partition: p, ProducerID: producers[p].ProducerID, Epoch: producers[p].ProducerEpoch, Start: start[p], ID: wantID[p], Why: wantWhy[p], IdleMS: f.IdleMS,
			Fix: fmt.Sprintf("millrace txn abort --topic %s --partition %d --start-offset %d", hangingTopic, p, start[p]),
		}, f)
		require.GreaterOrEqual(t, f.IdleMS, time.Hour.Milliseconds())
		stdout, _, code := h.millrace(ctx, "txn", "describe-producers", "-t", hangingTopic, "-p", fmt.Sprint(p), "--open")
		require.Zero(t, code)
		require.Regexp(t, fmt.Sprintf(`(?m)^%s +%d +%d +%d +(-|\d+) +0 +\S+ +%d$`, hangingTopic, p, f.ProducerID, f.Epoch, f.Start), stdout)
	}
	for _, b := range h.brokerIDs(ctx) { // every replica has it
		require.Equal(t, []int64{strangeProducer, 1}, h.openOn(ctx, b, hangsUnknown), "broker %d", b)
	}
	require.Equal(t, found[1:2], h.findHangingOf(ctx, found[1].IdleMS, "-t", hangingTopic, "-p", "1"))
	require.Empty(t, h.findHanging(ctx, "--max-transaction-timeout", "2h"), "it may still be in time")

	// What is meant wrongly.
	abort := func(partition int32, more ...string) []string {
		return append([]string{"txn", "abort", "--topic", hangingTopic, "--partition", fmt.Sprint(partition)}, more...)
	}
	h.refused(ctx, 2, []string{"not done", "--yes"}, abort(hangsKnown, "--start-offset", "3")...)
	h.refused(ctx, 2, []string{besideID, "not done", "--yes"}, "txn", "abort", besideID)
	open := []string{"no such transaction is open in", "describe-producers -t " + hangingTopic + " -p "}
	h.refused(ctx, 1, open, abort(hangsUnknown, "--start-offset", "3", "--yes")...)
	h.refused(ctx, 1, open, abort(hangsKnown, "--producer-id", fmt.Sprint(strangeProducer), "--yes")...)
	h.refused(ctx, 1, open, abort(hangsKnown, "--producer-id", fmt.Sprint(strangeProducer), "--start-offset", "3", "--yes")...)
	h.refused(ctx, 1, nil, abort(hangingPartitions, "--start-offset", "3", "--yes")...)
	h.refused(ctx, 1, []string{knownID + " has no open transaction"}, "txn", "abort", knownID, "--yes")
	marker := func(p kadm.DescribedProducer, partition int32) error {
		set := kadm.TopicsSet{}
		set.Add(hangingTopic, partition)
		resp, err := h.adm.WriteTxnMarkers(ctx, kadm.TxnMarkers{ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, Topics: set})
		require.NoError(t, err)
		resp.EachPartition(func(r kadm.TxnMarkersPartitionResponse) { err = r.Err })
		return err
	}
	require.ErrorIs(t, marker(kadm.DescribedProducer{ProducerID: strangeProducer, ProducerEpoch: strangeEpoch - 1}, hangsUnknown), kerr.InvalidProducerEpoch)
	_, stderr, code := h.millrace(ctx, abort(hangsKnown, "--start-offset", "3", "--dry-run")...)
	require.Zero(t, code)
	require.Contains(t, stderr, "nothing was changed")
	require.Len(t, h.findHanging(ctx), 3, "nothing was changed by any of that")

	// Each is ended by what find-hanging says, or by its producer id.
	for _, f := range found {
		argv := append(strings.Fields(f.Fix)[1:], "--yes")
		if f.Partition == hangsUnknown {
			argv = abort(f.Partition, "--producer-id", fmt.Sprint(strangeProducer), "--yes")
		}
		stdout, stderr, code := h.millrace(ctx, argv...)
		require.Zero(t, code, stderr)
		require.Contains(t, stderr, "hangs")
		require.Regexp(t, fmt.Sprintf(`(?m)^\S* +%s-%d +%d +%d +marker$`, hangingTopic, f.Partition, f.ProducerID, f.Epoch), stdout)
		h.refused(ctx, 1, open, argv...)
	}
	require.Empty(t, h.findHanging(ctx))
	require.Equal(t, []string{"before", "committed", "after"}, h.committed(ctx, hangsKnown, 3))
	require.Equal(t, []string{"before", "after"}, h.committed(ctx, hangsUnknown, 2))
	require.Equal(t, []string{"before", "after"}, h.committed(ctx, hangsBeside, 2))

	// The live one is as it was. By partition and offset its coordinator ends it, too.
	require.Positive(t, h.heldBack(ctx, holdsLive))
	stdout, stderr, code := h.millrace(ctx, abort(holdsLive, "--start-offset", "1", "--yes")...)
	require.Zero(t, code, stderr)
	require.Regexp(t, besideID+` +- +\d+ +\d+ +coordinator`, stdout)
	require.Equal(t, []string{"before", "after"}, h.committed(ctx, holdsLive, 2))
	// Producers go on, those whose transaction hung, too.
	again := h.begin(ctx, knownID, hangsKnown, "again")
	require.NoError(t, again.EndTransaction(ctx, kgo.TryCommit))
	require.Equal(t, []string{"before", "committed", "after", "again"}, h.committed(ctx, hangsKnown, 4))
	require.Zero(t, h.heldBack(ctx, hangsKnown))
}

// findHangingOf is findHanging with the ages that were seen before.
func (h *hangingCluster) findHangingOf(ctx context.Context, idle int64, args ...string) []foundHanging {
	found := h.findHanging(ctx, args...)
	for i := range found {
		found[i].IdleMS = idle
	}
	return found
}

func (h *hangingCluster) brokerIDs(ctx context.Context) []int32 {
	h.t.Helper()
	brokers, err := h.adm.ListBrokers(ctx)
	require.NoError(h.t, err)
	require.Len(h.t, brokers, len(h.Nodes))
	return brokers.NodeIDs()
}

// openOn returns the producer id and start offset of the transactions that are open in a partition, as one of its replicas has it.
func (h *hangingCluster) openOn(ctx context.Context, broker, partition int32) (open []int64) {
	h.t.Helper()
	req := kmsg.NewPtrDescribeProducersRequest()
	rt := kmsg.NewDescribeProducersRequestTopic()
	rt.Topic, rt.Partitions = hangingTopic, []int32{partition}
	req.Topics = append(req.Topics, rt)
	resp, err := h.client().Broker(int(broker)).RetriableRequest(ctx, req)
	require.NoError(h.t, err)
	rp := resp.(*kmsg.DescribeProducersResponse).Topics[0].Partitions[0]
	require.NoError(h.t, kerr.ErrorForCode(rp.ErrorCode))
	for _, p := range rp.ActiveProducers {
		if p.CurrentTxnStartOffset >= 0 {
			open = append(open, p.ProducerID, p.CurrentTxnStartOffset)
		}
	}
	return open
}
