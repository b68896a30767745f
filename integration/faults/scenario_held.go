package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/integration/proxy"
)

// heldRequests are what S10 keeps back: requests that arrive when their clients have long given up, asked again, and gone on
// (P7, P8, G1, G14).
var heldRequests = []struct {
	what string
	key  int16
}{
	{"EndTxn", 26},
	{"EndTxn", 26},
	{"Produce", 0},
	{"Produce", 0},
	{"TxnOffsetCommit", 28},
	{"OffsetCommit", 8},
	{"AddPartitionsToTxn", 24},
	{"InitProducerId", 22},
	{"Fetch", 1},
}

// roundHeld keeps some requests of one kind back, on their way to any broker. Now and then a coordinator dies meanwhile.
func roundHeld(ctx context.Context, r *run) error {
	defer r.breathe(ctx)
	held := heldRequests[r.random.IntN(len(heldRequests))]
	some, length := 1+r.random.IntN(4), r.between(time.Second, 14*time.Second)
	kill := r.random.IntN(4) == 0
	n := r.coordinator()
	text := fmt.Sprintf("%d of %s held for %s", some, held.what, length.Round(100*time.Millisecond))
	if kill {
		text += fmt.Sprintf(", kill -9 of a coordinator, node %d", n.Index)
	}
	opened := make(chan struct{})
	var remove []func()
	return r.fault(ctx, 0, text, func() error {
		first := proxy.First(some, proxy.Key(proxy.Request, held.key))
		for _, o := range r.cluster.Nodes {
			remove = append(remove, o.Proxy.Add(func(f proxy.Frame) proxy.Verdict {
				if !first(f) {
					return proxy.Verdict{}
				}
				return proxy.Verdict{Late: true, Hold: opened}
			}))
		}
		if kill {
			r.settled(ctx, length/2)
			return n.Kill()
		}
		return nil
	}, length, func() error {
		for _, undo := range remove {
			undo()
		}
		close(opened)
		return r.restart()
	})
}
