package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// segment is one file of batches with its indexes. All but the last of a log are sealed: they take no more appends.
type segment struct {
	// base is the first offset the segment may hold; it names the files.
	base int64
	// log, offsets and times are the three files.
	log, offsets, times fileRef

	// The following are guarded by Log.mu; only the writer changes them.

	// size is the number of bytes readers may see; always the end of a batch.
	size int64
	// next is the offset behind the last batch; base while the segment is empty.
	next int64
	// maxTimestamp is the largest record timestamp (-1: none) and maxTimestampOffset the last offset of its batch.
	maxTimestamp, maxTimestampOffset int64
	// appendedMillis is the wall clock at the last append (L15).
	appendedMillis int64
	// written counts the appends, synced is the value of written that the last sync covered: the segment is dirty
	// while they differ. A flag would be cleared by a sync although bytes came in meanwhile (W5).
	written, synced uint64
	// offsetIndex and timeIndex lead to batches.
	offsetIndex, timeIndex index
	// aborted are the aborted transactions whose markers are in this segment; nil: none.
	aborted *abortedIndex

	// The following belong to the writer (Log.w).

	// pinned is the open log file while the segment is active or dirty, so that a sync error can not be lost between
	// a close and a later open.
	pinned *handle
	// unindexedBytes were appended since the last index entry.
	unindexedBytes int64
	// firstAppend is when the first batch came, on the clock of Dir.Tick; it rolls the segment by age.
	firstAppend int64
	// ageLimit is the age at which the segment is rolled, jitter included; 0 until the first append.
	ageLimit int64
	// indexesSynced says that the index files on disk hold all entries of a sealed segment, synced.
	indexesSynced bool
}

func newSegment(dir string, base int64) *segment {
	return &segment{
		base:               base,
		next:               base,
		log:                fileRef{path: vfs.Join(dir, offsetFileName(base, logSuffix))},
		offsets:            fileRef{path: vfs.Join(dir, offsetFileName(base, indexSuffix))},
		times:              fileRef{path: vfs.Join(dir, offsetFileName(base, timeIndexSuffix))},
		maxTimestamp:       -1,
		maxTimestampOffset: -1,
		offsetIndex:        index{kind: offsetIndexKind},
		timeIndex:          index{kind: timeIndexKind},
	}
}

// indexesFlushed says that the index files hold all entries.
func (s *segment) indexesFlushed() bool {
	return s.offsetIndex.flushed == s.offsetIndex.count && s.timeIndex.flushed == s.timeIndex.count && s.aborted.unflushed() == 0
}

// refs returns the files of the segment, that of the batches first. Caller is the writer.
func (s *segment) refs() []*fileRef {
	refs := []*fileRef{&s.log, &s.offsets, &s.times}
	if s.aborted != nil {
		refs = append(refs, &s.aborted.file)
	}
	return refs
}

// view is what a reader copies of a segment under Log.mu.
type view struct {
	seg        *segment
	size, next int64
	offsets    index
	maxTS      int64
}

func (s *segment) view() view {
	return view{seg: s, size: s.size, next: s.next, offsets: s.offsetIndex, maxTS: s.maxTimestamp}
}

// indexBatch updates indexes and maxima for a batch of n bytes that stands at position. Caller is the writer and holds
// Log.mu.
func (s *segment) indexBatch(h *record.Header, position, interval int64) {
	last, n := h.LastOffset(), int64(h.Size())
	if h.MaxTimestamp > s.maxTimestamp {
		s.maxTimestamp, s.maxTimestampOffset = h.MaxTimestamp, last
	}
	if s.unindexedBytes > interval {
		s.offsetIndex.add(indexEntry{key: last - s.base, value: uint32(position)})
		s.indexTime()
		s.unindexedBytes = 0
	}
	s.unindexedBytes += n
	s.size = position + n
	s.next = last + 1
}

// indexTime adds a time index entry if the largest timestamp has risen since the last. lastTime is remembered through
// the tail, or, right after opening, through the entry loaded by recovery.
func (s *segment) indexTime() {
	if s.maxTimestamp < 0 {
		return
	}
	if e, ok := s.timeIndex.last(); ok && s.maxTimestamp <= e.key {
		return
	}
	s.timeIndex.add(indexEntry{key: s.maxTimestamp, value: uint32(s.maxTimestampOffset - s.base)})
}

// sealedEntry is the segment's line in the manifest.
func (s *segment) sealedEntry() sealedSegment {
	return sealedSegment{
		base: s.base, next: s.next, sizeBytes: s.size,
		maxTimestamp: s.maxTimestamp, maxTimestampOffset: s.maxTimestampOffset, appendedMillis: s.appendedMillis,
		aborted: s.aborted.sumOf(),
	}
}

const scanChunkBytes = 256 << 10

// headerScanBytes is what a header scan reads at once: an index interval and a header fit.
const headerScanBytes = 8 << 10

var headerBuffers = sync.Pool{New: func() any { return new([headerScanBytes]byte) }}

// headerScan walks batch headers in a file without reading the records of large batches.
type headerScan struct {
	file io.ReaderAt
	// pos is the position of the next header, size where the readable bytes end.
	pos, size int64
	// buf holds file bytes [bufPos, bufPos+bufLen).
	buf    *[headerScanBytes]byte
	bufPos int64
	bufLen int
	// header is the last one read, at position at.
	header record.Header
	at     int64
}

// start readies the scan; stop must follow.
func (s *headerScan) start(file io.ReaderAt, pos, size int64) {
	*s = headerScan{file: file, pos: pos, size: size, buf: headerBuffers.Get().(*[headerScanBytes]byte)}
}

