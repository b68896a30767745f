package broker

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/metadata"
)

// transactionMetrics exports the open transactions that this broker coordinates, so that sums over all brokers are right, and
// the partitions it leads that one of them holds back.
type transactionMetrics struct{ b *Broker }

const (
	// heldAfter is from when on a partition that is held back has a series: shorter ones are everyday life.
	heldAfter = 10 * time.Second
	// heldSeries bounds them: those of the oldest are there.
	heldSeries = 100
)

var (
	transactionsOpenDesc  = prometheus.NewDesc("millrace_transactions_open", "Transactions that this broker coordinates and that are open or being ended.", nil, nil)
	transactionOldestDesc = prometheus.NewDesc("millrace_transaction_oldest_seconds", "Age of the oldest of them; 0 when there is none.", nil, nil)
	transactionHeldDesc   = prometheus.NewDesc("millrace_transaction_held_seconds", "Age of a transaction that holds back the readers of committed records of a partition that this broker leads, from 10 s on; without a transactional id nobody will end it.",
		[]string{"topic", "partition", "transactionalid", "producerid"}, nil)
)

// Describe implements prometheus.Collector.
func (m transactionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{transactionsOpenDesc, transactionOldestDesc, transactionHeldDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m transactionMetrics) Collect(ch chan<- prometheus.Metric) {
	open, oldest := 0, time.Duration(0)
	if m.b.replicas.Leased() { // those of a broker without a lease are another's by now
		im, now := m.b.store.Image(), m.b.now()
		for t := range im.ActiveTransactions() {
			if id, _ := im.Coordinator(metadata.TransactionCoordinator, t.ID); id == m.b.nodeID {
				open++
				oldest = max(oldest, now.Sub(time.UnixMilli(t.StartedAt)))
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(transactionsOpenDesc, prometheus.GaugeValue, float64(open))
	ch <- prometheus.MustNewConstMetric(transactionOldestDesc, prometheus.GaugeValue, oldest.Seconds())
	for _, h := range m.b.heldPartitions(heldAfter, heldSeries) {
		ch <- prometheus.MustNewConstMetric(transactionHeldDesc, prometheus.GaugeValue, h.open.Seconds(), h.topicName, strconv.Itoa(int(h.partition)), h.id, strconv.FormatInt(h.producer, 10))
	}
}
