package log

import (
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
)

// Log is one partition: a run of batches from its start to its end, appended by one writer at a time, read by many.
type Log struct {
	dir       *Dir
	topic     string
	topicID   [16]byte
	partition int32

	// path is the directory of the partition; it changes when the log is deleted or set aside, after closed is set.
	path string

	// syncing admits one direct sync, checkpoint, truncation or trim at a time. It is held over file operations and
	// taken before w.
	syncing sync.Locker
	// w admits one writer at a time. It is held over file operations.
	w sync.Locker

	// settings are replaced as a whole by Configure.
	settings atomic.Pointer[Settings]

	mu struct {
		sync.Mutex
		// segments are sorted by base and never empty; the last is the active one. The slice is replaced, not
		// changed, so readers may keep it.
		segments []*segment
		// logID names this stretch of history (W13).
		logID uint64
		// start ≤ recoveryPoint ≤ durable.end ≤ end. See the package comment.
		start, end int64
		// recoveryPoint: below it all segments, and all derived files, are synced (W19). What the state file or the
		// checkpoint says is never more.
		recoveryPoint int64
		durable       durable
		// highWatermark bounds what retention and trimming may take; it is told by replication and never below start.
		highWatermark int64
		transactions  transactions
		epochs        epochs
		// dirChanged counts new files in the directory, dirSynced the value that the last SyncDir covered (W5).
		dirChanged, dirSynced uint64
		sizeBytes             int64
		// growth is what was appended, and when.
		growth growth
		// unsyncedRecords and unsyncedSince rule the background sync of a partition without flush.ack.
		unsyncedRecords int64
		unsyncedSince   int64
		closed          error // nil while open
		notify          func(durableEnd int64)
		// notifying says that a task is calling notify; notified is the last value told.
		notifying bool
		notified  int64
	}

	// cuts counts the beginnings and ends of truncations: odd while files are being cut. A reader, which holds no lock
	// over its file operations, tells by it whether what it met was there to stay.
	cuts atomic.Uint64

	// cuttingBack says that the writer is undoing a failed write: it syncs a segment without holding syncing.
	cuttingBack atomic.Bool

	// offline is set when a reader finds bytes that should not be there (L9).
	corrupt atomic.Pointer[error]

	// The following belong to the writer (w).

	producers producers
	// snapshots are the offsets of the producer snapshots on disk, ascending.
	snapshots []int64
	// pendingSnapshots were taken at rolls and wait for the next advance to be written and synced.
	pendingSnapshots []pendingSnapshot
	// sealed is the manifest as the state file has it; sealedChanged says that a roll has outdated it.
	sealed        []sealedSegment
	sealedChanged bool
	run           appendRun
	flushBuffer   []byte

	// kept is what the committer of the write-ahead log holds of this log; guarded by its lock.
	kept kept

	// job is the work that the sync workers have for this log; guarded by syncer.lock.
	job job
}

// pendingSnapshot is a producer snapshot in memory.
type pendingSnapshot struct {
	offset int64
	data   []byte
}

func (d *Dir) newLog(topic string, topicID [16]byte, partition int32, path string, s Settings) *Log {
	l := &Log{
		dir: d, topic: topic, topicID: topicID, partition: partition, path: path,
		syncing:   d.cfg.Tasks.Locker(),
		w:         d.cfg.Tasks.Locker(),
		producers: newProducers(),
	}
	s = s.normalize()
	l.settings.Store(&s)
	return l
}

// logger makes a logger for a rare line. Kept, one for each of 10,000 partitions would be a sizeable heap.
func (l *Log) logger() *slog.Logger {
	return l.dir.cfg.Logger.With("topic", l.topic, "partition", l.partition)
}

// Topic returns the topic's name.
func (l *Log) Topic() string { return l.topic }

// TopicID returns the topic's id; a topic created again under the same name has another (L21).
func (l *Log) TopicID() [16]byte { return l.topicID }

// Partition returns the partition's number.
func (l *Log) Partition() int32 { return l.partition }

// String names the partition as its directory is named.
func (l *Log) String() string { return partitionDirName(l.topic, l.partition) }

// StartOffset returns the first offset that may be read.
func (l *Log) StartOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.start
}

// EndOffset returns the offset the next record will get.
func (l *Log) EndOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.end
}

// DurableEnd returns the offset below which everything is on stable storage, exclusive.
func (l *Log) DurableEnd() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.durable.end
}

// RecoveryPoint returns the offset from which recovery would read the segments again if the process ended now and the
// checkpoint were written.
func (l *Log) RecoveryPoint() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.recoveryPoint
}

// HighWatermark returns what SetHighWatermark said last, at least the start.
func (l *Log) HighWatermark() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(l.mu.highWatermark, l.mu.start)
}

// SetHighWatermark bounds retention, trimming and compaction: they stop at it. Lower values than before are ignored
// unless the log was truncated meanwhile. It returns the last stable offset, which can rise only here.
func (l *Log) SetHighWatermark(highWatermark int64) (lastStable int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.highWatermark = max(l.mu.highWatermark, min(highWatermark, l.mu.end))
	l.mu.transactions.settle(l.mu.highWatermark)
	return l.lastStableLocked()
}

