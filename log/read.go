package log

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// Slice is a run of whole batches in a segment. It pins the segment's file: the bytes stay readable after retention or
// deletion has unlinked it (L17), until Release. The zero Slice is empty and needs no Release.
type Slice struct {
	files      *descriptors
	handle     *handle
	position   int64
	length     int
	base, next int64
}

// Len returns the number of bytes.
func (s Slice) Len() int { return s.length }

// BaseOffset returns the base offset of the first batch; it may lie below the offset that was asked for.
func (s Slice) BaseOffset() int64 { return s.base }

// NextOffset returns the offset behind the last batch, exclusive.
func (s Slice) NextOffset() int64 { return s.next }

// ReadAt fills p from the bytes of the slice at off; io.EOF if they end first. It may be called concurrently.
func (s Slice) ReadAt(p []byte, off int) (int, error) {
	if off < 0 || off > s.length {
		return 0, fmt.Errorf("read slice of %d bytes at %d: %w", s.length, off, io.ErrUnexpectedEOF)
	}
	short := false
	if n := s.length - off; len(p) > n {
		p, short = p[:n], true
	}
	if len(p) > 0 {
		if err := readFull(s.handle.file, p, s.position+int64(off)); err != nil {
			return 0, fmt.Errorf("read batches from offset %d: %w", s.base, err)
		}
	}
	if short {
		return len(p), io.EOF
	}
	return len(p), nil
}

// File returns the segment's file and the position of the slice in it, for sendfile. Valid until Release.
func (s Slice) File() (vfs.File, int64) {
	if s.handle == nil {
		return nil, 0
	}
	return s.handle.file, s.position
}

// Release ends the use of the slice and all its copies; it must be called exactly once for a slice that is not empty.
func (s Slice) Release() {
	if s.handle != nil {
		s.files.release(s.handle)
	}
}

// Read returns whole batches, from the one that holds the offset from, all ending at or below limit (exclusive) and
// together at most maxBytes long; with minOne the first batch comes even if it is longer (R22). The slice is empty if
// there is nothing to return, in particular if from equals the end. A slice does not cross a segment.
//
// The cost does not depend on the size of the log: a binary search of segments in memory, one of the segment's index,
// and a walk over the headers of at most one index interval at either end.
//
// Errors: ErrOffsetOutOfRange if from lies below the start or above the end, ErrCorrupt, ErrClosed.
func (l *Log) Read(from, limit int64, maxBytes int, minOne bool) (Slice, error) {
	for {
		cuts := l.cuts.Load()
		s, err := l.read(from, limit, maxBytes, minOne)
		switch again, err := l.lookAgain(cuts, from, err); {
		case again:
			s.Release()
		case err != nil:
			return Slice{}, err
		default:
			return s, nil
		}
	}
}

// errSuspect marks bytes that should not be there, as a reader without a lock sees them.
var errSuspect = errors.New("unexpected bytes")

// lookAgain judges the outcome of a reader that looked at the table after it loaded cuts, and needs what stands at
// offset. While the log was truncated, or the segment was unlinked because the start moved, the reader met neither the
// old log nor the new one: it must look again. Otherwise unexpected bytes are corruption.
func (l *Log) lookAgain(cuts uint64, offset int64, err error) (again bool, _ error) {
	if errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrClosed) {
		return false, err
	}
	if now := l.cuts.Load(); now != cuts || now%2 == 1 {
		l.syncing.Lock() // the truncation holds it
		defer l.syncing.Unlock()
		if uerr := l.usable(); uerr != nil {
			return false, uerr
		}
		return true, nil
	}
	switch {
	case err == nil:
		return false, nil
	case isGone(err):
		// Unlinked between the look at the table and the opening of the file: the start has moved, or the log is
		// closed. Both are seen by the next try.
		if uerr := l.usable(); uerr != nil {
			return false, uerr
		}
		if l.missing(offset) {
			return false, l.markCorrupt(err)
		}
		return true, nil
	case errors.Is(err, errSuspect):
		return false, l.markCorrupt(err)
	}
	return false, err
}

// missing says whether the file of the segment that should hold offset is not there although the log needs it.
func (l *Log) missing(offset int64) bool {
	l.mu.Lock()
	seg := l.mu.segments[segmentAt(l.mu.segments, offset)]
	needed := l.mu.start <= offset && offset < l.mu.end && l.mu.closed == nil
	l.mu.Unlock()
	if !needed {
		return false
	}
	there, err := vfs.Exists(l.dir.cfg.FS, seg.log.path)
	if err != nil || there {
		return false
	}
	// Looked for after it was needed; is it still?
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.start <= offset && l.mu.closed == nil && l.mu.segments[segmentAt(l.mu.segments, offset)] == seg
}

