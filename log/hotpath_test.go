package log

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// raceEnabled is set by race_on_test.go: the race detector allocates.
var raceEnabled = false

// TestAppendGuards: an append allocates nothing, copies no record bytes, and makes one write system call for all sets
// that were drained together, in pieces that end where a MiB of the file does.
func TestAppendGuards(t *testing.T) {
	fsys := vfs.NewFaulty(vfs.OS())
	d, err := OpenDir(t.TempDir()+"/data", testConfig(mode{}, fsys))
	require.NoError(t, err)
	defer d.Close()
	l := createLog(t, d, Settings{}) // no acknowledgement: the sync workers are not what is measured
	sets, out := make([]Set, 64), make([]Appended, 64)
	for i := range sets {
		p := noProducer
		if i%2 == 0 {
			p = producerFields{id: int64(i)}
		}
		sets[i].Records = testBatch(10, 100, 1000, p)
	}
	size := int64(len(sets) * len(sets[0].Records))
	for i := range sets { // each batch begins an epoch of its producer, so that it can be sent again and again
		setEpoch(sets[i].Records, 0)
	}
	require.NoError(t, l.Append(1, sets, out))

	writes, bytes := fsys.Count(vfs.OpWrite), fsys.Bytes(vfs.OpWrite)
	for i := range sets {
		setEpoch(sets[i].Records, 1)
	}
	require.NoError(t, l.Append(1, sets, out))
	for i := range out {
		require.NoError(t, out[i].Err)
	}
	require.LessOrEqual(t, fsys.Count(vfs.OpWrite)-writes, 1+2, "one for the batches, at most two for index entries")
	require.Less(t, fsys.Bytes(vfs.OpWrite)-bytes, size+4096)

	big := []Set{{Records: testBatch(1000, 3000, 1000, noProducer)}}
	seg := l.active()
	first := seg.size / writePieceBytes
	writes = fsys.Count(vfs.OpWrite)
	require.NoError(t, l.Append(1, big, out[:1]))
	pieces := int(seg.size/writePieceBytes-first) + 1
	require.Greater(t, pieces, 2)
	require.LessOrEqual(t, fsys.Count(vfs.OpWrite)-writes, pieces+2)

	if raceEnabled {
		return
	}
	d2, err := OpenDir(t.TempDir()+"/data", testConfig(mode{}, vfs.OS())) // the counting file system allocates
	require.NoError(t, err)
	defer d2.Close()
	l = createLog(t, d2, Settings{})
	require.NoError(t, l.Append(1, sets, out))
	epoch := int16(2)
	allocs := testing.AllocsPerRun(200, func() {
		for i := range sets {
			setEpoch(sets[i].Records, epoch)
		}
		epoch++
		if err := l.Append(1, sets, out); err != nil || out[63].Err != nil {
			t.Fatal(err, out[63].Err)
		}
	})
	require.Less(t, allocs, 1.0, "index growth aside")
}

func setEpoch(b record.Batch, epoch int16) {
	if b.ProducerID() >= 0 {
		b[51], b[52] = byte(epoch>>8), byte(epoch)
		b.Seal()
	}
}

// TestReadGuards: finding a slice allocates at most once and reads a bounded number of bytes, wherever it lies.
func TestReadGuards(t *testing.T) {
	fsys := vfs.NewFaulty(vfs.OS())
	d, err := OpenDir(t.TempDir()+"/data", testConfig(mode{}, fsys))
	require.NoError(t, err)
	defer d.Close()
	l := createLog(t, d, Settings{SegmentBytes: 1 << 20})
	sets, out := make([]Set, 50), make([]Appended, 50)
	for l.EndOffset() < 50000 {
		for i := range sets {
			sets[i].Records = plainBatch(5, 100)
		}
		require.NoError(t, l.Append(1, sets, out))
	}
	end := l.EndOffset()
	require.Greater(t, l.SegmentCount(), 5)
	rng := rand.New(rand.NewPCG(1, 1))
	offset := int64(0)
	read := func() {
		s, err := l.Read(offset, end-rng.Int64N(100), 64<<10, true)
		if err != nil {
			t.Fatal(err)
		}
		s.Release()
	}
	for range 500 {
		offset = rng.Int64N(end - 200)
		bytes, calls := fsys.Bytes(vfs.OpRead), fsys.Count(vfs.OpRead)
		read()
		// Two lookups of the index (pages and headers of pages) and a walk over an index interval at either end.
		require.Less(t, fsys.Bytes(vfs.OpRead)-bytes, int64(48<<10), "offset %d", offset)
		require.Less(t, fsys.Count(vfs.OpRead)-calls, 30, "offset %d", offset)
	}
	if !raceEnabled {
		require.LessOrEqual(t, testing.AllocsPerRun(500, func() {
			offset = rng.Int64N(end - 200)
			read()
		}), 1.0)
	}
}

// BenchmarkRead fetches 64 KiB at random offsets, from a log of one segment and from one of a hundred: the cost is the
// same.
func BenchmarkRead(b *testing.B) {
	for _, segments := range []int{1, 100} {
		b.Run(fmt.Sprintf("segments=%d", segments), func(b *testing.B) {
			cfg := testConfig(mode{}, vfs.OS())
			d, err := OpenDir(b.TempDir()+"/data", cfg)
			require.NoError(b, err)
			defer d.Close()
			const total = 64 << 20
			l, err := d.Create("topic", testID(1), 0, 0, Settings{SegmentBytes: int64(total/segments) + 4096})
			require.NoError(b, err)
			sets, out := make([]Set, 16), make([]Appended, 16)
			for l.SizeBytes() < total {
				for i := range sets {
					sets[i].Records = plainBatch(10, 1000)
				}
				require.NoError(b, l.Append(1, sets, out))
			}
			end := l.EndOffset()
			rng := rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				s, err := l.Read(rng.Int64N(end-100), end, 64<<10, true)
				if err != nil {
					b.Fatal(err)
				}
				s.Release()
			}
		})
	}
}

// BenchmarkAppend appends drained sets of 16 KiB without waiting for the disk.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("sets=%d", n), func(b *testing.B) {
			d, err := OpenDir(b.TempDir()+"/data", testConfig(mode{}, vfs.OS()))
			require.NoError(b, err)
			defer d.Close()
			l, err := d.Create("topic", testID(1), 0, 0, Settings{SegmentBytes: 256 << 20})
			require.NoError(b, err)
			sets, out := make([]Set, n), make([]Appended, n)
			for i := range sets {
				sets[i].Records = plainBatch(16, 1000)
			}
			b.SetBytes(int64(n * len(sets[0].Records)))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Append(1, sets, out); err != nil {
					b.Fatal(err)
				}
				if l.SizeBytes() > 1<<30 {
					b.StopTimer()
					require.NoError(b, l.Truncate(0))
					b.StartTimer()
				}
			}
		})
	}
}
