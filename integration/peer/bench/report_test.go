package main

import (
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ratio is the median of the rounds' ratios, not the ratio of medians: in a round both brokers met the same machine.
func TestRatioPairsRounds(t *testing.T) {
	r := &results{values: map[key][]float64{}}
	for _, round := range [][2]float64{{10, 5}, {100, 50}, {3, 1}} {
		r.add("row", synced, "m", round[0])
		r.add("row", kafka, "m", round[1])
	}
	mid, low, high, ok := r.ratio("row", "m", synced, kafka)
	require.True(t, ok)
	require.Equal(t, []float64{2, 2, 3}, []float64{mid, low, high})
	_, _, _, ok = r.ratio("row", "m", synced, flushed)
	require.False(t, ok)
	require.True(t, math.IsNaN(median(nil)))
	require.Equal(t, 2.5, median([]float64{4, 1, 2, 3}))
}

// The table of goals names the worst row, and says so when a row misses.
func TestGoalsNameTheWorstRow(t *testing.T) {
	r := &results{brokers: 1, values: map[key][]float64{}}
	rows := []struct {
		name         string
		ours, theirs float64
	}{{"produce/a/none/x", 130, 100}, {"produce/b/none/x", 120, 100}, {"produce/c/none/x", 500, 100}}
	for _, row := range rows {
		r.add(row.name, unsynced, "k records/s", row.ours)
		r.add(row.name, kafka, "k records/s", row.theirs)
	}
	text := r.markdown()
	line := regexp.MustCompile(`(?m)^\| produce, same promise as Kafka: records/s \|.*$`).FindString(text)
	require.Contains(t, line, "**2 of 3**")
	require.Contains(t, line, "produce/b/none/x | 1.20x")
	require.NotContains(t, text, "consume: records/s", "what was not measured is no goal")

	for _, g := range slices.Concat(oneBrokerGoals, threeBrokerGoals) {
		require.True(t, g.met(g.bound), g.text)
		require.NotEqual(t, g.met(g.bound*1.1), g.met(g.bound*0.9), g.text)
		require.Equal(t, g.atLeast, g.worse(1, 2), g.text)
		require.False(t, g.worse(1, 1), g.text)
	}
}

// Every goal speaks of rows that the quick preset has: a goal nobody measures is always met.
func TestGoalsHaveRows(t *testing.T) {
	for brokers, apart := range map[int][]string{
		1: {"start to first Metadata answer", "memory idle", "memory under load"},
		3: {rowStartThree, rowKill, rowKillBoth, "memory idle", "memory under load"},
	} {
		b := &bench{brokers: brokers, options: options{quick: true, seconds: 1}}
		measured := map[key]bool{}
		for _, row := range apart {
			for _, metric := range []string{"ms", "MiB"} {
				measured[key{row, synced, metric}], measured[key{row, kafka, metric}] = true, true
			}
		}
		for _, c := range b.cells() {
			metrics := []string{"k records/s", "CPU µs/record"}
			switch c.kind {
			case "e2e":
				metrics = []string{"p99 ms"}
			case "txn":
				metrics = []string{transactionsMetric}
			case "isolation":
				metrics = []string{offsetsMetric}
			}
			for _, v := range c.variants {
				require.False(t, measured[key{c.name, v, metrics[0]}], "two rows %s", c.name)
				for _, m := range metrics {
					measured[key{c.name, v, m}] = true
				}
			}
		}
		for _, g := range goals[brokers] {
			rows := 0
			for of := range measured {
				if ours, against := g.keys(of.row); g.rows.MatchString(of.row) && measured[ours] && measured[against] {
					rows++
				}
			}
			require.NotZero(t, rows, g.text)
		}
		full := &bench{brokers: brokers, options: options{seconds: 1}}
		require.GreaterOrEqual(t, len(full.cells()), len(b.cells()))
	}
}

// A row of many partitions is compared with our own row of few, and a goal of theirs is missed below 70 %.
func TestGoalComparesWithAnotherRow(t *testing.T) {
	r := &results{brokers: 3, values: map[key][]float64{}}
	r.add(rowThree("partitions", 100, fewPartitions, "raw-16K"), synced, "k records/s", 200)
	r.add(rowThree("partitions", 100, manyPartitions, "raw-16K"), synced, "k records/s", 130)
	r.add(rowThree("partitions", 100, fewPartitions, "client-1M"), synced, "k records/s", 200)
	r.add(rowThree("partitions", 100, manyPartitions, "client-1M"), synced, "k records/s", 150)
	text := r.markdown()
	require.Regexp(t, `as shipped, raw-16K: records/s \| ≥ 0.7x \| \*\*0 of 1\*\* \| partitions/100B/p1000/raw-16K \| 0.650x`, text)
	require.Regexp(t, `as shipped, client-1M: records/s \| ≥ 0.7x \| 1 of 1 \| partitions/100B/p1000/client-1M \| 0.750x`, text)
}

// Rounds that were run one by one make the table that they would have made together.
func TestKeptRoundsCount(t *testing.T) {
	o := options{keep: filepath.Join(t.TempDir(), "values.json")}
	round := func(brokers int, ours, theirs float64) *results {
		r := &results{options: o, brokers: brokers, values: map[key][]float64{}}
		require.NoError(t, r.load())
		r.add("row", unsynced, "m", ours)
		r.add("row", kafka, "m", theirs)
		require.NoError(t, r.save())
		return r
	}
	round(3, 10, 5)
	round(1, 7, 7)
	r := round(3, 9, 3)
	require.Equal(t, 2, r.rounds())
	mid, low, high, _ := r.ratio("row", "m", unsynced, kafka)
	require.Equal(t, []float64{2.5, 2, 3}, []float64{mid, low, high})
	again := &results{options: o, brokers: 3, values: map[key][]float64{}}
	require.NoError(t, again.load())
	require.Equal(t, r.values, again.values)
	require.Equal(t, r.order, again.order)
}

// The tables of one set are written anew; those of the other, and what a person wrote, stay.
func TestReplaceSetLeavesTheRest(t *testing.T) {
	file := replaceSet("", 1, "one\n")
	file = replaceSet(file+"\nby hand\n", 3, "three\n")
	require.Equal(t, file, replaceSet(file, 3, "three"))
	again := replaceSet(replaceSet(file, 1, "uno"), 3, "tre")
	require.Equal(t, strings.NewReplacer("one", "uno", "three", "tre").Replace(file), again)
	require.Contains(t, again, "by hand")
}
