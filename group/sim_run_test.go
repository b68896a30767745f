package group

import (
	"flag"
	"fmt"
	"testing"
)

var (
	simSeeds = flag.Uint64("sim.seeds", 2000, "number of seeds the simulator plays")
	simFirst = flag.Uint64("sim.first", 1, "first seed")
	simSeed  = flag.Uint64("sim.seed", 0, "play this one seed with a trace")
)

const simSteps = 900

// TestSimulation plays the classic protocol of one group under crashes, fences, moves, lost requests and answers, late
// metadata, zombies, and members of all kinds, and asserts I15, I18, G1, G4-G6, G9, G10 after each step and I20 at the end.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		if err := newSim(simOptions{seed: *simSeed, steps: simSteps, trace: t.Logf}).run(); err != nil {
			t.Fatalf("seed %d: %v", *simSeed, err)
		}
		return
	}
	generations, commits, moves, seeks := 0, 0, 0, 0
	for seed := range *simSeeds {
		seed += *simFirst
		s := newSim(simOptions{seed: seed, steps: simSteps})
		if err := s.run(); err != nil {
			t.Fatalf("%v\nreplay with -sim.seed=%d", err, seed)
		}
		generations += s.generations
		commits += s.commits
		moves += s.moves
		seeks += s.seeks
	}
	n := int(*simSeeds)
	if generations < 2*n || commits < 5*n || moves < n || seeks < n/10 {
		t.Fatalf("%d seeds: %d generations, %d commits, %d moves, %d seeks: the simulation does not get anywhere", n, generations, commits, moves, seeks)
	}
	t.Logf("%d seeds, %d generations, %d commits, %d moves of the coordinator, %d seeks", n, generations, commits, moves, seeks)
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