func (l *Log) read(from, limit int64, maxBytes int, minOne bool) (Slice, error) {
	l.mu.Lock()
	if l.mu.closed != nil {
		l.mu.Unlock()
		return Slice{}, fmt.Errorf("read %s: %w", l, l.mu.closed)
	}
	start, end, segments, epochList := l.mu.start, l.mu.end, l.mu.segments, l.mu.epochs.list
	if from < start || from > end {
		l.mu.Unlock()
		return Slice{}, outOfRange(l, from, start, end)
	}
	limit = min(limit, end)
	if from >= limit || maxBytes <= 0 && !minOne {
		l.mu.Unlock()
		return Slice{}, nil
	}
	i := segmentAt(segments, from)
	var v view
	for ; ; i++ {
		// A compacted segment may end below its successor's base.
		if v = segments[i].view(); v.next > from || i+1 == len(segments) {
			break
		}
	}
	var h *handle
	if v.seg.pinned != nil {
		h = v.seg.pinned
		l.dir.files.reuse(h)
	}
	l.mu.Unlock()
	if err := l.Corrupt(); err != nil {
		if h != nil {
			l.dir.files.release(h)
		}
		return Slice{}, err
	}
	if h == nil {
		var err error
		if h, err = l.dir.files.acquire(&v.seg.log); err != nil {
			return Slice{}, err
		}
	}
	s, err := l.readSegment(&v, h, epochList, from, limit, maxBytes, minOne)
	if err != nil || s.length == 0 {
		l.dir.files.release(h)
		return Slice{}, err
	}
	return s, nil
}

func outOfRange(l *Log, from, start, end int64) error {
	return fmt.Errorf("read %s at %d: %w: it holds %d to %d", l, from, ErrOffsetOutOfRange, start, end)
}

// readSegment finds the slice in one segment.
func (l *Log) readSegment(v *view, h *handle, epochList []epochStart, from, limit int64, maxBytes int, minOne bool) (Slice, error) {
	first, position, err := l.locate(v, h, from)
	if err != nil {
		return Slice{}, err
	}
	if err := fits(epochList, &first); err != nil {
		return Slice{}, fmt.Errorf("%w: read segment %d: %w", errSuspect, v.seg.base, err)
	}
	if first.BaseOffset >= limit || first.NextOffset() > limit {
		return Slice{}, nil
	}
	s := Slice{files: l.dir.files, handle: h, position: position, base: first.BaseOffset}
	ends := min(v.size, position+int64(max(maxBytes, 0)))
	firstEnds := position + int64(first.Size())
	if firstEnds >= ends || first.NextOffset() == limit {
		// The first batch is all that fits.
		if firstEnds > ends && !minOne {
			return Slice{}, nil
		}
		s.length, s.next = first.Size(), first.NextOffset()
		return s, nil
	}
	if ends == v.size && v.next <= limit {
		s.length, s.next = int(v.size-position), v.next
		return s, nil
	}
	last, lastEnds, err := l.locateEnd(v, h, position, ends, limit)
	if err != nil {
		return Slice{}, err
	}
	s.length, s.next = int(lastEnds-position), last
	return s, nil
}

// locate finds the first batch whose last offset is ≥ offset, and its position. An index that leads astray is rebuilt.
func (l *Log) locate(v *view, h *handle, offset int64) (record.Header, int64, error) {
	for attempt := 0; ; attempt++ {
		at, err := l.indexPosition(v, offset-v.seg.base, byKey)
		if err == nil {
			var hdr record.Header
			var position int64
			if hdr, position, err = locateFrom(h.file, at, v.size, v.seg.base, v.next, offset); err == nil {
				return hdr, position, nil
			}
		}
		if attempt > 0 || !errors.Is(err, errIndexBad) && !errors.Is(err, ErrCorrupt) {
			if errors.Is(err, ErrCorrupt) || errors.Is(err, errIndexBad) {
				err = fmt.Errorf("%w: find offset %d in segment %d: %w", errSuspect, offset, v.seg.base, err)
			}
			return record.Header{}, 0, err
		}
		if err := l.rebuildIndex(v); err != nil {
			return record.Header{}, 0, err
		}
	}
}

// indexHit is a batch that the index leads to; key is the relative last offset that must stand there, -1 unknown.
type indexHit struct {
	position int64
	key      int64
}

