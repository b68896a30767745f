package log

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/log/vfs"
)

// tickState is what Tick remembers between calls.
type tickState struct {
	started bool
	// first and last are the times of the first and the last call; lastWall is the wall clock at the last, without
	// monotonic reading.
	first, last, lastWall time.Time
	// pausedUntil: retention waits until then because the wall clock jumped (L15).
	pausedUntil int64
	// lastRetention and lastCheckpoint are when these were done, on the clock of Tick.
	lastRetention, lastCheckpoint int64
	scrub                         scrubber
}

// Tick does what is due at now, which must carry the monotonic clock: rolls by age, background syncs, the checkpoint,
// retention, expiry of producers, unlinking of deleted partitions, scrubbing, and a look at the free space. One task calls it at
// a time; it may take long, appends and reads go on meanwhile.
func (d *Dir) Tick(now time.Time) {
	d.mu.Lock()
	closed := d.mu.closed
	d.mu.Unlock()
	if closed || d.failed() != nil {
		return
	}
	clock := d.advanceClock(now)
	d.checkSpace()
	if d.ballastGone.Load() && !d.noSpace.Load() {
		d.ensureBallast()
	}
	d.unlinkDeleted(clock)
	logs := d.Logs()
	for _, l := range logs {
		l.rollByAge(clock)
	}
	for _, l := range logs {
		l.syncIfDue(clock)
	}
	if clock-d.tick.lastRetention >= int64(d.cfg.RetentionInterval) {
		d.tick.lastRetention = clock
		if clock < d.tick.pausedUntil {
			d.cfg.Logger.Warn("retention is paused because the wall clock jumped", "dir", d.path, "for", time.Duration(d.tick.pausedUntil-clock))
		} else {
			for _, l := range logs {
				l.retain(d.wallMillis.Load())
			}
		}
		for _, l := range logs {
			l.expireProducers(clock)
		}
	}
	d.scrub(logs)
	due := clock-d.tick.lastCheckpoint >= int64(d.cfg.CheckpointInterval)
	if due || d.sinceCheckpoint.Load() >= d.cfg.CheckpointBytes {
		d.tick.lastCheckpoint = clock
		if err := d.checkpoint(false); err != nil {
			d.cfg.Logger.Warn("checkpoint was not written", "dir", d.path, "error", err)
		}
	}
}

// advanceClock moves the clock of the directory and watches the wall clock for jumps (L15).
func (d *Dir) advanceClock(now time.Time) int64 {
	wall := d.cfg.Wall().Round(0)
	t := &d.tick
	if !t.started {
		t.started, t.first = true, now
	} else {
		jump := wall.Sub(t.lastWall) - now.Sub(t.last)
		if jump > d.cfg.ClockJump || jump < -d.cfg.ClockJump {
			t.pausedUntil = int64(now.Sub(t.first)) + int64(d.cfg.ClockJumpPause)
			d.cfg.Logger.Warn("wall clock jumped; retention is paused", "jump", jump, "for", d.cfg.ClockJumpPause)
		}
	}
	t.last, t.lastWall = now, wall
	clock := int64(now.Sub(t.first))
	d.clock.Store(clock)
	d.wallMillis.Store(wall.UnixMilli())
	if clock < t.pausedUntil {
		d.metrics.retentionPaused.Set(1)
	} else {
		d.metrics.retentionPaused.Set(0)
	}
	return clock
}

// ageLimit draws the age at which a new segment is rolled.
func (d *Dir) ageLimit(s *Settings) int64 {
	age := int64(s.SegmentAge)
	if jitter := min(int64(s.SegmentJitter), age-1); jitter > 0 {
		d.mu.Lock()
		age -= d.cfg.Rand.Int64N(jitter)
		d.mu.Unlock()
	}
	return age
}

