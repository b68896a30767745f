package metadata

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// benchStores are the store of Raft's entries and, to compare, the one of earlier versions. reopen closes and opens it.
func benchStores(b *testing.B, run func(b *testing.B, logs raft.LogStore, reopen func() raft.LogStore)) {
	b.Run("raftlog", func(b *testing.B) {
		cfg := testConfig(b, b.TempDir())
		cfg.segmentBytes, cfg.Logger = 0, discard()
		db, err := cfg.openDatabase()
		require.NoError(b, err)
		defer db.Close()
		l, err := cfg.openEntries(db)
		require.NoError(b, err)
		defer func() { require.NoError(b, l.Close()) }()
		run(b, l, func() raft.LogStore {
			require.NoError(b, l.Close())
			l, err = cfg.openEntries(db)
			require.NoError(b, err)
			return l
		})
	})
	b.Run("bbolt", func(b *testing.B) {
		path := filepath.Join(b.TempDir(), databaseFile)
		open := func() *raftboltdb.BoltStore {
			db, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType}})
			require.NoError(b, err)
			return db
		}
		db := open()
		defer func() { require.NoError(b, db.Close()) }()
		run(b, db, func() raft.LogStore {
			require.NoError(b, db.Close())
			require.NoError(b, verifyDatabase(path))
			db = open()
			return db
		})
	})
}

func benchEntries(first uint64, n int) []*raft.Log {
	data := make([]byte, 200)
	for i := range data {
		data[i] = byte(i)
	}
	out := make([]*raft.Log, n)
	for i := range out {
		out[i] = &raft.Log{Index: first + uint64(i), Term: 3, Data: data}
	}
	return out
}

// Appends of entries of 200 B, with a snapshot's removals between them.
func BenchmarkStoreLogs(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			benchStores(b, func(b *testing.B, logs raft.LogStore, _ func() raft.LogStore) {
				next := uint64(1)
				b.ReportAllocs()
				for b.Loop() {
					if err := logs.StoreLogs(benchEntries(next, n)); err != nil {
						b.Fatal(err)
					}
					next += uint64(n)
				}
			})
		})
	}
}

// What a snapshot removes: ten thousand entries from the front of twelve thousand.
func BenchmarkDeleteRange(b *testing.B) {
	benchStores(b, func(b *testing.B, logs raft.LogStore, _ func() raft.LogStore) {
		first, last := uint64(1), uint64(0)
		for b.Loop() {
			b.StopTimer()
			for last < first+12_000 {
				require.NoError(b, logs.StoreLogs(benchEntries(last+1, 500)))
				last += 500
			}
			b.StartTimer()
			if err := logs.DeleteRange(first, first+9999); err != nil {
				b.Fatal(err)
			}
			first += 10_000
		}
	})
}

// A start with a hundred thousand entries of 200 B: what is read and checked before Raft begins.
func BenchmarkOpenLog(b *testing.B) {
	benchStores(b, func(b *testing.B, logs raft.LogStore, reopen func() raft.LogStore) {
		for i := range 200 {
			require.NoError(b, logs.StoreLogs(benchEntries(uint64(i*500+1), 500)))
		}
		for b.Loop() {
			l := reopen()
			for i := uint64(1); i <= 100_000; i++ { // as verifyRaft does
				var entry raft.Log
				if err := l.GetLog(i, &entry); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
