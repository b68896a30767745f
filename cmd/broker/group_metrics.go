package broker

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/metadata"
)

// groupMetrics exports the groups that this broker coordinates, under the names that kafka-exporter has made known, so that
// sums over all brokers are right. Lag is that of the partitions' leaders at the time of the scrape.
type groupMetrics struct {
	store *metadata.Store
	lag   *lagReader

	collecting sync.Mutex // one scrape asks the leaders at a time
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

// committed is an offset of a group, for a scrape.
type committed struct {
	group, topic string
	question     placeQuestion
}

// coordinated are the groups of this broker with their offsets. Those of a broker without a lease are another's by now.
func (m *groupMetrics) coordinated() (groups []*metadata.Group, offsets []committed) {
	im := m.store.Image()
	if !m.lag.b.replicas.Leased() {
		return nil, nil
	}
	for g := range im.Groups() {
		if id, _ := im.Coordinator(metadata.GroupCoordinator, g.Name); id != m.lag.b.nodeID {
			continue
		}
		groups = append(groups, g)
		for at, o := range im.Offsets(g.Name) {
			if t := im.TopicByID(at.TopicID); t != nil {
				offsets = append(offsets, committed{g.Name, t.Name, placeQuestion{at.TopicID, at.Partition, o.Offset}})
			}
		}
	}
	return groups, offsets
}

// Collect implements prometheus.Collector.
func (m *groupMetrics) Collect(ch chan<- prometheus.Metric) {
	m.collecting.Lock()
	defer m.collecting.Unlock()
	groups, offsets := m.coordinated()
	for _, g := range groups {
		ch <- prometheus.MustNewConstMetric(groupMembersDesc, prometheus.GaugeValue, float64(len(g.Members)), g.Name)
	}
	questions := make([]placeQuestion, len(offsets))
	for i := range offsets {
		questions[i] = offsets[i].question
	}
	places := m.lag.read(context.Background(), questions)
	type sum struct {
		offset, lag float64
		known       bool // at least one leader has answered
	}
	sums := map[[2]string]*sum{}
	now := time.Now()
	for i := range offsets {
		o, p := &offsets[i], &places[i]
		key := [2]string{o.group, o.topic}
		s := sums[key]
		if s == nil {
			s = &sum{}
			sums[key] = s
		}
		s.offset += float64(o.question.Offset)
		lag := float64(p.lag(o.question.Offset))
		if p.Error == "" {
			s.lag, s.known = s.lag+lag, true
		}
		if len(offsets) > partitionSeries {
			continue
		}
		partition := strconv.Itoa(int(o.question.Partition))
		ch <- prometheus.MustNewConstMetric(groupOffsetDesc, prometheus.GaugeValue, float64(o.question.Offset), o.group, o.topic, partition)
		if p.Error == "" { // a lag that is not known is no lag of 0
			ch <- prometheus.MustNewConstMetric(groupLagDesc, prometheus.GaugeValue, lag, o.group, o.topic, partition)
			ch <- prometheus.MustNewConstMetric(groupLagTimeDesc, prometheus.GaugeValue, p.age(now).Seconds(), o.group, o.topic, partition)
		}
	}
	for key, s := range sums {
		ch <- prometheus.MustNewConstMetric(groupOffsetSumDesc, prometheus.GaugeValue, s.offset, key[0], key[1])
		if s.known {
			ch <- prometheus.MustNewConstMetric(groupLagSumDesc, prometheus.GaugeValue, s.lag, key[0], key[1])
		}
	}
}
