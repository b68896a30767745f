package log

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/millrace/millrace/log/record"
)

// write appends to a partition or truncates it: one task does both, as a follower does.
func (w *world) write(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		w.create(slot)
		return
	}
	switch {
	case inc.cutting >= 0 || inc.restarting >= 0:
		// It failed half-way: the process is about to end.
	case w.rng.IntN(256) < w.chaos.truncate:
		if w.rng.IntN(8) == 0 {
			w.restart(inc)
		} else {
			w.truncate(inc)
		}
	case w.rng.IntN(256) < w.chaos.replicate:
		w.replicate(inc)
	default:
		w.append(inc)
	}
}

// modelBuffer is an owner that destroys its bytes with the last release: whoever uses them later is found out.
type modelBuffer struct {
	w     *world
	bytes []byte
	uses  int
}

func (b *modelBuffer) Retain() { b.uses++ }

func (b *modelBuffer) Release() {
	b.uses--
	if b.uses < 0 {
		b.w.failf("a buffer was released too often")
	}
	if b.uses == 0 {
		for i := range b.bytes {
			b.bytes[i] = 0xdb
		}
	}
}

// makeBatch builds a batch with a payload nobody else has.
func (w *world) makeBatch(sequence int32, large bool) []byte {
	w.ids++
	value := make([]byte, 8+w.rng.IntN(24))
	if large {
		value = make([]byte, 8+w.rng.IntN(500))
	}
	binary.BigEndian.PutUint64(value, w.seed)
	binary.BigEndian.PutUint64(value, w.ids)
	b := record.NewBuilder(record.CodecNone)
	for range 1 + w.rng.IntN(2) {
		b.Add(w.now.UnixMilli(), nil, value, nil)
	}
	if sequence >= 0 {
		b.ProducerID, b.ProducerEpoch, b.BaseSequence = modelProducer, 0, sequence
	}
	return b.Build()
}

// makeTransactional builds a batch of a transaction of one of two producers, or a marker.
func (w *world) makeTransactional() []byte {
	id := modelProducer + 1 + w.rng.Int64N(2)
	if w.rng.IntN(3) == 0 {
		return record.Marker{Commit: w.rng.IntN(2) == 0}.Batch(id, 0, w.now.UnixMilli())
	}
	w.ids++
	value := make([]byte, 8+w.rng.IntN(24))
	binary.BigEndian.PutUint64(value, w.ids)
	b := record.NewBuilder(record.CodecNone)
	b.ProducerID, b.ProducerEpoch, b.BaseSequence, b.Transactional = id, 0, -1, true
	b.Add(w.now.UnixMilli(), nil, value, nil)
	return b.Build()
}

// nextSequence returns the sequence number that the producer of a partition continues with.
func (i *incarnation) nextSequence() int32 {
	for k := len(i.batches) - 1; k >= 0; k-- {
		if b := &i.batches[k]; b.sequence >= 0 {
			return b.sequence + int32(b.next-b.base)
		}
	}
	return 0
}

