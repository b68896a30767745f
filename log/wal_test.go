package log

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// walTestConfig is a small ring: blocks of 64 bytes, files of 1 KiB.
func walTestConfig(fsys vfs.FS, seed uint64) walConfig {
	rng := rand.New(rand.NewPCG(seed, 3))
	return walConfig{
		fsys: fsys, dir: "data/wal", parent: "data", blockBytes: 64, initialBytes: 1 << 10, fileBytes: 2 << 10, files: 4,
		random: rng.Uint64, sync: vfs.File.Sync, mayGrow: func(int64) bool { return true }, logger: slog.New(slog.DiscardHandler),
	}
}

func walTestMem(t testing.TB, seed uint64) *vfs.Mem {
	m := vfs.NewMem(seed)
	m.SetBlock(32)
	require.NoError(t, m.Mkdir("data"))
	require.NoError(t, m.SyncDir("/"))
	return m
}

// walOracle knows what was written to a ring and what must, and may, be found after a crash.
type walOracle struct {
	// acked are the records of frames whose write returned; pending those of the frame being written.
	acked, pending []walRecord
	// frames holds the number of records per acknowledged frame, generations that of its file.
	generations []uint64
	// retired: records of generations below it may be gone.
	retired uint64
}

func randomFrame(rng *rand.Rand, f *walFrame, next map[uint64]int64) {
	f.reset()
	for range 1 + rng.IntN(3) {
		id := 1 + rng.Uint64N(3)
		n := 1 + rng.Int64N(5)
		data := make([]byte, 1+rng.IntN(60))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		f.add(walRecord{logID: id, base: next[id], next: next[id] + n, segmentBase: next[id] / 10, position: rng.Int64N(1000), durableEnd: next[id] / 2, data: data})
		next[id] += n
	}
}

