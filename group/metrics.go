package group

import "github.com/prometheus/client_golang/prometheus"

// metrics is a Coordinator's collector.
type metrics struct {
	c               *Coordinator
	rebalances      *prometheus.CounterVec
	groups, members *prometheus.Desc
}

func newMetrics(c *Coordinator) *metrics {
	m := &metrics{
		c: c,
		rebalances: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_group_rebalances_total", Help: "Rebalances begun by this broker as the coordinator, by reason.",
		}, []string{"reason"}),
		groups:  prometheus.NewDesc("millrace_groups", "Groups with members that this broker coordinates, by state.", []string{"state"}, nil),
		members: prometheus.NewDesc("millrace_group_members", "Members of the groups that this broker coordinates.", nil, nil),
	}
	for _, r := range Reasons {
		m.rebalances.WithLabelValues(string(r)) // a series that is there from the start shows its first step
	}
	return m
}

func (m *metrics) rebalanced(r Reason) { m.rebalances.WithLabelValues(string(r)).Inc() }

// Collector returns the metrics of this Coordinator.
func (c *Coordinator) Collector() prometheus.Collector { return c.metrics }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.rebalances.Describe(ch)
	ch <- m.groups
	ch <- m.members
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.rebalances.Collect(ch)
	states, members := map[State]int{}, 0
	for _, s := range []State{StatePreparing, StateCompleting, StateStable} {
		states[s] = 0
	}
	m.c.each(func(e *entry) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if core := e.mu.core; !e.mu.gone && core.loaded && core.members() > 0 {
			states[core.classic.state]++
			members += core.members()
		}
	})
	for s, n := range states {
		ch <- prometheus.MustNewConstMetric(m.groups, prometheus.GaugeValue, float64(n), string(s))
	}
	ch <- prometheus.MustNewConstMetric(m.members, prometheus.GaugeValue, float64(members))
}
