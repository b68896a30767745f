package raftlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// sync leaves the file's times alone, which File.Sync would have the file system write to its journal.
func (f diskFile) sync() error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for failed = unix.EINTR; failed == unix.EINTR; {
			failed = unix.Fdatasync(int(fd))
		}
	})
	if err == nil && failed != nil {
		err = &os.PathError{Op: "fdatasync", Path: f.Name(), Err: failed}
	}
	return err
}
