// Package drive is what the drivers of step cores have in common: package group drives one core for each group, group/txn
// one for each transactional id.
//
// # What it owns
//
// A [Table] keeps the entries that are at work, by name, and no others: an entry without anything to remember is taken out.
// [Deadlines] says whose time comes next. A [Life] is Run and Close of a coordinator: who came first, and who waits for whom.
// What an entry holds, its lock, and what happens to its core is the business of the coordinator.
//
// # Invariants
//
// A name has one entry in a table at a time. Who takes an entry out does it with the entry's lock held, and marks it: whoever
// found it before and waited for its lock sees that it is gone, and looks again.
//
// An entry has one deadline, the last that was set.
//
// # Locks
//
// Those of this package are held over nothing that waits or calls back. They may be taken with an entry's lock held.
//
// # Goroutines
//
// None of its own; [Life.Run] runs two for its caller, one of them the caller's.
package drive
