package log

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// failure waits for the one call of OnFailure.
type failure struct {
	once  chan error
	calls int
	mu    sync.Mutex
}

func newFailure() *failure { return &failure{once: make(chan error, 16)} }

func (f *failure) call(err error) {
	f.mu.Lock()
	f.calls++
	f.mu.Unlock()
	f.once <- err
}

func (f *failure) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-f.once:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("OnFailure was not called")
		return nil
	}
}

// TestSyncFailurePoisons: after the first failed fsync nothing is acknowledged any more, no sync is tried again on the
// same files, OnFailure is called once, and the next start is unclean (L2, W17, M7).
func TestSyncFailurePoisons(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		mem := vfs.NewMem(1)
		fsys := vfs.NewFaulty(mem)
		cfg := testConfig(m, fsys)
		failed := newFailure()
		cfg.OnFailure = failed.call
		d := openDir(t, cfg)
		l := createLog(t, d, acked)
		a := appendOne(t, l, 0, plainBatch(1, 10))
		waitDurable(t, l, a.NextOffset)
		l.Notify(nil)

		fsys.Inject(vfs.Fault{Op: vfs.OpSync, Times: 1, Err: vfs.ErrIO})
		var out [1]Appended
		require.NoError(t, l.Append(0, []Set{{Records: plainBatch(1, 10)}}, out[:]))
		require.ErrorIs(t, failed.wait(t), vfs.ErrIO)
		require.ErrorIs(t, d.Failed(), vfs.ErrIO)
		var again []string
		var lock sync.Mutex
		fsys.Hook(func(op vfs.Op, name string) {
			lock.Lock()
			defer lock.Unlock()
			if op == vfs.OpSync && KindOf(name) == FileSegment {
				again = append(again, name)
			}
		})
		require.Equal(t, int64(1), l.DurableEnd(), "what follows a failed sync is never acknowledged")
		err := l.Append(0, []Set{{Records: plainBatch(1, 10)}}, out[:])
		require.ErrorIs(t, err, ErrPoisoned)
		require.ErrorIs(t, out[0].Err, ErrPoisoned)
		require.ErrorIs(t, l.Flush(), ErrPoisoned)
		require.ErrorIs(t, l.Truncate(0), ErrPoisoned)
		_, err = d.Create("other", testID(9), 0, 0, acked)
		require.ErrorIs(t, err, ErrPoisoned)
		d.Tick(time.Now())
		require.Error(t, d.Close())
		lock.Lock()
		require.Empty(t, again, "no segment is synced again")
		lock.Unlock()
		failed.mu.Lock()
		require.Equal(t, 1, failed.calls)
		failed.mu.Unlock()

		d = openDir(t, testConfig(m, mem.Kill()))
		require.False(t, d.CleanStart())
		require.GreaterOrEqual(t, lookup(t, d).EndOffset(), int64(1))
		require.NoError(t, d.Close())
	})
}

// TestEveryFailingSync makes the n-th fsync of a busy directory fail, for every n: the directory is poisoned or the
// start refused, and after a power cut everything acknowledged before is there.
func TestEveryFailingSync(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for n := 1; ; n++ {
			mem := vfs.NewMem(uint64(n))
			mem.SetBlock(64)
			mem.FailSync(n)
			sim := vfs.NewSim(uint64(n))
			acknowledged, done := int64(0), false
			sim.Go("test", func() {
				cfg := testConfig(m, mem)
				cfg.Tasks = sim
				d, err := OpenDir("data", cfg)
				if err != nil {
					return
				}
				l, err := d.Create("topic", testID(1), 0, 0, Settings{FlushAck: true, SegmentBytes: 300})
				if err != nil {
					return
				}
				l.Notify(func(end int64) { acknowledged = end })
				for i := range 10 {
					var out [1]Appended
					if l.Append(0, []Set{{Records: plainBatch(1, 40)}}, out[:]) != nil {
						return
					}
					if i%4 == 3 && d.checkpoint(false) != nil {
						return
					}
				}
				done = d.Close() == nil
			})
			for sim.Running("test") > 0 {
				require.NotZero(t, sim.Run(1000), sim.Blocked())
			}
			sim.Run(10000) // the workers come to rest
			sim.Abandon()
			if done {
				require.Greater(t, n, 20)
				return
			}
			mem.SetYield(nil)
			d, err := OpenDir("data", testConfig(m, mem.Crash(vfs.CrashMixed)))
			require.NoError(t, err)
			require.Empty(t, d.Offline())
			if l, ok := d.Lookup(testID(1), 0); ok {
				require.GreaterOrEqual(t, l.EndOffset(), acknowledged, "failing sync %d", n)
				readAll(t, l, 0, l.EndOffset(), 1<<20)
			} else {
				require.Zero(t, acknowledged)
			}
			require.NoError(t, d.Close())
		}
	})
}

