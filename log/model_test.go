package log

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	modelSeeds = flag.Int("model.seeds", 5000, "number of seeds the deterministic model runs")
	modelSeed  = flag.Uint64("model.seed", 0, "first seed of the deterministic model; with -model.seeds 1 it is replayed alone")
	modelTrace = flag.Bool("model.trace", false, "print every step of the deterministic model")
	modelKill  = flag.Bool("model.mutants", false, "run the killing list of the deterministic model")
	modelLimit = flag.Int("model.limit", 20000, "number of seeds a mutant may survive")
)

// TestModel runs the real directory, logs, committer and recovery on a file system and a scheduler that are ruled by a
// seed: crashes anywhere, also in recovery, up to three times; power cuts that keep any part of what was not synced;
// kills; failing syncs; full disks (wal.md 7). See model_world_test.go for what runs, model_check_test.go for what is
// checked after each recovery: I1, I2, I6, I17, L1-L5, L8, L13, W1-W20.
//
// A failing seed is replayed with -model.seed N -model.seeds 1 -model.trace.
func TestModel(t *testing.T) {
	began := time.Now()
	var total modelStats
	failures := modelSweep(*modelSeed, *modelSeeds, 0, 3, &total)
	t.Logf("%d seeds in %v: %s", *modelSeeds, time.Since(began).Round(time.Millisecond), &total)
	for _, f := range failures {
		t.Errorf("seed %d: %v", f.seed, f.err)
	}
	if *modelSeeds >= 1000 && len(failures) == 0 {
		total.requireVariety(t)
	}
}

type modelFailure struct {
	seed uint64
	err  error
}

