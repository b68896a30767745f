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
	modelKill  = flag.Bool("model.mutants", false, "run the whole killing list of the deterministic model, rare mutants included")
	modelLimit = flag.Int("model.limit", 20000, "number of seeds a mutant may survive")
)

// TestModel runs the real directory, logs, committer and recovery on a file system and a scheduler that are ruled by a
// seed: crashes anywhere, also in recovery, up to three times; power cuts that keep any part of what was not synced;
// kills; failing syncs; full disks (wal.md 7). See model_world_test.go and model_tasks_test.go for what runs,
// model_check_test.go for what is checked after each recovery: I1, I2, I6, I17, L1-L5, L8, L12, L13, W1-W20.
//
// A failing seed is replayed with -model.seed N -model.seeds 1 -model.trace.
func TestModel(t *testing.T) {
	began := time.Now()
	var total modelStats
	seeds := *modelSeeds
	if testing.Short() {
		seeds = min(seeds, 200) // the race detector finds nothing in coroutines
	}
	failures := modelSweep(*modelSeed, seeds, 0, 3, &total)
	t.Logf("%d seeds in %v: %s", seeds, time.Since(began).Round(time.Millisecond), &total)
	for _, f := range failures {
		t.Errorf("seed %d: %v", f.seed, f.err)
	}
	if seeds >= 1000 && len(failures) == 0 {
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

// modelQuick is the number of seeds within which a mutant that is not rare must die. The slowest of them took 84.
const modelQuick = 600

// modelMutants is the killing list: each rule of wal.md 3 and 4 that is a step in the code, switched off. All of them
// died within 6,000 seeds when the list was made.
//
// Not on it, because nothing can go wrong without the step here: the order of redo and the recovery points in the
// checkpoint (hints), any single one of generation, nonce and sequence number of a frame (the others suffice),
// stickiness of the direct path (W6). W10 is a property of the formats, W16 waits for compaction, W19 for derived files
// whose checksums and headers make a torn one known.
var modelMutants = []struct {
	mutant mutant
	name   string
	// rare mutants need hundreds of seeds: they are run with -model.mutants only. The others die within modelQuick.
	rare bool
}{
	{mutantWALFirst, "W1 WAL record before the segment", false},
	{mutantCutBackUnsynced, "W2 cut back without sync", true},
	{mutantSkipSame, "W3 skip what is already there", true},
	{mutantHoles, "W4 durable end over holes", false},
	{mutantActiveOnly, "W5 only the active segment", false},
	{mutantLateEnd, "W5 end read after the sync", false},
	{mutantLateClean, "W5 clean though written meanwhile", false},
	{mutantSegmentName, "W5 no directory sync after a roll", false},
	{mutantOldCompletion, "W7 completion of an old history", true},
	{mutantHeaderUnsynced, "W8 header not synced alone", false},
	{mutantAnyFrame, "W9 stale frames", true},
	{mutantReuseEarly, "W11 reuse before the checkpoint", true},
	{mutantRetireUnsynced, "W11 retired without sync", true},
	{mutantShortFile, "W12 short file", false},
	{mutantSameID, "W13 same log id", false},
	{mutantCutUnsyncedSegments, "W14 truncate unsynced bytes", false},
	{mutantCutFirst, "W14 cut before the intent", false},
	{mutantNoIntent, "W14 no intent", false},
	{mutantCutUnsynced, "W14 cut not synced", false},
	{mutantIntentStays, "W14 intent not cleared", false},
	{mutantStartUnsynced, "W15 start in unsynced bytes", false},
	{mutantUnlinkFirst, "W15 unlink first", false},
	{mutantCachedRecovery, "W17 recovery from the cache", true},
	{mutantIgnoreSyncError, "W17 go on after a failed sync", false},
	{mutantCreateUnsynced, "W18 create without parent sync", false},
	{mutantDeleteUnsynced, "W18 delete without parent sync", false},
	{mutantNoSyncAll, "recovery step 1 left out", false},
	{mutantServeCached, "recovery step 7 left out", false},
	{mutantNoGeneration, "recovery step 8 left out", false},
	{mutantOverwriteLive, "recovery step 8 in a live file", true},
	{mutantEarlyMarker, "P13 marker counts at once", false},
	{mutantKeepTransactions, "P2 transactions not rolled back", false},
	{mutantForgetOpen, "P12 open transactions forgotten at a start", false},
	{mutantAbortedKept, "aborted transactions not cut", false},
	{mutantAbortedTrusted, "index of aborted transactions trusted", true},
}

// TestModelMutants: the model notices when a rule is broken. A model that kills no mutant proves nothing.
func TestModelMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	listed := mutant(0)
	for _, m := range modelMutants {
		listed |= m.mutant
		t.Run(m.name, func(t *testing.T) {
			limit := modelQuick
			if *modelKill {
				limit = *modelLimit
			} else if m.rare {
				t.Skip("needs many seeds: run with -model.mutants")
			}
			var total modelStats
			failures := modelSweep(0, limit, m.mutant, 1, &total)
			require.NotEmpty(t, failures, "survived %d seeds: %s", limit, &total)
			t.Logf("killed by seed %d: %v", failures[0].seed, failures[0].err)
		})
	}
	require.Equal(t, mutantEnd-1, listed, "every mutant is on the list")
}

// modelStats counts what a run did, so that a model that stopped doing its work is noticed.
type modelStats struct {
	seeds, steps, recoveries, interrupted, cleanStops, brokenStops, lostCheckpoints, powerCuts, kills int
	appended, refused, acked, truncations, trims, deletions, creations                                int
	replicated, restarts, reads, watermarks, transactions                                             int
	syncFailures, fullDisks, walRecords, walRetired, walFrames, diverted, directSyncs, rolls, quiet   int
	tornBytes                                                                                         int64
}

func (s *modelStats) fields() []*int {
	return []*int{
		&s.seeds, &s.steps, &s.recoveries, &s.interrupted, &s.cleanStops, &s.brokenStops, &s.lostCheckpoints, &s.powerCuts, &s.kills,
		&s.appended, &s.refused, &s.acked, &s.truncations, &s.trims, &s.deletions, &s.creations,
		&s.replicated, &s.restarts, &s.reads, &s.watermarks, &s.transactions,
		&s.syncFailures, &s.fullDisks, &s.walRecords, &s.walRetired, &s.walFrames, &s.diverted, &s.directSyncs, &s.rolls, &s.quiet,
	}
}

var modelStatNames = []string{
	"seeds", "steps", "recoveries", "interrupted", "clean stops", "broken stops", "lost checkpoints", "power cuts", "kills",
	"appended", "refused", "acked", "truncations", "trims", "deletions", "creations",
	"replicated", "restarts", "reads", "watermarks", "transactions",
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
