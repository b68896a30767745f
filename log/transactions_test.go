package log

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// transactional builds a batch of one transaction.
func transactional(id int64, epoch int16, sequence int32, records int) []byte {
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = id, epoch, sequence, true
	for i := range records {
		b.Add(1000, fmt.Appendf(nil, "%d", i), []byte("value"), nil)
	}
	return b.Build()
}

func marker(id int64, epoch int16, commit bool, coordinatorEpoch int32) []byte {
	return record.Marker{Commit: commit, CoordinatorEpoch: coordinatorEpoch}.Batch(id, epoch, 2000)
}

// refTransaction is a transaction as the batches of a log tell it.
type refTransaction struct {
	id            int64
	first, marker int64 // marker is -1 while it is open
	aborted       bool
	lasts         []int64 // last offsets of its batches
}

// refTransactions reads the transactions from all batches of a log: what everything else is compared with.
func refTransactions(batches []record.Batch) (all []refTransaction) {
	open := map[int64]int{}
	for _, b := range batches {
		i, ok := open[b.ProducerID()]
		switch {
		case b.ProducerID() < 0:
		case b.IsControl():
			m, isMarker, err := record.ParseMarker(b)
			if err == nil && isMarker && ok {
				all[i].marker, all[i].aborted = b.BaseOffset(), !m.Commit
				delete(open, b.ProducerID())
			}
		case b.IsTransactional() && !ok:
			open[b.ProducerID()] = len(all)
			all = append(all, refTransaction{id: b.ProducerID(), first: b.BaseOffset(), marker: -1, lasts: []int64{b.LastOffset()}})
		case b.IsTransactional():
			all[i].lasts = append(all[i].lasts, b.LastOffset())
		}
	}
	return all
}

// left returns the offset of a record of the transaction that is left in a log from start on, the first; -1 if none is.
func (t *refTransaction) left(start int64) int64 {
	for _, last := range t.lasts {
		if last >= start {
			return last
		}
	}
	return -1
}

// refStable is the last stable offset when all markers below settled count.
func refStable(all []refTransaction, limit, settled int64) int64 {
	for _, t := range all {
		if t.marker < 0 || t.marker >= settled {
			limit = min(limit, t.first)
		}
	}
	return limit
}

// refAborted is what a reader of [from, to) must be told.
func refAborted(all []refTransaction, from, to int64) (found []AbortedTransaction) {
	for _, t := range all {
		if t.aborted && t.marker >= from && t.first < to {
			found = append(found, AbortedTransaction{t.id, t.first})
		}
	}
	slices.SortFunc(found, func(a, b AbortedTransaction) int { return compareInt64(a.FirstOffset, b.FirstOffset) })
	return found
}

// TestLastStableOffset: an open transaction holds back the last stable offset, and so does a decided one until its marker
// is below the high watermark (P13).
func TestLastStableOffset(t *testing.T) {
	d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
	defer d.Close()
	l := createLog(t, d, acked)
	appendOne(t, l, 0, plainBatch(2, 10))         // 0, 1
	appendOne(t, l, 0, transactional(7, 0, 0, 2)) // 2, 3
	appendOne(t, l, 0, transactional(8, 0, 0, 1)) // 4
	appendOne(t, l, 0, marker(7, 0, false, 1))    // 5
	appendOne(t, l, 0, sequenced(9, 0, 0, 1))     // 6
	appendOne(t, l, 0, marker(8, 0, true, 1))     // 7
	require.Equal(t, int64(0), l.LastStableOffset())
	for _, step := range []struct{ highWatermark, want int64 }{{1, 1}, {2, 2}, {4, 2}, {5, 2}, {6, 4}, {7, 4}, {8, 8}} {
		require.Equal(t, step.want, l.SetHighWatermark(step.highWatermark), "high watermark %d", step.highWatermark)
		require.Equal(t, step.want, l.LastStableOffset())
	}
	appendOne(t, l, 0, transactional(7, 0, 2, 1)) // 8
	o, ok := l.OldestTransaction()
	require.True(t, ok)
	require.Equal(t, OpenTransaction{ProducerID: 7, FirstOffset: 8}, o)
	appendOne(t, l, 0, plainBatch(1, 10))
	require.Equal(t, int64(8), l.SetHighWatermark(10))
	require.Equal(t, int64(8), l.SetHighWatermark(3), "the high watermark does not go back")
}

