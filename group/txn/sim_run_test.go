package txn

import (
	"flag"
	"fmt"
	"testing"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 1000, "number of seeds the simulator plays")
	simFirst = flag.Uint64("sim.first", 1, "first seed")
	simSeed  = flag.Uint64("sim.seed", 0, "play this one seed with a trace")
)

const simSteps = 2000

// TestSimulation plays transactions under crashes, fences, moves of coordinators and leaders, lost requests and answers, late
// metadata, zombies, time-outs and producers of both protocols, and asserts I8 and P5 to P12 after each step, and I20 at the
// end.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		if err := newSim(simOptions{seed: *simSeed, steps: simSteps, trace: t.Logf}).run(); err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		return
	}
	var commits, aborts, fences, timeouts, rotations int
	for seed := range *simSeeds {
		seed += *simFirst
		s := newSim(simOptions{seed: seed, steps: simSteps})
		if err := s.run(); err != nil {
			t.Fatalf("%v\nreplay with -sim.seed=%d", err, seed)
		}
		commits, aborts, fences, timeouts, rotations = commits+s.commits, aborts+s.aborts, fences+s.fences, timeouts+s.timeouts, rotations+s.rotations
	}
	n := int(*simSeeds)
	if commits < n || aborts < n/5 || fences < n/4 || timeouts < n/8 || rotations < n {
		t.Fatalf("%d seeds: %d commits, %d aborts, %d fences, %d time-outs, %d new producer ids: the simulation does not get anywhere", n, commits, aborts, fences, timeouts, rotations)
	}
	t.Logf("%d seeds, %d commits, %d aborts, %d fences, %d time-outs, %d new producer ids", n, commits, aborts, fences, timeouts, rotations)
}

// TestSimulationReplays asserts that a seed gives the same run again: without that no failure can be looked into.
func TestSimulationReplays(t *testing.T) {
	for seed := uint64(1); seed <= 10; seed++ {
		var traces [2]string
		for i := range traces {
			s := newSim(simOptions{seed: seed, steps: simSteps, trace: func(format string, args ...any) { traces[i] += fmt.Sprintf(format, args...) + "\n" }})
			if err := s.run(); err != nil {
				t.Fatal(err)
			}
			traces[i] += s.dump()
		}
		if traces[0] != traces[1] {
			t.Fatalf("seed %d played twice gave two runs", seed)
		}
	}
}
