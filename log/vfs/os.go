package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"
)

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

// Join joins path elements. Names made by it suit both OS and Mem.
func Join(elem ...string) string { return filepath.Join(elem...) }

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	return openOS(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (osFS) Open(name string) (File, error) { return openOS(name, os.O_RDWR) }

func (osFS) OpenRead(name string) (File, error) { return openOS(name, os.O_RDONLY) }

func openOS(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o644)
	if err != nil {
		return nil, classify(err)
	}
	return newOSFile(f)
}

func (osFS) Rename(oldName, newName string) error { return classify(os.Rename(oldName, newName)) }

func (osFS) Remove(name string) error { return classify(os.Remove(name)) }

func (osFS) RemoveAll(name string) error { return classify(os.RemoveAll(name)) }

func (osFS) Mkdir(name string) error { return classify(os.MkdirAll(name, 0o755)) }

func (osFS) List(dir string) ([]Entry, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, classify(err)
	}
	entries := make([]Entry, 0, len(list))
	for _, d := range list {
		e := Entry{Name: d.Name(), Dir: d.IsDir()}
		if !e.Dir {
			info, err := d.Info()
			if errors.Is(err, os.ErrNotExist) {
				continue // removed since the directory was read
			}
			if err != nil {
				return nil, classify(err)
			}
			e.Size = info.Size()
		}
		entries = append(entries, e)
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	return entries, nil
}

func (osFS) Stat(name string) (Entry, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Entry{}, classify(err)
	}
	e := Entry{Name: info.Name(), Dir: info.IsDir()}
	if !e.Dir {
		e.Size = info.Size()
	}
	return e, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return classify(err)
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return classify(err)
}

// syncTree syncs every file and directory below dir, for systems without syncfs.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return classify(err)
		}
		if !d.IsDir() && !d.Type().IsRegular() {
			return nil
		}
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return classify(err)
		}
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		return classify(err)
	})
}

// osFile adds to *os.File the calls that the standard library lacks. Reads and single writes use *os.File, which
// finishes partial transfers and retries EINTR itself; everything else goes through the RawConn, which keeps the
// descriptor from being reused by another file while a call runs beside Close.
type osFile struct {
	*os.File
	raw syscall.RawConn
}

func newOSFile(f *os.File) (File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, classify(err)
	}
	return &osFile{File: f, raw: raw}, nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	if err != nil && err != io.EOF {
		err = classify(err)
	}
	return n, err
}

func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	return n, classify(err)
}

func (f *osFile) Truncate(size int64) error { return classify(f.File.Truncate(size)) }

func (f *osFile) Size() (int64, error) {
	info, err := f.File.Stat()
	if err != nil {
		return 0, classify(err)
	}
	return info.Size(), nil
}

func (f *osFile) Fd() (uintptr, bool) { return f.File.Fd(), true }

func (f *osFile) Close() error { return classify(f.File.Close()) }

// osCall is a system call on the way through RawConn.Control. It is pooled: a closure per call would be garbage on the
// path of every append and every commit.
type osCall struct {
	call func(fd int, c *osCall) error
	bufs [][]byte
	off  int64
	n    int
	err  error
	run  func(fd uintptr)
}

var osCalls = sync.Pool{New: func() any {
	c := new(osCall)
	c.run = func(fd uintptr) {
		for {
			if c.err = c.call(int(fd), c); c.err != syscall.EINTR {
				return
			}
		}
	}
	return c
}}

// control runs a system call on the descriptor until it is not interrupted, and returns the count it left in n.
func (f *osFile) control(op string, bufs [][]byte, off int64, call func(fd int, c *osCall) error) (n int, err error) {
	c := osCalls.Get().(*osCall)
	c.call, c.bufs, c.off, c.n, c.err = call, bufs, off, 0, nil
	if cerr := f.raw.Control(c.run); cerr != nil {
		c.err = os.ErrClosed // the one reason for which a RawConn of a file refuses
	}
	n, err = c.n, c.err
	c.bufs = nil
	osCalls.Put(c)
	if err != nil {
		return n, classify(&os.PathError{Op: op, Path: f.File.Name(), Err: err})
	}
	return n, nil
}

// classify adds the package's own sentinels to errors of the operating system.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC) || isQuota(err):
		return &classified{err: err, class: ErrNoSpace}
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return &classified{err: err, class: ErrTooManyFiles}
	case errors.Is(err, syscall.EIO):
		return &classified{err: err, class: ErrIO}
	}
	return err
}

// classified is an operating system error with one of the package's sentinels.
type classified struct{ err, class error }

func (c *classified) Error() string { return c.err.Error() }

func (c *classified) Unwrap() []error { return []error{c.err, c.class} }

// splitPath returns the cleaned path of a name as elements from the root.
func splitPath(name string) []string {
	name = filepath.ToSlash(filepath.Clean(name))
	name = strings.Trim(name, "/")
	if name == "" || name == "." {
		return nil
	}
	return strings.Split(name, "/")
}
