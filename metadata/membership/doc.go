// Package membership finds the other brokers and notices when one falls silent. It reduces hashicorp/memberlist to
// events: Join, Update, Fail, Leave, Clash.
//
// # What it owns
//
// The gossip port (TCP and UDP under one number), the gossip keys, the list of seeds and their retries. It knows nothing
// of clusters: what a member says of itself is an opaque Meta, and whom to let in is decided by Config.Admit.
//
// # Invariants
//
// An event is a hint. Nothing here removes a voter, fences a broker or evicts a consumer (M15, G8): the controller looks
// for itself and decides by command. An event says how a member stands now, so events of one member that are not read in
// time are merged and the queue is no longer than the list of members is.
//
// A member's name belongs to one process. When another process answers to our own name, at another address, that is a
// Clash (M13); whoever it concerns finds out which of the two came later and ends it.
//
// Bytes from strangers never end the process, and what they may make it hold is bounded: by Admit (a member whose Meta is
// refused is not stored), by the size of a packet, by the number and life of connections; messages that would have to be
// unpacked are not read at all, for this package sends none. With a key set, nothing unencrypted is read.
//
// # Goroutines
//
// memberlist's own, two that read the port, one that delivers events, one that tells news (with one for each member that it tells, for
// 150 ms at most) and one per round of seeds. Close waits for all but
// memberlist's, which end by themselves once it is shut down.
//
// # Callers
//
// cmd/broker.
package membership