// walLife runs a ring: frames, rotations, retirements (the records' segments being somebody else's business here).
func walLife(w *wal, rng *rand.Rand, o *walOracle, next map[uint64]int64, steps int) error {
	var f walFrame
	for range steps {
		switch rng.IntN(8) {
		default:
			randomFrame(rng, &f, next)
			ok, err := w.reserve(f.size(w.cfg.blockBytes))
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			o.pending = append([]walRecord(nil), f.records...)
			if err := w.write(&f); err != nil {
				return err
			}
			for _, r := range o.pending {
				o.acked = append(o.acked, r)
				o.generations = append(o.generations, w.header.generation)
			}
			o.pending = nil
		case 0:
			if _, err := w.prepare(); err != nil {
				return err
			}
		case 1:
			if full := w.retiring(rng.IntN(2) == 0); full != nil {
				o.retired = full.generation + 1
				cp := checkpoint{oldest: full.generation + 1, live: true}
				if err := vfs.ReplaceFile(w.cfg.fsys, "data", checkpointName, cp.encode()); err != nil {
					return err
				}
				if err := w.retired(full); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// readBack scans a ring and returns the records with their bytes.
func readBack(t testing.TB, fsys vfs.FS) (walScan, []walRecord) {
	cp, err := readCheckpoint(fsys, "data")
	require.NoError(t, err)
	var found []walRecord
	scan, err := scanWAL(fsys, "data/wal", 64, cp, func(r walRef) error {
		f, err := fsys.OpenRead(walFileName("data/wal", r.file))
		require.NoError(t, err)
		defer f.Close()
		rec := r.walRecord
		rec.data = make([]byte, r.length)
		_, err = f.ReadAt(rec.data, r.offset)
		require.NoError(t, err)
		found = append(found, rec)
		return nil
	})
	require.NoError(t, err)
	return scan, found
}

// crashAt panics with a clone of the file system at the n-th operation.
type crashAt struct{ m *vfs.Mem }

// TestWALCrash: whatever operation a power cut interrupts, in a life, in the next start or the one after, the records
// of all frames that were acknowledged and not retired are found, in order, once, with nothing else but the frame in
// flight; no damage is reported; and a new generation voids them all (W8, W9, W11, W12, wal.md 4).
func TestWALCrash(t *testing.T) {
	crashes, interrupted, frames := 0, 0, 0
	for seed := range uint64(800) {
		rng := rand.New(rand.NewPCG(seed, 7))
		m := walTestMem(t, seed)
		next := map[uint64]int64{}
		var o walOracle
		for life := range 4 {
			left := rng.IntN(400)
			if life > 0 && rng.IntN(3) > 0 {
				left = rng.IntN(30) // most likely while the ring is started
			}
			started := false
			m.SetYield(func(string) {
				if left--; left < 0 {
					panic(crashAt{m.Crash(vfs.CrashMode(rng.IntN(3)))})
				}
			})
			func() {
				defer func() {
					if c, ok := recover().(crashAt); ok {
						m = c.m
						crashes++
						if !started {
							interrupted++
						}
					} else {
						m.SetYield(nil)
						m = m.Crash(vfs.CrashMode(rng.IntN(3)))
					}
					m.SetYield(nil)
				}()
				scan, found := readBack(t, m)
				w, err := startWAL(walTestConfig(m, seed+uint64(life)<<32), scan)
				require.NoError(t, err)
				_ = found
				started = true
				o = walOracle{retired: w.oldest}
				require.NoError(t, walLife(w, rng, &o, next, 60))
			}()

			scan, found := readBack(t, m)
			require.Empty(t, scan.damage, "seed %d life %d", seed, life)
			if !started {
				continue // the old records were acted upon already; whether they are still found is not told
			}
			frames += scan.frames
			var want []walRecord
			for i, r := range o.acked {
				if o.generations[i] >= scan.oldest {
					want = append(want, r)
				}
			}
			require.LessOrEqual(t, scan.oldest, max(o.retired, scan.oldest))
			if len(found) > len(want) && len(o.pending) > 0 {
				want = append(want, o.pending...)
			}
			require.Equal(t, len(want), len(found), "seed %d life %d", seed, life)
			for i := range want {
				require.Equal(t, want[i], found[i], "seed %d life %d record %d", seed, life, i)
			}
		}
	}
	require.Greater(t, crashes, 1000)
	require.Greater(t, interrupted, 150)
	require.Greater(t, frames, 1500)
}

// TestWALRot: one flipped bit in any live file is reported or harmless, except in the last frame of the newest one,
// which can not be told from a torn tail (wal.md 6).
func TestWALRot(t *testing.T) {
	reported, silent, harmless := 0, 0, 0
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 11))
		m := walTestMem(t, seed)
		w, err := startWAL(walTestConfig(m, seed), walScan{})
		require.NoError(t, err)
		var o walOracle
		require.NoError(t, walLife(w, rng, &o, map[uint64]int64{}, 60))
		before, all := readBack(t, m)
		require.Empty(t, before.damage)
		file := before.files[rng.IntN(len(before.files))]
		m.Flip(walFileName("data/wal", file.number), rng.Int64N(file.size), uint(rng.IntN(8)))
		after, found := readBack(t, m)
		if len(after.damage) > 0 {
			reported++
			continue
		}
		if after.records == before.records {
			require.Equal(t, all, found)
			harmless++
			continue
		}
		require.Equal(t, before.frames-1, after.frames, "seed %d", seed)
		require.Equal(t, all[:len(found)], found, "seed %d", seed)
		silent++
	}
	t.Logf("reported %d, harmless %d, last frame lost %d", reported, harmless, silent)
	require.Greater(t, reported, 100)
	require.Greater(t, silent, 5)
	require.Greater(t, harmless, 100)
}

// TestWALDamage: what no crash can leave is called damage, and only in live generations (wal.md 4 step 3).
func TestWALDamage(t *testing.T) {
	// build writes three generations of two frames each.
	build := func(t *testing.T, retired int) (*vfs.Mem, walScan) {
		m := walTestMem(t, 1)
		w, err := startWAL(walTestConfig(m, 1), walScan{})
		require.NoError(t, err)
		for range 3 {
			more, err := w.prepare()
			require.NoError(t, err)
			require.True(t, more)
		}
		var f walFrame
		for g := range 3 {
			for i := range 2 {
				f.reset()
				f.add(walRecord{logID: 9, base: int64(g*2 + i), next: int64(g*2 + i + 1), data: bytes.Repeat([]byte{byte(g)}, 300)})
				ok, err := w.reserve(f.size(64))
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, w.write(&f))
			}
		}
		require.EqualValues(t, 3, w.header.generation)
		for range retired {
			full := w.retiring(true)
			require.NoError(t, vfs.ReplaceFile(m, "data", checkpointName, (&checkpoint{oldest: full.generation + 1, live: true}).encode()))
			require.NoError(t, w.retired(full))
		}
		scan, _ := readBack(t, m)
		require.Empty(t, scan.damage)
		require.Equal(t, 6-2*retired, scan.frames)
		return m, scan
	}
	frame := int64(64 * 7) // 48 + 48 + 300 bytes
	at := func(generation, frames int64) (string, int64) {
		return walFileName("data/wal", int(generation)-1), 64 + frames*frame + 50
	}
	rot := func(t *testing.T, retired int, generation, frames int64) walScan {
		m, _ := build(t, retired)
		name, off := at(generation, frames)
		m.Flip(name, off, 0)
		scan, _ := readBack(t, m)
		return scan
	}
	for retired := range 3 {
		for generation := int64(1); generation <= 3; generation++ {
			for frames := range int64(2) {
				scan := rot(t, retired, generation, frames)
				live := generation > int64(retired)
				last := generation == 3 && frames == 1
				require.Equal(t, live && !last, len(scan.damage) > 0, "retired %d, generation %d, frame %d: %v", retired, generation, frames, scan.damage)
			}
			m, _ := build(t, retired)
			m.Flip(walFileName("data/wal", int(generation)-1), 20, 0) // the header
			scan, _ := readBack(t, m)
			require.Equal(t, generation > int64(retired), len(scan.damage) > 0, "header of %d, retired %d: %v", generation, retired, scan.damage)

			m, _ = build(t, retired)
			require.NoError(t, m.Remove(walFileName("data/wal", int(generation)-1)))
			scan, _ = readBack(t, m)
			// The newest file can only be missed if it is the last one: the checkpoint says that one is live.
			want := generation > int64(retired) && (generation < 3 || retired == 2)
			require.Equal(t, want, len(scan.damage) > 0, "file of %d, retired %d: %v", generation, retired, scan.damage)
		}
	}
	m, _ := build(t, 0)
	_, err := startWAL(walTestConfig(m, 5), func() walScan { s, _ := readBack(t, m); return s }())
	require.NoError(t, err)
	scan, found := readBack(t, m)
	require.Empty(t, scan.damage)
	require.Empty(t, found, "a new generation voids the old records")
	require.EqualValues(t, 4, scan.oldest)
	require.GreaterOrEqual(t, scan.nextSequence, uint64(7), "sequence numbers are not used twice")
}

