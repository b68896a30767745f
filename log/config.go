package log

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/log/vfs"
)

// Config configures a [Dir]. Start from [Default].
type Config struct {
	// FS is the file system. Default vfs.OS().
	FS vfs.FS
	// Tasks runs the workers and makes the locks held over file operations. Default vfs.RealTasks().
	Tasks vfs.Tasks
	// Wall is the wall clock; it feeds only retention (I22). Default time.Now.
	Wall func() time.Time
	// Logger gets one line per role change, deletion and failure, none per record. Default slog.Default().
	Logger *slog.Logger
	// Forget is a directory id that the directory may not go on with: if it has this one it gets a new one. Zero is none.
	Forget [16]byte
	// Rand makes log ids and the directory id. Default: a randomly seeded generator. Used under a lock.
	Rand *rand.Rand
	// Registerer gets the collectors of metrics.go; nil registers nothing.
	Registerer prometheus.Registerer

	// WAL switches the write-ahead log on (millrace.wal). Off, every acknowledgement waits for its segment's fdatasync.
	WAL bool
	// WALFileBytes is the size of a WAL file once the directory is in use.
	WALFileBytes int64
	// WALInitialBytes is the size of the WAL files of a fresh directory.
	WALInitialBytes int64
	// WALFiles is the number of WAL files.
	WALFiles int

	// DirectBytes: a partition with that many bytes waiting goes straight to its segment's fdatasync (wal.md 8).
	DirectBytes int64
	// SyncWorkers bounds the concurrent fdatasyncs of the directory.
	SyncWorkers int
	// RecoveryWorkers bounds the partitions recovered at once by OpenDir.
	RecoveryWorkers int
	// ReserveBytes and ReservePercent: appends stop while less than the smaller of the two is free (L13), or less than
	// the write-ahead log may need again at its redo (W20).
	ReserveBytes   int64
	ReservePercent float64
	// BallastBytes is the size of the file given up when a state file must be written on a full disk.
	BallastBytes int64
	// OpenFiles bounds the descriptors of closed segments kept open while nobody reads them.
	OpenFiles int
	// CheckpointBytes and CheckpointInterval bound what recovery reads again: after so many appended bytes, or so
	// long, the next Tick syncs what is dirty and writes the checkpoint.
	CheckpointBytes    int64
	CheckpointInterval time.Duration
	// RetentionInterval is the pause between two retention checks (log.retention.check.interval.ms).
	RetentionInterval time.Duration
	// BackgroundSyncInterval is the longest time that unacknowledged bytes of a flush.ack=false partition stay unsynced.
	BackgroundSyncInterval time.Duration
	// ScrubBytes is the number of bytes of sealed segments that each Tick checks for bit rot (L9); 0 switches it off.
	ScrubBytes int64
	// ClockJump: a difference between wall and monotonic clock above it pauses retention for ClockJumpPause (L15).
	ClockJump      time.Duration
	ClockJumpPause time.Duration

	// OnFailure is called once, from a task of its own, when the directory is poisoned: the process must end (L2, W17).
	OnFailure func(error)

	// walBlockBytes is the alignment of the write-ahead log; tests with small files lower it.
	walBlockBytes int
	// mutants are switched off steps of the protocol, for the tests of the model.
	mutants mutant
}

// Default returns the configuration of a production directory.
func Default() Config {
	return Config{
		FS:                     vfs.OS(),
		Tasks:                  vfs.RealTasks(),
		Wall:                   time.Now,
		WAL:                    true,
		WALFileBytes:           64 << 20,
		WALInitialBytes:        8 << 20,
		WALFiles:               4,
		DirectBytes:            128 << 10,
		SyncWorkers:            16,
		RecoveryWorkers:        4,
		ReserveBytes:           1 << 30,
		ReservePercent:         5,
		BallastBytes:           1 << 20,
		OpenFiles:              512,
		CheckpointBytes:        1 << 30,
		CheckpointInterval:     30 * time.Second,
		RetentionInterval:      5 * time.Minute,
		BackgroundSyncInterval: 3 * time.Second,
		ScrubBytes:             1 << 20,
		ClockJump:              10 * time.Minute,
		ClockJumpPause:         time.Hour,
		walBlockBytes:          walBlockBytes,
	}
}

