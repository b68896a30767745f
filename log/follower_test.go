package log

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// TestReplicate: a follower appends bytes as received, demands that they begin at its end, that checksums fit and
// epochs do not fall, and then answers like its leader: same bytes, epochs and producers (I5, I19, R21, P2).
func TestReplicate(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		leaderDir, followerDir := openDir(t, testConfig(m, vfs.NewMem(1))), openDir(t, testConfig(m, vfs.NewMem(2)))
		defer leaderDir.Close()
		defer followerDir.Close()
		leader := createLog(t, leaderDir, Settings{FlushAck: true, SegmentBytes: 700})
		follower := createLog(t, followerDir, Settings{FlushAck: true, SegmentBytes: 400})
		for i := range 20 {
			appendOne(t, leader, int32(i/6), sequenced(7, 0, int32(2*i), 2))
		}
		end := leader.EndOffset()
		for follower.EndOffset() < end {
			s, err := leader.Read(follower.EndOffset(), end, 500, true)
			require.NoError(t, err)
			p := sliceBytes(t, s)
			s.Release()

			for name, damage := range map[string]func([]byte) []byte{
				"flipped":   func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
				"cut":       func(b []byte) []byte { return b[:len(b)-1] },
				"a garbage": func([]byte) []byte { return []byte("garbage") },
			} {
				require.ErrorIs(t, follower.Replicate(1<<30, []Set{{Records: damage(bytes.Clone(p))}}), ErrInvalidBatch, name)
			}
			gap := record.Batch(bytes.Clone(p))
			gap.SetBaseOffset(gap.BaseOffset() + 1)
			require.ErrorIs(t, follower.Replicate(1<<30, []Set{{Records: gap}}), ErrUnexpectedOffset)
			at := follower.EndOffset()
			require.NoError(t, follower.Replicate(1<<30, []Set{{Records: bytes.Clone(p)}}))
			require.ErrorIs(t, follower.Replicate(1<<30, []Set{{Records: p}}), ErrUnexpectedOffset, "not twice")
			require.Greater(t, follower.EndOffset(), at)
		}
		require.Equal(t, concat(readAll(t, leader, 0, end, 1<<20)), concat(readAll(t, follower, 0, end, 1<<20)))
		require.Equal(t, leader.mu.epochs.list, follower.mu.epochs.list)
		require.Equal(t, leader.Producers(), follower.Producers())
		old := record.Batch(plainBatch(1, 1))
		old.SetBaseOffset(end)
		old.SetLeaderEpoch(1)
		require.ErrorIs(t, follower.Replicate(1<<30, []Set{{Records: old}}), ErrStaleEpoch)
		require.ErrorIs(t, leader.Append(1, []Set{{Records: plainBatch(1, 1)}}, make([]Appended, 1)), ErrStaleEpoch)
		waitDurable(t, follower, end)

		// A set with a bad one in the middle: what came before stands.
		a, b := record.Batch(plainBatch(1, 1)), record.Batch(plainBatch(1, 1))
		a.SetBaseOffset(end)
		b.SetBaseOffset(end + 5)
		a.SetLeaderEpoch(9)
		b.SetLeaderEpoch(9)
		require.ErrorIs(t, follower.Replicate(1<<30, []Set{{Records: a}, {Records: b}}), ErrUnexpectedOffset)
		require.Equal(t, end+1, follower.EndOffset())
		require.Equal(t, int32(9), follower.LastEpoch())
	})
}

// TestEpochAnswers follows KIP-101 and KIP-279: the largest epoch ≤ the one asked for and the offset behind its last
// record; an epoch begins at the end of the log at its election (R4); entries beyond the end are cut by every
// truncation, also one that removes no record (R5).
func TestEpochAnswers(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		l := createLog(t, d, acked)
		ask := func(epoch, wantEpoch int32, wantEnd int64) {
			t.Helper()
			gotEpoch, gotEnd := l.EpochEnd(epoch)
			require.Equal(t, wantEpoch, gotEpoch)
			require.Equal(t, wantEnd, gotEnd)
		}
		ask(5, -1, -1)
		l.BeginEpoch(2)
		ask(2, 2, 0)
		appendOne(t, l, 2, plainBatch(3, 10))
		l.BeginEpoch(4) // no record of it yet
		ask(2, 2, 3)
		ask(3, 2, 3)
		ask(4, 4, 3)
		appendOne(t, l, 6, plainBatch(2, 10)) // epoch 4 got none: its entry is gone
		ask(1, -1, -1)
		ask(4, 2, 3)
		ask(6, 6, 5)
		ask(100, 6, 5)
		require.Equal(t, int64(3), l.EpochStart(3))
		require.Equal(t, int32(2), l.EpochAt(2))
		require.Equal(t, int32(6), l.EpochAt(3))
		l.BeginEpoch(8)
		require.NoError(t, l.Truncate(5))
		ask(8, 6, 5)
		require.NoError(t, l.Truncate(3))
		ask(8, 2, 3)
		require.NoError(t, d.Close())
		d = openDir(t, testConfig(m, fsys))
		l = lookup(t, d)
		ask(8, 2, 3)
		appendOne(t, l, 9, plainBatch(1, 10))
		l.SetHighWatermark(4)
		require.NoError(t, l.TrimPrefix(2))
		ask(2, 2, 3)
		require.Equal(t, int64(2), l.EpochStart(0))
		require.NoError(t, l.TrimPrefix(4))
		ask(2, -1, -1)
		ask(9, 9, 4)
		require.NoError(t, d.Close())
	})
}

