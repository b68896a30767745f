package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/integration/check"
	"github.com/millrace/millrace/integration/cluster"
)

// scenario is a row of the fault matrix (correctness.md part 5).
type scenario struct {
	name, what string
	// disks and links say what the cluster needs beyond processes.
	disks, links bool
	set          []string      // settings of the brokers
	length       time.Duration // of the faults, when not that of the flags
	once         bool          // one round is the whole run
	brokers      int           // when not that of the flags
	perTopic     int           // partitions of a topic, when not the usual ones
	groups       []groupSpec   // when not the usual ones
	plain        bool          // without transactions
	// transactional says that a script has transactions in its workload.
	transactional bool
	impatient     bool // clients give answers up after a second or so
	proxy         bool // stand a proxy between clients and brokers
	// late has requests held past the end of their transactions, in every way there is (late.go).
	late bool
	// round makes one fault, and ends it.
	round func(ctx context.Context, r *run) error
	// script takes the place of workload and rounds.
	script func(ctx context.Context, r *run) error
}

var scenarios = []*scenario{
	{name: "S1", what: "kill -9 of one, all, a leader, the controller, a coordinator", round: roundKill},
	{name: "S2", what: "SIGSTOP for 1 to 25 s, then kill -9 of another", round: roundPause},
	{name: "S3", what: "partitions: one, a ring, one way, leader from controller", links: true, round: roundPartition},
	{name: "S4", what: "power cut of one, of all, of the last of the ISR", disks: true, round: roundPower},
	{name: "S5", what: "power cut of one while the others are paused in turn", disks: true, round: roundPowerPause},
	{name: "S6", what: "disks: EIO at sync, slow sync, full, frozen, 1 MiB/s", disks: true, round: roundDisk},
	{name: "S7", what: "rot: bits, tails and files of a stopped broker, its metadata too", round: roundRot},
	{name: "S7-raft", what: "rot in the metadata of a stopped broker, nothing else", round: roundRotRaft},
	{name: "S10", what: "EndTxn, Produce, offset commits and others arrive when their clients have gone on", proxy: true, impatient: true, late: true, round: roundHeld},
	{name: "S11", what: "64 members of three groups join and leave, a broker is paused for 8 s", perTopic: 24, groups: churningGroups, plain: true, round: roundChurn},
	{name: "stop", what: "brokers are told to stop, whatever the others, the clients and they themselves are about", links: true, transactional: true, groups: usualGroups, script: stopEverywhere},
}

// between returns a random time.
func (r *run) between(least, most time.Duration) time.Duration {
	return least + time.Duration(r.random.Int64N(int64(most-least)))
}

// anybody is a random node.
func (r *run) anybody() *cluster.Node { return r.cluster.Nodes[r.random.IntN(len(r.cluster.Nodes))] }

// other is a random node but one.
func (r *run) other(than *cluster.Node) *cluster.Node {
	for len(r.cluster.Nodes) > 1 {
		if n := r.anybody(); n != than {
			return n
		}
	}
	return than
}

// someLeader is the leader of a random partition, as far as is known.
func (r *run) someLeader() *cluster.Node {
	key := check.Key(r.topics[r.random.IntN(len(r.topics))], int32(r.random.IntN(r.perTopic)))
	if n := r.epochs.of(key).node; n != nil {
		return n
	}
	return r.anybody()
}

func (r *run) controller() *cluster.Node {
	if n := r.epochs.Controller(); n != nil {
		return n
	}
	return r.anybody()
}

// victim chooses a node and says why it.
func (r *run) victim() (*cluster.Node, string) {
	switch r.random.IntN(5) {
	case 0:
		return r.controller(), "the controller, "
	case 1, 2:
		return r.someLeader(), "a leader, "
	case 3:
		return r.coordinator(), "a coordinator, "
	}
	return r.anybody(), ""
}

