package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"path"
	"sort"
	"sync"
)

// Mem is a file system in memory that knows what a disk would hold. Writes change a cache; Sync, SyncDir and SyncAll
// bring the cache to the "disk"; Crash returns what a power cut leaves of it, Kill what the end of the process leaves.
//
// What a crash may do is more than most real file systems do, and nothing that one of them promises not to do:
//   - each block written since the last sync of its file is kept whole, torn (a prefix new, the rest old, or the other
//     way round) or not at all; blocks written early by the kernel's own write-back are modelled too, so that older
//     unsynced content may be found;
//   - the size is anything between the smallest and the largest since the last sync;
//   - each directory operation since the last SyncDir is kept or lost by chance, except that of two operations on the
//     same name the later is never kept without the earlier; a rename is one operation;
//   - a file keeps nothing but what its own Sync and its directory's SyncDir made durable: Sync alone does not keep the
//     name.
//
// Sync covers what was dirty when it was called and works in several steps, between which other tasks may write. A
// failing Sync leaves some dirty blocks clean in the cache although they never reached the disk.
type Mem struct {
	mu       sync.Mutex
	rng      *rand.Rand
	root     *memNode
	block    int
	capacity int64 // -1: none
	used     int64
	pending  []memChange // directory operations since the SyncDir that covers them, in order
	locks    map[string]bool
	dead     bool // crashed or killed: this handle is of a process that is gone
	yield    func(op string)
	// failSyncs counts down to a failing Sync; 0 means none.
	failSyncs int
	// writeBack is the chance, in 1/256 per write, that the kernel writes some dirty block early.
	writeBack int
	syncSteps bool
}

// memNode is a file or a directory.
type memNode struct {
	dir  bool
	live map[string]*memNode // directory: names as the process sees them
	disk map[string]*memNode // directory: names on disk
	file *memData
}

// memChange is one directory operation that is not durable yet.
type memChange struct {
	dir    *memNode // gets name -> node (node nil: loses name)
	name   string
	node   *memNode
	dir2   *memNode // rename: loses name2, if it still is node
	name2  string
	rename bool
}

// memData is the content of a file.
type memData struct {
	data  []byte // what the process sees
	disk  []byte // what the device holds, as far as written; bytes beyond are zero
	dirty []bool // per block of data: differs, or may differ, from disk
	// durable is the size the last complete sync left; low and high bound the sizes since. A crash may leave any size
	// between low and high.
	durable, low, high int64
	nlink              int // names in the live tree; open handles keep the content reachable anyway
	syncs              []*memSync
}

// memSync watches the sizes a file takes while one of its syncs runs.
type memSync struct{ low, high int64 }

// CrashMode says how much of what was not synced survives a power cut.
type CrashMode int

const (
	// CrashLose keeps nothing that was not synced.
	CrashLose CrashMode = iota
	// CrashKeep keeps everything.
	CrashKeep
	// CrashMixed decides for each block, size and directory operation by chance.
	CrashMixed
)

// NewMem returns an empty file system with blocks of 4 KiB, no limit of capacity and no write-back of its own; every
// choice it makes follows from seed.
func NewMem(seed uint64) *Mem {
	return &Mem{
		rng:       rand.New(rand.NewPCG(seed, 0xda3e39cb94b95bdb)),
		root:      newMemDir(),
		block:     4096,
		capacity:  -1,
		locks:     make(map[string]bool),
		writeBack: 0,
	}
}

func newMemDir() *memNode {
	return &memNode{dir: true, live: make(map[string]*memNode), disk: make(map[string]*memNode)}
}

// SetBlock sets the size of the blocks that survive or get lost as one; tests with small files use 32. Only before the
// first file is made.
func (m *Mem) SetBlock(bytes int) { m.block = bytes }

// SetYield calls fn before each operation, and between the steps of Sync; Sim.Yield fits.
func (m *Mem) SetYield(fn func(op string)) { m.yield, m.syncSteps = fn, fn != nil }

// SetWriteBack sets the chance, in 1/256 per write, that some dirty block of the file is written to the disk early.
func (m *Mem) SetWriteBack(chance int) { m.writeBack = chance }

// SetCapacity limits the bytes in files, counted in whole blocks; -1 removes the limit. Writes beyond it are short and
// fail with ErrNoSpace.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// FailSync makes the n-th Sync of a file from now fail with ErrIO (1 is the next).
func (m *Mem) FailSync(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failSyncs = n
}

// step is the start of every operation: another task may run, then the lock is taken.
func (m *Mem) step(op string) {
	if m.yield != nil {
		m.yield(op)
	}
	m.mu.Lock()
}

