package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// outcome renders the result of an operation so that two file systems can be compared: values, and the class of the
// error, not its text.
func outcome(err error, values ...any) string {
	class := "ok"
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrNotExist):
		class = "not exist"
	case errors.Is(err, fs.ErrExist):
		class = "exist"
	case errors.Is(err, fs.ErrClosed):
		class = "closed"
	case errors.Is(err, ErrNoSpace):
		class = "no space"
	case errors.Is(err, io.EOF):
		class = "eof"
	default:
		class = "error"
	}
	return fmt.Sprint(class, values)
}

// script runs random operations and returns what each answered.
func script(t *testing.T, fsys FS, root string, seed uint64) []string {
	rng := rand.New(rand.NewPCG(seed, 1))
	var results []string
	say := func(op string, err error, values ...any) {
		results = append(results, op+": "+outcome(err, values...))
	}
	require.NoError(t, fsys.Mkdir(root))
	dirs := []string{"", "a", "b", "a/c"}
	name := func() string {
		return Join(root, dirs[rng.IntN(len(dirs))], fmt.Sprint("f", rng.IntN(4)))
	}
	dir := func() string { return Join(root, dirs[rng.IntN(len(dirs))]) }
	files := map[int]File{}
	handle := func() File {
		for range 8 {
			if f := files[rng.IntN(4)]; f != nil {
				return f
			}
		}
		return nil
	}
	random := func(max int) []byte {
		p := make([]byte, rng.IntN(max))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		return p
	}
	for range 120 {
		switch op := rng.IntN(20); op {
		case 0:
			d := dir()
			say("mkdir "+d, fsys.Mkdir(d))
		case 1, 2:
			n, slot := name(), rng.IntN(4)
			f, err := fsys.Create(n)
			say("create "+n, err)
			if err == nil {
				if files[slot] != nil {
					say("close", files[slot].Close())
				}
				files[slot] = f
			}
		case 3:
			n, slot := name(), rng.IntN(4)
			f, err := fsys.Open(n)
			say("open "+n, err)
			if err == nil {
				if files[slot] != nil {
					say("close", files[slot].Close())
				}
				files[slot] = f
			}
		case 4:
			n := name()
			f, err := fsys.OpenRead(n)
			say("open read "+n, err)
			if err == nil {
				_, werr := f.WriteAt([]byte("x"), 0)
				say("write to a read handle", werr)
				say("close", f.Close())
				say("close again", f.Close())
			}
		case 5:
			from, to := name(), name()
			say("rename "+from+" "+to, fsys.Rename(from, to))
		case 6:
			n := name()
			say("remove "+n, fsys.Remove(n))
		case 7:
			if rng.IntN(4) == 0 {
				d := Join(root, dirs[1+rng.IntN(3)])
				say("removeall "+d, fsys.RemoveAll(d))
			}
		case 8:
			d := dir()
			list, err := fsys.List(d)
			for i := range list {
				if list[i].Dir {
					list[i].Size = 0
				}
			}
			say("list "+d, err, list)
		case 9:
			n := name()
			e, err := fsys.Stat(n)
			say("stat "+n, err, e)
		case 10, 11, 12:
			if f := handle(); f != nil {
				n, err := f.WriteAt(random(9000), rng.Int64N(20000))
				say("write", err, n)
			}
		case 13:
			if f := handle(); f != nil {
				bufs := make([][]byte, 1+rng.IntN(5))
				for i := range bufs {
					bufs[i] = random(3000)
				}
				n, err := f.WritevAt(bufs, rng.Int64N(20000))
				say("writev", err, n)
			}
		case 14, 15:
			if f := handle(); f != nil {
				p := make([]byte, rng.IntN(12000))
				n, err := f.ReadAt(p, rng.Int64N(25000))
				say("read", err, n, p[:n])
			}
		case 16:
			if f := handle(); f != nil {
				say("truncate", f.Truncate(rng.Int64N(25000)))
			}
		case 17:
			if f := handle(); f != nil {
				n, err := f.Size()
				say("size", err, n)
			}
		case 18:
			if f := handle(); f != nil {
				if rng.IntN(4) == 0 {
					say("sync", f.Sync())
				}
				say("drop", f.DropCache())
			}
		case 19:
			d := dir()
			if rng.IntN(4) == 0 {
				say("syncdir "+d, fsys.SyncDir(d))
			}
		}
	}
	for i := range 4 {
		if f := files[i]; f != nil {
			say("close", f.Close())
			_, err := f.ReadAt(make([]byte, 1), 0)
			say("read closed", err)
		}
	}
	return results
}

// TestSameAnswers: OS, Mem and a Faulty without faults answer the same operations alike, so that what the model proves
// on Mem holds for the real calls as far as their results go.
func TestSameAnswers(t *testing.T) {
	for seed := range uint64(40) {
		run := func(fsys FS, root string) []string {
			list := script(t, fsys, root, seed)
			for i := range list {
				list[i] = strings.ReplaceAll(list[i], root, "")
			}
			return list
		}
		want := run(OS(), t.TempDir()+"/root")
		mem := NewMem(seed)
		mem.SetBlock([]int{32, 512, 4096}[seed%3])
		require.Equal(t, want, run(mem, "/root"), "seed %d", seed)
		require.Equal(t, want, run(NewFaulty(NewMem(seed)), "/root"), "seed %d", seed)
	}
}