// modelSweep runs seeds on all processors until enough have failed.
func modelSweep(from uint64, seeds int, mut mutant, enough int, total *modelStats) []modelFailure {
	var mu sync.Mutex
	var failures []modelFailure
	var next, failed atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), seeds) {
		group.Go(func() {
			for int(failed.Load()) < enough {
				i := next.Add(1) - 1
				if i >= int64(seeds) {
					return
				}
				seed := from + uint64(i)
				stats, err := runModel(seed, mut)
				mu.Lock()
				total.add(stats)
				if err != nil {
					failures = append(failures, modelFailure{seed, err})
					failed.Add(1)
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return failures
}

// TestModelReplays: the same seed makes the same run, step by step. Without that no finding could be examined.
func TestModelReplays(t *testing.T) {
	for seed := range uint64(20) {
		trace := func() (lines []string) {
			w := newWorld(seed, 0)
			w.sim.Trace(func(task, op string) { lines = append(lines, task+" "+op) })
			require.NoError(t, w.run())
			return lines
		}
		first, second := trace(), trace()
		for i := range first {
			if i >= len(second) || first[i] != second[i] {
				t.Fatalf("seed %d, step %d: %q", seed, i, first[i])
			}
		}
		require.Equal(t, len(first), len(second), "seed %d", seed)
	}
}

// modelMutants is the killing list: each rule of wal.md 3 that is a step in the code, switched off, and whether the
// model must notice within -model.limit seeds.
var modelMutants = []struct {
	mutant mutant
	name   string
	// equivalent says why nothing can go wrong here without the step; the mutant is run all the same in long runs.
	equivalent string
}{
	{mutantWALFirst, "W1 WAL record before the segment", ""},
	{mutantCutBackUnsynced, "W2 cut back without sync", ""},
	{mutantSkipSame, "W3 skip what is already there", ""},
	{mutantHoles, "W4 durable end over holes", ""},
	{mutantActiveOnly, "W5 only the active segment", ""},
	{mutantLateEnd, "W5 end read after the sync", ""},
	{mutantLateClean, "W5 clean though written meanwhile", ""},
	{mutantSegmentName, "W5 no directory sync after a roll", ""},
	{mutantOldCompletion, "W7 completion of an old history", ""},
	{mutantHeaderUnsynced, "W8 header not synced alone", ""},
	{mutantAnyFrame, "W9 stale frames", ""},
	{mutantReuseEarly, "W11 reuse before the checkpoint", ""},
	{mutantRetireUnsynced, "W11 retired without sync", ""},
	{mutantShortFile, "W12 short file", ""},
	{mutantSameID, "W13 same log id", ""},
	{mutantCutUnsyncedSegments, "W14 truncate unsynced bytes", ""},
	{mutantCutFirst, "W14 cut before the intent", ""},
	{mutantNoIntent, "W14 no intent", ""},
	{mutantCutUnsynced, "W14 cut not synced", ""},
	{mutantIntentStays, "W14 intent not cleared", ""},
	{mutantStartUnsynced, "W15 start in unsynced bytes", ""},
	{mutantUnlinkFirst, "W15 unlink first", ""},
	{mutantCachedRecovery, "W17 recovery from the cache", ""},
	{mutantIgnoreSyncError, "W17 go on after a failed sync", ""},
	{mutantCreateUnsynced, "W18 create without parent sync", ""},
	{mutantDeleteUnsynced, "W18 delete without parent sync", ""},
	{mutantNoSyncAll, "recovery step 1 left out", ""},
	{mutantServeCached, "recovery step 7 left out", ""},
	{mutantNoGeneration, "recovery step 8 left out", ""},
	{mutantOverwriteLive, "recovery step 8 in a live file", ""},
}

// TestModelMutants: the model notices when a rule is broken. A model that kills no mutant proves nothing.
func TestModelMutants(t *testing.T) {
	if !*modelKill {
		t.Skip("run with -model.mutants")
	}
	listed := mutant(0)
	for _, m := range modelMutants {
		listed |= m.mutant
		t.Run(m.name, func(t *testing.T) {
			if m.equivalent != "" {
				t.Skip(m.equivalent)
			}
			var total modelStats
			failures := modelSweep(0, *modelLimit, m.mutant, 1, &total)
			require.NotEmpty(t, failures, "survived %d seeds: %s", *modelLimit, &total)
			t.Logf("killed by seed %d: %v", failures[0].seed, failures[0].err)
		})
	}
	require.Equal(t, mutantEnd-1, listed, "every mutant is on the list")
}

// modelStats counts what a run did, so that a model that stopped doing its work is noticed.
type modelStats struct {
	seeds, steps, recoveries, interrupted, cleanStops, powerCuts, kills                             int
	appended, refused, acked, truncations, trims, deletions, creations                              int
	replicated, restarts, reads                                                                     int
	syncFailures, fullDisks, walRecords, walRetired, walFrames, diverted, directSyncs, rolls, quiet int
	tornBytes                                                                                       int64
}

func (s *modelStats) fields() []*int {
	return []*int{
		&s.seeds, &s.steps, &s.recoveries, &s.interrupted, &s.cleanStops, &s.powerCuts, &s.kills,
		&s.appended, &s.refused, &s.acked, &s.truncations, &s.trims, &s.deletions, &s.creations,
		&s.replicated, &s.restarts, &s.reads,
		&s.syncFailures, &s.fullDisks, &s.walRecords, &s.walRetired, &s.walFrames, &s.diverted, &s.directSyncs, &s.rolls, &s.quiet,
	}
}

var modelStatNames = []string{
	"seeds", "steps", "recoveries", "interrupted", "clean stops", "power cuts", "kills",
	"appended", "refused", "acked", "truncations", "trims", "deletions", "creations",
	"replicated", "restarts", "reads",
	"sync failures", "full disks", "redone WAL records", "WAL files retired", "WAL frames", "frames diverted", "direct syncs", "rolls", "quiet ends",
}

func (s *modelStats) add(o modelStats) {
	for i, f := range o.fields() {
		*s.fields()[i] += *f
	}
	s.tornBytes += o.tornBytes
}

func (s *modelStats) String() string {
	text := ""
	for i, f := range s.fields() {
		text += fmt.Sprintf("%d %s, ", *f, modelStatNames[i])
	}
	return text + fmt.Sprintf("%d torn bytes", s.tornBytes)
}

// requireVariety fails if something the model is there for hardly happens.
func (s *modelStats) requireVariety(t *testing.T) {
	for i, f := range s.fields() {
		require.Greater(t, *f, s.seeds/20, modelStatNames[i])
	}
	require.Greater(t, s.tornBytes, int64(s.seeds))
}
