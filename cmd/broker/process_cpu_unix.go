//go:build unix

package broker

import (
	"time"

	"golang.org/x/sys/unix"
)

// processCPU is the CPU time that this process has used, in user code and in the system; false where the system does not tell.
func processCPU() (time.Duration, bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime)), true
}
