package replication

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// topicMetrics counts for one topic. The hot path touches these atomics only, once per round of appends or per read;
// Collect turns them into series.
type topicMetrics struct {
	messagesIn, bytesIn, bytesOut, bytesRejected           atomic.Int64
	produceRequests, failedProduce, fetches, failedFetches atomic.Int64
	replicationBytesIn, replicationBytesOut                atomic.Int64
	reassignmentBytesIn                                    atomic.Int64
}

func (t *topicMetrics) appended(requests, failed int) {
	t.produceRequests.Add(int64(requests))
	if failed > 0 {
		t.failedProduce.Add(int64(failed))
	}
}

func (t *topicMetrics) fetched(err error) {
	t.fetches.Add(1)
	if err != nil {
		t.failedFetches.Add(1)
	}
}

// Rejected counts a batch that was refused before it reached the partition because of its size (bytesrejected).
func (p *Partition) Rejected(bytes int) {
	p.topic.metrics.bytesRejected.Add(int64(bytes))
	p.topic.metrics.appended(1, 1)
}

// metrics is the manager's collector. Names are Kafka's as the JMX exporters and kafka-exporter in the wild spell them
// (ux.md 6). Series per partition exist only for the partitions this broker leads, so that a sum over all brokers is
// right.
type metrics struct {
	m     *Manager
	hwLag prometheus.Histogram
	// ISR changes of partitions led here, as committed.
	isrShrinks, isrExpands prometheus.Counter
	// renewed counts damaged replicas made anew.
	renewed prometheus.Counter

	perTopic []topicCounter
	// Broker-wide gauges.
	leaders, partitions, underReplicated, underMinISR, atMinISR, offline, maxLag *prometheus.Desc
	// Per partition.
	currentOffset, oldestOffset, leader, replicas, isr, underReplicatedPartition, leaderIsPreferred, topicPartitions *prometheus.Desc
	logSize, logStart, logEnd, partitionAtMinISR, partitionUnderMinISR                                               *prometheus.Desc
}

type topicCounter struct {
	desc  *prometheus.Desc
	value func(*topicMetrics) *atomic.Int64
}

// partitionSeriesLimit is the number of led partitions up to which "auto" exports a series for each.
const partitionSeriesLimit = 2000

func newMetrics(m *Manager) *metrics {
	topic := []string{"topic"}
	partition := []string{"topic", "partition"}
	desc := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	counter := func(name, help string, value func(*topicMetrics) *atomic.Int64) topicCounter {
		return topicCounter{desc("kafka_server_brokertopicmetrics_"+name+"_total", help, topic), value}
	}
	return &metrics{
		m: m,
		hwLag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "millrace_hw_lag_seconds",
			Help:    "Time from the append of a round of batches to the high watermark passing it.",
			Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
		}),
		isrShrinks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_server_replicamanager_isrshrinks_total", Help: "Replicas taken out of the ISR of partitions led by this broker.",
		}),
		isrExpands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kafka_server_replicamanager_isrexpands_total", Help: "Replicas taken into the ISR of partitions led by this broker.",
		}),
		renewed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_replicas_renewed_total", Help: "Damaged replicas that left the ISR and were copied anew.",
		}),
		perTopic: []topicCounter{
			counter("messagesin", "Records appended as the leader.", func(t *topicMetrics) *atomic.Int64 { return &t.messagesIn }),
			counter("bytesin", "Bytes of record batches appended as the leader.", func(t *topicMetrics) *atomic.Int64 { return &t.bytesIn }),
			counter("bytesout", "Bytes of record batches read by consumers.", func(t *topicMetrics) *atomic.Int64 { return &t.bytesOut }),
			counter("bytesrejected", "Bytes of record batches refused for their size.", func(t *topicMetrics) *atomic.Int64 { return &t.bytesRejected }),
			counter("totalproducerequests", "Appends asked for, one per partition in a request.", func(t *topicMetrics) *atomic.Int64 { return &t.produceRequests }),
			counter("failedproducerequests", "Appends answered with an error.", func(t *topicMetrics) *atomic.Int64 { return &t.failedProduce }),
			counter("totalfetchrequests", "Reads by consumers, one per partition in a request.", func(t *topicMetrics) *atomic.Int64 { return &t.fetches }),
			counter("failedfetchrequests", "Reads answered with an error.", func(t *topicMetrics) *atomic.Int64 { return &t.failedFetches }),
			counter("replicationbytesin", "Bytes of record batches appended as a follower.", func(t *topicMetrics) *atomic.Int64 { return &t.replicationBytesIn }),
			counter("reassignmentbytesin", "Bytes of record batches appended as a replica that is being added.", func(t *topicMetrics) *atomic.Int64 { return &t.reassignmentBytesIn }),
			counter("replicationbytesout", "Bytes of record batches read by followers.", func(t *topicMetrics) *atomic.Int64 { return &t.replicationBytesOut }),
		},
		leaders:                  desc("kafka_server_replicamanager_leadercount", "Partitions led by this broker.", nil),
		partitions:               desc("kafka_server_replicamanager_partitioncount", "Replicas on this broker.", nil),
		underReplicated:          desc("kafka_server_replicamanager_underreplicatedpartitions", "Led partitions whose ISR lacks a replica.", nil),
		underMinISR:              desc("kafka_server_replicamanager_underminisrpartitioncount", "Led partitions whose ISR is smaller than min.insync.replicas.", nil),
		atMinISR:                 desc("kafka_server_replicamanager_atminisrpartitioncount", "Led partitions whose ISR is as small as min.insync.replicas.", nil),
		offline:                  desc("kafka_server_replicamanager_offlinereplicacount", "Replicas that cannot be served because of their log.", nil),
		maxLag:                   desc("kafka_server_replicafetchermanager_maxlag", "Records that the follower furthest behind on this broker lacks of its leader's log.", nil),
		currentOffset:            desc("kafka_topic_partition_current_offset", "High watermark of the partition.", partition),
		oldestOffset:             desc("kafka_topic_partition_oldest_offset", "Log start offset of the partition.", partition),
		leader:                   desc("kafka_topic_partition_leader", "Broker id of the leader.", partition),
		replicas:                 desc("kafka_topic_partition_replicas", "Number of replicas.", partition),
		isr:                      desc("kafka_topic_partition_in_sync_replica", "Number of in-sync replicas.", partition),
		underReplicatedPartition: desc("kafka_topic_partition_under_replicated_partition", "1 if the ISR lacks a replica.", partition),
		leaderIsPreferred:        desc("kafka_topic_partition_leader_is_preferred", "1 if the leader is the preferred one.", partition),
		topicPartitions:          desc("kafka_topic_partitions", "Number of partitions of the topic, from the broker that leads partition 0.", topic),
		logSize:                  desc("kafka_log_log_size", "Bytes of the partition's segments on this broker.", partition),
		logStart:                 desc("kafka_log_log_logstartoffset", "First offset of the log.", partition),
		logEnd:                   desc("kafka_log_log_logendoffset", "Next offset of the log.", partition),
		partitionAtMinISR:        desc("kafka_cluster_partition_atminisr", "1 if the ISR is as small as min.insync.replicas.", partition),
		partitionUnderMinISR:     desc("kafka_cluster_partition_underminisr", "1 if the ISR is smaller than min.insync.replicas.", partition),
	}
}

