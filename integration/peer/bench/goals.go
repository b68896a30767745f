package main

import (
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
	atLeast bool // else at most
}

// goals are the figures to reach.
var goals = []goal{
	{"produce, same promise as Kafka: records/s", regexp.MustCompile(`^produce/.*/none/`), "k records/s", unsynced, kafka, 1.3, true},
	{"produce, same promise as Kafka: broker CPU per record", regexp.MustCompile(`^produce/.*/none/`), "CPU µs/record", unsynced, kafka, 0.5, false},
	{"produce, fsync before ack, against Kafka without, 1 MiB batches: records/s", regexp.MustCompile(`^produce/.*/none/.*-1M$`), "k records/s", synced, kafka, 0.8, true},
	{"produce, fsync before ack, against Kafka with flush.messages=1: records/s", regexp.MustCompile(`^produce/.*/acks=all/.*/none/`), "k records/s", synced, flushed, 3, true},
	{"consume: records/s", regexp.MustCompile(`^consume/`), "k records/s", synced, kafka, 1.2, true},
	{"consume: broker CPU per record", regexp.MustCompile(`^consume/`), "CPU µs/record", synced, kafka, 0.7, false},
	{"end to end at 1,000/s, same promise as Kafka: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", unsynced, kafka, 0.5, false},
	{"end to end at 1,000/s, both as shipped: p99", regexp.MustCompile(`^e2e/1000 `), "p99 ms", synced, kafka, 0.5, false},
	{"start to first Metadata answer", regexp.MustCompile(`^start`), "ms", synced, kafka, 0.05, false},
	{"memory idle", regexp.MustCompile(`^memory idle`), "MiB", synced, kafka, 0.1, false},
	{"memory under load (peak)", regexp.MustCompile(`^memory under`), "MiB", synced, kafka, 0.15, false},
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
