package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/urfave/cli/v2"
)

func benchTxnCommand() *cli.Command {
	return &cli.Command{
		Name:  "txn",
		Usage: "measure transactions: how many a second producers of their own commit, and how long a commit takes",
		Description: "Each producer begins a transaction, sends its records to some partitions, waits until all are acknowledged, and\n" +
			"commits. --protocol 1 speaks as clients before Kafka 4 do, which name the partitions of a transaction first; 2 is\n" +
			"what came with KIP-890, and takes a cluster that has finalized transaction.version 2.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "topic", Aliases: []string{"t"}, Usage: "the `NAME` of a topic that exists"},
			&cli.Int64Flag{Name: "num-records", Aliases: []string{"n"}, Usage: "begin no transaction after `N` records"},
			&cli.DurationFlag{Name: "duration", Usage: "begin no transaction after this time (default 10s where -n is not given)"},
			&cli.IntFlag{Name: "producers", Value: 16, Usage: "`N` producers at once, each with a transactional id of its own"},
			&cli.IntFlag{Name: "records", Value: 100, Usage: "`N` records in a transaction"},
			&cli.IntFlag{Name: "partitions", Value: 3, Usage: "`N` partitions that a transaction writes to"},
			&cli.IntFlag{Name: "abort-every", Usage: "abort each `N`th transaction instead (default none)"},
			&cli.IntFlag{Name: "protocol", Value: 2, Usage: "1 or 2, the protocol of transactions"},
			&cli.DurationFlag{Name: "warm-up", Value: 500 * time.Millisecond, Usage: "transactions that begin in this first time are not counted"},
			&cli.IntFlag{Name: "record-size", Value: 100, Usage: "`BYTES` of each record's value"},
			&cli.StringFlag{Name: "payload-file", Usage: "take values from the lines of `FILE`, in random order, instead"},
		},
		Action: runBenchTxn,
	}
}

// transactionBench is what bench txn measures.
type transactionBench struct {
	Topic            string      `json:"topic" doc:"name"`
	Protocol         int         `json:"protocol" doc:"1 or 2"`
	Producers        int         `json:"producers" doc:"producers at once"`
	Transactions     int64       `json:"transactions" doc:"transactions that were counted, aborted ones too"`
	Aborted          int64       `json:"aborted" doc:"how many of them were aborted, as asked for"`
	Records          int64       `json:"records" doc:"records of those transactions"`
	Seconds          float64     `json:"seconds" doc:"from the end of the warm-up to the end of the last transaction"`
	PerSecond        float64     `json:"transactions_per_second" doc:"transactions a second"`
	RecordsPerSecond float64     `json:"records_per_second" doc:"records a second"`
	Commit           latencyJSON `json:"commit" doc:"from the wish to end a transaction, when all its records are acknowledged, to the answer"`
	Latency          latencyJSON `json:"latency" doc:"of whole transactions, from the first record to that answer"`
}

func runBenchTxn(c *cli.Context) error {
	e := envOf(c)
	if e.wantsFields(transactionBench{}) {
		return nil
	}
	if err := noArguments(c); err != nil {
		return err
	}
	p, err := newPayload(c.String("payload-file"), c.Int("record-size"))
	if err != nil {
		return err
	}
	r := &transactionRun{
		payload: p, producers: c.Int("producers"), records: c.Int("records"), partitions: c.Int("partitions"),
		abortEvery: int64(c.Int("abort-every")), protocol: c.Int("protocol"), warm: c.Duration("warm-up"),
	}
	if r.producers < 1 || r.records < 1 || r.partitions < 1 || r.abortEvery < 0 || r.warm < 0 || r.protocol < 1 || r.protocol > 2 {
		f := usageError("no transaction can be made of that", "--producers 16 --records 100 --partitions 3 --protocol 2")
		f.why = fmt.Sprintf("--producers %d --records %d --partitions %d --abort-every %d --protocol %d --warm-up %s", r.producers, r.records, r.partitions, r.abortEvery, r.protocol, r.warm)
		return f
	}
	if r.benchTarget, err = e.benchTarget(c); err != nil {
		return err
	}
	if r.partitions > len(r.topic.Partitions) {
		f := usageError(fmt.Sprintf("topic %s has %d partitions", r.topic.Topic, len(r.topic.Partitions)), "--partitions "+strconv.Itoa(len(r.topic.Partitions)))
		f.why = fmt.Sprintf("a transaction was to write to %d", r.partitions)
		return f
	}
	if r.limit == 0 && r.benchTarget.records == 0 {
		r.limit = 10 * time.Second
	}
	return r.run(c.Context)
}

// transactionRun is one run of bench txn.
type transactionRun struct {
	*benchTarget
	payload                        *payload
	producers, records, partitions int
	abortEvery                     int64 // 0: none
	protocol                       int
	warm                           time.Duration

	serial  atomic.Int64 // transactions begun so far
	counts  time.Time    // those that begin from here on are counted
	mu      sync.Mutex   // of what follows
	done    transactionBench
	commits histogram
	whole   histogram
}

// protocolOptions are those of a client that speaks a protocol of transactions. Before KIP-890 a transaction's Produce was at most version 11
// and EndTxn 4; the client takes that as the sign to name partitions first.
func protocolOptions(protocol int) []kgo.Opt {
	if protocol == 2 {
		return nil
	}
	versions := kversion.Stable()
	versions.SetMaxKeyVersion(int16(kmsg.Produce), 11)
	versions.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	versions.SetMaxKeyVersion(int16(kmsg.TxnOffsetCommit), 4)
	return []kgo.Opt{kgo.MaxVersions(versions)}
}

