package log

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// filled makes a log with several segments, checkpointed about in the middle, and returns its batches.
func filled(t *testing.T, m mode, fsys vfs.FS, batches int) (*Dir, *Log, []record.Batch) {
	t.Helper()
	d := openDir(t, testConfig(m, fsys))
	l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1000, IndexIntervalBytes: 150})
	var out []record.Batch
	for i := range batches {
		b := testBatch(1+i%3, 30+i%7, int64(1000+10*i), noProducer)
		appendOne(t, l, int32(i/8), b)
		out = append(out, b)
		if i == batches/2 {
			require.NoError(t, l.advance())
			d.checkpointing.Lock()
			require.NoError(t, d.writeCheckpoint())
			d.checkpointing.Unlock()
		}
	}
	require.NoError(t, l.Flush())
	return d, l, out
}

// TestTornTail cuts the active segment at each byte of its last three batches, and flips each byte of them: recovery
// keeps the longest valid prefix, and never panics (L1).
func TestTornTail(t *testing.T) {
	fsys := vfs.NewMem(1)
	d, l, batches := filled(t, mode{}, fsys, 17)
	d.syncer.waitAdvanced() // of the last roll
	s := l.Settings()
	s.SegmentBytes = 1 << 20
	l.Configure(s)
	for i := range 3 {
		b := testBatch(1+i, 30, 2000, noProducer)
		appendOne(t, l, 5, b)
		batches = append(batches, b)
	}
	require.NoError(t, l.Flush())
	base, size := l.active().base, l.active().size
	name := fmt.Sprintf("data/topic-0/%020d.log", base)
	from := size
	for _, b := range batches[len(batches)-3:] {
		from -= int64(len(b))
	}
	require.Positive(t, from)
	rp := l.RecoveryPoint()
	bytes, err := vfs.ReadFile(fsys, name)
	require.NoError(t, err)

	reopen := func(content []byte) (end int64, valid []record.Batch) {
		c := fsys.CrashClone(vfs.CrashKeep)
		f, err := c.Create(name)
		require.NoError(t, err)
		_, err = f.WriteAt(content, 0)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		d := openDir(t, testConfig(mode{}, c))
		l := lookup(t, d)
		end = l.EndOffset()
		valid = readAll(t, l, 0, end, 1<<20)
		require.Equal(t, end, l.DurableEnd())
		require.NoError(t, d.Close())
		return end, valid
	}
	check := func(at int64, content []byte) {
		// The batches that end at or before the damage.
		want, position := int64(0), int64(0)
		var prefix []record.Batch
		for _, b := range batches {
			if b.BaseOffset() >= base {
				position += int64(len(b))
				if position > at {
					break
				}
			}
			want = b.NextOffset()
			prefix = append(prefix, b)
		}
		require.GreaterOrEqual(t, want, rp, "the test must damage what lies above the recovery point")
		end, valid := reopen(content)
		require.Equal(t, want, end, "damage at byte %d", at)
		require.Equal(t, concat(prefix), concat(valid))
	}
	for at := from; at < size; at++ {
		check(at, bytes[:at])
		if !inEpoch(batches, base, at) {
			flipped := slices.Clone(bytes)
			flipped[at] ^= 1 << (at % 8)
			check(at, flipped)
		}
	}
}

// TestEpochFalls: no leader appends below the epoch before, so a batch that seems to is where the log ends (L1).
func TestEpochFalls(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, acked)
	appendOne(t, l, 3, plainBatch(1, 10))
	at := l.SizeBytes()
	appendOne(t, l, 3, plainBatch(1, 10))
	appendOne(t, l, 4, plainBatch(1, 10))
	require.NoError(t, l.Flush())
	fsys = fsys.Kill()
	f, err := fsys.Open("data/topic-0/00000000000000000000.log")
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0, 0, 0, 2}, at+12)
	require.NoError(t, err)
	d = openDir(t, testConfig(mode{}, fsys))
	l = lookup(t, d)
	require.Equal(t, int64(1), l.EndOffset())
	require.Equal(t, int32(3), l.LastEpoch())
	require.NoError(t, d.Close())
}

