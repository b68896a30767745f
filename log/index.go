package log

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// index is a sparse index of one segment: the shape that the offset index and the time index share. Entries rise in
// both columns. It is a cache: whatever it says is checked against the batch header it leads to, and it can be rebuilt
// from the headers alone (L6).
//
// Entries are appended in memory and written to the file in groups; those not written yet, and a few older ones, are
// the tail. The rest is looked up in the file, by binary search over pages, so that neither the memory of a partition
// nor the cost of a lookup grows with the segment by more than a logarithm.
//
// All methods that change it are called by the writer, under Log.w and Log.mu. Readers copy it under Log.mu and search
// the copy: entries of the tail are never changed in place.
type index struct {
	kind indexKind
	// count is the number of entries, flushed of which are in the file: flushed ≤ count.
	count, flushed int
	// tail are the entries from count-len(tail) on; it holds at least those from flushed on.
	tail []indexEntry
}

// indexEntry is a row: (last offset of a batch relative to the base, its position) or (timestamp, relative offset).
type indexEntry struct {
	key   int64
	value uint32
}

// indexKind is the layout of an index file.
type indexKind struct {
	name       string
	entryBytes int
	put        func(p []byte, e indexEntry)
	get        func(p []byte) indexEntry
}

const (
	// indexFlushEntries is the number of entries that are written at once (dataplane.md 5).
	indexFlushEntries = 64
	// indexTailEntries bounds the entries kept in memory.
	indexTailEntries = 1024
	// indexPageEntries is the number of entries read at once by a lookup in the file.
	indexPageEntries = 512
)

// errIndexBad says that the index contradicts itself or its segment: rebuild it.
var errIndexBad = errors.New("index does not fit its segment")

// last returns the last entry; ok is false if that is only in the file, or nowhere.
func (x *index) last() (e indexEntry, ok bool) {
	if len(x.tail) == 0 {
		return indexEntry{}, false
	}
	return x.tail[len(x.tail)-1], true
}

// add appends an entry. The tail is copied when it is cut, never shifted: readers may hold the old one.
func (x *index) add(e indexEntry) {
	if len(x.tail) >= indexTailEntries && x.count-x.flushed <= indexTailEntries/2 {
		kept := make([]indexEntry, indexTailEntries/2, indexTailEntries)
		copy(kept, x.tail[len(x.tail)-indexTailEntries/2:])
		x.tail = kept
	}
	x.tail = append(x.tail, e)
	x.count++
}

// pending returns the encoded entries that are not in the file yet and the position where they belong.
func (x *index) pending(buf []byte) (p []byte, at int64) {
	n := x.count - x.flushed
	w := x.kind.entryBytes
	for _, e := range x.tail[len(x.tail)-n:] {
		buf = append(buf, make([]byte, w)...)
		x.kind.put(buf[len(buf)-w:], e)
	}
	return buf, int64(x.flushed) * int64(w)
}

// sealed drops the tail once all of it is in the file: the segment takes no more appends.
func (x *index) sealed() {
	if x.flushed == x.count {
		x.tail = nil
	}
}

// bytes is the size of the index, written or not.
func (x *index) bytes() int64 { return int64(x.count) * int64(x.kind.entryBytes) }

// loaded returns the index that a file of that size holds. A torn last entry is not counted.
func (k indexKind) loaded(fileBytes int64) index {
	n := int(fileBytes / int64(k.entryBytes))
	return index{kind: k, count: n, flushed: n}
}

// search returns the number of leading entries whose column is ≤ limit. file is asked for the handle only if the tail
// does not answer.
func (x *index) search(limit int64, column func(indexEntry) int64, file func() (io.ReaderAt, error)) (n int, last indexEntry, err error) {
	first := x.count - len(x.tail)
	if len(x.tail) > 0 && (first == 0 || column(x.tail[0]) <= limit) {
		lo, hi := 0, len(x.tail)
		for lo < hi {
			mid := int(uint(lo+hi) >> 1)
			if column(x.tail[mid]) <= limit {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if lo == 0 {
			return 0, indexEntry{}, nil
		}
		return first + lo, x.tail[lo-1], nil
	}
	if first == 0 {
		return 0, indexEntry{}, nil
	}
	f, err := file()
	if err != nil {
		return 0, indexEntry{}, err
	}
	return x.kind.searchFile(f, first, limit, column)
}

var indexPages = sync.Pool{New: func() any { return new([indexPageEntries * timeEntryBytes]byte) }}

// searchFile is search over the first count entries of a file: a binary search for the page by the first entry of
// each, then one within the page.
func (k indexKind) searchFile(f io.ReaderAt, count int, limit int64, column func(indexEntry) int64) (n int, last indexEntry, err error) {
	buf := indexPages.Get().(*[indexPageEntries * timeEntryBytes]byte)
	defer indexPages.Put(buf)
	lo, hi := 0, (count+indexPageEntries-1)/indexPageEntries // pages [0,lo) begin ≤ limit, [hi,…) begin > limit
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		p := buf[:k.entryBytes]
		if err := readFull(f, p, int64(mid)*indexPageEntries*int64(k.entryBytes)); err != nil {
			return 0, indexEntry{}, fmt.Errorf("read page %d of the %s: %w", mid, k.name, err)
		}
		if column(k.get(p)) <= limit {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0, indexEntry{}, nil
	}
	from := (lo - 1) * indexPageEntries
	p := buf[:min(indexPageEntries, count-from)*k.entryBytes]
	if err := readFull(f, p, int64(from)*int64(k.entryBytes)); err != nil {
		return 0, indexEntry{}, fmt.Errorf("read page %d of the %s: %w", lo-1, k.name, err)
	}
	a, b := 0, len(p)/k.entryBytes
	for a < b {
		mid := int(uint(a+b) >> 1)
		if column(k.get(p[mid*k.entryBytes:])) <= limit {
			a = mid + 1
		} else {
			b = mid
		}
	}
	if a == 0 { // the page changed under us, or its entries do not rise
		return 0, indexEntry{}, fmt.Errorf("%w: entry %d of the %s", errIndexBad, from, k.name)
	}
	return from + a, k.get(p[(a-1)*k.entryBytes:]), nil
}

// entry reads one entry.
func (x *index) entry(i int, file func() (io.ReaderAt, error)) (indexEntry, error) {
	if first := x.count - len(x.tail); i >= first {
		return x.tail[i-first], nil
	}
	f, err := file()
	if err != nil {
		return indexEntry{}, err
	}
	var p [timeEntryBytes]byte
	if err := readFull(f, p[:x.kind.entryBytes], int64(i)*int64(x.kind.entryBytes)); err != nil {
		return indexEntry{}, fmt.Errorf("read entry %d of the %s: %w", i, x.kind.name, err)
	}
	return x.kind.get(p[:]), nil
}

// truncated returns the index cut to its first n entries. If entries in the file are concerned the file must be cut
// to the returned flushed entries too.
func (x *index) truncated(n int) index {
	t := index{kind: x.kind, count: n, flushed: min(x.flushed, n)}
	if first := x.count - len(x.tail); n > first {
		t.tail = append([]indexEntry(nil), x.tail[:n-first]...)
	}
	return t
}

func byKey(e indexEntry) int64   { return e.key }
func byValue(e indexEntry) int64 { return int64(e.value) }

// readFull reads all of p or fails; io.ErrUnexpectedEOF if the file ends inside.
func readFull(f io.ReaderAt, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
