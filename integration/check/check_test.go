package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// history builds hand-made histories: each call appends lines, one tick apart.
type history struct{ ops []Op }

func (h *history) add(ops ...Op) *history {
	for _, o := range ops {
		o.Time = int64(len(h.ops)+1) * int64(time.Millisecond)
		h.ops = append(h.ops, o)
	}
	return h
}

func (h *history) producer(process int, kind string) *history {
	return h.add(Op{F: Producer, Type: OK, Process: process, Text: kind})
}

// send is a whole send of value n: offset < 0 leaves it indefinite.
func (h *history) send(process int, key string, n, offset int64) *history {
	o := Op{F: Send, Type: Invoke, Process: process, Key: key, Value: Value(process, n)}
	h.add(o)
	o.Type, o.Offset = OK, offset
	if offset < 0 {
		o.Type, o.Offset, o.Error = Info, 0, "timed out"
	}
	return h.add(o)
}

func (h *history) refused(process int, key string, n int64) *history {
	o := Op{F: Send, Type: Invoke, Process: process, Key: key, Value: Value(process, n)}
	h.add(o)
	o.Type, o.Error = Fail, "NOT_ENOUGH_REPLICAS"
	return h.add(o)
}

// polled is one poll: pairs of offset and value.
func (h *history) polled(f F, process int, key string, pairs ...int64) *history {
	o := Op{F: f, Type: OK, Process: process, Key: key}
	for i := 0; i < len(pairs); i += 2 {
		o.Offsets, o.Values = append(o.Offsets, pairs[i]), append(o.Values, pairs[i+1])
	}
	return h.add(o)
}

func (h *history) probe(f F, process int, key string, sent, answered int32, offset int64) *history {
	return h.add(Op{F: f, Type: Invoke, Process: process, Key: key, Epoch: sent}, Op{F: f, Type: OK, Process: process, Key: key, Epoch: answered, Offset: offset})
}

func (h *history) topic(f F, process int, name string, done Type, id, why string) *history {
	return h.add(Op{F: f, Type: Invoke, Process: process, Key: name}, Op{F: f, Type: done, Process: process, Key: name, Text: id, Error: why})
}

// committed tells the checker the end of a key without a reading.
func (h *history) committed(key string, end int64) *history {
	return h.probe(HighWatermark, 900, key, 0, 0, end)
}

// v is a value of process 1.
func v(n int64) int64 { return Value(1, n) }

// two sends two values of an idempotent producer to offsets 0 and 1.
func two() *history {
	return new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/0", 1, 1)
}

// checkRow is a history that must fail with exactly one finding, and one close to it that must pass.
type checkRow struct {
	name string
	want Kind
	bad  *history
	good *history
}

