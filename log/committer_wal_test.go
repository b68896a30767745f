package log

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// walDir opens a directory with a write-ahead log on a memory file system.
func walDir(t *testing.T) (*vfs.Mem, *vfs.Faulty, Config, *Dir) {
	m := vfs.NewMem(1)
	fsys := vfs.NewFaulty(m)
	cfg := testConfig(mode{"wal", true}, fsys)
	return m, fsys, cfg, openDir(t, cfg)
}

// crashDir cuts the power and opens what is left with the write-ahead log on or off.
func crashDir(t *testing.T, m *vfs.Mem, cfg Config, wal bool) (*vfs.Mem, *Dir) {
	m = m.Crash(vfs.CrashLose)
	cfg.FS, cfg.WAL = m, wal
	return m, openDir(t, cfg)
}

// gate holds the syncs of WAL files until it is opened.
type gate struct {
	waiting chan struct{} // closed once a sync waits
	open    chan struct{}
	once    sync.Once
}

func newGate(fsys *vfs.Faulty) *gate {
	g := &gate{waiting: make(chan struct{}), open: make(chan struct{})}
	fsys.Hook(func(op vfs.Op, name string) {
		if op == vfs.OpSync && strings.Contains(name, "/wal/") {
			g.once.Do(func() { close(g.waiting) })
			<-g.open
		}
	})
	return g
}

// TestOneSyncPerRound: whatever waits while a frame is in flight, of all partitions, is made durable by the next frame
// with one fdatasync (W4, dataplane.md 6).
func TestOneSyncPerRound(t *testing.T) {
	_, fsys, _, d := walDir(t)
	var logs []*Log
	for i := range 50 {
		l, err := d.Create("topic", testID(1), int32(i), 0, DefaultSettings())
		require.NoError(t, err)
		logs = append(logs, l)
	}
	waitKeeper(d)
	g := newGate(fsys)
	before, syncs := d.commit.(*walCommitter).wal.sequence, fsys.Count(vfs.OpSync)
	appendOne(t, logs[0], 1, plainBatch(1, 100))
	<-g.waiting
	for _, l := range logs {
		appendOne(t, l, 1, plainBatch(1, 100))
		appendOne(t, l, 1, plainBatch(1, 100))
	}
	close(g.open)
	for i, l := range logs {
		waitDurable(t, l, l.EndOffset())
		require.EqualValues(t, 2+(50-i)/50, l.DurableEnd())
	}
	require.Equal(t, syncs+2, fsys.Count(vfs.OpSync), "101 sets, two frames, two syncs")
	c := d.commit.(*walCommitter)
	c.lock.Lock()
	require.EqualValues(t, before+2, c.wal.sequence)
	c.lock.Unlock()
	require.NoError(t, d.Close())
}

// waitKeeper waits until the ring is complete, so that its syncs are not counted.
func waitKeeper(d *Dir) {
	c := d.commit.(*walCommitter)
	for c.wal.wants() {
		c.wake()
	}
	c.lock.Lock()
	for c.chore || c.tidying {
		c.ended.Wait()
	}
	c.lock.Unlock()
}

// TestDirectPolicy: sets from DirectBytes on go straight to the segment, and so does what follows until the sync has
// covered it (W6); then the write-ahead log takes over again. A partition without flush.ack stays out of it.
func TestDirectPolicy(t *testing.T) {
	_, _, cfg, d := walDir(t)
	l := createLog(t, d, DefaultSettings())
	c := d.commit.(*walCommitter)
	frames := func() uint64 {
		c.lock.Lock()
		defer c.lock.Unlock()
		return c.wal.sequence
	}
	before := frames()
	appendOne(t, l, 1, plainBatch(1, int(cfg.DirectBytes)))
	waitDurable(t, l, 1)
	require.Equal(t, before, frames(), "a large set needs no frame")
	appendOne(t, l, 1, plainBatch(1, 100))
	waitDurable(t, l, 2)
	require.Equal(t, before+1, frames())

	// A quarter of a file is too large for a frame although it is below DirectBytes.
	appendOne(t, l, 1, plainBatch(1, int(c.wal.largestSet())+1))
	waitDurable(t, l, 3)
	require.Equal(t, before+1, frames())

	// Bytes that were appended without flush.ack are covered by a sync before anything behind them is acknowledged: a frame would
	// stand behind a hole. Now and then the syncer has closed that before, and there is a frame.
	end, behindHole := int64(3), false
	for range 20 {
		s := DefaultSettings()
		s.FlushAck = false
		l.Configure(s)
		appendOne(t, l, 1, plainBatch(1, 100))
		s.FlushAck = true
		l.Configure(s)
		before = frames()
		appendOne(t, l, 1, plainBatch(1, 100))
		end += 2
		waitDurable(t, l, end)
		if behindHole = frames() == before; behindHole {
			break
		}
	}
	require.True(t, behindHole, "a frame would stand behind a hole")
	before = frames()
	appendOne(t, l, 1, plainBatch(1, 100))
	waitDurable(t, l, end+1)
	require.Equal(t, before+1, frames())
	require.NoError(t, d.Close())
}

