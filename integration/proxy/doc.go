// Package proxy is a TCP proxy that stands between a client and a broker, or between two brokers, and knows where a
// Kafka request begins and ends. Tests and the fault driver use it to hold, delay or lose single requests and answers,
// to cut connections, and to let bytes through in one direction only.
//
// Invariants: frames of one direction of a connection keep their order, so a held frame holds those behind it, as TCP
// would; a frame is forwarded whole or not at all. A connection whose first byte is 'R' is a Raft stream between
// brokers: it is forwarded as bytes, and only cuts and pauses reach it.
//
// [Proxy] runs one goroutine that accepts and two for each connection; Close ends them all and waits. No file is
// written. frame.go reads frames, gate.go holds single ones.
package proxy
