package replication

import (
	"math"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
)

// MarkerRequest asks a partition to append the marker that ends a transaction of a producer.
type MarkerRequest struct {
	ProducerID    int64
	ProducerEpoch int16
	// Commit says how the transaction ends; false: by an abort.
	Commit bool
	// CoordinatorEpoch is that of the coordinator which decided so.
	CoordinatorEpoch int32
	// TransactionVersion is the transaction protocol of the producer. With 2 ProducerEpoch is later than that of the
	// records (KIP-890), and a marker which is not is refused: it is a late copy, and another transaction is open.
	TransactionVersion int8
	// CurrentLeaderEpoch is the leader epoch the caller believes in, -1 for any.
	CurrentLeaderEpoch int32
	// MayAppend is asked at the marker's place in the log, as AppendRequest.MayBegin is; its error is the outcome, and
	// definite. Nil: not asked.
	MayAppend func() error
	// Timeout bounds the wait for the acknowledgement, not the append; a negative one does not.
	Timeout time.Duration
	// Waiter gets the result, together with Index.
	Waiter AppendWaiter
	Index  int
}

// AppendMarker appends a transaction marker behind everything that was passed to Append before, with acks=all: when it
// succeeds the marker is below the high watermark, so the end of the transaction counts (P13). It is appended also where
// no transaction of the producer is open; there it only raises the epochs. The outcomes are those of Append, and
// ErrInvalidProducerEpoch and ErrCoordinatorFenced of package log.
func (p *Partition) AppendMarker(r MarkerRequest) {
	m := record.Marker{Commit: r.Commit, CoordinatorEpoch: r.CoordinatorEpoch}
	p.enqueue(queued{
		AppendRequest: AppendRequest{
			Records: m.Batch(r.ProducerID, r.ProducerEpoch, time.Now().UnixMilli()), Owner: unshared{},
			Acks: -1, Timeout: r.Timeout, CurrentLeaderEpoch: r.CurrentLeaderEpoch, TransactionVersion: r.TransactionVersion,
			MayBegin: r.MayAppend,
			Waiter:   r.Waiter, Index: r.Index,
		},
		marker: true,
	})
}

// unshared owns bytes that nobody else has: the garbage collector sees to them.
type unshared struct{}

// Retain implements log.Buffer.
func (unshared) Retain() {}

// Release implements log.Buffer.
func (unshared) Release() {}

// Producers returns what the log knows about each producer id, sorted by id (KIP-664): every replica knows it.
func (p *Partition) Producers() []log.ProducerState { return p.log.Producers() }

// OldestTransaction returns the open transaction that holds back the last stable offset; ok is false if none is open.
func (p *Partition) OldestTransaction() (t log.OpenTransaction, ok bool) {
	return p.log.OldestTransaction()
}

// unstableBytes tells how many bytes become readable to a reader of committed records when the last stable offset moves.
// While no transaction is open it has nothing to remember. Guarded by the partition's lock.
type unstableBytes struct {
	// marks are high watermarks above the last stable offset, ascending, each with the bytes between it and the one
	// before.
	marks []unstableMark
	// lastStable is where the last stable offset stood at the last look.
	lastStable int64
}

type unstableMark struct{ offset, bytes int64 }

// maxUnstableMarks bounds the marks: then neighbours are put together, and the count is coarser.
const maxUnstableMarks = 1024

// passed notes that the high watermark has moved past so many bytes, and returns those that became stable.
func (u *unstableBytes) passed(lastStable, highWatermark, bytes int64) (stable int64) {
	if len(u.marks) == 0 && lastStable >= highWatermark {
		u.lastStable = lastStable
		return bytes
	}
	if len(u.marks) == maxUnstableMarks {
		for i := range maxUnstableMarks / 2 {
			a, b := u.marks[2*i], u.marks[2*i+1]
			u.marks[i] = unstableMark{b.offset, a.bytes + b.bytes}
		}
		u.marks = u.marks[:maxUnstableMarks/2]
	}
	u.marks = append(u.marks, unstableMark{highWatermark, bytes})
	n, counted := 0, u.lastStable
	for n < len(u.marks) && u.marks[n].offset <= lastStable {
		stable, counted = stable+u.marks[n].bytes, u.marks[n].offset
		n++
	}
	u.marks = u.marks[:copy(u.marks, u.marks[n:])]
	if len(u.marks) > 0 && lastStable > counted {
		// It may have moved into the middle of the next: rather too many than too few, for whom nobody would wake.
		stable += u.marks[0].bytes
		u.marks[0].bytes = 0
	}
	u.lastStable = lastStable
	return stable
}

// reset forgets what is not known any more: the next move counts as much as anybody can want.
func (u *unstableBytes) reset(highWatermark int64) {
	u.marks = append(u.marks[:0], unstableMark{highWatermark, math.MaxInt32})
}
