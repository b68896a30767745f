package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// Errors that every implementation returns (wrapped, test with errors.Is), next to fs.ErrNotExist, fs.ErrExist and
// fs.ErrClosed.
var (
	// ErrNoSpace says that a write did not fit: the disk or the quota is full. Nothing, or a prefix, was written.
	ErrNoSpace = errors.New("no space left on the file system")
	// ErrIO says that the device failed. After a failed Sync some pages may be marked clean without being on disk.
	ErrIO = errors.New("input/output error")
	// ErrTooManyFiles says that the process, or the machine, has as many files open as it may. Nothing was done.
	ErrTooManyFiles = errors.New("too many open files")
	// ErrLocked says that another process (or another FS handle of this one) holds the lock file.
	ErrLocked = errors.New("locked by another process")
)

// FS is a file system. Names are paths with the separator of the implementation (always "/" in Mem); relative names
// are relative to the working directory for OS and to the root for Mem.
type FS interface {
	// Create opens a file for reading and writing and makes it empty, creating it if absent.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// OpenRead opens an existing file for reading only.
	OpenRead(name string) (File, error)
	// Rename moves a file or directory, replacing a file of the new name. Atomic, durable after SyncDir.
	Rename(oldName, newName string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// RemoveAll deletes a name and everything below it; no error if it does not exist.
	RemoveAll(name string) error
	// Mkdir creates a directory with its parents; no error if it exists.
	Mkdir(name string) error
	// List returns the entries of a directory sorted by name.
	List(dir string) ([]Entry, error)
	// Stat describes one name.
	Stat(name string) (Entry, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// SyncAll makes everything durable that lies on the file system of dir (Linux), or at least below dir.
	SyncAll(dir string) error
	// Usage returns the bytes free for this process and the size of the file system that holds dir.
	Usage(dir string) (free, total int64, err error)
	// Lock takes an exclusive advisory lock on a file, creating it, and fails with ErrLocked at once if it is taken.
	// The lock ends with Close, or with the process.
	Lock(name string) (io.Closer, error)
}

// File is an open file. Its methods may be called concurrently; Close waits for none of them, but none of them touches
// another file that got the same descriptor.
type File interface {
	io.ReaderAt
	// WriteAt writes all of p at offset off, growing the file if needed. n < len(p) only with an error.
	WriteAt(p []byte, off int64) (n int, err error)
	// WritevAt writes the buffers one behind the other at offset off, as one vectored call where the system has it.
	// It does not modify bufs.
	WritevAt(bufs [][]byte, off int64) (n int, err error)
	// Truncate sets the size; new bytes are zero.
	Truncate(size int64) error
	// Sync makes data and size durable (fdatasync).
	Sync() error
	// Size returns the size in bytes.
	Size() (int64, error)
	// DropCache asks the system to forget clean cached pages, so that the next read shows what the device holds (W17).
	DropCache() error
	// Fd returns the descriptor, if there is one, for sendfile. Valid until Close.
	Fd() (uintptr, bool)
	io.Closer
}

// Entry describes a name in a directory.
type Entry struct {
	// Name is the last path element.
	Name string
	// Dir says that it is a directory.
	Dir bool
	// Size is the size of a file in bytes.
	Size int64
}

// ReadFile returns the content of a file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// ReplaceFile gives name the content data, durably and atomically: a crash leaves the old content or the new one. It
// writes name+".tmp", syncs it, renames it and syncs the directory (L3). After an error the old or the new content
// may be there.
func ReplaceFile(fsys FS, dir, name string, data []byte) error {
	path := Join(dir, name)
	f, err := fsys.Create(path + ".tmp")
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		// Best effort: a left-over .tmp is overwritten by the next replacement.
		_ = fsys.Remove(path + ".tmp")
		return err
	}
	if err := fsys.Rename(path+".tmp", path); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// Exists says whether a name exists; false with an error if that cannot be found out.
func Exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