// TestWALRing: files become active, full and free in turn, are added up to their number, grow when they are recycled,
// and when none is free the caller is told to go direct (W6, W12).
func TestWALRing(t *testing.T) {
	m := walTestMem(t, 1)
	w, err := startWAL(walTestConfig(m, 1), walScan{})
	require.NoError(t, err)
	require.True(t, w.wants())
	var f walFrame
	write := func() bool {
		f.reset()
		f.add(walRecord{logID: 1, base: 0, next: 1, data: make([]byte, 400)})
		ok, err := w.reserve(f.size(64))
		require.NoError(t, err)
		if ok {
			require.NoError(t, w.write(&f))
		}
		return ok
	}
	count := 0
	for write() {
		count++
	}
	require.Equal(t, 1, count, "one file of 1 KiB takes one frame of 512 bytes behind its header")
	for more := true; more; {
		more, err = w.prepare()
		require.NoError(t, err)
	}
	require.False(t, w.wants())
	for write() {
		count++
	}
	require.Equal(t, 4, count)
	require.True(t, w.wants())
	require.EqualValues(t, 4096, w.bytes())
	for i := range 8 {
		full := w.retiring(false)
		require.NotNil(t, full)
		require.Contains(t, full.logs, uint64(1))
		require.EqualValues(t, i+1, full.generation)
		require.NoError(t, w.retired(full))
		require.EqualValues(t, i+2, w.oldestLive())
		if i%2 == 1 {
			for write() {
				count++
			}
		}
	}
	require.Greater(t, w.bytes(), int64(4096), "recycled files grow")
	require.LessOrEqual(t, w.bytes(), int64(8192))
	f.reset()
	f.add(walRecord{logID: 1, base: 0, next: 1, data: make([]byte, 4096)})
	ok, err := w.reserve(f.size(64))
	require.NoError(t, err)
	require.False(t, ok, "larger than a file")
	require.LessOrEqual(t, w.largestSet(), int64(512))
	require.LessOrEqual(t, w.largestFrame(), int64(1024))
	require.NoError(t, w.close())
}

