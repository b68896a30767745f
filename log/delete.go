package log

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/log/vfs"
)

// Delete removes a partition because the metadata said so. Its directory is renamed at once, durably, so that the name
// is free for a new partition (W18); its files are unlinked by Tick after FileDeleteDelay. Readers keep what they hold.
func (d *Dir) Delete(l *Log) error {
	d.naming.Lock()
	defer d.naming.Unlock()
	return d.retire(l, deleteSuffix, "deleted by command")
}

// SetAside keeps a partition that the metadata does not know, under a name ending in -stray: it is never deleted by
// this package (L12).
func (d *Dir) SetAside(l *Log) error {
	d.naming.Lock()
	defer d.naming.Unlock()
	return d.retire(l, straySuffix, "unknown to the metadata")
}

// retire takes a log out of service and renames its directory. Caller holds naming.
func (d *Dir) retire(l *Log, suffix, reason string) error {
	l.syncing.Lock()
	defer l.syncing.Unlock()
	l.w.Lock()
	defer l.w.Unlock()
	l.mu.Lock()
	if l.mu.closed != nil {
		l.mu.Unlock()
		return fmt.Errorf("remove partition %s: %w", l, ErrClosed)
	}
	l.mu.closed = ErrClosed
	logID, segments, size := l.mu.logID, l.mu.segments, l.mu.sizeBytes
	l.mu.Unlock()
	d.mu.Lock()
	delete(d.mu.logs, logKey{l.topicID, l.partition})
	d.mu.Unlock()
	// A file that is open under the old name stays readable; none is opened any more.
	for _, seg := range segments {
		l.releaseSegment(seg)
	}
	name := retiredDirName(l.topic, l.partition, logID, suffix)
	if err := d.rename(l.path, name); err != nil {
		return err
	}
	l.logger().Info("partition removed", "topic_id", topicIDString(l.topicID), "reason", reason, "renamed_to", name, "bytes", size)
	if suffix == deleteSuffix {
		d.mu.Lock()
		d.mu.deletions = append(d.mu.deletions, deletion{name: name, due: d.clock.Load() + int64(l.Settings().FileDeleteDelay)})
		d.mu.Unlock()
	}
	return nil
}

// rename moves a directory to a new name in the log directory, durably.
func (d *Dir) rename(path, name string) error {
	to := vfs.Join(d.path, name)
	if err := d.cfg.FS.Rename(path, to); err != nil {
		return d.fail(fmt.Errorf("rename %s to %s: %w", path, to, err))
	}
	if d.cfg.mutants.has(mutantDeleteUnsynced) {
		return nil
	}
	if err := d.cfg.FS.SyncDir(d.path); err != nil {
		return d.fail(fmt.Errorf("rename %s to %s: %w", path, to, err))
	}
	return nil
}

// SetAsideOffline renames the directory of an offline partition to a name ending in -stray, so that a replica can be
// made anew from its leader. The files are kept.
func (d *Dir) SetAsideOffline(o OfflinePartition) error {
	d.naming.Lock()
	defer d.naming.Unlock()
	name := partitionDirName(o.Topic, o.Partition)
	d.mu.Lock()
	known, ok := d.mu.offline[name]
	d.mu.Unlock()
	if !ok || known.Path != o.Path {
		return fmt.Errorf("set aside %s: %w", o.Path, fs.ErrNotExist)
	}
	to := retiredDirName(o.Topic, o.Partition, d.newLogID(), straySuffix)
	if err := d.rename(o.Path, to); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.mu.offline, name)
	d.mu.Unlock()
	d.cfg.Logger.Warn("offline partition set aside", "topic", o.Topic, "partition", o.Partition, "renamed_to", to, "error", o.Err)
	return nil
}

// unlinkDeleted unlinks the deleted partitions that are due.
func (d *Dir) unlinkDeleted(now int64) {
	d.mu.Lock()
	var due []deletion
	kept := d.mu.deletions[:0]
	for _, del := range d.mu.deletions {
		if del.due <= now {
			due = append(due, del)
		} else {
			kept = append(kept, del)
		}
	}
	d.mu.deletions = kept
	d.mu.Unlock()
	for _, del := range due {
		err := d.cfg.FS.RemoveAll(vfs.Join(d.path, del.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			// The directory is out of use; the next start tries again.
			d.cfg.Logger.Warn("deleted partition could not be unlinked", "directory", del.name, "error", err)
			continue
		}
		d.cfg.Logger.Info("deleted partition unlinked", "directory", del.name)
	}
}