// TestStartAt: the log goes on elsewhere, empty, under a new log id; what an interrupted one left is finished by the
// next start (W13).
func TestStartAt(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 300})
		for i := range 10 {
			appendOne(t, l, 1, sequenced(7, 0, int32(i), 1))
		}
		id := l.mu.logID
		require.NoError(t, l.StartAt(1000))
		require.NotEqual(t, id, l.mu.logID)
		require.Equal(t, int64(1000), l.StartOffset())
		require.Equal(t, int64(1000), l.EndOffset())
		require.Equal(t, int64(1000), l.DurableEnd())
		require.Empty(t, l.Producers())
		require.ErrorIs(t, l.StartAt(5), ErrOffsetOutOfRange)
		a := appendOne(t, l, 1, plainBatch(2, 10))
		require.Equal(t, int64(1000), a.BaseOffset)
		waitDurable(t, l, 1002)
		d = openDir(t, testConfig(m, fsys.Crash(vfs.CrashLose)))
		l = lookup(t, d)
		require.Equal(t, int64(1000), l.StartOffset())
		require.Equal(t, int64(1002), l.EndOffset())
		require.NoError(t, d.Close())
	})
}

// TestDurableIntervals: the durable end is the end of the contiguous run of done offsets, in whatever order and by
// whichever path they are done (W4).
func TestDurableIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 60
		var d durable
		var done [size]bool
		for range rapid.IntRange(1, 40).Draw(t, "completions") {
			from := rapid.Int64Range(0, size-1).Draw(t, "from")
			to := rapid.Int64Range(from, size).Draw(t, "to")
			was := d.end
			advanced := d.complete(from, to)
			for i := from; i < to; i++ {
				done[i] = true
			}
			want := int64(0)
			for want < size && done[want] {
				want++
			}
			require.Equal(t, want, d.end)
			require.Equal(t, want > was, advanced)
			for i, in := range d.done {
				require.Less(t, in.from, in.to)
				require.Greater(t, in.from, d.end)
				require.True(t, i == 0 || in.from > d.done[i-1].to)
			}
		}
		d.reset(7)
		require.Equal(t, int64(7), d.end)
		require.Empty(t, d.done)
	})
}

// TestIndexTable compares an index, with its tail in memory and its pages in a file, with a slice.
func TestIndexTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fsys := vfs.NewMem(1)
		f, err := fsys.Create("index")
		require.NoError(t, err)
		x := index{kind: offsetIndexKind}
		var all []indexEntry
		flush := func() {
			p, at := x.pending(nil)
			_, err := f.WriteAt(p, at)
			require.NoError(t, err)
			x.flushed = x.count
		}
		n := rapid.IntRange(0, 3000).Draw(t, "entries")
		step := rapid.Int64Range(1, 5).Draw(t, "step")
		for i := range n {
			e := indexEntry{key: int64(i+1) * step, value: uint32(i * 10)}
			x.add(e)
			all = append(all, e)
			if x.count-x.flushed >= indexFlushEntries {
				flush()
			}
		}
		require.LessOrEqual(t, len(x.tail), indexTailEntries+indexFlushEntries)
		check := func(x *index, all []indexEntry) {
			for range 20 {
				limit := rapid.Int64Range(-1, int64(n+2)*step).Draw(t, "limit")
				want := 0
				for want < len(all) && all[want].key <= limit {
					want++
				}
				got, e, err := x.search(limit, byKey, func() (io.ReaderAt, error) { return f, nil })
				require.NoError(t, err)
				require.Equal(t, want, got)
				if want > 0 {
					require.Equal(t, all[want-1], e)
				}
			}
			if len(all) > 0 {
				i := rapid.IntRange(0, len(all)-1).Draw(t, "entry")
				e, err := x.entry(i, func() (io.ReaderAt, error) { return f, nil })
				require.NoError(t, err)
				require.Equal(t, all[i], e)
			}
		}
		check(&x, all)
		keep := rapid.IntRange(0, len(all)).Draw(t, "keep")
		cut := x.truncated(keep)
		check(&cut, all[:keep])
		flush()
		x.sealed()
		require.Empty(t, x.tail)
		check(&x, all)
		loaded := offsetIndexKind.loaded(int64(n)*offsetEntryBytes + 3)
		check(&loaded, all)
	})
}
