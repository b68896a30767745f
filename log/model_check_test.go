package log

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/log/record"
	"github.com/millrace/millrace/log/vfs"
)

// foundBatch is a batch read from a log.
type foundBatch struct {
	base, next int64
	epoch      int32
	bytes      []byte
}

// modelRead reads a log from its start to its end through the reader's path.
func modelRead(l *Log) ([]foundBatch, error) {
	var found []foundBatch
	start, end := l.StartOffset(), l.EndOffset()
	for at := start; at < end; {
		s, err := l.Read(at, end, 1<<20, true)
		if err != nil {
			return nil, err
		}
		if s.Len() == 0 {
			return nil, fmt.Errorf("nothing to read at %d, end is %d", at, end)
		}
		b := make([]byte, s.Len())
		if _, err := s.ReadAt(b, 0); err != nil {
			return nil, err
		}
		next := s.NextOffset()
		s.Release()
		for len(b) > 0 {
			batch, rest, err := record.Next(b)
			if err != nil {
				return nil, fmt.Errorf("read at %d: %w", at, err)
			}
			if !batch.CheckCRC() {
				return nil, fmt.Errorf("read at %d: checksum of batch %d", at, batch.BaseOffset())
			}
			found = append(found, foundBatch{batch.BaseOffset(), batch.NextOffset(), batch.LeaderEpoch(), batch})
			b = rest
		}
		if next <= at {
			return nil, fmt.Errorf("read at %d leads to %d", at, next)
		}
		at = next
	}
	return found, nil
}

// same says whether a found batch is what was appended: everything behind base offset, length and epoch.
func (b *modelBatch) same(f foundBatch) bool {
	return len(b.bytes) == len(f.bytes) && bytes.Equal(b.bytes[16:], f.bytes[16:]) && b.epoch == f.epoch
}

// check compares what recovery found with what is known, and takes over what it found: all of that is durable now.
func (w *world) check() {
	if off := w.dir.Offline(); len(off) > 0 && !w.rotten {
		w.failf("partition %s-%d is offline: %v", off[0].Topic, off[0].Partition, off[0].Err)
		return
	}
	stats := w.dir.RecoveryStats()
	// Without the checkpoint, old frames below a header that was torn while its file was taken into use again can't be
	// told from live ones below a damaged header: the alarm is one too many, but nothing is lost (seed 1003449).
	if len(stats.WALDamage) > 0 && !w.rotten && !w.checkpointLost {
		w.failf("damage is reported: %v", stats.WALDamage)
		return
	}
	w.checkpointLost = false
	if stats.Strays < w.strays || stats.Strays > w.strays+w.strayings {
		w.failf("%d stray directories, should be %d, perhaps %d more", stats.Strays, w.strays, w.strayings)
		return
	}
	w.strays, w.strayings = stats.Strays, 0
	w.stats.walRecords += stats.WALRecords
	w.stats.tornBytes += stats.BytesTruncated
	open := 0
	for _, slot := range w.slots {
		inc := slot.inc
		slot.lock.held = false
		if inc == nil {
			continue
		}
		l, there := w.dir.Lookup(inc.id, slot.partition)
		if there {
			open++
		}
		switch inc.state {
		case incGone:
			if there {
				w.failf("%s was deleted and is back", slot.topic)
				return
			}
		case incCreating, incDeleting:
			if !there {
				inc.state = incGone
			}
		case incAlive:
			if !there && w.rotten {
				break // offline
			}
			if !there {
				w.failf("%s is lost", slot.topic)
				return
			}
		}
		if !there {
			continue
		}
		inc.state, inc.log = incAlive, l
		if err := w.checkLog(inc); err != nil {
			w.failf("%s (first %d, start %d, trimming %d, cutting %d, acked %d, end %d, %d maybe): %w",
				slot.topic, inc.first, inc.start, inc.trimming, inc.cutting, inc.acked, inc.end(), len(inc.maybe), err)
			return
		}
		inc.maybe, inc.cutting, inc.trimming, inc.restarting, inc.unacked = nil, -1, -1, -1, false
		inc.acked, inc.start = l.EndOffset(), l.StartOffset()
		l.Configure(w.chaos.settings)
		l.Notify(func(durableEnd int64) { w.told(inc, durableEnd) })
	}
	if all := len(w.dir.Logs()); all != open {
		w.failf("%d partitions are open, %d are known", all, open)
		return
	}
	w.checkDisk()
}

