package metadata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt maps its file into memory and believes what it reads there, but for two pages: a flipped bit in any other can make
// it panic, read outside of the file, or overwrite what is in use. So the whole tree is walked before bbolt opens it, with
// plain reads. Of its two newest roots bbolt takes the older when the newer is damaged, which would undo the last write, a
// vote perhaps; here both must be whole. The layout is that of bbolt 1.3 to 1.5 (version 2 of its format).

const (
	pageHeader  = 16 // id u64, flags u16, count u16, overflow u32
	pageElement = 16 // of a leaf: flags, pos, ksize, vsize u32; of a branch: pos, ksize u32, pgid u64
	pageBranch  = 0x01
	pageLeaf    = 0x02
	pageMeta    = 0x04
	pageFree    = 0x10
	metaBytes   = 64
	metaMagic   = 0xed0cdaed
	// noFreelist is the page of a list of free pages that is not kept.
	noFreelist = ^uint64(0)
	// pagesDeep bounds the tree.
	pagesDeep = 64
)

var native = binary.NativeEndian

// pageMap walks the pages of one file.
type pageMap struct {
	file     *os.File
	pageSize uint64
	end      uint64 // first page that is not in use
	used     map[uint64]bool
}

// databaseMeta is one of the two roots.
type databaseMeta struct {
	pageSize             uint32
	root, freelist, pgid uint64
	tx                   uint64
}

// verifyDatabase checks the pages of a closed database. A file that is not there, or has never been written to, is right.
func verifyDatabase(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	meta, err := readDatabaseMeta(f, 0)
	if err != nil {
		return err
	}
	other, err := readDatabaseMeta(f, int64(meta.pageSize))
	if err != nil {
		return err
	}
	if other.tx > meta.tx {
		meta = other
	}
	m := &pageMap{file: f, pageSize: uint64(meta.pageSize), end: meta.pgid, used: map[uint64]bool{0: true, 1: true}}
	if size := uint64(info.Size()); m.end > size/m.pageSize {
		return fmt.Errorf("the file has %d bytes, its pages take %d", size, m.end*m.pageSize)
	}
	if err := m.bucket(meta.root, 0); err != nil {
		return err
	}
	if meta.freelist == noFreelist {
		return nil
	}
	return m.freelist(meta.freelist)
}

func readDatabaseMeta(f io.ReaderAt, at int64) (m databaseMeta, err error) {
	b := make([]byte, pageHeader+metaBytes)
	if _, err := f.ReadAt(b, at); err != nil {
		return m, fmt.Errorf("read the root at %d: %w", at, err)
	}
	v := b[pageHeader:]
	h := fnv.New64a()
	h.Write(v[:metaBytes-8])
	m = databaseMeta{pageSize: native.Uint32(v[8:]), root: native.Uint64(v[16:]), freelist: native.Uint64(v[32:]), pgid: native.Uint64(v[40:]), tx: native.Uint64(v[48:])}
	switch {
	case native.Uint32(v) != metaMagic || native.Uint32(v[4:]) != 2:
		return m, fmt.Errorf("the root at %d is none", at)
	case native.Uint64(v[metaBytes-8:]) != h.Sum64():
		return m, fmt.Errorf("the root at %d: %w", at, errRot)
	case native.Uint16(b[8:]) != pageMeta || m.pageSize < 512 || m.pageSize > 1<<20:
		return m, fmt.Errorf("the root at %d has no page", at)
	}
	return m, nil
}

