package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

// Goals of issue 5 for a coordinator that dies or stops.
const (
	regroupGoal = 5 * time.Second
	stopLength  = 8 * time.Second
)

// measureCoordinator kills the coordinator of a group of twenty, in both settings of millrace.group.failover, and stops
// each broker for eight seconds. Timeouts, intervals and gossip are the defaults.
func (b *bench) measureCoordinator(ctx context.Context) error {
	for _, mode := range []string{"rebalance", "resume"} {
		if err := b.coordinatorKilled(ctx, mode); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
	}
	return b.brokersStopped(ctx)
}

// members starts members of groups and waits until all are in.
func (b *bench) members(ctx context.Context, c *cluster.Cluster, groups []string, size int) (*watched, error) {
	w := newWatched()
	run, stop := context.WithCancel(ctx)
	w.stop = stop
	for _, g := range groups {
		for range size {
			w.add(run, member.Config{Seeds: c.Seeds(), Group: g, Topics: []string{"read"}, Partitions: 12})
		}
		if err := pause(ctx, time.Millisecond); err != nil { // not thousands of connections in one moment
			return w, err
		}
	}
	_, err := w.settled(ctx, 2*patience, nil)
	return w, err
}

// topic makes the topic that members subscribe.
func (b *bench) topic(ctx context.Context, c *cluster.Cluster, partitions, factor int) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Seeds()...))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := create(ctx, cl, []string{"read"}, partitions, factor); err != nil {
		return err
	}
	return whole(ctx, c, []string{"read"}, partitions, factor)
}

// coordinates returns the node that coordinates a group, as a node that runs tells.
func coordinates(c *cluster.Cluster, group string) (*cluster.Node, error) {
	for _, n := range c.Nodes {
		if !n.Running() {
			continue
		}
		addr, err := member.Coordinator(n.Addr, group)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == addr }); i >= 0 {
			return c.Nodes[i], nil
		}
		return nil, fmt.Errorf("the coordinator of %s at %s is none of ours", group, addr)
	}
	return nil, fmt.Errorf("no broker runs")
}

func (b *bench) coordinatorKilled(ctx context.Context, mode string) (err error) {
	const size = 20
	name := "coordinator-" + mode
	c, err := b.open(ctx, name, "millrace.group.failover="+mode)
	if err != nil {
		return err
	}
	defer b.end(c, name, &err)
	if err := b.topic(ctx, c, 12, 3); err != nil {
		return err
	}
	w, err := b.members(ctx, c, []string{"twenty"}, size)
	defer w.end()
	if err != nil {
		return err
	}
	var times, gaps []time.Duration
	lost, changed := 0, 0
	for range b.kills {
		before := w.look()
		victim, err := coordinates(c, "twenty")
		if err != nil {
			return err
		}
		// Somewhere in the members' heartbeat intervals.
		if err := pause(ctx, 3*time.Second); err != nil {
			return err
		}
		w.forget()
		if err := victim.Kill(); err != nil {
			return err
		}
		killed := time.Now()
		if mode == "rebalance" {
			if _, err := w.settled(ctx, patience, map[string]int32{"twenty": before[0].generation}); err != nil {
				return err
			}
			took := time.Duration(0)
			for _, s := range w.look() {
				took = max(took, s.synced.Sub(killed))
			}
			times = append(times, took)
			b.logf("all in the new generation after %s", took.Round(time.Millisecond))
		} else if err := pause(ctx, 10*time.Second); err != nil {
			return err
		}
		for i, s := range w.look() {
			gap := max(s.gap, 0)
			if mode == "resume" {
				gap = max(gap, time.Since(s.beat))
				if s.beats == 0 {
					gap = time.Since(killed)
				}
			}
			gaps = append(gaps, gap)
			if lost += s.lost; s.id != before[i].id {
				lost++
			}
			want := before[i].generation
			if mode == "rebalance" {
				want++
			}
			if s.generation != want {
				changed++
			}
		}
		if err := victim.Start(); err != nil {
			return err
		}
		if err := victim.Serves(ctx, 3); err != nil {
			return err
		}
		if err := pause(ctx, 4*time.Second); err != nil { // it takes its groups back, which changes no generation
			return err
		}
	}
	slices.Sort(gaps)
	if mode == "rebalance" {
		slices.Sort(times)
		worst := times[len(times)-1]
		b.judge(fmt.Sprintf("coordinator killed %d times: all %d members in the new generation, median and worst", b.kills, size), worst <= regroupGoal, "≤ 5 s", "%s and %s",
			times[len(times)/2].Round(10*time.Millisecond), worst.Round(10*time.Millisecond))
		b.judge("members that lost their id, or were in more than one new generation", lost == 0 && changed == 0, "none", "%d and %d", lost, changed)
		return nil
	}
	worst := gaps[len(gaps)-1]
	b.judge(fmt.Sprintf("resume, coordinator killed %d times: members that lost their id or whose generation changed", b.kills), lost == 0 && changed == 0, "none", "%d and %d", lost, changed)
	b.judge("resume: longest time between two accepted heartbeats of a member (interval 3 s, session 45 s)", worst < 45*time.Second, "< 45 s", "%s", worst.Round(10*time.Millisecond))
	return nil
}

// brokersStopped stops each broker in turn, as a machine is that swaps or a virtual one that moves, with groups on all of
// them.
func (b *bench) brokersStopped(ctx context.Context) (err error) {
	const groups, size = 6, 4
	c, err := b.open(ctx, "stopped")
	if err != nil {
		return err
	}
	defer b.end(c, "stopped", &err)
	if err := b.topic(ctx, c, 12, 3); err != nil {
		return err
	}
	var names []string
	for i := range groups {
		names = append(names, fmt.Sprintf("stopped-%d", i))
	}
	w, err := b.members(ctx, c, names, size)
	defer w.end()
	if err != nil {
		return err
	}
	evicted, elsewhere := 0, 0
	for _, victim := range c.Nodes {
		if err := pause(ctx, 3*time.Second); err != nil {
			return err
		}
		led := map[string]bool{}
		for _, g := range names {
			n, err := coordinates(c, g)
			if err != nil {
				return err
			}
			led[g] = n == victim
		}
		w.forget()
		before := w.look()
		if err := victim.Pause(); err != nil {
			return err
		}
		if err := pause(ctx, stopLength); err != nil {
			return err
		}
		if err := victim.Resume(); err != nil {
			return err
		}
		if err := pause(ctx, 8*time.Second); err != nil {
			return err
		}
		if _, err := w.settled(ctx, patience, nil); err != nil {
			return fmt.Errorf("after the stop of node %d: %w", victim.Index, err)
		}
		moved := 0
		for i, s := range w.look() {
			if s.id != before[i].id || s.lost > 0 {
				evicted++
			}
			if s.generation != before[i].generation {
				if moved++; !led[s.group] {
					elsewhere++
				}
			}
		}
		b.logf("node %d stopped for 8 s: %d members changed their generation, of %d", victim.Index, moved, len(before))
	}
	b.judge("each broker stopped (SIGSTOP) for 8 s in turn: members evicted, of 24 in 6 groups", evicted == 0, "none", "%d", evicted)
	b.judge("generations that changed of members whose coordinator was not the stopped broker", elsewhere == 0, "none", "%d", elsewhere)
	return nil
}
