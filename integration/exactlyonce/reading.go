package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// ends are the offsets behind the last record of each partition that a consumer of an isolation level sees.
func (s *system) ends(ctx context.Context, committed bool, topics ...string) (kadm.ListedOffsets, error) {
	list := s.adm.ListEndOffsets
	if committed {
		list = s.adm.ListCommittedOffsets
	}
	offsets, err := list(ctx, topics...)
	if err == nil {
		err = offsets.Error()
	}
	return offsets, err
}

// untilFree waits until no transaction holds back a partition of the topics: their last stable offsets are their high watermarks (I20, P12).
func (s *system) untilFree(ctx context.Context, topics ...string) error {
	return poll(ctx, func() error {
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		stable, err := s.ends(ask, true, topics...)
		if err != nil {
			return err
		}
		high, err := s.ends(ask, false, topics...)
		if err != nil {
			return err
		}
		for topic, partitions := range high {
			for p, h := range partitions {
				if l, _ := stable.Lookup(topic, p); l.Offset != h.Offset {
					return fmt.Errorf("a transaction holds back %s-%d: its last stable offset is %d, its high watermark %d", topic, p, l.Offset, h.Offset)
				}
			}
		}
		return nil
	})
}

// read reads a topic from its start to its end of now.
func (s *system) read(ctx context.Context, topic string, committed bool) (reading, error) {
	ctx, cancel := context.WithTimeout(ctx, untilRead)
	defer cancel()
	ends, err := s.ends(ctx, committed, topic)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", topic, err)
	}
	out, from, left := reading{}, map[int32]kgo.Offset{}, map[int32]int64{}
	for p, end := range ends[topic] {
		out[p] = nil
		if end.Offset > 0 {
			from[p], left[p] = kgo.NewOffset().AtStart(), end.Offset
		}
	}
	// Markers are wanted: the last offset of a partition may be that of one.
	options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.KeepControlRecords()}
	if committed {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	cl, err := s.connect(options...)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", topic, err)
	}
	defer cl.Close()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read topic %s: partitions and offsets %v were not reached: %w", topic, left, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() && r.Offset < ends[topic][r.Partition].Offset {
				out[r.Partition] = append(out[r.Partition], entry{r.Offset, string(r.Key), string(r.Value)})
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	return out, nil
}

// tail counts the records of a topic as read_committed shows them, from its start until ctx ends.
func (s *system) tail(ctx context.Context, topic string, count *atomic.Int64) error {
	cl, err := s.connect(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		return fmt.Errorf("read topic %s: %w", topic, err)
	}
	go func() {
		defer cl.Close()
		for ctx.Err() == nil {
			count.Add(int64(cl.PollFetches(ctx).NumRecords()))
		}
	}()
	return nil
}
