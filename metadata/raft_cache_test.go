package metadata

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The cache answers what the log behind it answers, whatever is written and removed, and keeps to its bounds.
func TestLogCacheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		behind := raft.NewInmemStore()
		c := newLogCache(behind)
		c.mu.ring, c.mu.limit = make([]*raft.Log, 8), 5000
		next := uint64(1)
		version := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			first, err := behind.FirstIndex()
			require.NoError(t, err)
			switch op := rapid.IntRange(0, 9).Draw(t, "op"); {
			case op < 6 || first == 0 || first == next: // the log is empty
				var entries []*raft.Log
				for range rapid.IntRange(1, 12).Draw(t, "entries") {
					version++
					large := rapid.IntRange(0, 20).Draw(t, "large") == 0
					entries = append(entries, &raft.Log{Index: next, Term: uint64(version), Data: make([]byte, map[bool]int{true: 4000, false: 10}[large])})
					next++
				}
				require.NoError(t, c.StoreLogs(entries))
			case op < 8: // a tail is replaced
				from := rapid.Uint64Range(first, next-1).Draw(t, "from")
				require.NoError(t, c.DeleteRange(from, next-1))
				next = from
			default: // the front goes
				to := rapid.Uint64Range(first, next-1).Draw(t, "to")
				require.NoError(t, c.DeleteRange(first, to))
			}
			bytes := 0
			for i := c.mu.lo; i < c.mu.hi; i++ {
				bytes += size(c.mu.ring[i%8])
			}
			require.Equal(t, bytes, c.mu.bytes)
			require.LessOrEqual(t, c.mu.hi-c.mu.lo, uint64(8))
			require.True(t, bytes <= 5000 || c.mu.hi-c.mu.lo == 1)
			for i := uint64(0); i <= next; i++ {
				var want, got raft.Log
				wantErr, gotErr := behind.GetLog(i, &want), c.GetLog(i, &got)
				require.Equal(t, wantErr, gotErr, "entry %d", i)
				require.Equal(t, want.Term, got.Term, "entry %d", i)
			}
		}
	})
}

// Entries that could not be written are not in the cache either.
func TestLogCacheAfterFailedWrite(t *testing.T) {
	fail := error(nil)
	c := newLogCache(&faultyLogs{raft.NewInmemStore(), func(string) error { return fail }})
	require.NoError(t, c.StoreLog(&raft.Log{Index: 1}))
	fail = errTestIO
	require.ErrorIs(t, c.StoreLog(&raft.Log{Index: 2}), errTestIO)
	fail = nil
	var l raft.Log
	require.ErrorIs(t, c.GetLog(2, &l), raft.ErrLogNotFound)
	require.NoError(t, c.GetLog(1, &l))
}