// TestMarkerFences: which markers and which batches are refused by epochs (P7, P9, KIP-890, KAFKA-19999). Nothing that is
// refused leaves a trace.
func TestMarkerFences(t *testing.T) {
	type step struct {
		what    string
		batch   []byte
		version int8
		want    error
	}
	for name, steps := range map[string][]step{
		"first protocol": {
			{"marker of an unknown producer", marker(7, 3, true, 5), 1, nil},
			{"older epoch", transactional(7, 2, 0, 1), 1, ErrInvalidProducerEpoch},
			{"begins not at 0 behind a marker", transactional(7, 3, 4, 1), 1, ErrOutOfOrderSequence},
			{"begins", transactional(7, 3, 0, 1), 1, nil},
			{"no part of it", sequenced(7, 3, 1, 1), 1, ErrInvalidTransactionState},
			{"older coordinator", marker(7, 3, true, 4), 1, ErrCoordinatorFenced},
			{"older epoch", marker(7, 2, false, 6), 1, ErrInvalidProducerEpoch},
			{"ends, in the same epoch", marker(7, 3, true, 6), 1, nil},
			{"sent again", marker(7, 3, true, 6), 1, nil},
			{"the sequence goes on", transactional(7, 3, 1, 1), 1, nil},
			{"timeout: the abort has a later epoch", marker(7, 4, false, 6), 1, nil},
			{"the old one is fenced", transactional(7, 3, 2, 1), 1, ErrInvalidProducerEpoch},
			{"the new one begins at 0", transactional(7, 5, 0, 1), 1, nil},
		},
		"second protocol": {
			{"first batch of an unknown producer", transactional(7, 3, 4, 1), 2, ErrOutOfOrderSequence},
			{"begins", transactional(7, 3, 0, 1), 2, nil},
			{"an end needs a later epoch", marker(7, 3, true, 1), 2, ErrInvalidProducerEpoch},
			{"ends", marker(7, 4, true, 1), 2, nil},
			{"sent again", marker(7, 4, true, 1), 2, nil},
			{"late batch of it", transactional(7, 3, 1, 1), 2, ErrInvalidProducerEpoch},
			{"the next begins not at 0", transactional(7, 4, 1, 1), 2, ErrOutOfOrderSequence},
			{"the next begins", transactional(7, 4, 0, 1), 2, nil},
			{"late copy of the marker before", marker(7, 4, true, 1), 2, ErrInvalidProducerEpoch},
			{"ends", marker(7, 5, false, 1), 2, nil},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
			defer d.Close()
			l := createLog(t, d, acked)
			for _, s := range steps {
				before, end := l.Producers(), l.EndOffset()
				var out [1]Appended
				require.NoError(t, l.Append(0, []Set{{Records: s.batch, TransactionVersion: s.version}}, out[:]))
				if s.want == nil {
					require.NoError(t, out[0].Err, s.what)
					continue
				}
				require.ErrorIs(t, out[0].Err, s.want, s.what)
				require.Equal(t, before, l.Producers(), s.what)
				require.Equal(t, end, l.EndOffset(), s.what)
			}
		})
	}
}

