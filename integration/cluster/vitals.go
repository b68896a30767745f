package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Vitals is what a broker holds that must not grow with what was done to it (I20).
type Vitals struct {
	Goroutines int
	// Sockets are open descriptors of connections and listeners; Deleted are those of files that have no name any more.
	Sockets, Deleted int
	ResidentBytes    int64
}

// Vitals measures the running process.
func (n *Node) Vitals(ctx context.Context) (v Vitals, err error) {
	body, err := n.Get(ctx, "/metrics")
	if err != nil {
		return v, err
	}
	goroutines, err := metric(body, "go_goroutines")
	if err != nil {
		return v, fmt.Errorf("metrics of node %d: %w", n.Index, err)
	}
	resident, err := metric(body, "process_resident_memory_bytes")
	if err != nil {
		return v, fmt.Errorf("metrics of node %d: %w", n.Index, err)
	}
	v.Goroutines, v.ResidentBytes = int(goroutines), int64(resident)
	v.Sockets, v.Deleted, err = descriptors(n.Pid())
	return v, err
}

// metric finds the value of a metric without labels in the text format.
func metric(body []byte, name string) (float64, error) {
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("there is no %s", name)
}

func descriptors(pid int) (sockets, deleted int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("descriptors: %w", err)
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasSuffix(to, " (deleted)"):
			deleted++
		}
	}
	return sockets, deleted, nil
}
