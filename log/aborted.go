package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/millrace/millrace/log/vfs"
)

// AbortedTransaction is a transaction that was aborted: readers of committed records skip the records of the producer
// from FirstOffset up to the abort marker that follows.
type AbortedTransaction struct {
	ProducerID  int64
	FirstOffset int64
}

// The index of aborted transactions, Kafka's .txnindex: an entry for each abort marker in the segment that ended a
// transaction, in the order of the markers, big endian. A segment without any has no file.
//
//	0  version i16 = 0
//	2  producer id i64
//	10 first offset of the transaction i64
//	18 offset of the marker i64
//	26 last stable offset i64: the first offset of the transactions open at the marker, or the offset behind it
const (
	abortedEntryBytes = 34
	abortedVersion    = 0
)

// abortedEntry is a row.
type abortedEntry struct {
	producerID int64
	// first is the offset of its first record, last that of its marker.
	first, last int64
	// lastStable says that no entry that follows begins below.
	lastStable int64
}

func (e *abortedEntry) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, abortedVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(e.producerID))
	b = binary.BigEndian.AppendUint64(b, uint64(e.first))
	b = binary.BigEndian.AppendUint64(b, uint64(e.last))
	return binary.BigEndian.AppendUint64(b, uint64(e.lastStable))
}

// decodeAborted reads the entry at the beginning of b.
func decodeAborted(b []byte) (abortedEntry, error) {
	if v := binary.BigEndian.Uint16(b); v != abortedVersion {
		return abortedEntry{}, fmt.Errorf("%w: version %d", errAbortedBad, v)
	}
	e := abortedEntry{
		producerID: int64(binary.BigEndian.Uint64(b[2:])), first: int64(binary.BigEndian.Uint64(b[10:])),
		last: int64(binary.BigEndian.Uint64(b[18:])), lastStable: int64(binary.BigEndian.Uint64(b[26:])),
	}
	if e.producerID < 0 || e.first < 0 || e.last <= e.first || e.lastStable < 0 || e.lastStable > e.last+1 {
		return e, fmt.Errorf("%w: producer %d aborts %d to %d, stable up to %d", errAbortedBad, e.producerID, e.first, e.last, e.lastStable)
	}
	return e, nil
}

// errAbortedBad says that an index of aborted transactions is not what it should be: it is rebuilt.
var errAbortedBad = errors.New("index of aborted transactions does not fit its segment")

// abortedSum is how many entries an index of aborted transactions has, and the CRC-32C of all of them. Unlike the other
// indexes it is no cache that betrays itself: without an entry readers are shown records that were aborted. So what
// must be in the file is written elsewhere, in the manifest for sealed segments and in the producer snapshots for the
// active one, and compared before the file is believed.
type abortedSum struct {
	count    int
	checksum uint32
}

func (s *abortedSum) add(e abortedEntry) {
	var buf [abortedEntryBytes]byte
	*s = abortedSum{count: s.count + 1, checksum: crc32.Update(s.checksum, castagnoli, e.append(buf[:0]))}
}

func sumAborted(entries []abortedEntry) (s abortedSum) {
	for _, e := range entries {
		s.add(e)
	}
	return s
}

// abortedIndex is the index of aborted transactions of one segment. A segment has one from its first abort marker on.
// It is changed by the writer, under Log.w and Log.mu; readers copy it under Log.mu. Entries of the tail are never
// changed in place.
type abortedIndex struct {
	file fileRef
	sum  abortedSum
	// flushed entries are in the file: flushed ≤ sum.count.
	flushed int
	// tail are the entries from sum.count-len(tail) on; it holds at least those from flushed on.
	tail []abortedEntry
	// checked says that the file was compared with the sum, or was written by this process.
	checked bool
}

// newAborted makes the index of a segment from all its entries, the first flushed of which are in the file; nil without
// any.
func (s *segment) newAborted(dir string, entries []abortedEntry, flushed int) *abortedIndex {
	if len(entries) == 0 {
		return nil
	}
	return &abortedIndex{file: s.abortedRef(dir), sum: sumAborted(entries), flushed: flushed, tail: entries, checked: true}
}

func (s *segment) abortedRef(dir string) fileRef {
	return fileRef{path: vfs.Join(dir, offsetFileName(s.base, txnIndexSuffix))}
}

// addAborted notes an abort marker that was appended to the segment. Caller is the writer and holds mu.
func (l *Log) addAborted(seg *segment, e abortedEntry) {
	x := seg.aborted
	if x == nil {
		x = &abortedIndex{file: seg.abortedRef(l.path), checked: true}
		seg.aborted = x
	}
	if len(x.tail) >= indexTailEntries && x.sum.count-x.flushed <= indexTailEntries/2 {
		kept := make([]abortedEntry, indexTailEntries/2, indexTailEntries)
		copy(kept, x.tail[len(x.tail)-indexTailEntries/2:])
		x.tail = kept
	}
	x.tail = append(x.tail, e)
	x.sum.add(e)
}

