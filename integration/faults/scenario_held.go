package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/integration/proxy"
)

// heldRequests are what S10 keeps back: requests that arrive when their clients have long given up, asked again, and gone on
// (P7, P8, G1, G14).
var heldRequests = []struct {
	what string
	key  int16
	// from is the first version that is held. Those of the first transaction protocol cannot say which transaction they mean,
	// and may come into the next one (lateCard.hole): what the usual clients see of that is no fault of a broker.
	from int16
}{
	{"EndTxn", keyEndTxn, 5},
	{"EndTxn", keyEndTxn, 5},
	{"Produce", keyProduce, 0},
	{"Produce", keyProduce, 0},
	{"TxnOffsetCommit", keyTxnOffsetCommit, 5},
	{"OffsetCommit", keyOffsetCommit, 0},
	{"AddPartitionsToTxn", 24, 0},
	{"InitProducerId", 22, 0},
	{"Fetch", 1, 0},
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
		first := proxy.First(some, func(f proxy.Frame) bool {
			return f.Direction == proxy.Request && f.Key == held.key && f.Version >= held.from && !strings.HasPrefix(f.ClientID, lateClients)
		})
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
