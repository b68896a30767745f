package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/millrace/millrace/log/vfs"
)

// redoSource hands recovery the records of the write-ahead log.
type redoSource interface {
	// redo calls fn for each record of a log id, in any order; it stops at fn's first error. The data is valid during
	// the call.
	redo(logID uint64, fn func(redoRecord) error) error
}

// redoRecord is one record of the write-ahead log: bytes that belong at one place of one segment (W3).
type redoRecord struct {
	// base and next are the offsets of the batches, [base, next).
	base, next int64
	// segment is the base offset of the segment, position where in its file the bytes belong.
	segment, position int64
	// durableEnd is what was durable when the record was written: recovery must not end below it (L9).
	durableEnd int64
	data       []byte
}

// recover opens every partition of the directory (wal.md 4). What recovery acts upon is made durable first (step 1),
// what it found is durable when it returns (step 7).
func (d *Dir) recover() error {
	if !d.clean && !d.cfg.mutants.has(mutantNoSyncAll) {
		if err := d.cfg.FS.SyncAll(d.path); err != nil {
			return fmt.Errorf("sync before recovery: %w", err)
		}
	}
	cp, err := readCheckpoint(d.cfg.FS, d.path)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			return err
		}
		d.cfg.Logger.Warn("checkpoint is unreadable and ignored; recovery reads more", "error", err)
	}
	redo, err := d.openWAL(cp)
	if err != nil {
		return err
	}
	entries, err := d.cfg.FS.List(d.path)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		switch {
		case !e.Dir:
		case strings.HasSuffix(e.Name, deleteSuffix):
			d.mu.deletions = append(d.mu.deletions, deletion{name: e.Name})
		case strings.HasSuffix(e.Name, straySuffix):
			d.stats.Strays++
			d.cfg.Logger.Warn("stray partition is kept", "directory", e.Name)
		default:
			if _, _, ok := parsePartitionDirName(e.Name); ok {
				names = append(names, e.Name)
			}
		}
	}
	if err := d.recoverAll(names, cp, redo); err != nil {
		return err
	}
	d.stats.BytesRead += d.readBytes.Load()
	d.stats.Partitions, d.stats.Offline = len(d.mu.logs), len(d.mu.offline)
	return d.startCommitter()
}

// recoverAll recovers partitions with a bounded number of tasks; the first error stops them.
func (d *Dir) recoverAll(names []string, cp checkpoint, redo redoSource) error {
	lock := d.cfg.Tasks.Locker()
	done := d.cfg.Tasks.Cond(lock)
	workers := min(d.cfg.RecoveryWorkers, len(names))
	var first error
	next := 0
	running := workers
	for range workers {
		d.cfg.Tasks.Go("recover", func() {
			lock.Lock()
			for first == nil && next < len(names) {
				name := names[next]
				next++
				lock.Unlock()
				stats, err := d.recoverPartition(name, cp, redo)
				lock.Lock()
				d.stats.Strays += stats.Strays
				d.stats.BytesScanned += stats.BytesScanned
				d.stats.BytesTruncated += stats.BytesTruncated
				if err != nil && first == nil {
					first = fmt.Errorf("recover partition %s: %w", name, err)
				}
			}
			running--
			done.Broadcast()
			lock.Unlock()
		})
	}
	lock.Lock()
	for running > 0 {
		done.Wait()
	}
	lock.Unlock()
	return first
}

// recoverPartition opens one partition. An error stops the start; a partition that is corrupt goes offline instead.
func (d *Dir) recoverPartition(name string, cp checkpoint, redo redoSource) (RecoveryStats, error) {
	path := vfs.Join(d.path, name)
	topic, partition, _ := parsePartitionDirName(name)
	offline := func(id [16]byte, err error) {
		d.metrics.corrupt.Inc()
		d.cfg.Logger.Error("partition is offline; its files are kept", "topic", topic, "partition", partition, "directory", path, "error", err)
		d.mu.Lock()
		d.mu.offline[name] = OfflinePartition{Topic: topic, TopicID: id, Partition: partition, Path: path, Err: err}
		d.mu.Unlock()
	}
	r := &recovery{d: d, name: name, path: path, redo: redo}
	keep, err := r.readFiles()
	switch {
	case errors.Is(err, ErrCorrupt):
		offline(r.state.topicID, fmt.Errorf("recover %s: %w", name, err))
		return r.stats, nil
	case err != nil:
		return r.stats, err
	case !keep:
		d.cfg.Logger.Warn("half-created partition removed; it holds no records", "directory", path)
		if err := d.cfg.FS.RemoveAll(path); err != nil {
			return r.stats, err
		}
		return r.stats, d.cfg.FS.SyncDir(d.path)
	}
	if r.foreign != "" {
		to := retiredDirName(topic, partition, r.state.logID, straySuffix)
		d.cfg.Logger.Error("directory belongs to another partition and is set aside", "directory", path, "reason", r.foreign, "renamed_to", to)
		if err := d.cfg.FS.Rename(path, vfs.Join(d.path, to)); err != nil {
			return r.stats, err
		}
		r.stats.Strays++
		return r.stats, d.cfg.FS.SyncDir(d.path)
	}
	r.log = d.newLog(topic, r.state.topicID, partition, path, DefaultSettings())
	r.floor = r.state.recoveryPoint
	if rp, ok := cp.recoveryPoints[r.state.logID]; ok {
		r.floor = max(r.floor, rp)
	}
	if err := r.run(); err != nil {
		for _, seg := range r.segments {
			r.log.releaseSegment(seg)
		}
		if errors.Is(err, ErrCorrupt) {
			offline(r.state.topicID, err)
			return r.stats, nil
		}
		return r.stats, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := logKey{r.state.topicID, partition}
	if d.mu.logs[key] != nil {
		return r.stats, fmt.Errorf("%w: topic id %s has two directories", ErrCorrupt, topicIDString(r.state.topicID))
	}
	d.mu.logs[key] = r.log
	return r.stats, nil
}

// countingReader counts what recovery reads.
type countingReader struct {
	r io.ReaderAt
	d *Dir
}

func (c countingReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := c.r.ReadAt(p, off)
	c.d.readBytes.Add(int64(n))
	return n, err
}

func (d *Dir) counting(r io.ReaderAt) io.ReaderAt { return countingReader{r, d} }

// readCounted reads a small file.
func (d *Dir) readCounted(name string) ([]byte, error) {
	b, err := vfs.ReadFile(d.cfg.FS, name)
	d.readBytes.Add(int64(len(b)))
	return b, err
}

// absent says that an error means that a file is not there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
