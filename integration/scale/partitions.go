package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/cluster"
)

// Goals of issue 4 for 10,000 partitions.
const (
	ledAgain        = 5 * time.Second
	bytesPerReplica = 60 << 10
)

// measurePartitions creates the partitions in one request, as one topic and as a hundred, kills a broker, and deletes them.
func (b *bench) measurePartitions(ctx context.Context) error {
	for _, topics := range []int{1, 100} {
		if b.topics != 0 && b.topics != topics {
			continue
		}
		shape := fmt.Sprintf("%d topics", topics)
		if topics == 1 {
			shape = "one topic"
		}
		if err := b.measureShape(ctx, shape, topics); err != nil {
			return fmt.Errorf("%s: %w", shape, err)
		}
	}
	return nil
}

func (b *bench) measureShape(ctx context.Context, shape string, topics int) (err error) {
	c, err := b.open(ctx, "partitions", "min.insync.replicas=2")
	if err != nil {
		return err
	}
	defer b.end(c, "partitions", &err)
	what := func(s string) string { return fmt.Sprintf("%d partitions, RF 3, %s: %s", b.partitions, shape, s) }
	if err := pause(ctx, 5*time.Second); err != nil { // the write-ahead logs grow in the background
		return err
	}
	base, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	b.logf("base: %v", base)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...), kgo.RequestTimeoutOverhead(patience))
	if err != nil {
		return err
	}
	defer cl.Close()
	var names []string
	for i := range topics {
		names = append(names, fmt.Sprintf("scale-%03d", i))
	}
	began := time.Now()
	if err := create(ctx, cl, names, b.partitions/topics, 3); err != nil {
		return err
	}
	b.tell(what("CreateTopics answered after"), "%s", time.Since(began).Round(time.Millisecond))
	if err := whole(ctx, c, names, b.partitions, 3); err != nil {
		return err
	}
	b.tell(what("all led and in sync, on every broker, after"), "%s", time.Since(began).Round(time.Millisecond))
	right, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	b.logf("right after: %v", right)
	idle, err := b.settled(ctx, c, right)
	if err != nil {
		return err
	}
	b.logf("idle: %v", idle)
	var worst, heap int64
	for i := range idle {
		worst = max(worst, (idle[i].rss-base[i].rss)/int64(b.partitions))
		heap = max(heap, (idle[i].heap-base[i].heap)/int64(b.partitions))
	}
	b.judge(what("resident memory per idle replica"), worst <= bytesPerReplica, "≤ 60 KiB", "%.1f KiB (heap %.1f)", float64(worst)/1024, float64(heap)/1024)
	g, s := most(idle, func(f footprint) int { return f.goroutines })-most(base, func(f footprint) int { return f.goroutines }), most(idle, func(f footprint) int { return f.sockets })-most(base, func(f footprint) int { return f.sockets })
	b.judge(what("goroutines and sockets more than before"), g < 100 && s < 50, "none per partition", "%d and %d", g, s)
	b.tell(what("open files of the data directory"), "%d (before: %d)", most(idle, func(f footprint) int { return f.files }), most(base, func(f footprint) int { return f.files }))

	victim := c.Nodes[1]
	if err := victim.Kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := whole(ctx, c, names, b.partitions, 2); err != nil {
		return err
	}
	led := time.Since(killed)
	b.judge(what("all led again after kill -9, on every live broker"), led <= ledAgain, "≤ 5 s", "%s", led.Round(time.Millisecond))
	if err := victim.Start(); err != nil {
		return err
	}
	started := time.Now()
	if err := whole(ctx, c, names, b.partitions, 3); err != nil {
		return err
	}
	b.tell(what("the killed broker is back in every ISR after"), "%s", time.Since(started).Round(time.Millisecond))

	began = time.Now()
	if err := remove(ctx, cl, names); err != nil {
		return err
	}
	b.tell(what("DeleteTopics answered after"), "%s", time.Since(began).Round(time.Millisecond))
	var after []footprint
	back := func(f, was footprint) bool {
		return f.goroutines <= was.goroutines+10 && f.descriptors <= was.descriptors+10
	}
	err = until(ctx, patience, time.Second, func(ctx context.Context) error {
		var err error
		if after, err = lookAtAll(ctx, c); err != nil {
			return err
		}
		for i := range after {
			if !back(after[i], base[i]) {
				return fmt.Errorf("node %d: %v, before %v", i+1, after[i], base[i])
			}
		}
		return nil
	})
	b.judge(what("goroutines and descriptors after the deletion"), err == nil, "as before", "%d and %d (before: %d and %d)",
		most(after, func(f footprint) int { return f.goroutines }), most(after, func(f footprint) int { return f.descriptors }),
		most(base, func(f footprint) int { return f.goroutines }), most(base, func(f footprint) int { return f.descriptors }))
	if after, err = b.settled(ctx, c, after); err != nil {
		return err
	}
	b.logf("after: %v", after)
	over := int64(0)
	for i := range after {
		over = max(over, after[i].heap-base[i].heap)
	}
	b.judge(what("heap after the deletion, more than before"), over < 8<<20, "≤ 8 MiB", "%.1f MiB (resident %d MiB, before %d)",
		float64(over)/(1<<20), most(after, func(f footprint) int64 { return f.rss })>>20, most(base, func(f footprint) int64 { return f.rss })>>20)
	return nil
}

