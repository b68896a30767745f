package broker

import (
	"os"
	"runtime/debug"

	"github.com/millrace/millrace/transport"
)

// TuneProcess sets what belongs to the process rather than to a broker in it; the owner of the process calls it once.
//
// Two more threads than cores run Go code while the broker is busy, and two at rest, unless GOMAXPROCS says otherwise
// (resting_threads.go). The soft memory limit is millrace.memory.limit.bytes, else 70 % of the container's, unless GOMEMLIMIT says
// otherwise: the rest is page cache, which the container pays for too. Garbage is collected at rest too, unless GOGC says
// otherwise (resting_heap.go). The goroutines that do so never end.
func TuneProcess(c *Config) {
	go keepHeapSmall()
	keepThreadsFew()
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