func (w *world) append(inc *incarnation) {
	if w.rng.IntN(10) == 0 {
		inc.epoch++
	}
	n := 1 + w.rng.IntN(5)/3
	sets := make([]Set, n)
	buffers := make([]*modelBuffer, n)
	out := make([]Appended, n)
	sequence := inc.nextSequence()
	idempotent := !inc.trimmed && w.rng.IntN(2) == 0
	for i := range sets {
		large := w.rng.IntN(256) < w.chaos.large
		var set []byte
		for range 1 + w.rng.IntN(4)/3 {
			seq := int32(-1)
			if idempotent {
				seq = sequence
			}
			var b []byte
			if w.rng.IntN(256) < w.chaos.transactions {
				b, seq = w.makeTransactional(), -1
			} else {
				b = w.makeBatch(seq, large)
			}
			count := record.Batch(b).LastOffsetDelta() + 1
			if seq >= 0 {
				sequence += count
			}
			inc.maybe = append(inc.maybe, modelBatch{next: int64(count), epoch: inc.epoch, bytes: append([]byte(nil), b...), sequence: seq})
			set = append(set, b...)
		}
		sets[i].Records = set
		buffers[i] = &modelBuffer{w: w, bytes: set, uses: 1}
		if w.rng.IntN(2) == 0 {
			sets[i].Owner = buffers[i]
		}
	}
	maybe := inc.maybe
	end := inc.end()
	err := inc.log.Append(inc.epoch, sets, out)
	var left []modelBatch
	for i := range sets {
		k := countBatches(sets[i].Records)
		set := maybe[:k]
		maybe = maybe[k:]
		switch {
		case out[i].Err == nil:
			if out[i].BaseOffset != end || out[i].Duplicate {
				w.failf("append answers %+v at %d", out[i], end)
			}
			for _, b := range set {
				b.base, b.next = end, end+b.next
				end = b.next
				inc.batches = append(inc.batches, b)
			}
			if out[i].NextOffset != end {
				w.failf("append answers %+v, end is %d", out[i], end)
			}
			w.stats.appended++
		case errors.Is(out[i].Err, ErrNoSpace) || errors.Is(out[i].Err, ErrClosed) || errors.Is(out[i].Err, ErrOutOfOrderSequence):
			// Definite: it must never be seen. A gap in the sequence follows a refusal before it.
			w.stats.refused++
		case errors.Is(out[i].Err, ErrPoisoned):
			left = append(left, set...)
		default:
			w.failf("append: %v", out[i].Err)
		}
		buffers[i].Release()
	}
	inc.maybe = left
	if err != nil && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
		w.failf("append: %v", err)
	}
}

// replicate appends as a follower: batches with offsets and epochs of their leader.
func (w *world) replicate(inc *incarnation) {
	if w.rng.IntN(10) == 0 {
		inc.epoch++
	}
	sets := make([]Set, 1+w.rng.IntN(3))
	var buffers []*modelBuffer
	end := inc.end()
	at := end
	var batches []modelBatch
	for i := range sets {
		b := record.Batch(w.makeBatch(-1, w.rng.IntN(256) < w.chaos.large))
		if w.rng.IntN(256) < w.chaos.transactions {
			b = w.makeTransactional()
		}
		b.SetBaseOffset(at)
		b.SetLeaderEpoch(inc.epoch)
		batches = append(batches, modelBatch{base: at, next: b.NextOffset(), epoch: inc.epoch, bytes: append([]byte(nil), b...), sequence: -1})
		at = b.NextOffset()
		sets[i].Records = b
		buffer := &modelBuffer{w: w, bytes: b, uses: 1}
		buffers = append(buffers, buffer)
		if w.rng.IntN(2) == 0 {
			sets[i].Owner = buffer
		}
	}
	for _, b := range batches {
		b.next -= b.base
		inc.maybe = append(inc.maybe, b)
	}
	err := inc.log.Replicate(1<<30, sets)
	switch {
	case err == nil:
		inc.batches = append(inc.batches, batches...)
		w.stats.replicated++
	case errors.Is(err, ErrNoSpace) || errors.Is(err, ErrClosed):
		// Those before the refused one are in.
		got := inc.log.EndOffset()
		for _, b := range batches {
			if b.next <= got {
				inc.batches = append(inc.batches, b)
			}
		}
		w.stats.refused++
	case errors.Is(err, ErrPoisoned):
		for _, b := range buffers {
			b.Release()
		}
		return
	default:
		w.failf("replicate: %v", err)
	}
	inc.maybe = nil
	for _, b := range buffers {
		b.Release()
	}
}

// restart empties a log, which goes on at a later offset.
func (w *world) restart(inc *incarnation) {
	if inc.trimming >= 0 {
		return
	}
	to := inc.start + w.rng.Int64N(inc.end()-inc.start+20)
	inc.restarting = to
	err := inc.log.StartAt(to)
	switch {
	case err == nil:
		inc.restarted()
		w.stats.restarts++
	case errors.Is(err, ErrPoisoned):
	case errors.Is(err, ErrClosed) || errors.Is(err, ErrNoSpace):
		inc.restarting = -1 // nothing was changed
	default:
		w.failf("start at %d: %v", to, err)
	}
}

// restarted takes note that the log is empty and begins at the target of StartAt.
func (i *incarnation) restarted() {
	to := i.restarting
	i.batches, i.maybe = nil, nil
	i.first, i.start, i.acked, i.restarting = to, to, to, -1
	i.trimmed, i.epoch, i.settled = false, i.epoch+1, to
}