// TestMayBegin: it is asked for the batch that would open a transaction, once, at its place in the log; not for those
// that follow, not for retries, and not before the epoch has been looked at (P7, KAFKA-19690).
func TestMayBegin(t *testing.T) {
	d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
	defer d.Close()
	l := createLog(t, d, acked)
	refused := errors.New("not in the transaction")
	asked, answer := 0, error(nil)
	mayBegin := func() error { asked++; return answer }
	try := func(batches ...[]byte) []Appended {
		t.Helper()
		asked = 0
		sets, out := make([]Set, len(batches)), make([]Appended, len(batches))
		for i, b := range batches {
			sets[i] = Set{Records: b, MayBegin: mayBegin}
		}
		require.NoError(t, l.Append(0, sets, out))
		return out
	}
	answer = refused
	require.ErrorIs(t, try(transactional(7, 1, 0, 1))[0].Err, refused)
	require.Equal(t, 1, asked)
	require.Empty(t, l.Producers(), "a refused batch leaves no trace")
	require.NoError(t, try(sequenced(8, 0, 0, 1))[0].Err)
	require.Zero(t, asked, "no transaction")

	answer = nil
	out := try(transactional(7, 1, 0, 1), transactional(7, 1, 1, 1), transactional(7, 1, 0, 1))
	require.NoError(t, out[0].Err)
	require.NoError(t, out[1].Err)
	require.True(t, out[2].Duplicate)
	require.Equal(t, 1, asked, "the second batch continues, the third is a retry")

	answer = refused
	require.NoError(t, try(transactional(7, 1, 2, 1))[0].Err, "it is open")
	require.ErrorIs(t, try(marker(7, 1, true, 0))[0].Err, refused, "a marker is always asked about")
	answer = nil
	require.NoError(t, try(marker(7, 1, true, 0))[0].Err)
	require.Equal(t, 1, asked)
	answer = refused
	require.ErrorIs(t, try(transactional(7, 1, 3, 1))[0].Err, refused, "behind its marker")
	require.True(t, try(transactional(7, 1, 2, 1))[0].Duplicate, "a retry of what is in the log")
	require.ErrorIs(t, try(transactional(7, 0, 0, 1))[0].Err, ErrInvalidProducerEpoch)
	require.Zero(t, asked, "a fenced producer hears that first")
	require.ErrorIs(t, try(transactional(7, 1, 9, 1))[0].Err, refused, "before the sequence")

	// Of two sets drained together the second sees what the first did.
	answer = nil
	out = try(transactional(7, 1, 3, 1), marker(7, 1, false, 0), transactional(7, 1, 4, 1))
	require.NoError(t, out[2].Err)
	require.Equal(t, 3, asked)
	// A later epoch is no part of what is open.
	answer = refused
	require.ErrorIs(t, try(transactional(7, 2, 0, 1))[0].Err, refused)
}

// TestOpenTransactionStays: its producer does not expire, its records are deleted neither by retention nor by a request
// (P4, L17).
func TestOpenTransactionStays(t *testing.T) {
	now := time.Now()
	cfg := testConfig(mode{}, vfs.NewMem(1))
	cfg.Wall = func() time.Time { return now }
	d := openDir(t, cfg)
	defer d.Close()
	l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 200, Delete: true, RetentionBytes: 0, RetentionAge: time.Hour, ProducerExpiration: time.Hour})
	d.Tick(now)
	appendOne(t, l, 0, plainBatch(1, 200))        // 0
	appendOne(t, l, 0, plainBatch(1, 200))        // 1
	appendOne(t, l, 0, transactional(7, 0, 0, 1)) // 2
	for range 4 {
		appendOne(t, l, 0, plainBatch(1, 200))
	}
	l.SetHighWatermark(l.EndOffset())
	require.ErrorIs(t, l.TrimPrefix(3), ErrOffsetOutOfRange)
	now = now.Add(30 * time.Hour)
	d.Tick(now)
	now = now.Add(time.Hour)
	d.Tick(now)
	require.Equal(t, int64(2), l.StartOffset())
	require.Len(t, l.Producers(), 1)
	o, ok := l.OldestTransaction()
	require.True(t, ok)
	require.Equal(t, 31*time.Hour, o.Age)
	appendOne(t, l, 0, marker(7, 0, true, 0))
	l.SetHighWatermark(l.EndOffset())
	now = now.Add(31 * time.Hour)
	d.Tick(now)
	require.Greater(t, l.StartOffset(), int64(2))
	require.Empty(t, l.Producers())
}

// TestTransactionsModel: whatever happens to a log, its transactions, its last stable offset and what it tells readers of
// aborted transactions are what its batches say: as leader and as follower, over rolls, truncations, trims, clean stops,
// kills, power cuts, and when the files that were derived from the batches are missing or damaged (P2, P12, P13, L8, trap
// 20).
func TestTransactionsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		runTransactions(rt, modes[rapid.IntRange(0, 1).Draw(rt, "mode")])
	})
}

type transactionsRun struct {
	t       *rapid.T
	mode    mode
	fs      *vfs.Mem
	d       *Dir
	l       *Log
	s       Settings
	batches []record.Batch
	// settled is the largest high watermark that was ever told, as far as nothing was cut below it.
	settled, start int64
	epoch          int32
	epochs         map[int64]int16
	sequences      map[int64]int32
	whole          bool // nothing was trimmed
}