// TestWALFillsShortFiles: a file left short by a crash is filled before it is used, so that a frame never meets a full
// disk; a start without a free file takes an additional one and the keeper removes it when the ring is complete (W12).
func TestWALFillsShortFiles(t *testing.T) {
	m := walTestMem(t, 1)
	w, err := startWAL(walTestConfig(m, 1), walScan{})
	require.NoError(t, err)
	for range 3 {
		_, err = w.prepare()
		require.NoError(t, err)
	}
	f, err := m.Open("data/wal/2")
	require.NoError(t, err)
	require.NoError(t, f.Truncate(100))
	scan, _ := readBack(t, m)
	for i := range scan.files {
		scan.files[i].live = true
	}
	w, err = startWAL(walTestConfig(m, 2), scan)
	require.NoError(t, err)
	require.Equal(t, 4, w.active.number, "no file was free")
	for more := true; more; {
		more, err = w.prepare()
		require.NoError(t, err)
	}
	entries, err := m.List("data/wal")
	require.NoError(t, err)
	require.Len(t, entries, 4)
	for _, e := range entries {
		require.EqualValues(t, 1024, e.Size, e.Name)
		require.True(t, m.Durable("data/wal/"+e.Name), e.Name)
	}

	m.SetCapacity(0)
	require.NoError(t, m.Remove("data/wal/1"))
	_, found := readBack(t, m)
	require.Empty(t, found)
	scan, _ = readBack(t, m)
	w, err = startWAL(walTestConfig(m, 3), scan)
	require.NoError(t, err)
	for range 2 {
		_, err = w.prepare()
		require.NoError(t, err)
	}
	_, err = w.prepare()
	require.ErrorIs(t, err, vfs.ErrNoSpace)
	require.True(t, w.wants())
	m.SetCapacity(-1)
	_, err = w.prepare()
	require.NoError(t, err)
	require.False(t, w.wants())
}

// TestWALErrors: an error of write or sync reaches the committer, whatever operation it hits (W12, W17).
func TestWALErrors(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpSync} {
		for after := range 12 {
			fsys := vfs.NewFaulty(walTestMem(t, 1))
			w, err := startWAL(walTestConfig(fsys, 1), walScan{})
			require.NoError(t, err)
			for range 3 {
				_, err = w.prepare()
				require.NoError(t, err)
			}
			fsys.Inject(vfs.Fault{Op: op, After: after, Err: vfs.ErrIO, Short: 10})
			err = walLife(w, rand.New(rand.NewPCG(1, uint64(after))), &walOracle{}, map[uint64]int64{}, 100)
			require.ErrorIs(t, err, vfs.ErrIO, "%s %d", op, after)
		}
	}
	for _, op := range []vfs.Op{vfs.OpMkdir, vfs.OpSyncDir, vfs.OpCreate, vfs.OpWrite, vfs.OpSync} {
		_, err := startWAL(walTestConfig(vfs.NewFaulty(walTestMem(t, 1), vfs.Fault{Op: op, Err: vfs.ErrIO}), 1), walScan{})
		require.ErrorIs(t, err, vfs.ErrIO, op)
	}
	m := walTestMem(t, 1)
	_, err := startWAL(walTestConfig(m, 1), walScan{})
	require.NoError(t, err)
	for _, op := range []vfs.Op{vfs.OpList, vfs.OpOpen, vfs.OpRead, vfs.OpSize, vfs.OpDrop} {
		fsys := vfs.NewFaulty(m, vfs.Fault{Op: op, Err: vfs.ErrIO})
		_, err = scanWAL(fsys, "data/wal", 64, checkpoint{}, func(walRef) error { return nil })
		require.ErrorIs(t, err, vfs.ErrIO, op)
	}
}

// TestWALGolden pins the bytes on disk: a change of format needs a new version.
func TestWALGolden(t *testing.T) {
	h := walHeader{blockBytes: 128, generation: 5, nonce: walNonce{1, 2, 3, 15: 16}, firstSequence: 77, oldest: 3}
	b := h.encode()
	require.Len(t, b, 128)
	require.Equal(t, "4d525748"+"52b11b71"+"00010000"+"00000080"+"0000000000000005"+"01020300000000000000000000000010"+
		"000000000000004d"+"0000000000000003"+"0000000000000000"+strings.Repeat("00", 64), hex.EncodeToString(b))
	got, err := decodeWALHeader(b)
	require.NoError(t, err)
	require.Equal(t, h, got)

	var f walFrame
	f.reset()
	f.add(walRecord{logID: 0x1122334455667788, base: 10, next: 12, segmentBase: 4, position: 4096, durableEnd: 9, data: []byte("batch bytes")})
	require.EqualValues(t, 128, f.size(128))
	b = bytes.Join(f.build(&h, 78, make([]byte, 128)), nil)
	require.Equal(t, "4d525746"+"28df7c68"+"0000000000000005"+"01020300000000000000000000000010"+"000000000000004e"+"0000003b"+"00000001"+
		"1122334455667788"+"000000000000000a"+"000000000000000c"+"0000000000000004"+"0000000000000009"+"00001000"+"0000000b"+
		hex.EncodeToString([]byte("batch bytes"))+strings.Repeat("00", 21), hex.EncodeToString(b))
}