// read reads some of a log while everything else goes on.
func (w *world) read(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		return
	}
	start, end := inc.log.StartOffset(), inc.log.EndOffset()
	from := start + w.rng.Int64N(end-start+1)
	limit := from + w.rng.Int64N(end-from+1)
	s, err := inc.log.Read(from, limit, 1+w.rng.IntN(600), w.rng.IntN(2) == 0)
	if err != nil {
		if !errors.Is(err, ErrOffsetOutOfRange) && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
			w.failf("read %d to %d: %v", from, limit, err)
		}
		return
	}
	if s.Len() == 0 {
		return
	}
	b := make([]byte, s.Len())
	_, err = s.ReadAt(b, 0)
	cut := inc.cuts
	s.Release()
	if err != nil {
		if cut == 0 && inc.cutting < 0 && inc.restarting < 0 {
			w.failf("read %d to %d: %v", from, limit, err)
		}
		return
	}
	w.stats.reads++
	if cut > 0 || inc.cutting >= 0 {
		return // the bytes may have been cut and written anew under the reader
	}
	for at := s.BaseOffset(); len(b) > 0; {
		batch, rest, err := record.Next(b)
		if err != nil || !batch.CheckCRC() || batch.BaseOffset() != at || batch.NextOffset() > limit {
			w.failf("read %d to %d: bad batch at %d: %v", from, limit, at, err)
			return
		}
		at, b = batch.NextOffset(), rest
	}
}

func countBatches(b []byte) int {
	n := 0
	for len(b) > 0 {
		_, rest, err := record.Next(b)
		if err != nil {
			panic(err)
		}
		b = rest
		n++
	}
	return n
}

// told is the notification of a log.
func (w *world) told(inc *incarnation, durableEnd int64) {
	w.stats.acked++
	if inc.restarting >= 0 {
		return
	}
	if inc.cutting >= 0 {
		// What is being cut away may be acknowledged once more.
		durableEnd = min(durableEnd, inc.cutting)
	}
	inc.acked = max(inc.acked, durableEnd)
}

func (w *world) truncate(inc *incarnation) {
	if len(inc.batches) == 0 {
		return
	}
	// The batch that holds the target goes as a whole; mostly the target is its base.
	i := len(inc.batches) - 1 - min(w.rng.IntN(len(inc.batches)), w.rng.IntN(12))
	cut := inc.batches[i].base
	to := cut + w.rng.Int64N(2)*w.rng.Int64N(inc.batches[i].next-cut)
	if to < inc.start || inc.trimming >= 0 || w.chaos.transactions > 0 && cut < inc.settled {
		return // where there are transactions, what was committed stays (R25)
	}
	// A batch below the start goes as a whole; the log goes on, empty, at its start.
	cut = max(cut, inc.start)
	inc.cutting = cut
	err := inc.log.Truncate(to)
	switch {
	case err == nil:
		inc.cuts++
		if got := inc.log.EndOffset(); got != cut && w.err == nil {
			w.failf("truncated to %d, end is %d", cut, got)
		}
		inc.cut(cut)
		w.stats.truncations++
	case errors.Is(err, ErrPoisoned):
		return // whether it was cut is not known
	case errors.Is(err, ErrClosed) || errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrNoSpace):
		inc.cutting = -1 // nothing was changed
	default:
		w.failf("truncate to %d: %v", to, err)
	}
}

// cut forgets the batches from offset on.
func (i *incarnation) cut(offset int64) {
	n := len(i.batches)
	for n > 0 && i.batches[n-1].next > offset {
		n--
	}
	if n > 0 && i.batches[n-1].next < offset {
		n = 0 // all that is left lay below the start
	}
	i.batches = i.batches[:n]
	i.acked, i.start, i.settled = min(i.acked, offset), min(i.start, offset), min(i.settled, offset)
	i.cutting = -1
	if n == 0 {
		i.first = offset
	}
}

