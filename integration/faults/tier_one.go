package main

import (
	"context"
	"fmt"
	"time"
)

// tierOne is what every merge must survive, in less than four minutes: each fault once or twice, in order.
var tierOne = []*scenario{
	{name: "T1", what: "kill, SIGSTOP and cut off a leader, rolling restart", links: true, once: true, groups: smokeGroups, round: roundSmoke},
}

// smokeGroups have members that mostly stay, and are not missed for long when they die: the tier has a minute or so.
var smokeGroups = []groupSpec{
	{name: "billing", members: 3, static: 1, least: 12 * time.Second, most: 40 * time.Second, session: 6 * time.Second},
	{name: "audit", consumer: true, members: 3, static: 1, least: 12 * time.Second, most: 40 * time.Second, session: 6 * time.Second},
}

// roundSmoke is the whole tier in one go.
func roundSmoke(ctx context.Context, r *run) error {
	steps := []func(context.Context, *run) error{smokeKill, smokeKill, smokePause, smokePartition, smokeRolling}
	for _, step := range steps {
		if err := step(ctx, r); err != nil {
			return err
		}
		r.awaitHealth(ctx, "after a fault")
	}
	return nil
}

func smokeKill(ctx context.Context, r *run) error {
	n := r.someLeader()
	return r.fault(ctx, n.Index, fmt.Sprintf("kill -9 of a leader, node %d", n.Index), n.Kill, 4*time.Second, n.Start)
}

func smokePause(ctx context.Context, r *run) error {
	n := r.someLeader()
	return r.fault(ctx, n.Index, fmt.Sprintf("SIGSTOP of a leader, node %d, for 8 s", n.Index), n.Pause, 8*time.Second, n.Resume)
}

func smokePartition(ctx context.Context, r *run) error {
	n, c := r.someLeader(), r.cluster
	if !c.HasLinks() {
		r.remark("left out: partitions take root and network namespaces")
		return nil
	}
	return r.fault(ctx, n.Index, fmt.Sprintf("a leader, node %d, cut off for 12 s", n.Index), func() error { return c.Isolate(n) }, 12*time.Second, c.Heal)
}

func smokeRolling(ctx context.Context, r *run) error {
	for _, n := range r.cluster.Nodes {
		if err := r.fault(ctx, n.Index, fmt.Sprintf("planned restart of node %d", n.Index), n.Stop, 500*time.Millisecond, n.Start); err != nil {
			return err
		}
		r.awaitHealth(ctx, "after a planned restart")
	}
	return nil
}
