package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/check"
)

// consumer makes a client that reads every partition of some topics from its start, without a group, and notes it in the
// history.
func (r *run) consumer(process int, level kgo.IsolationLevel, control bool, of ...string) (*kgo.Client, error) {
	assigned := map[string]map[int32]kgo.Offset{}
	for _, topic := range of {
		assigned[topic] = map[int32]kgo.Offset{}
		for p := range int32(r.perTopic) {
			assigned[topic][p] = kgo.NewOffset().AtStart()
			r.history.Log(check.Op{F: check.Assign, Type: check.OK, Process: process, Key: check.Key(topic, p)})
		}
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(r.cluster.Seeds()...), kgo.ConsumePartitions(assigned), kgo.FetchIsolationLevel(level), kgo.MetadataMinAge(100 * time.Millisecond), kgo.FetchMaxWait(300 * time.Millisecond),
		kgo.DialTimeout(3 * time.Second), kgo.RequestTimeoutOverhead(r.requestPatience()),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return time.Duration(min(tries, 5)) * 50 * time.Millisecond }),
	}
	if control {
		opts = append(opts, kgo.KeepControlRecords())
	}
	return kgo.NewClient(opts...)
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
		records := slices.DeleteFunc(slices.Clone(p.Records), func(rec *kgo.Record) bool { return rec.Attrs.IsControl() })
		if len(records) > 0 {
			r.history.Log(recordsOp(check.Op{F: f, Type: check.OK, Process: process, Key: check.Key(p.Topic, p.Partition)}, records))
		}
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
func (r *run) consume() { r.consumeAt(check.Poll) }

func (r *run) consumeAt(f check.F) {
	process := r.newProcess()
	cl, err := r.consumer(process, levelOf(f), false, r.topics...)
	if err != nil {
		r.fail("a consumer: %v", err)
		return
	}
	defer cl.Close()
	for r.reading.Err() == nil {
		r.noteFetches(f, process, cl.PollFetches(r.reading))
	}
}

// levelOf is the isolation level of a reading.
func levelOf(f check.F) kgo.IsolationLevel {
	if f == check.PollCommitted || f == check.RereadCommitted {
		return kgo.ReadCommitted()
	}
	return kgo.ReadUncommitted()
}

// reread reads every partition of some topics from its start to the end that it has when all is healed and answered, and
// with transactions once more, as committed records.
func (r *run) reread(ctx context.Context, of ...string) {
	ctx, cancel := context.WithTimeout(ctx, r.drainPatience())
	defer cancel()
	r.rereadAt(ctx, check.Reread, r.lastRead, of)
	if r.transactions {
		r.rereadAt(ctx, check.RereadCommitted, r.lastCommitted, of)
	}
}

// rereadAt reads until the client has got to the end of every partition, and notes in last how far there are records: the
// last offsets may hold the ends of transactions alone, which it has the client return too.
func (r *run) rereadAt(ctx context.Context, f check.F, last map[string]int64, of []string) {
	process := r.newProcess()
	ends, err := r.ends(ctx)
	if err != nil {
		r.fail("ask for the ends: %v", err)
		return
	}
	maps.DeleteFunc(ends, func(key string, end int64) bool {
		return end == 0 || !slices.ContainsFunc(of, func(topic string) bool { return strings.HasPrefix(key, topic+"/") })
	})
	cl, err := r.consumer(process, levelOf(f), true, of...)
	if err != nil {
		r.fail("a consumer: %v", err)
		return
	}
	defer cl.Close()
	for len(ends) > 0 && ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, idlePoll)
		fetches := cl.PollFetches(poll)
		cancel()
		r.noteFetches(f, process, fetches)
		fetches.EachRecord(func(rec *kgo.Record) {
			key := check.Key(rec.Topic, rec.Partition)
			if !rec.Attrs.IsControl() {
				last[key] = rec.Offset + 1
			}
			if rec.Offset+1 >= ends[key] {
				delete(ends, key)
			}
		})
	}
	if len(ends) > 0 {
		r.fail("reading everything (%s) did not get to the ends %v in %s: got to %v", f, ends, r.drainPatience(), last)
	}
}
