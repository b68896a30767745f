package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// load is a paced producer of all partitions of a topic: idempotent, acks=all. It keeps how long each acknowledgement
// took, when it came, and what was acknowledged.
type load struct {
	topic string
	mu    sync.Mutex
	acks  []ack
	last  map[int32]time.Time
	gaps  map[int32]time.Duration
	sent  map[int32]int64 // records acknowledged, by partition; their values are 0, 1, …
	errs  []error
}

// ack is one acknowledgement.
type ack struct {
	at   time.Time
	took time.Duration
}

// start begins to send to every partition once in each interval. End waits for the last acknowledgements.
func (l *load) start(seeds []string, topic string, partitions int, interval time.Duration, bytes int, opts ...kgo.Opt) (end func(), err error) {
	opts = append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100 * time.Millisecond), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(1 << 20),
	}, opts...)
	cl, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	l.topic, l.last, l.gaps, l.sent = topic, map[int32]time.Time{}, map[int32]time.Duration{}, map[int32]int64{}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Spread over the interval, as many clients would be.
		tick := time.NewTicker(max(interval/time.Duration(partitions), 500*time.Microsecond))
		defer tick.Stop()
		begin, sent := time.Now(), 0
		next := make([]uint64, partitions)
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			due := int(time.Since(begin) * time.Duration(partitions) / interval)
			for ; sent < due; sent++ {
				p := sent % partitions
				value := make([]byte, bytes)
				binary.BigEndian.PutUint64(value, next[p])
				next[p]++
				at := time.Now()
				cl.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: int32(p), Value: value}, func(r *kgo.Record, err error) { l.acked(r, at, err) })
			}
		}
	}()
	return func() {
		stop()
		<-done
		flush, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = cl.Flush(flush)
		cl.Close()
	}, nil
}

func (l *load) acked(r *kgo.Record, sent time.Time, err error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	l.acks = append(l.acks, ack{now, now.Sub(sent)})
	if last, ok := l.last[r.Partition]; ok {
		l.gaps[r.Partition] = max(l.gaps[r.Partition], now.Sub(last))
	}
	l.last[r.Partition] = now
	l.sent[r.Partition]++
}

// forgetGaps begins to look for the longest gap anew.
func (l *load) forgetGaps() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.gaps)
}

// gap returns the longest time without an acknowledgement of some partitions; nil: of all.
func (l *load) gap(of []int32) (out time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, d := range l.gaps {
		if of == nil || slices.Contains(of, p) {
			out = max(out, d)
		}
	}
	return out
}

// latency returns the median and the 99th percentile of the acknowledgements that came in [from, to).
func (l *load) latency(from, to time.Time) (n int, median, p99, worst time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took []time.Duration
	for _, a := range l.acks {
		if !a.at.Before(from) && a.at.Before(to) {
			took = append(took, a.took)
		}
	}
	if len(took) == 0 {
		return 0, 0, 0, 0
	}
	slices.Sort(took)
	return len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
}

// failed returns the errors that the client saw.
func (l *load) failed() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.errs)
}

// verify reads everything back: every acknowledged record once, in order.
func (l *load) verify(ctx context.Context, seeds []string) error {
	if errs := l.failed(); len(errs) > 0 {
		return fmt.Errorf("%d records were refused, such as: %w", len(errs), errs[0])
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	var want, got int64
	for _, n := range l.sent {
		want += n
	}
	next := map[int32]uint64{}
	var wrong error
	for got < want && wrong == nil {
		fetches := cl.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %d of %d records: %w", got, want, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if v := binary.BigEndian.Uint64(r.Value); v != next[r.Partition] && wrong == nil {
				wrong = fmt.Errorf("partition %d offset %d: record %d, expected %d", r.Partition, r.Offset, v, next[r.Partition])
			}
			next[r.Partition]++
			got++
		})
	}
	return wrong
}

// fill writes data that a move has to copy, to every partition in turn.
func fill(ctx context.Context, seeds []string, topic string, partitions, total int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	const size = 16 << 10
	var failed error
	var mu sync.Mutex
	for i := range total / size {
		cl.Produce(ctx, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: make([]byte, size)}, func(_ *kgo.Record, err error) {
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
	}
	err = cl.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(err, failed)
}