func pathError(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// find returns the node of a name, or nil.
func (m *Mem) find(name string) *memNode {
	n := m.root
	for _, e := range splitPath(name) {
		if n == nil || !n.dir {
			return nil
		}
		n = n.live[e]
	}
	return n
}

// parent returns the directory of a name and the last element.
func (m *Mem) parent(op, name string) (*memNode, string, error) {
	elems := splitPath(name)
	if len(elems) == 0 {
		return nil, "", pathError(op, name, fs.ErrInvalid)
	}
	n := m.root
	for _, e := range elems[:len(elems)-1] {
		if n = n.live[e]; n == nil {
			return nil, "", pathError(op, name, fs.ErrNotExist)
		}
		if !n.dir {
			return nil, "", pathError(op, name, errNotDir)
		}
	}
	return n, elems[len(elems)-1], nil
}

var (
	errNotDir   = fmt.Errorf("not a directory")
	errIsDir    = fmt.Errorf("is a directory")
	errNotEmpty = fmt.Errorf("directory not empty")
)

func (m *Mem) check(op, name string) error {
	if m.dead {
		return pathError(op, name, fs.ErrClosed)
	}
	return nil
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.step("create " + name)
	defer m.mu.Unlock()
	if err := m.check("create", name); err != nil {
		return nil, err
	}
	dir, base, err := m.parent("create", name)
	if err != nil {
		return nil, err
	}
	n := dir.live[base]
	switch {
	case n == nil:
		n = &memNode{file: &memData{nlink: 1}}
		dir.live[base] = n
		m.pending = append(m.pending, memChange{dir: dir, name: base, node: n})
	case n.dir:
		return nil, pathError("create", name, errIsDir)
	default:
		m.truncate(n.file, 0)
	}
	return &memFile{fsys: m, name: name, data: n.file, write: true}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open(name, true) }

// OpenRead implements FS.
func (m *Mem) OpenRead(name string) (File, error) { return m.open(name, false) }

func (m *Mem) open(name string, write bool) (File, error) {
	m.step("open " + name)
	defer m.mu.Unlock()
	if err := m.check("open", name); err != nil {
		return nil, err
	}
	n := m.find(name)
	switch {
	case n == nil:
		return nil, pathError("open", name, fs.ErrNotExist)
	case n.dir:
		return nil, pathError("open", name, errIsDir)
	}
	return &memFile{fsys: m, name: name, data: n.file, write: write}, nil
}

// Rename implements FS.
func (m *Mem) Rename(oldName, newName string) error {
	m.step("rename " + newName)
	defer m.mu.Unlock()
	if err := m.check("rename", oldName); err != nil {
		return err
	}
	dir2, name2, err := m.parent("rename", oldName)
	if err != nil {
		return err
	}
	dir, name, err := m.parent("rename", newName)
	if err != nil {
		return err
	}
	n := dir2.live[name2]
	if n == nil {
		return pathError("rename", oldName, fs.ErrNotExist)
	}
	if old := dir.live[name]; old != nil && old != n {
		if old.dir && (!n.dir || len(old.live) > 0) {
			return pathError("rename", newName, fs.ErrExist)
		}
		if !old.dir && n.dir {
			return pathError("rename", newName, errNotDir)
		}
		m.unlinked(old)
	}
	if dir == dir2 && name == name2 {
		return nil
	}
	delete(dir2.live, name2)
	dir.live[name] = n
	m.pending = append(m.pending, memChange{dir: dir, name: name, node: n, dir2: dir2, name2: name2, rename: true})
	return nil
}

// unlinked frees the space of a file that lost its last name.
func (m *Mem) unlinked(n *memNode) {
	if n.dir {
		return
	}
	n.file.nlink--
	if n.file.nlink == 0 {
		m.used -= m.blocks(int64(len(n.file.data)))
	}
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.step("remove " + name)
	defer m.mu.Unlock()
	if err := m.check("remove", name); err != nil {
		return err
	}
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n := dir.live[base]
	if n == nil {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if n.dir && len(n.live) > 0 {
		return pathError("remove", name, errNotEmpty)
	}
	m.unlink(dir, base, n)
	return nil
}

func (m *Mem) unlink(dir *memNode, base string, n *memNode) {
	delete(dir.live, base)
	m.unlinked(n)
	m.pending = append(m.pending, memChange{dir: dir, name: base})
}

// RemoveAll implements FS. Every unlink below the name is a step.
func (m *Mem) RemoveAll(name string) error {
	entries, err := m.List(name)
	if err == nil {
		for _, e := range entries {
			if err := m.RemoveAll(path.Join(name, e.Name)); err != nil {
				return err
			}
		}
	}
	m.step("remove " + name)
	defer m.mu.Unlock()
	if err := m.check("remove", name); err != nil {
		return err
	}
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return nil // a parent that does not exist: nothing to remove
	}
	if n := dir.live[base]; n != nil {
		if n.dir && len(n.live) > 0 {
			return pathError("remove", name, errNotEmpty)
		}
		m.unlink(dir, base, n)
	}
	return nil
}

// Mkdir implements FS.
func (m *Mem) Mkdir(name string) error {
	m.step("mkdir " + name)
	defer m.mu.Unlock()
	if err := m.check("mkdir", name); err != nil {
		return err
	}
	n := m.root
	for _, e := range splitPath(name) {
		next := n.live[e]
		if next == nil {
			next = newMemDir()
			n.live[e] = next
			m.pending = append(m.pending, memChange{dir: n, name: e, node: next})
		} else if !next.dir {
			return pathError("mkdir", name, errNotDir)
		}
		n = next
	}
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]Entry, error) {
	m.step("list " + dir)
	defer m.mu.Unlock()
	if err := m.check("list", dir); err != nil {
		return nil, err
	}
	n := m.find(dir)
	switch {
	case n == nil:
		return nil, pathError("list", dir, fs.ErrNotExist)
	case !n.dir:
		return nil, pathError("list", dir, errNotDir)
	}
	entries := make([]Entry, 0, len(n.live))
	for name, c := range n.live {
		entries = append(entries, c.entry(name))
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	return entries, nil
}

func (n *memNode) entry(name string) Entry {
	e := Entry{Name: name, Dir: n.dir}
	if !n.dir {
		e.Size = int64(len(n.file.data))
	}
	return e
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Entry, error) {
	m.step("stat " + name)
	defer m.mu.Unlock()
	if err := m.check("stat", name); err != nil {
		return Entry{}, err
	}
	n := m.find(name)
	if n == nil {
		return Entry{}, pathError("stat", name, fs.ErrNotExist)
	}
	return n.entry(path.Base("/" + path.Join(splitPath(name)...))), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.step("syncdir " + dir)
	defer m.mu.Unlock()
	if err := m.check("syncdir", dir); err != nil {
		return err
	}
	n := m.find(dir)
	switch {
	case n == nil:
		return pathError("syncdir", dir, fs.ErrNotExist)
	case !n.dir:
		return pathError("syncdir", dir, errNotDir)
	}
	m.syncDir(n)
	return nil
}

func (m *Mem) syncDir(n *memNode) {
	rest := m.pending[:0]
	for _, c := range m.pending {
		if c.dir == n || c.dir2 == n {
			c.apply()
		} else {
			rest = append(rest, c)
		}
	}
	clear(m.pending[len(rest):])
	m.pending = rest
}

// apply makes a directory operation on the disk.
func (c memChange) apply() {
	if c.node == nil {
		delete(c.dir.disk, c.name)
		return
	}
	if c.rename && c.dir2.disk[c.name2] == c.node {
		delete(c.dir2.disk, c.name2)
	}
	c.dir.disk[c.name] = c.node
}

// SyncAll implements FS: everything in the file system becomes durable, in several steps.
func (m *Mem) SyncAll(dir string) error {
	if _, err := m.Stat(dir); err != nil {
		return err
	}
	m.mu.Lock()
	var files []*memFile
	m.root.walk("", func(name string, n *memNode) {
		if n.dir {
			m.syncDir(n)
		} else {
			files = append(files, &memFile{fsys: m, name: name, data: n.file, write: true})
		}
	})
	m.mu.Unlock()
	for _, f := range files {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// walk visits the live tree in the order of names, parents first.
func (n *memNode) walk(name string, fn func(name string, n *memNode)) {
	fn(name, n)
	if !n.dir {
		return
	}
	for _, base := range sortedNames(n.live) {
		n.live[base].walk(name+"/"+base, fn)
	}
}

func sortedNames(dir map[string]*memNode) []string {
	names := make([]string, 0, len(dir))
	for name := range dir {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Usage implements FS.
func (m *Mem) Usage(dir string) (free, total int64, err error) {
	m.step("usage")
	defer m.mu.Unlock()
	if err := m.check("usage", dir); err != nil {
		return 0, 0, err
	}
	if m.capacity < 0 {
		return math.MaxInt64 / 2, math.MaxInt64 / 2, nil
	}
	return max(0, m.capacity-m.used), m.capacity, nil
}

// blocks returns the bytes that a file of this size takes.
func (m *Mem) blocks(size int64) int64 {
	b := int64(m.block)
	return (size + b - 1) / b * b
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.Open(name)
	if err != nil {
		if f, err = m.Create(name); err != nil {
			return nil, err
		}
	}
	f.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	key := path.Join(splitPath(name)...)
	if m.locks[key] {
		return nil, pathError("lock", name, ErrLocked)
	}
	m.locks[key] = true
	return memLock{m, key}, nil
}

type memLock struct {
	fsys *Mem
	key  string
}

func (l memLock) Close() error {
	l.fsys.mu.Lock()
	defer l.fsys.mu.Unlock()
	delete(l.fsys.locks, l.key)
	return nil
}