// countingBuffer is an owner that counts.
type countingBuffer struct {
	mu   sync.Mutex
	uses int
	most int
}

func (b *countingBuffer) Retain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uses++
	b.most = max(b.most, b.uses)
}

func (b *countingBuffer) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uses--
}

func (b *countingBuffer) counts() (uses, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.uses, b.most
}

// TestOwners: the committer holds larger sets through their owner until the frame is written, copies small ones and
// those without owner, and lets go of everything.
func TestOwners(t *testing.T) {
	m, fsys, cfg, d := walDir(t)
	l := createLog(t, d, DefaultSettings())
	waitKeeper(d)
	g := newGate(fsys)
	var out [3]Appended
	large, small := &countingBuffer{uses: 1}, &countingBuffer{uses: 1}
	noOwner := plainBatch(1, 6000)
	require.NoError(t, l.Append(1, []Set{{Records: plainBatch(1, 6000), Owner: large}, {Records: plainBatch(1, 6000), Owner: large}}, out[:2]))
	require.NoError(t, l.Append(1, []Set{{Records: plainBatch(1, 50), Owner: small}}, out[:1]))
	require.NoError(t, l.Append(1, []Set{{Records: noOwner}}, out[:1]))
	clear(noOwner) // the bytes were valid only during the call
	<-g.waiting
	uses, _ := large.counts()
	require.Equal(t, 3, uses, "one use per set, besides the caller's")
	close(g.open)
	waitDurable(t, l, 4)
	c := d.commit.(*walCommitter)
	c.lock.Lock() // the committer has taken its round down once it lets go of the lock
	for len(c.flying) > 0 {
		c.lock.Unlock()
		c.lock.Lock()
	}
	c.lock.Unlock()
	uses, _ = large.counts()
	require.Equal(t, 1, uses)
	uses, most := small.counts()
	require.Equal(t, 1, uses)
	require.Zero(t, most, "a small set is copied, never held")
	fsys.Hook(nil)
	_, d = crashDir(t, m, cfg, true)
	require.Len(t, readAll(t, lookup(t, d), 0, 4, 1<<20), 4)
	require.NoError(t, d.Close())
}

// TestRedo: acknowledged bytes that only the write-ahead log holds come back after a power cut, whether it is on or
// off at the next start, and the one after that needs it no more.
func TestRedo(t *testing.T) {
	for _, next := range []bool{true, false} {
		m, _, cfg, d := walDir(t)
		l := createLog(t, d, DefaultSettings())
		waitKeeper(d) // else a round may find no free file and go direct
		for i := range 20 {
			appendOne(t, l, 1, plainBatch(1, 100*i))
			waitDurable(t, l, int64(i+1))
		}
		want := concat(readAll(t, l, 0, 20, 1<<20))
		disk, _ := m.Disk("data/topic-0/00000000000000000000.log")
		require.Empty(t, disk, "nothing of it was synced to the segment")
		m, d = crashDir(t, m, cfg, next)
		require.NotZero(t, d.RecoveryStats().WALRecords)
		require.Empty(t, d.RecoveryStats().WALDamage)
		require.Equal(t, want, concat(readAll(t, lookup(t, d), 0, 20, 1<<20)))
		m, d = crashDir(t, m, cfg, true)
		require.Zero(t, d.RecoveryStats().WALRecords, "the old records are void")
		require.Equal(t, want, concat(readAll(t, lookup(t, d), 0, 20, 1<<20)))
		appendOne(t, lookup(t, d), 1, plainBatch(1, 10))
		waitDurable(t, lookup(t, d), 21)
		require.NoError(t, d.Close())
		cfg.FS = m
		d = openDir(t, cfg)
		require.True(t, d.CleanStart())
		require.Zero(t, d.RecoveryStats().WALRecords, "a clean stop retires everything")
		require.NoError(t, d.Close())
	}
}

