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
//	    partition.metadata           the topic id, as Kafka writes it
//	    leader-epoch-checkpoint      leader epochs and their start offsets, as Kafka writes it
//	    %020d.log                    record batches v2, the only source of truth about records
//	    %020d.index                  offset index: 4 bytes relative last offset, 4 bytes position
//	    %020d.timeindex              time index: 8 bytes timestamp, 4 bytes relative offset
//	    %020d.snapshot               producer state at that offset
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
// start is the first offset served; the recovery point lies above all bytes known to be in synced segments, the durable
// end above all bytes known to be on the device at all, end is the next offset. Within one log id a log only grows:
// whatever takes records away at the end makes a new log id first (W13), so that a file position of a log id has one
// right content for ever.
//
// # Locks, in order
//
//	Dir.naming, Dir.checkpointing  what makes and removes directories, who writes the checkpoint; held over file operations
//	Log.syncing  one direct sync, checkpoint, truncation or trim of the partition at a time; held over file operations
//	Log.w      the writer: appends, rolls, truncation, trimming; held over file operations
//	walCommitter.lock, syncer.lock  what waits for frames and for syncs; never held over file operations
//	Dir.mu     the tables of the directory; never held over file operations
//	Log.mu     the published state of the partition: segments, ends, indexes; never held over file operations
//	wal.mu, descriptors.mu  the ring of files, the open files; never held over file operations
//
// Readers take only Log.mu and descriptors.mu; one that met a truncation waits for its end at Log.syncing, holding
// nothing. No callback runs under any of these locks.
//
// # The write-ahead log
//
// Small sets of all partitions become durable together: the committer writes what waits as one frame, with one
// fdatasync, into a ring of recycled files (wal_format.go has the formats). Large sets, and sets without flush.ack, go
// straight to their segment and its fdatasync. The log is an accelerator: everything works without it, and a directory
// may be opened with it on or off, whatever the last process did. Segments are always written first; a frame only says
// again what was written, so redo is a plain write of the same bytes and its order does not matter. A file is retired,
// and used again, once the segments of its records are synced and the checkpoint says so. Bytes of a deleted partition
// stay in the ring until they are overwritten: WALFiles × WALFileBytes at most.
//
// # Goroutines
//
// All through [vfs.Tasks], so that the deterministic model can run this very code: SyncWorkers direct sync workers, and
// the committer and the keeper of the write-ahead log per Dir, started by [OpenDir] and ended by [Dir.Close]; recovery workers during
// OpenDir. Periodic work is [Dir.Tick]; [Dir.Run] calls it from the only ticker of the package.
//
// # Callers
//
// replication owns logs: it creates, appends, reads, truncates and deletes them. cmd/broker opens the directory.
// The tools `log dump` and `log verify` use the functions of inspect.go, which need no running Dir.
package log
