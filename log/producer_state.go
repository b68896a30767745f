package log

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/log/record"
)

// producerWindow is the number of batches remembered per producer: clients have at most five in flight (P1).
const producerWindow = 5

// producers is the state of the producers of one partition: a function of the log alone (L8), so that followers, a new
// leader and a restarted broker recognise the same duplicates (P2). It belongs to the writer (Log.w).
type producers struct {
	byID map[int64]*producer
	// undo holds what the batches of the append in work replaced; rollback restores it.
	undo []producerUndo
}

// producer is what is known about one producer id.
type producer struct {
	epoch int16
	// count is the number of batches known, newest first in batches.
	count   int8
	batches [producerWindow]producerBatch
	// coordinatorEpoch is that of the last transaction marker, -1 if none (KIP-98).
	coordinatorEpoch int32
	// txnFirstOffset is the first offset of the open transaction, -1 if none.
	txnFirstOffset int64
	// lastTimestamp is the largest record timestamp of the last batch or marker.
	lastTimestamp int64
	// seen is when the last batch came, on the clock of Dir.Tick: expiry is monotonic (L15).
	seen int64
}

// producerBatch is one remembered batch.
type producerBatch struct {
	firstSequence, lastSequence int32
	lastOffset                  int64
	// offsetDelta is the last offset less the first.
	offsetDelta int32
	timestamp   int64
}

type producerUndo struct {
	id      int64
	existed bool
	was     producer
}

func newProducers() producers { return producers{byID: make(map[int64]*producer)} }

func (b *producerBatch) baseOffset() int64 { return b.lastOffset - int64(b.offsetDelta) }

// begin starts an append that rollback can undo.
func (p *producers) begin() { p.undo = p.undo[:0] }

// mark returns a point to roll back to.
func (p *producers) mark() int { return len(p.undo) }

// rollback undoes all updates since mark.
func (p *producers) rollback(mark int) {
	for i := len(p.undo) - 1; i >= mark; i-- {
		u := &p.undo[i]
		if !u.existed {
			delete(p.byID, u.id)
			continue
		}
		*p.byID[u.id] = u.was
	}
	p.undo = p.undo[:mark]
}

// nextSequence is the sequence after s; it wraps from 2^31-1 to 0 (P3).
func nextSequence(s int32) int32 {
	if s == math.MaxInt32 {
		return 0
	}
	return s + 1
}

// check says whether a leader may append a batch of records: dup is the original if the producer sent it before. set
// says what else is asked of it. Epoch first, then the retry, the transaction, the sequence: a producer that was fenced
// must hear of that, and one whose transaction is over must not be told to begin another sequence (KAFKA-19690).
//
// Errors: ErrInvalidProducerEpoch, ErrInvalidTransactionState, ErrOutOfOrderSequence, that of MayBegin.
func (p *producers) check(h *record.Header, set *Set) (dup producerBatch, isDup bool, err error) {
	e := p.byID[h.ProducerID]
	if skipDedup {
		e = nil
	}
	if e != nil {
		if h.ProducerEpoch < e.epoch {
			return dup, false, fmt.Errorf("append batch of producer %d: %w: epoch %d, the partition has seen %d",
				h.ProducerID, ErrInvalidProducerEpoch, h.ProducerEpoch, e.epoch)
		}
		if h.ProducerEpoch == e.epoch && h.BaseSequence >= 0 {
			last := h.LastSequence()
			for i := range e.batches[:e.count] {
				if b := &e.batches[i]; b.firstSequence == h.BaseSequence && b.lastSequence == last {
					return *b, true, nil
				}
			}
		}
	}
	if err := p.mayContinue(e, h, set); err != nil {
		return dup, false, err
	}
	return dup, false, e.inSequence(h, set)
}

// mayContinue says whether a batch fits the open transaction of its producer, or may open one. e is nil if nothing is
// known of the producer.
func (p *producers) mayContinue(e *producer, h *record.Header, set *Set) error {
	open := e != nil && e.txnFirstOffset >= 0
	if !h.IsTransactional() {
		if open {
			return fmt.Errorf("append batch of producer %d: %w, which begins at offset %d", h.ProducerID, ErrInvalidTransactionState, e.txnFirstOffset)
		}
		return nil
	}
	// With a later epoch it is no part of what is open, which its coordinator has yet to end.
	if open && h.ProducerEpoch == e.epoch || set.MayBegin == nil {
		return nil
	}
	if err := set.MayBegin(); err != nil {
		return fmt.Errorf("begin transaction of producer %d epoch %d: %w", h.ProducerID, h.ProducerEpoch, err)
	}
	return nil
}

// inSequence says whether the sequence of a batch follows what is known, if anything is. The epoch is not an older one.
func (e *producer) inSequence(h *record.Header, set *Set) error {
	if h.BaseSequence < 0 {
		return nil
	}
	want := int32(0)
	switch {
	case e == nil && (set.TransactionVersion < 2 || !h.IsTransactional()):
		return nil // expired, or never seen: any first sequence will do (P4)
	case e == nil, h.ProducerEpoch > e.epoch, e.count == 0:
		// A new epoch, of which at most a marker is known.
	default:
		want = nextSequence(e.batches[0].lastSequence)
	}
	if h.BaseSequence != want {
		return fmt.Errorf("append batch of producer %d epoch %d: %w: sequence %d, expected %d",
			h.ProducerID, h.ProducerEpoch, ErrOutOfOrderSequence, h.BaseSequence, want)
	}
	return nil
}

