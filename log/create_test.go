package log

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

// manyLogs are new partitions of one topic.
func manyLogs(n int) (wanted []NewLog) {
	for p := range n {
		wanted = append(wanted, NewLog{Topic: "many", TopicID: testID(1), Partition: int32(p), StartOffset: 7, Settings: acked})
	}
	return wanted
}

// TestCreateAll: partitions created together survive a power cut when the call returns (W18), whether each syncs what is
// its own or all share their syncs, and many take no more syncs than one of them would.
func TestCreateAll(t *testing.T) {
	for _, n := range []int{3, 3 * wholeSync} {
		eachMode(t, func(t *testing.T, m mode) {
			fsys := vfs.NewMem(1)
			counting := vfs.NewFaulty(fsys)
			d := openDir(t, testConfig(m, counting))
			before := counting.Count(vfs.OpSync) + counting.Count(vfs.OpSyncDir)
			for _, c := range d.CreateAll(manyLogs(n)) {
				require.NoError(t, c.Err)
			}
			syncs := counting.Count(vfs.OpSync) + counting.Count(vfs.OpSyncDir) - before
			switch {
			case m.wal: // its files grow meanwhile
			case n < wholeSync:
				require.Equal(t, 3*n+1, syncs)
			default:
				require.Zero(t, syncs)
			}
			for _, crash := range []vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed} {
				c := openDir(t, testConfig(m, fsys.CrashClone(crash)))
				require.Empty(t, c.Offline())
				require.Len(t, c.Logs(), n)
				for _, l := range c.Logs() {
					require.Equal(t, int64(7), l.EndOffset())
				}
				require.NoError(t, c.Close())
			}

			// So does their removal, of which many share the syncs too.
			before = counting.Count(vfs.OpSyncDir)
			for _, err := range d.DeleteAll(d.Logs()) {
				require.NoError(t, err)
			}
			if !m.wal {
				require.Equal(t, 1, counting.Count(vfs.OpSyncDir)-before)
			}
			c := openDir(t, testConfig(m, fsys.CrashClone(vfs.CrashLose)))
			require.Empty(t, c.Logs())
			require.NoError(t, c.Close())
			require.NoError(t, d.Close())
		})
	}
}

// TestCreateAllInterrupted: a power cut in the middle leaves whole partitions and none that is half there.
func TestCreateAllInterrupted(t *testing.T) {
	const n = wholeSync
	for _, crash := range []vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed} {
		fsys := vfs.NewMem(3)
		hooked := vfs.NewFaulty(fsys)
		d := openDir(t, testConfig(mode{}, hooked))
		step := 0
		hooked.Hook(func(vfs.Op, string) {
			if step++; step%37 != 0 {
				return
			}
			c := openDir(t, testConfig(mode{}, fsys.CrashClone(crash)))
			require.Empty(t, c.Offline(), "after %d operations", step)
			require.NoError(t, c.Close())
		})
		for _, c := range d.CreateAll(manyLogs(n)) {
			require.NoError(t, c.Err)
		}
		hooked.Hook(nil)
		require.Greater(t, step, 5*n)
		require.NoError(t, d.Close())
	}
}

// TestCreateAllRefusals: what can not be created does not keep the others from it.
func TestCreateAllRefusals(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	createLog(t, d, acked)
	out := d.CreateAll([]NewLog{
		{Topic: "topic", TopicID: testID(1), Settings: acked},
		{Topic: "", TopicID: testID(2), Settings: acked},
		{Topic: "a", TopicID: testID(3), Settings: acked},
		{Topic: "a", TopicID: testID(3), Settings: acked},
		{Topic: "a", TopicID: testID(4), Settings: acked},
		{Topic: "topic", TopicID: testID(5), Settings: acked},
	})
	got := fmt.Sprint(out[0].Err != nil, out[1].Err != nil, out[2].Err, out[3].Err != nil, out[4].Err != nil, out[5].Err)
	require.Equal(t, "true true <nil> true true <nil>", got)
	require.ErrorIs(t, out[0].Err, ErrExists)
	require.ErrorIs(t, out[3].Err, ErrExists)
	require.ErrorIs(t, out[4].Err, ErrExists)
	require.Len(t, names(t, fsys, "-stray"), 1, "the name of topic id 1 passed to topic id 5 (L21)")
	require.Len(t, d.Logs(), 2)
	require.NoError(t, d.Close())
}

// A process that may open no more files has nothing wrong with its disk: what can't be created is refused, whole, and can
// be created later; what is there serves on.
func TestCreateWithTooManyFiles(t *testing.T) {
	for _, n := range []int{1, 3, 2 * wholeSync} {
		for _, name := range []string{metadataName, "*.log", stateName + tmpSuffix} {
			eachMode(t, func(t *testing.T, m mode) {
				fsys := vfs.NewFaulty(vfs.NewMem(1))
				d := openDir(t, testConfig(m, fsys))
				fsys.Inject(vfs.Fault{Op: vfs.OpCreate, Name: name, After: n - 1, Err: vfs.ErrTooManyFiles})
				created := d.CreateAll(manyLogs(n))
				for i, c := range created[:n-1] {
					require.NoError(t, c.Err, i)
				}
				require.ErrorIs(t, created[n-1].Err, vfs.ErrTooManyFiles)
				require.NoError(t, d.Failed())
				again := d.CreateAll(manyLogs(n)[n-1:])
				require.NoError(t, again[0].Err)
				appendOne(t, again[0].Log, 0, plainBatch(1, 10))
				require.Len(t, d.Logs(), n)
			})
		}
	}
}
