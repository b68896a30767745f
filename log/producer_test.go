package log

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

var acked = Settings{FlushAck: true}

func appendErr(t *testing.T, l *Log, epoch int32, b []byte) error {
	t.Helper()
	var out [1]Appended
	require.NoError(t, l.Append(epoch, []Set{{Records: b}}, out[:]))
	return out[0].Err
}

func sequenced(id int64, epoch int16, sequence int32, records int) []byte {
	return testBatch(records, 10, 1000, producerFields{id: id, epoch: epoch, sequence: sequence})
}

// TestProducerWindow: a retry of any of the last five batches gets its first offset, an older one and a gap are refused
// (P1), an older epoch is refused, a new one begins at 0.
func TestProducerWindow(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		d := openDir(t, testConfig(m, vfs.NewMem(1)))
		defer d.Close()
		l := createLog(t, d, acked)
		var first []Appended
		for i := range 8 {
			first = append(first, appendOne(t, l, 0, sequenced(7, 1, int32(2*i), 2)))
		}
		end := l.EndOffset()
		for i := range 8 {
			b := sequenced(7, 1, int32(2*i), 2)
			if i < 3 {
				require.ErrorIs(t, appendErr(t, l, 0, b), ErrOutOfOrderSequence)
				continue
			}
			a := appendOne(t, l, 0, b)
			require.True(t, a.Duplicate)
			require.Equal(t, first[i].BaseOffset, a.BaseOffset)
			require.Equal(t, first[i].NextOffset, a.NextOffset)
		}
		require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 1, 17, 1)), ErrOutOfOrderSequence, "gap")
		require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 1, 14, 1)), ErrOutOfOrderSequence, "same first, other last sequence")
		require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 0, 16, 1)), ErrInvalidProducerEpoch)
		require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 2, 16, 1)), ErrOutOfOrderSequence, "a new epoch begins at 0")
		require.Equal(t, end, l.EndOffset(), "nothing refused may have been appended")
		appendOne(t, l, 0, sequenced(7, 2, 0, 1))
		require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 1, 16, 1)), ErrInvalidProducerEpoch)
	})
}

// TestSequenceWraps: sequences go from 2^31-1 to 0, also inside a batch (P3).
func TestSequenceWraps(t *testing.T) {
	d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
	defer d.Close()
	l := createLog(t, d, acked)
	appendOne(t, l, 0, sequenced(7, 0, math.MaxInt32-3, 3)) // up to 2^31-2
	appendOne(t, l, 0, sequenced(7, 0, math.MaxInt32, 3))   // 2^31-1, 0, 1
	a := appendOne(t, l, 0, sequenced(7, 0, math.MaxInt32, 3))
	require.True(t, a.Duplicate)
	appendOne(t, l, 0, sequenced(7, 0, 2, 1))
	appendOne(t, l, 0, sequenced(8, 0, math.MaxInt32-1, 2)) // ends at 2^31-1
	appendOne(t, l, 0, sequenced(8, 0, 0, 1))
	require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 0, math.MaxInt32, 1)), ErrOutOfOrderSequence)
}

// TestProducerInOneDrain: sets of one producer that are drained together see each other, a refused one leaves no trace.
func TestProducerInOneDrain(t *testing.T) {
	d := openDir(t, testConfig(mode{}, vfs.NewMem(1)))
	defer d.Close()
	l := createLog(t, d, acked)
	sets := []Set{
		{Records: sequenced(7, 0, 0, 2)},
		{Records: sequenced(7, 0, 2, 1)},
		{Records: sequenced(7, 0, 9, 1)}, // gap
		{Records: sequenced(7, 0, 0, 2)}, // retry of the first
		{Records: sequenced(7, 0, 3, 1)},
		{Records: append(sequenced(7, 0, 4, 1), sequenced(7, 0, 6, 1)...)}, // its second batch leaves a gap
		{Records: sequenced(7, 0, 4, 1)},
	}
	out := make([]Appended, len(sets))
	require.NoError(t, l.Append(0, sets, out))
	require.Equal(t, int64(0), out[0].BaseOffset)
	require.Equal(t, int64(2), out[1].BaseOffset)
	require.ErrorIs(t, out[2].Err, ErrOutOfOrderSequence)
	require.True(t, out[3].Duplicate)
	require.Equal(t, int64(2), out[3].NextOffset)
	require.Equal(t, int64(3), out[4].BaseOffset)
	require.ErrorIs(t, out[5].Err, ErrOutOfOrderSequence)
	require.NoError(t, out[6].Err)
	require.Equal(t, int64(4), out[6].BaseOffset)
	require.Equal(t, int64(5), l.EndOffset())
}