// inEpoch says whether a byte of a segment belongs to the leader epoch of a batch: no checksum covers it, so a flip that
// makes it larger can not be told from a new epoch.
func inEpoch(batches []record.Batch, base, at int64) bool {
	position := int64(0)
	for _, b := range batches {
		if b.BaseOffset() >= base {
			if at >= position+12 && at < position+16 {
				return true
			}
			position += int64(len(b))
		}
	}
	return false
}

// TestBitRotBelowRecoveryPoint: a changed or missing byte that was durable takes the partition offline; nothing is cut,
// nothing skipped, and other partitions go on (L9, L10).
func TestBitRotBelowRecoveryPoint(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d, l, _ := filled(t, m, fsys, 60)
		_, err := d.Create("other", testID(2), 3, 0, acked)
		require.NoError(t, err)
		sealed := l.mu.segments[1]
		active := l.active()
		require.NoError(t, d.Close())
		for name, damage := range map[string]func(fsys *vfs.Mem){
			"missing middle segment": func(fsys *vfs.Mem) { require.NoError(t, fsys.Remove(sealed.log.path)) },
			"short middle segment":   func(fsys *vfs.Mem) { truncateTest(t, fsys, sealed.log.path, sealed.size-1) },
			"short active segment":   func(fsys *vfs.Mem) { truncateTest(t, fsys, active.log.path, active.size-1) },
			"missing active segment": func(fsys *vfs.Mem) { require.NoError(t, fsys.Remove(active.log.path)) },
			"bad state file":         func(fsys *vfs.Mem) { fsys.Flip("data/topic-0/"+stateName, 40, 1) },
			"missing state file":     func(fsys *vfs.Mem) { require.NoError(t, fsys.Remove("data/topic-0/"+stateName)) },
		} {
			t.Run(name, func(t *testing.T) {
				c := fsys.CrashClone(vfs.CrashKeep)
				damage(c)
				before := dirContent(t, c)
				d := openDir(t, testConfig(m, c))
				_, ok := d.Lookup(testID(1), 0)
				require.False(t, ok)
				offline := d.Offline()
				require.Len(t, offline, 1)
				require.ErrorIs(t, offline[0].Err, ErrCorrupt)
				require.Equal(t, testID(1), offline[0].TopicID)
				require.Equal(t, before, dirContent(t, c), "no file of the partition may change")
				_, err := d.Create("topic", testID(1), 0, 0, acked)
				require.ErrorIs(t, err, ErrExists, "a corrupt partition is not replaced by an empty one (I16)")
				other, ok := d.Lookup(testID(2), 3)
				require.True(t, ok)
				other.Configure(acked)
				appendOne(t, other, 0, plainBatch(1, 10))
				// Set aside, its replica can be made anew.
				require.NoError(t, d.SetAsideOffline(offline[0]))
				_, err = d.Create("topic", testID(1), 0, 0, acked)
				require.NoError(t, err)
				require.NoError(t, d.Close())
			})
		}
	})
}

