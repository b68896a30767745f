package log

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/log/vfs"
)

// Create makes a partition that begins at startOffset and is empty. When it returns, the partition survives a power
// cut (W18). A directory of the same name with another topic id, or one that is offline, is set aside first (L21): a
// topic that was deleted and made again never inherits.
//
// Errors: ErrExists (the partition is open), ErrNoSpace, ErrPoisoned, ErrClosed.
func (d *Dir) Create(topic string, topicID [16]byte, partition int32, startOffset int64, s Settings) (*Log, error) {
	if topic == "" || partition < 0 || startOffset < 0 || topicID == [16]byte{} {
		return nil, fmt.Errorf("create partition %s: topic id %s, start offset %d are not valid",
			partitionDirName(topic, partition), topicIDString(topicID), startOffset)
	}
	d.naming.Lock()
	defer d.naming.Unlock()
	name := partitionDirName(topic, partition)
	if err := d.failed(); err != nil {
		return nil, fmt.Errorf("create partition %s: %w: %w", name, ErrPoisoned, err)
	}
	d.mu.Lock()
	closed := d.mu.closed
	_, exists := d.mu.logs[logKey{topicID, partition}]
	var other *Log
	for _, l := range d.mu.logs {
		if l.topic == topic && l.partition == partition {
			other = l
		}
	}
	_, offline := d.mu.offline[name]
	d.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("create partition %s: %w", name, ErrClosed)
	case exists:
		return nil, fmt.Errorf("create partition %s with topic id %s: %w", name, topicIDString(topicID), ErrExists)
	case other != nil:
		if err := d.retire(other, straySuffix, "its name was given to topic id "+topicIDString(topicID)); err != nil {
			return nil, err
		}
	case offline:
		return nil, fmt.Errorf("create partition %s with topic id %s: %w offline", name, topicIDString(topicID), ErrExists)
	}
	if d.full() {
		return nil, fmt.Errorf("create partition %s: %w", name, ErrNoSpace)
	}
	l := d.newLog(topic, topicID, partition, vfs.Join(d.path, name), s)
	if err := l.create(startOffset); err != nil {
		if errors.Is(err, vfs.ErrNoSpace) {
			d.sawFull()
			// A half-made directory holds no records; what remains of it is removed at the next start.
			_ = d.cfg.FS.RemoveAll(l.path)
			return nil, fmt.Errorf("create partition %s: %w: %w", name, ErrNoSpace, err)
		}
		return nil, d.fail(fmt.Errorf("create partition %s: %w", name, err))
	}
	d.mu.Lock()
	d.mu.logs[logKey{topicID, partition}] = l
	d.mu.Unlock()
	l.logger().Info("partition created", "topic_id", topicIDString(topicID), "start_offset", startOffset)
	return l, nil
}

// create makes the directory: files first, then its own name.
func (l *Log) create(start int64) error {
	fsys := l.dir.cfg.FS
	if _, err := fsys.Stat(l.path); err == nil {
		return fmt.Errorf("%s: %w", l.path, fs.ErrExist)
	}
	if err := fsys.Mkdir(l.path); err != nil {
		return err
	}
	if err := l.dir.writeFile(vfs.Join(l.path, metadataName), encodePartitionMetadata(l.topicID)); err != nil {
		return err
	}
	seg := newSegment(l.path, start)
	f, err := fsys.Create(seg.log.path)
	if err != nil {
		return err
	}
	seg.pinned = l.dir.files.adopt(&seg.log, f)
	l.mu.logID = l.dir.newLogID()
	l.mu.start, l.mu.end, l.mu.recoveryPoint = start, start, start
	l.mu.durable.reset(start)
	l.mu.segments = []*segment{seg}
	l.mu.notified = -1
	s := state{topic: l.topic, partition: l.partition, topicID: l.topicID, logID: l.mu.logID, start: start, recoveryPoint: start, cut: -1}
	// The rename of the state file syncs the directory, and with it the names of all files before it.
	err = l.dir.withBallast(func() error { return vfs.ReplaceFile(fsys, l.path, stateName, s.encode()) })
	if err == nil && !l.dir.cfg.mutants.has(mutantCreateUnsynced) {
		err = fsys.SyncDir(l.dir.path)
	}
	if err != nil {
		l.dir.files.release(seg.pinned)
		l.dir.files.forget(&seg.log)
	}
	return err
}

// newLogID returns a fresh random log id, never 0.
func (d *Dir) newLogID() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		if id := d.cfg.Rand.Uint64(); id != 0 {
			return id
		}
	}
}
