package log

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/log/vfs"
)

// NewLog names a partition that is to be created.
type NewLog struct {
	Topic       string
	TopicID     [16]byte
	Partition   int32
	StartOffset int64
	Settings    Settings
}

// Created is the outcome of one [NewLog]: Log, or why there is none.
type Created struct {
	Log *Log
	Err error
}

// Create makes a partition that begins at startOffset and is empty. When it returns, the partition survives a power
// cut (W18). A directory of the same name with another topic id, or one that is offline, is set aside first (L21): a
// topic that was deleted and made again never inherits.
//
// Errors: ErrExists (the partition is open), ErrNoSpace, ErrPoisoned, ErrClosed.
func (d *Dir) Create(topic string, topicID [16]byte, partition int32, startOffset int64, s Settings) (*Log, error) {
	c := d.CreateAll([]NewLog{{topic, topicID, partition, startOffset, s}})[0]
	return c.Log, c.Err
}

// wholeSync is from how many partitions on those created together are made durable by a sync of the whole file system:
// two for all of them, instead of three for each. It also writes what else is dirty there, which is why a few
// partitions sync what is theirs.
const wholeSync = 32

// CreateAll is Create for several partitions, and returns the outcomes in their order. They share their syncs, so that
// 10,000 partitions take seconds.
func (d *Dir) CreateAll(wanted []NewLog) []Created {
	d.naming.Lock()
	defer d.naming.Unlock()
	out := make([]Created, len(wanted))
	names := d.takenNames()
	var logs []*Log // to be made
	var of []int    // index into wanted, parallel to logs
	for i := range wanted {
		w := &wanted[i]
		l, err := d.prepare(w, names)
		if err != nil {
			out[i].Err = err
			continue
		}
		names[partitionDirName(w.Topic, w.Partition)] = l
		logs, of = append(logs, l), append(of, i)
	}
	if len(logs) == 0 {
		return out
	}
	errs := make([]error, len(logs))
	d.make(logs, errs, wanted, of)
	quiet := len(logs) >= wholeSync
	for i, l := range logs {
		o := &out[of[i]]
		if err := errs[i]; err != nil {
			l.abandon()
			switch {
			case errors.Is(err, vfs.ErrTooManyFiles) && d.undo(l.path, wanted[of[i]].StartOffset) == nil:
				// Nothing is wrong with the disk: it may be tried again when files were closed, or the limit raised.
				o.Err = fmt.Errorf("create partition %s: %w; the limit of open files (ulimit -n, LimitNOFILE) is too low for as many partitions", l, err)
			case errors.Is(err, vfs.ErrNoSpace):
				d.sawFull()
				// A half-made directory holds no records; what remains of it is removed at the next start.
				_ = d.cfg.FS.RemoveAll(l.path)
				o.Err = fmt.Errorf("create partition %s: %w: %w", l, ErrNoSpace, err)
			default:
				o.Err = d.fail(fmt.Errorf("create partition %s: %w", l, err))
			}
			continue
		}
		d.mu.Lock()
		d.mu.logs[logKey{l.topicID, l.partition}] = l
		d.mu.Unlock()
		o.Log = l
		if !quiet {
			l.logger().Info("partition created", "topic_id", topicIDString(l.topicID), "start_offset", wanted[of[i]].StartOffset)
		}
	}
	if quiet {
		d.cfg.Logger.Info("partitions created", "count", len(logs), "first", logs[0].String(), "last", logs[len(logs)-1].String())
	}
	return out
}

// takenNames are the open partitions by the name of their directory.
func (d *Dir) takenNames() map[string]*Log {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make(map[string]*Log, len(d.mu.logs))
	for _, l := range d.mu.logs {
		names[partitionDirName(l.topic, l.partition)] = l
	}
	return names
}

