package log

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// fuzzLog makes a log with two segments, all of it above the recovery point but what a clean stop synced at first.
func fuzzLog(t testing.TB) (*vfs.Mem, []record.Batch, int64) {
	fsys := vfs.NewMem(1)
	d, err := OpenDir("data", testConfig(mode{}, fsys))
	require.NoError(t, err)
	l, err := d.Create("topic", testID(1), 0, 0, Settings{SegmentBytes: 800, IndexIntervalBytes: 100})
	require.NoError(t, err)
	var batches []record.Batch
	add := func(n int) {
		var out [1]Appended
		for range n {
			b := testBatch(2, 40, int64(1000+len(batches)), producerFields{id: 1, sequence: int32(2 * len(batches))})
			require.NoError(t, l.Append(int32(len(batches)/4), []Set{{Records: b}}, out[:]))
			batches = append(batches, b)
		}
	}
	add(3)
	require.NoError(t, d.Close())
	d, err = OpenDir("data", testConfig(mode{}, fsys))
	require.NoError(t, err)
	l, _ = d.Lookup(testID(1), 0)
	rp := l.RecoveryPoint()
	add(2)
	return fsys.Kill(), batches, rp
}

// FuzzRecovery overwrites a part of any file of a partition with arbitrary bytes and opens it: no panic, and either the
// partition is offline, or it holds a prefix of what was appended, at least up to the recovery point when only bytes
// above it were changed.
func FuzzRecovery(f *testing.F) {
	files := []string{
		"00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex",
		"00000000000000000006.snapshot", stateName, epochsName, metadataName,
	}
	for i := range files {
		f.Add(uint8(i), uint16(0), []byte{})
		f.Add(uint8(i), uint16(3), []byte{0xff, 0, 0, 0, 9})
		f.Add(uint8(i), uint16(7), make([]byte, 40))
	}
	f.Add(uint8(0), uint16(410), []byte("a torn tail"))
	f.Fuzz(func(t *testing.T, file uint8, at uint16, data []byte) {
		fsys, batches, rp := fuzzLog(t)
		name := files[int(file)%len(files)]
		path := "data/topic-0/" + name
		old, _ := vfs.ReadFile(fsys, path)
		h, err := fsys.Open(path)
		if err != nil {
			h, err = fsys.Create(path)
		}
		require.NoError(t, err)
		_, err = h.WriteAt(data, int64(at))
		require.NoError(t, err)
		require.NoError(t, h.Sync())
		size, err := h.Size()
		require.NoError(t, err)
		require.NoError(t, h.Close())
		if int64(at) > int64(len(old)) && size > 1<<16 {
			return
		}

		d, err := OpenDir("data", testConfig(mode{}, fsys))
		require.NoError(t, err)
		defer d.Close()
		_, err = VerifyDir(fsys, "data", nil)
		require.NoError(t, err)
		l, ok := d.Lookup(testID(1), 0)
		if !ok {
			require.True(t, len(d.Offline()) == 1 || d.RecoveryStats().Strays == 1, "gone without a trace")
			require.True(t, name == stateName || name == metadataName || name == files[0], "%s is a cache", name)
			return
		}
		if KindOf(name) == FileState {
			return // a state with a good checksum may say anything
		}
		end := l.EndOffset()
		below := int64(0)
		for _, b := range batches {
			if b.BaseOffset() < rp {
				below += int64(len(b))
			}
		}
		if name != files[0] || int64(at) >= below {
			require.GreaterOrEqual(t, end, rp)
		}
		if name != files[0] {
			require.Equal(t, batches[len(batches)-1].NextOffset(), end, "%s is a cache", name)
		}
		// Read what is there. Rot below the recovery point may show only now.
		var got []byte
		for from := l.StartOffset(); from < end; {
			s, err := l.Read(from, end, 1<<20, true)
			if err != nil {
				require.ErrorIs(t, err, ErrCorrupt)
				return
			}
			require.NotZero(t, s.Len())
			p := make([]byte, s.Len())
			_, err = s.ReadAt(p, 0)
			require.NoError(t, err)
			got = append(got, p...)
			from = s.NextOffset()
			s.Release()
		}
		if name == files[0] && int64(at) < below {
			return // rot in what recovery does not read
		}
		// The checksum does not cover the leader epoch: compare everything else.
		want := concat(batches)[:len(got)]
		for w, g := want, got; len(g) > 0; {
			n := record.Batch(w).Header()
			require.Equal(t, w[:12], g[:12])
			require.Equal(t, w[16:n.Size()], g[16:n.Size()])
			w, g = w[n.Size():], g[n.Size():]
		}
		for _, b := range batches {
			if b.NextOffset() <= end {
				offset, _, _, err := l.OffsetForTime(b.MaxTimestamp(), end)
				require.NoError(t, err)
				require.Equal(t, b.BaseOffset(), offset)
			}
		}
	})
}

// FuzzState, FuzzSnapshot, FuzzEpochs: the decoders of the small files take any bytes; what they accept they write
// again the same.
func FuzzState(f *testing.F) {
	s := state{topic: "t", topicID: testID(1), logID: 3, start: 4, recoveryPoint: 9, cut: -1, sealed: []sealedSegment{{base: 0, next: 4, sizeBytes: 99}}}
	f.Add(s.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(b)
		if err == nil {
			require.Equal(t, b, s.encode())
		} else {
			require.ErrorIs(t, err, ErrCorrupt)
		}
	})
}

func FuzzSnapshot(f *testing.F) {
	p := newProducers()
	for i := range 7 {
		p.update(&record.Header{BaseOffset: int64(i), ProducerID: int64(i % 2), BaseSequence: int32(i), Attributes: int16(i%2) << 4}, nil, 0, false)
	}
	f.Add(p.encode(5, []decidedTransaction{{1, 3}}, 2, abortedSum{count: 1, checksum: 9}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSnapshot(b, 5, 0)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		again, err := decodeSnapshot(s.producers.encode(5, s.transactions.decided, s.abortedBase, s.aborted), 5, 0)
		require.NoError(t, err)
		require.Equal(t, s.transactions, again.transactions)
	})
}

func FuzzEpochs(f *testing.F) {
	f.Add([]byte("0\n2\n1 0\n4 77\n"))
	f.Add([]byte("0\n-1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := decodeEpochs(b)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		again, err := decodeEpochs(encodeEpochs(list))
		require.NoError(t, err)
		require.Equal(t, list, again)
	})
}
