package log

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// walkTo returns the position of the first batch that ends behind offset, the end of the file if there is none, and the
// offset behind the batch before it (the base if there is none). It starts from the index if that is sound. A bad
// header ends the walk: its position is returned, and reached tells that it is too early.
func (r *recovery) walkTo(seg *segment, offset int64) (position, reached int64, err error) {
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return 0, 0, err
	}
	defer r.d.files.release(h)
	from, err := r.indexHit(seg, offset-1-seg.base)
	if err != nil {
		return 0, 0, err
	}
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, seg.size)
	defer func() { scan.stop() }()
	reached = seg.base
	for first := true; ; first = false {
		position = scan.pos
		if reached == offset && !(first && from.key >= 0) {
			// What follows was not durable: a torn block may look like a header with a lower offset.
			return position, reached, nil
		}
		ok, err := scan.next()
		if first && from.key >= 0 && (err != nil || !ok || scan.header.LastOffset()-seg.base != from.key) {
			// The index does not fit: forget it and walk from the beginning.
			seg.offsetIndex, seg.timeIndex = index{kind: offsetIndexKind}, index{kind: timeIndexKind}
			from = indexHit{key: -1}
			scan.stop()
			scan.start(r.d.counting(h.file), 0, seg.size)
			continue
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return 0, 0, err
		}
		// A base offset is outside of its batch's checksum: a torn one can point anywhere.
		if err != nil || !ok || scan.header.LastOffset() >= offset || scan.header.BaseOffset < reached {
			return position, reached, nil
		}
		reached = scan.header.NextOffset()
	}
}

// indexHit returns the last sound entry of the offset index with a relative offset ≤ limit, the beginning of the
// segment if there is none, and forgets the entries behind it. Of the file only what lies below the recovery point was
// synced (W19); behind that a crash may have left anything, also bytes that look like an entry. So an entry counts if
// the batch that it leads to says the same, and if it rises from the one before; if not, the search goes on ever
// further in front.
func (r *recovery) indexHit(seg *segment, limit int64) (indexHit, error) {
	x := &seg.offsetIndex
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return indexHit{}, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	n, e, _, err := r.soundEntry(&seg.offsets, x, limit, byKey, func(e indexEntry) (bool, error) {
		if int64(e.value)+record.HeaderBytes > seg.size {
			return false, nil
		}
		var scan headerScan
		scan.start(f, int64(e.value), seg.size)
		defer scan.stop()
		ok, err := scan.next()
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return false, err
		}
		return err == nil && ok && scan.header.LastOffset()-seg.base == e.key, nil
	})
	if err != nil {
		return indexHit{}, err
	}
	*x = x.truncated(n)
	if n == 0 {
		return indexHit{key: -1}, nil
	}
	x.tail = []indexEntry{e}
	return indexHit{position: int64(e.value), key: e.key}, nil
}

// soundEntry returns the last entry that passes the check among the first ones whose column is ≤ limit, and the number
// of entries up to it.
//
// first says that the first entry looked at was sound: then no entry behind it can be missing either.
func (r *recovery) soundEntry(ref *fileRef, x *index, limit int64, column func(indexEntry) int64, check func(indexEntry) (bool, error)) (n int, e indexEntry, first bool, err error) {
	none := indexEntry{}
	if x.count == 0 || limit < 0 {
		return 0, none, false, nil
	}
	h, err := r.d.files.acquire(ref)
	if isGone(err) {
		return 0, none, false, nil
	}
	if err != nil {
		return 0, none, false, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	count := x.count
	for step := 1; count > 0; step *= 2 {
		n, e, err := x.kind.searchFile(f, count, limit, column)
		switch {
		case errors.Is(err, errIndexBad):
			count -= step
			continue
		case errors.Is(err, io.ErrUnexpectedEOF):
			count -= step // shorter than the directory said
			continue
		case err != nil:
			return 0, none, false, err
		case n == 0:
			return 0, none, false, nil
		}
		sound := true
		if n > 1 {
			var p [timeEntryBytes]byte
			if err := readFull(f, p[:x.kind.entryBytes], int64(n-2)*int64(x.kind.entryBytes)); err != nil {
				return 0, none, false, err
			}
			before := x.kind.get(p[:])
			sound = before.key < e.key && before.value < e.value
		}
		if sound {
			if sound, err = check(e); err != nil {
				return 0, none, false, err
			}
		}
		if sound {
			return n, e, step == 1, nil
		}
		count = n - step
	}
	return 0, none, false, nil
}

// loadLastTime takes the maxima of a segment from the last sound time index entry with a relative offset ≤ limit,
// forgets the entries behind it, and puts it into the tail, where appends look for it. The offset index must be sound.
// If entries may be missing, complete is false: the maxima hold only up to the batch that the entry tells of.
func (r *recovery) loadLastTime(seg *segment, limit int64) (complete bool, err error) {
	x := &seg.timeIndex
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return false, err
	}
	defer r.d.files.release(h)
	f := r.d.counting(h.file)
	n, e, complete, err := r.soundEntry(&seg.times, x, limit, byValue, func(e indexEntry) (bool, error) {
		v := view{seg: seg, size: seg.size, offsets: seg.offsetIndex}
		hit, err := r.log.indexPosition(&v, int64(e.value)-1, byKey)
		if err == nil {
			var hdr record.Header
			if hdr, _, err = locateFrom(f, hit, seg.size, seg.base, math.MaxInt64, seg.base+int64(e.value)); err == nil {
				return hdr.LastOffset()-seg.base == int64(e.value) && hdr.MaxTimestamp == e.key, nil
			}
		}
		if errors.Is(err, errIndexBad) || errors.Is(err, ErrCorrupt) {
			err = nil
		}
		return false, err
	})
	if err != nil {
		return false, err
	}
	*x = x.truncated(n)
	if n > 0 {
		x.tail = []indexEntry{e}
		seg.maxTimestamp, seg.maxTimestampOffset = e.key, seg.base+int64(e.value)
	}
	return complete, nil
}