// prepare makes the log of a partition that may be created; nothing of it is on disk yet. A partition of another topic id
// that bears its name is set aside. Caller holds naming.
func (d *Dir) prepare(w *NewLog, names map[string]*Log) (*Log, error) {
	name := partitionDirName(w.Topic, w.Partition)
	if w.Topic == "" || w.Partition < 0 || w.StartOffset < 0 || w.TopicID == [16]byte{} {
		return nil, fmt.Errorf("create partition %s: topic id %s, start offset %d are not valid", name, topicIDString(w.TopicID), w.StartOffset)
	}
	if err := d.failed(); err != nil {
		return nil, fmt.Errorf("create partition %s: %w: %w", name, ErrPoisoned, err)
	}
	d.mu.Lock()
	closed := d.mu.closed
	_, exists := d.mu.logs[logKey{w.TopicID, w.Partition}]
	_, offline := d.mu.offline[name]
	other := names[name]
	here := other != nil && d.mu.logs[logKey{other.topicID, w.Partition}] == other
	d.mu.Unlock()
	switch {
	case closed:
		return nil, fmt.Errorf("create partition %s: %w", name, ErrClosed)
	case exists, other != nil && !here: // or its name is asked for twice
		return nil, fmt.Errorf("create partition %s with topic id %s: %w", name, topicIDString(w.TopicID), ErrExists)
	case other != nil:
		if err := d.retire([]*Log{other}, straySuffix, "its name was given to topic id "+topicIDString(w.TopicID), false)[0]; err != nil {
			return nil, err
		}
	case offline:
		return nil, fmt.Errorf("create partition %s with topic id %s: %w offline", name, topicIDString(w.TopicID), ErrExists)
	}
	if d.full() {
		return nil, fmt.Errorf("create partition %s: %w", name, ErrNoSpace)
	}
	return d.newLog(w.Topic, w.TopicID, w.Partition, vfs.Join(d.path, name), w.Settings), nil
}

// make makes the directories of new logs, in three steps: the files under the names that they keep, but for the state
// file; then that, whose rename says that the directory is whole; then the names of the directories. Each is durable
// before the next begins. errs gets the outcomes.
func (d *Dir) make(logs []*Log, errs []error, wanted []NewLog, of []int) {
	whole := len(logs) >= wholeSync
	each := func(fn func(i int, l *Log) error) (n int) {
		for i, l := range logs {
			if errs[i] == nil {
				errs[i] = fn(i, l)
			}
			if errs[i] == nil {
				n++
			}
		}
		return n
	}
	fail := func(err error) {
		if err != nil {
			each(func(int, *Log) error { return err })
		}
	}
	if each(func(i int, l *Log) error { return l.create(wanted[of[i]].StartOffset, !whole) }) == 0 {
		return
	}
	if whole {
		fail(d.cfg.FS.SyncAll(d.path))
	}
	named := each(func(_ int, l *Log) error {
		path := vfs.Join(l.path, stateName)
		err := d.cfg.FS.Rename(path+tmpSuffix, path)
		if err == nil && !whole {
			err = d.cfg.FS.SyncDir(l.path) // and with it the names of the files before it
		}
		return err
	})
	switch {
	case named == 0 || d.cfg.mutants.has(mutantCreateUnsynced):
	case whole:
		fail(d.cfg.FS.SyncAll(d.path))
	default:
		fail(d.cfg.FS.SyncDir(d.path))
	}
}

// create makes the directory and its files, the state file under its temporary name; synced, if so asked, but for names.
func (l *Log) create(start int64, synced bool) error {
	d, fsys := l.dir, l.dir.cfg.FS
	if _, err := fsys.Stat(l.path); err == nil {
		return fmt.Errorf("%s: %w", l.path, fs.ErrExist)
	}
	if err := fsys.Mkdir(l.path); err != nil {
		return err
	}
	if err := d.writeNew(vfs.Join(l.path, metadataName), encodePartitionMetadata(l.topicID), synced); err != nil {
		return err
	}
	seg := newSegment(l.path, start)
	f, err := fsys.Create(seg.log.path)
	if err != nil {
		return err
	}
	seg.pinned = d.files.adopt(&seg.log, f)
	l.mu.logID = d.newLogID()
	l.mu.start, l.mu.end, l.mu.recoveryPoint = start, start, start
	l.mu.durable.reset(start)
	l.mu.segments = []*segment{seg}
	l.mu.notified = -1
	s := state{topic: l.topic, partition: l.partition, topicID: l.topicID, logID: l.mu.logID, start: start, recoveryPoint: start, cut: -1}
	return d.writeNew(vfs.Join(l.path, stateName+tmpSuffix), s.encode(), synced)
}

// undo removes what there is of the directory of a partition that begins at start and could not be made, without opening
// anything. It fails if something is left.
func (d *Dir) undo(path string, start int64) error {
	for _, name := range []string{metadataName, newSegment("", start).log.path, stateName + tmpSuffix, ""} {
		if err := d.cfg.FS.Remove(vfs.Join(path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// abandon lets go of the files of a log that could not be made.
func (l *Log) abandon() {
	for _, seg := range l.mu.segments {
		l.releaseSegment(seg)
	}
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