func truncateTest(t *testing.T, fsys *vfs.Mem, name string, size int64) {
	t.Helper()
	f, err := fsys.Open(name)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// dirContent returns all files of the partition.
func dirContent(t *testing.T, fsys *vfs.Mem) map[string]string {
	t.Helper()
	entries, err := fsys.List("data/topic-0")
	require.NoError(t, err)
	out := make(map[string]string)
	for _, e := range entries {
		b, err := vfs.ReadFile(fsys, "data/topic-0/"+e.Name)
		require.NoError(t, err)
		out[e.Name] = string(b)
	}
	return out
}

// TestBitRotFoundByRead: a header that is bad in a served segment takes the partition offline, it does not make a gap.
func TestBitRotFoundByRead(t *testing.T) {
	fsys := vfs.NewMem(1)
	d, l, batches := filled(t, mode{}, fsys, 40)
	defer d.Close()
	seg := l.mu.segments[0]
	fsys.Flip(seg.log.path, int64(len(batches[0]))+10, 2) // the length of the second batch
	_, err := l.Read(batches[2].BaseOffset(), l.EndOffset(), 1<<20, true)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorIs(t, l.Corrupt(), ErrCorrupt)
	require.ErrorIs(t, l.Append(9, []Set{{Records: plainBatch(1, 1)}}, make([]Appended, 1)), ErrCorrupt)
	require.Len(t, d.Offline(), 1)
}

// TestDerivedFilesAreCaches deletes, empties, cuts, zeroes, garbles and swaps each derived file of each segment: the end
// and all records, found by offset and by time, stay the same (L5, L6, L7, L8, W19).
func TestDerivedFilesAreCaches(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d, l, batches := filled(t, m, fsys, 60)
		end := l.EndOffset()
		epochList := slices.Clone(l.mu.epochs.list)
		require.NoError(t, d.Close())
		entries, err := fsys.List("data/topic-0")
		require.NoError(t, err)
		var derived []string
		for _, e := range entries {
			switch KindOf("data/topic-0/" + e.Name) {
			case FileOffsetIndex, FileTimeIndex, FileProducerSnapshot, FileLeaderEpochs:
				derived = append(derived, "data/topic-0/"+e.Name)
			}
		}
		derived = append(derived, "data/"+checkpointName)
		require.Greater(t, len(derived), 10)
		write := func(fn func([]byte) []byte) func(*vfs.Mem, string) {
			return func(fsys *vfs.Mem, name string) {
				b, err := vfs.ReadFile(fsys, name)
				require.NoError(t, err)
				f, err := fsys.Create(name)
				require.NoError(t, err)
				_, err = f.WriteAt(fn(b), 0)
				require.NoError(t, err)
				require.NoError(t, f.Sync())
			}
		}
		for name, damage := range map[string]func(*vfs.Mem, string){
			"delete": func(fsys *vfs.Mem, name string) { require.NoError(t, fsys.Remove(name)) },
			"empty":  write(func(b []byte) []byte { return nil }),
			"cut":    write(func(b []byte) []byte { return b[:len(b)*2/3] }),
			"zero":   write(func(b []byte) []byte { return make([]byte, len(b)) }),
			"garble": write(func(b []byte) []byte {
				for i := range b {
					b[i] ^= byte(i*7 + 1)
				}
				return b
			}),
			"append": write(func(b []byte) []byte { return append(b, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3) }),
			"swap": func(fsys *vfs.Mem, name string) {
				for _, other := range derived {
					if other != name && KindOf(other) == KindOf(name) {
						b, err := vfs.ReadFile(fsys, other)
						require.NoError(t, err)
						write(func([]byte) []byte { return b })(fsys, name)
						return
					}
				}
			},
		} {
			for _, clean := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s clean=%v", name, clean), func(t *testing.T) {
					c := fsys.CrashClone(vfs.CrashKeep)
					if !clean {
						require.NoError(t, c.Remove("data/"+cleanName))
					}
					for _, file := range derived {
						damage(c, file)
					}
					d := openDir(t, testConfig(m, c))
					l := lookup(t, d)
					require.Equal(t, end, l.EndOffset())
					requireSameLog(t, l, batches)
					require.Equal(t, epochList, l.mu.epochs.list)
					require.NoError(t, d.Close())
					report, err := VerifyDir(c, "data", nil)
					require.NoError(t, err)
					for _, f := range report.Partitions[0].Findings {
						// An older snapshot under a wrong name stays as long as a newer one is good.
						require.True(t, name == "swap" && KindOf(f.File) == FileProducerSnapshot, "not rebuilt: %v", f)
					}
				})
			}
		}
	})
}

