package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/log/vfs"
)

// Dir is one log directory with all its partitions.
type Dir struct {
	path    string
	cfg     Config
	id      [16]byte
	clean   bool
	stats   RecoveryStats
	lock    io.Closer
	files   *descriptors
	metrics *metrics
	syncer  *syncer
	commit  committer
	// redo is the write-ahead log as found, during OpenDir.
	redo *walRedo

	// failure is the first error that poisoned the directory (L2, W17).
	failure atomic.Pointer[error]
	// clock is the monotonic time of the last Tick in nanoseconds since the first; wallMillis the wall clock then.
	clock, wallMillis atomic.Int64
	// noSpace says that appends are refused (L13); uncheckedBytes were appended since the free space was looked at.
	noSpace        atomic.Bool
	uncheckedBytes atomic.Int64
	// readBytes counts what recovery read.
	readBytes atomic.Int64
	// sinceCheckpoint counts appended bytes since the last checkpoint.
	sinceCheckpoint atomic.Int64
	ballastGone     atomic.Bool
	// freeing counts the calls in work that free space: they may use the ballast.
	freeing atomic.Int32

	// naming serializes what makes, renames and removes partition directories; held over file operations.
	naming sync.Locker
	// checkpointing serializes writers of the checkpoint file; held over file operations.
	checkpointing sync.Locker

	mu struct {
		sync.Mutex
		logs    map[logKey]*Log
		offline map[string]OfflinePartition // by directory name
		// deletions are renamed directories to be unlinked.
		deletions []deletion
		// oldestGeneration and live go into every checkpoint; the write-ahead log's committer sets them.
		oldestGeneration uint64
		live             bool
		// closingGeneration is what the checkpoint of a clean stop names as the oldest.
		closingGeneration uint64
		closed            bool
	}

	// tick is the state of Tick, which one task calls at a time.
	tick tickState
}

type logKey struct {
	topicID   [16]byte
	partition int32
}

// deletion is a renamed directory, unlinked once the clock of Tick reaches due.
type deletion struct {
	name string
	due  int64
}

// OpenDir opens a log directory, creating it if absent: it takes the lock, recovers every partition, and returns when
// all that recovery will act upon and report is durable (wal.md 4). Partitions that can not be served are reported by
// Offline; the rest of the directory works.
func OpenDir(path string, cfg Config) (*Dir, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	d := &Dir{path: path, cfg: cfg}
	d.mu.logs = make(map[logKey]*Log)
	d.mu.offline = make(map[string]OfflinePartition)
	d.naming, d.checkpointing = cfg.Tasks.Locker(), cfg.Tasks.Locker()
	d.files = newDescriptors(cfg.FS, cfg.OpenFiles)
	d.metrics = newMetrics()
	d.wallMillis.Store(cfg.Wall().UnixMilli())
	d.commit = directCommitter{d}
	if err := cfg.FS.Mkdir(path); err != nil {
		return nil, fmt.Errorf("create log directory %s: %w", path, err)
	}
	lock, err := cfg.FS.Lock(vfs.Join(path, lockName))
	if err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			err = fmt.Errorf("%w: %w", ErrLocked, err)
		}
		return nil, fmt.Errorf("lock log directory %s: %w", path, err)
	}
	d.lock = lock
	if err := d.open(); err != nil {
		cerr := d.commit.close()
		if d.syncer != nil {
			d.syncer.stop()
		}
		d.closeFiles()
		return nil, errors.Join(fmt.Errorf("open log directory %s: %w", path, err), cerr, lock.Close())
	}
	if cfg.Registerer != nil {
		if err := d.metrics.register(cfg.Registerer, d); err != nil {
			return nil, errors.Join(fmt.Errorf("open log directory %s: %w", path, err), d.Close())
		}
	}
	return d, nil
}

func (d *Dir) open() error {
	began := time.Now()
	if err := d.identify(); err != nil {
		return err
	}
	if err := d.takeCleanMarker(); err != nil {
		return err
	}
	if err := d.removeTemporary(); err != nil {
		return err
	}
	d.syncer = newSyncer(d, d.cfg.SyncWorkers)
	if err := d.recover(); err != nil {
		return err
	}
	d.ensureBallast()
	d.stats.Seconds = time.Since(began).Seconds()
	d.metrics.recoveryBytes.Set(float64(d.stats.BytesRead))
	d.metrics.recoverySeconds.Set(d.stats.Seconds)
	d.cfg.Logger.Info("log directory open", "dir", d.path, "id", idString(d.id), "clean", d.clean,
		"partitions", d.stats.Partitions, "offline", d.stats.Offline, "strays", d.stats.Strays,
		"bytes_read", d.stats.BytesRead, "bytes_truncated", d.stats.BytesTruncated)
	return d.failed()
}