func roundKill(ctx context.Context, r *run) error {
	defer r.breathe(ctx)
	if r.random.IntN(6) == 0 {
		return r.fault(ctx, 0, "kill -9 of all", func() error {
			for _, n := range r.cluster.Nodes {
				if err := n.Kill(); err != nil {
					return err
				}
			}
			return nil
		}, r.between(0, 2*time.Second), r.restart)
	}
	n, why := r.victim()
	return r.fault(ctx, n.Index, fmt.Sprintf("kill -9 of %snode %d", why, n.Index), n.Kill, r.between(100*time.Millisecond, 5*time.Second), n.Start)
}

func roundPause(ctx context.Context, r *run) error {
	defer r.breathe(ctx)
	n, why := r.victim()
	length := r.between(time.Second, 25*time.Second)
	killed := r.other(n)
	if r.random.IntN(2) == 0 || killed == n {
		return r.fault(ctx, n.Index, fmt.Sprintf("SIGSTOP of %snode %d for %s", why, n.Index, length.Round(100*time.Millisecond)), n.Pause, length, n.Resume)
	}
	// While one is paused, another dies; it is back before the first goes on, or after.
	back := r.between(0, length)
	return r.fault(ctx, n.Index, fmt.Sprintf("SIGSTOP of %snode %d for %s, kill -9 of node %d", why, n.Index, length.Round(100*time.Millisecond), killed.Index), n.Pause, length/2, func() error {
		if err := killed.Kill(); err != nil {
			return err
		}
		r.settled(ctx, min(back, length/2))
		if r.random.IntN(2) == 0 {
			if err := killed.Start(); err != nil {
				return err
			}
		}
		r.settled(ctx, max(length/2-back, 0))
		if err := n.Resume(); err != nil {
			return err
		}
		if !killed.Running() {
			r.settled(ctx, r.between(0, 3*time.Second))
			return killed.Start()
		}
		return nil
	})
}

func roundPartition(ctx context.Context, r *run) error {
	c := r.cluster
	if !c.HasLinks() {
		defer r.settled(ctx, time.Second)
		return fmt.Errorf("%w: partitions need root and network namespaces", cluster.ErrNotHere)
	}
	defer r.breathe(ctx)
	n, why := r.victim()
	length := r.between(2*time.Second, 15*time.Second)
	heal := func() error { return c.Heal() }
	lasting := " for " + length.Round(100*time.Millisecond).String()
	switch r.random.IntN(5) {
	case 0:
		return r.fault(ctx, n.Index, fmt.Sprintf("%snode %d cut off%s", why, n.Index, lasting), func() error { return c.Isolate(n) }, length, heal)
	case 1: // every majority sees another: each node misses one
		a := r.other(n)
		return r.fault(ctx, n.Index, fmt.Sprintf("nodes %d and %d cut off from each other%s", n.Index, a.Index, lasting), func() error {
			if err := c.CutLink(n, a); err != nil {
				return err
			}
			return c.CutLink(a, n)
		}, length, heal)
	case 2:
		return r.fault(ctx, n.Index, fmt.Sprintf("nothing from %snode %d arrives%s", why, n.Index, lasting), func() error {
			for _, o := range c.Nodes {
				if o != n {
					if err := c.CutLink(n, o); err != nil {
						return err
					}
				}
			}
			return nil
		}, length, heal)
	case 3:
		leader, controller := r.someLeader(), r.controller()
		if leader == controller {
			leader = r.other(controller)
		}
		return r.fault(ctx, leader.Index, fmt.Sprintf("node %d and the controller, node %d, cut off from each other%s", leader.Index, controller.Index, lasting), func() error {
			if err := c.CutLink(leader, controller); err != nil {
				return err
			}
			return c.CutLink(controller, leader)
		}, length, heal)
	}
	return r.fault(ctx, n.Index, fmt.Sprintf("connections of %snode %d broken", why, n.Index), func() error { return c.BreakConnections(n) }, 100*time.Millisecond, nil)
}

