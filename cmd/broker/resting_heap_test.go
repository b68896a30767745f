package broker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A heap at rest is collected when there is something to collect, not more often than the pause says, and the less often the
// more a collection costs. One that the runtime collects is left alone.
func TestRestingHeap(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(0, 0)
	for _, x := range []struct {
		name     string
		cost     time.Duration // of a collection
		garbage  uint64        // for each second
		free     uint64        // after the start, once
		own      time.Duration // how often the runtime collects; 0: never
		from, to int           // collections asked for within an hour
	}{
		{"heartbeats", 10 * time.Millisecond, 100 << 10, 0, 0, 3600/20 - 1, 3600 / 15},
		{"nothing to do", 10 * time.Millisecond, 100, 0, 0, 0, 0},
		{"nothing to do after much", 10 * time.Millisecond, 100, 5 * mib, 0, 1, 1},
		{"a large heap", time.Second, 100 << 10, 0, 0, 3, 3},
		{"a large heap, which the runtime collects every two minutes", time.Second, 100 << 10, 0, 2 * time.Minute, 0, 0},
		{"at work", 10 * time.Millisecond, 100 * mib, 0, time.Second, 0, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			var r restingHeap
			h := heapState{cycles: 1, cpu: x.cost, live: 10 * mib, objects: 10 * mib, free: x.free}
			asked := 0
			collect := func() { h.cycles, h.cpu, h.objects = h.cycles+1, h.cpu+x.cost, h.live }
			var collected time.Duration
			for at := time.Duration(0); at < time.Hour; at += restingLook {
				h.objects += uint64(restingLook/time.Second) * x.garbage
				if x.own > 0 && at-collected >= x.own {
					collect()
					collected = at
				}
				if r.due(start.Add(at), h) {
					asked++
					collect()
					h.free = 0
				}
			}
			require.GreaterOrEqual(t, asked, x.from)
			require.LessOrEqual(t, asked, x.to)
			require.LessOrEqual(t, time.Duration(asked)*x.cost, time.Hour/restingShare)
		})
	}
}
