package transport

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// fileSource is a memorySource whose bytes lie in a file too, behind others.
type fileSource struct {
	memorySource
	file   *os.File
	offset int64
	size   int           // what it promises, if not what it has
	reads  *atomic.Int64 // calls of ReadAt: bytes that were copied after all
}

func (s *fileSource) Len() int { return max(s.size, s.memorySource.Len()) }

func (s *fileSource) FileRange() (uintptr, int64, bool) { return s.file.Fd(), s.offset, true }

func (s *fileSource) ReadAt(p []byte, off int) (int, error) {
	if s.reads != nil {
		s.reads.Add(1)
	}
	return s.memorySource.ReadAt(p, off)
}

// inFile writes the source's bytes to a file, which is gone with the source's release or the test.
func inFile(t testing.TB, s memorySource) *fileSource {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	const offset = 12_345
	_, err = f.WriteAt(append([]byte("not these"), make([]byte, offset-9)...), 0)
	require.NoError(t, err)
	_, err = f.WriteAt(append(s.b[:len(s.b):len(s.b)], "nor these"...), offset)
	require.NoError(t, err)
	return &fileSource{memorySource: s, file: f, offset: offset}
}

// TestFilesAreNotCopied: a large source in a file reaches a plain TCP client without passing through us, one that is small, or in a
// file that the kernel can't send from, by a copy.
func TestFilesAreNotCopied(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("bytes of files are sent without a copy on Linux only")
	}
	f := func(name string, size int, edit func(s *fileSource), copied bool) {
		t.Run(name, func(t *testing.T) {
			var released, reads atomic.Int64
			body := make([]byte, size)
			for i := range body {
				body[i] = byte(i * 7 >> 3)
			}
			source := inFile(t, memorySource{b: body, released: &released})
			source.reads = &reads
			if edit != nil {
				edit(source)
			}
			s := startServer(t, handlerFunc(func(r *Request) {
				r.Reply(Splice(&Spliced{Pieces: []Piece{{Header: []byte("head"), Body: source}, {Header: []byte("tail")}}}))
			}), overTCP)
			c := s.dial()
			for i := range 2 { // the second finds out nothing any more
				c.send(metadataFrame(int32(i), "x"))
				_, got := c.receive()
				require.Equal(t, "head"+string(body)+"tail", string(got))
			}
			require.Equal(t, copied, reads.Load() > 0, "copied")
			s.stop()
			require.EqualValues(t, 2, released.Load())
			require.EqualValues(t, 2*(size+16), s.listeners[0].metrics.bytesOut.Load())
		})
	}
	f("large", 5<<20+1, nil, false)
	f("least", sendFileBytes, nil, false)
	f("small", sendFileBytes-1, nil, true)
	f("not a file", 1<<20, func(s *fileSource) {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
		s.file = r
	}, true)
}

// TestFileEndsEarly: the size has been sent, so a file that holds less than it promised costs the connection, and nothing hangs.
func TestFileEndsEarly(t *testing.T) {
	var released atomic.Int64
	source := inFile(t, memorySource{b: make([]byte, 1<<20), released: &released})
	require.NoError(t, source.file.Truncate(source.offset+700<<10))
	source.b = source.b[: 700<<10 : 1<<20] // also where it is read
	source.size = 1 << 20
	s := startServer(t, handlerFunc(func(r *Request) {
		r.Reply(Splice(&Spliced{Pieces: []Piece{{Body: source}, {Body: memorySource{b: []byte("never"), released: &released}}}}))
	}), overTCP)
	c := s.dial()
	c.send(metadataFrame(1, "x"))
	got, _ := io.ReadAll(c) // its end may come as a reset
	require.LessOrEqual(t, len(got), 8+700<<10)
	s.stop()
	require.EqualValues(t, 2, released.Load())
	require.Equal(t, 1, s.logs.count("level=ERROR"))
}