// Validate checks the fields and fills those that have an obvious default when zero.
func (c *Config) Validate() error {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Tasks == nil {
		c.Tasks = vfs.RealTasks()
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if c.walBlockBytes == 0 {
		c.walBlockBytes = walBlockBytes
	}
	if c.OnFailure == nil {
		c.OnFailure = func(error) {}
	}
	var errs []error
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("log: %s must be positive, is %d", name, v))
		}
	}
	positive("SyncWorkers", int64(c.SyncWorkers))
	positive("RecoveryWorkers", int64(c.RecoveryWorkers))
	positive("OpenFiles", int64(c.OpenFiles))
	positive("CheckpointBytes", c.CheckpointBytes)
	positive("CheckpointInterval", int64(c.CheckpointInterval))
	positive("RetentionInterval", int64(c.RetentionInterval))
	positive("BackgroundSyncInterval", int64(c.BackgroundSyncInterval))
	positive("ClockJump", int64(c.ClockJump))
	if c.ReserveBytes < 0 || c.ReservePercent < 0 || c.ReservePercent > 100 {
		errs = append(errs, fmt.Errorf("log: reserve of %d bytes and %g %% is impossible", c.ReserveBytes, c.ReservePercent))
	}
	if c.ScrubBytes < 0 {
		errs = append(errs, fmt.Errorf("log: ScrubBytes must not be negative, is %d", c.ScrubBytes))
	}
	if c.BallastBytes < 0 {
		errs = append(errs, fmt.Errorf("log: BallastBytes must not be negative, is %d", c.BallastBytes))
	}
	if c.WAL {
		positive("WALFileBytes", c.WALFileBytes)
		positive("WALInitialBytes", c.WALInitialBytes)
		if c.WALFiles < 2 {
			errs = append(errs, fmt.Errorf("log: WALFiles must be at least 2, is %d: one is written while another is retired", c.WALFiles))
		}
		if c.WALInitialBytes < 8*int64(c.walBlockBytes) {
			errs = append(errs, fmt.Errorf("log: WALInitialBytes must be at least %d, is %d", 8*c.walBlockBytes, c.WALInitialBytes))
		}
		positive("DirectBytes", c.DirectBytes)
	}
	return errors.Join(errs...)
}

// Settings are the properties of one partition that may change while it is open: [Log.Configure]. The comments name
// Kafka's topic keys.
type Settings struct {
	// SegmentBytes: the active segment is rolled before it would exceed this size (segment.bytes).
	SegmentBytes int64
	// SegmentAge: a non-empty segment is rolled that long after its first append, by the monotonic clock (segment.ms),
	// less a random part of SegmentJitter (segment.jitter.ms).
	SegmentAge    time.Duration
	SegmentJitter time.Duration
	// SegmentIndexBytes bounds an index file (segment.index.bytes); a full index rolls the segment.
	SegmentIndexBytes int64
	// IndexIntervalBytes is the distance of index entries (index.interval.bytes).
	IndexIntervalBytes int64
	// RetentionAge: segments whose records are all older are deleted (retention.ms); negative: none.
	RetentionAge time.Duration
	// RetentionBytes: the oldest segments are deleted while the rest has at least this size (retention.bytes);
	// negative: none.
	RetentionBytes int64
	// Delete and Compact are the cleanup.policy. Retention deletes only with Delete.
	Delete, Compact bool
	// FileDeleteDelay is the time between the renaming of a deleted partition and its unlinking (file.delete.delay.ms).
	FileDeleteDelay time.Duration
	// FlushAck: acknowledged means on stable storage (millrace.flush.ack). Off, the durable end follows a background
	// sync.
	FlushAck bool
	// FlushMessages and FlushInterval: with FlushAck off, sync after so many records or so long (flush.messages,
	// flush.ms); math.MaxInt64 or ≤ 0 means never for that reason alone.
	FlushMessages int64
	FlushInterval time.Duration
	// ProducerExpiration: the state of a producer is forgotten that long after its last batch
	// (producer.id.expiration.ms).
	ProducerExpiration time.Duration
	// MaxBatchBytes is the largest batch that a leader accepts (max.message.bytes); larger ones may come by
	// replication. It bounds nothing here but the scan of damaged files.
	MaxBatchBytes int
}

// DefaultSettings returns Kafka's defaults.
func DefaultSettings() Settings {
	return Settings{
		SegmentBytes:       1 << 30,
		SegmentAge:         7 * 24 * time.Hour,
		SegmentIndexBytes:  10 << 20,
		IndexIntervalBytes: 4096,
		RetentionAge:       7 * 24 * time.Hour,
		RetentionBytes:     -1,
		Delete:             true,
		FileDeleteDelay:    time.Minute,
		FlushAck:           true,
		ProducerExpiration: 24 * time.Hour,
		MaxBatchBytes:      1<<20 + 12,
	}
}

// normalize replaces zero and impossible values by the defaults, so that a log never has to check them.
func (s Settings) normalize() Settings {
	d := DefaultSettings()
	if s.SegmentBytes <= 0 {
		s.SegmentBytes = d.SegmentBytes
	}
	// Positions in index entries are 32 bits, as in Kafka.
	s.SegmentBytes = min(s.SegmentBytes, 1<<31-1)
	if s.SegmentAge <= 0 {
		s.SegmentAge = d.SegmentAge
	}
	if s.SegmentIndexBytes < 2*timeEntryBytes {
		s.SegmentIndexBytes = d.SegmentIndexBytes
	}
	if s.IndexIntervalBytes < 0 {
		s.IndexIntervalBytes = d.IndexIntervalBytes
	}
	if s.RetentionAge == 0 {
		s.RetentionAge = d.RetentionAge
	}
	if s.FileDeleteDelay < 0 {
		s.FileDeleteDelay = 0
	}
	if s.ProducerExpiration <= 0 {
		s.ProducerExpiration = d.ProducerExpiration
	}
	return s
}