// TestWALHeaderBytes: no header with a changed byte is taken.
func TestWALHeaderBytes(t *testing.T) {
	b := (&walHeader{blockBytes: 64, generation: 5, firstSequence: 1, oldest: 3}).encode()
	for i := range b {
		for _, x := range []byte{1, 0x80, 0xff} {
			c := bytes.Clone(b)
			c[i] ^= x
			_, err := decodeWALHeader(c)
			require.ErrorIs(t, err, errWALHeader, "byte %d", i)
		}
		_, err := decodeWALHeader(b[:i])
		require.Error(t, err)
	}
}

// TestWALFramePieces: small batches are copied, large ones referenced; both come back, and the steady state allocates
// nothing.
func TestWALFramePieces(t *testing.T) {
	h := walHeader{blockBytes: walBlockBytes, generation: 1}
	zeros := make([]byte, walBlockBytes)
	var f walFrame
	more := [][]byte{[]byte("behind it"), walTestBytes[:70000], nil}
	fill := func() {
		f.reset()
		for i, n := range []int{10, 5000, walBlockBytes, walBlockBytes + 1, 1, 100000} {
			f.add(walRecord{logID: uint64(i), base: int64(i), next: int64(i + 1), data: walTestBytes[:n], more: more})
		}
	}
	fill()
	b := bytes.Join(f.build(&h, 1, zeros), nil)
	require.EqualValues(t, f.size(walBlockBytes), len(b))
	require.Zero(t, len(b)%walBlockBytes)
	rest := b[walFrameHeadBytes:f.bytes]
	for i := range f.records {
		r, next, err := decodeWALRecord(rest)
		require.NoError(t, err)
		want := f.records[i]
		want.data, want.more = bytes.Join(append([][]byte{want.data}, more...), nil), nil
		require.Equal(t, want, r)
		rest = next
	}
	require.Empty(t, rest)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		fill()
		f.build(&h, 1, zeros)
	}))
}

var walTestBytes = bytes.Repeat([]byte("0123456789"), 10000)

// FuzzWALScan: no content of the files makes the scan panic, loop or return a record that lies outside of its file.
func FuzzWALScan(f *testing.F) {
	m := walTestMem(f, 1)
	w, err := startWAL(walTestConfig(m, 1), walScan{})
	require.NoError(f, err)
	require.NoError(f, walLife(w, rand.New(rand.NewPCG(1, 1)), &walOracle{}, map[uint64]int64{}, 40))
	for i := range 3 {
		b, err := vfs.ReadFile(m, walFileName("data/wal", i))
		require.NoError(f, err)
		f.Add(b, b[:len(b)/2], uint64(i))
	}
	f.Add([]byte{}, []byte("MRWH"), uint64(0))
	f.Fuzz(func(t *testing.T, a, b []byte, oldest uint64) {
		m := vfs.NewMem(1)
		require.NoError(t, m.Mkdir("data/wal"))
		for i, content := range [][]byte{a, b} {
			f, err := m.Create(walFileName("data/wal", i))
			require.NoError(t, err)
			_, err = f.WriteAt(content, 0)
			require.NoError(t, err)
		}
		sizes := []int64{int64(len(a)), int64(len(b))}
		scan, err := scanWAL(m, "data/wal", 64, checkpoint{oldest: oldest}, func(r walRef) error {
			if r.offset < 0 || r.length < 0 || r.offset+int64(r.length) > sizes[r.file] || r.next <= r.base || r.base < 0 || r.position < 0 {
				return fmt.Errorf("impossible record %+v", r)
			}
			return nil
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, scan.oldest, oldest)
	})
}

// BenchmarkWALWrite is one round of 100 partitions with 100 bytes each on a real file.
func BenchmarkWALWrite(b *testing.B) {
	cfg := walTestConfig(vfs.OS(), 1)
	cfg.parent = b.TempDir()
	cfg.dir = vfs.Join(cfg.parent, "wal")
	cfg.blockBytes, cfg.initialBytes, cfg.fileBytes = walBlockBytes, 8<<20, 8<<20
	w, err := startWAL(cfg, walScan{})
	require.NoError(b, err)
	defer w.close()
	for more := true; more; {
		more, err = w.prepare()
		require.NoError(b, err)
	}
	var f walFrame
	b.ReportAllocs()
	for b.Loop() {
		f.reset()
		for i := range uint64(100) {
			f.add(walRecord{logID: i, base: 1, next: 2, data: walTestBytes[:170]})
		}
		ok, err := w.reserve(f.size(walBlockBytes))
		if err == nil && !ok {
			err = errors.New("no free file")
		}
		if err == nil {
			err = w.write(&f)
		}
		if err == nil {
			if full := w.retiring(false); full != nil {
				err = w.retired(full)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