// checkRows has each row of correctness.md part 4.
func checkRows() []checkRow {
	dump := func(node int, crc uint32, values ...int64) Op {
		o := Op{F: Dump, Type: OK, Node: node, Key: "t/0", Values: values}
		if len(values) > 0 {
			o.Batches = []Batch{{Base: 0, Last: int64(len(values) - 1), Epoch: 3, CRC: crc}}
		}
		return o
	}
	return append(append([]checkRow{
		{
			"two acknowledgements of one offset", InconsistentOffset,
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/1", 1, 0).send(1, "t/0", 2, 0).polled(Poll, 2, "t/1", 0, v(1)).polled(Poll, 2, "t/0", 0, v(0)),
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/1", 1, 0).send(1, "t/0", 2, 1).polled(Poll, 2, "t/1", 0, v(1)).polled(Poll, 2, "t/0", 0, v(0), 1, v(2)),
		},
		{
			"a poll of another value than was acknowledged", InconsistentOffset,
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/0", 1, -1).polled(Poll, 2, "t/0", 0, v(1)),
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/0", 1, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)),
		},
		{
			"a value in another partition than it was sent to", InconsistentOffset,
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).polled(Poll, 2, "t/1", 0, v(1)),
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)),
		},
		{
			"a value that nobody sent", InconsistentOffset,
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(77)),
			two().send(1, "t/0", 77, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(77)),
		},
		{
			"a file that holds another value than was read", InconsistentOffset,
			two().send(1, "t/0", 2, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(dump(1, 7, v(0), v(2))),
			two().send(1, "t/0", 2, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(dump(1, 7, v(0), v(1), v(2))),
		},
		{
			"an acknowledged record is missing in the middle", LostWrite,
			two().send(1, "t/0", 2, 2).polled(Poll, 2, "t/0", 0, v(0)).polled(Poll, 3, "t/0", 2, v(2)),
			two().send(1, "t/0", 2, 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(2)),
		},
		{
			"a delivered record is gone at the end", LostWrite,
			two().send(1, "t/0", 2, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(2)).polled(Reread, 3, "t/0", 0, v(0), 1, v(1)),
			two().send(1, "t/0", 2, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).polled(Reread, 3, "t/0", 0, v(0), 1, v(1), 2, v(2)),
		},
		{
			"an acknowledged record that was read before is missing at the end", LostWrite,
			two().send(1, "t/0", 2, 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).polled(Reread, 3, "t/0", 0, v(0)).polled(Reread, 4, "t/0", 2, v(2)),
			two().send(1, "t/0", 2, 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).polled(Reread, 3, "t/0", 0, v(0), 1, v(1), 2, v(2)),
		},
		{
			"a refused record is visible", AbortedRead,
			two().refused(1, "t/0", 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(2)),
			two().send(1, "t/0", 2, -1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(2)),
		},
		{
			"a record of an idempotent producer stands twice", Duplicate,
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(1)),
			new(history).producer(1, "plain").send(1, "t/0", 0, 0).send(1, "t/0", 1, 1).polled(Poll, 2, "t/0", 0, v(0), 1, v(1), 2, v(1)),
		},
		{
			"a retry is acknowledged at another offset than the one that is there", Duplicate,
			new(history).producer(1, "idempotent").add(Op{F: Send, Type: Invoke, Process: 1, Key: "t/0", Value: v(0)}).
				polled(Poll, 2, "t/0", 0, v(0)).add(Op{F: Send, Type: OK, Process: 1, Key: "t/0", Value: v(0), Offset: 1}).polled(Poll, 2, "t/0", 1, v(0)),
			new(history).producer(1, "idempotent").add(Op{F: Send, Type: Invoke, Process: 1, Key: "t/0", Value: v(0)}).
				polled(Poll, 2, "t/0", 0, v(0)).add(Op{F: Send, Type: OK, Process: 1, Key: "t/0", Value: v(0), Offset: 0}),
		},
		{
			"acknowledged in another order than sent", NonmonotonicSend,
			new(history).producer(1, "plain").send(1, "t/0", 0, 1).send(1, "t/0", 1, 0).polled(Poll, 2, "t/0", 0, v(1), 1, v(0)),
			new(history).producer(1, "plain").send(1, "t/0", 0, 1).send(1, "t/1", 1, 0).polled(Poll, 2, "t/1", 0, v(1)).polled(Poll, 2, "t/0", 1, v(0)),
		},
		{
			"an unanswered record of an idempotent producer overtook another", NonmonotonicSend,
			new(history).producer(1, "idempotent").send(1, "t/0", 0, -1).send(1, "t/0", 1, 0).polled(Poll, 2, "t/0", 0, v(1), 1, v(0)),
			new(history).producer(1, "plain").send(1, "t/0", 0, -1).send(1, "t/0", 1, 0).polled(Poll, 2, "t/0", 0, v(1), 1, v(0)),
		},
		{
			"offsets go back in one poll", IntNonmonotonicPoll,
			two().polled(Poll, 2, "t/0", 1, v(1), 0, v(0)),
			two().polled(Poll, 2, "t/0", 1, v(1)).polled(Poll, 3, "t/0", 0, v(0)),
		},
		{
			"offsets go back between two polls", NonmonotonicPoll,
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).polled(Poll, 2, "t/0", 1, v(1)),
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(Op{F: Assign, Type: OK, Process: 2, Key: "t/0", Offset: 1}).polled(Poll, 2, "t/0", 1, v(1)),
		},
		{
			"a consumer is not given a record", PollSkip,
			two().send(1, "t/0", 2, 2).polled(Poll, 3, "t/0", 0, v(0), 1, v(1), 2, v(2)).polled(Poll, 2, "t/0", 0, v(0)).polled(Poll, 2, "t/0", 2, v(2)),
			// Offset 1 is a control record: nobody is given it.
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/0", 2, 2).polled(Poll, 2, "t/0", 0, v(0)).polled(Poll, 2, "t/0", 2, v(2)),
		},
		{
			"a consumer is not given the first record", PollSkip,
			two().polled(Poll, 3, "t/0", 0, v(0)).add(Op{F: Assign, Type: OK, Process: 2, Key: "t/0"}).polled(Poll, 2, "t/0", 1, v(1)),
			two().polled(Poll, 3, "t/0", 0, v(0)).add(Op{F: Assign, Type: OK, Process: 2, Key: "t/0", Offset: 1}).polled(Poll, 2, "t/0", 1, v(1)),
		},
		{
			"acknowledged and never readable", Unseen,
			two().polled(Poll, 2, "t/0", 0, v(0)),
			new(history).producer(1, "idempotent").send(1, "t/0", 0, 0).send(1, "t/0", 1, -1).polled(Poll, 2, "t/0", 0, v(0)),
		},
		{
			"the high watermark goes back", HWRegress,
			new(history).probe(HighWatermark, 5, "t/0", 3, 3, 10).probe(HighWatermark, 6, "t/0", 3, 3, 9),
			new(history).probe(HighWatermark, 5, "t/0", 3, 3, 10).probe(HighWatermark, 6, "t/0", 3, 4, 10),
		},
		{
			"a new leader says less than the old one", HWRegress,
			new(history).probe(HighWatermark, 5, "t/0", 3, 3, 10).probe(HighWatermark, 6, "t/0", 3, 4, 9),
			// Who does not know epoch 4 yet may be answered by the leader of epoch 3, which does not know either.
			new(history).probe(HighWatermark, 5, "t/0", 3, 4, 10).probe(HighWatermark, 6, "t/0", 3, 3, 9),
		},
		{
			"the log start goes back", HWRegress,
			new(history).probe(LogStart, 5, "t/0", 3, 3, 10).probe(LogStart, 6, "t/0", 3, 3, 9),
			// Asked before the first was answered.
			new(history).add(Op{F: LogStart, Type: Invoke, Process: 6, Key: "t/0", Epoch: 3}).probe(LogStart, 5, "t/0", 3, 3, 10).add(Op{F: LogStart, Type: OK, Process: 6, Key: "t/0", Epoch: 3, Offset: 9}),
		},
		{
			"replicas hold other bytes", ReplicaDiff,
			two().committed("t/0", 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(dump(1, 7, v(0), v(1)), dump(2, 8, v(0), v(1))),
			two().committed("t/0", 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(dump(1, 7, v(0), v(1)), dump(2, 7, v(0), v(1))),
		},
		{
			"a replica lacks what is committed", ReplicaDiff,
			two().committed("t/0", 2).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(dump(1, 7, v(0), v(1)), dump(2, 7)),
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).send(1, "t/0", 2, -1).add(dump(1, 7, v(0), v(1)), dump(2, 7, v(0), v(1))).
				add(Op{F: Dump, Type: OK, Node: 2, Key: "t/0", Offset: 2, Values: []int64{v(2)}, Batches: []Batch{{Base: 2, Last: 2, Epoch: 3}}}),
		},
		{
			"one index, two hashes", FSMHash,
			new(history).add(Op{F: State, Type: OK, Node: 1, Offset: 40, Text: "aa"}, Op{F: State, Type: OK, Node: 2, Offset: 40, Text: "bb"}),
			new(history).add(Op{F: State, Type: OK, Node: 1, Offset: 40, Text: "aa"}, Op{F: State, Type: OK, Node: 2, Offset: 41, Text: "bb"}),
		},
		{
			"a topic is created twice", NotLinearizable,
			new(history).topic(CreateTopic, 1, "a", OK, "id1", "").topic(CreateTopic, 2, "a", OK, "id2", ""),
			new(history).topic(CreateTopic, 1, "a", OK, "id1", "").topic(DeleteTopic, 3, "a", OK, "", "").topic(CreateTopic, 2, "a", OK, "id2", ""),
		},
		{
			"a created topic is missing", NotLinearizable,
			new(history).topic(CreateTopic, 1, "a", OK, "id1", "").topic(DescribeTopic, 2, "a", Fail, "", Missing),
			new(history).topic(CreateTopic, 1, "a", Info, "", "").topic(DescribeTopic, 2, "a", Fail, "", Missing).topic(DescribeTopic, 2, "a", OK, "", ""),
		},
		{
			"a deleted topic comes back", NotLinearizable,
			new(history).topic(CreateTopic, 1, "a", OK, "id1", "").topic(DeleteTopic, 2, "a", OK, "", "").topic(DescribeTopic, 3, "a", OK, "id1", ""),
			// An unanswered creation may come true later.
			new(history).topic(CreateTopic, 1, "a", OK, "id1", "").topic(CreateTopic, 4, "a", Info, "", "").topic(DeleteTopic, 2, "a", OK, "", "").topic(DescribeTopic, 3, "a", OK, "id9", ""),
		},
		{
			"a completion of nothing", Malformed,
			two().add(Op{F: Send, Type: OK, Process: 1, Key: "t/0", Value: v(9), Offset: 2}).polled(Poll, 2, "t/0", 0, v(0), 1, v(1)),
			two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)),
		},
	}, groupRows()...), transactionRows()...)
}

