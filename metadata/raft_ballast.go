package metadata

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/millrace/millrace/metadata/raftlog"
)

// ballastFile holds space that nobody else can take.
const ballastFile = "ballast"

// ballast is disk space set aside for the Raft log (L13). The log directory stops taking records at a reserve, but other
// programs don't know of it; when they have filled the disk to the last byte, the ballast goes, so that Raft can still
// write what frees space again: deletions, shorter retention. Until it is back, the Store refuses to create anything.
type ballast struct {
	path  string
	bytes int64 // 0 = none is kept

	mu struct {
		sync.Mutex
		held bool // the file is there, in full
	}
}

func newBallast(dir string, bytes int64) *ballast {
	return &ballast{path: filepath.Join(dir, ballastFile), bytes: bytes}
}

// take makes sure that the ballast is there. An error means that there is no room for it at present.
func (b *ballast) take() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.held || b.bytes == 0 {
		return nil
	}
	f, err := os.OpenFile(b.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("keep ballast for the raft log: %w", err)
	}
	err = allocate(f, b.bytes)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keep %d bytes of ballast for the raft log: %w", b.bytes, errors.Join(err, os.Remove(b.path)))
	}
	b.mu.held = true
	return nil
}

// drop gives the space back and reports whether there was any.
func (b *ballast) drop() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.mu.held {
		return false
	}
	b.mu.held = false
	return os.Remove(b.path) == nil
}

// held reports whether the ballast is there, or none is to be kept.
func (b *ballast) held() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.held || b.bytes == 0
}

// refusedForSpace reports whether err is a write, or a new file, that the file system refused for lack of space. Nothing of it counts
// then: bbolt writes new pages beside the old ones, which stay valid, and rolls back; raftlog meets it where it makes a segment, which
// the log does not have yet, and takes nothing but the same append again where a file system refuses to write in place. It is
// the one error after which a second attempt is allowed; a sync that failed, for whatever reason, is not (M7).
func refusedForSpace(err error) bool { return raftlog.RefusedForSpace(err) }

// allocateByWriting is for file systems that can't set space aside.
func allocateByWriting(f *os.File, size int64) error {
	chunk := make([]byte, 64<<10)
	for at := int64(0); at < size; at += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk[:min(int64(len(chunk)), size-at)], at); err != nil {
			return err
		}
	}
	return nil
}
