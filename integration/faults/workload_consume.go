package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
)

// consumer makes a client that reads every partition from its start, without a group, and notes it in the history.
func (r *run) consumer(process int) (*kgo.Client, error) {
	assigned := map[string]map[int32]kgo.Offset{}
	for _, topic := range r.topics {
		assigned[topic] = map[int32]kgo.Offset{}
		for p := range int32(r.perTopic) {
			assigned[topic][p] = kgo.NewOffset().AtStart()
			r.history.Log(check.Op{F: check.Assign, Type: check.OK, Process: process, Key: check.Key(topic, p)})
		}
	}
	return kgo.NewClient(kgo.SeedBrokers(r.cluster.Seeds()...), kgo.ConsumePartitions(assigned), kgo.MetadataMinAge(100*time.Millisecond), kgo.FetchMaxWait(300*time.Millisecond),
		kgo.DialTimeout(3*time.Second), kgo.RequestTimeoutOverhead(5*time.Second),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return time.Duration(min(tries, 5)) * 50 * time.Millisecond }))
}

// noteFetches puts what a poll returned into the history.
func (r *run) noteFetches(f check.F, process int, fetches kgo.Fetches) {
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		if errors.As(err, &loss) {
			// The log ends before what was delivered: the checker says what is lost; this says what the client was told.
			r.fail("consumer %d was told of data loss in %s: %v", process, check.Key(topic, partition), err)
		}
	})
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) == 0 {
			return
		}
		r.history.Log(recordsOp(check.Op{F: f, Type: check.OK, Process: process, Key: check.Key(p.Topic, p.Partition)}, p.Records))
	})
}

// recordsOp puts records into a line.
func recordsOp(o check.Op, records []*kgo.Record) check.Op {
	o.Offset = records[0].Offset
	for i, rec := range records {
		o.Values = append(o.Values, valueOf(rec.Value))
		if rec.Offset != o.Offset+int64(i) {
			o.Offsets = []int64{} // a gap: each offset is written down
		}
	}
	if o.Offsets != nil {
		for _, rec := range records {
			o.Offsets = append(o.Offsets, rec.Offset)
		}
	}
	return o
}

// consume reads along until the end of the run.
func (r *run) consume() {
	process := r.newProcess()
	cl, err := r.consumer(process)
	if err != nil {
		r.fail("a consumer: %v", err)
		return
	}
	defer cl.Close()
	for r.reading.Err() == nil {
		r.noteFetches(check.Poll, process, cl.PollFetches(r.reading))
	}
}

// reread reads every partition from its start to the end that it has when all is healed and answered.
func (r *run) reread(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	process := r.newProcess()
	r.lastRead = map[string]int64{}
	ends, err := r.ends(ctx)
	if err != nil {
		r.fail("ask for the ends: %v", err)
		return
	}
	cl, err := r.consumer(process)
	if err != nil {
		r.fail("a consumer: %v", err)
		return
	}
	defer cl.Close()
	for key, end := range ends {
		if end == 0 {
			delete(ends, key)
		}
	}
	for len(ends) > 0 && ctx.Err() == nil {
		fetches := cl.PollFetches(ctx)
		r.noteFetches(check.Reread, process, fetches)
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			key := check.Key(p.Topic, p.Partition)
			if n := len(p.Records); n > 0 {
				r.lastRead[key] = p.Records[n-1].Offset + 1
				if p.Records[n-1].Offset+1 >= ends[key] {
					delete(ends, key)
				}
			}
		})
	}
	if len(ends) > 0 {
		r.fail("reading everything did not get to the ends %v in %s", ends, drainPatience)
	}
}