// The directory id file: magic "MRID", CRC-32C of the id, the id.
const directoryMagic = 0x4d524944

// identify reads the directory id, or makes one for a directory without (L11).
func (d *Dir) identify() error {
	b, err := vfs.ReadFile(d.cfg.FS, vfs.Join(d.path, directoryName))
	forget := d.cfg.Forget != [16]byte{} && len(b) == 24 && [16]byte(b[8:]) == d.cfg.Forget
	switch {
	case forget, errors.Is(err, fs.ErrNotExist):
		binary.BigEndian.PutUint64(d.id[:8], d.cfg.Rand.Uint64())
		binary.BigEndian.PutUint64(d.id[8:], d.cfg.Rand.Uint64())
		b := binary.BigEndian.AppendUint32(nil, directoryMagic)
		b = binary.BigEndian.AppendUint32(b, crc32.Checksum(d.id[:], castagnoli))
		return vfs.ReplaceFile(d.cfg.FS, d.path, directoryName, append(b, d.id[:]...))
	case err != nil:
		return err
	}
	if len(b) != 24 || binary.BigEndian.Uint32(b) != directoryMagic || binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return fmt.Errorf("%w: %s does not hold a directory id; remove it only if this directory may join its cluster as a new, empty one", ErrCorrupt, directoryName)
	}
	d.id = [16]byte(b[8:])
	return nil
}

