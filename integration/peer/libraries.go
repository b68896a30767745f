package peer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Bounds of a download: how often Maven is asked, how long one answer may take, and the wait before the next question, times the questions so far.
const (
	mavenTries  = 3
	mavenBound  = 3 * time.Minute
	mavenPause  = 5 * time.Second
	untilKilled = 2 * time.Second
)

// Libraries has Maven fetch what a pom.xml names, and returns the folder of the jars. What a registry refuses or a
// network drops is asked for again: those who call this test something else.
func Libraries(ctx context.Context, pom []byte) (string, error) {
	return Filled(ctx, "libraries", pom, func(ctx context.Context, dir string) error {
		file := filepath.Join(dir, "pom.xml")
		if err := os.WriteFile(file, pom, 0o644); err != nil {
			return err
		}
		return again(ctx, mavenTries, mavenPause, func() error {
			ctx, cancel := context.WithTimeout(ctx, mavenBound)
			defer cancel()
			cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "-f", file, "dependency:copy-dependencies", "-DoutputDirectory="+dir)
			cmd.WaitDelay = untilKilled
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("fetch libraries with Maven: %w\n%s", err, out)
			}
			return nil
		})
	})
}

// again calls fn until it succeeds, at most so many times, with longer and longer pauses between.
func again(ctx context.Context, tries int, between time.Duration, fn func() error) (err error) {
	for n := 1; ; n++ {
		if err = fn(); err == nil || n == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(time.Duration(n) * between):
		}
	}
}

// Filled returns a folder of the user's cache for some inputs, which fill makes complete when it is new. Several
// processes may want the same one at once: the first fills it, the others wait.
func Filled(ctx context.Context, kind string, inputs []byte, fill func(ctx context.Context, dir string) error) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(inputs)
	dir := filepath.Join(cache, "millrace-peer", kind+"-"+hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	done := filepath.Join(dir, ".complete")
	if _, err := os.Stat(done); err == nil {
		return dir, nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	if err := fill(ctx, dir); err != nil {
		return "", err
	}
	return dir, os.WriteFile(done, nil, 0o644)
}
