package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/integration/cluster"
)

// rots are the kinds of files that rot strikes.
var rots = []struct {
	what  string
	match func(name string) bool
}{
	{"a segment", func(name string) bool { return strings.HasSuffix(name, ".log") && ofWorkload(name) }},
	{"an index", func(name string) bool { return strings.HasSuffix(name, "index") && ofWorkload(name) }},
	{"a leader epoch file", func(name string) bool { return strings.HasSuffix(name, "leader-epoch-checkpoint") && ofWorkload(name) }},
	{"a producer snapshot", func(name string) bool { return strings.HasSuffix(name, ".snapshot") && ofWorkload(name) }},
	{"a state file", func(name string) bool { return strings.HasSuffix(name, "millrace.state") && ofWorkload(name) }},
	{"the checkpoint", func(name string) bool { return strings.HasSuffix(name, "millrace.checkpoint") }},
}

func ofWorkload(name string) bool {
	for _, t := range append(topics[:len(topics):len(topics)], totals) {
		if strings.HasPrefix(name, t+"-") {
			return true
		}
	}
	return false
}

// roundRot stops one broker, damages a file of it, and starts it again.
func roundRot(ctx context.Context, r *run) error {
	if r.random.IntN(4) == 0 {
		return roundRotRaft(ctx, r)
	}
	n, why := r.victim()
	rot := rots[r.random.IntN(len(rots))]
	var damage func(n *cluster.Node) (string, error)
	verb := ""
	switch r.random.IntN(4) {
	case 0:
		verb, damage = "truncated", func(n *cluster.Node) (string, error) { return n.Truncate(r.random, rot.match) }
	case 1:
		verb, damage = "deleted", func(n *cluster.Node) (string, error) { return n.Delete(r.random, rot.match) }
	default:
		verb, damage = "a bit flipped", func(n *cluster.Node) (string, error) { return n.FlipBit(r.random, rot.match) }
	}
	stop, how := n.Kill, "killed"
	if r.random.IntN(2) == 0 {
		stop, how = n.Stop, "stopped"
	}
	err := r.fault(ctx, n.Index, fmt.Sprintf("%snode %d %s, %s in %s", why, n.Index, how, verb, rot.what), stop, r.between(0, 2*time.Second), func() error {
		what, err := damage(n)
		if err != nil {
			r.remark("no damage: %v", err)
		} else {
			r.remark("node %d: %s: %s", n.Index, verb, what)
			r.rotted(n, what)
		}
		return n.Start()
	})
	if err != nil {
		return err
	}
	// One copy at a time: the rotten one must be whole again before the next rots, or nobody could mend it.
	r.awaitHealth(ctx, fmt.Sprintf("after rot at node %d", n.Index))
	if r.random.IntN(2) == 0 {
		return nil
	}
	// Who was healed must be able to lead alone.
	o := r.other(n)
	err = r.fault(ctx, o.Index, fmt.Sprintf("kill -9 of node %d, so that node %d counts", o.Index, n.Index), o.Kill, r.between(time.Second, 3*time.Second), o.Start)
	r.awaitHealth(ctx, "after a kill of another")
	return err
}