func (s *headerScan) stop() {
	if s.buf != nil {
		headerBuffers.Put(s.buf)
		s.buf = nil
	}
}

// next reads the header at pos and moves pos behind its batch; false at the end of the readable bytes. Errors match
// ErrCorrupt if the bytes are not a batch.
func (s *headerScan) next() (bool, error) {
	if s.pos >= s.size {
		return false, nil
	}
	rel := s.pos - s.bufPos
	if rel < 0 || rel+record.HeaderBytes > int64(s.bufLen) {
		n := min(int64(len(s.buf)), s.size-s.pos)
		if n < record.HeaderBytes {
			return false, fmt.Errorf("%w: %d bytes of a batch header at position %d", ErrCorrupt, n, s.pos)
		}
		if err := readFull(s.file, s.buf[:n], s.pos); err != nil {
			return false, fmt.Errorf("read batch header at position %d: %w", s.pos, err)
		}
		s.bufPos, s.bufLen, rel = s.pos, int(n), 0
	}
	h, err := record.ParseHeader(s.buf[rel : rel+record.HeaderBytes])
	if err != nil {
		return false, fmt.Errorf("%w: batch header at position %d: %w", ErrCorrupt, s.pos, err)
	}
	if err := h.Check(); err != nil {
		return false, fmt.Errorf("%w: batch header at position %d: %w", ErrCorrupt, s.pos, err)
	}
	if s.pos+int64(h.Size()) > s.size {
		return false, fmt.Errorf("%w: batch of %d bytes at position %d of %d", ErrCorrupt, h.Size(), s.pos, s.size)
	}
	s.header, s.at = h, s.pos
	s.pos += int64(h.Size())
	return true, nil
}

// marker returns the transaction marker in the control batch whose header was read last, nil if it holds none.
func (s *headerScan) marker() (*record.Marker, error) {
	n := int64(s.header.Size())
	if n > maxMarkerBytes {
		return nil, nil // no marker is as large
	}
	b := make(record.Batch, n)
	if rel := s.at - s.bufPos; rel >= 0 && rel+n <= int64(s.bufLen) {
		copy(b, s.buf[rel:])
	} else if err := readFull(s.file, b, s.at); err != nil {
		return nil, fmt.Errorf("read control batch at position %d: %w", s.at, err)
	}
	if err := b.Check(); err != nil {
		return nil, fmt.Errorf("%w: control batch at position %d: %w", ErrCorrupt, s.at, err)
	}
	return controlMarker(b), nil
}

// maxMarkerBytes is more than a control batch with a transaction marker has: 78 bytes, and what later versions of it may
// add.
const maxMarkerBytes = 4 << 10

// within checks that the offsets of the last header lie in [from, next).
func (s *headerScan) within(from, next int64) error {
	if h := &s.header; h.BaseOffset < from || h.NextOffset() > next {
		return fmt.Errorf("%w: batch at position %d has the offsets %d to %d, expected within %d to %d", ErrCorrupt, s.at, h.BaseOffset, h.LastOffset(), from, next)
	}
	return nil
}

// batchScan walks whole batches in a file and checks them: the one decoder of recovery (L22).
type batchScan struct {
	file      io.ReaderAt
	pos, size int64
	// buf[r:w] holds the file from pos on.
	buf  []byte
	r, w int
	// read counts the bytes read.
	read int64
	// lenient lets batches pass whose checksum or header is bad, if their length can be believed: for tools that show
	// them.
	lenient bool
}

// next returns the batch at pos, checked; nil at the end. The bytes are valid until the next call; skip moves on.
// errTorn says that no batch stands here; any other error is of the file.
func (s *batchScan) next() (record.Batch, error) {
	if s.pos >= s.size {
		return nil, nil
	}
	for {
		b, _, err := record.Next(s.buf[s.r:s.w])
		if err == nil {
			if err := b.Check(); err != nil && !s.lenient {
				return nil, fmt.Errorf("%w at position %d: %w", errTorn, s.pos, err)
			}
			return b, nil
		}
		if !errors.Is(err, record.ErrShort) {
			return nil, fmt.Errorf("%w at position %d: %w", errTorn, s.pos, err)
		}
		have, left := s.w-s.r, s.size-s.pos
		if int64(have) >= left {
			return nil, fmt.Errorf("%w at position %d: %w", errTorn, s.pos, err)
		}
		if err := s.refill(have, left); err != nil {
			return nil, err
		}
	}
}

// refill reads more of the file into the window. A batch larger than the window makes it double: that follows the
// bytes the file has, not the length that a damaged header claims.
func (s *batchScan) refill(have int, left int64) error {
	want := max(scanChunkBytes, min(2*have, 1<<30))
	want = int(min(int64(want), left))
	if len(s.buf) < want {
		grown := make([]byte, want)
		copy(grown, s.buf[s.r:s.w])
		s.buf = grown
	} else {
		copy(s.buf, s.buf[s.r:s.w])
	}
	s.r, s.w = 0, have
	if err := readFull(s.file, s.buf[have:want], s.pos+int64(have)); err != nil {
		return fmt.Errorf("read %d bytes at position %d: %w", want-have, s.pos+int64(have), err)
	}
	s.read += int64(want - have)
	s.w = want
	return nil
}

// skip moves behind the batch that next returned.
func (s *batchScan) skip(b record.Batch) {
	s.pos += int64(len(b))
	s.r += len(b)
}

// errTorn says that the bytes at a position are not a checked batch: the end of the log, if above the recovery point.
var errTorn = errors.New("no whole record batch")

// errGone marks errors that mean the same as an absent file.
var errGone = fs.ErrNotExist

// isGone says that a file was removed since its name was read.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrClosed) }