// requireSameLog reads a log from every offset, by every time, and compares it with batches; their times rise.
func requireSameLog(t *testing.T, l *Log, batches []record.Batch) {
	t.Helper()
	end := l.EndOffset()
	require.Equal(t, concat(batches), concat(readAll(t, l, 0, end, 300)))
	for _, b := range batches {
		for offset := b.BaseOffset(); offset < b.NextOffset(); offset++ {
			s, err := l.Read(offset, end, 1, true)
			require.NoError(t, err)
			require.Equal(t, []byte(b), sliceBytes(t, s))
			s.Release()
			// And up to each offset.
			s, err = l.Read(0, b.NextOffset(), 1<<20, true)
			require.NoError(t, err)
			s.Release()
		}
		offset, ts, epoch, err := l.OffsetForTime(b.MaxTimestamp()-5, end)
		require.NoError(t, err)
		require.Equal(t, b.BaseOffset(), offset)
		require.Equal(t, b.MaxTimestamp(), ts)
		require.Equal(t, b.LeaderEpoch(), epoch)
	}
	last := batches[len(batches)-1]
	offset, ts, _, err := l.MaxTimestamp(end)
	require.NoError(t, err)
	require.Equal(t, last.BaseOffset(), offset)
	require.Equal(t, last.MaxTimestamp(), ts)
	offset, _, _, err = l.OffsetForTime(last.MaxTimestamp()+1, end)
	require.NoError(t, err)
	require.Equal(t, int64(-1), offset)
}

// TestCrashAfterEveryOperation takes the power away after every single file operation of appends with rolls, a
// checkpoint, a trim, a truncation, a deletion and a creation: what was durable is there, and nothing else is wrong (L3,
// W14, W15, W18).
func TestCrashAfterEveryOperation(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for _, crash := range []vfs.CrashMode{vfs.CrashLose, vfs.CrashMixed} {
			fsys := vfs.NewMem(5)
			fsys.SetBlock(64)
			faulty := vfs.NewFaulty(fsys)
			cfg := testConfig(m, faulty)
			sim := vfs.NewSim(7) // one task after the other, so that the hook sees the log at rest
			cfg.Tasks = sim
			var l *Log
			durable, start, deleted := int64(-1), int64(0), false
			clones, busy := 0, false
			check := func(vfs.Op, string) {
				if busy || durable < 0 {
					return
				}
				busy = true
				defer func() { busy = false }()
				clones++
				if crash == vfs.CrashMixed && clones%5 != 0 {
					return
				}
				c := fsys.CrashClone(crash)
				d, err := OpenDir("data", testConfig(m, c))
				require.NoError(t, err)
				require.Empty(t, d.Offline())
				r, ok := d.Lookup(testID(1), 0)
				if !deleted {
					require.True(t, ok)
					require.GreaterOrEqual(t, r.EndOffset(), durable)
					require.GreaterOrEqual(t, r.StartOffset(), start)
					readAll(t, r, r.StartOffset(), r.EndOffset(), 1<<20)
				}
				require.NoError(t, d.Close())
			}
			faulty.Hook(check)
			sim.Go("test", func() {
				d, err := OpenDir("data", cfg)
				require.NoError(t, err)
				l, err = d.Create("topic", testID(1), 0, 0, Settings{FlushAck: true, SegmentBytes: 400, IndexIntervalBytes: 100})
				require.NoError(t, err)
				durable = 0
				step := func(n int) {
					for range n {
						var out [1]Appended
						require.NoError(t, l.Append(1, []Set{{Records: plainBatch(2, 40)}}, out[:]))
					}
					require.NoError(t, l.Flush())
					durable = l.DurableEnd()
				}
				step(8)
				require.NoError(t, d.checkpoint(false))
				step(3)
				l.SetHighWatermark(l.EndOffset())
				require.NoError(t, l.TrimPrefix(9))
				start = 9
				step(3)
				durable = 15
				require.NoError(t, l.Truncate(16))
				require.Equal(t, int64(16), l.EndOffset())
				durable = 16
				step(3)
				deleted = true
				require.NoError(t, d.Delete(l))
				d.Tick(time.Now())
				_, err = d.Create("topic", testID(2), 0, 0, acked)
				require.NoError(t, err)
				require.NoError(t, d.Close())
			})
			for sim.Running("test") > 0 {
				require.NotZero(t, sim.Run(1000), sim.Blocked())
			}
			sim.Abandon()
			require.Greater(t, clones, 200)
		}
	})
}

