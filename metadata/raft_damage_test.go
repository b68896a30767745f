package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// openFiles does what Open does before Raft starts, and says what Raft would start from: the state, every entry and the
// numbers of the stable store, as text.
func openFiles(cfg Config) (out []string, err error) {
	cfg.Logger, cfg.Founded = discard(), true
	db, err := cfg.openDatabase()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	snaps, err := openSnapshots(cfg.Dir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	logs, err := cfg.openEntries(db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, logs.Close()) }()
	stable := summedStable{db}
	if _, err := verifyRaft(logs, stable, snaps, cfg.Founded); err != nil {
		return nil, cfg.damaged("raft.db", err.Error())
	}
	found, err := recoverState(&cfg, snaps, logs)
	if err != nil {
		return nil, err
	}
	first, err := logs.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := logs.LastIndex()
	if err != nil {
		return nil, err
	}
	// With an older snapshot the state is that after fewer entries; the log has the rest.
	f := &fsm{st: found.st, index: found.index, published: func(*state, uint64) {}, failure: func(error) {}}
	for i := first; i <= last; i++ {
		var entry raft.Log
		if err := logs.GetLog(i, &entry); err != nil {
			return nil, err
		}
		if i > found.index {
			f.Apply(&entry)
		}
		out = append(out, fmt.Sprintf("entry %d of term %d: %x", entry.Index, entry.Term, entry.Data))
	}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm"} {
		n, err := stable.GetUint64([]byte(key))
		if err != nil {
			return nil, err
		}
		out = append(out, fmt.Sprintf("%s %d", key, n))
	}
	config, err := latestConfiguration(logs, snaps)
	return append(out, fmt.Sprintf("state %x, servers %v", stateHash(f.st, f.index), config.Servers)), err
}

// M6, M14, I16, I19: whatever single bit of Raft's files flips, and wherever they end too early or are gone, a broker starts
// from exactly what it had, or refuses with the mend; it never has another state, another log or another vote, and it makes nothing
// anew when it refuses.
func TestDamagedRaftFiles(t *testing.T) {
	cfg, _ := withSnapshots(t, 3, 6)
	want, err := openFiles(cfg)
	require.NoError(t, err)
	require.Greater(t, len(want), 5)
	var files []string
	require.NoError(t, filepath.WalkDir(cfg.Dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && filepath.Base(path) != ballastFile {
			name, _ := filepath.Rel(cfg.Dir, path)
			files = append(files, name)
		}
		return err
	}))
	require.GreaterOrEqual(t, len(files), 6, "raft.db, a segment or two, and two snapshots of two files: %v", files)
	random := rand.New(rand.NewPCG(1, 6))
	flips := 120
	if testing.Short() {
		flips = 40
	}
	refused := map[string]int{}
	try := func(name, what string, change func(b []byte) []byte) {
		t.Helper()
		damaged := cfg
		damaged.Dir = t.TempDir()
		require.NoError(t, os.CopyFS(damaged.Dir, os.DirFS(cfg.Dir)))
		path := filepath.Join(damaged.Dir, name)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		if b = change(b); b == nil {
			require.NoError(t, os.Remove(path))
		} else {
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}
		got, err := openFiles(damaged)
		if err == nil {
			require.Equal(t, want, got, "%s: %s", name, what)
			require.NoError(t, os.RemoveAll(damaged.Dir))
			return
		}
		requireMend(t, err, ErrCorrupt)
		refused[filepath.Base(name)]++
		_, again := openFiles(damaged)
		requireMend(t, again, ErrCorrupt)
		after, err := os.ReadFile(path)
		switch {
		case b == nil:
			require.ErrorIs(t, err, fs.ErrNotExist, "%s: %s: a refused start has made it anew", name, what)
		case filepath.Base(name) == databaseFile: // bbolt writes a root when it opens one whose pages are right
			require.Len(t, after, len(b), "%s: %s: a refused start has changed it", name, what)
		default:
			require.True(t, bytes.Equal(b, after), "%s: %s: a refused start has changed it", name, what)
		}
		require.NoError(t, os.RemoveAll(damaged.Dir))
	}
	for _, name := range files {
		size := 0
		for range flips {
			try(name, "a bit", func(b []byte) []byte {
				size = len(b)
				at := random.IntN(len(b))
				for range 20 { // most of a segment is empty yet
					if b[at] != 0 {
						break
					}
					at = random.IntN(len(b))
				}
				if filepath.Base(name) == databaseFile && random.IntN(2) == 0 {
					// Most of a database is free; both roots, at least, are met often.
					at = random.IntN(2)*os.Getpagesize() + random.IntN(96)
				}
				b[at] ^= 1 << random.IntN(8)
				return b
			})
		}
		for range flips / 10 {
			to := random.IntN(size)
			try(name, fmt.Sprintf("cut to %d bytes", to), func(b []byte) []byte { return b[:to] })
		}
		try(name, "emptied", func(b []byte) []byte { return []byte{} })
		try(name, "deleted", func([]byte) []byte { return nil })
	}
	require.Greater(t, refused[databaseFile], flips/4)
	for name, n := range refused {
		if filepath.Ext(name) == ".entries" {
			require.GreaterOrEqual(t, n, flips, "every bit of %s has a sum", name)
		}
	}
}
