package metadata

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata/raftlog"
)

// I13, I14: a controller that was cut off has entries that were never committed. When it comes back so late that it is sent a
// snapshot, they must go: they would stand in its log below a gap, and a leader sends what is in its log to servers that are
// further behind.
func TestReceivedSnapshotReplacesLog(t *testing.T) {
	inQuorumWorld(t, 3, func(t *testing.T, w *quorumWorld) {
		w.edit = func(c *Config) { c.SnapshotEntries, c.SnapshotInterval, c.TrailingEntries = 20, time.Second, 1 }
		for id := BrokerID(1); id <= 3; id++ {
			w.join(id)
		}
		w.voting(1, 2, 3)
		old := w.controller()
		w.isolate(old, true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _, err := old.AllocateProducerIDs(ctx)
		require.Error(t, err)
		uncommitted, err := old.entries.LastIndex()
		require.NoError(t, err)
		var entry raft.Log
		require.NoError(t, old.entries.GetLog(uncommitted, &entry))
		term := entry.Term

		lead := w.controller(old)
		w.await("the others have forgotten what it lacks", func() bool {
			_, _, err := lead.AllocateProducerIDs(testContext(t))
			require.NoError(t, err)
			first, err := lead.entries.FirstIndex()
			require.NoError(t, err)
			return first > uncommitted+1
		})
		w.isolate(old, false)
		w.await("it is back", func() bool {
			return old.Image().Version() == lead.Image().Version() && old.Image().Broker(old.cfg.NodeID).Fenced == false
		})
		require.NoError(t, lead.entries.GetLog(lead.Image().Version(), &entry))
		for range 2 { // as it runs, and after a restart
			first, last := logOf(t, old)
			require.Greater(t, first, uncommitted, "nothing of term %d is left", term)
			for i := first; i <= last; i++ {
				require.NoError(t, old.entries.GetLog(i, &entry), "entry %d of %d to %d", i, first, last)
			}
			w.kill(old)
			old = w.open(old.cfg.NodeID, old.cfg.DirectoryID, 2)
			require.NoError(t, old.Ready(testContext(t)))
			w.register(old)
		}
	})
}

func logOf(t *testing.T, n *quorumNode) (first, last uint64) {
	first, err := n.entries.FirstIndex()
	require.NoError(t, err)
	last, err = n.entries.LastIndex()
	require.NoError(t, err)
	return first, last
}

// What an earlier version, or a crash before it was removed, has left below a gap goes at the start; nothing else does.
func TestReplacedEntriesGoAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		stretches   [][2]uint64
		from        uint64 // the snapshot
		first, last uint64 // that are left
	}{
		"nothing":                      {nil, 0, 0, 0},
		"no snapshot":                  {[][2]uint64{{1, 9}}, 0, 1, 9},
		"its own snapshot":             {[][2]uint64{{3, 9}}, 7, 3, 9},
		"a snapshot at the end":        {[][2]uint64{{3, 9}}, 9, 3, 9},
		"received":                     {[][2]uint64{{3, 9}}, 20, 0, 0},
		"received, and gone on":        {[][2]uint64{{3, 9}, {21, 30}}, 20, 21, 30},
		"received long ago":            {[][2]uint64{{3, 9}, {21, 30}}, 28, 21, 30},
		"received twice":               {[][2]uint64{{3, 9}, {21, 30}}, 40, 0, 0},
		"the snapshot before the gap":  {[][2]uint64{{3, 9}, {21, 30}}, 8, 3, 30},
		"received twice, and gone on":  {[][2]uint64{{3, 9}, {21, 30}, {41, 50}}, 40, 41, 50},
		"the snapshot between the two": {[][2]uint64{{3, 9}, {21, 30}, {41, 50}}, 25, 3, 50},
	} {
		t.Run(name, func(t *testing.T) {
			record := &copiedRecord{}
			logs, err := raftlog.Create(raftlog.Options{Dir: t.TempDir(), Record: record, ID: 1})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, logs.Close()) })
			for _, s := range c.stretches {
				for i := s[0]; i <= s[1]; i++ {
					require.NoError(t, logs.StoreLog(&raft.Log{Index: i, Term: 1}))
				}
			}
			stable := raft.NewInmemStore()
			require.NoError(t, stable.SetUint64([]byte("CurrentTerm"), 1))
			tail, err := verifyRaft(logs, stable, raft.NewInmemSnapshotStore(), false)
			require.NoError(t, err)
			require.NoError(t, dropReplacedAtStart(logs, c.from, tail))
			first, err := logs.FirstIndex()
			require.NoError(t, err)
			last, err := logs.LastIndex()
			require.NoError(t, err)
			require.Equal(t, [2]uint64{c.first, c.last}, [2]uint64{first, last})
		})
	}
}