// rollByAge rolls the active segment if it is due and holds records, and takes note of how much was appended until now.
func (l *Log) rollByAge(clock int64) {
	l.mu.Lock()
	l.mu.growth.mark(clock)
	seg := l.active()
	due := l.mu.closed == nil && seg.size > 0 && seg.ageLimit > 0 && clock-seg.firstAppend >= min(seg.ageLimit, int64(l.Settings().SegmentAge))
	l.mu.Unlock()
	if due {
		l.rollActive(seg, "age")
	}
}

// rollActive rolls the active segment if it still is the given one.
func (l *Log) rollActive(seg *segment, reason string) {
	if l.dir.full() {
		return // a new file could not be made
	}
	l.w.Lock()
	defer l.w.Unlock()
	if l.usable() != nil || l.active() != seg {
		return
	}
	l.mu.Lock()
	end := l.mu.end
	l.mu.Unlock()
	if err := l.roll(end, reason); err != nil {
		l.logger().Warn("segment was not rolled", "segment", seg.base, "reason", reason, "error", err)
	}
}

// syncIfDue syncs a partition that acknowledges without waiting for the disk, if it was dirty long enough: one
// partition at a time, so that the acknowledged ones beside it are not starved (dataplane.md 6).
func (l *Log) syncIfDue(clock int64) {
	s := l.settings.Load()
	interval := int64(l.dir.cfg.BackgroundSyncInterval)
	if s.FlushInterval > 0 {
		interval = min(interval, int64(s.FlushInterval))
	}
	l.mu.Lock()
	due := l.mu.closed == nil && l.mu.unsyncedRecords > 0 && clock-l.mu.unsyncedSince >= interval
	due = due && (!s.FlushAck || l.mu.durable.end < l.mu.end)
	l.mu.Unlock()
	if due && !s.FlushAck {
		_ = l.Flush() // an error has poisoned the directory
	}
}

// expireProducers forgets producers that were silent for long (P4).
func (l *Log) expireProducers(clock int64) {
	l.w.Lock()
	defer l.w.Unlock()
	if n := l.producers.expire(clock, int64(l.Settings().ProducerExpiration)); n > 0 {
		l.logger().Debug("producers expired", "count", n)
	}
}

// checkpoint brings the recovery points of all partitions to their ends, many at a time, and writes the checkpoint
// file. With all it fails if a partition could not be brought there.
func (d *Dir) checkpoint(all bool) error {
	d.checkpointing.Lock()
	defer d.checkpointing.Unlock()
	d.sinceCheckpoint.Store(0)
	logs := d.Logs()
	for _, l := range logs {
		d.requestAdvance(l)
	}
	d.syncer.waitAdvanced()
	if err := d.failed(); err != nil {
		return err
	}
	if all {
		for _, l := range logs {
			if rp, end := l.RecoveryPoint(), l.EndOffset(); rp != end && l.Corrupt() == nil {
				return fmt.Errorf("%s: recovery point is %d, the end %d", l, rp, end)
			}
		}
		// Everything is in synced segments: with this checkpoint all generations are retired.
		d.mu.Lock()
		d.mu.live = false
		d.mu.oldestGeneration = max(d.mu.oldestGeneration, d.mu.closingGeneration)
		d.mu.Unlock()
	}
	return d.writeCheckpoint()
}

// writeCheckpoint writes the checkpoint file with the recovery points as they are. Caller holds checkpointing.
func (d *Dir) writeCheckpoint() error {
	cp := checkpoint{recoveryPoints: make(map[uint64]int64)}
	for _, l := range d.Logs() {
		l.mu.Lock()
		cp.recoveryPoints[l.mu.logID] = l.mu.recoveryPoint
		l.mu.Unlock()
	}
	d.mu.Lock()
	cp.oldest, cp.live = d.mu.oldestGeneration, d.mu.live
	d.mu.Unlock()
	if err := d.replaceFile(d.path, checkpointName, cp.encode()); err != nil {
		if errors.Is(err, vfs.ErrNoSpace) {
			return fmt.Errorf("write checkpoint: %w", err) // the old one is as good as before
		}
		return d.fail(fmt.Errorf("write checkpoint: %w", err))
	}
	return nil
}