// read returns a page with what overflows it, and marks it as used.
func (m *pageMap) read(id uint64) ([]byte, error) {
	if id < 2 || id >= m.end {
		return nil, fmt.Errorf("page %d: there are pages 2 to %d", id, m.end-1)
	}
	b := make([]byte, m.pageSize)
	if _, err := m.file.ReadAt(b, int64(id*m.pageSize)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	more := uint64(native.Uint32(b[12:]))
	if native.Uint64(b) != id || more >= m.end-id {
		return nil, fmt.Errorf("page %d says that it is page %d with %d more", id, native.Uint64(b), more)
	}
	for i := id; i <= id+more; i++ {
		if m.used[i] {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		m.used[i] = true
	}
	if more > 0 {
		b = append(b, make([]byte, more*m.pageSize)...)
		if _, err := m.file.ReadAt(b[m.pageSize:], int64((id+1)*m.pageSize)); err != nil {
			return nil, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return b, nil
}

// bucket walks the tree of one bucket, and those in it.
func (m *pageMap) bucket(root uint64, deep int) error {
	_, _, err := m.tree(root, deep)
	return err
}

// tree returns the first and last key below a page; nil without any.
func (m *pageMap) tree(id uint64, deep int) (first, last []byte, err error) {
	if deep > pagesDeep {
		return nil, nil, errors.New("the pages form a circle")
	}
	page, err := m.read(id)
	if err != nil {
		return nil, nil, err
	}
	if first, last, err = m.elements(page, deep); err != nil {
		return nil, nil, fmt.Errorf("page %d: %w", id, err)
	}
	return first, last, nil
}

// elements checks a leaf or branch: keys rise, nothing reaches out of the page.
func (m *pageMap) elements(page []byte, deep int) (first, last []byte, err error) {
	flags, count := native.Uint16(page[8:]), int(native.Uint16(page[10:]))
	if flags != pageLeaf && flags != pageBranch {
		return nil, nil, fmt.Errorf("it is neither leaf nor branch: %#x", flags)
	}
	if pageHeader+count*pageElement > len(page) || flags == pageBranch && count == 0 {
		return nil, nil, fmt.Errorf("it has %d elements", count)
	}
	for i := range count {
		at := pageHeader + i*pageElement
		e := page[at : at+pageElement]
		pos, keySize, valueSize := uint64(native.Uint32(e)), uint64(native.Uint32(e[4:])), uint64(0)
		kind := uint32(0)
		if flags == pageLeaf {
			kind, pos, keySize, valueSize = native.Uint32(e), uint64(native.Uint32(e[4:])), uint64(native.Uint32(e[8:])), uint64(native.Uint32(e[12:]))
		}
		begin := uint64(at) + pos
		if pos < uint64((count-i)*pageElement) || begin+keySize+valueSize > uint64(len(page)) || kind > 1 {
			return nil, nil, fmt.Errorf("element %d of %d reaches out of it", i, count)
		}
		key, value := page[begin:begin+keySize], page[begin+keySize:begin+keySize+valueSize]
		if last != nil && bytes.Compare(last, key) >= 0 {
			return nil, nil, fmt.Errorf("the key of element %d does not follow that before", i)
		}
		if i == 0 {
			first = key
		}
		last = key
		switch {
		case flags == pageBranch:
			lowest, highest, err := m.tree(native.Uint64(e[8:]), deep+1)
			if err != nil {
				return nil, nil, err
			}
			if lowest != nil && bytes.Compare(lowest, key) < 0 {
				return nil, nil, fmt.Errorf("below element %d is a smaller key", i)
			}
			if highest != nil {
				last = highest
			}
		case kind == 1:
			if err := m.inner(value, deep); err != nil {
				return nil, nil, fmt.Errorf("bucket %q: %w", key, err)
			}
		}
	}
	return first, last, nil
}

// inner walks a bucket in a bucket: root u64, sequence u64, and its only page when it has no root.
func (m *pageMap) inner(value []byte, deep int) error {
	if len(value) < 16 {
		return errors.New("it has no root")
	}
	if root := native.Uint64(value); root != 0 {
		return m.bucket(root, deep+1)
	}
	if len(value) < 16+pageHeader {
		return errors.New("it has no page")
	}
	_, _, err := m.elements(value[16:], deep+1)
	return err
}

// freelist checks that what is free is not used, and that each page is one or the other.
func (m *pageMap) freelist(id uint64) error {
	page, err := m.read(id)
	if err != nil {
		return err
	}
	if native.Uint16(page[8:]) != pageFree {
		return fmt.Errorf("page %d is no list of free pages", id)
	}
	at, count := uint64(pageHeader), uint64(native.Uint16(page[10:]))
	if count == 0xffff {
		at, count = at+8, native.Uint64(page[pageHeader:])
	}
	if count > (uint64(len(page))-at)/8 {
		return fmt.Errorf("page %d lists %d free pages", id, count)
	}
	for i := range count {
		free := native.Uint64(page[at+8*i:])
		if free < 2 || free >= m.end || m.used[free] {
			return fmt.Errorf("page %d is free, and used or none", free)
		}
		m.used[free] = true
	}
	if n := uint64(len(m.used)); n != m.end {
		return fmt.Errorf("of %d pages %d are neither used nor free", m.end, m.end-n)
	}
	return nil
}
