package replication

import (
	"flag"
	"fmt"
	"strings"
	"testing"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 5000, "number of seeds the simulator plays")
	simFirst = flag.Uint64("sim.first", 1, "first seed")
	simSeed  = flag.Uint64("sim.seed", 0, "play this one seed with a trace")
)

const simSteps = 1000

// TestSimulation plays the replication protocol of one partition under crashes, lost disks, delayed, lost and repeated
// messages, wrong suspicions and moving leaders, in both flush.ack modes, and asserts I1, I2, I4, I5, I9-I12, I17, R23
// after each step and I20 at the end.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		if err := newSim(simOptions{seed: *simSeed, steps: simSteps, trace: t.Logf}).run(); err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		return
	}
	seeds, acked := *simSeeds, 0
	if testing.Short() {
		seeds = max(seeds/10, 1) // with the race detector it takes minutes, and there is one goroutine
	}
	for seed := range seeds {
		seed += *simFirst
		s := newSim(simOptions{seed: seed, steps: simSteps})
		if err := s.run(); err != nil {
			t.Fatalf("%v\nreplay with -sim.seed=%d", err, seed)
		}
		acked += s.acked
	}
	if acked < int(seeds)*5 {
		t.Fatalf("%d seeds acknowledged %d records with acks=all: the simulation does not get anywhere", seeds, acked)
	}
	t.Logf("%d seeds, %d records acknowledged with acks=all", seeds, acked)
}

// TestSimulationReplays asserts that a seed gives the same run again: without that no failure can be looked into.
func TestSimulationReplays(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		var traces [2]strings.Builder
		for i := range traces {
			s := newSim(simOptions{seed: seed, steps: simSteps, trace: func(format string, args ...any) { fmt.Fprintf(&traces[i], format+"\n", args...) }})
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			traces[i].WriteString(s.dump())
		}
		if traces[0].String() != traces[1].String() {
			t.Fatalf("seed %d played twice gave two runs", seed)
		}
	}
}