// takeCleanMarker finds out whether the last stop was clean and removes the proof, durably: from now on it is not.
func (d *Dir) takeCleanMarker() error {
	name := vfs.Join(d.path, cleanName)
	b, err := vfs.ReadFile(d.cfg.FS, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.clean = slices.Equal(b, d.cleanMarker())
	if err := d.cfg.FS.Remove(name); err != nil {
		return err
	}
	return d.cfg.FS.SyncDir(d.path)
}

// cleanMarker is the content of the proof of a clean stop: the directory id, so that it can not be copied elsewhere.
func (d *Dir) cleanMarker() []byte { return []byte("millrace clean stop " + idString(d.id) + "\n") }

// removeTemporary removes what an interrupted replacement left behind.
func (d *Dir) removeTemporary() error {
	entries, err := d.cfg.FS.List(d.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Dir && strings.HasPrefix(e.Name, "millrace.") && strings.HasSuffix(e.Name, tmpSuffix) {
			if err := d.cfg.FS.Remove(vfs.Join(d.path, e.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ID returns the random id of the directory, made when it was first opened (L11).
func (d *Dir) ID() [16]byte { return d.id }

// Path returns the path the directory was opened with.
func (d *Dir) Path() string { return d.path }

// CleanStart says whether the last stop left the proof that all bytes were synced (I12).
func (d *Dir) CleanStart() bool { return d.clean }

// TailsProven says whether recovery could prove that the tails of all partitions are complete. It is false if the
// write-ahead log was damaged in a way that no torn tail explains (RecoveryStats.WALDamage): acknowledged records may be
// missing at the ends then, and no replica of this directory counts until it has caught up with its leader (I12).
func (d *Dir) TailsProven() bool { return len(d.stats.WALDamage) == 0 }

// RecoveryStats says what OpenDir did.
func (d *Dir) RecoveryStats() RecoveryStats { return d.stats }

// Lookup finds an open partition.
func (d *Dir) Lookup(topicID [16]byte, partition int32) (*Log, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.mu.logs[logKey{topicID, partition}]
	return l, ok
}

// Logs returns the open partitions, sorted by topic, partition and topic id.
func (d *Dir) Logs() []*Log {
	d.mu.Lock()
	logs := make([]*Log, 0, len(d.mu.logs))
	for _, l := range d.mu.logs {
		logs = append(logs, l)
	}
	d.mu.Unlock()
	slices.SortFunc(logs, func(a, b *Log) int {
		if c := strings.Compare(a.topic, b.topic); c != 0 {
			return c
		}
		if c := compareInt64(int64(a.partition), int64(b.partition)); c != 0 {
			return c
		}
		return strings.Compare(string(a.topicID[:]), string(b.topicID[:]))
	})
	return logs
}

// Offline returns the partitions whose directories can not be served, sorted by path, those that went offline while
// they were open included.
func (d *Dir) Offline() []OfflinePartition {
	var out []OfflinePartition
	for _, l := range d.Logs() {
		if err := l.Corrupt(); err != nil {
			out = append(out, OfflinePartition{Topic: l.topic, TopicID: l.topicID, Partition: l.partition, Path: l.path, Err: err})
		}
	}
	d.mu.Lock()
	for _, o := range d.mu.offline {
		out = append(out, o)
	}
	d.mu.Unlock()
	slices.SortFunc(out, func(a, b OfflinePartition) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Failed returns the error that poisoned the directory, nil while it is healthy.
func (d *Dir) Failed() error { return d.failed() }

func (d *Dir) failed() error {
	if err := d.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// fail poisons the directory with its first error: nothing is acknowledged any more (L2, W17). The caller answers with
// what fail returns.
func (d *Dir) fail(err error) error {
	if d.failure.CompareAndSwap(nil, &err) {
		d.metrics.failed.Set(1)
		d.cfg.Logger.Error("log directory failed; the process must end and recover", "dir", d.path, "error", err)
		d.cfg.Tasks.Go("failure", func() { d.cfg.OnFailure(err) })
	}
	return fmt.Errorf("%w: %w", ErrPoisoned, err)
}

// requestAdvance asks a worker to move the recovery point of a log.
func (d *Dir) requestAdvance(l *Log) { d.syncer.request(l, jobAdvance) }

// appended is called once per append, without locks: it sees to it that the bytes become durable.
func (d *Dir) appended(l *Log) {
	s := l.settings.Load()
	if !s.FlushAck {
		l.mu.Lock()
		due := s.FlushMessages > 0 && l.mu.unsyncedRecords >= s.FlushMessages
		l.mu.Unlock()
		if due {
			d.syncer.request(l, jobSync)
		}
		return
	}
	d.commit.appended(l)
}

// Usage returns the free and total bytes of the file system that holds the directory.
func (d *Dir) Usage() (free, total int64, err error) { return d.cfg.FS.Usage(d.path) }

// Close makes everything durable, writes the proof of a clean stop last, and releases the directory. No call of a Log
// may be in work or follow; slices that readers hold stay readable until they are released. After a failure it only
// releases.
func (d *Dir) Close() error {
	d.mu.Lock()
	if d.mu.closed {
		d.mu.Unlock()
		return nil
	}
	d.mu.closed = true
	d.mu.Unlock()
	err := d.commit.close()
	if err == nil {
		err = d.stop()
	}
	d.syncer.stop()
	for _, l := range d.Logs() {
		l.close(ErrClosed)
	}
	d.closeFiles()
	if err == nil && d.failed() == nil {
		err = vfs.ReplaceFile(d.cfg.FS, d.path, cleanName, d.cleanMarker())
	}
	if d.cfg.Registerer != nil {
		d.metrics.unregister(d.cfg.Registerer)
	}
	if cerr := d.lock.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = d.failed()
	}
	if err != nil {
		return fmt.Errorf("close log directory %s: %w", d.path, err)
	}
	return nil
}

// stop brings every recovery point to the end and writes the checkpoint.
func (d *Dir) stop() error {
	if err := d.failed(); err != nil {
		return err
	}
	return d.checkpoint(true)
}

func (d *Dir) closeFiles() {
	for _, l := range d.Logs() {
		l.mu.Lock()
		segments := l.mu.segments
		l.mu.Unlock()
		for _, seg := range segments {
			l.releaseSegment(seg)
		}
	}
}

// releaseSegment closes the files of a segment that is used no more, as soon as the last reader lets go.
func (l *Log) releaseSegment(seg *segment) {
	l.mu.Lock()
	pinned := seg.pinned
	seg.pinned = nil
	l.mu.Unlock()
	if pinned != nil {
		l.dir.files.release(pinned)
	}
	for _, ref := range seg.refs() {
		l.dir.files.forget(ref)
	}
}

// close makes every later use of the log fail with err.
func (l *Log) close(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed == nil {
		l.mu.closed = err
	}
}
