// Package replication makes partitions of logs: appends with acknowledgements, the high watermark, leader epochs, the
// in-sync replicas, reads and long polls.
//
// # What it owns
//
// A [Manager] holds the replicas of one broker. It watches the metadata image and makes it so: logs created, deleted by
// committed tombstones, set aside when unknown (L12), leaders made, settings changed. It owns the logs of a log.Dir,
// though not the Dir, and one file in its directory: replication-offset-checkpoint, the high watermarks, a hint that is
// ignored when damaged (L5).
//
// A [Partition] is one replica: the protocol, a step core ([Core]) without goroutine, clock, lock or I/O, and around it
// a thin driver that feeds it events and carries out its actions. The core is written for many replicas: maximal ISR,
// follower positions, divergence, truncation. One broker alone drives the leader's half of it; the deterministic
// simulator in sim_test.go drives all of it.
//
// # Invariants
//
//	logStartOffset ≤ lastStableOffset ≤ highWatermark ≤ logEndOffset
//
// No consumer reads at or above the high watermark (I3). With millrace.flush.ack the high watermark is at most the
// durable end of every replica in the maximal ISR, this one included, so acknowledged means on stable storage there
// (I2); without, it is the least end. It never goes back (I4). A request that waits is answered in the leader epoch in
// which it was appended, or with an error that leaves the outcome open (R23).
//
// # Callers
//
// transport/kafka calls Append, Read, Park, ListOffset, EpochEnd, DeleteRecords; cmd/broker opens and closes the
// Manager, between the log directory and the transport.
//
// # Locks, in order
//
//	Partition.queue   appends that wait for their turn; never held over anything
//	Partition.mu      the core; held over log.Append, never over an fsync of this package's making
//	waiterList.mu     the fetches parked on a partition
//
// The committer of the log never waits for Partition.mu, because an appender may hold it while it waits for the
// committer: it sets a flag and tries the lock, and whoever holds it looks at the flag after letting go. Results and
// wakes are delivered with no lock held.
//
// # Goroutines
//
// Three per Manager, started by [Open], ended by [Manager.Close]: one follows the metadata (with a few workers while
// logs are opened), one ticks the log directory and writes the checkpoint, one drains the queues of partitions whose
// appenders have served others long enough. Besides, a timer per partition that has requests waiting.
package replication
