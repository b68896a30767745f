package log

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/log/vfs"
)

func names(t *testing.T, fsys vfs.FS, match string) (out []string) {
	t.Helper()
	entries, err := fsys.List("data")
	require.NoError(t, err)
	for _, e := range entries {
		if e.Dir && strings.Contains(e.Name, match) {
			out = append(out, e.Name)
		}
	}
	return out
}

// TestDirectoryID: it is random, made once, and stays; an emptied directory gets another (L11). A bad file refuses the
// start instead of making a new one.
func TestDirectoryID(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	id := d.ID()
	require.NotEqual(t, [16]byte{}, id)
	require.False(t, d.CleanStart(), "a new directory has no proof of anything")
	require.NoError(t, d.Close())
	d = openDir(t, testConfig(mode{}, fsys))
	require.Equal(t, id, d.ID())
	require.True(t, d.CleanStart())
	require.NoError(t, d.Close())

	wiped := openDir(t, testConfig(mode{}, vfs.NewMem(2)))
	require.NotEqual(t, id, wiped.ID())
	require.NoError(t, wiped.Close())

	fsys.Flip("data/"+directoryName, 12, 0)
	_, err := OpenDir("data", testConfig(mode{}, fsys))
	require.ErrorIs(t, err, ErrCorrupt)
}

// TestCleanMarker: only a clean stop leaves it, it is taken away before anything else happens, and another directory's
// proves nothing (I12).
func TestCleanMarker(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	require.NoError(t, d.Close())
	marker, err := vfs.ReadFile(fsys, "data/"+cleanName)
	require.NoError(t, err)
	d = openDir(t, testConfig(mode{}, fsys))
	require.True(t, d.CleanStart())
	fsys = fsys.Crash(vfs.CrashLose)
	d = openDir(t, testConfig(mode{}, fsys))
	require.False(t, d.CleanStart())
	require.NoError(t, d.Close())

	other := vfs.NewMem(9)
	cfg := testConfig(mode{}, other)
	d = openDir(t, cfg)
	require.NoError(t, d.Close())
	require.NoError(t, vfs.ReplaceFile(other, "data", cleanName, marker))
	d = openDir(t, testConfig(mode{}, other))
	require.False(t, d.CleanStart())
	require.NoError(t, d.Close())
}

// TestLocked: two processes can not use one directory.
func TestLocked(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	_, err := OpenDir("data", testConfig(mode{}, fsys))
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, d.Close())
	d = openDir(t, testConfig(mode{}, fsys))
	require.NoError(t, d.Close())
}

// TestRecreatedTopic: a topic made again under the same name never inherits, also while the old one is still there: the
// directory holds the topic id (L21, M21), and the old one is kept as a stray (L12).
func TestRecreatedTopic(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		fsys := vfs.NewMem(1)
		d := openDir(t, testConfig(m, fsys))
		old := createLog(t, d, acked)
		a := appendOne(t, old, 0, plainBatch(3, 10))
		waitDurable(t, old, a.NextOffset)
		_, err := d.Create("topic", testID(1), 0, 0, acked)
		require.ErrorIs(t, err, ErrExists)
		l, err := d.Create("topic", testID(2), 0, 0, acked)
		require.NoError(t, err)
		require.Equal(t, int64(0), l.EndOffset())
		require.Len(t, names(t, fsys, "-stray"), 1)
		_, ok := d.Lookup(testID(1), 0)
		require.False(t, ok)
		_, err = old.Read(0, 3, 100, true)
		require.ErrorIs(t, err, ErrClosed)

		// Deleted and made again at once: the name is free, the records are not back after any crash (W18).
		b := appendOne(t, l, 0, plainBatch(2, 10))
		waitDurable(t, l, b.NextOffset)
		require.NoError(t, d.Delete(l))
		l, err = d.Create("topic", testID(3), 0, 7, acked)
		require.NoError(t, err)
		require.Equal(t, int64(7), l.EndOffset())
		for _, crash := range []vfs.CrashMode{vfs.CrashLose, vfs.CrashKeep, vfs.CrashMixed} {
			c := openDir(t, testConfig(m, fsys.CrashClone(crash)))
			r, ok := c.Lookup(testID(3), 0)
			require.True(t, ok)
			require.Equal(t, int64(7), r.EndOffset())
			require.Len(t, c.Logs(), 1)
			require.Equal(t, 1, c.RecoveryStats().Strays)
			require.NoError(t, c.Close())
		}
		require.NoError(t, d.Close())
	})
}

