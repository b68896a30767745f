// Package broker puts a broker together: it is the only place where all parts meet.
//
// # What it owns
//
// The configuration of a whole broker (Config), its layers (Settings: properties file, environment, --set), the identity
// kept in the data directory (meta.properties: cluster id, node id, directory id), the order in which parts start and
// stop, and what its health endpoints say.
//
// The data directory:
//
//	<data>/meta.properties   who wrote it; written once, after the cluster id is known, and again by a broker that takes its
//	                         own place anew because its metadata is gone (renewal.go)
//	<data>/formation.json    what this broker granted while a cluster was formed (M18); kept for who still asks
//	<data>/broker.pid        the process that holds it, for error messages only; the lock is the log's
//	<data>/raft/             the metadata store (metadata.log.dir puts it elsewhere)
//	<data>/…                 the log directory (package log)
//
// # Order
//
// Start: HTTP (so that /livez answers while logs are recovered) → identity → log directory → listener for other brokers →
// gossip → formation or joining (formation*.go) → metadata store → place in the quorum → caught up → listeners bound →
// registration, fenced → replication → group coordinator → transaction coordinator → handlers → requests → heartbeats, which take it out of its fence. Stop: the reverse,
// each step bounded; it begins with handing over what this broker leads and coordinates (session.go): its groups move as
// soon as the controller knows that it leaves, and what still waits is answered when requests end. The list is in run.go.
//
// A broker that is started for this machine alone has neither a listener for others nor gossip; those steps are empty.
//
// # Invariants
//
// No client is answered before the metadata has caught up (trap 12). A cluster is formed only over an empty directory
// (M18), and one of several brokers only with a grant of each, which is on disk before it is answered. A process with the
// directory of another that runs ends before its Raft starts (M13). A poisoned log directory or a failed metadata store ends Run with the error (L2, M7, W17).
//
// # Goroutines
//
// Run's own and those of the parts; one that serves HTTP, one that waits for the transport; with other brokers one that
// reads gossip, the coordinators' of groups and of transactions, one that looks for partitions that a transaction holds back, one per question while a cluster is formed, one for heartbeats and, at the controller, one that compares
// gossip with the registrations. All have ended when Run returns. TuneProcess, which is a program's and not Run's, starts one that collects
// garbage while nothing else asks for it (resting_heap.go) and one that has a broker at rest make do with fewer threads
// (resting_threads.go); they never end.
//
// # Callers
//
// cmd/millrace (start, dev), and tests and benchmarks that embed a broker.
package broker
