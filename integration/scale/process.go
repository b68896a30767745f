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

	"github.com/millrace/millrace/integration/cluster"
)

// footprint is what a process occupies.
type footprint struct {
	rss, heap, goHeld       int64 // bytes; goHeld: obtained from the system and not given back
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
	return fmt.Sprintf("rss %d MiB, heap %d MiB, %d goroutines, %d threads, %d descriptors (%d sockets, %d files)", f.rss>>20, f.heap>>20, f.goroutines, f.threads, f.descriptors, f.sockets, f.files)
}

// most returns the largest of a measure.
func most[T int | int64](all []footprint, of func(footprint) T) (out T) {
	for _, f := range all {
		out = max(out, of(f))
	}
	return out
}