func runTransactions(rt *rapid.T, m mode) {
	r := &transactionsRun{t: rt, mode: m, fs: vfs.NewMem(rapid.Uint64().Draw(rt, "seed")), epochs: map[int64]int16{}, sequences: map[int64]int32{}, whole: true}
	r.s = Settings{FlushAck: true, SegmentBytes: int64(rapid.IntRange(300, 3000).Draw(rt, "segment")), IndexIntervalBytes: int64(rapid.IntRange(0, 400).Draw(rt, "interval")), RetentionAge: -1, RetentionBytes: -1}
	r.open()
	defer func() { r.d.Close() }()
	var err error
	r.l, err = r.d.Create("topic", testID(1), 0, 0, r.s)
	require.NoError(rt, err)
	for range rapid.IntRange(1, 60).Draw(rt, "steps") {
		switch rapid.IntRange(0, 19).Draw(rt, "step") {
		default:
			r.append()
		case 10, 11, 12:
			r.highWatermark()
		case 13:
			require.NoError(rt, r.l.advance())
		case 14:
			r.truncate()
		case 15:
			r.restart("kill")
		case 16:
			r.restart("stop")
		case 17:
			r.restart("damage")
		case 18:
			r.trim()
		case 19:
			r.damageLive()
		}
		r.check()
	}
}

func (r *transactionsRun) open() {
	cfg := testConfig(r.mode, r.fs)
	var err error
	r.d, err = OpenDir("data", cfg)
	require.NoError(r.t, err)
	if l, ok := r.d.Lookup(testID(1), 0); ok {
		r.l = l
		l.Configure(r.s)
	} else {
		require.Empty(r.t, r.d.Offline())
	}
}

// append adds a few sets: records of transactions and others, and markers; as leader or as follower.
func (r *transactionsRun) append() {
	n := rapid.IntRange(1, 5).Draw(r.t, "sets")
	var sets []Set
	for range n {
		id := rapid.Int64Range(1, 4).Draw(r.t, "producer")
		switch rapid.IntRange(0, 5).Draw(r.t, "kind") {
		case 0:
			sets = append(sets, Set{Records: plainBatch(rapid.IntRange(1, 3).Draw(r.t, "records"), 60)})
		case 1, 2:
			if rapid.Bool().Draw(r.t, "bump") {
				r.epochs[id]++
				r.sequences[id] = 0
			}
			sets = append(sets, Set{Records: marker(id, r.epochs[id], rapid.Bool().Draw(r.t, "commit"), 0)})
		default:
			k := rapid.IntRange(1, 3).Draw(r.t, "records")
			sets = append(sets, Set{Records: transactional(id, r.epochs[id], r.sequences[id], k)})
			r.sequences[id] += int32(k)
		}
	}
	if rapid.Bool().Draw(r.t, "new epoch") {
		r.epoch++
	}
	if rapid.Bool().Draw(r.t, "follower") {
		at := r.l.EndOffset()
		for _, s := range sets {
			b := record.Batch(s.Records)
			b.SetBaseOffset(at)
			b.SetLeaderEpoch(r.epoch)
			at = b.NextOffset()
		}
		require.NoError(r.t, r.l.Replicate(r.epoch, sets))
	} else {
		out := make([]Appended, n)
		require.NoError(r.t, r.l.Append(r.epoch, sets, out))
		for _, o := range out {
			require.NoError(r.t, o.Err)
			require.False(r.t, o.Duplicate)
		}
	}
	for _, s := range sets {
		r.batches = append(r.batches, record.Batch(s.Records))
	}
}

func (r *transactionsRun) end() int64 {
	if n := len(r.batches); n > 0 {
		return r.batches[n-1].NextOffset()
	}
	return 0
}

func (r *transactionsRun) highWatermark() {
	h := rapid.Int64Range(0, r.end()).Draw(r.t, "high watermark")
	r.l.SetHighWatermark(h)
	r.settled = max(r.settled, h)
}

func (r *transactionsRun) truncate() {
	if len(r.batches) == 0 {
		return
	}
	i := rapid.IntRange(0, len(r.batches)-1).Draw(r.t, "cut")
	to := r.batches[i].BaseOffset()
	if to <= r.start || to < r.settled {
		return // never below the high watermark (R25)
	}
	require.NoError(r.t, r.l.Truncate(to))
	r.batches = r.batches[:i]
	r.recount()
}

// recount sets the producers back to what the log says.
func (r *transactionsRun) recount() {
	clear(r.sequences)
	clear(r.epochs)
	for _, p := range r.l.Producers() {
		r.epochs[p.ProducerID] = p.ProducerEpoch
		r.sequences[p.ProducerID] = p.LastSequence + 1
	}
}

