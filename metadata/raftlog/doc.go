// Package raftlog keeps the entries of Raft's log on disk: appended with one write and one sync, found by their index in
// memory, removed from the front by whole files and from the end by a note that follows them.
//
// It owns the segments in one folder, and a record of a few bytes that names them and that somebody else keeps (package
// metadata, in raft.db). It imports nothing of ours. Package metadata opens a Log, guards it and gives it to Raft.
//
// # Files
//
//	<number>.entries    a segment: a header, then batches, then zeros to the end
//
// A segment is written full of zeros, and synced with its name, before the record has it. So an append writes over what is on the
// disk already: neither the file's size nor its blocks change, and fdatasync has nothing to write but the bytes. The first has 256 KiB,
// the next 1 MiB, those after 4 MiB (more for a single entry that is larger); makeAhead makes the next one while there is room
// in the present one. The formats are in sector.go, batch.go, segment.go and record.go.
//
// # Invariants
//
//   - Batches are numbered without a gap over all segments. All but the last are durable, and the record says up to which
//     number at least.
//   - Nothing that was written is written over, but by itself and, before anybody was told of it, by zeros. A cut is a batch of
//     its own that says from which index on the entries before it don't count: they can't come back, for the cut
//     stands before all that follows.
//   - Segments go from the front only, after the record no longer names them: a cut never goes before the entries that it
//     removes.
//   - The entries that count have rising indexes, those in one segment without a gap. A gap, which a snapshot from a leader may leave,
//     begins a new segment.
//   - After the first error nothing is written any more (M7), but for what was refused for lack of space: that may be repeated as
//     it was, and nothing else may take its place.
//
// # Torn or rotten
//
// A crash during an append leaves some of its sectors as written and the others as zeros, for nothing was there before. It was
// not acknowledged, so Open erases it, the batch as a whole: its entries would be allowed to stay, but half a batch has no sum.
// Anything else that is not as it was written is damage, and Open refuses it (M6, I14, I19): a sector that is neither zeros nor
// what its sum says, in the last batch too; an empty one with written ones behind it that are not of the same batch; a batch
// whose number does not follow; a segment that is gone or shorter. What can't be told from a crash is that whole
// sectors of the very last batch turned to zeros, and then only if the log was not closed: Close notes where it ends.
//
// What a failed sync left in the file system's cache looks written and is not on the disk. Unless the log was closed, Open writes its
// last batch and the zeros behind it again, and syncs them, before anybody may count on them.
//
// 2026-11-30: not github.com/hashicorp/raft-wal, whose segments, record in bbolt and ready-made files are much like these. Its recovery
// takes any last batch with a sum that does not fit for a torn one and drops it, as it takes what was committed for never
// rotten; a bit that flips in what was acknowledged last is an entry that a voter silently forgets (M6, M14). It does not sync again
// what recovery found. And a segment that a cut leaves is sealed, a new one begun: two more syncs.
//
// # Cost
//
// Beside raft-boltdb, in one run on a disk and machine that others used too (BenchmarkStoreLogs, -DeleteRange, -OpenLog of package
// metadata): an append of one entry of 200 B takes 0.33 ms instead of 1.24 (3.8x faster), of 64 0.76 instead of 2.2 (2.9x); 10 000
// entries leave the front in 3.6 ms instead of 7.2, without holding up an append; 100 000 are read and checked at a start in 0.10 s
// instead of 0.57. An entry takes 8 bytes of memory, and 40 bytes and up to 511 of padding for its batch on disk.
//
// # Goroutines and locks
//
// One, makeAhead, from Open or Create to Close. Appends and cuts hold writing, whatever stores the record shaping; the index in
// memory is under mu, for moments. Lock order: writing, shaping, mu. So neither a removal from the front nor the making of
// a segment holds up an append.
//
// # Tests
//
// model_test.go runs the code on a disk (disk_test.go) that crashes at any operation, keeps unsynced sectors and names by chance,
// fails syncs, fills up and rots; mutant.go lists the steps that it notices the lack of.
package raftlog
