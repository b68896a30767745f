package transport

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContainerMemory: the limit that counts is that of the process's own control group or one around it, wherever the tree is mounted and
// however much of it a container sees. Otherwise the broker would take the machine's memory for its own and be killed (N8).
func TestContainerMemory(t *testing.T) {
	const (
		v2     = "30 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		v1     = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
		v1CPU  = "32 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
		docker = "35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
	)
	f := func(name string, want int64, groups, mounts string, files map[string]string) {
		t.Helper()
		read := func(file string) ([]byte, error) {
			switch file {
			case "/proc/self/cgroup":
				return []byte(groups), nil
			case "/proc/self/mountinfo":
				return []byte(mounts), nil
			}
			if text, ok := files[file]; ok {
				return []byte(text + "\n"), nil
			}
			return nil, fs.ErrNotExist
		}
		require.Equal(t, want, containerMemory(read), name)
	}
	f("no control groups", 0, "", "", nil)
	f("no limit", 0, "0::/a\n", v2, map[string]string{"/sys/fs/cgroup/a/memory.max": "max"})
	f("own group", 512<<20, "0::/system.slice/millrace.service\n", v2, map[string]string{"/sys/fs/cgroup/system.slice/millrace.service/memory.max": "536870912"})
	f("a group around it", 1<<20, "0::/a/b/c\n", v2, map[string]string{"/sys/fs/cgroup/a/b/c/memory.max": "max", "/sys/fs/cgroup/a/memory.max": "1048576"})
	f("the least", 1<<20, "0::/a/b\n", v2, map[string]string{"/sys/fs/cgroup/a/b/memory.max": "1048576", "/sys/fs/cgroup/a/memory.max": "2097152"})
	f("a namespace shows the own group as root", 1<<20, "0::/\n", v2, map[string]string{"/sys/fs/cgroup/memory.max": "1048576"})
	f("version 1", 1<<20, "5:cpu:/x\n4:memory:/a\n0::/\n", v1CPU+v1, map[string]string{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "1048576"})
	f("version 1 without a limit", 0, "4:memory:/a\n", v1, map[string]string{"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712"})
	f("version 1 in a container that sees its part", 1<<20, "4:memory:/docker/ab\n", docker, map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576"})
	f("a mount of another part", 1<<20, "4:memory:/elsewhere\n", docker, map[string]string{"/sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576"})
	f("garbage", 0, "::\n:\n\n4:memory\n", "- cgroup2\n1 2 3\n", nil)
}
