// Package txn coordinates transactions: which producer may write under a transactional id, and how its transactions end.
//
// # What it owns
//
// Nothing that lasts. What there is of a transactional id (its producer id and epoch, the open transaction with its
// partitions and groups, a decision whose markers are not all written yet) is committed metadata, and so are the offsets
// that are committed with it: they take effect, or are dropped, in the very step that decides the transaction. A [Coordinator]
// speaks for the ids that metadata.Image.Coordinator gives to this broker. What it alone knows is who waits, and when the time
// of an open transaction is over.
//
// A [Core] is the protocol of one id, a step core without goroutine, clock, lock or I/O: core_init.go for InitProducerId
// (KIP-98, KIP-360, KIP-588), core_end.go for additions and EndTxn of both protocols (KIP-890). The Coordinator is the driver;
// what it has in common with that of package group is in package drive. The deterministic simulator in sim_test.go drives the
// same cores over the real FSM of package metadata.
//
// Beside it stand an [Enlister] and a [Verifier], which the leaders of partitions ask, at whichever broker they are, before a
// transactional batch is appended.
//
// # Invariants
//
// Every transition is one command that is judged where it is applied: whoever proposes it has looked at a state that may be
// another one by then. Of two decisions about one transaction the first that is committed wins (P10), and who made the other
// looks again. A producer is told what is committed, never what is about to be; a request that is made again is answered
// alike (P8, P9).
//
// A decision needs nobody to carry it out: the leaders of partitions write the markers by what the metadata shows them
// (replication/markers.go), and report them to it; what lacks no marker is complete. A coordinator that dies leaves nothing
// behind, at any moment.
//
// A pair of producer id and epoch is given to one producer. What fences takes an epoch that nobody is given, or that whoever
// had the pair before it may ask for, once, instead of its own (Transaction.LastProducerID).
//
// # Time
//
// The time of a transaction is measured by the coordinator's monotonic clock from when it sees it begin (I22). After a move
// the time stamp of the beginning counts, never for more than the whole time-out. A request that meets the markers of the
// transaction before is held for Settings.MaxHold at most, not sent away at once (protocol.md trap 29); so is the first batch
// of a transaction, by the Enlister.
//
// # Memory
//
// A core is there while its transaction is open, or somebody waits: an id that is idle, or whose markers are being written,
// has none.
//
// # Callers
//
// transport/kafka calls the methods of Coordinator, Enlister and Verifier, with callbacks, which are called with no lock
// held; cmd/broker makes the Coordinator, transport/kafka the others, after the metadata store; they are closed before it.
//
// # Locks, in order
//
//	entry.mu    one id: its core; held over reading the Image, over nothing that waits
//	those of drive.Table, drive.Deadlines    which ids are at work, whose deadline comes first
//	Enlister.mu    who waits; taken with no other lock held
//
// Proposals are made and answers given with no lock held.
//
// # Goroutines
//
// Two per Coordinator, in [Coordinator.Run]: one follows the metadata, one keeps the time; and one for each producer id that is
// being fetched, which an id needs when it is new, and every 32766 epochs. An Enlister has one while somebody waits for
// markers.
package txn