// TestRedoDiskFull: redo may have to allocate what the segments lost; if it can not, the start fails and says why
// (W20). With space it succeeds.
func TestRedoDiskFull(t *testing.T) {
	m, _, cfg, d := walDir(t)
	l := createLog(t, d, DefaultSettings())
	waitKeeper(d)
	for i := range 8 {
		appendOne(t, l, 1, plainBatch(1, 5000))
		waitDurable(t, l, int64(i+1))
	}
	m = m.Crash(vfs.CrashLose)
	m.SetCapacity(1 << 40)
	free, total, err := m.Usage("data")
	require.NoError(t, err)
	m.SetCapacity(total - free + 8192)
	cfg.FS = m
	_, err = OpenDir("data", cfg)
	require.ErrorIs(t, err, vfs.ErrNoSpace)
	require.ErrorContains(t, err, "free some space")
	m.SetCapacity(-1)
	d = openDir(t, cfg)
	require.Len(t, readAll(t, lookup(t, d), 0, 8, 1<<20), 8)
	require.NoError(t, d.Close())
}

// TestReserve: appends stop while less is free than redo of the write-ahead log may need (W20), and go on when there is
// space again, without a restart (I21).
func TestReserve(t *testing.T) {
	m, _, _, d := walDir(t)
	l := createLog(t, d, DefaultSettings())
	waitKeeper(d)
	m.SetCapacity(1 << 40)
	free, total, err := m.Usage("data")
	require.NoError(t, err)
	m.SetCapacity(total - free + d.commit.reserveBytes()/2)
	d.checkSpace()
	var out [1]Appended
	_ = l.Append(1, []Set{{Records: plainBatch(1, 10)}}, out[:])
	require.ErrorIs(t, out[0].Err, ErrNoSpace)
	m.SetCapacity(-1)
	appendOne(t, l, 1, plainBatch(1, 10))
	waitDurable(t, l, 1)
	require.NoError(t, d.Close())
}

// TestWALSyncFailure: the first failing sync of a frame poisons the directory: no acknowledgement, no append, one call
// of OnFailure; the next start is unclean (L2, W17).
func TestWALSyncFailure(t *testing.T) {
	m := vfs.NewMem(1)
	fsys := vfs.NewFaulty(m)
	cfg := testConfig(mode{"wal", true}, fsys)
	failed := make(chan error, 2)
	cfg.OnFailure = func(err error) { failed <- err }
	d := openDir(t, cfg)
	l := createLog(t, d, DefaultSettings())
	waitKeeper(d)
	fsys.Inject(vfs.Fault{Op: vfs.OpSync, Times: -1, Err: vfs.ErrIO})
	var out [1]Appended
	require.NoError(t, l.Append(1, []Set{{Records: plainBatch(1, 10)}}, out[:]))
	require.ErrorIs(t, <-failed, vfs.ErrIO)
	require.Zero(t, l.DurableEnd())
	require.ErrorIs(t, l.Append(1, []Set{{Records: plainBatch(1, 10)}}, out[:]), ErrPoisoned)
	fsys.Clear()
	require.ErrorIs(t, d.Close(), vfs.ErrIO)
	require.Empty(t, failed)
	cfg.FS = m
	d = openDir(t, cfg)
	require.False(t, d.CleanStart())
	require.NoError(t, d.Close())
}

// TestWALDamageIsReported: rot in a live frame that others follow opens the directory with what is good, and says that
// nothing proves the rest (wal.md 4 step 3, I12).
func TestWALDamageIsReported(t *testing.T) {
	m, _, cfg, d := walDir(t)
	l := createLog(t, d, DefaultSettings())
	other, err := d.Create("topic", testID(1), 1, 0, DefaultSettings())
	require.NoError(t, err)
	appendOne(t, other, 1, plainBatch(1, 100))
	waitDurable(t, other, 1)
	appendOne(t, l, 1, plainBatch(1, 100))
	waitDurable(t, l, 1)
	m = m.Crash(vfs.CrashLose)
	m.Flip("data/wal/0", walBlockBytes+100, 3)
	cfg.FS = m
	d = openDir(t, cfg)
	require.False(t, d.TailsProven())
	require.Len(t, d.RecoveryStats().WALDamage, 1)
	require.NotEmpty(t, d.RecoveryStats().WALDamage[0])
	require.NoError(t, d.Close())
}

