package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/integration/cluster"
)

// measureMove adds a fourth broker while paced producers write, and waits until it has its share.
func (b *bench) measureMove(ctx context.Context) (err error) {
	c, err := b.open(ctx, "move", "min.insync.replicas=2")
	if err != nil {
		return err
	}
	defer b.end(c, "move", &err)
	const partitions = 24
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	topics := []string{"paced", "ballast"}
	if err := create(ctx, cl, topics, partitions, 3); err != nil {
		return err
	}
	if err := whole(ctx, c, topics, 2*partitions, 3); err != nil {
		return err
	}
	if err := fill(ctx, c.Seeds(), "ballast", partitions, b.ballastMiB<<20); err != nil {
		return err
	}
	b.logf("%d MiB written", b.ballastMiB)
	var l load
	// 1,000 records of 1 KiB a second.
	end, err := l.start(c.Seeds(), "paced", partitions, partitions*time.Millisecond, 1<<10)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended {
			end()
		}
	}()
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	from := time.Now()
	if err := pause(ctx, b.length); err != nil {
		return err
	}
	n, median, p99, worst := l.latency(from, time.Now())
	b.tell("paced producers before: median, p99, worst of acknowledgements", "%s, %s, %s of %d", round(median), round(p99), round(worst), n)
	fourth, err := c.Grow()
	if err != nil {
		return err
	}
	joins := time.Now()
	if err := fourth.Start(); err != nil {
		return err
	}
	if err := fourth.Serves(ctx, 4); err != nil {
		return err
	}
	b.logf("the fourth broker serves")
	var began time.Time
	told := time.Now()
	err = until(ctx, 3*patience, 100*time.Millisecond, func(ctx context.Context) error {
		s, err := rebalance(ctx, c)
		if err != nil {
			return err
		}
		if s.Running && began.IsZero() {
			began = time.Now()
			b.logf("moves begin: %d", len(s.Moves))
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			b.logf("%s", s)
		}
		if began.IsZero() || s.Running {
			return fmt.Errorf("the balancer has not finished: %s", s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	finished := time.Now()
	_, m1, q1, w1 := l.latency(joins, began)
	b.tell("while the fourth starts and settles", "%s, %s, %s", round(m1), round(q1), round(w1))
	n, m, q, w := l.latency(began, finished)
	b.judge("producers' p99 while replicas move", q <= 3*p99, fmt.Sprintf("≤ 3 × %s", round(p99)), "%s, %s, %s of %d in %s", round(m), round(q), round(w), n, finished.Sub(began).Round(100*time.Millisecond))
	if err := pause(ctx, b.length/2); err != nil {
		return err
	}
	_, m, q, w = l.latency(finished, time.Now())
	b.tell("and after", "%s, %s, %s", round(m), round(q), round(w))
	replicas, leaders, err := spread(ctx, cl, topics)
	if err != nil {
		return err
	}
	even, ok := float64(2*partitions*3)/4, len(replicas) == 4
	for _, n := range replicas {
		ok = ok && float64(n) >= even*0.9 && float64(n) <= even*1.1
	}
	b.judge("replicas per broker afterwards", ok, fmt.Sprintf("%.0f ± 10 %%", even), "%v, leaders %v", replicas, leaders)
	end()
	ended = true
	err = l.verify(ctx, c.Seeds())
	total := int64(0)
	for _, n := range l.sent {
		total += n
	}
	b.judge("acknowledged records read back, once and in order", err == nil, "all", "%d, %v", total, err)
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// brokersOf returns the addresses that a broker tells of all.
func brokersOf(ctx context.Context, cl *kgo.Client) (map[int32]string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	out := map[int32]string{}
	for _, b := range resp.Brokers {
		out[b.NodeID] = fmt.Sprintf("%s:%d", b.Host, b.Port)
	}
	return out, nil
}

// spread counts replicas and leaders per broker.
func spread(ctx context.Context, cl *kgo.Client, topics []string) (replicas, leaders map[int32]int, err error) {
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, nil, err
	}
	replicas, leaders = map[int32]int{}, map[int32]int{}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			leaders[p.Leader]++
			for _, id := range p.Replicas {
				replicas[id]++
			}
		}
	}
	return replicas, leaders, nil
}

// rebalanceStatus is what the admin API says of the balancer.
type rebalanceStatus struct {
	Running bool `json:"running"`
	Moves   []struct {
		State string `json:"state"`
	} `json:"moves"`
}

func (s rebalanceStatus) String() string {
	states := map[string]int{}
	for _, m := range s.Moves {
		states[m.State]++
	}
	return fmt.Sprintf("moves %v, running %t", states, s.Running)
}

func rebalance(ctx context.Context, c *cluster.Cluster) (s rebalanceStatus, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Nodes[0].HTTP+"/v1/rebalance", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("the admin API answers %s", resp.Status)
	}
	return s, json.NewDecoder(resp.Body).Decode(&s)
}
