package transport

import (
	"math"
	"os"
	"path"
	"runtime/debug"
	"slices"
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
	if n := ContainerMemory(); n > 0 {
		limit = min(limit, n)
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if n := memTotal(string(b)); n > 0 {
			limit = min(limit, n)
		}
	}
	return limit
}

// ContainerMemory is the memory limit in bytes of this process's control group, or the least one of those around it; 0 when there is none.
func ContainerMemory() int64 { return containerMemory(os.ReadFile) }

// containerMemory finds this process's groups, of version 2 and of the memory controller of version 1, where they are mounted: in a container
// that sees only itself at the root, on a machine below system.slice or wherever its manager put it.
func containerMemory(read func(name string) ([]byte, error)) int64 {
	groups, _ := read("/proc/self/cgroup")
	mounts, _ := read("/proc/self/mountinfo")
	limit := int64(0)
	for line := range strings.Lines(string(groups)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, ok := strings.Cut(rest, ":")
		kind, file := "cgroup2", "memory.max"
		if controllers != "" {
			kind, file = "cgroup", "memory.limit_in_bytes"
		}
		if !ok || controllers != "" && !slices.Contains(strings.Split(controllers, ","), "memory") {
			continue
		}
		for line := range strings.Lines(string(mounts)) {
			root, at, found := cgroupMount(strings.Fields(line), kind)
			if !found {
				continue
			}
			inside, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
			if !ok { // the mount shows another part of the tree: its own root is the best there is
				inside = "/"
			}
			for dir := path.Clean("/" + inside); ; dir = path.Dir(dir) {
				if b, err := read(path.Join(at, dir, file)); err == nil {
					if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 && n < 1<<60 && (limit == 0 || n < limit) {
						limit = n
					}
				}
				if dir == "/" {
					break
				}
			}
		}
	}
	return limit
}

// cgroupMount reads the fields of a line of mountinfo: which group is mounted where, if it is a tree of that kind with memory limits.
func cgroupMount(fields []string, kind string) (root, at string, ok bool) {
	dash := slices.Index(fields, "-")
	if dash < 5 || dash+3 >= len(fields) || fields[dash+1] != kind {
		return "", "", false
	}
	if kind == "cgroup" && !slices.Contains(strings.Split(fields[dash+3], ","), "memory") {
		return "", "", false
	}
	return fields[3], fields[4], true
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
