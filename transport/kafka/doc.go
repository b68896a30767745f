// Package kafka gives the requests of package transport their meaning: it decodes
// them, asks the packages below, and builds the answers that Kafka's clients
// expect, in every version that the table advertises.
//
// # What it owns
//
// The version table (table.go), the error codes (errors.go, the only file that
// knows them), fetch sessions (fetch_session.go), where consumers read, for people
// (fetch_readers.go), and the wire form of produce requests and fetch answers. One file per API key, numbered, opens with its
// versions and what each changed.
//
// # Invariants
//
//   - What ApiVersions advertises, what the dispatcher serves and what the handlers
//     mean come from one table. A key or version outside it closes the connection
//     without an answer; only ApiVersions is answered in any version (N11).
//   - A body that is not what its version says closes the connection. What a request
//     may make us allocate is accounted for before it is decoded (N4, I23).
//   - Produce batches of one connection are appended in the order they came:
//     Partition.Append is called on the connection's reader goroutine, which waits
//     while a partition becomes part of a transaction (produce_transactional.go).
//   - A transactional batch is appended only to a partition that is part of its
//     producer's open transaction: asked before the append is queued, and once more
//     at the batch's place in the log (P7).
//   - A definite error code (correctness.md part 2) is sent only when nothing was
//     appended and nothing ever becomes visible (I17).
//   - Record bytes stay where they are: in the request's frame until the log has
//     them, in the log until the transport copies them to the socket.
//   - Responses are never built by struct literal: kmsg's zero values of tagged
//     fields are not their defaults, and would tell consumers to truncate.
//   - High watermark, last stable offset and log start offset are in every fetch
//     answer; records are empty, never null.
//
// # Callers
//
// cmd/broker makes the Handlers and hands them to a transport.Server. The server
// must not accept before metadata.Store.Ready and replication.Manager.Ready: until
// then existing topics would be called unknown (trap 12).
//
// # Followers
//
// [Handlers.Replicas] answers the fetches of other brokers, on their own listener
// and for nobody else (S5). A follower's session lives with its connection; what
// has news is replication's to know, so an answer costs what it says.
//
// # Goroutines
//
// Handlers run on the connection's reader goroutine. Those that wait for the
// controller or for several syncs get one of their own by transport.Request.Go. A
// produce is answered by whoever completes its last partition, mostly the log's
// committer; a parked fetch by the goroutine that writes to its connection. Of its
// own the package starts one goroutine for each topic being created on demand, one
// that waits for the server to drain, and those of package txn's Verifier and
// Enlister; Close waits for all.
//
// # Locks
//
// parkedFetches.mu comes before the locks of replication's waiter lists;
// fetchSession.mu comes before those of a partition. The session cache's lock may
// be taken while a session's is held, never the other way round. fetchReaders.mu
// may be taken then too; held over finding a partition, over nothing that waits.
//
// The package writes no files.
package kafka
