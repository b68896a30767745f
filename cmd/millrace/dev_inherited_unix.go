//go:build unix

package main

import (
	"os"
	"strconv"
	"syscall"
)

// closeInherited keeps the processes started from here from getting descriptors that this one got from its caller without
// close-on-exec, such as the lock of a script: brokers that go on in the background would hold it for as long as they
// live, and whoever waits for the end of a pipe would wait for them. What this process opens itself is close-on-exec
// anyway. A system that does not list descriptors (FreeBSD without fdescfs) leaves them as they are.
func closeInherited() {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
				syscall.CloseOnExec(fd)
			}
		}
		if len(entries) > 0 {
			return
		}
	}
}