// checkLog checks one recovered partition (wal.md 7).
func (w *world) checkLog(inc *incarnation) error {
	l := inc.log
	start, end := l.StartOffset(), l.EndOffset()
	if got := l.DurableEnd(); got != end {
		return fmt.Errorf("recovered to %d, durable end is %d", end, got)
	}
	if inc.restarting >= 0 && start == end && end == inc.restarting {
		inc.restarted()
	}
	if inc.cutting >= 0 && end <= inc.cutting {
		// The truncation may have been carried out; then the end is exactly its target, if that was there.
		if end != inc.cutting && end < inc.acked && !w.rotten {
			return fmt.Errorf("the end is %d, neither what was acknowledged nor the truncation point", end)
		}
		if end == inc.cutting {
			inc.cut(end)
			inc.maybe = nil
		}
	}
	if w.rotten && end < inc.acked {
		w.noteLoss(l)
		inc.acked = end
	}
	if end < inc.acked {
		return fmt.Errorf("the end is %d, acknowledged was %d", end, inc.acked)
	}
	if start < inc.start || start > max(inc.start, inc.trimming) {
		return fmt.Errorf("the start is %d", start)
	}
	found, err := modelRead(l)
	if err != nil {
		return err
	}
	// What may be there: the known batches, then those that an append was busy with, in order.
	var want []modelBatch
	at := inc.first
	for _, b := range inc.batches {
		want, at = append(want, b), b.next
	}
	known := len(want)
	_ = known
	for _, b := range inc.maybe {
		b.base, b.next = at, at+b.next
		at = b.next
		want = append(want, b)
	}
	skip := 0
	for skip < len(want) && want[skip].next <= start {
		skip++
	}
	if inc.first > start && inc.first > end {
		return fmt.Errorf("the log ends at %d, began at %d", end, inc.first)
	}
	k := skip
	for i, f := range found {
		// Of the undecided ones some may have been refused, so any of them may come next.
		for k < len(want) && !want[k].same(f) && k >= known {
			k++
		}
		if k == len(want) || !want[k].same(f) {
			return fmt.Errorf("batch %d at %d is not what was appended", i, f.base)
		}
		if k < known && (f.base != want[k].base || f.next != want[k].next) {
			return fmt.Errorf("batch at %d was appended at %d", f.base, want[k].base)
		}
		if i > 0 && f.base != found[i-1].next {
			return fmt.Errorf("gap between %d and %d", found[i-1].next, f.base)
		}
		want[k].base, want[k].next = f.base, f.next
		k++
	}
	if len(found) > 0 && (found[0].base > start || found[len(found)-1].next != end) {
		return fmt.Errorf("batches from %d to %d, the log from %d to %d", found[0].base, found[len(found)-1].next, start, end)
	}
	// What was found is the log from now on.
	batches := append([]modelBatch(nil), want[:skip]...)
	for j, n := skip, 0; n < len(found); j++ {
		if want[j].base == found[n].base && want[j].same(found[n]) {
			batches = append(batches, want[j])
			n++
		}
	}
	inc.batches = batches
	if len(batches) == 0 {
		inc.first = end
	} else if inc.end() != end {
		return fmt.Errorf("the batches end at %d, the log at %d", inc.end(), end)
	}
	if n := len(found); n > 0 {
		if got := l.LastEpoch(); got != found[n-1].epoch {
			return fmt.Errorf("the last leader epoch is %d, of the last batch %d", got, found[n-1].epoch)
		}
		inc.epoch = max(inc.epoch, found[n-1].epoch)
	}
	inc.epoch = max(inc.epoch, l.LastEpoch())
	if err := w.checkTransactions(inc); err != nil {
		return err
	}
	return w.checkProducers(inc)
}

