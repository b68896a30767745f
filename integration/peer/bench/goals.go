package main

import (
	"fmt"
	"regexp"
)

// A goal is a bound on a ratio that every row it speaks of must keep.
type goal struct {
	text    string
	rows    *regexp.Regexp
	metric  string
	ours    variant
	against variant
	bound   float64
	atLeast bool   // else at most
	base    string // the row that ours is compared with, at the variant against; "" is the same row
}

// goals are the figures to reach, by the number of brokers.
var goals = map[int][]goal{1: oneBrokerGoals, 3: threeBrokerGoals}

var oneBrokerGoals = []goal{
	{"produce, same promise as Kafka: records/s", regexp.MustCompile(`^produce/.*/none/`), "k records/s", unsynced, kafka, 1.3, true, ""},
	{"produce, same promise as Kafka: broker CPU per record", regexp.MustCompile(`^produce/.*/none/`), "CPU µs/record", unsynced, kafka, 0.5, false, ""},
	{"produce, fsync before ack, against Kafka without, 1 MiB batches: records/s", regexp.MustCompile(`^produce/.*/none/.*-1M$`), "k records/s", synced, kafka, 0.8, true, ""},
	{"produce, fsync before ack, against Kafka with flush.messages=1: records/s", regexp.MustCompile(`^produce/.*/acks=all/.*/none/`), "k records/s", synced, flushed, 3, true, ""},
	{"consume: records/s", regexp.MustCompile(`^consume/`), "k records/s", synced, kafka, 1.2, true, ""},
	{"consume: broker CPU per record", regexp.MustCompile(`^consume/`), "CPU µs/record", synced, kafka, 0.7, false, ""},
	{"end to end at 1,000/s, same promise as Kafka: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", unsynced, kafka, 0.5, false, ""},
	{"end to end at 1,000/s, both as shipped: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", synced, kafka, 0.5, false, ""},
	{"start to first Metadata answer", regexp.MustCompile(`^start`), "ms", synced, kafka, 0.05, false, ""},
	{"memory idle", regexp.MustCompile(`^memory idle`), "MiB", synced, kafka, 0.1, false, ""},
	{"memory under load (peak)", regexp.MustCompile(`^memory under`), "MiB", synced, kafka, 0.15, false, ""},
}

var threeBrokerGoals = append([]goal{
	{"produce, same promise as Kafka: records/s", regexp.MustCompile(`^produce/.*/p6/`), "k records/s", unsynced, kafka, 2, true, ""},
	{"produce, fsync on all three before ack, against Kafka without: records/s", regexp.MustCompile(`^produce/.*/p6/`), "k records/s", synced, kafka, 1, true, ""},
	{"end to end at 1,000/s, same promise as Kafka: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", unsynced, kafka, 0.5, false, ""},
	{"end to end at 1,000/s, both as shipped: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", synced, kafka, 0.5, false, ""},
	{"end to end at 10,000/s, same promise as Kafka: p99", regexp.MustCompile(`^e2e/10000 `), "p99 ms", unsynced, kafka, 0.5, false, ""},
	{"end to end at 10,000/s, both as shipped: p99", regexp.MustCompile(`^e2e/10000 `), "p99 ms", synced, kafka, 0.5, false, ""},
	{"kill -9 of a leader to the next acknowledgement", regexp.MustCompile(`^kill/`), "ms", synced, kafka, 0.3, false, ""},
	{"three brokers from nothing to the first acknowledged record", regexp.MustCompile(`^start of three`), "ms", synced, kafka, 0.3, false, ""},
}, append(transactionGoals(), manyPartitionGoals()...)...)

// manyPartitionGoals compare our rows of many partitions with our own of few.
func manyPartitionGoals() (out []goal) {
	for _, v := range []struct {
		variant variant
		text    string
	}{{synced, "as shipped"}, {unsynced, "flush.ack=false"}} {
		for _, c := range clients {
			out = append(out, goal{
				text: fmt.Sprintf("%d partitions beside our own %d, %s, %s: records/s", manyPartitions, fewPartitions, v.text, c.name), rows: regexp.MustCompile("^" + rowThree("partitions", 100, manyPartitions, c.name) + "$"),
				metric: "k records/s", ours: v.variant, against: v.variant, bound: 0.7, atLeast: true, base: rowThree("partitions", 100, fewPartitions, c.name),
			})
		}
	}
	return out
}

// met says whether a ratio keeps the goal.
func (g goal) met(ratio float64) bool {
	if g.atLeast {
		return ratio >= g.bound
	}
	return ratio <= g.bound
}

// worse says whether ratio a is worse than b for the goal.
func (g goal) worse(a, b float64) bool { return (a < b) == g.atLeast && a != b }

// keys are the values that the goal compares in a row.
func (g goal) keys(row string) (ours, against key) {
	base := g.base
	if base == "" {
		base = row
	}
	return key{row, g.ours, g.metric}, key{base, g.against, g.metric}
}
