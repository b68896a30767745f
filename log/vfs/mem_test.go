package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func memOf(t *testing.T, seed uint64) *Mem {
	m := NewMem(seed)
	m.SetBlock(32)
	require.NoError(t, m.Mkdir("d"))
	require.NoError(t, m.SyncDir("/"))
	return m
}

func put(t *testing.T, m FS, name, content string, sync bool) File {
	f, err := m.Create(name)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte(content), 0)
	require.NoError(t, err)
	if sync {
		require.NoError(t, f.Sync())
	}
	return f
}

func content(t *testing.T, m FS, name string) string {
	b, err := ReadFile(m, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	require.NoError(t, err)
	return string(b)
}

// TestCrashLoses: what was not synced is gone in the worst case and there in the best (the whole proof of the model
// rests on this).
func TestCrashLoses(t *testing.T) {
	m := memOf(t, 1)
	f := put(t, m, "d/synced", "abc", true)
	put(t, m, "d/unsynced", "abc", false)
	require.NoError(t, m.SyncDir("d"))
	put(t, m, "d/nameless", "abc", true)
	_, err := f.WriteAt([]byte("XYZ"), 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("more"), 3)
	require.NoError(t, err)

	lost := m.CrashClone(CrashLose)
	require.Equal(t, "abc", content(t, lost, "d/synced"))
	require.Equal(t, "", content(t, lost, "d/unsynced"))
	require.Equal(t, "absent", content(t, lost, "d/nameless"))

	kept := m.Crash(CrashKeep)
	require.Equal(t, "XYZmore", content(t, kept, "d/synced"))
	require.Equal(t, "abc", content(t, kept, "d/unsynced"))
	require.Equal(t, "abc", content(t, kept, "d/nameless"))

	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, fs.ErrClosed, "a handle of the crashed system must be dead")
	_, err = m.Stat("d")
	require.ErrorIs(t, err, fs.ErrClosed)
}

// TestCrashMixes: over some seeds each thing that a power cut may do happens: blocks old, new, torn at either end,
// sizes between, and never anything else.
func TestCrashMixes(t *testing.T) {
	seen := map[string]bool{}
	old, next := strings.Repeat("o", 96), strings.Repeat("N", 96)
	for seed := range uint64(300) {
		m := memOf(t, seed)
		f := put(t, m, "d/f", old, true)
		require.NoError(t, m.SyncDir("d"))
		_, err := f.WriteAt([]byte(next), 0)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(40))
		_, err = f.WriteAt([]byte(next[:20]), 40)
		require.NoError(t, err)
		got := content(t, m.Crash(CrashMixed), "d/f")
		require.GreaterOrEqual(t, len(got), 40)
		require.LessOrEqual(t, len(got), 96)
		seen[fmt.Sprint("size ", len(got))] = true
		block := got[:32]
		switch {
		case block == old[:32]:
			seen["old"] = true
		case block == next[:32]:
			seen["new"] = true
		case strings.HasPrefix(block, "N") && strings.HasSuffix(block, "o"):
			seen["new, old"] = true
		case strings.HasPrefix(block, "o") && strings.HasSuffix(block, "N"):
			seen["old, new"] = true
		default:
			t.Fatalf("seed %d: impossible block %q", seed, block)
		}
		require.Empty(t, strings.Trim(got, "oN"), "seed %d", seed)
		if len(got) > 61 && got[61] == 'o' {
			seen["the bytes cut off are back"] = true
		}
	}
	for _, want := range []string{"old", "new", "new, old", "old, new", "size 40", "size 60", "size 96", "the bytes cut off are back"} {
		require.True(t, seen[want], "never seen: %s", want)
	}
	require.Greater(t, len(seen), 20, "sizes between")
}