// seal drops the tail once all of it is in the file: the segment takes no more appends.
func (x *abortedIndex) seal() {
	if x != nil && x.flushed == x.sum.count {
		x.tail = nil
	}
}

// unflushed returns the number of entries that are only in memory.
func (x *abortedIndex) unflushed() int {
	if x == nil {
		return 0
	}
	return x.sum.count - x.flushed
}

// flushAborted writes the entries that are only in memory. A full disk is no error: they stay there. Caller is the
// writer.
func (l *Log) flushAborted(seg *segment) error {
	x := seg.aborted
	n := x.unflushed()
	if n == 0 {
		return nil
	}
	p := l.flushBuffer[:0]
	for _, e := range x.tail[len(x.tail)-n:] {
		p = e.append(p)
	}
	l.flushBuffer = p[:0]
	err := l.writeIndex(&x.file, p, int64(x.flushed)*abortedEntryBytes)
	switch {
	case errors.Is(err, vfs.ErrNoSpace):
		l.dir.sawFull()
		return nil
	case err != nil:
		return l.dir.fail(fmt.Errorf("write index of aborted transactions of segment %d of %s: %w", seg.base, l, err))
	}
	l.mu.Lock()
	x.flushed = x.sum.count
	if seg != l.active() {
		x.seal()
	}
	l.mu.Unlock()
	return nil
}

// sumOf returns the sum of a segment's index; a segment without one has the zero sum.
func (x *abortedIndex) sumOf() abortedSum {
	if x == nil {
		return abortedSum{}
	}
	return x.sum
}

// abortedView is what a reader copies of an index under Log.mu.
type abortedView struct {
	seg     *segment
	file    *fileRef
	sum     abortedSum
	tail    []abortedEntry
	checked bool
}

func (s *segment) abortedView() abortedView {
	x := s.aborted
	return abortedView{seg: s, file: &x.file, sum: x.sum, tail: x.tail, checked: x.checked}
}

// inFile is the number of entries that are only in the file.
func (v *abortedView) inFile() int { return v.sum.count - len(v.tail) }

// check compares the entries in the file with the sum.
func (v *abortedView) check(f io.ReaderAt) error {
	got, last := abortedSum{}, int64(-1)
	err := readAborted(f, 0, v.inFile(), func(e abortedEntry) error {
		if e.last <= last {
			return fmt.Errorf("%w: marker %d behind %d", errAbortedBad, e.last, last)
		}
		last = e.last
		got.add(e)
		return nil
	})
	if err != nil {
		return err
	}
	for _, e := range v.tail {
		got.add(e)
	}
	if got != v.sum {
		return fmt.Errorf("%w: checksum %08x, computed %08x", errAbortedBad, v.sum.checksum, got.checksum)
	}
	return nil
}

// readAborted calls visit for the entries [from, to) of a file. A file that ends before is bad.
func readAborted(f io.ReaderAt, from, to int, visit func(abortedEntry) error) error {
	buf := indexPages.Get().(*[indexPageEntries * timeEntryBytes]byte)
	defer indexPages.Put(buf)
	for from < to {
		p := buf[:min(len(buf)/abortedEntryBytes, to-from)*abortedEntryBytes]
		if err := readFull(f, p, int64(from)*abortedEntryBytes); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return fmt.Errorf("%w: it has fewer than %d entries", errAbortedBad, to)
			}
			return err
		}
		for ; len(p) > 0; p = p[abortedEntryBytes:] {
			e, err := decodeAborted(p)
			if err != nil {
				return err
			}
			if err := visit(e); err != nil {
				return err
			}
			from++
		}
	}
	return nil
}

// errFound ends a walk over entries.
var errFound = errors.New("found")

// search appends the entries that concern a reader of [from, to) to found. complete says that none that follows does.
func (v *abortedView) search(f io.ReaderAt, from, to int64, found []AbortedTransaction) (_ []AbortedTransaction, complete bool, err error) {
	look := func(e abortedEntry) error {
		if e.last >= from && e.first < to {
			found = append(found, AbortedTransaction{ProducerID: e.producerID, FirstOffset: e.first})
		}
		if e.lastStable >= to {
			return errFound
		}
		return nil
	}
	inFile := v.inFile()
	if f != nil {
		// The first entry whose marker is at or behind from.
		lo, hi := 0, inFile
		for lo < hi {
			mid := int(uint(lo+hi) >> 1)
			var e abortedEntry
			if err := readAborted(f, mid, mid+1, func(found abortedEntry) error { e = found; return nil }); err != nil {
				return found, false, err
			}
			if e.last < from {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if err := readAborted(f, lo, inFile, look); err != nil {
			if errors.Is(err, errFound) {
				return found, true, nil
			}
			return found, false, err
		}
	}
	i, _ := slices.BinarySearchFunc(v.tail, from, func(e abortedEntry, from int64) int { return compareInt64(e.last, from) })
	for _, e := range v.tail[i:] {
		if look(e) != nil {
			return found, true, nil
		}
	}
	return found, false, nil
}
