package broker

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/metadata"
)

// groupMetrics exports the groups that this broker coordinates, under the names that kafka-exporter has made known, so that
// sums over all brokers are right. Lag is that of the partitions' leaders at the time of the scrape.
type groupMetrics struct {
	// image returns what is known, and nil on a broker without a lease: its groups are another's by now.
	image func() *metadata.Image
	self  metadata.BrokerID
	// read asks the leaders, see lagReader.
	read func(context.Context, []placeQuestion) []place

	series int // partitionSeries, or fewer in tests

	collecting sync.Mutex // one scrape asks the leaders at a time
}

func newGroupMetrics(b *Broker) *groupMetrics {
	return &groupMetrics{
		image: func() *metadata.Image {
			if !b.replicas.Leased() {
				return nil
			}
			return b.store.Image()
		},
		self: b.nodeID,
		read: b.lag.read, series: partitionSeries,
	}
}

// partitionSeries is how many partitions of groups have series of their own at most; above it only sums by topic.
const partitionSeries = 2000

var (
	byPartition = []string{"consumergroup", "topic", "partition"}
	byTopic     = []string{"consumergroup", "topic"}

	groupOffsetDesc    = prometheus.NewDesc("kafka_consumergroup_current_offset", "Committed offset of a group in a partition.", byPartition, nil)
	groupLagDesc       = prometheus.NewDesc("kafka_consumergroup_lag", "Records of a partition that a group has not read.", byPartition, nil)
	groupLagTimeDesc   = prometheus.NewDesc("kafka_consumergroup_lag_seconds", "Age of the first batch of a partition that a group has not read.", byPartition, nil)
	groupOffsetSumDesc = prometheus.NewDesc("kafka_consumergroup_current_offset_sum", "Committed offsets of a group over the partitions of a topic.", byTopic, nil)
	groupLagSumDesc    = prometheus.NewDesc("kafka_consumergroup_lag_sum", "Records of a topic that a group has not read.", byTopic, nil)
	groupLagMaxDesc    = prometheus.NewDesc("kafka_consumergroup_lag_seconds_max", "Age of the first batch of a topic that a group has not read; above the bound of series by partition, of the partition with most records that wait.", byTopic, nil)
	groupLeftDesc      = prometheus.NewDesc("millrace_group_retention_left_seconds", "How long retention leaves records that a group has not read alone, as things are; none where it will not delete them.", byTopic, nil)
	groupMembersDesc   = prometheus.NewDesc("kafka_consumergroup_members", "Members of a group.", []string{"consumergroup"}, nil)
)