// TestCrashDirectory: names come and go by chance, but two operations on one name keep their order.
func TestCrashDirectory(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(200) {
		m := memOf(t, seed)
		put(t, m, "d/a", "first", true)
		require.NoError(t, m.SyncDir("d"))
		require.NoError(t, m.Rename("d/a", "d/b"))
		put(t, m, "d/a", "second", true)
		require.NoError(t, m.Mkdir("e"))
		put(t, m, "e/x", "x", true)
		require.NoError(t, m.SyncDir("e"))
		require.NoError(t, m.Remove("d/b"))
		c := m.Crash(CrashMixed)
		seen[fmt.Sprint(content(t, c, "d/a"), " ", content(t, c, "d/b"), " ", content(t, c, "e/x"))]++
	}
	for state := range seen {
		f := strings.Fields(state)
		// rename lost: a is the first. rename kept: b is the first or removed, a the second or not there.
		require.Contains(t, []string{"first absent", "absent first", "second first", "absent absent", "second absent"}, f[0]+" "+f[1])
	}
	require.Len(t, seen, 10, "%v", seen)
}

// TestRenameIsOne: after a crash a renamed file has the old or the new name, never both or none.
func TestRenameIsOne(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(60) {
		m := memOf(t, seed)
		require.NoError(t, m.Mkdir("e"))
		put(t, m, "d/a", "it", true)
		put(t, m, "e/b", "replaced", true)
		require.NoError(t, m.SyncAll("/"))
		require.NoError(t, m.Rename("d/a", "e/b"))
		c := m.Crash(CrashMixed)
		seen[content(t, c, "d/a")+" "+content(t, c, "e/b")] = true
	}
	require.Equal(t, map[string]bool{"it replaced": true, "absent it": true}, seen)
}

// TestFailingSync: some pages become clean without reaching the disk, the next Sync says nothing of it, and the loss
// shows after DropCache or a power cut (L2, W17).
func TestFailingSync(t *testing.T) {
	hidden := 0
	for seed := range uint64(50) {
		m := memOf(t, seed)
		f := put(t, m, "d/f", strings.Repeat("o", 320), true)
		require.NoError(t, m.SyncDir("d"))
		_, err := f.WriteAt([]byte(strings.Repeat("N", 320)), 0)
		require.NoError(t, err)
		m.FailSync(1)
		require.ErrorIs(t, f.Sync(), ErrIO)
		require.NoError(t, f.Sync())
		require.Equal(t, strings.Repeat("N", 320), content(t, m, "d/f"), "the cache shows the new bytes")
		disk, ok := m.Disk("d/f")
		require.True(t, ok)
		require.Equal(t, string(disk), content(t, m.CrashClone(CrashKeep), "d/f"))
		if bytes.ContainsRune(disk, 'o') {
			hidden++
			require.False(t, m.Durable("d/f"))
		}
		require.NoError(t, f.DropCache())
		require.Equal(t, string(disk), content(t, m, "d/f"), "after DropCache the device is seen")
	}
	require.Greater(t, hidden, 40)
}

// TestSyncCoversItsStart: what is dirty when Sync is called is durable when it returns, also while a writer goes on;
// what the writer adds may be caught or not, and its own Sync then covers it.
func TestSyncCoversItsStart(t *testing.T) {
	caught := map[bool]int{}
	for seed := range uint64(200) {
		sim := NewSim(seed)
		m := memOf(t, seed)
		m.SetYield(sim.Yield)
		var f File
		synced, late := false, false
		sim.Go("sync", func() {
			f = put(t, m, "d/f", strings.Repeat("a", 200), false)
			require.NoError(t, m.SyncDir("d"))
			sim.Go("writer", func() {
				for i := range 6 {
					_, err := f.WriteAt([]byte(strings.Repeat("b", 50)), int64(200+50*i))
					require.NoError(t, err)
					late = late || !synced
				}
			})
			require.NoError(t, f.Sync())
			synced = true
		})
		for !synced {
			require.Equal(t, 1, sim.Run(1))
		}
		m.SetYield(nil)
		got := content(t, m.CrashClone(CrashLose), "d/f")
		require.True(t, strings.HasPrefix(got, strings.Repeat("a", 200)), "seed %d: %q", seed, got)
		caught[strings.Contains(got, "b")]++
		m.SetYield(sim.Yield)
		sim.Run(1000)
		require.True(t, sim.Idle())
		require.NoError(t, f.Sync())
		m.SetYield(nil)
		require.Len(t, content(t, m.Crash(CrashLose), "d/f"), 500)
	}
	require.Greater(t, caught[true], 10)
	require.Greater(t, caught[false], 10)
}

