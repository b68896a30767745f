package vfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWritev: more buffers than one call takes arrive in order, empty ones included (L14).
func TestWritev(t *testing.T) {
	for _, fsys := range []FS{OS(), NewMem(1)} {
		dir := "/"
		if _, ok := fsys.(osFS); ok {
			dir = t.TempDir()
		}
		f, err := fsys.Create(Join(dir, "f"))
		require.NoError(t, err)
		var bufs [][]byte
		var want bytes.Buffer
		for i := range 2500 {
			b := bytes.Repeat([]byte{byte(i)}, i%7)
			bufs = append(bufs, b)
			want.Write(b)
		}
		n, err := f.WritevAt(bufs, 5)
		require.NoError(t, err)
		require.Equal(t, want.Len(), n)
		got := make([]byte, n)
		_, err = f.ReadAt(got, 5)
		require.NoError(t, err)
		require.Equal(t, want.Bytes(), got)
		require.Len(t, bufs[6], 6, "the caller's buffers are left alone")
		n, err = f.WritevAt(nil, 5)
		require.NoError(t, err)
		require.Zero(t, n)
		require.NoError(t, f.Close())
		_, err = f.WritevAt(bufs, 0)
		require.ErrorIs(t, err, fs.ErrClosed)
	}
}

// TestOSCalls: the calls without a counterpart in the standard library work here.
func TestOSCalls(t *testing.T) {
	fsys := OS()
	dir := t.TempDir()
	lock, err := fsys.Lock(Join(dir, "lock"))
	require.NoError(t, err)
	_, err = fsys.Lock(Join(dir, "lock"))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, lock.Close())
	lock, err = fsys.Lock(Join(dir, "lock"))
	require.NoError(t, err)
	require.NoError(t, lock.Close())

	free, total, err := fsys.Usage(dir)
	require.NoError(t, err)
	require.Greater(t, free, int64(0))
	require.GreaterOrEqual(t, total, free)
	_, _, err = fsys.Usage(Join(dir, "absent"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	require.NoError(t, ReplaceFile(fsys, dir, "f", []byte("content")))
	require.NoError(t, fsys.SyncAll(dir))
	require.NoError(t, syncTree(dir))
	f, err := fsys.Open(Join(dir, "f"))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.DropCache())
	_, ok := f.Fd()
	require.True(t, ok)
	n, err := f.ReadAt(make([]byte, 10), 0)
	require.Equal(t, 7, n)
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.Sync(), fs.ErrClosed)
	require.ErrorIs(t, f.DropCache(), fs.ErrClosed)

	ok, err = Exists(fsys, Join(dir, "f"))
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = Exists(fsys, Join(dir, "g"))
	require.NoError(t, err)
	require.False(t, ok)
	require.ErrorIs(t, fsys.SyncAll(Join(dir, "absent")), fs.ErrNotExist)
}

func BenchmarkWritev(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprint(n, "x16KiB"), func(b *testing.B) {
			f, err := OS().Create(Join(b.TempDir(), "f"))
			require.NoError(b, err)
			defer f.Close()
			bufs := make([][]byte, n)
			for i := range bufs {
				bufs[i] = make([]byte, 16<<10)
			}
			b.SetBytes(int64(n) * 16 << 10)
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				m, err := f.WritevAt(bufs, off%(64<<20))
				if err != nil {
					b.Fatal(err)
				}
				off += int64(m)
			}
		})
	}
}
