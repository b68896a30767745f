package log

import (
	"errors"
	"fmt"
	"io"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

const (
	// writePieceBytes bounds one write, and writes end where a multiple of it begins in the file: the page cache is then
	// filled by large folios, for 0.34 s of CPU a GiB instead of 0.48 with pieces of 256 KiB anywhere (ext4). Larger
	// ones gain nothing.
	writePieceBytes = 1 << 20
	// writePieceBuffers bounds the buffers of one vectored write; the system's limit is 1024.
	writePieceBuffers = 1024
)

// appendRun gathers the sets of one Append that go into one segment by one write. Its slices are reused: an append
// allocates nothing.
type appendRun struct {
	// from is the index of the first set of the run.
	from int
	// base and next are the offsets of the run, [base, next).
	base, next int64
	// bufs are the accepted sets in order, owners their owners (nil entries possible).
	bufs   [][]byte
	owners []Buffer
	// headers are those of all batches in bufs.
	headers []record.Header
	bytes   int64
	// undoMark is where the producers stood before the run.
	undoMark int
	// steps are what the batches of the run do to transactions, in order.
	steps []transactionStep
	// iov is scratch for cutting the bytes into pieces.
	iov [][]byte
}

func (r *appendRun) begin(from int, next int64, mark int) {
	r.release()
	r.from, r.base, r.next, r.undoMark, r.bytes = from, next, next, mark, 0
	r.headers, r.steps = r.headers[:0], r.steps[:0]
}

// release lets go of the callers' bytes: their frames go back to a pool, or to the garbage collector.
func (r *appendRun) release() {
	clear(r.bufs)
	clear(r.owners)
	r.bufs, r.owners = r.bufs[:0], r.owners[:0]
}

// Append appends sets as the leader of leaderEpoch. It patches their base offsets and leader epochs in place, checks
// the sequences of idempotent producers (P1-P4), and writes all accepted sets with one vectored write. out must have
// room for one outcome per set; errors of single sets are in it, an error that concerns all of them is returned as
// well.
//
// When Append returns, accepted sets can be read up to the end of the log, and become durable later: Notify tells.
// Errors of sets: ErrOutOfOrderSequence, ErrInvalidProducerEpoch, ErrInvalidTransactionState, ErrCoordinatorFenced,
// ErrInvalidBatch, ErrStaleEpoch, ErrNoSpace, those of MayBegin (all definite), ErrCorrupt, ErrClosed (definite),
// ErrPoisoned (indefinite).
func (l *Log) Append(leaderEpoch int32, sets []Set, out []Appended) error {
	l.w.Lock()
	appended, err := l.appendSets(leaderEpoch, sets, out)
	l.run.release()
	l.w.Unlock()
	if appended {
		l.dir.appended(l)
	}
	if err != nil {
		for i := range sets {
			if out[i].Err == nil && out[i].NextOffset == 0 {
				out[i].Err = err
			}
		}
	}
	return err
}

// appendSets is Append for the writer.
func (l *Log) appendSets(leaderEpoch int32, sets []Set, out []Appended) (appended bool, err error) {
	clear(out[:len(sets)])
	if err := l.usable(); err != nil {
		return false, err
	}
	l.mu.Lock()
	end, last := l.mu.end, l.mu.epochs.last()
	l.mu.Unlock()
	if leaderEpoch < last {
		return false, fmt.Errorf("%s: append at %d: %w: %d, last is %d", l, end, ErrStaleEpoch, leaderEpoch, last)
	}
	full := l.dir.full()
	run, now := &l.run, l.dir.clock.Load()
	l.producers.begin()
	run.begin(0, end, 0)
	for i := range sets {
		if err = l.stage(leaderEpoch, sets, i, out, full, now); err != nil {
			l.failRun(out[:i+1], err)
			return run.base > end, err
		}
	}
	if err = l.writeRun(now); err != nil {
		l.failRun(out[:len(sets)], err)
	}
	return run.next > end && (err == nil || run.base > end), err
}

// failRun answers the sets of a run that was not written. A duplicate of a batch that is in the log keeps its answer:
// its record is visible, so an error would be a lie (I17).
func (l *Log) failRun(out []Appended, err error) {
	for i := l.run.from; i < len(out); i++ {
		if out[i].Err != nil || out[i].Duplicate && out[i].NextOffset <= l.run.base {
			continue
		}
		out[i] = Appended{Err: err}
	}
}

// stage checks set i and adds it to the run, writing the run and rolling the segment first if it does not fit. It
// returns an error only if the log can take no more sets of this call.
func (l *Log) stage(leaderEpoch int32, sets []Set, i int, out []Appended, full bool, now int64) error {
	run := &l.run
	set := sets[i].Records
	first := len(run.headers)
	next := run.next
	for rest := set; ; {
		b, r, err := record.Next(rest)
		if err != nil {
			run.headers = run.headers[:first]
			out[i].Err = fmt.Errorf("%s: append at %d: %w: %w", l, next, ErrInvalidBatch, err)
			return nil
		}
		b.SetBaseOffset(next)
		b.SetLeaderEpoch(leaderEpoch)
		h := b.Header()
		if err := h.Check(); err != nil {
			run.headers = run.headers[:first]
			out[i].Err = fmt.Errorf("%s: append at %d: %w: %w", l, next, ErrInvalidBatch, err)
			return nil
		}
		run.headers = append(run.headers, h)
		next = h.NextOffset()
		if rest = r; len(rest) == 0 {
			break
		}
	}
	if reason := l.rollReason(int64(len(set)), next-1, len(run.headers)-first, now); reason != "" && run.next > l.active().base {
		// The headers of this set move to the new run.
		staged := len(run.headers) - first
		moved := run.headers[first:]
		run.headers = run.headers[:first]
		if err := l.writeRun(now); err != nil {
			return err
		}
		mark := l.producers.mark()
		base := run.next
		run.begin(i, base, mark)
		run.headers = append(run.headers, moved[:staged]...)
		first = 0
		if err := l.roll(base, reason); err != nil {
			return err
		}
	}
	if next-1-l.active().base > maxRelativeOffset {
		run.headers = run.headers[:first]
		out[i].Err = fmt.Errorf("%s: append at %d: %w: %d offsets in one set", l, run.next, ErrInvalidBatch, next-run.next)
		return nil
	}

	mark, steps, dups := l.producers.mark(), len(run.steps), 0
	var original producerBatch
	var refused error
	rest := set
	for k := first; k < len(run.headers) && refused == nil; k++ {
		h := &run.headers[k]
		b := record.Batch(rest[:h.Size()])
		rest = rest[h.Size():]
		if h.ProducerID < 0 {
			continue
		}
		if h.IsControl() {
			refused = l.stageMarker(h, b, &sets[i], now)
			continue
		}
		dup, isDup, err := l.producers.check(h, &sets[i])
		switch {
		case err != nil:
			refused = err
		case isDup:
			if dups == 0 {
				original = dup
			}
			original.offsetDelta += int32(dup.lastOffset - original.lastOffset)
			original.lastOffset = dup.lastOffset
			dups++
		default:
			if step, ok := l.producers.update(h, nil, now, true); ok {
				run.steps = append(run.steps, step)
			}
		}
	}
	switch {
	case refused != nil:
	case dups > 0 && dups == len(run.headers)-first:
		l.producers.rollback(mark)
		run.headers, run.steps = run.headers[:first], run.steps[:steps]
		out[i] = Appended{BaseOffset: original.baseOffset(), NextOffset: original.lastOffset + 1, Duplicate: true}
		return nil
	case dups > 0:
		refused = fmt.Errorf("append %d batches: %w: %d of them were appended before", len(run.headers)-first, ErrOutOfOrderSequence, dups)
	case full:
		refused = fmt.Errorf("append %d bytes: %w: less than the reserve is free", len(set), ErrNoSpace)
	}
	if refused != nil {
		l.producers.rollback(mark)
		run.headers, run.steps = run.headers[:first], run.steps[:steps]
		out[i].Err = fmt.Errorf("%s: %w", l, refused)
		return nil
	}
	out[i].BaseOffset, out[i].NextOffset = run.next, next
	run.bufs, run.owners = append(run.bufs, set), append(run.owners, sets[i].Owner)
	run.bytes += int64(len(set))
	run.next = next
	return nil
}

// stageMarker lets the marker in a control batch take effect on the producers, if a leader may append it.
func (l *Log) stageMarker(h *record.Header, b record.Batch, set *Set, now int64) error {
	m, ok := markerOf(b)
	if !ok {
		return fmt.Errorf("append control batch of producer %d: %w: it holds no transaction marker", h.ProducerID, ErrInvalidBatch)
	}
	if err := l.producers.checkMarker(h, m, set); err != nil {
		return err
	}
	if step, ok := l.producers.update(h, &m, now, true); ok {
		l.run.steps = append(l.run.steps, step)
	}
	return nil
}

// Replicate appends sets as a follower of the leader of leaderEpoch: batches as that sent them, whose checksums fit, whose
// base offsets follow the end of the log without a gap, whose leader epochs neither fall nor are above that of the leader,
// which no checksum covers (I19, R21). Sets before a bad one are appended.
// Errors: ErrInvalidBatch, ErrUnexpectedOffset, ErrStaleEpoch, ErrNoSpace, ErrCorrupt, ErrClosed, ErrPoisoned.
func (l *Log) Replicate(leaderEpoch int32, sets []Set) error {
	l.w.Lock()
	appended, err := l.replicateSets(leaderEpoch, sets)
	l.run.release()
	l.w.Unlock()
	if appended {
		l.dir.appended(l)
	}
	return err
}

func (l *Log) replicateSets(leaderEpoch int32, sets []Set) (appended bool, err error) {
	if err := l.usable(); err != nil {
		return false, err
	}
	if l.dir.full() {
		return false, fmt.Errorf("%s: replicate: %w: less than the reserve is free", l, ErrNoSpace)
	}
	l.mu.Lock()
	end, lastEpoch := l.mu.end, l.mu.epochs.last()
	l.mu.Unlock()
	run, now := &l.run, l.dir.clock.Load()
	l.producers.begin()
	run.begin(0, end, 0)
	var bad error
	for i := range sets {
		if bad, err = l.stageReplica(leaderEpoch, sets[i], &lastEpoch, now); bad != nil || err != nil {
			break
		}
	}
	if err == nil {
		err = l.writeRun(now)
	}
	if err == nil {
		err = bad
	}
	l.mu.Lock()
	appended = l.mu.end > end
	l.mu.Unlock()
	return appended, err
}

// stageReplica adds a replicated set to the run. bad concerns this set, err the log.
func (l *Log) stageReplica(leaderEpoch int32, set Set, lastEpoch *int32, now int64) (bad, err error) {
	run := &l.run
	first, next, epoch := len(run.headers), run.next, *lastEpoch
	for rest := set.Records; len(rest) > 0; {
		b, r, err := record.Next(rest)
		if err == nil {
			err = b.Check()
		}
		if err != nil {
			bad = fmt.Errorf("%s: replicate at %d: %w: %w", l, next, ErrInvalidBatch, err)
			break
		}
		h := b.Header()
		if h.BaseOffset != next {
			bad = fmt.Errorf("%s: replicate at %d: %w: batch begins at %d", l, next, ErrUnexpectedOffset, h.BaseOffset)
			break
		}
		if h.LeaderEpoch < epoch {
			bad = fmt.Errorf("%s: replicate at %d: %w: batch has %d, last is %d", l, next, ErrStaleEpoch, h.LeaderEpoch, epoch)
			break
		}
		if h.LeaderEpoch > leaderEpoch {
			bad = fmt.Errorf("%s: replicate at %d: %w: batch has leader epoch %d, its leader %d", l, next, ErrInvalidBatch, h.LeaderEpoch, leaderEpoch)
			break
		}
		run.headers = append(run.headers, h)
		next, epoch, rest = h.NextOffset(), h.LeaderEpoch, r
	}
	if bad != nil || len(set.Records) == 0 {
		run.headers = run.headers[:first]
		return bad, nil
	}
	if reason := l.rollReason(int64(len(set.Records)), next-1, len(run.headers)-first, now); reason != "" && run.next > l.active().base {
		moved := run.headers[first:]
		run.headers = run.headers[:first]
		if err := l.writeRun(now); err != nil {
			return nil, err
		}
		base := run.next
		run.begin(0, base, l.producers.mark())
		run.headers = append(run.headers, moved...)
		first = 0
		if err := l.roll(base, reason); err != nil {
			return nil, err
		}
	}
	rest := set.Records
	for k := first; k < len(run.headers); k++ {
		h := &run.headers[k]
		var marker *record.Marker
		if h.IsControl() {
			marker = controlMarker(rest[:h.Size()])
		}
		rest = rest[h.Size():]
		if step, ok := l.producers.update(h, marker, now, true); ok {
			run.steps = append(run.steps, step)
		}
	}
	*lastEpoch = epoch
	run.bufs, run.owners = append(run.bufs, set.Records), append(run.owners, set.Owner)
	run.bytes += int64(len(set.Records))
	run.next = next
	return nil, nil
}

// writeRun writes the run to the active segment and publishes it. After an error the segment is as it was, durably,
// or the directory is poisoned (W2).
func (l *Log) writeRun(now int64) error {
	run := &l.run
	if run.bytes == 0 {
		return nil
	}
	seg := l.active()
	position := seg.size
	if l.dir.cfg.mutants.has(mutantWALFirst) {
		l.dir.commit.wrote(l, l.mu.logID, seg.base, position, run, l.settings.Load())
	}
	if err := l.write(seg, run.bufs, position); err != nil {
		l.producers.rollback(run.undoMark)
		run.steps = run.steps[:0]
		run.next = run.base
		return l.cutBack(seg, position, run.bytes, err)
	}
	s := l.settings.Load()
	at := position
	l.mu.Lock()
	if seg.size == 0 {
		seg.firstAppend, seg.ageLimit = now, l.dir.ageLimit(s)
	}
	for i := range run.headers {
		h := &run.headers[i]
		l.mu.epochs.assign(h.LeaderEpoch, h.BaseOffset)
		seg.indexBatch(h, at, s.IndexIntervalBytes)
		at += int64(h.Size())
	}
	for _, step := range run.steps {
		if e, aborted := l.mu.transactions.apply(step, now); aborted {
			l.addAborted(seg, e)
		}
	}
	if l.dir.cfg.mutants.has(mutantEarlyMarker) {
		l.mu.transactions.decided = nil
	}
	seg.appendedMillis = l.dir.wallMillis.Load()
	seg.written++
	l.mu.end = run.next
	l.mu.sizeBytes += run.bytes
	l.mu.growth.bytes += run.bytes
	if l.mu.unsyncedRecords == 0 {
		l.mu.unsyncedSince = now
	}
	l.mu.unsyncedRecords += run.next - run.base
	logID := l.mu.logID
	l.mu.Unlock()
	l.dir.wrote(run.bytes)
	if !l.dir.cfg.mutants.has(mutantWALFirst) {
		l.dir.commit.wrote(l, logID, seg.base, position, run, s)
	}
	if seg.offsetIndex.count-seg.offsetIndex.flushed >= indexFlushEntries || seg.aborted.unflushed() >= indexFlushEntries {
		return l.flushIndexes(seg)
	}
	return nil
}

// write writes the buffers at position, in pieces.
func (l *Log) write(seg *segment, bufs [][]byte, position int64) error {
	iov := l.run.iov[:0]
	roomAt := func(position int64) int { return writePieceBytes - int(position%writePieceBytes) }
	room := roomAt(position)
	f := seg.pinned.file
	flush := func() error {
		if len(iov) == 0 {
			return nil
		}
		want := roomAt(position) - room
		n, err := f.WritevAt(iov, position)
		if err == nil && n < want {
			err = io.ErrShortWrite // L14
		}
		position += int64(n)
		iov, room = iov[:0], roomAt(position)
		return err
	}
	var err error
	for _, b := range bufs {
		for len(b) > 0 && err == nil {
			n := min(len(b), room)
			iov = append(iov, b[:n])
			b, room = b[n:], room-n
			if room == 0 || len(iov) == writePieceBuffers {
				err = flush()
			}
		}
	}
	if err == nil {
		err = flush()
	}
	clear(iov[:cap(iov)])
	l.run.iov = iov[:0]
	return err
}

// cutBack makes a failed or short write as if it had never been: the segment is cut to its old size, and that is made
// durable before anything else happens to the partition (W2). Else a power cut could bring the refused batch back, or
// leave it standing behind a shorter new one. Only then the refusal is definite (I17).
func (l *Log) cutBack(seg *segment, size, bytes int64, cause error) error {
	l.cuttingBack.Store(true)
	defer l.cuttingBack.Store(false)
	err := seg.pinned.file.Truncate(size)
	if err == nil && !l.dir.cfg.mutants.has(mutantCutBackUnsynced) {
		err = l.sync(seg.pinned.file)
	}
	if err != nil {
		return l.dir.fail(fmt.Errorf("cut segment %d of %s back to %d bytes after %w: %w", seg.base, l, size, cause, err))
	}
	if !errors.Is(cause, vfs.ErrNoSpace) && !errors.Is(cause, io.ErrShortWrite) {
		return l.dir.fail(fmt.Errorf("write %d bytes to segment %d of %s: %w", bytes, seg.base, l, cause))
	}
	l.dir.sawFull()
	l.logger().Warn("disk is full, produce requests are refused until space is free", "segment", seg.base, "bytes", bytes, "error", cause)
	return fmt.Errorf("%s: write %d bytes to segment %d: %w: %w", l, bytes, seg.base, ErrNoSpace, cause)
}