// TestOverlappingSyncs: of two syncs of one file neither undoes the other, in whatever order they end.
func TestOverlappingSyncs(t *testing.T) {
	for seed := range uint64(300) {
		sim := NewSim(seed)
		m := memOf(t, seed)
		f := put(t, m, "d/f", "", true)
		require.NoError(t, m.SyncDir("d"))
		m.SetYield(sim.Yield)
		end, durable := int64(0), int64(0)
		for i := range 3 {
			sim.Go(fmt.Sprint("task", i), func() {
				for range 4 {
					off := end
					end += 20
					_, err := f.WriteAt(bytes.Repeat([]byte{byte('a' + i)}, 20), off)
					require.NoError(t, err)
					mine := off + 20
					require.NoError(t, f.Sync())
					durable = max(durable, mine)
				}
			})
		}
		n := rand.New(rand.NewPCG(seed, 9)).IntN(120)
		sim.Run(n)
		m.SetYield(nil)
		c := m.Crash(CrashMixed)
		c.SetYield(nil)
		got := content(t, c, "d/f")
		require.GreaterOrEqual(t, int64(len(got)), durable, "seed %d", seed)
		sim.Abandon()
	}
}

// TestNoSpace: a write that does not fit is short and says so; freeing space lets it through (I21).
func TestNoSpace(t *testing.T) {
	m := memOf(t, 1)
	m.SetCapacity(320)
	f := put(t, m, "d/f", strings.Repeat("x", 100), false) // takes 128
	free, total, err := m.Usage("d")
	require.NoError(t, err)
	require.Equal(t, []int64{192, 320}, []int64{free, total})
	g := put(t, m, "d/g", strings.Repeat("x", 160), false)
	n, err := f.WriteAt(bytes.Repeat([]byte{'y'}, 100), 90)
	require.ErrorIs(t, err, ErrNoSpace)
	require.Equal(t, 70, n, "up to the end of the 5th block")
	require.ErrorIs(t, f.Truncate(1000), ErrNoSpace)
	n, err = f.WriteAt([]byte("over"), 10)
	require.NoError(t, err, "an overwrite takes no space")
	require.Equal(t, 4, n)
	require.NoError(t, g.Truncate(0))
	n, err = f.WriteAt(bytes.Repeat([]byte{'y'}, 100), 90)
	require.NoError(t, err)
	require.Equal(t, 100, n)
	require.NoError(t, g.Close())
	require.NoError(t, m.Remove("d/g"))
	require.NoError(t, f.Close())
	require.NoError(t, m.RemoveAll("d"))
	free, _, err = m.Usage("/")
	require.NoError(t, err)
	require.EqualValues(t, 320, free)
}

// TestKill: the cache outlives the process, its locks do not, and a power cut afterwards still takes what was not
// synced (L4).
func TestKill(t *testing.T) {
	m := memOf(t, 1)
	lock, err := m.Lock("d/lock")
	require.NoError(t, err)
	_, err = m.Lock("d/lock")
	require.ErrorIs(t, err, ErrLocked)
	put(t, m, "d/f", "cached", false)
	require.NoError(t, m.SyncDir("d"))
	put(t, m, "d/g", "cached", false)
	k := m.Kill()
	require.Equal(t, "cached", content(t, k, "d/f"))
	require.Equal(t, "cached", content(t, k, "d/g"))
	_, err = k.Lock("d/lock")
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	c := k.Crash(CrashLose)
	require.Equal(t, "", content(t, c, "d/f"))
	require.Equal(t, "absent", content(t, c, "d/g"))
}