func TestEachRowFails(t *testing.T) {
	for _, row := range checkRows() {
		t.Run(row.name, func(t *testing.T) {
			bad := Check(row.bad.ops)
			require.Contains(t, bad.Counts, row.want, "%s", bad)
			require.Len(t, bad.Counts, 1, "one row, one finding: %s", bad)
			good := Check(row.good.ops)
			require.True(t, good.OK(), "%s", good)
		})
	}
}

// Every kind of finding has its row above.
func TestEveryKindHasARow(t *testing.T) {
	for _, kind := range []Kind{
		InconsistentOffset, LostWrite, AbortedRead, Duplicate, NonmonotonicSend, IntNonmonotonicPoll, PollSkip, NonmonotonicPoll, Unseen, HWRegress, ReplicaDiff, FSMHash,
		NotLinearizable, Malformed, CommitRegress, CommitAhead, DoubleOwner, TornTxn, PrecommittedRead,
	} {
		require.True(t, slices.ContainsFunc(checkRows(), func(r checkRow) bool { return r.want == kind }), "%s", kind)
	}
}

// A million operations: acknowledged, polled by two consumers, read again, and in the files of three replicas.
func TestCheckIsFast(t *testing.T) {
	operations := 1_000_000
	if testing.Short() {
		operations = 100_000
	}
	ops := longHistory(operations)
	began := time.Now()
	r := Check(ops)
	t.Logf("%d lines, %d operations in %s", len(ops), operations, time.Since(began).Round(time.Millisecond))
	require.True(t, r.OK(), "%s", r)
	require.Equal(t, operations, r.Acknowledged)
	require.Equal(t, operations, r.Reread)
	require.Equal(t, 2*operations, r.Polled)
	require.Len(t, r.Faults, 1)

	// One record in a million is enough.
	for i := len(ops) - 1; i > 0; i-- {
		if ops[i].F == Reread {
			ops[i].Values[len(ops[i].Values)/2] ^= 1
			break
		}
	}
	require.False(t, Check(ops).OK())
}

