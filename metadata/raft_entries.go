package metadata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/millrace/millrace/metadata/raftlog"
)

// Earlier versions kept Raft's entries in raft.db. The first start of this one moves them:
//
//  1. raft.db says that a copy is being made;
//  2. what an earlier attempt has left of the copy is removed, and the entries are copied, durably;
//  3. in one step raft.db gets the record of the copy's segments, and in place of the entries a mark.
//
// A crash before 3 leaves the entries where they were, and the next start begins again. A broker of an earlier version that finds
// the mark takes it for an entry that can't be read, and refuses the directory instead of starting without a log.

// entriesDir is the folder of the segments, in Config.Dir.
const entriesDir = "raft-log"

var (
	// recordKey is where the stable store has the record of the segments, copyingKey where it says that they are being made.
	recordKey  = []byte("millrace-log")
	copyingKey = []byte("millrace-log-copying")
	// movedMark stands under the index 1 for the entries that were there. No decoder takes it for an entry.
	movedKey  = binary.BigEndian.AppendUint64(nil, 1)
	movedMark = []byte("moved to " + entriesDir)
)

const (
	// moveEntries and moveBytes bound what is copied with one sync.
	moveEntries = 512
	moveBytes   = 1 << 20
)

// logRecord is the record of the segments, in raft.db.
type logRecord struct{ db *database }

func (r logRecord) Load() ([]byte, error) { return r.db.Get(recordKey) }

func (r logRecord) Store(b []byte) error { return r.db.Set(recordKey, b) }

// copiedRecord is that of a copy, until raft.db has it.
type copiedRecord struct{ b []byte }

func (r *copiedRecord) Load() ([]byte, error) { return r.b, nil }

func (r *copiedRecord) Store(b []byte) error { r.b = bytes.Clone(b); return nil }

// openEntries opens Raft's log, after it has moved what an earlier version wrote. Damage is told by an error of kind ErrCorrupt.
func (c *Config) openEntries(db *database) (*raftlog.Log, error) {
	o := c.entriesOptions()
	err := c.moveEntries(db)
	var l *raftlog.Log
	if err == nil {
		o.Record = logRecord{db}
		l, err = raftlog.Open(o)
	}
	if errors.Is(err, raftlog.ErrDamaged) || errors.Is(err, errRot) {
		return nil, c.damaged(fmt.Sprintf("the metadata log %s is damaged", o.Dir), err.Error())
	}
	if errors.Is(err, raftlog.ErrNewer) {
		return nil, &Error{
			Kind: ErrPolicyViolation,
			What: fmt.Sprintf("this version can't read the metadata in %s", c.Dir),
			Why:  err.Error(),
			Fix:  "start the version that wrote it, or a later one",
		}
	}
	return l, err
}

func (c *Config) entriesOptions() raftlog.Options {
	return raftlog.Options{Dir: filepath.Join(c.Dir, entriesDir), SegmentBytes: c.segmentBytes, Logger: c.Logger}
}

