package broker

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The runtime collects garbage when the heap has doubled, whether that takes a second or a minute. A broker whose clients only
// send heartbeats makes little garbage, and would let it grow to as much as all that it keeps: half of the memory that a group
// at rest takes. A restingHeap collects as soon as that costs next to nothing, and gives back to the system what is free then:
// the runtime would keep a part, and take its time for the rest.
//
// It does so only while the runtime finds no reason of its own, so a broker at work is left alone.
const (
	// restingLook is how often it looks.
	restingLook = 5 * time.Second
	// restingPause is the least time between a collection and the next that is asked for.
	restingPause = 15 * time.Second
	// restingShare bounds the CPU of the collections asked for: a thousandth of one core. What the heap holds makes a
	// collection dear: with a gigabyte of it the runtime's own, after two minutes, come first.
	restingShare = 1000
	// restingGarbage is from how much garbage, or free memory not given back, on a collection is worth it, in bytes.
	restingGarbage = 1 << 20
)

// heapState is what the runtime tells of the heap.
type heapState struct {
	cycles  uint64        // collections that have ended
	cpu     time.Duration // of all collections
	live    uint64        // bytes that the last collection found in use
	objects uint64        // bytes of all objects, those too that are garbage by now
	free    uint64        // bytes that hold no object and were not given back
}

// restingHeap decides when a collection is due. It has no clock, and is for one goroutine.
type restingHeap struct {
	last heapState
	at   time.Time     // when the last collection was noticed
	cost time.Duration // CPU of one collection
}

// due takes a look and reports whether a collection should be asked for.
func (r *restingHeap) due(now time.Time, h heapState) bool {
	if n := h.cycles - r.last.cycles; n > 0 || r.at.IsZero() {
		if n > 0 {
			r.cost = (h.cpu - r.last.cpu) / time.Duration(n)
		}
		r.last, r.at = h, now
		return false
	}
	return (h.objects >= h.live+restingGarbage || h.free >= restingGarbage) && now.Sub(r.at) >= max(restingPause, r.cost*restingShare)
}

// keepHeapSmall runs for the rest of the process's life. Who has set GOGC has decided for himself.
func keepHeapSmall() {
	if os.Getenv("GOGC") != "" {
		return
	}
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	var r restingHeap
	for {
		metrics.Read(samples)
		h := heapState{
			cycles: samples[0].Value.Uint64(), cpu: time.Duration(samples[1].Value.Float64() * float64(time.Second)),
			live: samples[2].Value.Uint64(), objects: samples[3].Value.Uint64(), free: samples[4].Value.Uint64(),
		}
		if r.due(time.Now(), h) {
			debug.FreeOSMemory()
		}
		time.Sleep(restingLook)
	}
}