func (r *transactionsRun) trim() {
	r.l.SetHighWatermark(r.settled)
	if stable := r.l.LastStableOffset(); stable > r.start {
		to := rapid.Int64Range(r.start, stable).Draw(r.t, "trim")
		require.NoError(r.t, r.l.TrimPrefix(to))
		r.start = to
		r.whole = r.whole && to == 0
	}
}

// restart ends the process in some way and begins the next one.
func (r *transactionsRun) restart(how string) {
	require.NoError(r.t, r.l.Flush())
	if how == "kill" {
		r.fs = r.fs.Crash(vfs.CrashMode(rapid.IntRange(0, 2).Draw(r.t, "crash")))
	} else {
		require.NoError(r.t, r.d.Close())
	}
	if how == "damage" && r.whole { // else a derived file may be all that is left of what is gone
		r.damage()
	}
	r.open()
}

// damage removes, cuts or garbles one of the files that are derived from the batches.
func (r *transactionsRun) damage() {
	entries, err := r.fs.List("data/topic-0")
	require.NoError(r.t, err)
	var names []string
	for _, e := range entries {
		if _, suffix, ok := parseOffsetFileName(e.Name); ok && suffix != logSuffix && e.Size > 0 {
			names = append(names, e.Name)
		}
	}
	for range min(len(names), rapid.IntRange(1, 3).Draw(r.t, "files")) {
		name := "data/topic-0/" + rapid.SampledFrom(names).Draw(r.t, "file")
		e, err := r.fs.Stat(name)
		if err != nil || e.Size == 0 {
			continue
		}
		switch rapid.IntRange(0, 2).Draw(r.t, "damage") {
		case 0:
			require.NoError(r.t, r.fs.Remove(name))
		case 1:
			f, err := r.fs.Open(name)
			require.NoError(r.t, err)
			require.NoError(r.t, f.Truncate(rapid.Int64Range(0, e.Size-1).Draw(r.t, "size")))
			require.NoError(r.t, f.Close())
		case 2:
			r.fs.Flip(name, rapid.Int64Range(0, e.Size-1).Draw(r.t, "byte"), uint(rapid.IntRange(0, 7).Draw(r.t, "bit")))
		}
	}
}

// damageLive forgets what this process knows of the index files, as after a start long ago, and damages one.
func (r *transactionsRun) damageLive() {
	if !r.whole {
		return
	}
	require.NoError(r.t, r.l.advance())
	r.l.mu.Lock()
	var names []string
	for _, seg := range r.l.mu.segments {
		if x := seg.aborted; x != nil && x.unflushed() == 0 {
			x.tail, x.checked = nil, false
			names = append(names, x.file.path)
		}
	}
	r.l.mu.Unlock()
	if len(names) > 0 {
		name := rapid.SampledFrom(names).Draw(r.t, "index")
		e, err := r.fs.Stat(name)
		require.NoError(r.t, err)
		r.fs.Flip(name, rapid.Int64Range(0, e.Size-1).Draw(r.t, "byte"), uint(rapid.IntRange(0, 7).Draw(r.t, "bit")))
	}
}

// check compares the log with its batches.
func (r *transactionsRun) check() {
	all := refTransactions(r.batches)
	require.Equal(r.t, r.end(), r.l.EndOffset())
	h := r.l.HighWatermark()
	got := r.l.LastStableOffset()
	// After a restart the high watermark may be behind what is known to be settled.
	require.GreaterOrEqual(r.t, got, max(refStable(all, h, h), r.start))
	require.LessOrEqual(r.t, got, max(refStable(all, h, max(r.settled, r.start)), r.start))
	for range 3 {
		from := rapid.Int64Range(r.start, r.end()).Draw(r.t, "from")
		to := rapid.Int64Range(from, r.end()).Draw(r.t, "to")
		found, err := r.l.AbortedTransactions(from, to)
		require.NoError(r.t, err)
		require.Equal(r.t, refAborted(all, from, to), found, "from %d to %d", from, to)
	}
	open := map[int64]int64{}
	for _, t := range all {
		if t.marker < 0 {
			open[t.id] = t.first
		}
	}
	for _, p := range r.l.Producers() {
		first, ok := open[p.ProducerID]
		if !ok {
			first = -1
		}
		require.Equal(r.t, first, p.CurrentTxnFirstOffset)
		delete(open, p.ProducerID)
	}
	require.Empty(r.t, open)
}