func (r *transactionRun) run(ctx context.Context) error {
	clients := make([]*connection, 0, r.producers)
	defer func() {
		for _, conn := range clients {
			conn.Close()
		}
	}()
	id := "bench-" + strconv.FormatInt(time.Now().UnixNano(), 36) // no other run's producers are fenced
	for i := range r.producers {
		conn, err := r.connect(ctx, append(protocolOptions(r.protocol),
			kgo.TransactionalID(fmt.Sprintf("%s-%d", id, i)),
			kgo.DefaultProduceTopic(r.topic.Topic),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
			kgo.ProducerLinger(5*time.Millisecond), // all of a transaction's records are there by then, and the flush ends it: a batch for each partition
			kgo.MaxBufferedRecords(max(10_000, r.records)),
		)...)
		if err != nil {
			return err
		}
		clients = append(clients, conn)
	}
	if err := r.finalized(ctx, clients[0]); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, len(clients))
	for i, conn := range clients {
		wg.Go(func() {
			if _, _, err := conn.ProducerID(ctx); err != nil {
				errs[i] = conn.fail("take a producer id", err)
			}
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	r.counts = time.Now().Add(r.warm)
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.limit > 0 {
		stop, cancel = context.WithTimeout(ctx, r.warm+r.limit)
		defer cancel()
	}
	bar := r.newProgress("transactions", r.benchTarget.records/int64(r.records))
	for i, conn := range clients {
		wg.Go(func() {
			if errs[i] = r.produce(ctx, stop, conn, i, bar); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	out := &r.done
	out.Seconds = max(time.Since(r.counts).Seconds(), 0)
	bar.finish()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	if out.Transactions == 0 {
		return &failure{code: exitFailed, what: "nothing was measured", why: fmt.Sprintf("no transaction began after the warm-up of %s", r.warm), fix: "--warm-up 0s, or a larger -n or --duration"}
	}
	out.Topic, out.Protocol, out.Producers = r.topic.Topic, r.protocol, r.producers
	out.PerSecond, out.RecordsPerSecond = float64(out.Transactions)/out.Seconds, float64(out.Records)/out.Seconds
	out.Commit, out.Latency = r.commits.summary(), r.whole.summary()
	return r.emit(result{value: *out, text: func(w io.Writer, _ bool) {
		fmt.Fprintf(w, "%d transactions of %d records, %f transactions/sec, %f records/sec\n", out.Transactions, r.records, out.PerSecond, out.RecordsPerSecond)
		fmt.Fprintf(w, "Commit: %.3f ms avg, %.3f ms 50th, %.3f ms 99th, %.3f ms 99.9th\n", out.Commit.Mean, out.Commit.P50, out.Commit.P99, out.Commit.P999)
		fmt.Fprintf(w, "Whole:  %.3f ms avg, %.3f ms 50th, %.3f ms 99th, %.3f ms 99.9th\n", out.Latency.Mean, out.Latency.P50, out.Latency.P99, out.Latency.P999)
	}})
}

// finalized sees that the cluster speaks the protocol asked for: a client falls back silently.
func (r *transactionRun) finalized(ctx context.Context, conn *connection) error {
	if r.protocol < 2 {
		return nil
	}
	resp, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, conn.Client)
	if err != nil {
		return conn.fail("ask for the versions of the cluster", err)
	}
	for _, f := range resp.FinalizedFeatures {
		if f.Name == "transaction.version" && f.MaxVersionLevel >= 2 {
			return nil
		}
	}
	return &failure{code: exitFailed, what: "the cluster does not speak protocol 2 of transactions", why: "it has not finalized transaction.version 2 (KIP-890)", fix: "--protocol 1, or upgrade the cluster"}
}

// produce makes transactions with one client until stop ends or the records are made.
func (r *transactionRun) produce(ctx, stop context.Context, conn *connection, index int, bar *progress) error {
	for stop.Err() == nil {
		n := r.serial.Add(1)
		if r.benchTarget.records > 0 && (n-1)*int64(r.records) >= r.benchTarget.records {
			break
		}
		began := time.Now()
		if err := conn.BeginTransaction(); err != nil {
			return conn.fail("begin a transaction", err)
		}
		var failed error // of the first record; written by the client's one goroutine that ends records, read after the flush
		for i := range r.records {
			partition := (index + i%r.partitions) % len(r.topic.Partitions)
			conn.Produce(ctx, &kgo.Record{Partition: int32(partition), Value: r.payload.value(n*int64(r.records) + int64(i))}, func(_ *kgo.Record, err error) {
				if err != nil && failed == nil {
					failed = err
				}
			})
		}
		if err := conn.Flush(ctx); err != nil {
			return conn.fail("produce to topic "+r.topic.Topic, err)
		}
		if failed != nil {
			return conn.fail("produce to topic "+r.topic.Topic, failed)
		}
		asked := time.Now()
		abort := r.abortEvery > 0 && n%r.abortEvery == 0
		if err := conn.EndTransaction(ctx, kgo.TransactionEndTry(!abort)); err != nil {
			return conn.fail("end a transaction", err)
		}
		r.count(began, asked, time.Now(), abort, bar)
	}
	return nil
}

// count counts one transaction.
func (r *transactionRun) count(began, asked, ended time.Time, aborted bool, bar *progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bar.add(1)
	if began.Before(r.counts) {
		return
	}
	r.done.Transactions++
	r.done.Records += int64(r.records)
	if aborted {
		r.done.Aborted++
	}
	r.commits.add(ended.Sub(asked))
	r.whole.add(ended.Sub(began))
}
