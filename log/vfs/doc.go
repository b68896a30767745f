// Package vfs is the seam between package log and the machine: the few file calls a log needs, and the few
// concurrency primitives it may use around them.
//
// It owns
//   - FS and File: what the log asks of a file system. OS is the real one, Mem lives in memory and can be crashed at
//     any moment (which unsynced blocks, sizes and directory entries survive is decided by a seeded generator), Faulty
//     fails on order.
//   - Tasks: goroutines, locks and condition variables. RealTasks are Go's own; Sim runs everything as coroutines of
//     one thread, and a seeded generator decides at each file operation and each wait who runs next, so that a run of
//     the real code is replayed exactly by its seed.
//
// Invariants
//   - WriteAt and WritevAt write everything or return an error; a short write without an error does not exist above
//     this package (L14: partial writes and EINTR are finished here).
//   - Sync covers all that was written to the file before it was called. Data written while it runs may or may not be
//     covered. A failed Sync says nothing about what reached the disk and is never repeated by a caller (L2).
//   - A new, renamed or removed name is durable only after SyncDir of its directory (L3); ReplaceFile is the one helper
//     that does all steps in order.
//
// Called by package log only. It starts no goroutine of its own except those that a caller asks for with Tasks.Go.
package vfs