// TestCommitAllocations: an acknowledged set costs no allocation in the steady state, neither in the append nor in the
// committer.
func TestCommitAllocations(t *testing.T) {
	a := newAckers(t, 1, false, true)
	defer a.close(t)
	set := plainBatch(1, 100)
	var out [1]Appended
	one := func() {
		require.NoError(t, a.logs[0].Append(1, []Set{{Records: set}}, out[:]))
		a.waiters[0].wait(out[0].NextOffset)
	}
	owner := &countingBuffer{uses: 1}
	large := plainBatch(1, 20000)
	held := func() {
		require.NoError(t, a.logs[0].Append(1, []Set{{Records: large, Owner: owner}}, out[:]))
		a.waiters[0].wait(out[0].NextOffset)
	}
	for range 50 {
		one()
		held()
	}
	require.LessOrEqual(t, testing.AllocsPerRun(200, one), 1.0)
	require.LessOrEqual(t, testing.AllocsPerRun(200, held), 1.0)
}

// TestCommitterRaces runs appends, rolls, retirements, truncations, trims, reads and deletions on goroutines, for the
// race detector; the model, which runs on one thread, checks what comes of them. Every acknowledged record of the
// partitions that stay must be there after a power cut.
func TestCommitterRaces(t *testing.T) {
	m := vfs.NewMem(1)
	cfg := testConfig(mode{"wal", true}, m)
	cfg.WALInitialBytes, cfg.WALFileBytes, cfg.DirectBytes = 64<<10, 128<<10, 8<<10
	d := openDir(t, cfg)
	s := DefaultSettings()
	s.SegmentBytes = 40 << 10
	var logs []*Log
	for i := range 4 {
		l, err := d.Create("topic", testID(1), int32(i), 0, s)
		require.NoError(t, err)
		logs = append(logs, l)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			l := logs[i%4]
			var out [2]Appended
			for k := range 150 {
				owner := &countingBuffer{uses: 1}
				sets := []Set{{Records: plainBatch(1, 10+k*(i+1)%6000), Owner: owner}, {Records: plainBatch(1, 20)}}
				if err := l.Append(1, sets, out[:]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Go(func() {
		for k := range 30 {
			l := logs[k%4]
			l.SetHighWatermark(l.DurableEnd())
			if err := l.TrimPrefix(l.HighWatermark() / 2); err != nil {
				t.Error(err)
			}
			if err := l.Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	group.Go(func() {
		for k := range 20 {
			l, err := d.Create("other", testID(byte(2+k)), 0, 0, s)
			if err != nil {
				t.Error(err)
				return
			}
			var out [1]Appended
			for range 5 {
				_ = l.Append(1, []Set{{Records: plainBatch(1, 500)}}, out[:])
			}
			if err := l.Truncate(2); err != nil {
				t.Error(err)
			}
			_ = l.Append(1, []Set{{Records: plainBatch(1, 500)}}, out[:])
			if err := d.Delete(l); err != nil {
				t.Error(err)
			}
		}
	})
	group.Go(func() {
		for k := range 200 {
			l := logs[k%4]
			start := l.StartOffset()
			slice, err := l.Read(start, l.EndOffset(), 4096, true)
			if err == nil {
				slice.Release()
			}
		}
	})
	group.Wait()
	for _, l := range logs {
		waitDurable(t, l, l.EndOffset())
	}
	var ends []int64
	for _, l := range logs {
		ends = append(ends, l.EndOffset())
	}
	_, d2 := crashDir(t, m, cfg, true)
	for i := range 4 {
		l, ok := d2.Lookup(testID(1), int32(i))
		require.True(t, ok)
		require.Equal(t, ends[i], l.EndOffset())
		readAll(t, l, l.StartOffset(), l.EndOffset(), 1<<20)
	}
	require.NoError(t, d2.Close())
}