// TestWriteFailure: a write that fails for another reason than a full disk poisons; the bytes are cut back (W17).
func TestWriteFailure(t *testing.T) {
	mem := vfs.NewMem(1)
	fsys := vfs.NewFaulty(mem)
	d := openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, acked)
	appendOne(t, l, 0, plainBatch(1, 10))
	fsys.Inject(vfs.Fault{Op: vfs.OpWrite, Name: "*.log", Err: vfs.ErrIO, Short: 30})
	var out [1]Appended
	require.ErrorIs(t, l.Append(0, []Set{{Records: plainBatch(1, 10)}}, out[:]), ErrPoisoned)
	require.ErrorIs(t, out[0].Err, ErrPoisoned)
	require.Error(t, d.Close())
}

// TestShortWrite: a short write, with ENOSPC or silently, is cut back and the cut synced before the error is answered;
// the refused batch never comes back, also not after a power cut, and the next append stands where it stood (L13, L14,
// W2, I17).
func TestShortWrite(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		for name, fault := range map[string]error{"no space": vfs.ErrNoSpace, "silent": nil} {
			for _, short := range []int{0, 1, 61, 90} {
				t.Run(fmt.Sprintf("%s after %d", name, short), func(t *testing.T) {
					mem := vfs.NewMem(1)
					mem.SetBlock(16)
					fsys := vfs.NewFaulty(mem)
					d := openDir(t, testConfig(m, shortFS{fsys, fault == nil}))
					l := createLog(t, d, acked)
					first := testBatch(2, 20, 1, producerFields{id: 3})
					appendOne(t, l, 0, first)
					require.NoError(t, l.Flush())
					err := fault
					if err == nil {
						err = errSilent
					}
					fsys.Inject(vfs.Fault{Op: vfs.OpWrite, Name: "*.log", Err: err, Short: short})
					refused := testBatch(2, 40, 1, producerFields{id: 3, sequence: 2})
					syncs := fsys.Count(vfs.OpSync)
					var out [2]Appended
					require.ErrorIs(t, l.Append(0, []Set{{Records: refused}, {Records: bytes.Clone(first)}}, out[:]), ErrNoSpace)
					require.ErrorIs(t, out[0].Err, ErrNoSpace)
					require.True(t, out[1].Duplicate, "the original is in the log: an error would be a lie")
					require.NoError(t, out[1].Err)
					require.Greater(t, fsys.Count(vfs.OpSync), syncs, "the cut is durable before the answer")
					require.NoError(t, d.Failed())
					require.Equal(t, int64(2), l.EndOffset())

					// A power cut now does not bring it back.
					for _, crash := range []vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed} {
						c := openDir(t, testConfig(m, mem.CrashClone(crash)))
						require.Equal(t, int64(2), lookup(t, c).EndOffset())
						require.NoError(t, c.Close())
					}
					// Nor does a shorter batch in its place, and the producer goes on where it was.
					a := appendOne(t, l, 0, testBatch(1, 1, 1, producerFields{id: 3, sequence: 2}))
					require.Equal(t, int64(2), a.BaseOffset)
					waitDurable(t, l, 3)
					c := openDir(t, testConfig(m, mem.CrashClone(vfs.CrashMixed)))
					require.Equal(t, int64(3), lookup(t, c).EndOffset())
					require.NoError(t, c.Close())
					require.NoError(t, d.Close())
				})
			}
		}
	})
}

var errSilent = errors.New("short without an error")

