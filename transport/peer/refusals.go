package peer

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// refusals keeps whoever calls again and again from filling the disk with log lines: a line of one kind about one
// caller is written once, and again when refusalPause has passed, with the number of those left out.
type refusals struct {
	mu    sync.Mutex
	lines map[string]*refusalLine
}

type refusalLine struct {
	at         time.Time
	suppressed int
}

const (
	refusalPause = time.Minute
	// maxRefusals bounds the callers remembered; beyond it old ones are forgotten.
	maxRefusals = 256
)

func (r *refusals) log(logger *slog.Logger, key, message string, attrs ...any) {
	now := time.Now()
	r.mu.Lock()
	if r.lines == nil {
		r.lines = map[string]*refusalLine{}
	}
	l := r.lines[key]
	if l != nil && now.Sub(l.at) < refusalPause {
		l.suppressed++
		r.mu.Unlock()
		return
	}
	if l == nil {
		if len(r.lines) >= maxRefusals {
			clear(r.lines)
		}
		l = &refusalLine{}
		r.lines[key] = l
	}
	if l.suppressed > 0 {
		attrs = append(attrs, "suppressed", l.suppressed)
	}
	l.at, l.suppressed = now, 0
	r.mu.Unlock()
	logger.Warn(message, attrs...)
}

// remoteHost is the host of an address, without the port that changes with each connection.
func remoteHost(a net.Addr) string {
	if a == nil {
		return ""
	}
	return remoteHostOf(a.String())
}

func remoteHostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// isTimeout says whether err is a deadline's.
func isTimeout(err error) bool {
	t, ok := err.(interface{ Timeout() bool })
	return ok && t.Timeout()
}

// cleanVersion keeps of a version what a metric's label may hold.
func cleanVersion(s string) string {
	b := []byte(s[:min(len(s), 40)])
	for i, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '.' && c != '-' {
			b[i] = '-'
		}
	}
	return string(b)
}
