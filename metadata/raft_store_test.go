package metadata

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// faultyLogs fails on order.
type faultyLogs struct {
	raft.LogStore
	fail func(op string) error
}

func (f *faultyLogs) StoreLogs(l []*raft.Log) error {
	if err := f.fail("store"); err != nil {
		return err
	}
	return f.LogStore.StoreLogs(l)
}

func (f *faultyLogs) GetLog(i uint64, l *raft.Log) error {
	if err := f.fail("get"); err != nil {
		return err
	}
	return f.LogStore.GetLog(i, l)
}

func (f *faultyLogs) DeleteRange(first, last uint64) error {
	if err := f.fail("delete"); err != nil {
		return err
	}
	return f.LogStore.DeleteRange(first, last)
}

// M7: the first failed write of the Raft log is reported once, before anybody is told anything; from then on nothing is
// acknowledged and nothing written, even if the disk works again.
func TestFailedLogWriteStops(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	var failing bool
	var writes int
	cfg.wrapLogs = func(l raft.LogStore) raft.LogStore {
		return &faultyLogs{l, func(op string) error {
			if op != "store" {
				return nil
			}
			if failing {
				failing = false // the next write would succeed: the kernel has dropped the pages
				return errTestIO
			}
			writes++
			return nil
		}}
	}
	failures := make(chan error, 10)
	cfg.OnFailure = func(err error) { failures <- err }
	s, err := Open(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Ready(testContext(t)))
	register(t, s, 1, 1)
	before := s.Image().Version()

	failing = true
	r := create(t, s, newTopic("a", 1))
	require.ErrorIs(t, r.Err, ErrTimeout, "whether the entry is on disk nobody knows")
	require.ErrorIs(t, <-failures, errTestIO)
	done := writes
	r = create(t, s, newTopic("b", 1))
	require.ErrorIs(t, r.Err, ErrFailed)
	require.ErrorIs(t, s.Ready(testContext(t)), ErrFailed)
	require.Equal(t, before, s.Image().Version())
	require.False(t, s.IsController())
	require.NoError(t, s.Close())
	require.Equal(t, done, writes, "nothing was written after the failure")
	require.Empty(t, failures, "reported once")
}

// M7: every call of the two stores, when it fails, poisons both; a missing entry or key is an answer and does not.
func TestGuardedStores(t *testing.T) {
	for _, op := range []string{"store", "get", "delete"} {
		var failures []error
		g := &guard{failure: func(err error) { failures = append(failures, err) }, ballast: newBallast(t.TempDir(), 0), disk: &diskWatch{}}
		mem := raft.NewInmemStore()
		var fail error
		logs := &logStore{
			next:  &faultyLogs{mem, func(o string) error { return map[bool]error{true: fail}[o == op] }},
			guard: g,
			floor: func() (uint64, error) { return 100, nil },
		}
		stable := &stableStore{next: mem, guard: g}
		require.NoError(t, logs.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}, {Index: 3}}))
		require.NoError(t, logs.StoreLogs(nil))
		require.NoError(t, stable.Set([]byte("k"), []byte("v")))
		require.NoError(t, stable.SetUint64([]byte("n"), 7))
		var l raft.Log
		require.ErrorIs(t, logs.GetLog(9, &l), raft.ErrLogNotFound)
		_, err := stable.Get([]byte("missing"))
		require.EqualError(t, err, "not found")
		n, err := stable.GetUint64([]byte("n"))
		require.NoError(t, err)
		require.Equal(t, uint64(7), n)
		require.Empty(t, failures)

		fail = errTestIO
		switch op {
		case "store":
			err = logs.StoreLog(&raft.Log{Index: 4})
		case "get":
			err = logs.GetLog(2, &l)
		case "delete":
			err = logs.DeleteRange(1, 1)
		}
		require.ErrorIs(t, err, errTestIO)
		fail = nil
		require.ErrorIs(t, logs.StoreLog(&raft.Log{Index: 4}), ErrFailed)
		require.ErrorIs(t, logs.DeleteRange(1, 1), ErrFailed)
		require.ErrorIs(t, stable.Set([]byte("k"), nil), ErrFailed)
		require.ErrorIs(t, stable.SetUint64([]byte("k"), 1), ErrFailed)
		require.NoError(t, logs.GetLog(2, &l), "reading hurts nobody")
		require.Len(t, failures, 1, op)
	}
}

// M6: entries leave the front of the log only up to the older of the two snapshots that are kept; a tail that another
// leader replaces goes as asked.
func TestLogReachesBackToOlderSnapshot(t *testing.T) {
	mem := raft.NewInmemStore()
	floor := uint64(0)
	var floorErr error
	logs := &logStore{next: mem, guard: &guard{failure: func(err error) { t.Error(err) }, ballast: newBallast(t.TempDir(), 0), disk: &diskWatch{}}, floor: func() (uint64, error) { return floor, floorErr }}
	for i := range uint64(20) {
		require.NoError(t, logs.StoreLog(&raft.Log{Index: i + 1}))
	}
	first := func() uint64 { i, err := logs.FirstIndex(); require.NoError(t, err); return i }
	require.NoError(t, logs.DeleteRange(1, 10))
	require.Equal(t, uint64(1), first(), "one snapshot: everything stays")
	floor = 5
	require.NoError(t, logs.DeleteRange(1, 10))
	require.Equal(t, uint64(6), first())
	floorErr = errTestIO
	require.ErrorIs(t, logs.DeleteRange(6, 10), errTestIO)
	floorErr = nil
	require.NoError(t, logs.DeleteRange(15, 20), "a tail")
	last, err := logs.LastIndex()
	require.NoError(t, err)
	require.Equal(t, uint64(14), last)
}

// M8: no code of this package asks a store not to sync, and Config has no field for it.
func TestNothingDisablesSync(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, word := range []string{"NoSync", "NoGrowSync", "noSync", "InmemStore", "InmemSnapshotStore", "DiscardSnapshotStore"} {
			require.NotContains(t, string(text), word, name)
		}
	}
}