// moveEntries makes the segments, unless raft.db has a record of them.
func (c *Config) moveEntries(db *database) error {
	var recorded, copying, moved bool
	var count int
	err := db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(stableBucket); b != nil {
			recorded, copying = b.Get(recordKey) != nil, b.Get(copyingKey) != nil
		}
		if b := tx.Bucket(logsBucket); b != nil {
			count = b.Stats().KeyN
			moved = bytes.Equal(b.Get(movedKey), movedMark)
		}
		return nil
	})
	if err != nil || recorded {
		return err
	}
	if moved {
		return fmt.Errorf("the entries were moved to %s, and the record of its segments is gone: %w", entriesDir, errRot)
	}
	dir := filepath.Join(c.Dir, entriesDir)
	if count > 0 {
		if !copying {
			// Nothing of ours is there yet, and what somebody else has put there is not removed (I16).
			if names, err := os.ReadDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) || len(names) > 0 {
				return errors.Join(err, fmt.Errorf("%s has files, and raft.db does not know them: %w", dir, errRot))
			}
			if err := c.crash("copy"); err != nil {
				return err
			}
			if err := db.markCopying(); err != nil {
				return err
			}
		}
		if err := errors.Join(c.crash("remove"), os.RemoveAll(dir)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := syncDir(c.Dir); err != nil {
		return err
	}
	record := &copiedRecord{}
	o := c.entriesOptions()
	o.Record, o.ID = record, rand.Uint64()
	l, err := raftlog.Create(o)
	if err != nil {
		return err
	}
	last, err := c.copyEntries(db, l)
	if err = errors.Join(err, l.Close()); err != nil {
		return fmt.Errorf("move the raft log from %s to %s: %w", db.path, dir, err)
	}
	if err := c.crash("record"); err != nil {
		return err
	}
	if err := db.recordMoved(record.b); err != nil {
		return fmt.Errorf("record in %s that the raft log is in %s: %w", db.path, dir, err)
	}
	if count > 0 {
		c.Logger.Info("the raft log of an earlier version was moved; that version can't be started with this directory any more",
			"from", db.path, "to", dir, slog.Int("entries", count), slog.Uint64("last", last))
	}
	return c.crash("done")
}

// crash lets a test stop at a step of moveEntries.
func (c *Config) crash(step string) error {
	if c.moveStep == nil {
		return nil
	}
	return c.moveStep(step)
}

// copyEntries copies every entry of raft.db.
func (c *Config) copyEntries(db *database, l raft.LogStore) (last uint64, err error) {
	var batch []*raft.Log
	bytes := 0
	store := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := errors.Join(c.crash("store"), l.StoreLogs(batch))
		batch, bytes = nil, 0
		return err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(logsBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(key, val []byte) error {
			entry, err := oldEntry(key, val)
			if err != nil {
				return err
			}
			batch, bytes, last = append(batch, entry), bytes+len(entry.Data), entry.Index
			if len(batch) >= moveEntries || bytes >= moveBytes {
				return store()
			}
			return nil
		})
	})
	if err == nil {
		err = store()
	}
	return last, err
}

// oldEntry decodes an entry as earlier versions wrote it: by raft-boltdb, with a checksum in its Extensions, or without any
// still earlier.
func oldEntry(key, val []byte) (entry *raft.Log, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("entry %x: %v: %w", key, p, errRot)
		}
	}()
	if len(key) != 8 {
		return nil, fmt.Errorf("entry %x: %w", key, errRot)
	}
	index := binary.BigEndian.Uint64(key)
	entry = new(raft.Log)
	if err := codec.NewDecoderBytes(val, &codec.MsgpackHandle{}).Decode(entry); err != nil {
		return nil, fmt.Errorf("entry %d: %w: %w", index, err, errRot)
	}
	sum := entry.Extensions
	entry.Extensions = nil
	if entry.Index != index || len(sum) > 0 && !bytes.Equal(sum, entrySum(entry)) {
		return nil, fmt.Errorf("entry %d: %w", index, errRot)
	}
	return entry, nil
}

// markCopying says that what is in the folder of the segments is a copy, and not whole.
func (d *database) markCopying() error {
	return d.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(stableBucket)
		if err != nil {
			return err
		}
		return b.Put(copyingKey, []byte{1})
	})
}

// recordMoved is the step with which the segments count and the entries in raft.db don't.
func (d *database) recordMoved(record []byte) error {
	return d.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(stableBucket)
		if err != nil {
			return err
		}
		if err := errors.Join(b.Put(recordKey, record), b.Delete(copyingKey)); err != nil {
			return err
		}
		if tx.Bucket(logsBucket) != nil {
			if err := tx.DeleteBucket(logsBucket); err != nil {
				return err
			}
		}
		logs, err := tx.CreateBucket(logsBucket)
		if err != nil {
			return err
		}
		return logs.Put(movedKey, movedMark)
	})
}
