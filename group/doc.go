// Package group coordinates consumer groups: who is a member, in which generation, with which share of the work.
//
// # What it owns
//
// Nothing that lasts. Groups, their members, generations, assignments and offsets are committed metadata; what a
// coordinator alone knows is who waits, whose session ends when, and which member ids were handed out and not used yet. A
// [Coordinator] speaks for the groups that metadata.Image.Coordinator gives to this broker, and for those only.
//
// A [Core] is the protocol of one group, a step core without goroutine, clock, lock or I/O: classic*.go for JoinGroup and
// SyncGroup with dynamic and static members (KIP-345, KIP-394, KIP-814), consumer*.go for KIP-848, assignor*.go for its
// assignors. The Coordinator is the driver: it feeds the cores requests, deadlines and the outcomes of proposals. What it has
// in common with the driver of package txn is in package drive. The deterministic simulator in sim_test.go drives the same
// cores over the real FSM of package metadata.
//
// # Invariants
//
// What a member is told is committed first (G5): a generation with its members before JoinGroup is answered, its assignments
// before SyncGroup is. A change names the revision it was decided on, and the FSM refuses it unless its proposer coordinates
// the group where it is applied; so there may be two who believe to coordinate, but only one who can do anything about it.
//
// One change of a group is on its way at a time. One whose outcome is unknown is proposed again until it is known (M11);
// requests that could lead to another change wait meanwhile, heartbeats and commits do not.
//
// A group that moves goes on in its generation, with full sessions for all (G6). One whose coordinator died is marked in the
// metadata, and gets one new generation with the same members, or with millrace.group.failover=resume nothing but the mark
// taken off (D6). Sessions are measured by the monotonic clock (I22); a process that was held up, or that had no lease, gives
// its members the time back.
//
// Offsets that are committed with a transaction (TxnOffsetCommit) are fenced like others (G14), and are pending until the
// transaction is decided, in whose step they take effect or are dropped (I8). Package group/txn coordinates transactions; it
// and this one meet in the metadata alone.
//
// An administrator's seek of a group with members is one change: it puts them out and sets the offsets, or does nothing
// (core_seek.go).
//
// What happened lately to a group, who came, who went and why, who was not let in, is remembered for people (history.go): it
// decides nothing, does not last, and is bounded.
//
// # Storms
//
// Ids that were handed out and not used hold a rebalance up for a second at most, and a group remembers a thousand of them.
// New members that come while generations follow each other within a second wait for each other (stormQuiet): what 200
// members write that come one after the other stays linear in their number. Members that do not sync are given up after the
// rebalance timeout. Members that could not know of a rebalance, because nothing was heard of them, or that were told just
// before its end, have up to 3 s more to join (givenUpAt): or clients that look seldom put each other out for ever.
//
// # Callers
//
// transport/kafka calls the methods of Coordinator, with callbacks, which are called with no lock held; cmd/broker makes it,
// after the metadata store, runs it and closes it before the store.
//
// # Locks, in order
//
//	entry.mu    one group: its core; held over reading the Image, over nothing that waits
//	histories.mu    what is remembered for people; held over nothing else
//	those of drive.Table, drive.Deadlines    which groups are at work, whose deadline comes first
//
// Proposals are made and answers given with no lock held.
//
// # Goroutines
//
// Two per Coordinator, in [Coordinator.Run]: one follows the metadata, one keeps the time. None per group or member.
package group
