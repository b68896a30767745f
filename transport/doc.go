// Package transport carries the Kafka protocol's frames: listeners, TLS, framing, the order of answers on a connection, memory and
// connection limits, throttling. It knows request and response headers and nothing of what a request means; package
// transport/kafka implements [Handler].
//
// # What it owns
//
// Sockets, the bytes in flight, and the goroutines that move them. Every request read from a connection is one [Request] with one
// slot in that connection's queue; answers leave in the order of the requests, however late and from whichever goroutine they
// come.
//
// # Invariants
//
//   - A connection's answers leave in request order, and [Handler.Handle] is called in request order on one goroutine (N7). Only a
//     handler of brokers among themselves may ask for answers as they come ([Conn.SetUnordered]).
//   - A connection that begins with the byte of another protocol of its listener leaves the server before anything else of it is read
//     ([ListenerConfig.Streams]).
//   - Memory for a frame is taken as its bytes arrive, not on the word of its length prefix (N3), and charged to a budget shared by all
//     connections, of which half at most is lent ahead; a connection that finds no room stops reading. A frame that holds part
//     of the budget can always finish (see budget.go), so the budget can't deadlock.
//   - Answers are held back, to share a write, only while the reader has something to do: before it waits for anything it writes them.
//   - Frame memory, large chunks and turns to write records are divided among the addresses that clients come from (source), so that one of
//     them, whatever it does on however many connections, leaves the others theirs (N6, N8).
//   - A connection that is silent, before its first request too, holds no buffer, no writer and no stack above 2 KiB (N6): 4 KiB in all,
//     what TLS keeps and the kernel's memory aside. [Handler.Handle] may be called on another goroutine than the time before.
//   - A peer that does not read costs a bounded number of bytes and is cut off when a write makes no progress (N1).
//   - The context of a connection ends with it, so nothing waits for a dead peer (N2).
//   - A panic in a handler closes its connection only, unless it passed through a package below transport: then the process ends (N9).
//   - Sources of a spliced response are released exactly once, on every path.
//
// # Goroutines
//
// Per listener one acceptor, and one certificate watcher when it speaks TLS. Per connection one reader, which also answers whatever is
// ready when [Handler.Handle] returned, and one writer from the first time an answer comes later than that. A connection that is silent
// rests (rest.go): it has neither, but one goroutine that waits with Go's smallest stack and no buffer, and its reader is a servant, a
// coroutine in the place of that goroutine; at most sixteen of those are kept. Who answers by [Request.ReplyDirect] may write in the
// writer's place, one small answer without waiting. [Request.Go] starts one for a handler that must block. All
// belong to the [Server]; [Server.Shutdown] waits for them.
//
// # Locks
//
// Conn.mu guards a connection's queue. Server.mu may be held when budget.mu is taken, and budget.mu when Conn.mu is; the mutexes of turns,
// certificates and metrics are leaves. Neither a handler's code nor a
// source's nor an encoder's is called with a lock held.
//
// The package writes no files; it reads the PEM files of its TLS listeners.
package transport
