package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/cluster"
	"github.com/millrace/millrace/integration/member"
)

// probe commits one offset after the other to groups of its own, whose coordinators stay, and keeps how long each took.
type probe struct {
	groups []string
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	took    []time.Duration
	refused int
}

func newProbe() *probe { return &probe{} }

// start begins to commit to so many groups, each once in an interval. None has the node for a coordinator that is going to
// be away.
func (p *probe) start(ctx context.Context, c *cluster.Cluster, away *cluster.Node, groups int, interval time.Duration) error {
	ctx, p.stop = context.WithCancel(ctx)
	for i := 0; len(p.groups) < groups && i < 100*groups; i++ {
		name := fmt.Sprintf("probe-%d", i)
		addr, err := member.Coordinator(c.Nodes[0].Addr, name)
		if err != nil {
			return err
		}
		if addr == away.Addr {
			continue
		}
		conn, err := member.Dial(addr, "probe")
		if err != nil {
			return err
		}
		n := len(p.groups)
		p.groups = append(p.groups, name)
		p.work.Go(func() {
			defer conn.Close()
			// Spread over the interval.
			next := time.Now().Add(interval * time.Duration(n))
			step := interval * time.Duration(groups)
			for offset := int64(0); pause(ctx, time.Until(next)) == nil; offset++ {
				began := time.Now()
				code, err := member.CommitAll(conn, name, "read", 1, offset)
				p.note(time.Since(began), code, err)
				if err != nil {
					return
				}
				if next = next.Add(step / 5); next.Before(time.Now()) {
					next = time.Now()
				}
			}
		})
	}
	return nil
}

func (p *probe) note(took time.Duration, code int16, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || code != 0 {
		p.refused++
		return
	}
	p.took = append(p.took, took)
}

func (p *probe) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took, p.refused = nil, 0
}

func (p *probe) look() (n int, median, p99, worst time.Duration, refused int) {
	p.mu.Lock()
	took := slices.Clone(p.took)
	refused = p.refused
	p.mu.Unlock()
	if len(took) == 0 {
		return 0, 0, 0, 0, refused
	}
	slices.Sort(took)
	return len(took), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], refused
}

func (p *probe) end() {
	p.stop()
	p.work.Wait()
}

// snapshots are when each broker took its newest snapshot of the metadata; zero without one.
func snapshots(ctx context.Context, c *cluster.Cluster) (all []time.Time, err error) {
	for _, n := range c.Nodes {
		if !n.Running() {
			all = append(all, time.Time{})
			continue
		}
		page, err := n.Get(ctx, "/metrics")
		if err != nil {
			return nil, err
		}
		at := time.Time{}
		if age, err := series(page, "millrace_raft_snapshot_age_seconds"); err == nil {
			at = time.Now().Add(-time.Duration(age * float64(time.Second)))
		}
		all = append(all, at)
	}
	return all, nil
}

// follower returns a node that is not the controller: its end is no election.
func follower(ctx context.Context, c *cluster.Cluster) (*cluster.Node, error) {
	var out *cluster.Node
	leaders := 0
	for _, n := range c.Nodes {
		page, err := n.Get(ctx, "/metrics")
		if err != nil {
			return nil, err
		}
		leads, err := series(page, `millrace_raft_state{state="leader"}`)
		if err != nil {
			return nil, err
		}
		if leads == 0 {
			out = n
		} else {
			leaders++
		}
	}
	if out == nil || leaders != 1 {
		return nil, fmt.Errorf("%d of %d brokers are the controller", leaders, len(c.Nodes))
	}
	return out, nil
}
