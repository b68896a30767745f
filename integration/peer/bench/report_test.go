package main

import (
	"math"
	"regexp"
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
	r := &results{values: map[key][]float64{}, options: options{rounds: 1}}
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

	for _, g := range goals {
		require.True(t, g.met(g.bound), g.text)
		require.NotEqual(t, g.met(g.bound*1.1), g.met(g.bound*0.9), g.text)
		require.Equal(t, g.atLeast, g.worse(1, 2), g.text)
		require.False(t, g.worse(1, 1), g.text)
	}
}

// Every goal speaks of rows that the quick preset has: a goal nobody measures is always met.
func TestGoalsHaveRows(t *testing.T) {
	b := &bench{options: options{quick: true, seconds: 1}}
	names := []string{"start to first Metadata answer", "memory idle", "memory under load"}
	seen := map[string]bool{}
	for _, c := range b.cells() {
		require.False(t, seen[c.name], "two rows %s", c.name)
		seen[c.name] = true
		names = append(names, c.name)
	}
	for _, g := range goals {
		found := false
		for _, n := range names {
			found = found || g.rows.MatchString(n)
		}
		require.True(t, found, g.text)
	}
	full := &bench{options: options{seconds: 1}}
	require.Greater(t, len(full.cells()), len(b.cells()))
}
