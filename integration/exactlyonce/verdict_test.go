package main

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// entries makes a partition of values with gaps between their offsets, as markers and aborted records leave them.
func entries(key string, values ...string) (out []entry) {
	for i, v := range values {
		out = append(out, entry{int64(3*i + 1), key, v})
	}
	return out
}

// requireComplaint wants complaints of just these kinds.
func requireComplaint(t *testing.T, got []string, kinds ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, line := range got {
		kind, _, _ := strings.Cut(line, ":")
		found[kind] = true
	}
	want := map[string]bool{}
	for _, kind := range kinds {
		want[kind] = true
	}
	require.Equal(t, want, found, "%q", got)
}

// A word that was counted twice, or not at all, or in two places, is noticed (I8).
func TestCountsAreJudged(t *testing.T) {
	sent := map[string]int{"a": 3, "b": 2}
	for name, c := range map[string]struct {
		counts reading
		kinds  []string
	}{
		"exact":              {reading{0: entries("a", "1", "2", "3"), 1: entries("b", "1", "2")}, nil},
		"processed twice":    {reading{0: entries("a", "1", "2", "3", "4"), 1: entries("b", "1", "2")}, []string{"wrong"}},
		"published twice":    {reading{0: entries("a", "1", "2", "2", "3"), 1: entries("b", "1", "2")}, []string{"duplicate"}},
		"output lost":        {reading{0: entries("a", "1", "3"), 1: entries("b", "1", "2")}, []string{"gap"}},
		"input lost":         {reading{0: entries("a", "1", "2"), 1: entries("b", "1", "2")}, []string{"wrong"}},
		"state lost":         {reading{0: entries("a", "1", "2", "1"), 1: entries("b", "1", "2")}, []string{"duplicate", "wrong"}},
		"in two partitions":  {reading{0: entries("a", "1", "2"), 1: append(entries("b", "1", "2"), entries("a", "3")...)}, []string{"torn"}},
		"a word of no line":  {reading{0: entries("a", "1", "2", "3"), 1: append(entries("b", "1", "2"), entries("x", "1")...)}, []string{"phantom"}},
		"a count of letters": {reading{0: entries("a", "1", "2", "x", "3"), 1: entries("b", "1", "2")}, []string{"odd"}},
		"nothing":            {reading{}, []string{"wrong"}},
	} {
		t.Run(name, func(t *testing.T) { requireComplaint(t, judgeCounts(c.counts, sent), c.kinds...) })
	}
}

// What an idempotent producer was told is written is there, once, and where it was told (I1, I7).
func TestSentNumbersAreJudged(t *testing.T) {
	whole := reading{0: entries("", "0", "2"), 1: entries("", "1")}
	told := map[string]place{"0": {0, 1}, "1": {1, 1}, "2": {0, 4}}
	requireComplaint(t, judgeSent(whole, 3, told))
	requireComplaint(t, judgeSent(reading{0: entries("", "0", "2"), 1: nil}, 3, told), "lost")
	requireComplaint(t, judgeSent(reading{0: entries("", "0", "2", "1"), 1: entries("", "1")}, 3, told), "duplicate", "moved")
	requireComplaint(t, judgeSent(reading{0: entries("", "0", "1"), 1: entries("", "2")}, 3, told), "moved")
	requireComplaint(t, judgeSent(reading{0: entries("", "0", "2"), 1: entries("", "1", "x")}, 3, told), "phantom")
}

// A copy has each record once and in order (I8).
func TestCopiesAreJudged(t *testing.T) {
	original := reading{0: entries("", "0", "1", "2"), 1: entries("", "3"), 2: nil}
	requireComplaint(t, judgeCopy(original, reading{0: entries("", "0", "1", "2"), 1: entries("", "3"), 2: nil}))
	requireComplaint(t, judgeCopy(original, reading{0: entries("", "0", "1", "1", "2"), 1: entries("", "3")}), "duplicate", "order", "count")
	requireComplaint(t, judgeCopy(original, reading{0: entries("", "0", "1", "2"), 1: nil}), "gap", "count")
	requireComplaint(t, judgeCopy(original, reading{0: entries("", "0", "2", "1"), 1: entries("", "3")}), "order")
	requireComplaint(t, judgeCopy(original, reading{0: entries("", "0", "1", "2"), 1: entries("", "3"), 7: entries("", "9")}), "phantom")
}

// A consumer of read_committed may see a record twice, but none that was aborted, and it sees all (I3).
func TestConsumedRecordsAreJudged(t *testing.T) {
	topic := reading{0: entries("", "0", "1")}
	requireComplaint(t, judgeConsumed(topic, map[place]string{{0, 1}: "0", {0, 4}: "1"}))
	requireComplaint(t, judgeConsumed(topic, map[place]string{{0, 1}: "0"}), "unseen")
	requireComplaint(t, judgeConsumed(topic, map[place]string{{0, 1}: "0", {0, 4}: "1", {0, 2}: "5"}), "aborted read")
	requireComplaint(t, judgeConsumed(topic, map[place]string{{0, 1}: "0", {0, 4}: "2"}), "changed")
}

// A cause that makes a complaint for every record makes a few, and their number.
func TestComplaintsAreFew(t *testing.T) {
	var c complaints
	for i := range 1000 {
		c.add("gap", "%d", i)
	}
	require.Len(t, c.lines(), complaintsOfAKind+1)
	require.Equal(t, "gap: "+strconv.Itoa(1000-complaintsOfAKind)+" more", c.lines()[complaintsOfAKind])
}

// The lines of Apache Kafka's verifiable programs are understood, others are passed over.
func TestLinesOfToolsAreRead(t *testing.T) {
	w := newToolWatch()
	for _, line := range []string{
		`{"timestamp":1,"name":"startup_complete"}`,
		`{"timestamp":1,"name":"producer_send_success","key":null,"value":"7","topic":"t","partition":2,"offset":11}`,
		`{"timestamp":1,"name":"producer_send_error","key":null,"value":"8","topic":"t","exception":"class x","message":"no"}`,
		`{"timestamp":1,"name":"record_data","key":null,"value":"7","topic":"t","partition":1,"offset":3}`,
		`{"timestamp":1,"name":"record_data","key":null,"value":"7","topic":"t","partition":1,"offset":3}`,
		`{"timestamp":1,"name":"record_data","key":null,"value":"9","topic":"t","partition":1,"offset":3}`,
		`12:00:00.000 WARN something of the client`,
	} {
		w.line(line)
	}
	require.Equal(t, map[string]place{"7": {2, 11}}, w.values)
	require.Equal(t, []string{"value 8: no"}, w.errors)
	require.Len(t, w.odd, 1)
	require.Len(t, w.places, 1)
}
