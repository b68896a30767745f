package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/record"
)

// Offset specifications of ListOffsets; every value ≥ 0 is a timestamp in milliseconds.
const (
	OffsetLatest        = int64(-1) // the high watermark; with read_committed the last stable offset
	OffsetEarliest      = int64(-2) // the log start offset
	OffsetMaxTimestamp  = int64(-3) // the record with the largest timestamp (KIP-734)
	OffsetEarliestLocal = int64(-4) // as OffsetEarliest: there is no other tier (KIP-405)
	OffsetLatestTiered  = int64(-5) // none: there is no other tier
)

// ListOffset finds an offset by specification or time. By time it is the first record whose own timestamp is at least
// spec. Offset and timestamp are -1 when there is none; timestamp is -1 also for the specifications that ask for a
// position. Latest and by time fail with ErrOffsetNotAvailable while a new leader might answer less than its
// predecessor did (R7).
func (p *Partition) ListOffset(spec int64, committed bool, currentLeaderEpoch int32) (offset, timestamp int64, epoch int32, err error) {
	v := p.view.Load()
	if err := v.check(currentLeaderEpoch); err != nil {
		return -1, -1, -1, err
	}
	if err := p.mayServe(); err != nil {
		return -1, -1, -1, err
	}
	switch spec {
	case OffsetEarliest, OffsetEarliestLocal:
		start := p.log.StartOffset()
		return start, -1, p.epochAt(start, v.leaderEpoch), nil
	case OffsetLatestTiered:
		return -1, -1, -1, nil
	}
	if spec < OffsetLatestTiered {
		return -1, -1, -1, fmt.Errorf("list offset %d of %s-%d: %w", spec, p.topic.name, p.partition, ErrUnknownOffsetSpec)
	}
	if !v.available {
		return -1, -1, -1, ErrOffsetNotAvailable
	}
	limit := p.highWatermark.Load()
	if committed {
		limit = p.lastStable.Load()
	}
	switch spec {
	case OffsetLatest:
		return limit, -1, v.leaderEpoch, nil
	case OffsetMaxTimestamp:
		offset, timestamp, epoch, err = p.log.MaxTimestamp(limit)
	default:
		offset, timestamp, epoch, err = p.log.OffsetForTime(spec, limit)
	}
	if err != nil {
		return -1, -1, -1, p.storageError("search", err)
	}
	return offset, timestamp, epoch, nil
}

// BatchTimes describes the first batch that a reader from an offset gets: the offsets it spans, base inclusive and next
// exclusive, and its first and last record's timestamp in milliseconds, as its header has them. With LogAppendTime both are
// that time. base = next says that there is nothing at the offset yet.
//
// Errors as Read's: ErrNotLeader and its kin, log.ErrOffsetOutOfRange below the start, ErrStorage.
func (p *Partition) BatchTimes(offset int64) (base, next, first, last int64, err error) {
	v := p.view.Load()
	if err := v.check(-1); err != nil {
		return 0, 0, 0, 0, err
	}
	if err := p.mayServe(); err != nil {
		return 0, 0, 0, 0, err
	}
	limit := p.highWatermark.Load()
	if offset >= limit {
		return offset, offset, 0, 0, nil
	}
	slice, err := p.log.Read(offset, limit, 1, true)
	if err != nil {
		return 0, 0, 0, 0, fmt.Errorf("look at the batch at offset %d of %s-%d: %w", offset, p.topic.name, p.partition, err)
	}
	defer slice.Release()
	if slice.Len() == 0 {
		return offset, offset, 0, 0, nil
	}
	header := make(record.Batch, record.HeaderBytes)
	if _, err := slice.ReadAt(header, 0); err != nil {
		return 0, 0, 0, 0, p.storageError("read", err)
	}
	first, last = header.BaseTimestamp(), header.MaxTimestamp()
	if header.TimestampType() == record.LogAppendTime || header.HasDeleteHorizon() {
		first = last
	}
	return slice.BaseOffset(), slice.NextOffset(), first, last, nil
}

// RetentionLeft says how long retention leaves the record at an offset alone, as this replica stands; see log.Log.RetentionLeft.
func (p *Partition) RetentionLeft(offset int64) (time.Duration, log.Doom) {
	return p.log.RetentionLeft(offset)
}

