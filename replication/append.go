package replication

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
)

// AppendRequest asks a partition to append one batch.
type AppendRequest struct {
	// Records is one validated record batch; base offset and leader epoch are patched in place.
	Records []byte
	// Owner owns Records. Nil: the bytes are valid only during the call of [Partition.Append], which then copies them
	// if it has to queue them.
	Owner log.Buffer
	// Acks is -1 (all), 1 or 0.
	Acks int16
	// Timeout bounds the wait for the acknowledgement, not the append.
	Timeout time.Duration
	// CurrentLeaderEpoch is the leader epoch the caller believes in, -1 for any. The zero value is epoch 0: say -1 when
	// there is none.
	CurrentLeaderEpoch int32
	// MayBegin is asked, at the batch's place in the log, when the batch would open a transaction in this partition, and
	// only then: its error is the outcome, and definite. Nil: not asked. It is called with locks of this package and of
	// the log held, and must not block: reading the newest Image is all it should do. A marker is appended only after
	// the Image shows that its transaction is over, so nothing opens a transaction behind its own marker (P7).
	MayBegin func() error
	// TransactionVersion is the transaction protocol that the producer follows. With 2 each transaction has an epoch of
	// its own (KIP-890), so the first batch known of a producer must begin at sequence 0. Zero is as good as 1.
	TransactionVersion int8
	// Waiter gets the result, together with Index.
	Waiter AppendWaiter
	Index  int
}

// AppendWaiter is told the outcome of an append.
type AppendWaiter interface {
	// Appended is called exactly once per Append: inside it, or later on the goroutine of another appender, of the
	// log's committer or of a timer. No lock of this package is held. It must not block, and so must not append.
	Appended(index int, r AppendResult)
}

// AppendResult is the outcome of one append.
type AppendResult struct {
	// BaseOffset is the offset of the first record, of the original one for a duplicate; -1 with Err.
	BaseOffset int64
	// LogStartOffset is the partition's first offset at the time of the answer.
	LogStartOffset int64
	// LeaderID and LeaderEpoch are those known when the answer was made; -1 when there is no leader.
	LeaderID    metadata.BrokerID
	LeaderEpoch int32
	// Err is nil when the batch is acknowledged as Acks asks. See errors.go for which errors are definite.
	Err error
}

// appendRounds is how many rounds one appender drains for others before it hands the queue to the manager's drainer.
// Whoever appends to a busy partition would otherwise be kept from reading its own connection for as long as others
// keep coming.
const appendRounds = 8

// Append appends one batch. Concurrent appenders are combined: the first one drains the queue, all that wait are
// written by one call of the log, and nobody else blocks on the partition. The order of calls from one goroutine is the
// order in the log.
func (p *Partition) Append(r AppendRequest) { p.enqueue(queued{AppendRequest: r}) }

// enqueue is Append.
func (p *Partition) enqueue(r queued) {
	q := &p.queue
	q.Lock()
	if q.draining || q.held {
		if r.Owner != nil {
			r.Owner.Retain()
		} else {
			r.Records = slices.Clone(r.Records)
		}
		r.retained = r.Owner != nil
		q.pending = append(q.pending, r)
		q.Unlock()
		return
	}
	q.draining = true
	q.pending = append(q.pending, r)
	q.Unlock()
	p.drain()
}

// queued is an AppendRequest in the queue.
type queued struct {
	AppendRequest
	retained bool // Owner must be released after the append
	marker   bool // it is a transaction marker, no produce request
}

// drain appends what waits until nothing does. The caller owns q.draining.
func (p *Partition) drain() {
	q := &p.queue
	var batch []queued
	for round := 1; ; round++ {
		q.Lock()
		if batch != nil {
			q.spare = batch[:0]
		}
		if len(q.pending) == 0 || q.held {
			q.draining = false
			q.Unlock()
			return
		}
		if round > appendRounds && p.m.handOver(p) {
			q.Unlock()
			return
		}
		batch, q.pending = q.pending, q.spare
		q.spare = nil
		q.Unlock()
		p.appendAll(batch)
		clear(batch) // no request may be kept alive by the queue
	}
}