// TestForeignDirectory: a directory whose files say that it belongs to another partition is set aside, not served
// (L21).
func TestForeignDirectory(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	createLog(t, d, acked)
	require.NoError(t, d.Close())
	require.NoError(t, fsys.Rename("data/topic-0", "data/other-4"))
	d = openDir(t, testConfig(mode{}, fsys))
	require.Empty(t, d.Logs())
	require.Equal(t, 1, d.RecoveryStats().Strays)
	require.Len(t, names(t, fsys, "-stray"), 1)
	require.NoError(t, d.Close())

	d = openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, acked)
	require.NoError(t, d.Close())
	require.NoError(t, vfs.ReplaceFile(fsys, l.path, metadataName, encodePartitionMetadata(testID(8))))
	d = openDir(t, testConfig(mode{}, fsys))
	require.Empty(t, d.Logs())
	require.Len(t, names(t, fsys, "-stray"), 2)
	require.NoError(t, d.Close())
}

// TestSetAside: what the metadata does not know is renamed and kept for ever, never deleted (L12, I16).
func TestSetAside(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	l := createLog(t, d, acked)
	appendOne(t, l, 0, plainBatch(1, 50))
	require.NoError(t, d.SetAside(l))
	require.ErrorIs(t, d.SetAside(l), ErrClosed)
	now := time.Now()
	for i := range 5 {
		d.Tick(now.Add(time.Duration(i) * 24 * time.Hour))
	}
	require.NoError(t, d.Close())
	d = openDir(t, testConfig(mode{}, fsys))
	stray := names(t, fsys, "-stray")
	require.Len(t, stray, 1)
	report, err := VerifyPartition(fsys, "data/"+stray[0])
	require.NoError(t, err)
	require.Equal(t, int64(1), report.Records)
	require.NoError(t, d.Close())
}

// TestLongNames: the longest legal topic name fits, deleted and set aside too.
func TestLongNames(t *testing.T) {
	fsys := vfs.NewMem(1)
	d := openDir(t, testConfig(mode{}, fsys))
	for i, remove := range []func(*Log) error{d.Delete, d.SetAside} {
		topic := strings.Repeat("a", 249)
		l, err := d.Create(topic, testID(byte(i+1)), 99999, 0, acked)
		require.NoError(t, err)
		require.NoError(t, remove(l))
	}
	for _, name := range names(t, fsys, "aaa") {
		require.LessOrEqual(t, len(name), maxNameBytes)
	}
	require.NoError(t, d.Close())
}

func TestPartitionDirNames(t *testing.T) {
	f := func(name, topic string, partition int32, ok bool) {
		t.Helper()
		gotTopic, gotPartition, gotOK := parsePartitionDirName(name)
		require.Equal(t, ok, gotOK, name)
		if ok {
			require.Equal(t, topic, gotTopic)
			require.Equal(t, partition, gotPartition)
			require.Equal(t, name, partitionDirName(topic, partition))
		}
	}
	f("orders-0", "orders", 0, true)
	f("a-b-12", "a-b", 12, true)
	f("orders-01", "", 0, false)
	f("orders--1", "orders-", 1, true)
	f("-1", "", 0, false)
	f("orders", "", 0, false)
	f("orders-4294967296", "", 0, false)
	f("wal", "", 0, false)
	f("orders-0.00000000000000ff-delete", "", 0, false)
	f("orders-0.00000000000000ff-stray", "", 0, false)
}