// TestWriteBack: content that was written, never synced and then overwritten can be what a crash leaves.
func TestWriteBack(t *testing.T) {
	found := false
	for seed := range uint64(100) {
		m := memOf(t, seed)
		m.SetWriteBack(128)
		f := put(t, m, "d/f", "first", true)
		require.NoError(t, m.SyncDir("d"))
		for _, s := range []string{"early", "later"} {
			_, err := f.WriteAt([]byte(s), 0)
			require.NoError(t, err)
		}
		found = found || content(t, m.Crash(CrashLose), "d/f") == "early"
	}
	require.True(t, found)
}

// TestReplaceFile: at a crash after any operation the old or the new content is there, whole (L3).
func TestReplaceFile(t *testing.T) {
	for seed := range uint64(100) {
		m := memOf(t, seed)
		require.NoError(t, ReplaceFile(m, "d", "state", []byte("old state, longer than one block of this file system")))
		fsys := NewFaulty(m)
		fsys.Hook(func(op Op, name string) {
			got := content(t, m.CrashClone(CrashMode(seed%3)), "d/state")
			require.Contains(t, []string{"old state, longer than one block of this file system", "new state"}, got, "before %s %s", op, name)
		})
		require.NoError(t, ReplaceFile(fsys, "d", "state", []byte("new state")))
		require.Equal(t, "new state", content(t, m.Crash(CrashLose), "d/state"))
	}
	m := memOf(t, 1)
	require.NoError(t, ReplaceFile(m, "d", "state", []byte("old")))
	for _, op := range []Op{OpCreate, OpWrite, OpSync, OpRename, OpClose} {
		err := ReplaceFile(NewFaulty(m, Fault{Op: op, Err: ErrIO}), "d", "state", []byte("new"))
		require.ErrorIs(t, err, ErrIO, op)
		require.Equal(t, "old", content(t, m, "d/state"))
	}
	require.ErrorIs(t, ReplaceFile(NewFaulty(m, Fault{Op: OpSyncDir, Err: ErrIO}), "d", "state", []byte("new")), ErrIO)
}

// TestFaulty: the n-th matching call fails, as often as told, with the bytes told written.
func TestFaulty(t *testing.T) {
	m := memOf(t, 1)
	fsys := NewFaulty(m, Fault{Op: OpWrite, Name: "*.log", After: 1, Times: 2, Err: ErrIO, Short: 3})
	a, err := fsys.Create("d/a.log")
	require.NoError(t, err)
	b, err := fsys.Create("d/b.index")
	require.NoError(t, err)
	write := func(f File) (int, error) { return f.WritevAt([][]byte{[]byte("ab"), []byte("cd")}, 0) }
	for i, want := range []int{4, 3, 3, 4} {
		n, err := write(a)
		require.Equal(t, want, n, "call %d", i)
		require.Equal(t, want != 4, errors.Is(err, ErrIO))
		_, err = write(b)
		require.NoError(t, err)
	}
	require.Equal(t, 8, fsys.Count(OpWrite))
	require.EqualValues(t, 14+16, fsys.Bytes(OpWrite))
	fsys.Inject(Fault{Op: OpSync, Times: -1, Err: ErrIO})
	for range 3 {
		require.ErrorIs(t, a.Sync(), ErrIO)
	}
	fsys.Clear()
	require.NoError(t, a.Sync())
	n, err := a.ReadAt(make([]byte, 9), 0)
	require.Equal(t, 4, n)
	require.ErrorIs(t, err, io.EOF)
}

// TestFlip: bit rot is seen in the cache and on disk.
func TestFlip(t *testing.T) {
	m := memOf(t, 1)
	put(t, m, "d/f", "a", true)
	require.NoError(t, m.SyncDir("d"))
	m.Flip("d/f", 0, 1)
	require.Equal(t, "c", content(t, m, "d/f"))
	require.Equal(t, "c", content(t, m.Crash(CrashLose), "d/f"))
}
