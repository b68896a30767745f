//go:build !linux

package replication

// bootTime is not known here: Go's monotonic clock counts suspensions on Windows, and on the rest leases do not.
func bootTime() (Instant, bool) { return 0, false }