// Damage says what is wrong with this replica's log, nil for nothing: it leads nothing then (L9).
func (p *Partition) Damage() error { return p.log.Corrupt() }

// CheckBatch compares the checksum of the batch at an offset and returns its size in bytes, 0 if there is none below the high
// watermark. Damage takes this replica offline, as when a consumer asks for it again (L9).
//
// Errors as Read's.
func (p *Partition) CheckBatch(offset int64) (bytes int64, err error) {
	if err := p.view.Load().check(-1); err != nil {
		return 0, err
	}
	if err := p.mayServe(); err != nil {
		return 0, err
	}
	limit := p.highWatermark.Load()
	if offset >= limit {
		return 0, nil
	}
	slice, err := p.log.ReadChecked(offset, limit, 0, true)
	if err != nil {
		p.noteReadError(err)
		return 0, p.storageError("read", err)
	}
	defer slice.Release()
	return int64(slice.Len()), nil
}

// EpochEnd answers OffsetForLeaderEpoch: the largest leader epoch ≤ epoch and the offset at which it ends here
// (exclusive); -1, -1 when there is none. Only the leader answers, and not without its lease: that an epoch is unknown, or ends
// before what somebody has read, is what a newer leader could contradict, and a consumer takes it for data that is lost.
func (p *Partition) EpochEnd(currentLeaderEpoch, epoch int32) (foundEpoch int32, endOffset int64, err error) {
	v := p.view.Load()
	if err := v.check(currentLeaderEpoch); err != nil {
		return -1, -1, err
	}
	if err := p.mayServe(); err != nil {
		return -1, -1, err
	}
	foundEpoch, endOffset = p.epochEnd(v.leaderEpoch, epoch)
	return foundEpoch, endOffset, nil
}

// DeleteRecords moves the log start offset to offset, -1 for the last stable offset, and returns the low watermark: the
// least start offset of all live replicas. Batches are kept whole. Above the last stable offset it is ErrOffsetOutOfRange
// of package log: what is deleted may neither be truncated yet nor belong to an open transaction (L17).
func (p *Partition) DeleteRecords(ctx context.Context, offset int64, currentLeaderEpoch int32) (lowWatermark int64, err error) {
	done := make(trimWaiter, 1)
	p.mu.Lock()
	now := p.m.now()
	deadline := Never
	if t, ok := ctx.Deadline(); ok {
		deadline = now + Instant(max(time.Until(t), 0))
	}
	w := p.mu.waiters.add(slot{waiter: done})
	p.step(now, &DeleteRecords{
		Waiter: w, LeaderEpoch: currentLeaderEpoch, Offset: offset, LastStableOffset: p.lastStable.Load(), Deadline: deadline,
	})
	trim := p.mu.trimTo
	p.mu.trimTo = -1
	p.armTimer(now)
	p.unlock()
	if trim >= 0 {
		p.trim(trim)
	}
	select {
	case r := <-done:
		return r.BaseOffset, r.Err
	case <-ctx.Done():
		// The core answers at its deadline at the latest, or never cared for one: the channel has room, nobody waits
		// for us.
		return -1, fmt.Errorf("delete records of %s-%d: %w: %w", p.topic.name, p.partition, ErrTimeout, ctx.Err())
	}
}

// trim makes the new start durable, outside the lock: it may take several syncs (W15).
func (p *Partition) trim(to int64) {
	// A follower may have been told of a start beyond what is stable here; it is told again when its high watermark moves.
	err := p.log.TrimPrefix(min(to, max(p.log.LastStableOffset(), p.log.StartOffset())))
	if err != nil {
		err = p.storageError("trim", err)
	}
	p.mu.Lock()
	p.startMovedLocked(&StartMoved{StartOffset: p.log.StartOffset(), Err: err})
	p.unlock()
}

// trimWaiter receives the result of a DeleteRecords.
type trimWaiter chan AppendResult

// Appended implements AppendWaiter.
func (w trimWaiter) Appended(_ int, r AppendResult) { w <- r }

// epochAt returns the leader epoch of the first batch at offset: the leader's own at the end of the log, -1 if it is
// not known.
func (p *Partition) epochAt(offset int64, leaderEpoch int32) int32 {
	if offset >= p.log.EndOffset() {
		return leaderEpoch
	}
	return p.log.EpochAt(offset)
}