// checkMarker says whether a leader may append the marker that ends a transaction of a producer here. It may without a
// transaction: one that was sent twice, or the first that is heard of the producer.
//
// Errors: ErrInvalidProducerEpoch, ErrCoordinatorFenced, that of MayBegin.
func (p *producers) checkMarker(h *record.Header, m record.Marker, set *Set) error {
	if set.MayBegin != nil {
		if err := set.MayBegin(); err != nil {
			return fmt.Errorf("end transaction of producer %d epoch %d: %w", h.ProducerID, h.ProducerEpoch, err)
		}
	}
	e := p.byID[h.ProducerID]
	if e == nil {
		return nil
	}
	// With version 2 the coordinator has bumped the epoch. A marker of the very epoch is a late copy of the one before
	// (KAFKA-19999): harmless behind it, but not in the transaction that has begun since.
	late := h.ProducerEpoch == e.epoch && set.TransactionVersion >= 2 && e.txnFirstOffset >= 0
	if h.ProducerEpoch < e.epoch || late {
		return fmt.Errorf("end transaction of producer %d: %w: epoch %d, the partition has seen %d",
			h.ProducerID, ErrInvalidProducerEpoch, h.ProducerEpoch, e.epoch)
	}
	if m.CoordinatorEpoch < e.coordinatorEpoch {
		return fmt.Errorf("end transaction of producer %d: %w: %d, the partition has seen %d",
			h.ProducerID, ErrCoordinatorFenced, m.CoordinatorEpoch, e.coordinatorEpoch)
	}
	return nil
}

// update records a batch that stands at its offsets, checked or not: followers and recovery take what the leader
// took. marker is that of a control batch, nil for other batches and for control batches without. now is the clock of
// Dir.Tick; undoable keeps what rollback needs. If the batch opened or ended a transaction, ok is true.
func (p *producers) update(h *record.Header, marker *record.Marker, now int64, undoable bool) (step transactionStep, ok bool) {
	if h.ProducerID < 0 || h.IsControl() && marker == nil {
		return step, false
	}
	e := p.byID[h.ProducerID]
	if undoable {
		u := producerUndo{id: h.ProducerID, existed: e != nil}
		if e != nil {
			u.was = *e
		}
		p.undo = append(p.undo, u)
	}
	if e == nil {
		e = &producer{epoch: h.ProducerEpoch, coordinatorEpoch: -1, txnFirstOffset: -1}
		p.byID[h.ProducerID] = e
	}
	if h.ProducerEpoch != e.epoch {
		e.epoch, e.count = h.ProducerEpoch, 0
	}
	e.lastTimestamp, e.seen = h.MaxTimestamp, now
	if marker != nil {
		e.coordinatorEpoch = marker.CoordinatorEpoch
		if e.txnFirstOffset < 0 {
			return step, false // it ends nothing here
		}
		step = transactionStep{producerID: h.ProducerID, first: e.txnFirstOffset, marker: h.BaseOffset, aborted: !marker.Commit}
		e.txnFirstOffset = -1
		return step, true
	}
	if h.IsTransactional() && e.txnFirstOffset < 0 {
		step, ok = transactionStep{producerID: h.ProducerID, first: h.BaseOffset, marker: -1}, true
		e.txnFirstOffset = h.BaseOffset
	}
	if h.BaseSequence < 0 {
		return step, ok
	}
	copy(e.batches[1:], e.batches[:producerWindow-1])
	e.batches[0] = producerBatch{
		firstSequence: h.BaseSequence,
		lastSequence:  h.LastSequence(),
		lastOffset:    h.LastOffset(),
		offsetDelta:   h.LastOffsetDelta,
		timestamp:     h.MaxTimestamp,
	}
	e.count = min(e.count+1, producerWindow)
	return step, ok
}

// expire forgets producers that were silent for the given time; never one with an open transaction (P4).
func (p *producers) expire(now, after int64) (expired int) {
	for id, e := range p.byID {
		if e.txnFirstOffset < 0 && now-e.seen >= after {
			delete(p.byID, id)
			expired++
		}
	}
	return expired
}

// list returns the producers sorted by id.
func (p *producers) list() []ProducerState {
	out := make([]ProducerState, 0, len(p.byID))
	for id, e := range p.byID {
		s := ProducerState{
			ProducerID: id, ProducerEpoch: e.epoch, LastSequence: -1, LastOffset: -1, LastTimestamp: e.lastTimestamp,
			CoordinatorEpoch: e.coordinatorEpoch, CurrentTxnFirstOffset: e.txnFirstOffset,
		}
		if e.count > 0 {
			s.LastSequence, s.LastOffset = e.batches[0].lastSequence, e.batches[0].lastOffset
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b ProducerState) int {
		return compareInt64(a.ProducerID, b.ProducerID)
	})
	return out
}

func compareInt64(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
