package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
)

// disk is files in memory with the two views that a crash tells apart: what the file system has in its cache, and what the
// disk holds. It can stop at any operation, lose what was not synced sector by sector, fail a sync and be full.
type disk struct {
	random  *rand.Rand
	cached  map[string]*inode // the names that one sees
	kept    map[string]*inode // the names on the disk
	left    int               // operations until the crash; 0 = none
	full    bool              // files can't grow, and some writes in place are refused too
	refused int               // how often it was
	fail    bool              // the next sync fails
}

type inode struct {
	data    []byte           // in the cache
	durable []byte           // on the disk
	dirty   map[int][][]byte // versions of sectors since they were synced last
	cut     bool             // truncated since
}

// stopped is what a crash panics with.
type stopped struct{}

var errDisk = errors.New("input/output error")

func newDisk(random *rand.Rand) *disk {
	return &disk{random: random, cached: map[string]*inode{}, kept: map[string]*inode{}}
}

// step counts one operation.
func (d *disk) step() bool {
	if d.left == 0 {
		return false
	}
	d.left--
	return d.left == 0
}

func (d *disk) crashHere() {
	if d.step() {
		panic(stopped{})
	}
}

// power cuts the power: each sector that was not synced is as it was, or one of its later versions; each name likewise.
func (d *disk) power() {
	mode := d.random.IntN(3) // everything unsynced is lost, nothing, or some
	keep := func() bool { return mode == 1 || mode == 2 && d.random.IntN(2) == 0 }
	names := map[string]*inode{}
	for name, i := range d.kept {
		if d.cached[name] == i || !keep() {
			names[name] = i
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.cached)) {
		if i := d.cached[name]; d.kept[name] == i || keep() {
			names[name] = i
		}
	}
	d.kept, d.cached = maps.Clone(names), names
	for _, name := range slices.Sorted(maps.Keys(names)) {
		i := names[name]
		if i.cut && keep() {
			i.durable = nil
		}
		for _, at := range slices.Sorted(maps.Keys(i.dirty)) {
			if versions := i.dirty[at]; keep() {
				i.put(at, versions[d.random.IntN(len(versions))])
			}
		}
		if len(i.data) > len(i.durable) && keep() {
			i.durable = append(i.durable, make([]byte, len(i.data)-len(i.durable))...)
		}
		i.data, i.dirty, i.cut = bytes.Clone(i.durable), map[int][][]byte{}, false
	}
}

// put has a sector reach the disk.
func (i *inode) put(at int, b []byte) {
	if need := at*sectorBytes + len(b); need > len(i.durable) {
		i.durable = append(i.durable, make([]byte, need-len(i.durable))...)
	}
	copy(i.durable[at*sectorBytes:], b)
}

// clone copies everything, for what must not change.
func (d *disk) clone() *disk {
	c := newDisk(d.random)
	copies := map[*inode]*inode{}
	for _, names := range []struct{ from, to map[string]*inode }{{d.cached, c.cached}, {d.kept, c.kept}} {
		for name, i := range names.from {
			if copies[i] == nil {
				copies[i] = &inode{bytes.Clone(i.data), bytes.Clone(i.durable), maps.Clone(i.dirty), i.cut}
			}
			names.to[name] = copies[i]
		}
	}
	return c
}

func (d *disk) same(o *disk) bool {
	return maps.EqualFunc(d.cached, o.cached, func(a, b *inode) bool { return bytes.Equal(a.data, b.data) })
}

// refusal is why a full disk takes nothing: it is full itself, or what its owner may use of it.
func (d *disk) refusal() error {
	d.refused++
	if d.refused%2 == 0 {
		return syscall.ENOSPC
	}
	return syscall.EDQUOT
}

func (d *disk) create(name string) (file, error) {
	d.crashHere()
	i := d.cached[name]
	if i == nil && d.full && d.random.IntN(4) == 0 { // no more files, or no room for the name
		return nil, &fs.PathError{Op: "open", Err: d.refusal()}
	}
	if i == nil {
		i = &inode{dirty: map[int][][]byte{}}
		d.cached[name] = i
	}
	i.data, i.dirty, i.cut = nil, map[int][][]byte{}, true
	return openFile{d, i}, nil
}

func (d *disk) open(name string) (file, error) {
	i := d.cached[name]
	if i == nil {
		return nil, fs.ErrNotExist
	}
	return openFile{d, i}, nil
}

func (d *disk) remove(name string) error {
	d.crashHere()
	delete(d.cached, name)
	return nil
}

func (d *disk) names() ([]string, error) { return slices.Sorted(maps.Keys(d.cached)), nil }

func (d *disk) syncNames() error {
	d.crashHere()
	d.kept = maps.Clone(d.cached)
	return nil
}

type openFile struct {
	*disk
	*inode
}

func (f openFile) Close() error         { return nil }
func (f openFile) size() (int64, error) { return int64(len(f.data)), nil }

func (f openFile) ReadAt(b []byte, at int64) (int, error) {
	n := copy(b, f.data[min(int(at), len(f.data)):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f openFile) WriteAt(b []byte, at int64) (int, error) {
	if at%sectorBytes != 0 || len(b)%sectorBytes != 0 {
		panic(fmt.Sprintf("a write of %d bytes at %d", len(b), at))
	}
	if f.full && (int(at)+len(b) > len(f.data) || f.random.IntN(4) == 0) {
		n := f.random.IntN(len(b)/sectorBytes) * sectorBytes
		f.write(b[:n], at)
		return n, &fs.PathError{Op: "write", Err: f.refusal()}
	}
	if f.step() {
		f.write(b[:f.random.IntN(len(b)/sectorBytes+1)*sectorBytes], at)
		panic(stopped{})
	}
	f.write(b, at)
	return len(b), nil
}

func (f openFile) write(b []byte, at int64) {
	if need := int(at) + len(b); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	copy(f.data[at:], b)
	for ; len(b) > 0; b, at = b[sectorBytes:], at+sectorBytes {
		n := int(at) / sectorBytes
		f.dirty[n] = append(f.dirty[n], bytes.Clone(b[:sectorBytes]))
	}
}

func (f openFile) sync() error {
	f.crashHere()
	if f.cut {
		f.durable = nil
	}
	failed := f.fail
	for _, at := range slices.Sorted(maps.Keys(f.dirty)) {
		if versions := f.dirty[at]; !failed || f.random.IntN(2) == 0 {
			f.put(at, versions[len(versions)-1])
		}
	}
	f.dirty, f.cut = map[int][][]byte{}, false
	if failed { // what did not reach the disk is in the cache, and counts as clean
		f.fail = false
		return errDisk
	}
	if len(f.data) > len(f.durable) {
		f.durable = append(f.durable, make([]byte, len(f.data)-len(f.durable))...)
	}
	return nil
}

// note is a Record on a disk of its own kind: what was stored is durable.
type note struct {
	*disk
	b    []byte
	lies bool // the next Store fails, and may have done it
}

func (n *note) Load() ([]byte, error) { return bytes.Clone(n.b), nil }

func (n *note) Store(b []byte) error {
	n.crashHere()
	if n.lies {
		n.lies = false
		if n.random.IntN(2) == 0 {
			n.b = bytes.Clone(b)
		}
		return errDisk
	}
	n.b = bytes.Clone(b)
	n.crashHere()
	return nil
}
