package metadata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	databaseFile = "raft.db"
	// lockWait bounds how long Open waits for another process to let go of the directory.
	lockWait = time.Second
)

// database is raft.db: Raft's term and vote, and the record of the segments that its entries are in (raft_entries.go). It is
// a raft.StableStore, of the layout that raft-boltdb gave it.
type database struct {
	*bbolt.DB
	path string
}

var (
	stableBucket = []byte("conf")
	logsBucket   = []byte("logs") // entries of earlier versions; now movedMark
)

// errNoKey has the text by which Raft knows it.
var errNoKey = errors.New("not found")

// Set stores a value durably.
func (d *database) Set(key, val []byte) error {
	return d.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(stableBucket)
		if err != nil {
			return err
		}
		return b.Put(key, val)
	})
}

// Get returns a value, or an error "not found".
func (d *database) Get(key []byte) (val []byte, err error) {
	err = d.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(stableBucket)
		if b == nil || b.Get(key) == nil {
			return errNoKey
		}
		val = bytes.Clone(b.Get(key))
		return nil
	})
	return val, err
}

// SetUint64 and GetUint64 are summedStable's; these, without a checksum, are of earlier versions.
func (d *database) SetUint64(key []byte, val uint64) error {
	return d.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 returns a number, or an error "not found".
func (d *database) GetUint64(key []byte) (uint64, error) {
	val, err := d.Get(key)
	if err == nil && len(val) != 8 {
		err = fmt.Errorf("raft state %s: %w", key, errRot)
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(val), nil
}

// stableKeys are all that there are: Raft's and ours.
var stableKeys = [][]byte{[]byte("CurrentTerm"), []byte("LastVoteTerm"), []byte("LastVoteCand"), []byte(serverKey), recordKey, copyingKey}

// verifyKeys returns a key that is none. A flipped bit in one would have Raft forget that it has voted.
func (d *database) verifyKeys() error {
	return d.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(stableBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(key, _ []byte) error {
			if !slices.ContainsFunc(stableKeys, func(k []byte) bool { return bytes.Equal(k, key) }) {
				return fmt.Errorf("raft state %q is none: %w", key, errRot)
			}
			return nil
		})
	})
}

// openDatabase opens raft.db. Its pages are looked at first: a damaged file can make bbolt panic or worse.
func (c *Config) openDatabase() (db *database, err error) {
	dir := c.Dir
	path := filepath.Join(dir, databaseFile)
	damaged := func(err error) error {
		return c.damaged(fmt.Sprintf("the metadata log %s is damaged", path), err.Error())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create metadata directory %s: %w", dir, err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = damaged(fmt.Errorf("%v", p))
		}
	}()
	if info, err := os.Stat(path); c.Founded && (errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0) {
		return nil, damaged(errors.New("it is gone or empty, and the broker has been part of a cluster")) // bbolt would make it anew
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if verr := verifyDatabase(path); verr != nil {
		// Another process that writes to it may be why.
		if readable, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true}); err == nil {
			return nil, errors.Join(damaged(verr), readable.Close())
		} else if !errors.Is(err, bolterrors.ErrTimeout) {
			return nil, damaged(verr)
		}
	}
	bolt, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
	switch {
	case err == nil:
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("open %s: %w", path, &Error{
			Kind: ErrInvalidRequest,
			What: "another process is using this metadata directory",
			Why:  "its lock was not released within " + lockWait.String(),
			Fix:  "stop the other broker, or give this one another data directory",
		})
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return nil, damaged(err)
	default:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	// A process that was killed may have left a write that is only in the cache: it must not be acted upon before it is on
	// the disk. Nor is the name of the file there yet, and that of its folder, after the first start (L3).
	if err := errors.Join(bolt.Sync(), syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	db = &database{bolt, path}
	if err := db.verifyKeys(); err != nil {
		return nil, errors.Join(damaged(err), bolt.Close())
	}
	return db, nil
}