// indexPosition returns the last index entry whose column is ≤ limit, the beginning of the segment if there is none.
func (l *Log) indexPosition(v *view, limit int64, column func(indexEntry) int64) (indexHit, error) {
	var idx *handle
	defer func() {
		if idx != nil {
			l.dir.files.release(idx)
		}
	}()
	n, e, err := v.offsets.search(limit, column, func() (_ io.ReaderAt, err error) {
		if idx, err = l.dir.files.acquire(&v.seg.offsets); err != nil {
			return nil, err
		}
		return idx.file, nil
	})
	if err != nil {
		if isGone(err) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: %w", errIndexBad, err)
		}
		return indexHit{}, err
	}
	if n == 0 {
		return indexHit{key: -1}, nil
	}
	if e.value == 0 && n > 1 || int64(e.value) >= v.size {
		return indexHit{}, fmt.Errorf("%w: entry %d of the offset index of segment %d leads to %d of %d bytes", errIndexBad, n-1, v.seg.base, e.value, v.size)
	}
	return indexHit{position: int64(e.value), key: e.key}, nil
}

// locateFrom walks headers from a hit to the first batch whose last offset is ≥ offset.
// Offsets outside of [base, next), those of the segment, or that do not rise, are corruption: no checksum covers a base
// offset.
func locateFrom(f io.ReaderAt, from indexHit, size, base, next, offset int64) (record.Header, int64, error) {
	var scan headerScan
	scan.start(f, from.position, size)
	defer scan.stop()
	reached := base
	for first := true; ; first = false {
		ok, err := scan.next()
		if err == nil && ok {
			err = scan.within(reached, next)
			reached = scan.header.NextOffset()
		}
		if err != nil {
			return record.Header{}, 0, err
		}
		if !ok {
			return record.Header{}, 0, fmt.Errorf("%w: no batch at or behind offset %d", ErrCorrupt, offset)
		}
		if first && from.key >= 0 && scan.header.LastOffset()-base != from.key {
			return record.Header{}, 0, fmt.Errorf("%w: it leads to offset %d instead of %d", errIndexBad, scan.header.LastOffset(), base+from.key)
		}
		if scan.header.LastOffset() >= offset {
			return scan.header, scan.at, nil
		}
	}
}

// locateEnd finds the end of the last batch that lies wholly below position ends and below offset limit; the batch at
// position is known to. It returns the batch's next offset and end position.
func (l *Log) locateEnd(v *view, h *handle, position, ends, limit int64) (next, lastEnds int64, err error) {
	for attempt := 0; ; attempt++ {
		from := indexHit{position: position, key: -1}
		var hit indexHit
		// An entry at a position < ends, of a batch whose last offset is < limit, is at or before the batch sought, or
		// is the one that crosses ends; so one below ends-1 interval would do as well, but the walk settles it.
		if hit, err = l.indexPosition(v, ends-1, byValue); err == nil {
			from = later(from, hit)
			if hit, err = l.indexPosition(v, limit-1-v.seg.base, byKey); err == nil && hit.position < from.position {
				from = later(indexHit{position: position, key: -1}, hit)
			}
		}
		if err == nil {
			next, lastEnds, err = walkEnd(h.file, from, v, ends, limit)
			if err == nil && lastEnds == 0 {
				// The entry leads to the very batch that crosses the end: walk from the entry before it.
				next, lastEnds, err = l.walkBefore(v, h, from, position, ends, limit)
			}
			if err == nil {
				return next, lastEnds, nil
			}
		}
		if attempt > 0 || !errors.Is(err, errIndexBad) && !errors.Is(err, ErrCorrupt) {
			if errors.Is(err, ErrCorrupt) || errors.Is(err, errIndexBad) {
				err = fmt.Errorf("%w: find offset %d in segment %d: %w", errSuspect, limit, v.seg.base, err)
			}
			return 0, 0, err
		}
		if err := l.rebuildIndex(v); err != nil {
			return 0, 0, err
		}
	}
}

func later(a, b indexHit) indexHit {
	if b.position > a.position {
		return b
	}
	return a
}

// walkBefore walks from the last index entry before a batch that turned out too far.
func (l *Log) walkBefore(v *view, h *handle, far indexHit, position, ends, limit int64) (next, lastEnds int64, err error) {
	from := indexHit{position: position, key: -1}
	hit, err := l.indexPosition(v, far.position-1, byValue)
	if err != nil {
		return 0, 0, err
	}
	return walkEnd(h.file, later(from, hit), v, ends, limit)
}

