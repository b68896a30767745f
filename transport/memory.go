package transport

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryLimit is how many bytes this process may use, as far as it can be known: the least of Go's limit, the control group's and the
// machine's memory.
func memoryLimit() int64 {
	limit := int64(math.MaxInt64)
	if n := debug.SetMemoryLimit(-1); n > 0 {
		limit = n
	}
	for _, name := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if b, err := os.ReadFile(name); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				limit = min(limit, n)
			}
		}
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if n := memTotal(string(b)); n > 0 {
			limit = min(limit, n)
		}
	}
	return limit
}

// memTotal reads the machine's memory from the text of /proc/meminfo; 0 when it isn't there.
func memTotal(meminfo string) int64 {
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}
