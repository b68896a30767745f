//go:build unix

package vfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func isQuota(err error) bool { return errors.Is(err, syscall.EDQUOT) }

// osLock is a flock on an open file; the kernel drops it with the process.
type osLock struct{ f *os.File }

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, classify(err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", name, classify(err))
	}
	return osLock{f}, nil
}

func (l osLock) Close() error { return l.f.Close() }

func (osFS) Usage(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return 0, 0, classify(&os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	unit := int64(st.Bsize)
	return int64(st.Bavail) * unit, int64(st.Blocks) * unit, nil
}
