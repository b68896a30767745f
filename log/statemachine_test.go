package log

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// model is what a log should be: the batches, the start, and what was acknowledged.
type model struct {
	batches []record.Batch
	start   int64
	end     int64
	// durable is the largest durable end told for the present history; a crash must keep at least that.
	durable int64
	epoch   int32
	epochs  []epochStart
}

func (m *model) at(offset int64) int {
	for i, b := range m.batches {
		if b.NextOffset() > offset {
			return i
		}
	}
	return len(m.batches)
}

// machine drives a log and its model.
type machine struct {
	mode  mode
	sim   *vfs.Sim
	fs    *vfs.Mem
	dir   *Dir
	log   *Log
	model model
	s     Settings
	clock time.Time
	seq   map[int64]int32
}

func newMachine(t *rapid.T, m mode, sim *vfs.Sim, seed uint64) *machine {
	mc := &machine{mode: m, sim: sim, fs: vfs.NewMem(seed), clock: time.Unix(1e9, 0), seq: map[int64]int32{}}
	mc.fs.SetBlock(32)
	mc.fs.SetYield(sim.Yield)
	mc.s = Settings{
		SegmentBytes:       int64(rapid.IntRange(100, 1500).Draw(t, "segment bytes")),
		IndexIntervalBytes: int64(rapid.SampledFrom([]int{0, 1, 150, 400}).Draw(t, "index interval")),
		RetentionAge:       -1,
		RetentionBytes:     -1,
		Delete:             true,
		FlushAck:           rapid.Bool().Draw(t, "flush ack"),
	}
	mc.open(t)
	var err error
	mc.log, err = mc.dir.Create("topic", testID(1), 0, 0, mc.s)
	require.NoError(t, err)
	return mc
}

func (mc *machine) open(t *rapid.T) {
	var err error
	cfg := testConfig(mc.mode, mc.fs)
	cfg.Tasks, cfg.Rand = mc.sim, mc.sim.Rand()
	mc.dir, err = OpenDir("data", cfg)
	require.NoError(t, err)
	mc.log, _ = mc.dir.Lookup(testID(1), 0)
	if mc.log != nil {
		mc.log.Configure(mc.s)
	} else {
		require.Empty(t, mc.dir.Offline())
	}
}

func (mc *machine) Append(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "sets")
	mc.model.epoch += int32(rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "epoch step"))
	sets, out := make([]Set, n), make([]Appended, n)
	for i := range sets {
		p := noProducer
		if rapid.Bool().Draw(t, "idempotent") {
			id := int64(rapid.IntRange(1, 3).Draw(t, "producer"))
			p = producerFields{id: id, sequence: mc.seq[id]}
		}
		records := rapid.IntRange(1, 3).Draw(t, "records")
		if p.id > 0 {
			mc.seq[p.id] += int32(records)
		}
		sets[i].Records = testBatch(records, rapid.IntRange(1, 120).Draw(t, "size"), 1000+mc.model.end, p)
	}
	require.NoError(t, mc.log.Append(mc.model.epoch, sets, out))
	for i := range sets {
		require.NoError(t, out[i].Err)
		require.False(t, out[i].Duplicate)
		require.Equal(t, mc.model.end, out[i].BaseOffset)
		b := record.Batch(sets[i].Records)
		require.Equal(t, b.NextOffset(), out[i].NextOffset)
		if len(mc.model.epochs) == 0 || mc.model.epochs[len(mc.model.epochs)-1].leaderEpoch < mc.model.epoch {
			mc.cutModelEpochs()
			mc.model.epochs = append(mc.model.epochs, epochStart{mc.model.epoch, mc.model.end})
		}
		mc.model.batches = append(mc.model.batches, b)
		mc.model.end = out[i].NextOffset
	}
	mc.log.SetHighWatermark(mc.model.end)
}

func (mc *machine) Flush(t *rapid.T) {
	require.NoError(t, mc.log.Flush())
	require.Equal(t, mc.model.end, mc.log.DurableEnd())
	mc.model.durable = mc.model.end
}

func (mc *machine) Tick(t *rapid.T) {
	mc.clock = mc.clock.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
	mc.dir.Tick(mc.clock)
}

