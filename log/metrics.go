package log

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the collectors of one Dir. Sizes and offsets of partitions (kafka_log_log_*) are exported by replication,
// which knows the partitions this broker leads.
type metrics struct {
	fsync           prometheus.Histogram
	appendedBytes   prometheus.Counter
	rolls           *prometheus.CounterVec
	deletedSegments *prometheus.CounterVec
	deletedBytes    *prometheus.CounterVec
	corrupt         prometheus.Counter
	indexRebuilds   prometheus.Counter
	scrubbedBytes   prometheus.Counter
	failed          prometheus.Gauge
	retentionPaused prometheus.Gauge
	recoveryBytes   prometheus.Gauge
	recoverySeconds prometheus.Gauge
	truncatedBytes  prometheus.Counter
	walFrames       prometheus.Counter
	walBytes        prometheus.Counter
	walDamaged      prometheus.Gauge

	registered []prometheus.Collector
}

func newMetrics() *metrics {
	return &metrics{
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "millrace_fsync_duration_seconds", Help: "Duration of the fdatasync calls of a log directory: frames of the write-ahead log, segments, indexes, state files.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		appendedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_log_appended_bytes_total", Help: "Bytes of record batches written to segments.",
		}),
		rolls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_log_segment_rolls_total", Help: "Segments closed, by reason.",
		}, []string{"reason"}),
		deletedSegments: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_log_deleted_segments_total", Help: "Segments deleted, by reason.",
		}, []string{"reason"}),
		deletedBytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_log_deleted_bytes_total", Help: "Bytes of deleted segments, by reason.",
		}, []string{"reason"}),
		corrupt: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_log_corrupt_partitions_total", Help: "Partitions that went offline because durable bytes are missing or changed.",
		}),
		indexRebuilds: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_log_index_rebuilds_total", Help: "Indexes that did not fit their segment and were rebuilt.",
		}),
		scrubbedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_log_scrubbed_bytes_total", Help: "Bytes of sealed segments checked for bit rot.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_log_directory_failed", Help: "1 after a write or sync of the log directory failed.",
		}),
		retentionPaused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_log_retention_paused", Help: "1 while retention waits because the wall clock jumped.",
		}),
		recoveryBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_log_recovery_bytes", Help: "Bytes read when the log directory was opened.",
		}),
		recoverySeconds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_log_recovery_seconds", Help: "Time it took to open the log directory.",
		}),
		truncatedBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_log_torn_bytes_total", Help: "Bytes of torn tails cut off by recovery.",
		}),
		walFrames: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_wal_frames_total", Help: "Frames written to the write-ahead log, each with one fdatasync.",
		}),
		walBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_wal_bytes_total", Help: "Bytes written to the write-ahead log, padding included.",
		}),
		walDamaged: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_wal_damaged", Help: "1 if the last start found damage in the write-ahead log that no torn tail explains.",
		}),
	}
}

// register adds the collectors, and gauges computed from d when they are asked for. On an error none stays registered.
func (m *metrics) register(r prometheus.Registerer, d *Dir) error {
	usage := func(pick func(free, total int64) int64) func() float64 {
		return func() float64 {
			free, total, err := d.Usage()
			if err != nil {
				return -1
			}
			return float64(pick(free, total))
		}
	}
	all := []prometheus.Collector{
		m.fsync, m.appendedBytes, m.rolls, m.deletedSegments, m.deletedBytes, m.corrupt, m.indexRebuilds, m.scrubbedBytes, m.failed,
		m.retentionPaused, m.recoveryBytes, m.recoverySeconds, m.truncatedBytes,
		m.walFrames, m.walBytes, m.walDamaged,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_disk_free_bytes", Help: "Bytes free for records on the file system of the log directory.",
		}, usage(func(free, _ int64) int64 { return free })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_disk_total_bytes", Help: "Size of the file system of the log directory.",
		}, usage(func(_, total int64) int64 { return total })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "millrace_log_offline_partitions", Help: "Partitions of the log directory that can not be served.",
		}, func() float64 { return float64(len(d.Offline())) }),
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			m.unregister(r)
			return errors.Join(err)
		}
		m.registered = append(m.registered, c)
	}
	return nil
}

// unregister removes the collectors.
func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.registered {
		r.Unregister(c)
	}
	m.registered = nil
}
