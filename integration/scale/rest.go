package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

// Goals of issue 5 for many groups.
const (
	bytesPerGroup = 64 << 10
	restCores     = 0.05
	joinGoal      = time.Second
)

// measureGroups has a thousand groups of three rest on three brokers, each member with a connection of its own, and one
// member join a group of two hundred.
func (b *bench) measureGroups(ctx context.Context) (err error) {
	const size = 3
	c, err := b.open(ctx, "groups")
	if err != nil {
		return err
	}
	defer b.end(c, "groups", &err)
	if err := b.topic(ctx, c, 12, 3); err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	before, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	b.logf("before: %v", before)
	bare, err := b.coresUsed(ctx, c)
	if err != nil {
		return err
	}
	b.tell("CPU of each broker without any group", "%s", percents(bare))
	names := make([]string, b.groups)
	for i := range names {
		names[i] = fmt.Sprintf("rest-%05d", i)
	}
	began := time.Now()
	w, err := b.members(ctx, c, names, size)
	defer w.end()
	if err != nil {
		return err
	}
	b.tell(fmt.Sprintf("%d groups of %d formed after", b.groups, size), "%s", time.Since(began).Round(10*time.Millisecond))
	addrs, err := member.Coordinators(c.Nodes[0].Addr, names...)
	if err != nil {
		return err
	}
	of := make([]int, len(c.Nodes))
	for _, a := range addrs {
		if i := slices.IndexFunc(c.Nodes, func(n *cluster.Node) bool { return n.Addr == a }); i >= 0 {
			of[i]++
		}
	}
	after, err := lookAtAll(ctx, c)
	if err != nil {
		return err
	}
	b.logf("formed: %v", after)
	if after, err = b.settled(ctx, c, after); err != nil {
		return err
	}
	cores, err := b.coresUsed(ctx, c)
	if err != nil {
		return err
	}
	worst, shares := each(before, after, of)
	shape := fmt.Sprintf("%d groups of %d at rest, %v coordinated by each", b.groups, size, of)
	b.judge(shape+": resident memory per group on its coordinator, its members' connections included", worst <= bytesPerGroup, "≤ 64 KiB", "%s", shares)
	b.judge("CPU of each broker, heartbeats every 3 s", slices.Max(cores) <= restCores, "≤ 5 %", "%s", percents(cores))
	lost := 0
	for _, s := range w.look() {
		lost += s.lost
	}
	b.judge("members lost meanwhile", lost == 0, "none", "%d", lost)
	return b.joinTwoHundred(ctx, c)
}

// joinTwoHundred has one member after the other join a group of two hundred. A join ends when all have their assignment;
// it can't before the last of them has heard of it from its heartbeat.
func (b *bench) joinTwoHundred(ctx context.Context, c *cluster.Cluster) error {
	const size = 200
	if b.kills == 0 {
		return nil
	}
	w, err := b.members(ctx, c, []string{"large"}, size)
	defer w.end()
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	var took, whole []time.Duration
	for range b.kills {
		if err := pause(ctx, 4*time.Second); err != nil {
			return err
		}
		before := w.look()
		joined := time.Now()
		w.add(run, member.Config{Seeds: c.Seeds(), Group: "large", Topics: []string{"read"}, Partitions: 12})
		if _, err := w.settled(ctx, patience, map[string]int32{"large": before[0].generation}); err != nil {
			return err
		}
		var told, synced time.Time
		for i, s := range w.look() {
			if i < len(before) && s.told.After(told) {
				told = s.told
			}
			if s.synced.After(synced) {
				synced = s.synced
			}
		}
		took, whole = append(took, synced.Sub(told)), append(whole, synced.Sub(joined))
		b.logf("a join to %d members: %s after the last heartbeat, %s in all", len(before), took[len(took)-1].Round(time.Millisecond), whole[len(whole)-1].Round(time.Millisecond))
	}
	slices.Sort(took)
	slices.Sort(whole)
	worst := took[len(took)-1]
	b.judge(fmt.Sprintf("a member joins %d others, %d times: last heartbeat that tells of it to the last assignment, median and worst", size, b.kills), worst <= joinGoal, "≤ 1 s", "%s and %s",
		took[len(took)/2].Round(time.Millisecond), worst.Round(time.Millisecond))
	b.tell("and from the join, heartbeats every 3 s", "%s and %s", whole[len(whole)/2].Round(time.Millisecond), whole[len(whole)-1].Round(time.Millisecond))
	return nil
}

// coresUsed is the CPU of each broker over a while.
func (b *bench) coresUsed(ctx context.Context, c *cluster.Cluster) ([]float64, error) {
	const length = 15 * time.Second
	read := func() (all []time.Duration, err error) {
		for _, n := range c.Nodes {
			cpu, err := cpuOf(n)
			if err != nil {
				return nil, err
			}
			all = append(all, cpu)
		}
		return all, nil
	}
	from, err := read()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := pause(ctx, length); err != nil {
		return nil, err
	}
	to, err := read()
	if err != nil {
		return nil, err
	}
	var out []float64
	for i := range to {
		out = append(out, (to[i]-from[i]).Seconds()/time.Since(began).Seconds())
	}
	return out, nil
}

// percents tells shares of a core.
func percents(cores []float64) (out string) {
	for i, c := range cores {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%.1f %%", 100*c)
	}
	return out
}
