package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/millrace/millrace/metadata/raftlog"
)

// asEarlierVersion gives a closed store's directory the form in which earlier versions had it: all entries in raft.db, with
// the sum in their Extensions.
func asEarlierVersion(t *testing.T, cfg Config) (entries []*raft.Log) {
	t.Helper()
	logs := closedLog(t, cfg)
	first, err := logs.FirstIndex()
	require.NoError(t, err)
	last, err := logs.LastIndex()
	require.NoError(t, err)
	for i := first; i <= last; i++ {
		entries = append(entries, readEntry(t, logs, i))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, entriesDir)))
	path := filepath.Join(cfg.Dir, databaseFile)
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		return errors.Join(tx.DeleteBucket(logsBucket), tx.Bucket(stableBucket).Delete(recordKey))
	}))
	require.NoError(t, db.Close())
	old, err := raftboltdb.New(raftboltdb.Options{Path: path})
	require.NoError(t, err)
	var summed []*raft.Log
	for i, e := range entries {
		c := *e
		if i%7 > 0 { // still earlier there was no sum
			c.Extensions = entrySum(e)
		}
		summed = append(summed, &c)
	}
	require.NoError(t, old.StoreLogs(summed))
	require.NoError(t, old.Close())
	return entries
}

var errTestKilled = errors.New("killed")

// M6, I16: the entries of an earlier version are moved at the first start, all of them and once, wherever a start is cut off;
// until they are, the earlier version has all that it had, and from then on it refuses the directory.
func TestEntriesAreMoved(t *testing.T) {
	made, n := withSnapshots(t, 3, 6)
	entries := asEarlierVersion(t, made)
	require.Greater(t, len(entries), 3)
	steps := []string{}
	dir := func(t *testing.T) Config {
		cfg := made
		cfg.Dir = filepath.Join(t.TempDir(), "metadata")
		require.NoError(t, os.CopyFS(cfg.Dir, os.DirFS(made.Dir)))
		return cfg
	}
	earlier := func(t *testing.T, cfg Config) (logs []*raft.Log, err error) {
		db, err := raftboltdb.New(raftboltdb.Options{Path: filepath.Join(cfg.Dir, databaseFile)})
		require.NoError(t, err)
		defer db.Close()
		first, err := db.FirstIndex()
		require.NoError(t, err)
		last, err := db.LastIndex()
		require.NoError(t, err)
		for i := first; i <= last && err == nil; i++ {
			var l raft.Log
			if err = db.GetLog(i, &l); err == nil {
				l.Extensions = nil
				logs = append(logs, &l)
			}
		}
		return logs, err
	}
	requireMoved := func(t *testing.T, cfg Config) {
		t.Helper()
		cfg.moveStep = nil
		s := requireTopics(t, cfg, n)
		for _, e := range entries {
			var got raft.Log
			require.NoError(t, s.entries.GetLog(e.Index, &got))
			require.True(t, e.AppendedAt.Equal(got.AppendedAt))
			got.AppendedAt = e.AppendedAt
			require.Equal(t, *e, got)
		}
		require.NoError(t, s.Close())
		_, err := earlier(t, cfg)
		require.Error(t, err, "an earlier version reads on in an empty log")
		require.NotErrorIs(t, err, raft.ErrLogNotFound)
	}
	t.Run("in one go", func(t *testing.T) {
		cfg := dir(t)
		cfg.moveStep = func(step string) error { steps = append(steps, step); return nil }
		s := requireTopics(t, cfg, n)
		require.NoError(t, s.Close())
		requireMoved(t, cfg)
	})
	require.GreaterOrEqual(t, len(steps), 5, "%v", steps)
	for i, step := range steps {
		t.Run(fmt.Sprintf("cut off at %d, %s", i, step), func(t *testing.T) {
			cfg := dir(t)
			for range 2 {
				cfg.moveStep = func(at string) error {
					if at == step {
						return errTestKilled
					}
					return nil
				}
				_, err := Open(cfg)
				require.ErrorIs(t, err, errTestKilled)
				if step == "done" {
					break
				}
				logs, err := earlier(t, cfg)
				require.NoError(t, err)
				require.Len(t, logs, len(entries), "nothing has changed for the earlier version")
				// What a power cut leaves of the copy is of no account.
				files, err := filepath.Glob(filepath.Join(cfg.Dir, entriesDir, "*"))
				require.NoError(t, err)
				for _, f := range files {
					require.NoError(t, os.Truncate(f, 1000))
				}
			}
			requireMoved(t, cfg)
		})
	}
	t.Run("rot", func(t *testing.T) {
		cfg := dir(t)
		db, err := bbolt.Open(filepath.Join(cfg.Dir, databaseFile), 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
			key := binary.BigEndian.AppendUint64(nil, entries[3].Index)
			val := append([]byte{}, tx.Bucket(logsBucket).Get(key)...)
			val[len(val)/2] ^= 1
			return tx.Bucket(logsBucket).Put(key, val)
		}))
		require.NoError(t, db.Close())
		for range 2 {
			_, err := Open(cfg)
			requireMend(t, err, ErrCorrupt)
		}
		logs, _ := earlier(t, cfg)
		require.NotEmpty(t, logs, "they are where they were")
	})
	t.Run("somebody else's files", func(t *testing.T) {
		cfg := dir(t)
		require.NoError(t, os.MkdirAll(filepath.Join(cfg.Dir, entriesDir), 0o755))
		file := filepath.Join(cfg.Dir, entriesDir, "0000000000000001.entries")
		require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
		_, err := Open(cfg)
		requireMend(t, err, ErrCorrupt)
		require.FileExists(t, file)
	})
}

// I16: neither half of the log is begun anew when the other one is there.
func TestHalfALog(t *testing.T) {
	cfg, _ := withSnapshots(t, 2)
	record := func(tx *bbolt.Tx) error { return tx.Bucket(stableBucket).Delete(recordKey) }
	all := func(tx *bbolt.Tx) error { return errors.Join(record(tx), tx.DeleteBucket(logsBucket)) }
	for name, do := range map[string]func(*bbolt.Tx) error{"record gone": record, "record and mark gone": all} {
		t.Run(name, func(t *testing.T) {
			c := cfg
			c.Dir = filepath.Join(t.TempDir(), "metadata")
			require.NoError(t, os.CopyFS(c.Dir, os.DirFS(cfg.Dir)))
			db, err := bbolt.Open(filepath.Join(c.Dir, databaseFile), 0o600, nil)
			require.NoError(t, err)
			require.NoError(t, db.Update(do))
			require.NoError(t, db.Close())
			for range 2 {
				_, err = Open(c)
				requireMend(t, err, ErrCorrupt)
			}
		})
	}
	require.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, entriesDir)))
	_, err := Open(cfg)
	requireMend(t, err, ErrCorrupt, "gone")
}

// M2: a log of a later version is not damage.
func TestLogOfNewerVersion(t *testing.T) {
	cfg, n := withSnapshots(t, 2)
	change := func(by byte) {
		db, err := cfg.openDatabase()
		require.NoError(t, err)
		defer db.Close()
		b, err := db.Get(recordKey)
		require.NoError(t, err)
		b[0] += by
		b = binary.LittleEndian.AppendUint32(b[:len(b)-4], crc32.Checksum(b[:len(b)-4], castagnoli))
		require.NoError(t, db.Set(recordKey, b))
	}
	change(1)
	_, err := Open(cfg)
	requireMend(t, err, ErrPolicyViolation, "can't read")
	change(255)
	requireTopics(t, cfg, n)
}

var _ raft.LogStore = (*raftlog.Log)(nil)