func (r *run) powerCut(nodes ...*cluster.Node) error {
	for _, n := range nodes {
		if err := n.PowerCut(); err != nil {
			return err
		}
	}
	return nil
}

func roundPower(ctx context.Context, r *run) error {
	if !r.cluster.Nodes[0].HasDisk() {
		defer r.settled(ctx, time.Second)
		return fmt.Errorf("%w: power cuts need root and loop mounts", cluster.ErrNotHere)
	}
	defer r.breathe(ctx)
	n, why := r.victim()
	switch r.random.IntN(4) {
	case 0:
		return r.fault(ctx, 0, "power cut of all", func() error { return r.powerCut(r.cluster.Nodes...) }, r.between(0, 2*time.Second), r.restart)
	case 1: // one is away until it has left the ISR, then the power of those that went on is cut, in turn
		away := r.other(n)
		length := r.between(10*time.Second, 16*time.Second)
		return r.fault(ctx, away.Index, fmt.Sprintf("SIGSTOP of node %d for %s, then a power cut of the others", away.Index, length.Round(time.Second)), away.Pause, length, func() error {
			for _, o := range r.cluster.Nodes {
				if o != away {
					if err := r.powerCut(o); err != nil {
						return err
					}
					r.settled(ctx, r.between(0, time.Second))
				}
			}
			if err := away.Resume(); err != nil {
				return err
			}
			r.settled(ctx, r.between(0, 5*time.Second)) // alone, it must not lead
			return r.restart()
		})
	}
	return r.fault(ctx, n.Index, fmt.Sprintf("power cut of %snode %d", why, n.Index), func() error { return r.powerCut(n) }, r.between(100*time.Millisecond, 4*time.Second), n.Start)
}

func roundPowerPause(ctx context.Context, r *run) error {
	if !r.cluster.Nodes[0].HasDisk() {
		defer r.settled(ctx, time.Second)
		return fmt.Errorf("%w: power cuts need root and loop mounts", cluster.ErrNotHere)
	}
	defer r.breathe(ctx)
	n, why := r.victim()
	return r.fault(ctx, n.Index, fmt.Sprintf("power cut of %snode %d, the others paused in turn", why, n.Index), func() error {
		for i, o := range r.cluster.Nodes {
			if o == n {
				continue
			}
			if err := o.Pause(); err != nil {
				return err
			}
			r.settled(ctx, r.between(500*time.Millisecond, 3*time.Second))
			if i == 0 || n.Running() {
				if err := r.powerCut(n); err != nil {
					return err
				}
			}
			r.settled(ctx, r.between(200*time.Millisecond, 2*time.Second))
			if err := o.Resume(); err != nil {
				return err
			}
		}
		return nil
	}, r.between(0, 2*time.Second), r.restart)
}

func roundDisk(ctx context.Context, r *run) error {
	defer r.breathe(ctx)
	n, why := r.victim()
	what, length, begin := "", r.between(3*time.Second, 10*time.Second), (func() (func() error, error))(nil)
	switch r.random.IntN(5) {
	case 0:
		what, begin = "every sync fails", n.FailSyncs
	case 1:
		what, begin = "every sync takes 400 ms", func() (func() error, error) { return n.SlowSyncs(400 * time.Millisecond) }
	case 2:
		what, begin = "disk full", n.FillDisk
	case 3:
		length = r.between(5*time.Second, 20*time.Second)
		what, begin = "disk frozen", n.FreezeDisk
	case 4:
		what, begin = "disk at 1 MiB/s", func() (func() error, error) { return n.SlowDisk(1 << 20) }
	}
	end := func() error { return nil }
	return r.fault(ctx, n.Index, fmt.Sprintf("%s at %snode %d for %s", what, why, n.Index, length.Round(100*time.Millisecond)), func() (err error) {
		end, err = begin()
		return err
	}, length, func() error {
		if err := end(); err != nil {
			return err
		}
		r.settled(ctx, 500*time.Millisecond) // who gave up is gone by then
		return r.restart()
	})
}
