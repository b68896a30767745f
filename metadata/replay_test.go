package metadata

import (
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/millrace/millrace/metadata/raftlog"
)

// closedLog opens the Raft log of a store that is closed, until the test ends, and changes nothing.
func closedLog(t testing.TB, cfg Config) *raftlog.Log {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(cfg.Dir, databaseFile), 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
	require.NoError(t, err)
	o := cfg.entriesOptions()
	o.Record, o.ReadOnly = logRecord{&database{DB: db}}, true
	l, err := raftlog.Open(o)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// verifyReplay replays what is left of a closed store's Raft log on two fresh FSMs (M1, I14): their hashes are equal at
// each index, and at the end equal to the store's own. A log whose beginning has been compacted is not replayed.
func verifyReplay(t testing.TB, s *Store) {
	t.Helper()
	db := closedLog(t, s.cfg)
	first, err := db.FirstIndex()
	require.NoError(t, err)
	last, err := db.LastIndex()
	require.NoError(t, err)
	if first != 1 {
		return
	}
	a, b := newTestFSM(t), newTestFSM(t)
	every := max(1, last/200)
	for i := first; i <= min(last, s.fsm.index); i++ {
		l := readEntry(t, db, i)
		a.Apply(l)
		b.Apply(l)
		require.Empty(t, a.failures)
		if i%every == 0 || i == s.fsm.index {
			require.Equal(t, stateHash(a.st, a.index), stateHash(b.st, b.index), "after entry %d", i)
		}
	}
	require.Equal(t, stateHash(s.fsm.st, s.fsm.index), stateHash(a.st, a.index), "the store and its replay")
	checkState(t, a.st)
}

func readEntry(t testing.TB, db raft.LogStore, index uint64) *raft.Log {
	t.Helper()
	var l raft.Log
	require.NoError(t, db.GetLog(index, &l))
	return &l
}
