package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// 2026-11-30: when retention.bytes deletes a record depends on how fast its log grows, which the Kafka protocol does not tell. The
// leader knows, and says it in the report of diagnose and in the metrics; here it is reckoned from what every broker answers,
// which works from any machine: the size of the log, and how many records the last ten minutes have brought, taken to be as large
// as the others. What we gave up: records with the times of other days count by these.

// growthTime is over how long the rate of a log is taken.
const growthTime = 10 * time.Minute

// logSizes is what is known of the logs of topics that delete by size.
type logSizes struct {
	limits  map[string]sizeLimit
	bytes   map[topicPartition]int64
	earlier kadm.ListedOffsets // first offsets of the last growthTime
}

// sizeLimit are retention.bytes and segment.bytes.
type sizeLimit struct{ keep, segment int64 }

// add notes a topic if it deletes by size.
func (s *logSizes) add(topic, keep, segment string) {
	var l sizeLimit
	var err error
	if l.keep, err = strconv.ParseInt(keep, 10, 64); err != nil || l.keep < 0 {
		return
	}
	if l.segment, err = strconv.ParseInt(segment, 10, 64); err != nil || l.segment <= 0 {
		return
	}
	if s.limits == nil {
		s.limits = map[string]sizeLimit{}
	}
	s.limits[topic] = l
}

// readSizes asks for sizes and rates. What is not answered stays unknown.
func (c *connection) readSizes(ctx context.Context, s *logSizes, details kadm.TopicDetails) {
	if len(s.limits) == 0 {
		return
	}
	var topics []string
	all := kadm.TopicsSet{}
	for t := range s.limits {
		topics = append(topics, t)
		for p := range details[t].Partitions {
			all.Add(t, p)
		}
	}
	slices.Sort(topics)
	// An error of some brokers leaves what others have said.
	s.earlier, _ = c.adm.ListOffsetsAfterMilli(ctx, time.Now().Add(-growthTime).UnixMilli(), topics...)
	dirs, _ := c.adm.DescribeAllLogDirs(ctx, all)
	s.bytes = map[topicPartition]int64{}
	for _, broker := range dirs {
		for _, dir := range broker {
			dir.Topics.Each(func(p kadm.DescribedLogDirPartition) {
				if _, ok := s.limits[p.Topic]; ok && !p.IsFuture {
					at := topicPartition{p.Topic, p.Partition}
					s.bytes[at] = max(s.bytes[at], p.Size) // a replica that lags has less
				}
			})
		}
	}
}

// left says in how many milliseconds the record at an offset is deleted, start ≤ at < end; false: not at this rate, or not known.
func (s *logSizes) left(p topicPartition, start, at, end int64) (ms int64, ok bool) {
	limit, ok := s.limits[p.topic]
	size, known := s.bytes[p]
	earlier, asked := s.earlier.Lookup(p.topic, p.partition)
	if !ok || !known || !asked || earlier.Err != nil || end <= start {
		return 0, false
	}
	// Records are taken to be of one size, and segments to be full: the first one goes once all behind it is as much as is kept.
	perRecord := float64(size) / float64(end-start)
	upTo := (int64(float64(at-start)*perRecord)/limit.segment + 1) * limit.segment
	must := limit.keep + upTo - size
	if must <= 0 {
		return 0, true
	}
	came := end - earlier.Offset
	if earlier.Offset < 0 || came <= 0 {
		return 0, false
	}
	return int64(float64(must) / (float64(came) * perRecord) * float64(growthTime.Milliseconds())), true
}
