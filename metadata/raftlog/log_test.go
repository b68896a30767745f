package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// memoryRecord is a Record of a test without crashes.
type memoryRecord struct{ b []byte }

func (r *memoryRecord) Load() ([]byte, error) { return r.b, nil }

func (r *memoryRecord) Store(b []byte) error { r.b = bytes.Clone(b); return nil }

func onDisk(t testing.TB) (Options, *Log) {
	o := Options{Dir: t.TempDir(), Record: &memoryRecord{}, ID: 5}
	l, err := Create(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return o, l
}

func indexes(t *testing.T, l *Log) [2]uint64 {
	first, err := l.FirstIndex()
	require.NoError(t, err)
	last, err := l.LastIndex()
	require.NoError(t, err)
	return [2]uint64{first, last}
}

// An entry comes back as it was, with every field, of any size, over many segments and a restart.
func TestEntriesComeBack(t *testing.T) {
	o, l := onDisk(t)
	require.Equal(t, [2]uint64{0, 0}, indexes(t, l))
	random := rand.New(rand.NewPCG(1, 2))
	var all []*raft.Log
	for i, size := range []int{0, 1, 200, 504 - 60, 504 - 59, 256 << 10, 6 << 20, 3, 3 << 20} {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(random.Uint32())
		}
		e := &raft.Log{Index: uint64(7 + i), Term: uint64(i), Type: raft.LogType(i % 6), AppendedAt: time.Unix(1_800_000_000, int64(i))}
		if size > 0 {
			e.Data = data
		}
		if i%2 == 1 {
			e.Extensions = []byte("extensions")
		}
		all = append(all, e)
	}
	all[0].AppendedAt = time.Time{}
	require.NoError(t, l.StoreLogs(all[:5]))
	require.NoError(t, l.StoreLog(all[5]))
	require.NoError(t, l.StoreLogs(all[6:]))
	check := func(l *Log) {
		require.Equal(t, [2]uint64{7, 15}, indexes(t, l))
		for _, want := range all {
			var got raft.Log
			require.NoError(t, l.GetLog(want.Index, &got))
			require.Equal(t, *want, got)
		}
		require.ErrorIs(t, l.GetLog(6, new(raft.Log)), raft.ErrLogNotFound)
		require.ErrorIs(t, l.GetLog(16, new(raft.Log)), raft.ErrLogNotFound)
	}
	check(l)
	o.ReadOnly = true
	reader, err := Open(o)
	require.NoError(t, err)
	check(reader)
	require.NoError(t, reader.Close())
	require.NoError(t, l.Close())
	o.ReadOnly = false
	l, err = Open(o)
	require.NoError(t, err)
	check(l)
	require.NoError(t, l.DeleteRange(7, 14))
	require.Equal(t, [2]uint64{15, 15}, indexes(t, l))
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.StoreLog(&raft.Log{Index: 16}), errClosed)
	files, err := filepath.Glob(filepath.Join(o.Dir, "*"))
	require.NoError(t, err)
	require.LessOrEqual(t, len(files), 2, "only the last segment, and one to come: %v", files)
}

// What Raft never does is refused, and does no harm.
func TestRefusals(t *testing.T) {
	o, l := onDisk(t)
	require.NoError(t, l.StoreLogs([]*raft.Log{{Index: 5}, {Index: 6}, {Index: 7}, {Index: 8}}))
	require.Error(t, l.StoreLog(&raft.Log{Index: 8}))
	require.Error(t, l.DeleteRange(6, 7), "from the middle")
	require.NoError(t, l.DeleteRange(1, 4))
	require.NoError(t, l.DeleteRange(9, 20))
	require.NoError(t, l.DeleteRange(1, 6))
	require.NoError(t, l.DeleteRange(8, 8))
	require.Equal(t, [2]uint64{7, 7}, indexes(t, l))
	require.NoError(t, l.DeleteRange(1, 100))
	require.Equal(t, [2]uint64{0, 0}, indexes(t, l))
	require.Error(t, l.StoreLog(&raft.Log{Index: 6}), "below what was removed from the front")
	require.NoError(t, l.StoreLog(&raft.Log{Index: 7}))
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	newer := decodeForTest(t, o.Record.(*memoryRecord).b)
	b := newer.encode()
	b[0]++
	o.Record = &memoryRecord{withSum(b[:len(b)-4])}
	_, err := Open(o)
	require.ErrorIs(t, err, ErrNewer)
	o.Record = &memoryRecord{}
	_, err = Create(o)
	require.ErrorIs(t, err, ErrDamaged, "a log without its record is not begun anew")
}

