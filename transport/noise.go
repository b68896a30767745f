package transport

import (
	"sync"
	"time"
)

// rejection is why a connection was closed or refused; the label of a metric.
type rejection string

const (
	rejectPerIP          rejection = "max_connections_per_ip"
	rejectTotal          rejection = "max_connections"
	rejectListener       rejection = "max_connections_of_listener"
	rejectEvicted        rejection = "evicted"
	rejectAccept         rejection = "accept_failed"
	rejectFirstRequest   rejection = "no_request"
	rejectFrameTimeout   rejection = "request_timeout"
	rejectSize           rejection = "request_size"
	rejectHeader         rejection = "request_header"
	rejectVersion        rejection = "key_or_version"
	rejectTLSOnPlaintext rejection = "tls_on_plaintext"
	rejectPlaintextOnTLS rejection = "plaintext_on_tls"
	rejectTLSHandshake   rejection = "tls_handshake"
	rejectHTTP           rejection = "http"
	rejectSlowReader     rejection = "slow_reader"
	rejectHandler        rejection = "handler"
	rejectShutdown       rejection = "shutdown" // not counted
)

var rejections = [...]rejection{rejectPerIP, rejectTotal, rejectListener, rejectEvicted, rejectAccept, rejectFirstRequest, rejectFrameTimeout,
	rejectSize, rejectHeader, rejectVersion, rejectTLSOnPlaintext, rejectPlaintextOnTLS, rejectTLSHandshake, rejectHTTP, rejectSlowReader, rejectHandler}

// noise keeps whoever connects from filling the disk with log lines: of each kind there are a few in a row, then one a second, which says
// how many there were in between. On a listener for brokers, where the same process tries again for hours, there is one line a minute for each
// kind and host.
type noise struct {
	mu    sync.Mutex
	kinds map[rejection]*noiseKind
	hosts map[noiseHost]*noiseKind
}

// noiseHost is one caller on a listener for brokers.
type noiseHost struct {
	rejection
	host string
}

// maxNoiseHosts bounds the callers remembered; beyond it all are forgotten.
const maxNoiseHosts = 256

// allowHost is allow on a listener for brokers.
func (n *noise) allowHost(kind rejection, host string) (suppressed int, ok bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	key := noiseHost{kind, host}
	k := n.hosts[key]
	switch {
	case k == nil:
		if n.hosts == nil || len(n.hosts) >= maxNoiseHosts {
			n.hosts = map[noiseHost]*noiseKind{}
		}
		n.hosts[key] = &noiseKind{last: now}
		return 0, true
	case now.Sub(k.last) < time.Minute:
		k.suppressed++
		return 0, false
	}
	suppressed, k.suppressed, k.last = k.suppressed, 0, now
	return suppressed, true
}

type noiseKind struct {
	tokens     float64
	last       time.Time
	suppressed int
}

const noiseBurst = 10

// allow reports whether a line of the kind may be logged, and how many were not since the last one.
func (n *noise) allow(kind rejection) (suppressed int, ok bool) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.kinds[kind]
	if k == nil {
		if n.kinds == nil {
			n.kinds = map[rejection]*noiseKind{}
		}
		k = &noiseKind{tokens: noiseBurst, last: now}
		n.kinds[kind] = k
	}
	k.tokens = min(noiseBurst, k.tokens+now.Sub(k.last).Seconds())
	k.last = now
	if k.tokens < 1 {
		k.suppressed++
		return 0, false
	}
	k.tokens--
	suppressed, k.suppressed = k.suppressed, 0
	return suppressed, true
}
