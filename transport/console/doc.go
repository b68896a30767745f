// Package console serves HTTP for people and machines that watch a broker, and takes their orders: health, readiness and
// metrics, and the admin API below /v1.
//
// # Health
//
// Health answers 200 or 503 in plain text, or with ?format=json as a document with the reasons. A 503 names at most 20 of
// them. It needs no authentication and answers anyone, so it tells no secret. /safe-to-stop says whether a broker may be
// stopped without a partition or the quorum suffering; any broker knows that of any other.
//
// # The admin API
//
// What the Kafka protocol cannot say: maintenance, decommission, quorum, rebalance, diagnosis. The table routes is all of
// it; openapi.json is made from that table, and a test keeps the two equal. Every refusal has three lines: what, why, fix.
// Without authentication, which does not exist yet, it answers only requests that come from the broker's own machine and
// name it so (guard.go).
//
// The package has no state of the broker: it asks functions and interfaces that cmd/broker gives it with New and, once the
// parts are open, SetAdmin. Orders are passed on as they are: whoever takes them sends them to the controller (D15).
//
// Goroutines: the one that serves, started by Serve and ended by Shutdown; net/http's own; and for one partition with its
// replicas one per broker, which end with the request. The package writes no files.
package console