// walkEnd walks headers from a hit while batches end at or below ends and limit; lastEnds is 0 if the first does not.
func walkEnd(f io.ReaderAt, from indexHit, v *view, ends, limit int64) (next, lastEnds int64, err error) {
	var scan headerScan
	scan.start(f, from.position, v.size)
	defer scan.stop()
	reached, base := v.seg.base, v.seg.base
	for first := true; ; first = false {
		ok, err := scan.next()
		if err == nil && ok {
			err = scan.within(reached, v.next)
			reached = scan.header.NextOffset()
		}
		if err != nil {
			return 0, 0, err
		}
		if !ok || scan.pos > ends || scan.header.NextOffset() > limit {
			return next, lastEnds, nil
		}
		if first && from.key >= 0 && scan.header.LastOffset()-base != from.key {
			return 0, 0, fmt.Errorf("%w: it leads to offset %d instead of %d", errIndexBad, scan.header.LastOffset(), base+from.key)
		}
		next, lastEnds = scan.header.NextOffset(), scan.pos
	}
}

// rebuildIndex makes both indexes of a segment anew from its batch headers (L6): they are caches. The view is
// refreshed. Caller holds no lock.
func (l *Log) rebuildIndex(v *view) error {
	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	seg, size := v.seg, v.seg.size
	present := segmentAt(l.mu.segments, seg.base)
	ok := present >= 0 && l.mu.segments[present] == seg
	l.mu.Unlock()
	if !ok {
		return fmt.Errorf("rebuild index of segment %d of %s: %w", seg.base, l, errSegmentGone)
	}
	h, err := l.dir.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	fresh := newSegment(l.path, seg.base)
	interval := l.settings.Load().IndexIntervalBytes
	var scan headerScan
	scan.start(h.file, 0, size)
	defer scan.stop()
	for {
		ok, err := scan.next()
		if err != nil {
			return l.markCorrupt(fmt.Errorf("rebuild index of segment %d: %w", seg.base, err))
		}
		if !ok {
			break
		}
		fresh.indexBatch(&scan.header, scan.at, interval)
	}
	if seg != l.active() {
		fresh.indexTime()
	}
	l.logger().Warn("index does not fit its segment and was rebuilt", "segment", seg.base, "entries", fresh.offsetIndex.count)
	l.dir.metrics.indexRebuilds.Inc()
	l.mu.Lock()
	seg.offsetIndex, seg.timeIndex = fresh.offsetIndex, fresh.timeIndex
	seg.unindexedBytes = fresh.unindexedBytes
	seg.indexesSynced = false
	v.offsets, v.size, v.next = seg.offsetIndex, seg.size, seg.next
	l.mu.Unlock()
	for _, ref := range [...]*fileRef{&seg.offsets, &seg.times} {
		if err := l.truncateFile(ref, 0); err != nil {
			return l.dir.fail(fmt.Errorf("cut index of segment %d of %s: %w", seg.base, l, err))
		}
	}
	return l.flushIndexes(seg)
}

// errSegmentGone says that a segment was removed while it was being read; the read is tried again.
var errSegmentGone = fmt.Errorf("segment was removed: %w", errGone)

// truncateFile cuts a file that may be absent.
func (l *Log) truncateFile(ref *fileRef, size int64) error {
	h, err := l.dir.files.acquire(ref)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer l.dir.files.release(h)
	return h.file.Truncate(size)
}

// ReadChecked is Read for bytes that somebody else found damaged, who received them from here: it checks the checksum
// and the leader epoch of every batch it returns. Damage takes the partition offline (L9).
func (l *Log) ReadChecked(from, limit int64, maxBytes int, minOne bool) (Slice, error) {
	cuts := l.cuts.Load()
	s, err := l.Read(from, limit, maxBytes, minOne)
	if err != nil || s.Len() == 0 {
		return s, err
	}
	b := make([]byte, s.Len())
	if _, err = s.ReadAt(b, 0); err == nil {
		err = checkBatches(b, s.BaseOffset(), l.epochStarts())
	}
	if err == nil {
		return s, nil
	}
	s.Release()
	if cuts%2 == 1 || l.cuts.Load() != cuts {
		return Slice{}, nil // truncated under us: what was read may be anything
	}
	return Slice{}, l.markCorrupt(err)
}

// epochStarts returns the leader-epoch cache, which nobody changes.
func (l *Log) epochStarts() []epochStart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.epochs.list
}

func checkBatches(b []byte, at int64, epochList []epochStart) error {
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err == nil {
			err = batch.Check()
		}
		if err == nil {
			h := batch.Header()
			err = fits(epochList, &h)
		}
		if err != nil {
			return fmt.Errorf("batch at %d: %w", at, err)
		}
		at, b = batch.NextOffset(), rest
	}
	return nil
}
