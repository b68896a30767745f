//go:build linux

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// groups are control groups of a test, in version 1 or 2, removed with it.
type groups struct {
	t    testing.TB
	v2   bool
	name string
	made []string
}

// newGroups returns nil, and why, where control groups can't be made.
func newGroups(t testing.TB) (*groups, string) {
	if os.Geteuid() != 0 {
		return nil, "control groups need root"
	}
	g := &groups{t: t, name: fmt.Sprintf("millrace-test-%d-%s", os.Getpid(), strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()))}
	if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(b), "memory") {
		g.v2 = true
		// The root's children get the controllers; where that is not allowed the files below are missing.
		_ = os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory +cpu"), 0o600)
	}
	if err := g.make(g.memoryDir("probe")); err != nil {
		return nil, "control groups can't be made: " + err.Error()
	}
	if _, err := os.Stat(filepath.Join(g.memoryDir("probe"), g.memoryFile())); err != nil {
		g.remove()
		return nil, "no memory controller: " + err.Error()
	}
	t.Cleanup(g.remove)
	return g, ""
}

func (g *groups) memoryFile() string {
	if g.v2 {
		return "memory.max"
	}
	return "memory.limit_in_bytes"
}

func (g *groups) memoryDir(who string) string {
	if g.v2 {
		return filepath.Join("/sys/fs/cgroup", g.name+"-"+who)
	}
	return filepath.Join("/sys/fs/cgroup/memory", g.name+"-"+who)
}

func (g *groups) cpuDir(who string) string {
	if g.v2 {
		return g.memoryDir(who)
	}
	return filepath.Join("/sys/fs/cgroup/cpu", g.name+"-"+who)
}

func (g *groups) make(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	g.made = append(g.made, dir)
	return nil
}

func (g *groups) remove() {
	for _, dir := range g.made {
		_ = os.Remove(dir)
	}
}

// wrap makes groups for who, of equal weight in CPU and with at most memory bytes
// if that isn't 0, and returns the command line that starts a process in them.
func (g *groups) wrap(who string, memory int) []string {
	if g == nil {
		return nil
	}
	g.t.Helper()
	dirs := []string{g.memoryDir(who)}
	if cpu := g.cpuDir(who); cpu != dirs[0] {
		if _, err := os.Stat(filepath.Dir(cpu)); err == nil {
			dirs = append(dirs, cpu)
		}
	}
	script := ""
	for _, dir := range dirs {
		require.NoError(g.t, g.make(dir))
		script += "echo $$ > " + dir + "/cgroup.procs && "
	}
	if memory > 0 {
		require.NoError(g.t, os.WriteFile(filepath.Join(dirs[0], g.memoryFile()), []byte(strconv.Itoa(memory)), 0o600))
	}
	return []string{"sh", "-c", script + `exec "$@"`, "sh"}
}

// onCore appends to a command line what pins the rest of it to a core, if there is
// more than one.
func onCore(core int, wrap []string) []string {
	if _, err := exec.LookPath("taskset"); err != nil || runtime.NumCPU() < 2 {
		return wrap
	}
	return append(wrap, "taskset", "-c", strconv.Itoa(core))
}

// killed is how many processes of who the kernel killed for want of memory.
func (g *groups) killed(who string) int {
	file := "memory.oom_control"
	if g.v2 {
		file = "memory.events"
	}
	b, err := os.ReadFile(filepath.Join(g.memoryDir(who), file))
	require.NoError(g.t, err)
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			killed, err := strconv.Atoi(strings.TrimSpace(n))
			require.NoError(g.t, err)
			return killed
		}
	}
	return 0
}