func (w *world) trim(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive || inc.cutting >= 0 || inc.restarting >= 0 || inc.trimming >= 0 {
		return
	}
	l := inc.log
	inc.raise(min(l.DurableEnd(), inc.end()))
	high := l.LastStableOffset()
	if high <= inc.start {
		return
	}
	to := inc.start + 1 + w.rng.Int64N(high-inc.start)
	inc.trimming = to
	inc.trimmed = true
	err := l.TrimPrefix(to)
	switch {
	case err == nil:
		inc.start = max(inc.start, min(to, l.StartOffset()))
		inc.trimming = -1
		w.stats.trims++
	case errors.Is(err, ErrNoSpace):
		// What could go without any new file may be gone.
		inc.start = max(inc.start, l.StartOffset())
		inc.trimming = -1
	case errors.Is(err, ErrOffsetOutOfRange) || errors.Is(err, ErrClosed):
		inc.trimming = -1
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("trim to %d: %v", to, err)
	}
}

// raise tells the log a high watermark.
func (i *incarnation) raise(highWatermark int64) {
	i.settled = max(i.settled, highWatermark)
	i.log.SetHighWatermark(highWatermark)
}

// watermark moves the high watermark, and looks what is stable then.
func (w *world) watermark(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive || inc.cutting >= 0 || inc.restarting >= 0 {
		return
	}
	inc.raise(inc.start + w.rng.Int64N(max(min(inc.log.DurableEnd(), inc.end())-inc.start, 0)+1))
	if err := inc.checkStable(); err != nil {
		w.failf("%s: %w", slot.topic, err)
	}
	w.stats.watermarks++
}

func (w *world) flush() {
	if inc := w.slots[w.rng.IntN(len(w.slots))].inc; inc != nil && inc.state == incAlive {
		end := inc.end()
		cuts := w.stats.truncations + w.stats.restarts
		err := inc.log.Flush()
		switch {
		case err == nil:
			if got := inc.log.DurableEnd(); got < end && cuts == w.stats.truncations+w.stats.restarts && inc.restarting < 0 && inc.cutting < 0 && inc.state == incAlive {
				w.failf("flushed to %d, durable end is %d", end, got)
			}
			w.stats.directSyncs++
		case !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned):
			w.failf("flush: %v", err)
		}
	}
}

func (w *world) tick() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(5000)) * time.Millisecond)
	w.dir.Tick(w.now)
	if w.chaos.toggle && w.rng.IntN(4) == 0 {
		if inc := w.slots[w.rng.IntN(len(w.slots))].inc; inc != nil && inc.state == incAlive {
			s := inc.log.Settings()
			s.FlushAck = !s.FlushAck
			inc.unacked = true
			inc.log.Configure(s)
		}
	}
}

// create makes the next incarnation of a slot: with a new id, or moved back with the old one.
func (w *world) create(slot *modelSlot) {
	if slot.lock.held {
		return
	}
	slot.lock.held = true
	old := slot.inc
	inc := &incarnation{trimming: -1, cutting: -1, restarting: -1, first: w.rng.Int64N(3) * w.rng.Int64N(100)}
	inc.start, inc.acked = inc.first, inc.first
	if old != nil && w.rng.IntN(2) == 0 {
		inc.id = old.id
	} else {
		binary.BigEndian.PutUint64(inc.id[:], w.rng.Uint64())
	}
	slot.inc = inc
	s := w.chaos.settings
	l, err := w.dir.Create(slot.topic, inc.id, slot.partition, inc.first, s)
	switch {
	case err == nil:
		inc.log, inc.state = l, incAlive
		l.Notify(func(durableEnd int64) { w.told(inc, durableEnd) })
		w.stats.creations++
	case errors.Is(err, ErrNoSpace):
		// Not made. A directory may be left without a state file.
		if old != nil {
			old.state = incGone
		}
		slot.inc = old
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("create %s: %v", slot.topic, err)
	}
	slot.lock.held = false
}

// remove deletes a partition once in a while.
func (w *world) remove(slot *modelSlot) {
	inc := slot.inc
	if inc == nil || inc.state != incAlive {
		return
	}
	inc.state = incDeleting
	slot.lock.held = true
	aside := w.rng.IntN(6) == 0
	remove := w.dir.Delete
	if aside {
		remove = w.dir.SetAside
		w.strayings++
	}
	err := remove(inc.log)
	slot.lock.held = false
	switch {
	case err == nil:
		inc.state = incGone
		w.stats.deletions++
		if aside {
			w.strayings--
			w.strays++
		}
	case errors.Is(err, ErrPoisoned):
	default:
		w.failf("delete %s: %v", slot.topic, err)
	}
}