// Describe implements prometheus.Collector.
func (m *groupMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{groupOffsetDesc, groupLagDesc, groupLagTimeDesc, groupOffsetSumDesc, groupLagSumDesc, groupLagMaxDesc, groupLeftDesc, groupMembersDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *groupMetrics) Collect(ch chan<- prometheus.Metric) {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	im := m.image()
	if im == nil {
		return
	}
	var groups []string
	for g := range im.Groups() {
		if id, _ := im.Coordinator(metadata.GroupCoordinator, g.Name); id == m.self {
			groups = append(groups, g.Name)
			ch <- prometheus.MustNewConstMetric(groupMembersDesc, prometheus.GaugeValue, float64(len(g.Members)), g.Name)
		}
	}
	if offsets, all := committedOffsets(im, groups, m.series); all {
		m.collectPartitions(ch, offsets)
	} else {
		m.collectSums(ch, im, groups)
	}
}

// committed is an offset of a group, for a scrape.
type committed struct {
	group, topic string
	question     placeQuestion
}

// committedOffsets returns the offsets of groups, those of a group and topic one after the other, and false if there are
// more than limit.
func committedOffsets(im *metadata.Image, groups []string, limit int) (offsets []committed, all bool) {
	for _, group := range groups {
		for at, o := range im.Offsets(group) {
			t := im.TopicByID(at.TopicID)
			if t == nil {
				continue
			}
			if len(offsets) == limit {
				return nil, false
			}
			offsets = append(offsets, committed{group, t.Name, placeQuestion{Topic: at.TopicID, Partition: at.Partition, Offset: o.Offset}})
		}
	}
	return offsets, true
}

// collectPartitions exports series for each offset, and sums.
func (m *groupMetrics) collectPartitions(ch chan<- prometheus.Metric, offsets []committed) {
	questions := make([]placeQuestion, len(offsets))
	for i := range offsets {
		questions[i] = offsets[i].question
	}
	places := m.read(context.Background(), questions)
	now := time.Now()
	sums := groupSums{ch: ch}
	for i := range offsets {
		o, p := &offsets[i], &places[i]
		lag := p.lag(o.question.Offset)
		sums.add(o.group, o.topic, o.question.Offset, lag, p.Error == "")
		sums.addTimes(p, now)
		partition := strconv.Itoa(int(o.question.Partition))
		ch <- prometheus.MustNewConstMetric(groupOffsetDesc, prometheus.GaugeValue, float64(o.question.Offset), o.group, o.topic, partition)
		if p.Error == "" { // a lag that is not known is no lag of 0
			ch <- prometheus.MustNewConstMetric(groupLagDesc, prometheus.GaugeValue, float64(lag), o.group, o.topic, partition)
			ch <- prometheus.MustNewConstMetric(groupLagTimeDesc, prometheus.GaugeValue, p.age(now).Seconds(), o.group, o.topic, partition)
		}
	}
	sums.end()
}

// collectSums exports sums by topic only. There may be a million offsets then, of far fewer partitions: the leaders are asked
// once for each partition, and nothing is kept or sent for each offset.
func (m *groupMetrics) collectSums(ch chan<- prometheus.Metric, im *metadata.Image, groups []string) {
	type ends struct {
		name   string
		places []place // by partition
		wanted []bool  // parallel
	}
	topics := map[metadata.TopicID]*ends{}
	pacer := metadata.NewPacer(2, nil)
	for _, group := range groups {
		var last metadata.TopicID // never zero in an Image
		var of *ends
		for at := range im.Offsets(group) {
			if at.TopicID != last {
				last, of = at.TopicID, topics[at.TopicID]
				if t := im.TopicByID(at.TopicID); of == nil && t != nil {
					of = &ends{name: t.Name, places: make([]place, len(t.Partitions)), wanted: make([]bool, len(t.Partitions))}
					topics[at.TopicID] = of
				}
			}
			if of != nil && int(at.Partition) < len(of.wanted) {
				of.wanted[at.Partition] = true
			}
		}
		pacer.Breathe()
	}
	var questions []placeQuestion
	var answers []*place
	for id, of := range topics {
		for p, wanted := range of.wanted {
			if wanted {
				// Behind every record: how old the first unread batch is is of no interest.
				questions = append(questions, placeQuestion{Topic: id, Partition: int32(p), Offset: math.MaxInt64})
				answers = append(answers, &of.places[p])
			}
		}
	}
	for i, p := range m.read(context.Background(), questions) {
		*answers[i] = p
	}
	sums := groupSums{ch: ch, later: true}
	for _, group := range groups {
		var last metadata.TopicID
		var of *ends
		for at, o := range im.Offsets(group) {
			if at.TopicID != last {
				last, of = at.TopicID, topics[at.TopicID]
			}
			if of != nil && int(at.Partition) < len(of.places) {
				p := &of.places[at.Partition]
				lag := p.lag(o.Offset)
				sums.add(group, of.name, o.Offset, lag, p.Error == "")
				sums.addWorst(placeQuestion{Topic: at.TopicID, Partition: at.Partition, Offset: o.Offset}, lag)
			}
		}
		pacer.Breathe()
	}
	sums.end()
	m.collectTimes(ch, sums.worst)
}

// worstOffset is the offset of a group and topic with the most records that wait.
type worstOffset struct {
	committed
	lag int64
}

// collectTimes exports the times of the worst partition of each group and topic, of those with the most that waits if there are
// many: a leader has to look at a batch for each.
func (m *groupMetrics) collectTimes(ch chan<- prometheus.Metric, worst []worstOffset) {
	if len(worst) > partitionSeries {
		slices.SortFunc(worst, func(a, b worstOffset) int { return cmp.Compare(b.lag, a.lag) })
		worst = worst[:partitionSeries]
	}
	questions := make([]placeQuestion, len(worst))
	for i := range worst {
		questions[i] = worst[i].question
	}
	places := m.read(context.Background(), questions)
	now := time.Now()
	for i := range places {
		if p := &places[i]; p.Error == "" {
			collectTimes(ch, worst[i].group, worst[i].topic, p.age(now), p.Left)
		}
	}
}

// collectTimes exports the times of a group and topic; left is in milliseconds, -1 for none.
func collectTimes(ch chan<- prometheus.Metric, group, topic string, age time.Duration, left int64) {
	ch <- prometheus.MustNewConstMetric(groupLagMaxDesc, prometheus.GaugeValue, age.Seconds(), group, topic)
	if left >= 0 {
		ch <- prometheus.MustNewConstMetric(groupLeftDesc, prometheus.GaugeValue, float64(left)/1000, group, topic)
	}
}

// groupSums adds up what comes for one group and topic after the other.
type groupSums struct {
	ch           chan<- prometheus.Metric
	group, topic string
	offset, lag  float64
	some         bool
	known        bool // at least one leader has answered
	// later has the times of the worst be asked for afterwards; else age and left (milliseconds, -1: none) are added up, too.
	later bool
	age   time.Duration
	left  int64
	// now is the worst of this group and topic, worst of those before.
	now   worstOffset
	worst []worstOffset
}

func (s *groupSums) add(group, topic string, offset, lag int64, known bool) {
	if !s.some || s.group != group || s.topic != topic {
		s.end()
		s.some, s.known, s.group, s.topic, s.offset, s.lag = true, false, group, topic, 0, 0
		s.age, s.left, s.now = 0, -1, worstOffset{lag: -1}
	}
	s.offset += float64(offset)
	if known {
		s.lag, s.known = s.lag+float64(lag), true
	}
}

// addTimes adds what the leader says of the offset that was added last.
func (s *groupSums) addTimes(p *place, now time.Time) {
	if p.Error == "" {
		if s.age = max(s.age, p.age(now)); p.Left >= 0 && (s.left < 0 || p.Left < s.left) {
			s.left = p.Left
		}
	}
}

// addWorst remembers the offset that was added last if it has the most records that wait.
func (s *groupSums) addWorst(question placeQuestion, lag int64) {
	if lag > s.now.lag {
		s.now = worstOffset{committed{s.group, s.topic, question}, lag}
	}
}

// end exports the last sum.
func (s *groupSums) end() {
	if !s.some {
		return
	}
	s.ch <- prometheus.MustNewConstMetric(groupOffsetSumDesc, prometheus.GaugeValue, s.offset, s.group, s.topic)
	if !s.known {
		return
	}
	s.ch <- prometheus.MustNewConstMetric(groupLagSumDesc, prometheus.GaugeValue, s.lag, s.group, s.topic)
	switch {
	case !s.later:
		collectTimes(s.ch, s.group, s.topic, s.age, s.left)
	case s.lag == 0:
		collectTimes(s.ch, s.group, s.topic, 0, -1)
	default:
		s.worst = append(s.worst, s.now)
	}
}
