//go:build unix

package transport

import (
	"math"
	"syscall"
)

// defaultMaxConnections leaves half of the process's descriptors to the logs and the other brokers (N6).
func defaultMaxConnections() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || r.Cur > math.MaxInt32 {
		return math.MaxInt32
	}
	return max(int(r.Cur)/2, 16)
}