func (mc *machine) Read(t *rapid.T) {
	from := rapid.Int64Range(mc.model.start, mc.model.end).Draw(t, "from")
	limit := rapid.Int64Range(from, mc.model.end+3).Draw(t, "limit")
	maxBytes := rapid.SampledFrom([]int{0, 1, 100, 250, 700, 1 << 20}).Draw(t, "max bytes")
	minOne := rapid.Bool().Draw(t, "min one")
	s, err := mc.log.Read(from, limit, maxBytes, minOne)
	require.NoError(t, err)
	defer s.Release()
	if s.Len() == 0 {
		i := mc.model.at(from)
		if from >= limit || i == len(mc.model.batches) || mc.model.batches[i].NextOffset() > limit {
			return
		}
		require.False(t, minOne, "nothing at %d below %d", from, limit)
		require.Greater(t, len(mc.model.batches[i]), maxBytes)
		return
	}
	p := make([]byte, s.Len())
	_, err = s.ReadAt(p, 0)
	require.NoError(t, err)
	i := mc.model.at(from)
	require.Equal(t, mc.model.batches[i].BaseOffset(), s.BaseOffset())
	total := 0
	for len(p) > 0 {
		b := mc.model.batches[i]
		require.Equal(t, []byte(b), p[:len(b)])
		require.LessOrEqual(t, b.NextOffset(), limit)
		p = p[len(b):]
		total += len(b)
		i++
	}
	require.Equal(t, mc.model.batches[i-1].NextOffset(), s.NextOffset())
	require.True(t, total <= maxBytes || minOne && total == len(mc.model.batches[mc.model.at(from)]), "%d bytes of at most %d", total, maxBytes)
	// It is as long as it can be, within its segment.
	if i < len(mc.model.batches) {
		b := mc.model.batches[i]
		fits := total+len(b) <= maxBytes && b.NextOffset() <= limit
		require.False(t, fits && !mc.segmentBegins(b.BaseOffset()), "batch %d would have fitted", b.BaseOffset())
	}
}

func (mc *machine) segmentBegins(offset int64) bool {
	mc.log.mu.Lock()
	defer mc.log.mu.Unlock()
	for _, seg := range mc.log.mu.segments {
		if seg.base == offset {
			return true
		}
	}
	return false
}

func (mc *machine) ReadOutside(t *rapid.T) {
	_, err := mc.log.Read(mc.model.end+1, mc.model.end+9, 100, true)
	require.ErrorIs(t, err, ErrOffsetOutOfRange)
	if mc.model.start > 0 {
		_, err = mc.log.Read(mc.model.start-1, mc.model.end, 100, true)
		require.ErrorIs(t, err, ErrOffsetOutOfRange)
	}
}

func (mc *machine) Time(t *rapid.T) {
	ts := rapid.Int64Range(990, 1005+mc.model.end).Draw(t, "time")
	limit := rapid.Int64Range(mc.model.start, mc.model.end).Draw(t, "limit")
	want := int64(-1)
	for _, b := range mc.model.batches {
		if b.MaxTimestamp() >= ts {
			want = max(b.BaseOffset(), mc.model.start)
			break
		}
	}
	if want >= limit {
		want = -1
	}
	offset, _, _, err := mc.log.OffsetForTime(ts, limit)
	require.NoError(t, err)
	require.Equal(t, want, offset)

	want, ts = -1, -1
	for _, b := range mc.model.batches {
		if b.NextOffset() <= limit && b.MaxTimestamp() > ts {
			want, ts = max(b.BaseOffset(), mc.model.start), b.MaxTimestamp()
		}
	}
	offset, _, _, err = mc.log.MaxTimestamp(limit)
	require.NoError(t, err)
	require.Equal(t, want, offset)
}

func (mc *machine) Truncate(t *rapid.T) {
	to := rapid.Int64Range(mc.model.start, mc.model.end+2).Draw(t, "to")
	require.NoError(t, mc.log.Truncate(to))
	mc.truncated(to)
}

func (mc *machine) truncated(to int64) {
	if to < mc.model.end && mc.model.start < mc.model.end {
		i := mc.model.at(to)
		end := mc.model.batches[i].BaseOffset()
		mc.model.batches = mc.model.batches[:i]
		if end <= mc.model.start {
			end, mc.model.batches, mc.model.epochs = mc.model.start, nil, nil
		}
		mc.model.end, mc.model.durable = end, end
	}
	mc.cutModelEpochs()
	mc.resequence()
}

func (mc *machine) cutModelEpochs() {
	for n := len(mc.model.epochs); n > 0 && mc.model.epochs[n-1].start >= mc.model.end; n-- {
		mc.model.epochs = mc.model.epochs[:n-1]
	}
}

// resequence lets the producers go on where the log says they are.
func (mc *machine) resequence() {
	clear(mc.seq)
	for _, p := range mc.log.Producers() {
		mc.seq[p.ProducerID] = nextSequence(p.LastSequence)
	}
}

func (mc *machine) Trim(t *rapid.T) {
	start := rapid.Int64Range(0, mc.model.end).Draw(t, "start")
	require.NoError(t, mc.log.TrimPrefix(start))
	mc.trimmed(start)
}

func (mc *machine) trimmed(start int64) {
	if start <= mc.model.start {
		return
	}
	mc.model.start = start
	mc.model.batches = mc.model.batches[mc.model.at(start):]
	n := 0
	for n+1 < len(mc.model.epochs) && mc.model.epochs[n+1].start <= start {
		n++
	}
	mc.model.epochs = append([]epochStart(nil), mc.model.epochs[n:]...)
	if len(mc.model.epochs) > 0 {
		mc.model.epochs[0].start = max(start, mc.model.epochs[0].start)
	}
}

func (mc *machine) RetainBySize(t *rapid.T) {
	s := mc.s
	s.RetentionBytes = int64(rapid.IntRange(0, 2000).Draw(t, "retention bytes"))
	mc.log.Configure(s)
	mc.log.retain(0)
	mc.log.Configure(mc.s)
	mc.trimmed(mc.log.StartOffset())
	require.True(t, mc.log.SizeBytes()-mc.firstSegmentBytes() < s.RetentionBytes || mc.log.SegmentCount() == 1)
}

