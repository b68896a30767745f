package vfs

import (
	"io"
	"path"
	"path/filepath"
	"sync"
)

// Op names a file operation for faults and for counting.
type Op string

// The operations of FS and File.
const (
	OpCreate   Op = "create"
	OpOpen     Op = "open" // Open and OpenRead
	OpRename   Op = "rename"
	OpRemove   Op = "remove" // Remove and RemoveAll
	OpMkdir    Op = "mkdir"
	OpList     Op = "list"
	OpStat     Op = "stat"
	OpSyncDir  Op = "syncdir"
	OpSyncAll  Op = "syncall"
	OpUsage    Op = "usage"
	OpLock     Op = "lock"
	OpRead     Op = "read"
	OpWrite    Op = "write" // WriteAt and WritevAt
	OpTruncate Op = "truncate"
	OpSync     Op = "sync"
	OpSize     Op = "size"
	OpDrop     Op = "drop"
	OpClose    Op = "close"
)

// Fault is an error to be returned on order.
type Fault struct {
	// Op is the operation that fails.
	Op Op
	// Name is a pattern (path.Match) for the last element of the name; empty matches all. For Rename it is matched
	// against the new name.
	Name string
	// After is the number of matching calls that still succeed.
	After int
	// Times is how many calls fail then; 0 means one, -1 all.
	Times int
	// Err is the error to return.
	Err error
	// Short, for writes, is the number of bytes that are written before the error.
	Short int
}

// Faulty wraps an FS, counts its operations and fails those it was told to fail.
type Faulty struct {
	fsys FS

	mu     sync.Mutex
	faults []*Fault
	counts map[Op]int
	bytes  map[Op]int64
	hook   func(op Op, name string)
}

// NewFaulty wraps fsys; faults may be added later with Inject.
func NewFaulty(fsys FS, faults ...Fault) *Faulty {
	f := &Faulty{fsys: fsys, counts: make(map[Op]int), bytes: make(map[Op]int64)}
	for _, fault := range faults {
		f.Inject(fault)
	}
	return f
}

// Inject adds a fault.
func (f *Faulty) Inject(fault Fault) {
	if fault.Times == 0 {
		fault.Times = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, &fault)
}

