package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/integration/cluster"
)

// spent is what a broker has used so far.
type spent struct {
	cpu   time.Duration // in all its threads
	syncs float64       // calls of fdatasync
}

// readBrokers reads what each broker has used.
func readBrokers(ctx context.Context, c *cluster.Cluster) ([]spent, error) {
	var out []spent
	for _, n := range c.Nodes {
		var ts unix.Timespec
		// The kernel's CPU clock of that process, as scheduled.
		if err := unix.ClockGettime(int32(^n.Pid()<<3|2), &ts); err != nil {
			return nil, fmt.Errorf("read the CPU clock of node %d: %w", n.Index, err)
		}
		syncs, err := metric(ctx, n.HTTP, "millrace_fsync_duration_seconds_count")
		if err != nil {
			return nil, fmt.Errorf("read the metrics of node %d: %w", n.Index, err)
		}
		out = append(out, spent{time.Duration(ts.Nano()), syncs})
	}
	return out, nil
}

// metric is the sum of the series of that name on a broker's metrics page.
func metric(ctx context.Context, addr, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	sum, found := 0.0, false
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("no metric %s (status %s)", name, resp.Status)
	}
	return sum, nil
}
