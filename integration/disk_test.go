package integration

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestFsyncError makes every sync of a live broker fail (L2, W17): it must end
// with an error, acknowledge nothing more, and lose nothing that it had
// acknowledged.
func TestFsyncError(t *testing.T) {
	b := startBroker(t)
	createTopic(t, b, "eio", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cl := b.client(kgo.ProducerLinger(0), kgo.MetadataMinAge(50*time.Millisecond))
	acked := 0
	for ; acked < 50; acked++ {
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "eio", Value: []byte(strconv.Itoa(acked))}).FirstErr())
	}
	stop := injectSyncErrors(t, b)
	answered := make(chan error, 1)
	cl.Produce(ctx, &kgo.Record{Topic: "eio", Value: []byte(strconv.Itoa(acked))}, func(_ *kgo.Record, err error) { answered <- err })
	select {
	case <-b.done:
	case <-ctx.Done():
		t.Fatal("the broker goes on after a failed sync")
	}
	stop()
	select {
	case err := <-answered:
		require.Error(t, err, "an acknowledgement without a sync")
	default: // the client tries on
	}
	require.NotEqual(t, 0, b.cmd.ProcessState.ExitCode(), "exit code")
	require.Contains(t, b.stderr.String(), "input/output error", "the reason")

	b.Start()
	records := readAll(ctx, t, b, "eio", 0)
	require.GreaterOrEqual(t, len(records), acked)
	for i := range acked {
		require.Equal(t, strconv.Itoa(i), string(records[i].Value))
	}
}

// injectSyncErrors has strace fail each fsync and fdatasync of the broker.
func injectSyncErrors(t *testing.T, b *broker) (stop func()) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("strace is missing")
		}
		t.Skip("strace is not installed: apt-get install strace")
	}
	cmd := exec.Command(strace, "-f", "-q", "-o", os.DevNull, "-p", strconv.Itoa(b.cmd.Process.Pid), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO")
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	stop = func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(stop)
	// Attached is what /proc says, for every thread that runs now.
	deadline := time.Now().Add(patience)
	for {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", b.cmd.Process.Pid))
		free := len(tasks)
		for _, name := range tasks {
			if status, err := os.ReadFile(name); err == nil && !bytes.Contains(status, []byte("TracerPid:\t0\n")) {
				free--
			}
		}
		if len(tasks) > 0 && free == 0 {
			break
		}
		select {
		case <-ended:
			t.Skip("this machine does not let strace attach")
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("strace attached to all but %d of %d threads", free, len(tasks))
		}
	}
	return stop
}

// TestDiskFull fills a small file system below a live broker (L13, I21):
// produces are refused with an error that can be retried, reads go on, and
// freed space restores service without a restart.
func TestDiskFull(t *testing.T) {
	mount := loopMount(t, 256)
	ballast := filepath.Join(mount, "somebody-elses-file")
	b := &broker{t: t, Data: filepath.Join(mount, "data"), Addr: freeAddr(t), HTTP: freeAddr(t)}
	b.args = []string{"start", "--data", b.Data, "--set", "listeners=PLAINTEXT://" + b.Addr, "--set", "millrace.http.listener=" + b.HTTP}
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("broker log:\n%s", b.stderr.Tail(8<<10))
		}
	})
	b.Start()
	createTopic(t, b, "full", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	value := bytes.Repeat([]byte{'v'}, 100_000)
	cl := b.client(kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.RecordRetries(3), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }), kgo.DisableIdempotentWrite())
	send := func() error {
		return cl.ProduceSync(ctx, &kgo.Record{Topic: "full", Value: value}).FirstErr()
	}
	acked := 0
	for ; acked < 20; acked++ {
		require.NoError(t, send())
	}
	fill(t, ballast)
	var err error
	for range 3000 { // up to the reserve
		if err = send(); err != nil {
			break
		}
		acked++
	}
	require.Error(t, err, "a full disk takes records")
	require.False(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
	require.Len(t, readAll(ctx, t, b, "full", 0), acked, "reads go on")

	require.NoError(t, os.Remove(ballast))
	for {
		if err = send(); err == nil {
			break
		}
		require.NoError(t, ctx.Err(), "freed space does not restore service: %v", err)
	}
	acked++
	require.Len(t, readAll(ctx, t, b, "full", 0), acked)
	require.Equal(t, 0, b.Stop())
}

// fill writes a file until the file system is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	zeros := make([]byte, 1<<16)
	for {
		if _, err := w.Write(zeros); err != nil {
			return
		}
	}
}

// loopMount makes an ext4 file system of that many MiB in a file and mounts it
// for the test.
func loopMount(t *testing.T, mib int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting a file system takes root")
	}
	dir := t.TempDir()
	image, mount := filepath.Join(dir, "image"), filepath.Join(dir, "mount")
	f, err := os.Create(image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(mib<<20))
	require.NoError(t, f.Close())
	require.NoError(t, os.Mkdir(mount, 0o755))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, mount}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no loop mount on this machine: %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return mount
}
