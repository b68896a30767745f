package kafka

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts requests. Series appear with their first use: a broker that
// never saw Produce v3 has no line for it.
type metrics struct {
	requests  *prometheus.CounterVec
	errors    *prometheus.CounterVec
	durations *prometheus.HistogramVec
	sessions  []prometheus.Collector // of the session cache

	// apis holds the resolved counters by API key, so that a request pays an
	// atomic load instead of hashing labels.
	apis [maxKey]apiMetrics
}

type apiMetrics struct {
	name     string
	versions [32]atomic.Pointer[prometheus.Counter]
	errors   sync.Map // int16 → prometheus.Counter
	local    atomic.Pointer[prometheus.Observer]
	remote   atomic.Pointer[prometheus.Observer]
}

// requestBuckets reach from a produce answered without waiting to the longest
// common long poll.
var requestBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

func newMetrics(r prometheus.Registerer, apis []api, sessions *sessionCache) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kafka_network_requestmetrics_requests_total", Help: "Requests by API and version.",
		}, []string{"request", "version"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kafka_network_requestmetrics_errors_total", Help: "Error codes in responses by API, one per partition or resource.",
		}, []string{"request", "error"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "millrace_request_duration_seconds", Help: "Time of requests by API and phase.", Buckets: requestBuckets,
		}, []string{"request", "phase"}),
		sessions: []prometheus.Collector{
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "kafka_server_fetchsessioncache_numincrementalfetchsessions", Help: "Incremental fetch sessions kept.",
			}, func() float64 {
				n, _ := sessions.count()
				return float64(n)
			}),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", Help: "Partitions that all fetch sessions remember.",
			}, func() float64 {
				_, n := sessions.count()
				return float64(n)
			}),
		},
	}
	for _, a := range apis {
		m.apis[a.key].name = a.name
	}
	if r != nil {
		r.MustRegister(m.requests, m.errors, m.durations)
		r.MustRegister(m.sessions...)
	}
	return m
}

// request counts one accepted request.
func (m *metrics) request(key, version int16) {
	a := &m.apis[key]
	slot := &a.versions[version]
	c := slot.Load()
	if c == nil {
		made := m.requests.WithLabelValues(a.name, strconv.Itoa(int(version)))
		slot.Store(&made)
		c = &made
	}
	(*c).Inc()
}

// error counts one error code of a response; codeNone is not counted.
func (m *metrics) error(key, code int16) {
	if code == codeNone {
		return
	}
	a := &m.apis[key]
	c, ok := a.errors.Load(code)
	if !ok {
		c, _ = a.errors.LoadOrStore(code, m.errors.WithLabelValues(a.name, codeName(code)))
	}
	c.(prometheus.Counter).Inc()
}

// duration observes how long a request was worked on (local) and how long it
// waited for other replicas, for the disk or for data (remote).
func (m *metrics) duration(key int16, local, remote time.Duration) {
	a := &m.apis[key]
	m.observer(&a.local, a.name, "local").Observe(local.Seconds())
	if remote > 0 {
		m.observer(&a.remote, a.name, "remote").Observe(remote.Seconds())
	}
}

func (m *metrics) observer(slot *atomic.Pointer[prometheus.Observer], name, phase string) prometheus.Observer {
	if o := slot.Load(); o != nil {
		return *o
	}
	o := m.durations.WithLabelValues(name, phase)
	slot.Store(&o)
	return o
}
