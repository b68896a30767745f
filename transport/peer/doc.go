// Package peer is how brokers talk to each other.
//
// # What it owns
//
// [Peers] has one listener, by default on port 9093, and all connections from this broker to others. The first byte of a
// connection says what it is: 'R' a Raft stream, 0 the size of a Kafka frame. Either begins with a hello in both
// directions that names cluster, node id, directory id and incarnation; whoever does not belong here is refused with the
// reason and the mend, on both sides.
//
//	raft.StreamLayer         StreamLayer   a stream per connection, for hashicorp/raft
//	metadata.Forwarder       Forward       operations of the controller, over the connection for calls
//	                         Call, Handle  formation and whatever else has a method name
//	                         Probe         is that process alive? one connection, one round trip
//	replication.Peers        OpenFetcher   Kafka's Fetch, one connection and session for each fetcher
//
// The listener's requests go through a transport.Server of its own: frames, TLS, limits and the order of answers are its
// business. Fetches of followers are passed to the handler given to ServeReplicas.
//
// # Invariants
//
//   - Before the hello no more than 64 KiB are read, in no more than ten seconds; nothing but a hello is understood.
//   - A connection whose hello was accepted is with a process of this cluster, or of none yet, that is neither a second
//     one with this broker's node id nor one with a copy of its data directory (M13, M14).
//   - Every wait has an end: dialing, hello, a call, a fetch, the sending of each frame (N2). A connection with open
//     calls whose other end is silent is asked for a sign of life and then given up.
//   - An error says whether something may have happened: [ErrUnreachable] nothing was sent, [ErrBroken] it is open.
//   - Ends of connections that nobody wanted are told to Config.Broken; that is a hint and nothing else (D5).
//
// # Wire
//
// The hello and the errors of calls are JSON, for a later version to add to; the rest is binary. Private keys begin at
// 20,000 and never appear on a client's listener. Answers of a connection for calls come in any order.
//
// # Goroutines
//
// The transport.Server's; one that watches the connections for calls; one reader per connection for calls; one per call
// that is being served. Fetchers run on their callers' goroutines. All end with [Peers.Close].
//
// # Locks
//
// Peers.mu, then callTarget.mu, then callConn.mu; callConn.writing is taken with none of them held.
//
// The package writes no files; it reads the PEM files of its certificate.
package peer
