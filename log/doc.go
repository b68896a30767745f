// Package log keeps partitions on disk: one directory per partition in Kafka's own file formats, and the log directory
// around them.
//
// # What it owns
//
// A [Dir] is one log directory (one disk). It holds a lock file, a random directory id, the proof of a clean stop, the
// checkpoint of recovery points, the write-ahead log, and one directory per partition:
//
//	<dir>/millrace.lock              held while a process uses the directory
//	<dir>/millrace.directory         the directory id, made once (L11)
//	<dir>/millrace.clean             the proof of a clean stop, written last, removed first (I12)
//	<dir>/millrace.checkpoint        oldest live WAL generation and (log id, recovery point) per partition
//	<dir>/millrace.ballast           bytes given up when a state file must be written on a full disk (L13, W20)
//	<dir>/wal/N                      the write-ahead log
//	<dir>/<topic>-<partition>/
//	    millrace.state               topic id, log id, start offset, recovery point, cut, sealed segments; CRC
//	    partition.metadata           the topic id, as Kafka writes it, and a checksum
//	    leader-epoch-checkpoint      leader epochs and their start offsets, as Kafka writes it
//	    %020d.log                    record batches v2, the only source of truth about records
//	    %020d.index                  offset index: 4 bytes relative last offset, 4 bytes position
//	    %020d.timeindex              time index: 8 bytes timestamp, 4 bytes relative offset
//	    %020d.txnindex               aborted transactions whose markers are in the segment: 34 bytes each, as Kafka's
//	    %020d.snapshot               producer state at that offset, with open and decided transactions
//	<dir>/<topic>-<p>.<log id>-delete    being deleted (W18)
//	<dir>/<topic>-<p>.<log id>-stray     unknown to the metadata, kept (L12)
//
// A [Log] is one partition. It is appended to by one writer at a time, read by any number of readers, and synced by
// the direct path (segments by fdatasync) or the write-ahead log. Both end in one notion, the durable end.
//
// # Invariants
//
//	start ≤ recovery point ≤ durable end ≤ end
//
//	start ≤ last stable offset ≤ high watermark ≤ end
//
// start is the first offset served; the recovery point lies above all bytes known to be in synced segments, the durable
// end above all bytes known to be on the device at all, end is the next offset. Within one log id a log only grows:
// whatever takes records away at the end makes a new log id first (W13), so that a file position of a log id has one
// right content for ever.
//
// Producers, transactions and what readers are told of aborted ones are functions of the batches (P2, P12): a leader, a
// follower and a recovery derive them by the same code, a truncation takes them back. A transaction holds back the last
// stable offset from its first record until its marker is below the high watermark (P13); nothing at or above that
// offset is deleted (L17).
//
// # Locks, in order
//
//	Dir.naming          makes, renames and removes directories; held over file operations
//	Dir.checkpointing   one writer of the checkpoint; held over file operations
//	Log.syncing         one direct sync, checkpoint, truncation or trim of the partition; held over file operations
//	Log.w               the writer: appends, rolls, cuts; held over file operations
//	syncer.lock, walCommitter.lock   queues of work; never held over file operations, like all below
//	Dir.mu              the tables of the directory
//	Log.mu              the published state of the partition: segments, ends, indexes
//	descriptors.mu      the open files
//
// Readers take only Log.mu and descriptors.mu. No callback runs under any of these locks.
//
// # Goroutines
//
// All through [vfs.Tasks], so that the deterministic model can run this very code: SyncWorkers direct sync workers, the
// committer and the keeper of the write-ahead log per Dir, started by [OpenDir] and ended by [Dir.Close]; recovery
// workers during OpenDir; one task for the call of OnFailure. There is no timer: periodic work (rolls by age, background
// syncs, the checkpoint, retention, scrubbing) is [Dir.Tick], which the owner of the directory calls about once a second.
//
// # Callers
//
// replication owns logs: it creates, appends, reads, truncates and deletes them. cmd/broker opens the directory.
// The tools `log dump` and `log verify` use the functions of the inspect files, which need no running Dir.
package log