// settled waits until the garbage of what was done last is collected and given back, as the runtime does within two
// minutes, or sooner where the resident memory stands still.
func (b *bench) settled(ctx context.Context, c *cluster.Cluster, last []footprint) ([]footprint, error) {
	for until := time.Now().Add(b.settle); time.Now().Before(until); {
		if err := pause(ctx, 5*time.Second); err != nil {
			return nil, err
		}
		now, err := lookAtAll(ctx, c)
		if err != nil {
			return nil, err
		}
		b.logf("settling: %v", now)
		last = now
	}
	return last, nil
}

// create makes topics by one request.
func create(ctx context.Context, cl *kgo.Client, names []string, partitions, factor int) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(patience / time.Millisecond)
	for _, name := range names {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(partitions), int16(factor)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("create the topics: %w", err)
	}
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return fmt.Errorf("create topic %s: error %d: %s", t.Topic, t.ErrorCode, deref(t.ErrorMessage))
		}
	}
	return nil
}

func remove(ctx context.Context, cl *kgo.Client, names []string) error {
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis = int32(patience / time.Millisecond)
	for _, name := range names {
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	req.TopicNames = names
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return fmt.Errorf("delete the topics: %w", err)
	}
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return fmt.Errorf("delete a topic: error %d: %s", t.ErrorCode, deref(t.ErrorMessage))
		}
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// whole waits until every broker that runs says that all partitions have a leader that runs and an ISR of that many, and
// until the leaders answer: metadata may know one that cannot serve yet.
func whole(ctx context.Context, c *cluster.Cluster, names []string, partitions, insync int) error {
	live := 0
	for _, n := range c.Nodes {
		if n.Running() {
			live++
		}
	}
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr), kgo.RequestRetries(0), kgo.RequestTimeoutOverhead(patience))
		if err != nil {
			return err
		}
		err = until(ctx, patience, 20*time.Millisecond, func(ctx context.Context) error {
			led, err := described(ctx, cl, names, partitions, insync)
			if err != nil {
				return err
			}
			for id, of := range led {
				if err := serves(ctx, cl, id, of); err != nil {
					return fmt.Errorf("broker %d: %w", id, err)
				}
			}
			return nil
		})
		cl.Close()
		if err != nil {
			return fmt.Errorf("node %d: %w", n.Index, err)
		}
	}
	return nil
}

// described asks for the metadata of topics and returns who leads what.
func described(ctx context.Context, cl *kgo.Client, names []string, partitions, insync int) (map[int32]map[string][]int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	answer, err := cl.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp := answer.(*kmsg.MetadataResponse)
	known := map[int32]bool{}
	for _, b := range resp.Brokers {
		known[b.NodeID] = true
	}
	led, found := map[int32]map[string][]int32{}, 0
	for _, t := range resp.Topics {
		if t.ErrorCode != 0 {
			return nil, fmt.Errorf("topic %s: error %d", deref(t.Topic), t.ErrorCode)
		}
		for _, p := range t.Partitions {
			if !known[p.Leader] || len(p.ISR) < insync {
				return nil, fmt.Errorf("%s-%d has leader %d and isr %v", *t.Topic, p.Partition, p.Leader, p.ISR)
			}
			if led[p.Leader] == nil {
				led[p.Leader] = map[string][]int32{}
			}
			led[p.Leader][*t.Topic] = append(led[p.Leader][*t.Topic], p.Partition)
			found++
		}
	}
	if found != partitions {
		return nil, fmt.Errorf("it knows %d of %d partitions", found, partitions)
	}
	return led, nil
}

// serves asks a broker for the ends of the partitions that it leads.
func serves(ctx context.Context, cl *kgo.Client, id int32, of map[string][]int32) error {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	for name, ids := range of {
		t := kmsg.NewListOffsetsRequestTopic()
		t.Topic = name
		for _, id := range ids {
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp = id, -1
			t.Partitions = append(t.Partitions, p)
		}
		req.Topics = append(req.Topics, t)
	}
	answer, err := cl.Broker(int(id)).RetriableRequest(ctx, req)
	if err != nil {
		return err
	}
	bad, example := 0, error(nil)
	for _, t := range answer.(*kmsg.ListOffsetsResponse).Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 {
				bad++
				example = fmt.Errorf("%s-%d: error %d", t.Topic, p.Partition, p.ErrorCode)
			}
		}
	}
	if bad > 0 {
		return errors.Join(fmt.Errorf("%d partitions are not served", bad), example)
	}
	return nil
}