// lag observes the time a round of appends took to be committed.
func (c *metrics) lag(d Instant) { c.hwLag.Observe(float64(d) / 1e9) }

func (c *metrics) descs() []*prometheus.Desc {
	ds := []*prometheus.Desc{
		c.leaders, c.partitions, c.underReplicated, c.underMinISR, c.atMinISR, c.offline, c.maxLag,
		c.currentOffset, c.oldestOffset, c.leader, c.replicas, c.isr, c.underReplicatedPartition, c.leaderIsPreferred,
		c.topicPartitions, c.logSize, c.logStart, c.logEnd, c.partitionAtMinISR, c.partitionUnderMinISR,
	}
	for _, t := range c.perTopic {
		ds = append(ds, t.desc)
	}
	return ds
}

// Describe implements prometheus.Collector.
func (c *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs() {
		ch <- d
	}
	c.hwLag.Describe(ch)
	c.isrShrinks.Describe(ch)
	c.isrExpands.Describe(ch)
	c.renewed.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *metrics) Collect(ch chan<- prometheus.Metric) {
	c.hwLag.Collect(ch)
	c.isrShrinks.Collect(ch)
	c.isrExpands.Collect(ch)
	c.renewed.Collect(ch)
	var total, leading, under, underMin, atMin, offline int
	var lag int64
	t := c.m.table.Load()
	for _, pl := range t.byID {
		offline += len(pl.offline)
		for _, p := range pl.partitions {
			if p == nil {
				continue
			}
			total++
			v := p.view.Load()
			if v.role == RoleHalted {
				offline++
			}
			lag = max(lag, p.lag.Load())
			if v.role != RoleLeader {
				continue
			}
			leading++
			under += one(len(v.isr) < v.replicas)
			underMin += one(len(v.isr) < v.minInsync)
			atMin += one(len(v.isr) == v.minInsync)
		}
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.leaders, float64(leading))
	gauge(c.partitions, float64(total))
	gauge(c.underReplicated, float64(under))
	gauge(c.underMinISR, float64(underMin))
	gauge(c.atMinISR, float64(atMin))
	gauge(c.offline, float64(offline))
	gauge(c.maxLag, float64(lag))
	perPartition := c.m.cfg.PartitionMetrics == "always" || c.m.cfg.PartitionMetrics == "auto" && leading <= partitionSeriesLimit
	for _, pl := range t.byID {
		for i := range c.perTopic {
			tc := &c.perTopic[i]
			ch <- prometheus.MustNewConstMetric(tc.desc, prometheus.CounterValue, float64(tc.value(pl.metrics).Load()), pl.name)
		}
		for _, p := range pl.partitions {
			if p == nil {
				continue
			}
			v := p.view.Load()
			if v.role != RoleLeader {
				continue
			}
			if p.partition == 0 {
				gauge(c.topicPartitions, float64(len(pl.partitions)), pl.name)
			}
			if perPartition {
				c.collectPartition(gauge, p, v)
			}
		}
	}
}

func (c *metrics) collectPartition(gauge func(*prometheus.Desc, float64, ...string), p *Partition, v *view) {
	topic, id := p.topic.name, strconv.Itoa(int(p.partition))
	each := func(d *prometheus.Desc, n int64) { gauge(d, float64(n), topic, id) }
	each(c.currentOffset, p.highWatermark.Load())
	each(c.oldestOffset, p.log.StartOffset())
	each(c.leader, int64(v.leader))
	each(c.replicas, int64(v.replicas))
	each(c.isr, int64(len(v.isr)))
	each(c.underReplicatedPartition, int64(one(len(v.isr) < v.replicas)))
	each(c.leaderIsPreferred, int64(one(v.leader == v.preferred)))
	each(c.logSize, p.log.SizeBytes())
	each(c.logStart, p.log.StartOffset())
	each(c.logEnd, p.log.EndOffset())
	each(c.partitionAtMinISR, int64(one(len(v.isr) == v.minInsync)))
	each(c.partitionUnderMinISR, int64(one(len(v.isr) < v.minInsync)))
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}