// shortFS turns errSilent into a short write without an error, as an interrupted system call makes it.
type shortFS struct {
	vfs.FS
	silent bool
}

func (s shortFS) Create(name string) (vfs.File, error) { return s.wrap(s.FS.Create(name)) }
func (s shortFS) Open(name string) (vfs.File, error)   { return s.wrap(s.FS.Open(name)) }

func (s shortFS) wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil || !s.silent {
		return f, err
	}
	return shortFile{f}, nil
}

type shortFile struct{ vfs.File }

func (f shortFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	n, err := f.File.WritevAt(bufs, off)
	if errors.Is(err, errSilent) {
		err = nil
	}
	return n, err
}

// TestDiskFull: on a full disk produce requests fail definitely, reads go on, deleting records frees space without a
// restart although the disk is full, and then appends go on (L13, I21, W20).
func TestDiskFull(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		mem := vfs.NewMem(1)
		cfg := testConfig(m, mem)
		cfg.BallastBytes = 32 << 10
		d := openDir(t, cfg)
		l := createLog(t, d, Settings{FlushAck: true, SegmentBytes: 8 << 10, Delete: true, RetentionAge: -1, RetentionBytes: -1})
		room := int64(64 << 10)
		if m.wal { // redo may have to allocate as much again (W20)
			room += 4 * int64(cfg.WALFiles) * cfg.WALFileBytes
		}
		mem.SetCapacity(usedBytes(t, mem) + room)
		var out [1]Appended
		appended := 0
		for {
			err := l.Append(0, []Set{{Records: plainBatch(1, 500)}}, out[:])
			if err != nil || out[0].Err != nil {
				require.ErrorIs(t, errors.Join(err, out[0].Err), ErrNoSpace)
				break
			}
			appended++
			require.Less(t, appended, 10000)
		}
		require.Greater(t, appended, 20)
		require.NoError(t, d.Failed())
		require.Equal(t, int64(appended), l.EndOffset())
		require.Len(t, readAll(t, l, 0, l.EndOffset(), 1<<20), appended)
		_, err := d.Create("other", testID(2), 0, 0, acked)
		require.ErrorIs(t, err, ErrNoSpace)
		require.NoError(t, l.Flush())
		l.SetHighWatermark(l.EndOffset())
		d.Tick(time.Now())
		require.NoError(t, l.TrimPrefix(int64(appended-10)), "state files use the ballast")
		require.NoError(t, d.Failed())
		a := appendOne(t, l, 0, plainBatch(1, 500))
		waitDurable(t, l, a.NextOffset)
		mem.SetCapacity(-1)
		require.NoError(t, d.Close())
	})
}

func usedBytes(t *testing.T, mem *vfs.Mem) int64 {
	t.Helper()
	mem.SetCapacity(1 << 30)
	free, total, err := mem.Usage("data")
	require.NoError(t, err)
	return total - free
}

// TestFreeSpaceReserve: appends stop while less than the reserve is free, before the disk is really full (L13), and resume by
// themselves; a duplicate is still answered.
func TestFreeSpaceReserve(t *testing.T) {
	mem := vfs.NewMem(1)
	mem.SetCapacity(1 << 20)
	cfg := testConfig(mode{}, mem)
	cfg.ReserveBytes, cfg.ReservePercent = 900<<10, 80
	d := openDir(t, cfg)
	defer d.Close()
	l := createLog(t, d, acked)
	appendOne(t, l, 0, sequenced(7, 0, 0, 1))
	now := time.Now()
	d.Tick(now)
	appendOne(t, l, 0, testBatch(1, 300<<10, 1, producerFields{id: 7, sequence: 1}))
	d.Tick(now.Add(time.Second)) // notices
	require.ErrorIs(t, appendErr(t, l, 0, sequenced(7, 0, 2, 1)), ErrNoSpace)
	require.True(t, appendOne(t, l, 0, sequenced(7, 0, 0, 1)).Duplicate)
	require.ErrorIs(t, l.Replicate(1<<30, []Set{{Records: plainBatch(1, 1)}}), ErrNoSpace)
	mem.SetCapacity(4 << 20)
	appendOne(t, l, 0, sequenced(7, 0, 2, 1))
}
