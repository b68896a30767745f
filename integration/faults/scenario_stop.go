package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/integration/cluster"
)

// stopBound is how long a broker may take to end when it is told to: the half minute that requests under way have, and what
// closing takes. It gives itself up before.
const stopBound = 50 * time.Second

// stopping is a broker that was told to stop.
type stopping struct {
	node *cluster.Node
	done chan error
}

// tellStop tells a broker to stop and does not wait for its end.
func (r *run) tellStop(n *cluster.Node) *stopping {
	s := &stopping{node: n, done: make(chan error, 1)}
	began := time.Now()
	go func() {
		err := n.Stop()
		if took := time.Since(began); err == nil && took > stopBound {
			err = fmt.Errorf("node %d took %s to stop", n.Index, took.Round(time.Millisecond))
		}
		s.done <- err
	}()
	return s
}

// stopped waits for brokers that were told to stop. One that does not leaves the stacks of its goroutines.
func (r *run) stopped(all ...*stopping) {
	for _, s := range all {
		if err := <-s.done; err != nil {
			r.fail("%v", err)
		}
	}
}

// stopCase is a state in which a broker is told to stop.
type stopCase struct {
	what  string
	links bool
	// play brings the state about, tells n to stop, sees it end, and undoes what it did but for brokers that do not run.
	play func(ctx context.Context, r *run, n, other, third *cluster.Node) error
}

var stopCases = []stopCase{
	{what: "while groups and transactions work", play: func(_ context.Context, r *run, n, _, _ *cluster.Node) error {
		r.stopped(r.tellStop(n))
		return nil
	}},
	{what: "while another one is paused", play: func(_ context.Context, r *run, n, other, _ *cluster.Node) error {
		if err := other.Pause(); err != nil {
			return err
		}
		r.stopped(r.tellStop(n))
		return other.Resume()
	}},
	{what: "while a coordinator is paused, and gossip has missed it", play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		if c := r.coordinator(); c != n {
			other = c
		}
		if err := other.Pause(); err != nil {
			return err
		}
		r.settled(ctx, 8*time.Second)
		r.stopped(r.tellStop(n))
		return other.Resume()
	}},
	{what: "while the two others are paused: no quorum", play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		if err := errors.Join(other.Pause(), third.Pause()); err != nil {
			return err
		}
		r.settled(ctx, 3*time.Second)
		r.stopped(r.tellStop(n))
		return errors.Join(other.Resume(), third.Resume())
	}},
	{what: "when the two others are dead: no quorum", play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		if err := errors.Join(other.Kill(), third.Kill()); err != nil {
			return err
		}
		r.settled(ctx, 3*time.Second)
		r.stopped(r.tellStop(n))
		return nil
	}},
	{what: "all at once", play: func(_ context.Context, r *run, n, other, third *cluster.Node) error {
		r.stopped(r.tellStop(n), r.tellStop(other), r.tellStop(third))
		return nil
	}},
	{what: "two, the second while the first hands over", play: func(ctx context.Context, r *run, n, other, _ *cluster.Node) error {
		first := r.tellStop(n)
		r.settled(ctx, 30*time.Millisecond)
		r.stopped(first, r.tellStop(other))
		return nil
	}},
	{what: "when it was paused, and is told before it goes on", play: func(ctx context.Context, r *run, n, _, _ *cluster.Node) error {
		if err := n.Pause(); err != nil {
			return err
		}
		r.settled(ctx, 12*time.Second)
		s := r.tellStop(n)
		r.settled(ctx, 200*time.Millisecond)
		if err := n.Resume(); err != nil {
			return err
		}
		r.stopped(s)
		return nil
	}},
	{what: "as soon as it was started, three times", play: func(ctx context.Context, r *run, n, _, _ *cluster.Node) error {
		if err := n.Kill(); err != nil {
			return err
		}
		for range 3 {
			if err := n.Start(); err != nil {
				return err
			}
			r.settled(ctx, r.between(50*time.Millisecond, 1500*time.Millisecond))
			r.stopped(r.tellStop(n))
		}
		return nil
	}},
	{what: "while it catches up from a snapshot of one that is paused in the middle", play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		if err := n.Kill(); err != nil {
			return err
		}
		r.settled(ctx, 8*time.Second) // what it lacks is in a snapshot only
		if err := n.Start(); err != nil {
			return err
		}
		r.settled(ctx, r.between(100*time.Millisecond, 900*time.Millisecond))
		if err := errors.Join(other.Pause(), third.Pause()); err != nil {
			return err
		}
		r.settled(ctx, r.between(0, time.Second))
		r.stopped(r.tellStop(n))
		return errors.Join(other.Resume(), third.Resume())
	}},
	{what: "while nothing that it sends arrives", links: true, play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		if err := errors.Join(r.cluster.CutLink(other, n), r.cluster.CutLink(third, n)); err != nil {
			return err
		}
		r.settled(ctx, 2*time.Second)
		r.stopped(r.tellStop(n))
		return r.cluster.Heal()
	}},
	{what: "while it is cut off", links: true, play: func(ctx context.Context, r *run, n, _, _ *cluster.Node) error {
		if err := r.cluster.Isolate(n); err != nil {
			return err
		}
		r.settled(ctx, 4*time.Second)
		r.stopped(r.tellStop(n))
		return r.cluster.Heal()
	}},
	{what: "while clients have connections on which they say and read nothing", play: func(ctx context.Context, r *run, n, _, _ *cluster.Node) error {
		var silent []net.Conn
		defer func() {
			for _, c := range silent {
				_ = c.Close()
			}
		}()
		for range 20 {
			for _, at := range []string{n.Listener, n.Peer} {
				c, err := net.DialTimeout("tcp", at, 3*time.Second)
				if err != nil {
					return err
				}
				silent = append(silent, c)
				// The beginning of a frame, whose rest never comes.
				if _, err := c.Write([]byte{0, 0, 0, 64, 0, 3}); err != nil {
					return err
				}
			}
		}
		r.stopped(r.tellStop(n))
		return nil
	}},
	{what: "all at once, while the machine has no time for them", play: func(ctx context.Context, r *run, n, other, third *cluster.Node) error {
		busy, done := context.WithCancel(ctx)
		var burning sync.WaitGroup
		for range 4 {
			burning.Go(func() {
				for busy.Err() == nil {
					for x := range 1_000_000 {
						_ = x * x
					}
				}
			})
		}
		r.stopped(r.tellStop(n), r.tellStop(other), r.tellStop(third))
		done()
		burning.Wait()
		return nil
	}},
}

