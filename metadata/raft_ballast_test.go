package metadata

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// eventually waits until what is true, at the latest when the test's context ends.
func eventually(t *testing.T, what func() bool) {
	t.Helper()
	ctx := testContext(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !what() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it never became true")
		}
	}
}

// L13: when the disk is full, the ballast makes room for one more write, which counts; from then on nothing can be
// created, but deletions and config changes work; once there is space the ballast is back and so is creation. When even
// the ballast does not help, it is a failure like any other (M7).
func TestBallast(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	var full func() bool
	cfg.wrapLogs = func(l raft.LogStore) raft.LogStore {
		return &faultyLogs{l, func(op string) error {
			if op == "store" && full != nil && full() {
				return &fs.PathError{Op: "write", Path: databaseFile, Err: syscall.ENOSPC}
			}
			return nil
		}}
	}
	failures := make(chan error, 1)
	cfg.OnFailure = func(err error) { failures <- err }
	s, err := Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Ready(testContext(t)))
	register(t, s, 1, 1)
	createTopics(t, s, newTopic("a", 1), newTopic("b", 1))
	file := filepath.Join(cfg.Dir, ballastFile)
	eventually(t, s.ballast.held)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, cfg.BallastBytes, info.Size())

	full = func() bool { _, err := os.Stat(file); return err == nil } // full for as long as the ballast is there
	createTopics(t, s, newTopic("c", 1))
	require.NoFileExists(t, file)
	requireMend(t, create(t, s, newTopic("d", 1)).Err, ErrBusy, "full")
	requireMend(t, s.CreatePartitions(testContext(t), []NewPartitions{{Topic: "a", Count: 2}}, false)[0].Err, ErrBusy, "full")
	require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: "a"}})[0].Err)
	change := ConfigChange{Resource{TopicResource, "b"}, []ConfigOp{{"retention.ms", ConfigSet, ptr("1")}}}
	require.NoError(t, s.AlterConfigs(testContext(t), []ConfigChange{change}, false, false)[0])

	s.takeBallast() // as the ticker does
	require.FileExists(t, file)
	full = nil
	createTopics(t, s, newTopic("d", 1))

	full = func() bool { return true }
	require.ErrorIs(t, create(t, s, newTopic("e", 1)).Err, ErrTimeout)
	require.ErrorIs(t, <-failures, syscall.ENOSPC)
}

func TestRefusedForSpace(t *testing.T) {
	enospc := &fs.PathError{Op: "write", Err: syscall.ENOSPC}
	require.True(t, refusedForSpace(enospc))
	require.True(t, refusedForSpace(fmt.Errorf("wrapped: %w", enospc)))
	require.True(t, refusedForSpace(&fs.PathError{Op: "open", Err: syscall.ENOSPC}), "no more files")
	require.True(t, refusedForSpace(&fs.PathError{Op: "write", Err: syscall.EDQUOT}), "a quota is a disk that is full")
	require.False(t, refusedForSpace(&fs.PathError{Op: "sync", Err: syscall.EDQUOT}))
	for _, err := range []error{nil, errTestIO, syscall.ENOSPC, &fs.PathError{Op: "sync", Err: syscall.ENOSPC}, &fs.PathError{Op: "write", Err: syscall.EIO}} {
		require.False(t, refusedForSpace(err), "%v", err)
	}
}

// The ballast is found again after a restart, and one that does not fit is not kept half.
func TestBallastFile(t *testing.T) {
	dir := t.TempDir()
	b := newBallast(dir, 100_000)
	require.False(t, b.held())
	require.False(t, b.drop())
	require.NoError(t, b.take())
	require.NoError(t, b.take())
	require.True(t, b.held())
	again := newBallast(dir, 100_000)
	require.NoError(t, again.take())
	require.True(t, again.drop())
	require.False(t, again.held())
	require.Error(t, newBallast(filepath.Join(dir, "missing"), 1).take())
	none := newBallast(dir, 0)
	require.True(t, none.held())
	require.NoError(t, none.take())
	require.False(t, none.drop())
	f, err := os.Create(filepath.Join(dir, "written"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, allocateByWriting(f, 100_001))
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, int64(100_001), info.Size())
}

// L13, I21 on a real file system of 4 MiB that is filled to the last byte by somebody else: the broker goes on, and
// creates again when there is space, without a restart.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := mountSmall(dir, 4<<20); err != nil {
		t.Skipf("a file system of 4 MiB can't be mounted here: %v", err)
	}
	defer func() { require.NoError(t, unmount(dir)) }()
	cfg := testConfig(t, dir)
	cfg.BallastBytes, cfg.segmentBytes = 512<<10, 256<<10
	s, err := Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Ready(testContext(t)))
	register(t, s, 1, 1)
	createTopics(t, s, newTopic("first", 1))
	eventually(t, s.ballast.held)

	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	require.NoError(t, err)
	for chunk := 64 << 10; chunk > 0; {
		if _, err := f.Write(make([]byte, chunk)); errors.Is(err, syscall.ENOSPC) {
			chunk /= 2
		} else {
			require.NoError(t, err)
		}
	}
	require.NoError(t, f.Close())

	created := 1
	var refusal error
	for i := 0; refusal == nil && i < 3000; i++ {
		r := s.CreateTopics(context.Background(), []NewTopic{newTopic(fmt.Sprintf("t%d", i), 500)}, false)[0]
		if refusal = r.Err; refusal == nil {
			created++
		}
	}
	requireMend(t, refusal, ErrBusy, "full")
	require.Equal(t, created, s.Image().TopicCount())
	require.NoError(t, s.DeleteTopics(testContext(t), []TopicRef{{Name: "first"}})[0].Err)
	s.takeBallast()
	require.True(t, s.full.Load(), "there is no room for it yet")

	require.NoError(t, os.Remove(filler))
	s.takeBallast()
	createTopics(t, s, newTopic("again", 1))
	require.NoError(t, s.Close())
	s, err = Open(cfg)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Ready(testContext(t)))
	require.Equal(t, created, s.Image().TopicCount())
}
