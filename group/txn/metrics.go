package txn

import "github.com/prometheus/client_golang/prometheus"

// metrics is a Coordinator's collector.
type metrics struct {
	c     *Coordinator
	count *prometheus.CounterVec
	open  *prometheus.Desc
}

func newMetrics(c *Coordinator) *metrics {
	m := &metrics{
		c: c,
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_transactions_ended_total", Help: "Transactions decided by this broker as the coordinator, by reason.",
		}, []string{"reason"}),
		open: prometheus.NewDesc("millrace_transactions", "Transactions that this broker coordinates and that are not complete, by state.", []string{"state"}, nil),
	}
	for _, r := range Reasons {
		m.count.WithLabelValues(string(r)) // a series that is there from the start shows its first step
	}
	return m
}

func (m *metrics) ended(r Reason) { m.count.WithLabelValues(string(r)).Inc() }

// Collector returns the metrics of this Coordinator.
func (c *Coordinator) Collector() prometheus.Collector { return c.metrics }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.count.Describe(ch)
	ch <- m.open
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.count.Collect(ch)
	ongoing, prepared := 0, 0
	im := m.c.cfg.Store.Image()
	for t := range im.ActiveTransactions() {
		switch _, mine := m.c.mine(im, t.ID); {
		case !mine:
		case t.State.Prepared():
			prepared++
		default:
			ongoing++
		}
	}
	ch <- prometheus.MustNewConstMetric(m.open, prometheus.GaugeValue, float64(ongoing), "ongoing")
	ch <- prometheus.MustNewConstMetric(m.open, prometheus.GaugeValue, float64(prepared), "prepared")
}