// longHistory makes a clean history of so many sends on four partitions.
func longHistory(operations int) []Op {
	const keys, perBatch = 4, 50
	h := &history{ops: make([]Op, 0, 2*operations+operations/2)}
	names := make([]string, keys)
	for k := range names {
		names[k] = Key("t", int32(k))
		h.producer(k, "idempotent")
	}
	h.add(Op{F: Fault, Type: Invoke, Text: "kill -9 of node 1", Node: 1})
	per := operations / keys
	for n := range int64(per) {
		for k := range keys {
			h.send(k, names[k], n, n)
		}
	}
	values := func(k, base, n int) []int64 {
		out := make([]int64, n)
		for i := range out {
			out[i] = Value(k, int64(base+i))
		}
		return out
	}
	for k := range keys {
		h.committed(names[k], int64(per))
		for base := 0; base < per; base += perBatch {
			n := min(perBatch, per-base)
			for _, f := range []F{Poll, Poll, Reread} {
				h.add(Op{F: f, Type: OK, Process: 100 + len(h.ops)%2, Key: names[k], Offset: int64(base), Values: values(k, base, n)})
				h.ops[len(h.ops)-1].Process = map[F]int{Poll: 100, Reread: 200}[f] + len(h.ops)%3
			}
			for node := range 3 {
				h.add(Op{F: Dump, Type: OK, Node: node, Key: names[k], Offset: int64(base), Values: values(k, base, n), Batches: []Batch{{Base: int64(base), Last: int64(base + n - 1), CRC: uint32(base)}}})
			}
		}
	}
	return h.ops
}