// stopEverywhere has a broker stop in every one of these states, in an order that the seed chooses, beside the workload.
func stopEverywhere(ctx context.Context, r *run) error {
	r.startWorkload()
	r.settled(ctx, 3*time.Second)
	longest, where := time.Duration(0), ""
	for _, i := range r.random.Perm(len(stopCases)) {
		c := stopCases[i]
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if c.links && !r.cluster.HasLinks() {
			r.skip(fmt.Errorf("%w: stopping %s needs root and network namespaces", cluster.ErrNotHere, c.what))
			continue
		}
		n := r.anybody()
		other := r.other(n)
		third := other
		for third == other || third == n {
			third = r.anybody()
		}
		began := time.Now()
		err := r.fault(ctx, n.Index, fmt.Sprintf("stop of node %d, %s", n.Index, c.what), func() error { return c.play(ctx, r, n, other, third) }, 0, r.restart)
		if err != nil {
			return err
		}
		took := time.Since(began)
		r.logf("stopped %s: %s", c.what, took.Round(time.Millisecond))
		if took > longest {
			longest, where = took, c.what
		}
		r.awaitHealth(ctx, "after a stop")
	}
	r.notes = append(r.notes, fmt.Sprintf("brokers were told to stop in %d states; the longest took %s, with what led to it: %s", len(stopCases), longest.Round(100*time.Millisecond), where))
	return nil
}
