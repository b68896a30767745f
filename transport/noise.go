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
// how many there were in between.
type noise struct {
	mu    sync.Mutex
	kinds map[rejection]*noiseKind
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
