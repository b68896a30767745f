package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// The shape of the transactions that are measured: the clients, their records and partitions are those of the goal.
const (
	transactionProducers  = 16
	transactionRecords    = 100
	transactionPartitions = 3
)

// isolationRecords is how many records the topics hold that are read at both isolation levels, and abortEvery how many of the second
// one's transactions there are for one that was aborted.
const (
	isolationRecords = 1_000_000
	abortEvery       = 10
)

// isolationTopics are read at both isolation levels.
var isolationTopics = []struct {
	name string
	args []string
}{
	{"committed", nil},
	{fmt.Sprintf("1 in %d aborted", abortEvery), []string{"--abort-every", strconv.Itoa(abortEvery)}},
}

func isolationTopic(i int) string { return fmt.Sprintf("isolation-%d", i) }

// isolationLevels are those of a consumer, with the flags of bench consume.
var isolationLevels = []struct {
	name string
	args []string
}{{"read_uncommitted", nil}, {"read_committed", []string{"--read-committed"}}}

// rowTransactions is the row of one protocol of transactions: 1 is what clients before Kafka 4 speak, 2 that of KIP-890.
func rowTransactions(protocol int) string { return fmt.Sprintf("txn/TV%d", protocol) }

// rowIsolation is the row that reads one of the topics at one isolation level.
func rowIsolation(level, topic, client string) string {
	return fmt.Sprintf("isolation/%s/%s/%s", level, topic, client)
}

// transactionRows are the rows of transactions of three brokers.
func (b *bench) transactionRows() (list []cell) {
	// A second says little about a few hundred transactions, each of them some milliseconds long.
	duration := time.Duration(4 * b.seconds * float64(time.Second)).String()
	for _, protocol := range []int{1, 2} {
		list = append(list, cell{
			name: rowTransactions(protocol), kind: "txn", partitions: fewPartitions, variants: []variant{synced, unsynced, kafka},
			args: append(b.transactionArgs(), "--protocol", strconv.Itoa(protocol), "--duration", duration),
		})
	}
	for i, topic := range isolationTopics {
		for _, client := range []string{"client", "raw"} {
			for _, level := range isolationLevels {
				args := append([]string{"consume"}, level.args...)
				if client == "raw" {
					args = append(args, "--raw")
				}
				list = append(list, cell{name: rowIsolation(level.name, topic.name, client), kind: "isolation", topic: isolationTopic(i), args: args, variants: []variant{synced, kafka}})
			}
		}
	}
	return list
}

// transactionArgs are those of a run of bench txn.
func (b *bench) transactionArgs() []string {
	return []string{
		"txn", "--producers", strconv.Itoa(transactionProducers), "--records", strconv.Itoa(transactionRecords),
		"--partitions", strconv.Itoa(transactionPartitions), "--warm-up", "500ms",
		"--timeout", "60s", // Apache Kafka makes its topic of transactions when it is first asked
	}
}

// fillIsolation makes the topics that are read at both isolation levels, if a row wants them. Reading costs by the batch and by the
// transaction that is aborted; a transaction of 1,000 records over three partitions has batches as large as a client's usual ones.
func (b *bench) fillIsolation(ctx context.Context, s *system, cells []cell) error {
	for i, topic := range isolationTopics {
		wanted := false
		for _, c := range cells {
			wanted = wanted || c.topic == isolationTopic(i)
		}
		if !wanted {
			continue
		}
		if err := s.create(ctx, isolationTopic(i), fewPartitions, nil); err != nil {
			return err
		}
		args := append([]string{"txn", "-t", isolationTopic(i), "--producers", "8", "--records", "1000", "--warm-up", "0s", "--timeout", "60s", "-n", strconv.Itoa(isolationRecords)}, topic.args...)
		if _, err := s.drive(ctx, b.binary, args...); err != nil {
			return err
		}
	}
	return settle(ctx)
}

// transactionGoals are the figures of transactions to reach.
func transactionGoals() (out []goal) {
	for _, protocol := range []int{1, 2} {
		out = append(out, goal{fmt.Sprintf("transactions of %d records over %d partitions, TV%d, fsync before ack, against Kafka without: transactions/s", transactionRecords, transactionPartitions, protocol),
			regexp.MustCompile("^" + rowTransactions(protocol) + "$"), transactionsMetric, synced, kafka, 1, true, ""})
	}
	for _, topic := range isolationTopics {
		for _, client := range []string{"client", "raw"} {
			committed, uncommitted := rowIsolation("read_committed", topic.name, client), rowIsolation("read_uncommitted", topic.name, client)
			out = append(out, goal{fmt.Sprintf("read_committed beside our own read_uncommitted, %s, %s: offsets/s", topic.name, client),
				regexp.MustCompile("^" + regexp.QuoteMeta(committed) + "$"), offsetsMetric, synced, synced, 0.9, true, uncommitted})
		}
	}
	return out
}

// Metrics of these rows.
const (
	transactionsMetric = "transactions/s"
	commitP50Metric    = "commit p50 ms"
	commitP99Metric    = "commit p99 ms"
	wholeP50Metric     = "whole p50 ms"
	wholeP99Metric     = "whole p99 ms"
	cpuMetric          = "CPU ms/transaction"
	offsetsMetric      = "k offsets/s"
)

// addTransactions keeps what a run of transactions showed.
func (b *bench) addTransactions(row string, v variant, out outcome) {
	perTransaction := float64(out.cpu.Microseconds()) / 1e3 / out.Transactions
	b.results.add(row, v, transactionsMetric, out.TransactionsPerSecond)
	b.results.add(row, v, commitP50Metric, out.Commit.P50)
	b.results.add(row, v, commitP99Metric, out.Commit.P99)
	b.results.add(row, v, wholeP50Metric, out.Latency.P50)
	b.results.add(row, v, wholeP99Metric, out.Latency.P99)
	b.results.add(row, v, cpuMetric, perTransaction)
	say("%-48s %-28s %.0f/s, commit p50 %.2f p99 %.2f, whole p50 %.2f p99 %.2f ms, %.2f ms of CPU each, others %.0f%%", row, variants[v].name,
		out.TransactionsPerSecond, out.Commit.P50, out.Commit.P99, out.Latency.P50, out.Latency.P99, perTransaction, out.others)
}

// addIsolation keeps what a run at one isolation level showed.
func (b *bench) addIsolation(row string, v variant, out outcome) {
	b.results.add(row, v, offsetsMetric, out.OffsetsPerSecond/1e3)
	say("%-48s %-28s %8.0f k offsets/s, others %.0f%%", row, variants[v].name, out.OffsetsPerSecond/1e3, out.others)
}