// appendAll passes the batch of requests through the core and writes those it lets through with one call of the log.
func (p *Partition) appendAll(batch []queued) {
	p.mu.Lock()
	s := &p.mu.scratch
	now := p.m.now()
	requests := 0
	for i := range batch {
		r := &batch[i]
		if !r.marker {
			requests++
		}
		deadline := Never
		if r.Timeout >= 0 {
			deadline = now + Instant(r.Timeout)
		}
		w := p.mu.waiters.add(slot{waiter: r.Waiter, index: r.Index, produce: !r.marker})
		if err := p.mayServeLocked(now); err != nil {
			p.complete(Action{Kind: ActionComplete, Waiter: w, Offset: -1, Err: err})
			continue
		}
		s.produce = Produce{Waiter: w, Acks: r.Acks, LeaderEpoch: r.CurrentLeaderEpoch, Deadline: deadline}
		for _, a := range p.mu.core.Step(now, &s.produce) {
			if a.Kind != ActionAppend {
				p.do(a)
				continue
			}
			s.sets = append(s.sets, log.Set{Records: r.Records, Owner: r.Owner, MayBegin: r.MayBegin, TransactionVersion: r.TransactionVersion})
			s.appending = append(s.appending, Appended{Waiter: w, Acks: r.Acks, Deadline: deadline})
		}
	}
	if len(s.sets) > 0 {
		p.appendSets(now)
	}
	p.topic.metrics.appended(requests, p.mu.failed)
	p.mu.failed = 0
	for i := range batch {
		if batch[i].retained {
			batch[i].Owner.Release()
		}
	}
	p.armTimer(now)
	p.unlock()
}

// appendSets writes scratch.sets and tells the core about each.
func (p *Partition) appendSets(now Instant) {
	s := &p.mu.scratch
	epoch := p.mu.core.LeaderEpoch()
	s.out = slices.Grow(s.out[:0], len(s.sets))[:len(s.sets)]
	clear(s.out)
	err := p.log.Append(epoch, s.sets, s.out) // also in out, but for duplicates of what is in the log already
	// What is measured before the core hears of it: with FlushAck off the very first Appended may commit all.
	round := paceRound{base: -1, at: now}
	records := int64(0)
	for i := range s.out {
		if o := &s.out[i]; o.Err == nil && !o.Duplicate {
			if round.base < 0 {
				round.base = o.BaseOffset
			}
			round.next = o.NextOffset
			round.bytes += int64(len(s.sets[i].Records))
			records += countRecords(s.sets[i].Records)
		}
	}
	if round.bytes > 0 {
		p.mu.pace.add(round)
		p.topic.metrics.messagesIn.Add(records)
		p.topic.metrics.bytesIn.Add(round.bytes)
	}
	for i := range s.appending {
		ev, o := &s.appending[i], &s.out[i]
		ev.BaseOffset, ev.NextOffset, ev.Duplicate = o.BaseOffset, o.NextOffset, o.Duplicate
		if o.Err != nil {
			ev.Err = p.storageError("append to", o.Err)
		}
		p.step(now, ev)
	}
	clear(s.sets)
	s.sets, s.appending = s.sets[:0], s.appending[:0]
	if round.bytes > 0 {
		p.tail.advance(round.next, round.bytes, &p.mu.done)
		for _, sp := range p.mu.sessions {
			p.wakeLater(sp.appended(round.bytes))
		}
	}
	switch {
	case errors.Is(err, log.ErrPoisoned):
		err = p.storageError("append to", err)
		p.step(now, &StorageFailed{Err: err})
		p.m.storageFailed(err)
	case errors.Is(err, log.ErrCorrupt):
		p.step(now, &StorageFailed{Err: p.corruptError(err)}) // L9: this partition only
	}
}

// corruptError is what a partition answers whose log holds damage (L9). What was appended before may still be
// acknowledged nowhere and visible to nobody, so it is indefinite.
func (p *Partition) corruptError(err error) error {
	return fmt.Errorf("partition %s-%d is offline: %w: %w", p.topic.name, p.partition, ErrStorage, err)
}

// storageError wraps an error of the log; the end of the directory becomes ErrStorage, everything else keeps its own
// meaning.
func (p *Partition) storageError(verb string, err error) error {
	if errors.Is(err, log.ErrPoisoned) || errors.Is(err, log.ErrClosed) {
		return fmt.Errorf("%s %s-%d: %w: %w", verb, p.topic.name, p.partition, ErrStorage, err)
	}
	return fmt.Errorf("%s %s-%d: %w", verb, p.topic.name, p.partition, err)
}
