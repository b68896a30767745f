package log

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millrace/millrace/log/vfs"
)

// Delete removes a partition because the metadata said so. Its directory is renamed at once, durably, so that the name
// is free for a new partition (W18); its files are unlinked by Tick after FileDeleteDelay. Readers keep what they hold.
func (d *Dir) Delete(l *Log) error { return d.DeleteAll([]*Log{l})[0] }

// DeleteAll is Delete for several partitions, and returns the outcomes in their order. They share the sync.
func (d *Dir) DeleteAll(logs []*Log) []error {
	return d.retireAll(logs, deleteSuffix, "deleted by command")
}

// SetAside keeps a partition that the metadata does not know, under a name ending in -stray: it is never deleted by
// this package (L12).
func (d *Dir) SetAside(l *Log) error {
	return d.retireAll([]*Log{l}, straySuffix, "unknown to the metadata")[0]
}

// retiredTogether bounds the partitions that share a sync: all of them are locked meanwhile.
const retiredTogether = 256

func (d *Dir) retireAll(logs []*Log, suffix, reason string) (errs []error) {
	quiet := len(logs) >= wholeSync
	for chunk := range slices.Chunk(logs, retiredTogether) {
		d.naming.Lock()
		errs = append(errs, d.retire(chunk, suffix, reason, quiet)...)
		d.naming.Unlock()
	}
	if quiet {
		d.cfg.Logger.Info("partitions removed", "count", len(logs), "reason", reason, "first", logs[0].String(), "last", logs[len(logs)-1].String())
	}
	return errs
}

// retire takes logs out of service and renames their directories, durably. They stay locked until that is so: nobody may
// drop what the write-ahead log has of one while a crash can still bring its directory back. Caller holds naming.
func (d *Dir) retire(logs []*Log, suffix, reason string, quiet bool) []error {
	errs := make([]error, len(logs))
	names := make([]string, len(logs))
	renamed := false
	for i, l := range logs {
		l.syncing.Lock()
		defer l.syncing.Unlock()
		l.w.Lock()
		defer l.w.Unlock()
		names[i], errs[i] = d.rename(l, suffix)
		renamed = renamed || errs[i] == nil
	}
	if !renamed {
		return errs
	}
	failed := d.syncNames()
	for i, l := range logs {
		switch {
		case errs[i] != nil:
		case failed != nil:
			errs[i] = failed
		default:
			d.retired(l, names[i], suffix, reason, quiet)
		}
	}
	return errs
}

// rename takes a log out of service and gives its directory the name that it returns. Caller holds naming, syncing and w.
func (d *Dir) rename(l *Log, suffix string) (string, error) {
	l.mu.Lock()
	if l.mu.closed != nil {
		l.mu.Unlock()
		return "", fmt.Errorf("remove partition %s: %w", l, ErrClosed)
	}
	l.mu.closed = ErrClosed
	logID, segments := l.mu.logID, l.mu.segments
	l.mu.Unlock()
	d.mu.Lock()
	delete(d.mu.logs, logKey{l.topicID, l.partition})
	d.mu.Unlock()
	// A file that is open under the old name stays readable; none is opened any more.
	for _, seg := range segments {
		l.releaseSegment(seg)
	}
	name := retiredDirName(l.topic, l.partition, logID, suffix)
	return name, d.move(l.path, name)
}

// retired notes that the new name of a log's directory is durable.
func (d *Dir) retired(l *Log, name, suffix, reason string, quiet bool) {
	if !quiet {
		l.logger().Info("partition removed", "topic_id", topicIDString(l.topicID), "reason", reason, "renamed_to", name, "bytes", l.SizeBytes())
	}
	if suffix == deleteSuffix {
		d.mu.Lock()
		d.mu.deletions = append(d.mu.deletions, deletion{name: name, due: d.clock.Load() + int64(l.Settings().FileDeleteDelay)})
		d.mu.Unlock()
	}
}

// move gives a directory a new name in the log directory, not durably.
func (d *Dir) move(path, name string) error {
	to := vfs.Join(d.path, name)
	if err := d.cfg.FS.Rename(path, to); err != nil {
		return d.fail(fmt.Errorf("rename %s to %s: %w", path, to, err))
	}
	return nil
}

// syncNames makes the names of the partitions' directories durable.
func (d *Dir) syncNames() error {
	if d.cfg.mutants.has(mutantDeleteUnsynced) {
		return nil
	}
	if err := d.cfg.FS.SyncDir(d.path); err != nil {
		return d.fail(fmt.Errorf("sync the names in %s: %w", d.path, err))
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
	if err := d.move(o.Path, to); err != nil {
		return err
	}
	if err := d.syncNames(); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.mu.offline, name)
	d.mu.Unlock()
	d.cfg.Logger.Warn("offline partition set aside", "topic", o.Topic, "partition", o.Partition, "renamed_to", to, "error", o.Err)
	return nil
}

// unlinksPerTick bounds the directories that one Tick unlinks: the caller has other things to do.
const unlinksPerTick = 1024

// unlinkDeleted unlinks the deleted partitions that are due.
func (d *Dir) unlinkDeleted(now int64) {
	d.mu.Lock()
	var due []deletion
	kept := d.mu.deletions[:0]
	for _, del := range d.mu.deletions {
		if del.due <= now && len(due) < unlinksPerTick {
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
		d.cfg.Logger.Debug("deleted partition unlinked", "directory", del.name)
	}
}
