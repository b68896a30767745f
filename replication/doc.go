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
// a thin driver that feeds it events and carries out its actions. The deterministic simulator in sim_test.go drives the
// same core, with the real FSM of package metadata as the controller.
//
// # How replicas follow
//
// A follower asks its leader through a [Fetcher], of which a manager has one per leader broker for all partitions it
// leads: positions that changed go out, answers come back with what has news. A position is a report: everything below
// is held, durably with millrace.flush.ack, so the next request goes out when the last answer is synced (fetcher.go). The
// leader's end is a [FollowerSession], which knows for each partition what was reported and told and looks only at those
// with news. What a leader concludes about the ISR goes to the controller in batches (proposals.go).
//
// A damaged log is never cut or repaired in place: its replica leaves ISR and ELR, is deleted, and is copied anew
// (corrupt.go). A log is cut only where its leader's epochs say so, never below the high watermark unless an unclean
// election is on record (R1, R25).
//
// # Transactions
//
// The log knows which transactions are open, and the last stable offset with it. Their markers are written here, by the leader
// of each partition, because the metadata shows a decided transaction that lacks them (markers.go, and the step core in
// marker_core.go): no coordinator has to live for that, and no leader that comes has to be told (P9). A marker is asked for
// once more at its place in the log (MarkerRequest.MayAppend), as a batch that would open a transaction is
// (AppendRequest.MayBegin), both by the newest Image: so nothing opens a transaction behind its own marker, and no marker ends
// the transaction after its own (P7). It counts, and is reported, when it is below the high watermark (P13).
//
// # Invariants
//
//	logStartOffset ≤ lastStableOffset ≤ highWatermark ≤ logEndOffset
//
// No consumer reads at or above the high watermark, no reader of committed records at or above the last stable offset
// (I3). The latter is the log's function of its batches and of the high watermark, the same on every replica. With
// millrace.flush.ack the high watermark is at most the durable end of every replica in the maximal ISR, this one included,
// so acknowledged means on stable storage there (I2); without, it is the least end. It never goes back (I4). A request that waits is answered in the leader epoch in
// which it was appended, or with an error that leaves the outcome open (R23).
//
// # Callers
//
// transport/kafka calls Append, Read, Park, ListOffset, EpochEnd, DeleteRecords and, for the brokers' own listener,
// OpenFollowerSession; transport/peer implements [Peers]; cmd/broker opens and closes the Manager, between the log
// directory and the transport, renews its lease with each heartbeat, and drains it before a planned stop.
//
// # Locks, in order
//
//	Partition.queue   appends that wait for their turn; never held over anything
//	Partition.mu      the core; held over log.Append and, on a follower, over a cut of its log (W14), over no other fsync
//	fetchers.mu       which leaders are followed; then fetcher.mu, the positions to send to one
//	FollowerSession.mu  what one follower was told; then throttle.mu
//	waiterList.mu     the fetches parked on a partition
//	proposals.mu, teller.mu, chores.mu, markerWriter.mu, checkpointing  queues and the checkpoint file; taken last, hold nothing
//
// The committer of the log never waits for Partition.mu, because an appender may hold it while it waits for the
// committer: it sets a flag and tries the lock, and whoever holds it looks at the flag after letting go. Results and
// wakes are delivered with no lock held.
//
// # Goroutines
//
// Seven per Manager, started by [Open], ended by [Manager.Close]: one follows the metadata (with a few workers while logs
// are opened), one ticks the log directory, the partitions with other replicas and the checkpoint, one drains the queues
// of partitions whose appenders have served others long enough, one carries ISR proposals, one tells idle followers of
// high watermarks, one moves followers' log starts, one writes the markers of transactions. One more per leader broker that is followed, while there is something
// to follow. Besides, a timer per partition that has requests waiting; none per replica.
package replication
