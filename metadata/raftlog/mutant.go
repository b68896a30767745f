package raftlog

// mutant is a set of steps that the tests of this package leave out, one at a time: the model must notice each. The look at it
// costs nothing beside the file operation that it guards.
type mutant uint32

const (
	// mutantNoSync returns from an append before it is durable.
	mutantNoSync mutant = 1 << iota
	// mutantCutUnwritten removes a tail in memory only.
	mutantCutUnwritten
	// mutantRotIsTorn cuts off whatever does not fit at the end of the log.
	mutantRotIsTorn
	// mutantUnlinkFirst removes segments before the record says so.
	mutantUnlinkFirst
	// mutantTornStays leaves sectors of a torn batch where they are.
	mutantTornStays
	// mutantErasedOnce erases a torn batch, and believes that it is gone when it can't be seen.
	mutantErasedOnce
	// mutantCached believes the last batch although its sync may have failed.
	mutantCached
	// mutantNameUnsynced records a segment whose name is not durable.
	mutantNameUnsynced
	// mutantSegmentUnsynced records a segment before its zeros are durable.
	mutantSegmentUnsynced
	// mutantNoNumbers does not look at the numbers of batches.
	mutantNoNumbers
	// mutantNoDurable does not look at what the record says is durable.
	mutantNoDurable
	// mutantAnyRetry lets another batch take the place of one that was refused for lack of space.
	mutantAnyRetry
	mutantEnd
)
