package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/integration/cluster"
)

// footprint is what a process occupies.
type footprint struct {
	rss, heap, stacks       int64 // bytes, of the heap and of goroutine stacks those in use
	file                    int64 // bytes of rss that are pages of files, nearly all of them of the program
	goHeld                  int64 // bytes obtained from the system and not given back
	goroutines, descriptors int
	sockets, files          int // descriptors by kind; files without directories of their own kind
	threads                 int
}

// look measures a node from outside, and by what it tells of itself.
func look(ctx context.Context, n *cluster.Node) (f footprint, err error) {
	pid := n.Pid()
	if pid == 0 {
		return f, fmt.Errorf("node %d does not run", n.Index)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return f, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		v, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			f.rss = v << 10
		case "RssFile:":
			f.file = v << 10
		case "Threads:":
			f.threads = int(v)
		}
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return f, err
	}
	f.descriptors = len(fds)
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		switch {
		case err != nil:
		case strings.HasPrefix(to, "socket:"):
			f.sockets++
		case strings.HasPrefix(to, n.Data):
			f.files++
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.HTTP+"/metrics", nil)
	if err != nil {
		return f, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return f, err
	}
	defer resp.Body.Close()
	var held, released float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			continue
		}
		switch name {
		case "go_goroutines":
			f.goroutines = int(v)
		case "go_memstats_heap_inuse_bytes":
			f.heap = int64(v)
		case "go_memstats_stack_inuse_bytes":
			f.stacks = int64(v)
		case "go_memstats_sys_bytes":
			held = v
		case "go_memstats_heap_released_bytes":
			released = v
		}
	}
	f.goHeld = int64(held - released)
	return f, lines.Err()
}

// lookAtAll measures every node of a cluster that runs.
func lookAtAll(ctx context.Context, c *cluster.Cluster) (all []footprint, err error) {
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		f, err := look(ctx, n)
		if err != nil {
			return nil, fmt.Errorf("node %d: %w", n.Index, err)
		}
		all = append(all, f)
	}
	return all, nil
}

func (f footprint) String() string {
	return fmt.Sprintf("rss %d MiB, heap %d MiB, stacks %d MiB, %d goroutines, %d threads, %d descriptors (%d sockets, %d files)", f.rss>>20, f.heap>>20, f.stacks>>20, f.goroutines, f.threads, f.descriptors, f.sockets, f.files)
}

// most returns the largest of a measure.
func most[T int | int64](all []footprint, of func(footprint) T) (out T) {
	for _, f := range all {
		out = max(out, of(f))
	}
	return out
}

// count is what a broker has done so far.
type count struct {
	cpu     time.Duration // in all its threads
	commits float64       // offset commits sent to the quorum
	entries float64       // Raft entries proposed
	term    float64
	syncs   float64 // of the records' logs
	syncing float64 // seconds in all of them
}

// counters reads what each broker has done.
func counters(ctx context.Context, c *cluster.Cluster) (all []count, err error) {
	for _, n := range c.Nodes {
		page, err := n.Get(ctx, "/metrics")
		if err != nil {
			return nil, err
		}
		var of count
		for name, to := range map[string]*float64{
			"millrace_offset_commits_total": &of.commits, "millrace_raft_entry_commands_count": &of.entries, "millrace_raft_term": &of.term,
			"millrace_fsync_duration_seconds_count": &of.syncs, "millrace_fsync_duration_seconds_sum": &of.syncing,
		} {
			if *to, err = series(page, name); err != nil {
				return nil, fmt.Errorf("node %d: %w", n.Index, err)
			}
		}
		if of.cpu, err = cpuOf(n); err != nil {
			return nil, err
		}
		all = append(all, of)
	}
	return all, nil
}

// cpuOf is the CPU time of a broker's process so far, as scheduled.
func cpuOf(n *cluster.Node) (time.Duration, error) {
	cpu, err := cpuOfProcess(n.Pid())
	if err != nil {
		return 0, fmt.Errorf("node %d: %w", n.Index, err)
	}
	return cpu, nil
}

// cpuOfProcess is that of a process, 0 of none.
func cpuOfProcess(pid int) (time.Duration, error) {
	var ts unix.Timespec
	if pid == 0 {
		return 0, nil
	}
	if err := unix.ClockGettime(int32(^pid<<3|2), &ts); err != nil {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// series is the value of a metric without labels on a metrics page.
func series(page []byte, name string) (float64, error) {
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// machine is what all processes have used of all processors, what this one has, and what the host has taken: nobody ran then.
type machine struct {
	at                 time.Time
	busy, self, stolen time.Duration
}

func lookAtMachine() (m machine, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	const tick = 10 * time.Millisecond // USER_HZ
	for i, field := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return m, fmt.Errorf("read /proc/stat: %w", err)
		}
		switch {
		case i == 7:
			m.stolen = time.Duration(n) * tick
		case i != 3 && i != 4 && i < 8: // not idle, not waiting for a disk
			m.busy += time.Duration(n) * tick
		}
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return m, err
	}
	m.self = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	m.at = time.Now()
	return m, nil
}