// measure finds the end and the maxima of a sealed segment that is not in the manifest, from its indexes and the
// headers behind the last entry.
func (r *recovery) measure(seg *segment) error {
	from, err := r.indexHit(seg, maxRelativeOffset)
	if err != nil {
		return err
	}
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer r.d.files.release(h)
	if from.key >= 0 {
		complete, err := r.loadLastTime(seg, maxRelativeOffset)
		if err != nil {
			return err
		}
		if !complete {
			r.forgetIndexes(seg)
			from = indexHit{key: -1}
		}
	}
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, seg.size)
	defer func() { scan.stop() }()
	for first := true; ; first = false {
		ok, err := scan.next()
		if first && from.key >= 0 && (err != nil || !ok || scan.header.LastOffset()-seg.base != from.key) {
			r.forgetIndexes(seg)
			from = indexHit{key: -1}
			scan.stop()
			scan.start(r.d.counting(h.file), 0, seg.size)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: segment %d below the recovery point: %w", r.name, seg.base, err)
		}
		if !ok {
			seg.indexesSynced = seg.offsetIndex.count > 0
			return nil
		}
		seg.next = scan.header.NextOffset()
		if ts := scan.header.MaxTimestamp; ts > seg.maxTimestamp {
			seg.maxTimestamp, seg.maxTimestampOffset = ts, scan.header.LastOffset()
		}
	}
}

// cutIndexes drops the index entries of a segment from offset and position on: the scan makes them anew (W19).
func (r *recovery) cutIndexes(seg *segment, expected, position int64) error {
	rel := expected - seg.base
	if position == 0 {
		r.forgetIndexes(seg)
		return r.truncateIndexes(seg)
	}
	from, err := r.indexHit(seg, rel-1)
	if err != nil {
		return err
	}
	if from.key >= 0 {
		complete, err := r.loadLastTime(seg, rel-1)
		if err != nil {
			return err
		}
		if !complete {
			// Go back to the batch of the last sound time entry; the walk below makes the entries behind it anew.
			e, ok := seg.timeIndex.last()
			if from = (indexHit{key: -1}); ok {
				if from, err = r.indexHit(seg, int64(e.value)); err != nil {
					return err
				}
			}
		}
	}
	if from.key < 0 {
		// No entry is left: walk the headers from the beginning, to make the indexes complete.
		r.forgetIndexes(seg)
	}
	if err := r.truncateIndexes(seg); err != nil {
		return err
	}
	h, err := r.d.files.acquire(&seg.log)
	if err != nil {
		return err
	}
	defer r.d.files.release(h)
	var scan headerScan
	scan.start(r.d.counting(h.file), from.position, position)
	defer scan.stop()
	seg.unindexedBytes = 0
	interval := DefaultSettings().IndexIntervalBytes
	for first := from.key >= 0; ; first = false {
		ok, err := scan.next()
		if err != nil {
			return fmt.Errorf("%s: segment %d below the recovery point: %w", r.name, seg.base, err)
		}
		if !ok {
			return nil
		}
		if first { // it has its entry
			seg.unindexedBytes = int64(scan.header.Size())
			if scan.header.MaxTimestamp > seg.maxTimestamp {
				seg.maxTimestamp, seg.maxTimestampOffset = scan.header.MaxTimestamp, scan.header.LastOffset()
			}
			continue
		}
		seg.indexBatch(&scan.header, scan.at, interval)
	}
}

// forgetIndexes empties both indexes of a segment, and the maxima that came from them.
func (r *recovery) forgetIndexes(seg *segment) {
	seg.offsetIndex, seg.timeIndex = index{kind: offsetIndexKind}, index{kind: timeIndexKind}
	seg.maxTimestamp, seg.maxTimestampOffset = -1, -1
}

// truncateIndexes makes the index files as long as the indexes say.
func (r *recovery) truncateIndexes(seg *segment) error {
	for _, f := range [...]struct {
		ref *fileRef
		x   *index
	}{{&seg.offsets, &seg.offsetIndex}, {&seg.times, &seg.timeIndex}} {
		name := offsetFileName(seg.base, indexSuffix)
		if f.x.kind.entryBytes == timeEntryBytes {
			name = offsetFileName(seg.base, timeIndexSuffix)
		}
		want := int64(f.x.flushed) * int64(f.x.kind.entryBytes)
		if have, ok := r.files[name]; !ok || have == want {
			continue
		}
		if err := r.log.truncateFile(f.ref, want); err != nil {
			return err
		}
		r.files[name] = want
		r.touched = true
	}
	return r.truncateAborted(seg)
}

// truncateAborted makes the file of aborted transactions as long as the index says: the scan adds what is behind it.
func (r *recovery) truncateAborted(seg *segment) error {
	name := offsetFileName(seg.base, txnIndexSuffix)
	have, ok := r.files[name]
	switch {
	case !ok:
		return nil
	case seg.aborted == nil:
		r.touched = true
		delete(r.files, name)
		if err := r.d.cfg.FS.Remove(vfs.Join(r.path, name)); err != nil && !absent(err) {
			return err
		}
		return nil
	case have == int64(seg.aborted.flushed)*abortedEntryBytes:
		return nil
	}
	r.touched = true
	r.files[name] = int64(seg.aborted.flushed) * abortedEntryBytes
	return r.log.truncateFile(&seg.aborted.file, r.files[name])
}
