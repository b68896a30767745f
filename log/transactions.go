package log

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/log/record"
)

// transactions is what holds back the last stable offset of a partition (KIP-98): the open transactions, and those that
// are decided though their marker does not count yet, because it may be truncated (P13). Like the producers it is a
// function of the log and of the high watermark; a log without transactions has two empty slices and pays nothing.
//
// The log's is guarded by Log.mu and changed by the writer, and by SetHighWatermark, which forgets decided ones.
type transactions struct {
	// open are sorted by first offset: a transaction that begins does so at the end.
	open []openTransaction
	// decided have a marker at or above the high watermark, as far as that is known. They are sorted by marker.
	decided []decidedTransaction
}

// openTransaction has records but no marker in the log.
type openTransaction struct {
	producerID, first int64
	// since is when it was seen to begin, on the clock of Dir.Tick.
	since int64
}

// decidedTransaction has records from first on, and a marker.
type decidedTransaction struct{ first, marker int64 }

// transactionStep is what one batch did: it opened a transaction of a producer, or it is the marker that ended one.
type transactionStep struct {
	producerID int64
	// first is the first offset of the transaction.
	first int64
	// marker is the offset of the marker, -1 if the batch opened the transaction.
	marker  int64
	aborted bool
}

// apply notes a step. If it ends a transaction by an abort the entry for the index of aborted transactions is returned.
func (t *transactions) apply(s transactionStep, now int64) (e abortedEntry, aborted bool) {
	if s.marker < 0 {
		t.open = append(t.open, openTransaction{producerID: s.producerID, first: s.first, since: now})
		return e, false
	}
	if i, ok := t.find(s.first); ok {
		t.open = slices.Delete(t.open, i, i+1)
	}
	t.decided = append(t.decided, decidedTransaction{first: s.first, marker: s.marker})
	if !s.aborted {
		return e, false
	}
	e = abortedEntry{producerID: s.producerID, first: s.first, last: s.marker, lastStable: s.marker + 1}
	if len(t.open) > 0 {
		e.lastStable = t.open[0].first
	}
	return e, true
}

// find returns where the open transaction that begins at first stands.
func (t *transactions) find(first int64) (int, bool) {
	return slices.BinarySearchFunc(t.open, first, func(o openTransaction, first int64) int { return cmp.Compare(o.first, first) })
}

// settle forgets the decided transactions whose marker lies below the high watermark: it can not be truncated any more.
func (t *transactions) settle(highWatermark int64) {
	n := 0
	for n < len(t.decided) && t.decided[n].marker < highWatermark {
		n++
	}
	if n > 0 {
		t.decided = slices.Delete(t.decided, 0, n)
	}
}

// stable returns up to where the records below limit belong to no transaction that is open or not settled.
func (t *transactions) stable(limit int64) int64 {
	if len(t.open) > 0 {
		limit = min(limit, t.open[0].first)
	}
	for _, d := range t.decided {
		limit = min(limit, d.first)
	}
	return limit
}

// openOf returns the open transactions of producers, which know where theirs began but not since when.
func openOf(p *producers, now int64) []openTransaction {
	var open []openTransaction
	for id, e := range p.byID {
		if e.txnFirstOffset >= 0 {
			open = append(open, openTransaction{producerID: id, first: e.txnFirstOffset, since: now})
		}
	}
	slices.SortFunc(open, func(a, b openTransaction) int { return cmp.Compare(a.first, b.first) })
	return open
}

// forgetBelow ends, when all batches of a log have been taken in, the open transactions that begin below its start. There
// are none: the start never moves past an open one (L17). But if only an old snapshot was readable, markers may have been
// deleted since it was taken, and after an unclean election they may have been cut off; a transaction that nobody ends
// would hold back readers for ever (P12).
func (p *producers) forgetBelow(t *transactions, start int64) {
	n := len(t.open)
	t.open = slices.DeleteFunc(t.open, func(o openTransaction) bool { return o.first < start })
	if len(t.open) == n {
		return
	}
	for _, e := range p.byID {
		if e.txnFirstOffset < start {
			e.txnFirstOffset = -1
		}
	}
}

// markerOf returns the marker in a control batch; ok is false if it holds none, as one that compaction has emptied, or
// a control record of another kind.
func markerOf(b record.Batch) (m record.Marker, ok bool) {
	if b.Count() == 0 {
		return m, false
	}
	m, ok, err := record.ParseMarker(b)
	return m, ok && err == nil
}

// controlMarker is markerOf for update: nil if there is none.
func controlMarker(b record.Batch) *record.Marker {
	if m, ok := markerOf(b); ok {
		return &m
	}
	return nil
}

// LastStableOffset returns the first offset that a reader of committed records may not see: the first record of a
// transaction that is open, or whose marker is not below the high watermark (P13), or the high watermark. It never
// exceeds HighWatermark, and is never below the start.
func (l *Log) LastStableOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastStableLocked()
}

func (l *Log) lastStableLocked() int64 {
	return max(l.mu.transactions.stable(max(l.mu.highWatermark, l.mu.start)), l.mu.start)
}

// OpenTransaction is a transaction of which this log holds records, but no marker.
type OpenTransaction struct {
	ProducerID int64
	// FirstOffset is that of its first record here.
	FirstOffset int64
	// Age is for how long this process has known it, by the clock of Dir.Tick: a lower bound, which begins anew at a
	// restart.
	Age time.Duration
}

// OldestTransaction returns the open transaction that begins first: the one that holds back readers of committed
// records. ok is false if none is open.
func (l *Log) OldestTransaction() (t OpenTransaction, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.transactions.open) == 0 {
		return t, false
	}
	o := l.mu.transactions.open[0]
	return OpenTransaction{ProducerID: o.producerID, FirstOffset: o.first, Age: time.Duration(l.dir.clock.Load() - o.since)}, true
}