func decodeForTest(t *testing.T, b []byte) record {
	r, err := decodeRecord(b)
	require.NoError(t, err)
	return r
}

// A log without entries in memory for them all: entries are read while others are written and the front is removed, and each
// is right or gone.
func TestReadsBesideWrites(t *testing.T) {
	o := Options{Dir: t.TempDir(), Record: &memoryRecord{}, ID: 5, SegmentBytes: 32 << 10}
	l, err := Create(o)
	require.NoError(t, err)
	defer l.Close()
	var stored atomic.Uint64
	var running sync.WaitGroup
	for seed := range uint64(2) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for stored.Load() < 600 {
				last := stored.Load()
				if last == 0 {
					continue
				}
				index := 1 + random.Uint64N(last)
				var e raft.Log
				if err := l.GetLog(index, &e); err == nil {
					if string(e.Data[:8]) != fmt.Sprintf("%08d", index) {
						t.Errorf("entry %d is %.20s", index, e.Data)
					}
				} else if !errors.Is(err, raft.ErrLogNotFound) {
					t.Error(err)
				}
			}
		})
	}
	for i := uint64(1); i <= 600; i++ {
		require.NoError(t, l.StoreLog(&raft.Log{Index: i, Data: append(fmt.Appendf(nil, "%08d", i), make([]byte, 400)...)}))
		stored.Store(i)
		if i%50 == 0 {
			require.NoError(t, l.DeleteRange(1, i-20))
		}
	}
	running.Wait()
	files, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Less(t, len(files), 5)
}

// An append is one write and one sync, and so is a cut; the next segment is there before it is needed.
func TestOneSync(t *testing.T) {
	d := newDisk(rand.New(rand.NewPCG(1, 1)))
	l, err := Create(Options{Record: &note{disk: d}, files: d, alone: true, ID: 3})
	require.NoError(t, err)
	operations := func(do func() error) int {
		d.left = 1000
		require.NoError(t, do())
		return 1000 - d.left
	}
	var batch []*raft.Log
	for i := range uint64(64) {
		batch = append(batch, &raft.Log{Index: i + 2, Data: make([]byte, 200)})
	}
	require.Equal(t, 2, operations(func() error { return l.StoreLog(&raft.Log{Index: 1, Data: make([]byte, 200)}) }))
	require.Equal(t, 2, operations(func() error { return l.StoreLogs(batch) }))
	require.Equal(t, 2, operations(func() error { return l.DeleteRange(10, 65) }))
	l.makeSpare()
	require.Equal(t, 2, operations(func() error { return l.StoreLog(&raft.Log{Index: 10, Data: make([]byte, 250<<10)}) }))
}

func FuzzRecord(f *testing.F) {
	f.Add(record{id: 1, first: 1, last: 2, batch: 3, head: 4, durable: 5}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeRecord(b); err == nil {
			require.Equal(t, b, r.encode())
		} else if !errors.Is(err, ErrDamaged) {
			require.ErrorIs(t, err, ErrNewer)
		}
	})
}

// noNames is a folder in which there is no room for another file.
type noNames struct {
	folder
	full *atomic.Bool
}

func (n noNames) create(name string) (file, error) {
	if n.full.Load() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOSPC}
	}
	return n.folder.create(name)
}

// L13: a disk that takes no more files is full like one that takes no more bytes: what has room goes on, what has none may be
// repeated.
func TestNoRoomForAFile(t *testing.T) {
	var full atomic.Bool
	dir := t.TempDir()
	l, err := Create(Options{Dir: dir, Record: &memoryRecord{}, ID: 5, alone: true, files: noNames{folder(dir), &full}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	full.Store(true)
	l.makeSpare()
	require.NoError(t, l.StoreLog(&raft.Log{Index: 1, Data: make([]byte, 100<<10)}), "there is room in the first")
	large := &raft.Log{Index: 2, Data: make([]byte, 200<<10)}
	err = l.StoreLog(large)
	require.True(t, RefusedForSpace(err), "%v", err)
	full.Store(false)
	require.NoError(t, l.StoreLog(large))
	require.Equal(t, [2]uint64{1, 2}, indexes(t, l))
}
