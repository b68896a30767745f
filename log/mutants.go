package log

// mutant is a set of protocol steps that a test may switch off, one at a time: the deterministic model must notice each
// (wal.md 3 says what goes wrong without it; correctness.md for transactions). Config.mutants is set by tests of this package only; the look at it costs
// nothing beside the file operation that it guards.
type mutant uint64

const (
	// mutantWALFirst keeps a run for the write-ahead log before the segment is written (W1).
	mutantWALFirst mutant = 1 << iota
	// mutantCutBackUnsynced cuts a failed write back without syncing the cut (W2).
	mutantCutBackUnsynced
	// mutantSkipSame lets redo skip a record whose bytes the segment seems to hold (W3).
	mutantSkipSame
	// mutantHoles advances the durable end to the end of whatever is done (W4).
	mutantHoles
	// mutantActiveOnly syncs only the active segment (W5).
	mutantActiveOnly
	// mutantLateEnd reads the end after the sync instead of before (W5).
	mutantLateEnd
	// mutantLateClean marks a segment clean although bytes came in during its sync (W5).
	mutantLateClean
	// mutantSegmentName leaves out the sync of the directory after a roll (W5).
	mutantSegmentName
	// mutantOldCompletion counts a completion of an older history (W7).
	mutantOldCompletion
	// mutantHeaderUnsynced does not wait for a new generation's header before its first frame (W8).
	mutantHeaderUnsynced
	// mutantAnyFrame takes every whole frame for live, of whatever generation and sequence (W9).
	mutantAnyFrame
	// mutantReuseEarly reuses a file before the checkpoint that retires it (W11).
	mutantReuseEarly
	// mutantRetireUnsynced retires a file without syncing the segments (W11).
	mutantRetireUnsynced
	// mutantShortFile takes a WAL file into use without filling it (W12).
	mutantShortFile
	// mutantSameID keeps the log id at a truncation (W13).
	mutantSameID
	// mutantCutUnsyncedSegments truncates without syncing what stays first (W14).
	mutantCutUnsyncedSegments
	// mutantCutFirst cuts the files before the intent is written (W14).
	mutantCutFirst
	// mutantNoIntent truncates without writing an intent (W14).
	mutantNoIntent
	// mutantCutUnsynced does not sync the cut segment (W14).
	mutantCutUnsynced
	// mutantIntentStays does not clear the intent (W14).
	mutantIntentStays
	// mutantStartUnsynced moves the start into unsynced bytes (W15).
	mutantStartUnsynced
	// mutantUnlinkFirst unlinks segments before the new start is durable (W15).
	mutantUnlinkFirst
	// mutantCachedRecovery reads what a failed sync left in the cache (W17).
	mutantCachedRecovery
	// mutantIgnoreSyncError goes on after a failed sync (W17, L2).
	mutantIgnoreSyncError
	// mutantCreateUnsynced does not sync the parent of a new partition (W18).
	mutantCreateUnsynced
	// mutantDeleteUnsynced does not sync the parent after the renaming of a deleted partition (W18).
	mutantDeleteUnsynced
	// mutantNoSyncAll acts on state files that are only in the cache (wal.md 4 step 1).
	mutantNoSyncAll
	// mutantServeCached does not sync what recovery scanned (L4, wal.md 4 step 7).
	mutantServeCached
	// mutantNoGeneration begins no new generation at the end of recovery (wal.md 4 step 8).
	mutantNoGeneration
	// mutantOverwriteLive begins the new generation in a file that is still needed (wal.md 4 step 8).
	mutantOverwriteLive
	// mutantEarlyMarker lets a marker count as soon as it is in the log (P13).
	mutantEarlyMarker
	// mutantKeepTransactions does not roll the transactions back with a truncation (P2).
	mutantKeepTransactions
	// mutantForgetOpen recovers without the transactions that were open at the snapshot (P12).
	mutantForgetOpen
	// mutantAbortedKept does not cut the index of aborted transactions at a truncation (trap 20).
	mutantAbortedKept
	// mutantAbortedTrusted takes an index of aborted transactions for what its file holds, and does not sync it.
	mutantAbortedTrusted
	mutantEnd
)

// has says whether m is switched off.
func (set mutant) has(m mutant) bool { return set&m != 0 }
