package transport

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// listenerMetrics are counted by the connections of a listener.
type listenerMetrics struct {
	bytesIn, bytesOut atomic.Int64
	rejects           [len(rejections)]atomic.Int64
}

func (m *listenerMetrics) rejected(r rejection) {
	for i := range rejections {
		if rejections[i] == r {
			m.rejects[i].Add(1)
			return
		}
	}
}

// metrics are the server's. They read what the server counts anyway.
type metrics struct {
	connections connectionMetrics
	throttle    atomic.Int64 // ns
	registerer  prometheus.Registerer
	collectors  []prometheus.Collector
}

func (m *metrics) throttled(d time.Duration) { m.throttle.Add(int64(d)) }

func newMetrics(reg prometheus.Registerer, s *Server, clients, brokers *budget) (*metrics, error) {
	m := &metrics{registerer: reg}
	m.connections.counts = map[connectionLabels]int{}
	internal := true // a server of listeners for brokers shares the registry with the clients' server
	for _, l := range s.listeners {
		m.connections.descs = append(m.connections.descs, listenerDesc{l.Name(), prometheus.NewDesc("millrace_connections", "Open connections.",
			[]string{"software", "version"}, prometheus.Labels{"listener": l.Name()})})
		internal = internal && l.cfg.Internal
	}
	m.connections.known = map[softwareLabel]bool{}
	if reg == nil {
		return m, nil
	}
	counter := func(name, help string, labels prometheus.Labels, value func() float64) {
		m.collectors = append(m.collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		m.collectors = append(m.collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	m.collectors = append(m.collectors, &m.connections)
	budgets := map[string]*budget{"clients": clients, "brokers": brokers}
	if internal {
		budgets = map[string]*budget{"peers": brokers}
	} else {
		counter("millrace_throttle_seconds_total", "Time for which sockets were not read because of quotas.", nil,
			func() float64 { return time.Duration(m.throttle.Load()).Seconds() })
		gauge("millrace_response_chunks", "Large buffers in use for sending fetch responses.", nil, func() float64 { return float64(s.chunks.out.Load()) })
	}
	for _, l := range s.listeners {
		for dir, n := range map[string]*atomic.Int64{"in": &l.metrics.bytesIn, "out": &l.metrics.bytesOut} {
			counter("millrace_network_bytes_total", "Bytes read from and written to clients, TLS overhead excluded.",
				prometheus.Labels{"listener": l.Name(), "direction": dir}, func() float64 { return float64(n.Load()) })
		}
		for i, reason := range rejections {
			counter("millrace_connections_rejected_total", "Connections refused, or closed for what the client did, by reason.",
				prometheus.Labels{"listener": l.Name(), "reason": string(reason)}, func() float64 { return float64(l.metrics.rejects[i].Load()) })
		}
		if l.tls != nil {
			gauge("millrace_tls_certificate_expiry_timestamp_seconds", "When the listener's certificate expires, in seconds since 1970.",
				prometheus.Labels{"listener": l.Name()}, func() float64 { return float64(l.tls.expiry().Unix()) })
		}
	}
	for name, b := range budgets {
		labels := prometheus.Labels{"budget": name}
		gauge("millrace_request_memory_bytes", "Memory of requests being read or in work.", labels, func() float64 { return float64(b.inUse()) })
		gauge("millrace_request_memory_limit_bytes", "What millrace_request_memory_bytes may grow to without a request larger than a quarter of it.",
			labels, func() float64 { return float64(b.main / 3 * 4) })
		counter("millrace_request_memory_waits_total", "How often a connection waited for memory before it read a request on.", labels,
			func() float64 { return float64(b.waitCount()) })
	}
	for i, c := range m.collectors {
		if err := reg.Register(c); err != nil {
			m.collectors = m.collectors[:i]
			m.unregister()
			return nil, fmt.Errorf("register the metrics of package transport: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, c := range m.collectors {
		m.registerer.Unregister(c)
	}
}

// maxSoftwareLabels bounds the values of the labels software and version, which clients choose (S6); further ones are counted as "other".
const maxSoftwareLabels = 50

// softwareLabel is what a client says it is; both empty before it did.
type softwareLabel struct{ name, version string }

type connectionLabels struct {
	listener string
	software softwareLabel
}

// connectionMetrics is the gauge millrace_connections{listener,software,version}.
type connectionMetrics struct {
	descs  []listenerDesc // one for each listener of the server
	mu     sync.Mutex
	counts map[connectionLabels]int
	known  map[softwareLabel]bool
}

// listenerDesc describes the gauge for one listener, so that servers with different listeners can share a registry.
type listenerDesc struct {
	listener string
	desc     *prometheus.Desc
}

// join counts a new connection.
func (m *connectionMetrics) join(c *Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[connectionLabels{c.listener.Name(), softwareLabel{}}]++
}

// move counts a connection of the listener under another software, and returns the label it is now counted as.
func (m *connectionMetrics) move(listener string, from, to softwareLabel) softwareLabel {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known[to] && to != (softwareLabel{}) {
		if len(m.known) >= maxSoftwareLabels {
			to = softwareLabel{"other", "other"}
		} else {
			m.known[to] = true
		}
	}
	m.leaveLocked(listener, from)
	m.counts[connectionLabels{listener, to}]++
	return to
}

// leave counts a connection less.
func (m *connectionMetrics) leave(listener string, counted softwareLabel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leaveLocked(listener, counted)
}

func (m *connectionMetrics) leaveLocked(listener string, counted softwareLabel) {
	k := connectionLabels{listener, counted}
	if m.counts[k]--; m.counts[k] <= 0 {
		delete(m.counts, k)
	}
}

// Describe implements prometheus.Collector.
func (m *connectionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d.desc
	}
}

// Collect implements prometheus.Collector.
func (m *connectionMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, n := range m.counts {
		name, version := k.software.name, k.software.version
		if name == "" {
			name, version = "unknown", "unknown"
		}
		for _, d := range m.descs {
			if d.listener == k.listener {
				ch <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, float64(n), name, version)
			}
		}
	}
}