// checkProducers: the producers' state is a function of the log (L8).
func (w *world) checkProducers(inc *incarnation) error {
	if inc.trimmed {
		return nil
	}
	want := ProducerState{LastSequence: -1, LastOffset: -1}
	for _, b := range inc.batches {
		if b.sequence >= 0 {
			want.LastSequence, want.LastOffset = b.sequence+int32(b.next-b.base)-1, b.next-1
		}
	}
	got := ProducerState{LastSequence: -1, LastOffset: -1}
	for _, p := range inc.log.Producers() {
		if p.ProducerID > modelProducer {
			continue // see checkTransactions
		}
		if p.ProducerID != modelProducer {
			return fmt.Errorf("producer %d is unknown", p.ProducerID)
		}
		got = p
	}
	if got.LastSequence != want.LastSequence || got.LastOffset != want.LastOffset {
		return fmt.Errorf("the producer's last sequence is %d at offset %d, should be %d at %d", got.LastSequence, got.LastOffset, want.LastSequence, want.LastOffset)
	}
	return nil
}

// refTransactions are the transactions that the known batches tell of.
func (i *incarnation) refTransactions() []refTransaction {
	var batches []record.Batch
	for _, b := range i.batches {
		if record.Batch(b.bytes).IsTransactional() {
			record.Batch(b.bytes).SetBaseOffset(b.base)
			batches = append(batches, b.bytes)
		}
	}
	return refTransactions(batches)
}

// checkStable: nothing is told to be stable that belongs to an open transaction, or to one whose marker may be cut off
// (P13); and nothing is held back for longer (P12).
func (i *incarnation) checkStable() error {
	all, high := i.refTransactions(), i.log.HighWatermark()
	got, start := i.log.LastStableOffset(), i.log.StartOffset()
	low, up := max(refStable(all, high, high), start), max(refStable(all, high, max(i.settled, start)), start)
	if got < low || got > up {
		return fmt.Errorf("the last stable offset is %d, should be %d to %d, the high watermark is %d", got, low, up, high)
	}
	return nil
}

// checkTransactions: what the log knows of transactions is a function of its batches (P2, P12, trap 20).
func (w *world) checkTransactions(inc *incarnation) error {
	all := inc.refTransactions()
	w.stats.transactions += len(all)
	open := map[int64]int64{}
	for _, t := range all {
		if t.marker < 0 {
			open[t.id] = t.first
		}
	}
	for _, p := range inc.log.Producers() {
		first, ok := open[p.ProducerID]
		if !ok {
			first = -1
		}
		if p.CurrentTxnFirstOffset != first {
			return fmt.Errorf("the open transaction of producer %d begins at %d, should be %d", p.ProducerID, p.CurrentTxnFirstOffset, first)
		}
		delete(open, p.ProducerID)
	}
	if len(open) > 0 {
		return fmt.Errorf("open transactions are not known: %v", open)
	}
	start, end := inc.log.StartOffset(), inc.log.EndOffset()
	from := start + w.rng.Int64N(end-start+1)
	to := from + w.rng.Int64N(end-from+1)
	got, err := inc.log.AbortedTransactions(from, to)
	if err != nil {
		return err
	}
	if err := compareAborted(all, got, start, from, to); err != nil {
		return fmt.Errorf("a reader of %d to %d is told of the aborted transactions %v: %w", from, to, got, err)
	}
	return inc.checkStable()
}

