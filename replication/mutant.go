package replication

// mutant names a rule of the protocol that a binary built with the tag mutants can be told to break.
type mutant string

// The rules. Elsewhere than in such a binary the switches compile to nothing.
const (
	mutantHighWatermark   mutant = "high-watermark-off-by-one"  // R9: one record counts that not everybody has
	mutantAckBeforeSync   mutant = "ack-before-sync"            // I2: what is written counts as durable
	mutantIgnoreEpoch     mutant = "ignore-epoch"               // R3: the leader does not compare the follower's last epoch
	mutantTruncateToWater mutant = "truncate-to-high-watermark" // R1: a new follower cuts what it does not know to be committed
	mutantUnstableReads   mutant = "read-past-last-stable"      // I3: readers of committed records get those of open transactions
	mutantNoAborted       mutant = "no-aborted-list"            // I3: they are not told which transactions were aborted
	mutantSkipMarker      mutant = "skip-marker"                // I8: the marker of one partition is reported, and never written
)
