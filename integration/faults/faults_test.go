package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

func TestRecordValues(t *testing.T) {
	sizes := map[int]bool{}
	for n := range int64(100) {
		v := check.Value(7, n)
		b := recordValue(v)
		sizes[len(b)] = true
		require.Equal(t, v, valueOf(b))
	}
	require.Len(t, sizes, 2, "small records and large ones")
	require.Equal(t, int64(-1), valueOf([]byte("short")))
}

// Part 2 of correctness.md: what may be called definite.
func TestOutcomes(t *testing.T) {
	for _, err := range []error{kerr.CorruptMessage, kerr.NotLeaderForPartition, kerr.MessageTooLarge, kerr.NotEnoughReplicas, kerr.InvalidRecord, fmt.Errorf("ask: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})} {
		require.Equal(t, check.Fail, outcome(err), "%v", err)
	}
	for _, err := range []error{kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError, &net.OpError{Op: "read", Err: errors.New("reset")}, errors.New("anything")} {
		require.Equal(t, check.Info, outcome(err), "%v", err)
	}
}

func TestSettle(t *testing.T) {
	answer := func(code int16) (check.Op, error) {
		o := check.Op{Type: check.OK}
		err := settle(&o, code)
		return o, err
	}
	o, err := answer(0)
	require.NoError(t, err)
	require.Equal(t, check.OK, o.Type)
	for code, want := range map[int16]string{kerr.TopicAlreadyExists.Code: check.Exists, kerr.UnknownTopicOrPartition.Code: check.Missing} {
		o, err = answer(code)
		require.NoError(t, err)
		require.Equal(t, check.Fail, o.Type)
		require.Equal(t, want, o.Error)
	}
	o, err = answer(kerr.InvalidReplicationFactor.Code)
	require.NoError(t, err)
	require.Equal(t, check.Fail, o.Type, "nothing was done")
	_, err = answer(kerr.RequestTimedOut.Code)
	require.Error(t, err, "nobody knows")
}

// A poll goes into the history with each offset where there is a gap, and only with the first where there is none.
func TestNoteFetches(t *testing.T) {
	name := filepath.Join(t.TempDir(), "history")
	w, err := check.NewWriter(name)
	require.NoError(t, err)
	r := &run{history: w}
	poll := func(offsets ...int64) {
		var records []*kgo.Record
		for _, o := range offsets {
			records = append(records, &kgo.Record{Offset: o, Value: recordValue(check.Value(1, o))})
		}
		r.noteFetches(check.Poll, 2, kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "t", Partitions: []kgo.FetchPartition{{Partition: 3, Records: records}}}}}})
	}
	poll(5, 6)
	poll(7, 9)
	poll()
	require.NoError(t, w.Close())
	ops, err := check.ReadFile(name)
	require.NoError(t, err)
	require.Len(t, ops, 2)
	require.Equal(t, check.Key("t", 3), ops[0].Key)
	require.Equal(t, int64(5), ops[0].Offset)
	require.Empty(t, ops[0].Offsets)
	require.Equal(t, []int64{7, 9}, ops[1].Offsets)
	require.Equal(t, []int64{check.Value(1, 7), check.Value(1, 9)}, ops[1].Values)
}

func TestGapMeter(t *testing.T) {
	g := gapMeter{last: map[string]time.Time{"a": time.Now().Add(-3 * time.Second)}, longest: map[string]time.Duration{}}
	g.note("a", nil)
	g.note("b", nil)
	g.note("b", errors.New("refused"))
	require.GreaterOrEqual(t, g.of([]string{"a", "b"}), 3*time.Second)
	require.Less(t, g.of([]string{"b"}), 3*time.Second)
	require.Equal(t, 2, g.acked)
	require.Len(t, g.failed, 1)
	g.reset()
	require.Less(t, g.of([]string{"a"}), 3*time.Second, "only the one that has begun since")

	n, median, worst := spread([]sample{{gap: time.Second}, {gap: 3 * time.Second, controller: true}, {gap: 2 * time.Second}}, false)
	require.Equal(t, []any{3, 2 * time.Second, 3 * time.Second}, []any{n, median, worst})
	n, median, worst = spread([]sample{{gap: time.Second}, {gap: 3 * time.Second, controller: true}}, true)
	require.Equal(t, []any{1, 3 * time.Second, 3 * time.Second}, []any{n, median, worst})
}