func (mc *machine) firstSegmentBytes() int64 {
	mc.log.mu.Lock()
	defer mc.log.mu.Unlock()
	return mc.log.mu.segments[0].size
}

func (mc *machine) Reopen(t *rapid.T) {
	require.NoError(t, mc.dir.Close())
	mc.open(t)
	require.True(t, mc.dir.CleanStart())
	require.Zero(t, mc.dir.RecoveryStats().BytesScanned)
	mc.model.durable = mc.model.end
	mc.log.SetHighWatermark(mc.model.end)
}

func (mc *machine) Kill(t *rapid.T) {
	mc.fs = mc.fs.Kill()
	mc.open(t)
	require.Equal(t, mc.model.end, mc.log.EndOffset(), "everything written survives a kill")
	mc.model.durable = mc.model.end
	mc.log.SetHighWatermark(mc.model.end)
}

func (mc *machine) PowerCut(t *rapid.T) {
	mc.model.durable = max(mc.model.durable, mc.log.DurableEnd())
	mc.fs = mc.fs.Crash(rapid.SampledFrom([]vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed}).Draw(t, "mode"))
	mc.open(t)
	end := mc.log.EndOffset()
	require.GreaterOrEqual(t, end, mc.model.durable, "acknowledged records are gone")
	require.LessOrEqual(t, end, mc.model.end)
	for len(mc.model.batches) > 0 && mc.model.batches[len(mc.model.batches)-1].BaseOffset() >= end {
		mc.model.batches = mc.model.batches[:len(mc.model.batches)-1]
	}
	mc.model.end, mc.model.durable = end, end
	mc.cutModelEpochs()
	mc.resequence()
	mc.log.SetHighWatermark(end)
}

// Check compares everything after each step.
func (mc *machine) Check(t *rapid.T) {
	l := mc.log
	require.Equal(t, mc.model.start, l.StartOffset())
	require.Equal(t, mc.model.end, l.EndOffset())
	require.LessOrEqual(t, l.RecoveryPoint(), l.DurableEnd())
	require.LessOrEqual(t, l.DurableEnd(), l.EndOffset())
	require.GreaterOrEqual(t, l.RecoveryPoint(), l.StartOffset())
	require.NoError(t, l.Corrupt())
	l.mu.Lock()
	list := append([]epochStart(nil), l.mu.epochs.list...)
	l.mu.Unlock()
	if mc.model.start < mc.model.end { // an empty log may remember the epoch of records below its start, or not
		require.Equal(t, fmt.Sprint(mc.model.epochs), fmt.Sprint(list))
	}
	var out []byte
	for from := mc.model.start; from < mc.model.end; {
		s, err := l.Read(from, mc.model.end, 1<<20, true)
		require.NoError(t, err)
		require.NotZero(t, s.Len())
		p := make([]byte, s.Len())
		_, err = s.ReadAt(p, 0)
		require.NoError(t, err)
		out = append(out, p...)
		from = s.NextOffset()
		s.Release()
	}
	require.Equal(t, concat(mc.model.batches), out)
}

// TestLogAgainstModel is the state machine of a log against a slice: every operation, restarts, kills and power cuts
// in any order (I1, I6, L1-L8, L16, L22, R5, R22, R26, W14, W15).
func TestLogAgainstModel(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		rapid.Check(t, func(t *rapid.T) {
			// In the simulator the order of the workers follows from the seed, so that rapid can shrink a failure.
			seed := rapid.Uint64().Draw(t, "seed")
			sim := vfs.NewSim(seed)
			var failure any
			sim.Go("test", func() {
				defer func() { failure = recover() }()
				mc := newMachine(t, m, sim, seed)
				t.Repeat(map[string]func(*rapid.T){
					"":              mc.Check,
					"append":        mc.Append,
					"append again":  mc.Append,
					"append more":   mc.Append,
					"flush":         mc.Flush,
					"tick":          mc.Tick,
					"read":          mc.Read,
					"read outside":  mc.ReadOutside,
					"time":          mc.Time,
					"truncate":      mc.Truncate,
					"trim":          mc.Trim,
					"retain":        mc.RetainBySize,
					"reopen":        mc.Reopen,
					"kill":          mc.Kill,
					"power cut":     mc.PowerCut,
					"power cut two": mc.PowerCut,
				})
				require.NoError(t, mc.dir.Close())
			})
			defer sim.Abandon()
			for sim.Running("test") > 0 {
				if sim.Run(1000) == 0 {
					t.Fatalf("deadlock: %v", sim.Blocked())
				}
			}
			// A panic is rapid's way to end a run. It tells failures apart by where they come from, so running out of
			// random data, which is none, must come from elsewhere.
			if fmt.Sprintf("%T", failure) == "rapid.invalidData" {
				panic(failure)
			}
			if failure != nil {
				panic(failure)
			}
		})
	})
}
