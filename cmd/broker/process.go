package broker

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/millrace/millrace/transport"
)

// TuneProcess sets what belongs to the process rather than to a broker in it; the owner of the process calls it once.
//
// Two more threads than cores run Go code, unless GOMAXPROCS says otherwise: a goroutine in a file system call keeps
// its thread, and the cores should not wait for it. The soft memory limit is millrace.memory.limit.bytes, else 70 % of
// the container's, unless GOMEMLIMIT says otherwise: the rest is page cache, which the container pays for too. Garbage is
// collected at rest too, unless GOGC says otherwise (resting_heap.go), by a goroutine that never ends.
func TuneProcess(c *Config) {
	go keepHeapSmall()
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := c.MemoryLimitBytes
	if limit <= 0 {
		limit = transport.ContainerMemory() / 10 * 7
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}