// TestRecoveredIsDurable: what recovery reports was synced first, also if it was only in the page cache (L4).
func TestRecoveredIsDurable(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		l := createLog(t, d, Settings{}) // flush.ack off: nothing is synced
		for range 5 {
			appendOne(t, l, 0, plainBatch(1, 50))
		}
		require.Equal(t, int64(0), l.DurableEnd())
		fsys = fsys.Kill()
		d = openDir(t, testConfig(m, fsys))
		l = lookup(t, d)
		require.Equal(t, int64(5), l.EndOffset())
		require.Equal(t, int64(5), l.DurableEnd())
		fsys = fsys.Crash(vfs.CrashLose)
		d = openDir(t, testConfig(m, fsys))
		l = lookup(t, d)
		require.Equal(t, int64(5), l.EndOffset())
		require.NoError(t, d.Close())
	})
}

// TestRecoveryReadsOnlyTheTail: after a kill a log of 100 times the size is opened with the same reads, but for what
// lies behind the recovery point.
func TestRecoveryReadsOnlyTheTail(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		opened := func(batches int) int64 {
			fsys := vfs.NewMem(1)
			cfg := testConfig(m, fsys)
			cfg.CheckpointBytes = 64 << 10
			d := openDir(t, cfg)
			l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 1 << 20, IndexIntervalBytes: 4096})
			now := time.Now()
			for i := range batches {
				appendOne(t, l, 0, testBatch(4, 1000, 1000, noProducer))
				if i%100 == 99 {
					d.Tick(now.Add(time.Duration(i) * time.Millisecond))
				}
			}
			d.Tick(now.Add(time.Hour)) // a checkpoint is due
			for range 10 {
				appendOne(t, l, 0, plainBatch(4, 1000))
			}
			require.NoError(t, l.Flush())
			fsys = fsys.Kill()
			counting := vfs.NewFaulty(fsys)
			d = openDir(t, testConfig(m, counting))
			require.Equal(t, int64(4*(batches+10)), lookup(t, d).EndOffset())
			stats := d.RecoveryStats()
			require.LessOrEqual(t, stats.BytesScanned, int64(11*4200))
			read := counting.Bytes(vfs.OpRead)
			require.NoError(t, d.Close())
			return read
		}
		small, large := opened(50), opened(5000)
		limit := small + 32<<10
		if m.wal { // its files are read whole, whatever the log's size; they grow up to their configured size
			limit += int64(testConfig(m, nil).WALFiles) * testConfig(m, nil).WALFileBytes
		}
		require.Less(t, large, limit, "bytes read for 20 MB against 0.2 MB")
		t.Logf("read %d bytes of 0.2 MB, %d bytes of 20 MB", small, large)
	})
}

// TestHalfCreatedDirectory: a directory without state and records is what an interrupted Create leaves; it goes.
func TestHalfCreatedDirectory(t *testing.T) {
	fsys := vfs.NewMem(1)
	require.NoError(t, fsys.Mkdir("data/topic-0"))
	f, err := fsys.Create("data/topic-0/00000000000000000000.log")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	d := openDir(t, testConfig(mode{}, fsys))
	require.Empty(t, d.Offline())
	require.Empty(t, d.Logs())
	createLog(t, d, acked)
	require.NoError(t, d.Close())
}
