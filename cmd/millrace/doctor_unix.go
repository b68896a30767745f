//go:build unix

package main

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFileLimit is how many descriptors this process may have. The runtime has raised the soft limit to the hard one, as
// it does in a broker.
func openFileLimit() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return uint64(limit.Max), nil
}

// writable asks the kernel whether this process may make files in a directory, without making one.
func writable(dir string) error { return unix.Access(dir, unix.W_OK|unix.X_OK) }

// ownerOf returns the user that a file belongs to.
func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}
