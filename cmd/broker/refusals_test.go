package broker

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/metadata"
)

// segments hashes every file of partitions in a data directory.
func segments(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".log") && e.Name() != "partition.metadata" {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%d %x", len(b), sha256.Sum256(b))
		return err
	}))
	return out
}

// M6, M13, I16: a broker of a cluster whose directory was damaged, emptied in part, or mixed with another's does not start,
// says what it is and what mends it, and leaves every record where it is. What it never does is to take a lost Raft store
// for a new one: it may have voted, and acknowledged.
func TestDamagedDirectoriesAreRefused(t *testing.T) {
	c := memberConfig(t, filepath.Join(t.TempDir(), "data"), 0)
	b := startBroker(t, c)
	results := b.Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: "t", Partitions: 2, ReplicationFactor: 1}}, false)
	require.NoError(t, results[0].Err)
	cl := client(t, b, kgo.DefaultProduceTopic("t"))
	for i := range 20 {
		require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord(fmt.Sprint("record ", i))).FirstErr())
	}

	t.Run("an id that is taken", func(t *testing.T) {
		second := memberConfig(t, filepath.Join(t.TempDir(), "data"), 0, c.Peers.GossipBind)
		second.NodeID = b.NodeID()
		err := runError(t, second)
		require.ErrorIs(t, err, metadata.ErrDuplicateBroker)
		for _, part := range []string{"broker id 1 is taken", "--replace 1", "without node.id"} {
			require.ErrorContains(t, err, part)
		}
		require.False(t, b.Store().Image().Broker(1).Fenced)
	})
	alone := startBroker(t, memberConfig(t, filepath.Join(t.TempDir(), "other"), 0))
	foreign := alone.cfg.DataDir
	require.NoError(t, alone.Close())
	require.NoError(t, b.Close())

	raft := func(dir string, names ...string) string {
		return filepath.Join(append([]string{dir, raftName}, names...)...)
	}
	overwrite := func(path string, at int64, with []byte) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(with, at)
		return err
	}
	for name, damage := range map[string]struct {
		do   func(dir string) error
		what []string
	}{
		"raft store overwritten": {func(dir string) error {
			return overwrite(raft(dir, "raft.db"), 0, bytes.Repeat([]byte{0x5a}, 8192))
		}, []string{"the metadata log", "is damaged", "--replace 1"}},
		"raft store emptied": {func(dir string) error { return os.Truncate(raft(dir, "raft.db"), 0) }, []string{"the metadata log", "it is gone or empty", "--replace 1"}},
		"raft store deleted": {func(dir string) error { return os.Remove(raft(dir, "raft.db")) }, []string{"the metadata log", "it is gone or empty", "--replace 1"}},
		"raft log emptied": {func(dir string) error {
			names, err := filepath.Glob(raft(dir, "raft-log", "*"))
			for _, name := range names {
				err = cmpErr(err, os.Truncate(name, 0))
			}
			return err
		}, []string{"the metadata log", "it has 0 bytes", "--replace 1"}},
		"raft log deleted":    {func(dir string) error { return os.RemoveAll(raft(dir, "raft-log")) }, []string{"the metadata log", "is gone", "--replace 1"}},
		"raft folder deleted": {func(dir string) error { return os.RemoveAll(raft(dir)) }, []string{"has no metadata", "never formed over old records"}},
		"raft folder of another cluster": {func(dir string) error {
			return cmpErr(os.RemoveAll(raft(dir)), os.CopyFS(raft(dir), os.DirFS(raft(foreign))))
		}, []string{"belongs to raft server", "copied from another broker"}},
		"meta.properties garbled": {func(dir string) error { return os.WriteFile(filepath.Join(dir, metaName), []byte("\x00\x01"), 0o644) }, []string{metaName, "is damaged"}},
		"everything but records": {func(dir string) error {
			return cmpErr(os.RemoveAll(raft(dir)), os.Remove(filepath.Join(dir, metaName)))
		}, []string{"holds records without the metadata"}},
		"another broker's identity": {func(dir string) error {
			text, err := os.ReadFile(filepath.Join(foreign, metaName))
			return cmpErr(err, os.WriteFile(filepath.Join(dir, metaName), text, 0o644))
		}, []string{"is not the one that meta.properties was written for"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			require.NoError(t, os.CopyFS(dir, os.DirFS(c.DataDir)))
			before := segments(t, dir)
			require.GreaterOrEqual(t, len(before), 4)
			require.NoError(t, damage.do(dir))
			tries := 1
			if strings.HasPrefix(name, "raft store") {
				tries = 2 // the second must not find that the first made a new store
			}
			for range tries {
				broken := c
				broken.DataDir, broken.MetadataDir = dir, dir
				err := runError(t, broken)
				for _, part := range append(damage.what, "\nwhy:", "\nfix:") {
					require.ErrorContains(t, err, part)
				}
				require.Equal(t, before, segments(t, dir))
			}
		})
	}

	// Nothing of this has harmed the broker itself.
	b = startBroker(t, c)
	require.Equal(t, 1, b.Store().Image().TopicCount())
	require.NoError(t, b.Close())
}

func cmpErr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
