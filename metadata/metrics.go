package metadata

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the millrace_raft_* series of one Store.
type metrics struct {
	commands  prometheus.Counter
	batch     prometheus.Histogram
	bytes     prometheus.Counter
	duration  prometheus.Histogram
	plans     prometheus.Counter
	commits   prometheus.Counter
	perBatch  prometheus.Histogram
	snapshot  atomic.Int64 // unix nanoseconds of the newest snapshot, 0 = none
	registry  prometheus.Registerer
	collector prometheus.Collector
}

func newMetrics() *metrics {
	return &metrics{
		commands: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_raft_commands_total",
			Help: "Metadata commands proposed by this broker.",
		}),
		plans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_rebalance_plans_total",
			Help: "Plans that the balancer of this broker committed while it was the controller.",
		}),
		commits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_offset_commits_total",
			Help: "Offset commits that this broker has sent to the metadata quorum as coordinator.",
		}),
		perBatch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "millrace_offset_commit_batch",
			Help:    "Offset commits that shared one metadata command.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500},
		}),
		bytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_raft_proposed_bytes_total",
			Help: "Bytes of the Raft entries proposed by this broker.",
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "millrace_raft_entry_commands",
			Help:    "Commands that shared one Raft entry.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000},
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "millrace_raft_commit_duration_seconds",
			Help:    "From proposal of a Raft entry to its local apply.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
}

// entry counts an entry on its way out.
func (m *metrics) entry(commands, bytes int) {
	m.commands.Add(float64(commands))
	m.bytes.Add(float64(bytes))
	m.batch.Observe(float64(commands))
}

// commitBatch counts a batch of offset commits on its way out.
func (m *metrics) commitBatch(commits int) {
	m.commits.Add(float64(commits))
	m.perBatch.Observe(float64(commits))
}

func (m *metrics) committed(d time.Duration) { m.duration.Observe(d.Seconds()) }

func (m *metrics) snapshotted() { m.snapshot.Store(time.Now().UnixNano()) }

// register offers the series to registry; close takes them back.
func (m *metrics) register(registry prometheus.Registerer, r *raft.Raft, moves func() *BalancerStatus) error {
	if registry == nil {
		return nil
	}
	m.collector = &raftCollector{
		metrics: m,
		raft:    r,
		balance: moves,
		moves: prometheus.NewDesc("millrace_rebalance_moves",
			"Moves of the balancer's present or last plan by state; at the controller only.", []string{"state"}, nil),
		remaining: prometheus.NewDesc("millrace_rebalance_bytes_remaining",
			"Bytes that the balancer's moves have still to copy; at the controller only, absent while not known.", nil, nil),
		state: prometheus.NewDesc("millrace_raft_state",
			"1 for the state this broker's Raft server is in.", []string{"state"}, nil),
		term: prometheus.NewDesc("millrace_raft_term", "Present Raft term.", nil, nil),
		commit: prometheus.NewDesc("millrace_raft_commit_index",
			"Last Raft index known to be committed.", nil, nil),
		applied: prometheus.NewDesc("millrace_raft_applied_index", "Last Raft index applied.", nil, nil),
		contact: prometheus.NewDesc("millrace_raft_last_contact_seconds",
			"Since the leader was last heard of; 0 at the leader.", nil, nil),
		age: prometheus.NewDesc("millrace_raft_snapshot_age_seconds",
			"Age of the newest metadata snapshot; absent when there is none.", nil, nil),
	}
	m.registry = registry
	return registry.Register(m.collector)
}

func (m *metrics) close() {
	if m.registry != nil {
		m.registry.Unregister(m.collector)
	}
}

// raftCollector reads Raft's own state when asked.
type raftCollector struct {
	metrics                                    *metrics
	raft                                       *raft.Raft
	balance                                    func() *BalancerStatus // nil answer = not the controller
	state, term, commit, applied, contact, age *prometheus.Desc
	moves, remaining                           *prometheus.Desc
}

func (c *raftCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.state, c.term, c.commit, c.applied, c.contact, c.age, c.moves, c.remaining} {
		ch <- d
	}
	c.metrics.commands.Describe(ch)
	c.metrics.bytes.Describe(ch)
	c.metrics.batch.Describe(ch)
	c.metrics.duration.Describe(ch)
	c.metrics.plans.Describe(ch)
	c.metrics.commits.Describe(ch)
	c.metrics.perBatch.Describe(ch)
}

func (c *raftCollector) Collect(ch chan<- prometheus.Metric) {
	state := c.raft.State()
	for s, name := range map[raft.RaftState]string{raft.Leader: "leader", raft.Candidate: "candidate", raft.Follower: "follower"} {
		v := 0.0
		if s == state {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, v, name)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	c.collectBalance(ch)
	gauge(c.term, float64(c.raft.CurrentTerm()))
	gauge(c.commit, float64(c.raft.CommitIndex()))
	gauge(c.applied, float64(c.raft.AppliedIndex()))
	contact := 0.0
	if last := c.raft.LastContact(); state != raft.Leader && !last.IsZero() {
		contact = time.Since(last).Seconds()
	}
	gauge(c.contact, contact)
	if at := c.metrics.snapshot.Load(); at != 0 {
		gauge(c.age, time.Since(time.Unix(0, at)).Seconds())
	}
	c.metrics.commands.Collect(ch)
	c.metrics.bytes.Collect(ch)
	c.metrics.batch.Collect(ch)
	c.metrics.duration.Collect(ch)
	c.metrics.plans.Collect(ch)
	c.metrics.commits.Collect(ch)
	c.metrics.perBatch.Collect(ch)
}

// collectBalance tells of the balancer at the controller; a plan is in the metadata, so that others would count it again.
func (c *raftCollector) collectBalance(ch chan<- prometheus.Metric) {
	status := c.balance()
	if status == nil {
		return
	}
	count := map[MoveState]int{MoveWaiting: 0, MoveMoving: 0, MoveDone: 0, MoveFailed: 0, MoveCancelled: 0}
	for i := range status.Moves {
		count[status.Moves[i].State]++
	}
	for state, n := range count {
		ch <- prometheus.MustNewConstMetric(c.moves, prometheus.GaugeValue, float64(n), string(state))
	}
	if status.BytesRemaining >= 0 {
		ch <- prometheus.MustNewConstMetric(c.remaining, prometheus.GaugeValue, float64(status.BytesRemaining))
	}
}
