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

// check says whether a leader may append a batch: dup is the original if the producer sent it before. Errors are
// ErrInvalidProducerEpoch and ErrOutOfOrderSequence.
func (p *producers) check(h *record.Header) (dup producerBatch, isDup bool, err error) {
	e := p.byID[h.ProducerID]
	if e == nil || skipDedup {
		return dup, false, nil // expired, or never seen: any first sequence will do (P4)
	}
	if h.ProducerEpoch < e.epoch {
		return dup, false, fmt.Errorf("append batch of producer %d: %w: epoch %d, the partition has seen %d",
			h.ProducerID, ErrInvalidProducerEpoch, h.ProducerEpoch, e.epoch)
	}
	if h.IsControl() || h.BaseSequence < 0 {
		return dup, false, nil
	}
	if h.ProducerEpoch > e.epoch {
		if h.BaseSequence != 0 {
			return dup, false, fmt.Errorf("append batch of producer %d: %w: sequence %d begins epoch %d, should be 0",
				h.ProducerID, ErrOutOfOrderSequence, h.BaseSequence, h.ProducerEpoch)
		}
		return dup, false, nil
	}
	last := h.LastSequence()
	for i := range e.batches[:e.count] {
		if b := &e.batches[i]; b.firstSequence == h.BaseSequence && b.lastSequence == last {
			return *b, true, nil
		}
	}
	if e.count == 0 {
		return dup, false, nil // only a marker is known of this epoch
	}
	if want := nextSequence(e.batches[0].lastSequence); h.BaseSequence != want {
		return dup, false, fmt.Errorf("append batch of producer %d epoch %d: %w: sequence %d, expected %d",
			h.ProducerID, h.ProducerEpoch, ErrOutOfOrderSequence, h.BaseSequence, want)
	}
	return dup, false, nil
}

// update records a batch that stands at its offsets, checked or not: followers and recovery take what the leader
// took. now is the clock of Dir.Tick; undoable keeps what rollback needs.
func (p *producers) update(h *record.Header, now int64, undoable bool) {
	if h.ProducerID < 0 {
		return
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
	if h.IsControl() || h.BaseSequence < 0 {
		return
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