// Clear removes all faults.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Count returns how often an operation was called, failed calls included.
func (f *Faulty) Count(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

// Bytes returns the bytes read or written by an operation.
func (f *Faulty) Bytes(op Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[op]
}

// Hook calls fn before each operation, outside of Faulty's lock; nil ends that.
func (f *Faulty) Hook(fn func(op Op, name string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// call counts an operation and returns the fault that hits it.
func (f *Faulty) call(op Op, name string) *Fault {
	f.mu.Lock()
	hook := f.hook
	f.counts[op]++
	var hit *Fault
	base := path.Base(filepath.ToSlash(name))
	for _, fault := range f.faults {
		if fault.Op != op || fault.Times == 0 {
			continue
		}
		if fault.Name != "" {
			if ok, err := path.Match(fault.Name, base); err != nil || !ok {
				continue
			}
		}
		if fault.After > 0 {
			fault.After--
			continue
		}
		if fault.Times > 0 {
			fault.Times--
		}
		hit = fault
		break
	}
	f.mu.Unlock()
	if hook != nil {
		hook(op, name)
	}
	return hit
}

func (f *Faulty) moved(op Op, n int) {
	f.mu.Lock()
	f.bytes[op] += int64(n)
	f.mu.Unlock()
}

func (f *Faulty) fails(op Op, name string) error {
	if fault := f.call(op, name); fault != nil {
		return fault.Err
	}
	return nil
}

func (f *Faulty) file(name string, file File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &faultyFile{fsys: f, name: name, file: file}, nil
}

// Create implements FS.
func (f *Faulty) Create(name string) (File, error) {
	if err := f.fails(OpCreate, name); err != nil {
		return nil, err
	}
	file, err := f.fsys.Create(name)
	return f.file(name, file, err)
}

// Open implements FS.
func (f *Faulty) Open(name string) (File, error) {
	if err := f.fails(OpOpen, name); err != nil {
		return nil, err
	}
	file, err := f.fsys.Open(name)
	return f.file(name, file, err)
}

// OpenRead implements FS.
func (f *Faulty) OpenRead(name string) (File, error) {
	if err := f.fails(OpOpen, name); err != nil {
		return nil, err
	}
	file, err := f.fsys.OpenRead(name)
	return f.file(name, file, err)
}

// Rename implements FS.
func (f *Faulty) Rename(oldName, newName string) error {
	if err := f.fails(OpRename, newName); err != nil {
		return err
	}
	return f.fsys.Rename(oldName, newName)
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if err := f.fails(OpRemove, name); err != nil {
		return err
	}
	return f.fsys.Remove(name)
}

// RemoveAll implements FS.
func (f *Faulty) RemoveAll(name string) error {
	if err := f.fails(OpRemove, name); err != nil {
		return err
	}
	return f.fsys.RemoveAll(name)
}

// Mkdir implements FS.
func (f *Faulty) Mkdir(name string) error {
	if err := f.fails(OpMkdir, name); err != nil {
		return err
	}
	return f.fsys.Mkdir(name)
}

// List implements FS.
func (f *Faulty) List(dir string) ([]Entry, error) {
	if err := f.fails(OpList, dir); err != nil {
		return nil, err
	}
	return f.fsys.List(dir)
}

// Stat implements FS.
func (f *Faulty) Stat(name string) (Entry, error) {
	if err := f.fails(OpStat, name); err != nil {
		return Entry{}, err
	}
	return f.fsys.Stat(name)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(dir string) error {
	if err := f.fails(OpSyncDir, dir); err != nil {
		return err
	}
	return f.fsys.SyncDir(dir)
}

// SyncAll implements FS.
func (f *Faulty) SyncAll(dir string) error {
	if err := f.fails(OpSyncAll, dir); err != nil {
		return err
	}
	return f.fsys.SyncAll(dir)
}

// Usage implements FS.
func (f *Faulty) Usage(dir string) (free, total int64, err error) {
	if err := f.fails(OpUsage, dir); err != nil {
		return 0, 0, err
	}
	return f.fsys.Usage(dir)
}

// Lock implements FS.
func (f *Faulty) Lock(name string) (io.Closer, error) {
	if err := f.fails(OpLock, name); err != nil {
		return nil, err
	}
	return f.fsys.Lock(name)
}

// faultyFile is a file of a Faulty.
type faultyFile struct {
	fsys *Faulty
	name string
	file File
}

// ReadAt implements File.
func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fsys.fails(OpRead, f.name); err != nil {
		return 0, err
	}
	n, err := f.file.ReadAt(p, off)
	f.fsys.moved(OpRead, n)
	return n, err
}

// WriteAt implements File.
func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if fault := f.fsys.call(OpWrite, f.name); fault != nil {
		n, err := f.file.WriteAt(p[:min(fault.Short, len(p))], off)
		if err == nil {
			err = fault.Err
		}
		f.fsys.moved(OpWrite, n)
		return n, err
	}
	n, err := f.file.WriteAt(p, off)
	f.fsys.moved(OpWrite, n)
	return n, err
}

// WritevAt implements File.
func (f *faultyFile) WritevAt(bufs [][]byte, off int64) (int, error) {
	if fault := f.fsys.call(OpWrite, f.name); fault != nil {
		n, left := 0, fault.Short
		for _, b := range bufs {
			m, err := f.file.WriteAt(b[:min(left, len(b))], off+int64(n))
			n, left = n+m, left-m
			if err != nil {
				return n, err
			}
		}
		f.fsys.moved(OpWrite, n)
		return n, fault.Err
	}
	n, err := f.file.WritevAt(bufs, off)
	f.fsys.moved(OpWrite, n)
	return n, err
}

// Truncate implements File.
func (f *faultyFile) Truncate(size int64) error {
	if err := f.fsys.fails(OpTruncate, f.name); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

// Sync implements File.
func (f *faultyFile) Sync() error {
	if err := f.fsys.fails(OpSync, f.name); err != nil {
		return err
	}
	return f.file.Sync()
}

// Size implements File.
func (f *faultyFile) Size() (int64, error) {
	if err := f.fsys.fails(OpSize, f.name); err != nil {
		return 0, err
	}
	return f.file.Size()
}

// DropCache implements File.
func (f *faultyFile) DropCache() error {
	if err := f.fsys.fails(OpDrop, f.name); err != nil {
		return err
	}
	return f.file.DropCache()
}

// Fd implements File.
func (f *faultyFile) Fd() (uintptr, bool) { return f.file.Fd() }

// Close implements File.
func (f *faultyFile) Close() error {
	err := f.fsys.fails(OpClose, f.name)
	if cerr := f.file.Close(); err == nil {
		err = cerr
	}
	return err
}
