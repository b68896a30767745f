package peer

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/transport"
)

// metrics are those of the connections among brokers.
type metrics struct {
	calls, served, dials, dialsFailed, broken, refused, probes atomic.Int64
	callTime                                                   prometheus.Histogram

	collectors []prometheus.Collector
}

func newMetrics() *metrics {
	return &metrics{callTime: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "millrace_peer_call_seconds", Help: "Time of calls to other brokers, connecting included.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
	})}
}

func (m *metrics) dialed(err error) {
	m.dials.Add(1)
	if err != nil {
		m.dialsFailed.Add(1)
	}
}

// register registers the metrics; the traffic of the listener is read from its server.
func (m *metrics) register(reg prometheus.Registerer, server *transport.Server) error {
	if reg == nil {
		return nil
	}
	counter := func(name, help string, n *atomic.Int64) {
		m.collectors = append(m.collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(n.Load()) }))
	}
	counter("millrace_peer_calls_total", "Calls made to other brokers.", &m.calls)
	counter("millrace_peer_calls_served_total", "Calls of other brokers served.", &m.served)
	counter("millrace_peer_dials_total", "Connections to other brokers tried.", &m.dials)
	counter("millrace_peer_dials_failed_total", "Connections to other brokers that failed.", &m.dialsFailed)
	counter("millrace_peer_connections_broken_total", "Connections with other brokers that ended or fell silent for no reason of this broker's.", &m.broken)
	counter("millrace_peer_refused_total", "Processes whose hello was refused: another cluster's, a clash of ids.", &m.refused)
	counter("millrace_peer_probes_total", "Brokers asked for a sign of life before they would be fenced.", &m.probes)
	m.collectors = append(m.collectors, m.callTime)
	for i, c := range m.collectors {
		if err := reg.Register(c); err != nil {
			m.collectors = m.collectors[:i]
			m.unregister(reg)
			return errors.Join(errors.New("register the metrics of package peer"), err)
		}
	}
	return nil
}

func (m *metrics) unregister(reg prometheus.Registerer) {
	for _, c := range m.collectors {
		reg.Unregister(c)
	}
	m.collectors = nil
}