// TestProducerSurvives: after a kill, a power cut and a clean stop a retry of any of the last five batches is still
// recognised (L8, P2), whatever snapshot or none the recovery begins with.
func TestProducerSurvives(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for name, restart := range map[string]func(d *Dir, fsys *vfs.Mem) *vfs.Mem{
			"kill":  func(_ *Dir, fsys *vfs.Mem) *vfs.Mem { return fsys.Kill() },
			"power": func(_ *Dir, fsys *vfs.Mem) *vfs.Mem { return fsys.Crash(vfs.CrashLose) },
			"clean": func(d *Dir, fsys *vfs.Mem) *vfs.Mem { require.NoError(t, d.Close()); return fsys },
			"kill without snapshots": func(_ *Dir, fsys *vfs.Mem) *vfs.Mem {
				fsys = fsys.Kill()
				removeFiles(t, fsys, snapshotSuffix)
				return fsys
			},
			"clean with damaged snapshots": func(d *Dir, fsys *vfs.Mem) *vfs.Mem {
				require.NoError(t, d.Close())
				damageFiles(t, fsys, snapshotSuffix)
				return fsys
			},
		} {
			t.Run(name, func(t *testing.T) {
				fsys := vfs.NewMem(3)
				d := openDir(t, testConfig(m, fsys))
				l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 700})
				var first []Appended
				for i := range 12 {
					first = append(first, appendOne(t, l, 0, sequenced(7, 1, int32(2*i), 2)))
					appendOne(t, l, 0, plainBatch(1, 30))
					if i == 6 {
						require.NoError(t, l.advance())
					}
				}
				waitDurable(t, l, l.EndOffset())
				fsys = restart(d, fsys)
				d = openDir(t, testConfig(m, fsys))
				defer d.Close()
				l = lookup(t, d)
				l.Configure(acked)
				end := l.EndOffset()
				for i := 7; i < 12; i++ {
					a := appendOne(t, l, 0, sequenced(7, 1, int32(2*i), 2))
					require.True(t, a.Duplicate)
					require.Equal(t, first[i], Appended{BaseOffset: a.BaseOffset, NextOffset: a.NextOffset})
				}
				require.Equal(t, end, l.EndOffset())
				require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 1, 12, 2)), ErrOutOfOrderSequence)
				appendOne(t, l, 0, sequenced(7, 1, 24, 1))
			})
		}
	})
}

func removeFiles(t *testing.T, fsys *vfs.Mem, suffix string) {
	t.Helper()
	eachFile(t, fsys, suffix, func(name string) { require.NoError(t, fsys.Remove(name)) })
}

func damageFiles(t *testing.T, fsys *vfs.Mem, suffix string) {
	t.Helper()
	eachFile(t, fsys, suffix, func(name string) {
		if e, err := fsys.Stat(name); err == nil && e.Size > 0 {
			fsys.Flip(name, e.Size/2, 3)
		}
	})
}

func eachFile(t *testing.T, fsys *vfs.Mem, suffix string, fn func(name string)) {
	t.Helper()
	entries, err := fsys.List("data/topic-0")
	require.NoError(t, err)
	for _, e := range entries {
		if _, s, ok := parseOffsetFileName(e.Name); ok && s == suffix {
			fn("data/topic-0/" + e.Name)
		}
	}
}

// TestProducerRollsBack: truncation takes the producers back to what the log says (P2).
func TestProducerRollsBack(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		d := openDir(t, testConfig(m, vfs.NewMem(1)))
		defer d.Close()
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 500})
		for i := range 10 {
			appendOne(t, l, 0, sequenced(7, 0, int32(i), 1))
		}
		require.NoError(t, l.Truncate(4))
		require.ErrorIs(t, appendErr(t, l, 1, sequenced(7, 0, 10, 1)), ErrOutOfOrderSequence)
		require.True(t, appendOne(t, l, 1, sequenced(7, 0, 3, 1)).Duplicate)
		a := appendOne(t, l, 1, sequenced(7, 0, 4, 1))
		require.False(t, a.Duplicate)
		require.Equal(t, int64(4), a.BaseOffset)
	})
}