// compareAborted compares what a reader is told with the transactions there were. Where one began may be gone with what
// was trimmed, and one of which nothing is left may be gone altogether: its index is made anew from what is there, if it
// did not fit on the disk.
func compareAborted(all []refTransaction, got []AbortedTransaction, start, from, to int64) error {
	for _, g := range got {
		if !slices.ContainsFunc(all, func(t refTransaction) bool {
			return t.aborted && t.id == g.ProducerID && t.first <= g.FirstOffset && g.FirstOffset < t.marker && t.marker >= from && t.first < to
		}) {
			return fmt.Errorf("there is none of producer %d at %d", g.ProducerID, g.FirstOffset)
		}
	}
	for _, t := range all {
		left := t.left(start)
		if t.aborted && t.marker >= from && t.first < to && left >= 0 && left < to && !slices.ContainsFunc(got, func(g AbortedTransaction) bool {
			return g.ProducerID == t.id && g.FirstOffset >= t.first && g.FirstOffset <= left
		}) {
			return fmt.Errorf("that of producer %d from %d to %d is not among them", t.id, t.first, t.marker)
		}
	}
	if !slices.IsSortedFunc(got, func(a, b AbortedTransaction) int { return compareInt64(a.FirstOffset, b.FirstOffset) }) {
		return errors.New("they are not sorted")
	}
	return nil
}

// checkDisk: everything that recovery reported is on the disk, not only in the cache (L4, W17).
func (w *world) checkDisk() {
	for _, l := range w.dir.Logs() {
		for _, seg := range l.mu.segments {
			live, err := vfs.ReadFile(w.fs, seg.log.path)
			if err != nil {
				w.failf("segment %d of %s: %w", seg.base, l, err)
				return
			}
			disk, ok := w.fs.Disk(seg.log.path)
			if !ok || int64(len(disk)) < seg.size || !bytes.Equal(disk[:seg.size], live[:seg.size]) {
				w.failf("segment %d of %s: %d bytes were recovered, %d are on disk (named %v)", seg.base, l, seg.size, len(disk), ok)
				return
			}
			if int64(len(live)) != seg.size {
				w.failf("segment %d of %s: %d bytes were recovered, the file has %d", seg.base, l, seg.size, len(live))
				return
			}
		}
	}
}

// checkRest compares the logs at rest with the model: all durable, all readable, nothing else.
func (w *world) checkRest() {
	for _, slot := range w.slots {
		inc := slot.inc
		if inc == nil || inc.state != incAlive {
			continue
		}
		l := inc.log
		if l.EndOffset() != inc.end() {
			w.failf("%s at rest: the end is %d, should be %d", slot.topic, l.EndOffset(), inc.end())
			return
		}
		if l.DurableEnd() != l.EndOffset() {
			w.failf("%s at rest: the end is %d, durable only %d", slot.topic, l.EndOffset(), l.DurableEnd())
			return
		}
		if l.StartOffset() != inc.start {
			w.failf("%s at rest: the start is %d, should be %d", slot.topic, l.StartOffset(), inc.start)
			return
		}
		if err := w.checkContent(inc); err != nil {
			w.failf("%s at rest: %w", slot.topic, err)
			return
		}
		if err := w.checkProducers(inc); err != nil {
			w.failf("%s at rest: %w", slot.topic, err)
			return
		}
		if err := w.checkTransactions(inc); err != nil {
			w.failf("%s at rest: %w", slot.topic, err)
			return
		}
	}
}

// checkContent compares all batches that can be read with those known.
func (w *world) checkContent(inc *incarnation) error {
	found, err := modelRead(inc.log)
	if err != nil {
		return err
	}
	skip := 0
	for skip < len(inc.batches) && inc.batches[skip].next <= inc.start {
		skip++
	}
	want := inc.batches[skip:]
	if len(found) != len(want) {
		return fmt.Errorf("%d batches are there, should be %d", len(found), len(want))
	}
	for i := range want {
		if !want[i].same(found[i]) || want[i].base != found[i].base {
			return fmt.Errorf("batch at %d is not what was appended at %d", found[i].base, want[i].base)
		}
	}
	return nil
}
