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
	// One client lives through all stops, and one is made anew for each. A franz-go client notices that a connection is dead
	// when it next writes to it, and then pauses for a quarter of a second: the first one meets that whenever a partition
	// moves to a broker which was restarted before.
	var old load
	end, err := old.start(c.Seeds(), "stop", partitions, 5*time.Millisecond, 100, b.clientOptions()...)
	if err != nil {
		return err
	}
	defer end()
	var gaps, oldGaps, ends []time.Duration
	var quiet time.Duration
	failed := 0
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
		var l load
		endNew, err := l.start(c.Seeds(), "stop", partitions, 5*time.Millisecond, 100, b.clientOptions()...)
		if err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		quiet = max(quiet, l.gap(nil))
		l.forgetGaps()
		old.forgetGaps()
		began := time.Now()
		if err := victim.Stop(); err != nil {
			return err
		}
		took := time.Since(began)
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
		gap := l.gap(led)
		b.logf("stop of node %d, which led %d partitions: gap %s (all partitions %s, old client %s), ended after %s", victim.Index, len(led), ms(gap), ms(l.gap(nil)), ms(old.gap(led)), ms(took))
		gaps, oldGaps, ends = append(gaps, gap), append(oldGaps, old.gap(led)), append(ends, took)
		endNew()
		failed += len(l.failed())
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
	for _, list := range [][]time.Duration{gaps, oldGaps, ends} {
		slices.Sort(list)
	}
	last := len(gaps) - 1
	b.judge(fmt.Sprintf("planned stop, %d times: gap between acknowledgements, median and worst", b.rounds), gaps[last] <= stopGap, "≤ 250 ms", "%s and %s (undisturbed: %s)", ms(gaps[last/2]), ms(gaps[last]), ms(quiet))
	b.tell("planned stop: the same for a client that holds dead connections of earlier stops", "%s and %s", ms(oldGaps[last/2]), ms(oldGaps[last]))
	failed += len(old.failed())
	b.judge("planned stop: errors at the client", failed == 0, "none", "%d", failed)
	b.tell("planned stop: SIGTERM to the end of the process, median and worst", "%s and %s", ms(ends[last/2]), ms(ends[last]))
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

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