// TestProducerExpires: state is forgotten 24 hours after the last batch by the monotonic clock, never because records
// were deleted, and then any first sequence is accepted (P4, KAFKA-7190).
func TestProducerExpires(t *testing.T) {
	cfg := testConfig(mode{}, vfs.NewMem(1))
	d := openDir(t, cfg)
	defer d.Close()
	l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 200, Delete: true, RetentionBytes: 0, RetentionAge: -1, ProducerExpiration: 24 * time.Hour})
	now := time.Now()
	d.Tick(now)
	appendOne(t, l, 0, sequenced(7, 0, 0, 1))
	appendOne(t, l, 0, plainBatch(1, 200))
	appendOne(t, l, 0, plainBatch(1, 200))
	l.SetHighWatermark(l.EndOffset())
	require.NoError(t, l.TrimPrefix(2))
	d.Tick(now.Add(23 * time.Hour))
	require.True(t, appendOne(t, l, 0, sequenced(7, 0, 0, 1)).Duplicate)
	d.Tick(now.Add(25 * time.Hour))
	require.Empty(t, l.Producers())
	a := appendOne(t, l, 0, sequenced(7, 0, 41, 1))
	require.False(t, a.Duplicate)
}

// TestSnapshotRoundTrip: decode(encode(s)) = s for any state, and a file without our window (as Kafka writes it) reads
// too. Every single flipped bit is noticed.
func TestSnapshotRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newProducers()
		n := rapid.IntRange(0, 60).Draw(t, "batches")
		for i := range n {
			h := record.Header{
				BaseOffset: int64(i * 10), LastOffsetDelta: rapid.Int32Range(0, 9).Draw(t, "delta"),
				MaxTimestamp: rapid.Int64().Draw(t, "ts"), ProducerID: rapid.Int64Range(0, 8).Draw(t, "id"),
				ProducerEpoch: rapid.Int16Range(0, 3).Draw(t, "epoch"), BaseSequence: rapid.Int32Range(-1, math.MaxInt32).Draw(t, "sequence"),
			}
			if rapid.Bool().Draw(t, "transactional") {
				h.Attributes |= 0x10
			}
			p.update(&h, nil, 5, false)
		}
		decided := []decidedTransaction{{3, 70}, {1, 71}}[:rapid.IntRange(0, 2).Draw(t, "decided")]
		sum := abortedSum{count: rapid.IntRange(0, 9).Draw(t, "aborted"), checksum: rapid.Uint32().Draw(t, "checksum")}
		b := p.encode(600, decided, 590, sum)
		s, err := decodeSnapshot(b, 600, 5)
		require.NoError(t, err)
		require.ElementsMatch(t, decided, s.transactions.decided)
		require.Equal(t, openOf(&p, 5), s.transactions.open)
		require.Equal(t, sum, s.aborted)
		require.Equal(t, int64(590), s.abortedBase)
		q := s.producers
		require.Equal(t, len(p.byID), len(q.byID))
		for id, e := range p.byID {
			want := *e
			clear(want.batches[want.count:]) // leftovers of an older epoch mean nothing
			if want.count > 0 {              // Kafka's format has one timestamp for the last batch and a marker behind it
				want.batches[0].timestamp = want.lastTimestamp
			}
			require.Equal(t, want, *q.byID[id])
		}
		_, err = decodeSnapshot(b, 601, 5)
		require.ErrorIs(t, err, ErrCorrupt, "the file of another offset")
		at := rapid.IntRange(0, len(b)-1).Draw(t, "flip")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		_, err = decodeSnapshot(b, 600, 5)
		require.ErrorIs(t, err, ErrCorrupt)
	})
}

// A producer whose last batches are deleted goes on with its next sequence also when the newest snapshot is damaged: an older
// one, of before those batches, is not believed (P4).
func TestProducerBehindDeletedBatches(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	s := acked
	s.SegmentBytes = 100 // one batch each
	l := createLog(t, d, s)
	for i := range int32(4) {
		appendOne(t, l, 0, sequenced(7, 0, i, 1))
	}
	require.NoError(t, l.Flush())
	l.SetHighWatermark(4)
	require.NoError(t, l.TrimPrefix(4)) // the last segment stays, being the only one
	appendOne(t, l, 0, sequenced(8, 0, 0, 1))
	l.w.Lock()
	require.Subset(t, l.snapshots, []int64{3, 4}, "the case this is about")
	l.w.Unlock()
	fsys = fsys.Kill()
	eachFile(t, fsys, snapshotSuffix, func(name string) {
		if !strings.Contains(name, offsetFileName(3, snapshotSuffix)) { // 4, and 5 if the syncer has come to it
			fsys.Flip(name, 20, 3)
		}
	})
	d = openDir(t, testConfig(mode{}, fsys))
	defer d.Close()
	l, _ = d.Lookup(testID(1), 0)
	require.NotNil(t, l)
	require.True(t, appendOne(t, l, 0, sequenced(8, 0, 0, 1)).Duplicate, "its batch is there")
	appendOne(t, l, 0, sequenced(7, 0, 4, 1))
}