func TestChoose(t *testing.T) {
	list, err := (&options{only: "s1,S7"}).choose()
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "S7", list[1].name)
	_, err = (&options{only: "S99"}).choose()
	require.Error(t, err)
	_, err = (&options{tier: "t9"}).choose()
	require.Error(t, err)
	for _, all := range [][]*scenario{scenarios, tierOne} {
		for _, s := range all {
			require.True(t, (s.round == nil) != (s.script == nil), "%s: rounds, or a script", s.name)
		}
	}
	for _, s := range mutants {
		require.NotNil(t, s.script, s.name)
	}
}

// S10 does not pass unless each way was played to its end: what comes to nothing is played again, a bounded number of times,
// and then named.
func TestLateDeck(t *testing.T) {
	cards := lateCards()
	require.Len(t, cards, 3*2*2*3)
	holes := 0
	for _, c := range cards {
		if c.hole() {
			holes++
			require.False(t, c.second || c.timedOut, "%s", c)
		}
	}
	require.Equal(t, 4, holes)

	d := newLateDeck(cards, newRandom(1))
	require.Len(t, d.notDrawn(), len(cards))
	unlucky := cards[7]
	for {
		c, ok := d.draw()
		if !ok {
			break
		}
		if c == unlucky {
			d.back(c, errLost)
		} else {
			d.judge(c, "refused")
		}
	}
	require.Equal(t, lateAttempts, d.tried[unlucky])
	require.Len(t, d.notDrawn(), 1)
	require.Contains(t, d.notDrawn()[0], unlucky.String())
	require.Contains(t, d.notes()[0], "35 of 36")
}

// The answer to a late request is a judgement only if the broker that gave it is the one that may judge.
func TestRefusal(t *testing.T) {
	for _, err := range []error{kerr.InvalidTxnState, kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.TransactionAbortable, kerr.ConcurrentTransactions} {
		require.True(t, refusal(err), "%v", err)
	}
	for _, err := range []error{errLost, kerr.NotLeaderForPartition, kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.NotEnoughReplicas, kerr.RequestTimedOut} {
		require.False(t, refusal(err), "%v", err)
	}
}

// I20: what a broker holds beyond its room fails the run, each figure by itself.
func TestGrown(t *testing.T) {
	base := cluster.Vitals{Goroutines: 100, Sockets: 20, ResidentBytes: 60 << 20}
	require.NoError(t, grown(base, base))
	require.NoError(t, grown(base, cluster.Vitals{Goroutines: 100 + roomGoroutines, Sockets: 20 + roomSockets, ResidentBytes: (60 + roomResidentMiB) << 20}))
	for what, now := range map[string]cluster.Vitals{
		"goroutines": {Goroutines: 101 + roomGoroutines}, "sockets": {Sockets: 21 + roomSockets}, "deleted files": {Deleted: 1}, "memory": {ResidentBytes: (61 + roomResidentMiB) << 20},
	} {
		require.ErrorContains(t, grown(base, now), what)
	}
}

// A line that no broker may print fails the run.
func TestScanOutput(t *testing.T) {
	dir := t.TempDir()
	clean, bad := filepath.Join(dir, "clean"), filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(clean, []byte("{\"msg\":\"broker serves\"}\n"), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("x\npanic: runtime error\n"), 0o600))
	r := &run{}
	r.scanFile(1, clean)
	require.Empty(t, r.failures.list)
	r.scanFile(2, bad)
	require.Len(t, r.failures.list, 1)
	require.Contains(t, r.failures.list[0], "node 2 printed: panic:")
}