// A history survives its file, and a torn last line is no error.
func TestHistoryFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "history")
	w, err := NewWriter(name)
	require.NoError(t, err)
	var observed []Op
	w.Observe(func(o Op) { observed = append(observed, o) })
	for _, o := range two().polled(Poll, 2, "t/0", 0, v(0), 1, v(1)).add(Op{F: Dump, Type: OK, Key: "t/0", Node: 3, Batches: []Batch{{Base: 0, Last: 1, Epoch: 2, CRC: 9}}}).ops {
		w.Log(o)
	}
	require.NoError(t, w.Close())
	ops, err := ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, observed, ops)
	require.True(t, slices.IsSortedFunc(ops, func(a, b Op) int { return int(a.Time - b.Time) }))

	line, err := json.Marshal(ops[0])
	require.NoError(t, err)
	got, err := Read(bytes.NewReader(append(append(line, '\n'), line[:9]...)))
	require.NoError(t, err)
	require.Len(t, got, 1)
	_, err = Read(strings.NewReader("{\n"))
	require.ErrorContains(t, err, "line 1")
}

func TestValues(t *testing.T) {
	p, n := SplitValue(Value(77, 123456789))
	require.Equal(t, 77, p)
	require.Equal(t, int64(123456789), n)
	require.Equal(t, "77:5", ValueString(Value(77, 5)))
}

// The gap that a fault makes is found in its window, and in that of the fault before if it begins there.
func TestGaps(t *testing.T) {
	at := func(ms int64, o Op) Op {
		o.Time = ms * int64(time.Millisecond)
		return o
	}
	ack := func(ms, n int64) []Op {
		o := Op{F: Send, Type: Invoke, Process: 1, Key: "t/0", Value: v(n)}
		invoke := at(ms-1, o)
		o.Type, o.Offset = OK, n
		return []Op{invoke, at(ms, o)}
	}
	var ops []Op
	ops = append(ops, ack(10, 0)...)
	ops = append(ops, at(15, Op{F: Fault, Type: Invoke, Text: "a"}))
	ops = append(ops, ack(20, 1)...)
	ops = append(ops, at(25, Op{F: Fault, Type: Invoke, Text: "b"}))
	ops = append(ops, ack(1020, 2)...)
	ops = append(ops, ack(1030, 3)...)
	r := Check(append(ops, at(1031, Op{F: Poll, Type: OK, Process: 2, Key: "t/0", Values: []int64{v(0), v(1), v(2), v(3)}})))
	require.True(t, r.OK(), "%s", r)
	require.Equal(t, time.Second, r.LongestGap)
	require.Equal(t, []Window{
		{Fault: "a", Begin: 15 * time.Millisecond, End: 25 * time.Millisecond, Acknowledged: 1, LongestGap: time.Second},
		{Fault: "b", Begin: 25 * time.Millisecond, End: 1030 * time.Millisecond, Acknowledged: 2, LongestGap: time.Second},
	}, r.Faults)
}

// A partition to which transactions alone write is silent when they wait: that is no gap.
func TestGapsOfTransactions(t *testing.T) {
	gap := func(txn int64) time.Duration {
		c := checker{report: new(Report)}
		c.gaps([]Op{
			{Time: 1, Type: OK, F: Send, Key: "t/0", Txn: txn},
			{Time: int64(time.Second) + 1, Type: OK, F: Send, Key: "t/0", Txn: txn},
		})
		return c.report.LongestGap
	}
	require.Equal(t, time.Second, gap(0))
	require.Zero(t, gap(7))
}

// A report names what it found, and not a million of them.
func TestReport(t *testing.T) {
	h := new(history).producer(1, "idempotent")
	for n := range int64(100) {
		h.send(1, "t/0", n, n)
	}
	r := Check(h.polled(Poll, 2, "t/0", 99, v(99)).ops)
	require.Equal(t, map[Kind]int{LostWrite: 99}, maps.Clone(r.Counts))
	require.Len(t, r.Findings, keptPerKind)
	require.Contains(t, r.String(), "lost-write: 99")
	require.Contains(t, r.String(), "1:0 (acknowledged) at offset 0")
	require.Equal(t, fmt.Sprint(r.Findings[0]), "lost-write t/0: 1:0 (acknowledged) at offset 0 is not there, though reading got to 100")
}