// LastEpoch returns the largest leader epoch in the log, -1 if there is none.
func (l *Log) LastEpoch() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.epochs.last()
}

// SizeBytes returns the bytes of all segments, indexes not counted.
func (l *Log) SizeBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.sizeBytes
}

// SegmentCount returns the number of segments.
func (l *Log) SegmentCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.segments)
}

// Settings returns the settings in use.
func (l *Log) Settings() Settings { return *l.settings.Load() }

// Configure replaces the settings. A segment that is now too large or too old is rolled by the next append or Tick.
// Switching FlushAck on begins a sync of the records that were acknowledged without (wal.md 5): the durable end catches
// up.
func (l *Log) Configure(s Settings) {
	s = s.normalize()
	old := l.settings.Swap(&s)
	if s.FlushAck && !old.FlushAck && l.DurableEnd() < l.EndOffset() {
		l.dir.syncer.request(l, jobSync)
	}
}

// EpochEnd returns the largest leader epoch ≤ leaderEpoch in the log and the offset behind its last record, exclusive;
// (-1, -1) if the log has no such epoch (KIP-101, KIP-279).
func (l *Log) EpochEnd(leaderEpoch int32) (epoch int32, endOffset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.epochs.end(leaderEpoch, l.mu.end)
}

// EpochStart returns the first offset of the smallest leader epoch ≥ leaderEpoch, -1 if the log has no such epoch.
func (l *Log) EpochStart(leaderEpoch int32) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.mu.epochs.list {
		if e.leaderEpoch >= leaderEpoch {
			return e.start
		}
	}
	return -1
}

// EpochAt returns the leader epoch of the record at offset, -1 if unknown.
func (l *Log) EpochAt(offset int64) int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.epochs.at(offset)
}

// BeginEpoch notes that this broker leads leaderEpoch from the present end on (R4), so that EpochEnd answers before
// the first append. An epoch that is not larger than the last one is ignored.
func (l *Log) BeginEpoch(leaderEpoch int32) {
	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.epochs.assign(leaderEpoch, l.mu.end)
}

// Producers returns what the log knows about each producer id, sorted by id.
func (l *Log) Producers() []ProducerState {
	l.w.Lock()
	defer l.w.Unlock()
	return l.producers.list()
}

// Notify sets the function that is told each time the durable end has advanced. Calls come one at a time with rising
// values, from a sync worker or the committer, under none of the log's locks. fn must not block. A value may be stale
// when the log is truncated at the same time; DurableEnd is the truth.
func (l *Log) Notify(fn func(durableEnd int64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.notify = fn
	l.mu.notified = -1
}

// tellDurable calls the notify function if the durable end has advanced. Of several tasks one calls, for all. Caller
// holds no lock.
func (l *Log) tellDurable() {
	l.mu.Lock()
	if l.mu.notifying {
		l.mu.Unlock()
		return
	}
	l.mu.notifying = true
	for l.mu.notify != nil && l.mu.durable.end > l.mu.notified {
		fn, end := l.mu.notify, l.mu.durable.end
		l.mu.notified = end
		l.mu.Unlock()
		fn(end)
		l.mu.Lock()
	}
	l.mu.notifying = false
	l.mu.Unlock()
}

// usable returns why the log takes no more work, nil if it does.
func (l *Log) usable() error {
	if err := l.dir.failed(); err != nil {
		return fmt.Errorf("%s: %w: %w", l, ErrPoisoned, err)
	}
	if err := l.corrupt.Load(); err != nil {
		return *err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed != nil {
		return fmt.Errorf("%s: %w", l, l.mu.closed)
	}
	return nil
}

// markCorrupt takes the partition offline: bytes that were durable are missing or changed (L9). Nothing is truncated.
func (l *Log) markCorrupt(err error) error {
	if failure := l.dir.failed(); failure != nil {
		// What was being changed when the directory failed may look like anything; the next start will tell.
		return fmt.Errorf("%s: %w: %w", l, ErrPoisoned, failure)
	}
	err = fmt.Errorf("%s: %w: %w", l, ErrCorrupt, err)
	if l.corrupt.CompareAndSwap(nil, &err) {
		l.dir.metrics.corrupt.Inc()
		l.logger().Error("partition is corrupt and goes offline; its files are kept", "error", err)
	}
	return *l.corrupt.Load()
}

// Corrupt returns why the partition went offline while it was open, nil if it did not.
func (l *Log) Corrupt() error {
	if err := l.corrupt.Load(); err != nil {
		return *err
	}
	return nil
}

// active returns the active segment. Caller is the writer or holds mu.
func (l *Log) active() *segment { return l.mu.segments[len(l.mu.segments)-1] }

// segmentAt returns the index of the segment that would hold offset: the last with base ≤ offset, or 0.
func segmentAt(segments []*segment, offset int64) int {
	lo, hi := 1, len(segments)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if segments[mid].base <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// maxRelativeOffset is the largest offset an index entry can hold: a segment is rolled before it would exceed it.
const maxRelativeOffset = math.MaxInt32
