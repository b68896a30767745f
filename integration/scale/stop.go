package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
)

// stopGap is the goal of issue 4 for a planned stop.
const stopGap = 250 * time.Millisecond

// measureStops stops brokers in order, each in turn, under a load on all partitions.
func (b *bench) measureStops(ctx context.Context) (err error) {
	c, err := b.open(ctx, "stop", "min.insync.replicas=2")
	if err != nil {
		return err
	}
	defer b.end(c, "stop", &err)
	const partitions = 12
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := create(ctx, cl, []string{"stop"}, partitions, 3); err != nil {
		return err
	}
	if err := whole(ctx, c, []string{"stop"}, partitions, 3); err != nil {
		return err
	}
	var l load
	end, err := l.start(c.Seeds(), "stop", partitions, 5*time.Millisecond, 100, b.clientOptions()...)
	if err != nil {
		return err
	}
	defer end()
	if err := pause(ctx, 2*time.Second); err != nil {
		return err
	}
	quiet := l.gap(nil)
	var gaps, ends []time.Duration
	for i := range b.rounds {
		victim := c.Nodes[i%len(c.Nodes)]
		if err := whole(ctx, c, []string{"stop"}, partitions, 3); err != nil {
			return err
		}
		var led []int32
		err := until(ctx, patience, 100*time.Millisecond, func(ctx context.Context) (err error) {
			led, err = ledBy(ctx, cl, c, victim, "stop", partitions)
			return err
		})
		if err != nil {
			return err
		}
		l.forgetGaps()
		began := time.Now()
		if err := victim.Stop(); err != nil {
			return err
		}
		took := time.Since(began)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		gap := l.gap(led)
		b.logf("stop of node %d, which led %d partitions: gap %s (others %s), ended after %s", victim.Index, len(led), gap.Round(time.Millisecond), l.gap(nil).Round(time.Millisecond), took.Round(time.Millisecond))
		gaps, ends = append(gaps, gap), append(ends, took)
		if err := victim.Start(); err != nil {
			return err
		}
		if err := victim.Serves(ctx, 3); err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
	slices.Sort(gaps)
	slices.Sort(ends)
	b.judge(fmt.Sprintf("planned stop, %d times: gap between acknowledgements, median and worst", b.rounds), gaps[len(gaps)-1] <= stopGap, "≤ 250 ms", "%s and %s (undisturbed: %s)",
		gaps[len(gaps)/2].Round(time.Millisecond), gaps[len(gaps)-1].Round(time.Millisecond), quiet.Round(time.Millisecond))
	b.judge("planned stop: errors at the client", len(l.failed()) == 0, "none", "%d", len(l.failed()))
	b.tell("planned stop: SIGTERM to the end of the process, median and worst", "%s and %s", ends[len(ends)/2].Round(time.Millisecond), ends[len(ends)-1].Round(time.Millisecond))
	return nil
}

// ledBy returns the partitions of a topic that a node leads; an error while it leads none.
func ledBy(ctx context.Context, cl *kgo.Client, c *cluster.Cluster, n *cluster.Node, topic string, partitions int) ([]int32, error) {
	led, err := described(ctx, cl, []string{topic}, partitions, 1)
	if err != nil {
		return nil, err
	}
	for id, of := range led {
		at, err := idOf(ctx, n)
		if err != nil {
			return nil, err
		}
		if id == at {
			return of[topic], nil
		}
	}
	return nil, fmt.Errorf("node %d leads nothing", n.Index)
}

// idOf asks a node for its broker id.
func idOf(ctx context.Context, n *cluster.Node) (int32, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(n.Addr))
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	brokers, err := brokersOf(ctx, cl)
	if err != nil {
		return 0, err
	}
	for id, at := range brokers {
		if at == n.Addr {
			return id, nil
		}
	}
	return 0, fmt.Errorf("node %d is not among the brokers", n.Index)
}
