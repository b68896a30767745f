package log

import (
	"context"
	"time"

	"github.com/millrace/millrace/log/vfs"
)

const timeEntryBytes = 12

// Dir is one log directory.
type Dir struct{}

// OpenDir locks a directory, recovers every partition in it, and serves. The directory is created if absent.
func OpenDir(path string, cfg Config) (*Dir, error) { return nil, ErrClosed }

// ID returns the random id of the directory, made when it was first opened (L11).
func (d *Dir) ID() [16]byte { return [16]byte{} }

// Path returns the path the directory was opened with.
func (d *Dir) Path() string { return "" }

// CleanStart says whether the last stop left the proof that all bytes were synced (I12).
func (d *Dir) CleanStart() bool { return false }

// RecoveryStats says what OpenDir did.
func (d *Dir) RecoveryStats() RecoveryStats { return RecoveryStats{} }

// Create makes a partition that begins at startOffset.
func (d *Dir) Create(topic string, topicID [16]byte, partition int32, startOffset int64, s Settings) (*Log, error) {
	return nil, ErrClosed
}

// Lookup finds an open partition.
func (d *Dir) Lookup(topicID [16]byte, partition int32) (*Log, bool) { return nil, false }

// Logs returns the open partitions, sorted by topic and partition.
func (d *Dir) Logs() []*Log { return nil }

// Offline returns the partitions that can not be served.
func (d *Dir) Offline() []OfflinePartition { return nil }

// Delete removes a partition.
func (d *Dir) Delete(l *Log) error { return nil }

// SetAside keeps a partition that the metadata does not know, under another name (L12).
func (d *Dir) SetAside(l *Log) error { return nil }

// Tick does what is due at now: rolls by age, background syncs, the checkpoint, retention, expiry of producers,
// unlinking of deleted partitions. now must carry the monotonic clock.
func (d *Dir) Tick(now time.Time) {}

// Run calls Tick every second until ctx ends.
func (d *Dir) Run(ctx context.Context) {}

// Close syncs everything, proves it with the clean-stop marker, and releases the directory.
func (d *Dir) Close() error { return nil }

// Failed returns the error that poisoned the directory, nil while it is healthy.
func (d *Dir) Failed() error { return nil }

// Usage returns the free and total bytes of the file system.
func (d *Dir) Usage() (free, total int64, err error) { return 0, 0, nil }

// Log is one partition.
type Log struct{}

func (l *Log) Topic() string                       { return "" }
func (l *Log) TopicID() [16]byte                   { return [16]byte{} }
func (l *Log) Partition() int32                    { return 0 }
func (l *Log) StartOffset() int64                  { return 0 }
func (l *Log) EndOffset() int64                    { return 0 }
func (l *Log) DurableEnd() int64                   { return 0 }
func (l *Log) LastEpoch() int32                    { return -1 }
func (l *Log) SizeBytes() int64                    { return 0 }
func (l *Log) Settings() Settings                  { return Settings{} }
func (l *Log) Configure(s Settings)                {}
func (l *Log) Notify(fn func(durableEnd int64))    {}
func (l *Log) Flush() error                        { return nil }
func (l *Log) Truncate(to int64) error             { return nil }
func (l *Log) TrimPrefix(start int64) error        { return nil }
func (l *Log) SetHighWatermark(hw int64)           {}
func (l *Log) Producers() []ProducerState          { return nil }
func (l *Log) Replicate(sets []Set) error          { return nil }
func (l *Log) EpochStart(epoch int32) int64        { return -1 }
func (l *Log) EpochEnd(epoch int32) (int32, int64) { return -1, -1 }

// Append appends sets as the leader of leaderEpoch.
func (l *Log) Append(leaderEpoch int32, sets []Set, out []Appended) error { return nil }

// Read returns whole batches.
func (l *Log) Read(from, limit int64, maxBytes int, minOne bool) (Slice, error) { return Slice{}, nil }

// OffsetForTime finds the first record with a timestamp of at least ts.
func (l *Log) OffsetForTime(ts, limit int64) (offset, timestamp int64, epoch int32, err error) {
	return -1, -1, -1, nil
}

// MaxTimestamp finds the record with the largest timestamp.
func (l *Log) MaxTimestamp(limit int64) (offset, timestamp int64, epoch int32, err error) {
	return -1, -1, -1, nil
}

// Slice is a run of whole batches.
type Slice struct{}

func (s Slice) Len() int                              { return 0 }
func (s Slice) BaseOffset() int64                     { return 0 }
func (s Slice) NextOffset() int64                     { return 0 }
func (s Slice) ReadAt(p []byte, off int) (int, error) { return 0, nil }
func (s Slice) File() (vfs.File, int64)               { return nil, 0 }
func (s Slice) Release()                              {}
