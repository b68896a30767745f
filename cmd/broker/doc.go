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
//	<data>/meta.properties   who wrote it; written once, after the cluster id is known
//	<data>/broker.pid        the process that holds it, for error messages only; the lock is the log's
//	<data>/raft/             the metadata store (metadata.log.dir puts it elsewhere)
//	<data>/…                 the log directory (package log)
//
// # Order
//
// Start: HTTP (so that /livez answers while logs are recovered) → identity → log directory → metadata store → listeners
// bound → registration → replication → handlers → requests. Stop: the reverse, each step bounded. The list is in run.go.
//
// # Invariants
//
// No client is answered before the metadata has caught up (trap 12). A cluster is formed only over an empty directory
// (M18). A poisoned log directory or a failed metadata store ends Run with the error (L2, M7, W17).
//
// # Goroutines
//
// Run's own and those of the parts; one that serves HTTP, one that waits for the transport. All have ended when Run
// returns.
//
// # Callers
//
// cmd/millrace (start, dev), and tests and benchmarks that embed a broker.
package broker
