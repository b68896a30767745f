package broker

import (
	"context"
	"math"
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
		read: b.lag.read,
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
	groupMembersDesc   = prometheus.NewDesc("kafka_consumergroup_members", "Members of a group.", []string{"consumergroup"}, nil)
)

// Describe implements prometheus.Collector.
func (m *groupMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{groupOffsetDesc, groupLagDesc, groupLagTimeDesc, groupOffsetSumDesc, groupLagSumDesc, groupMembersDesc} {
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
	if offsets, all := committedOffsets(im, groups, partitionSeries); all {
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
	sums := groupSums{ch: ch}
	for _, group := range groups {
		var last metadata.TopicID
		var of *ends
		for at, o := range im.Offsets(group) {
			if at.TopicID != last {
				last, of = at.TopicID, topics[at.TopicID]
			}
			if of != nil && int(at.Partition) < len(of.places) {
				p := &of.places[at.Partition]
				sums.add(group, of.name, o.Offset, p.lag(o.Offset), p.Error == "")
			}
		}
		pacer.Breathe()
	}
	sums.end()
}

// groupSums adds up what comes for one group and topic after the other.
type groupSums struct {
	ch           chan<- prometheus.Metric
	group, topic string
	offset, lag  float64
	some         bool
	known        bool // at least one leader has answered
}

func (s *groupSums) add(group, topic string, offset, lag int64, known bool) {
	if !s.some || s.group != group || s.topic != topic {
		s.end()
		s.some, s.known, s.group, s.topic, s.offset, s.lag = true, false, group, topic, 0, 0
	}
	s.offset += float64(offset)
	if known {
		s.lag, s.known = s.lag+float64(lag), true
	}
}

// end exports the last sum.
func (s *groupSums) end() {
	if !s.some {
		return
	}
	s.ch <- prometheus.MustNewConstMetric(groupOffsetSumDesc, prometheus.GaugeValue, s.offset, s.group, s.topic)
	if s.known {
		s.ch <- prometheus.MustNewConstMetric(groupLagSumDesc, prometheus.GaugeValue, s.lag, s.group, s.topic)
	}
}
