package replication

import "golang.org/x/sys/unix"

// bootTime reads CLOCK_BOOTTIME.
func bootTime() (Instant, bool) {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0, false
	}
	return Instant(t.Nano()), true
}
