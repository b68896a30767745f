// Package console serves HTTP for people and machines that watch a broker: health, readiness and metrics.
//
// Health and readiness answer 200 or 503 in plain text, or with ?format=json as a document with the reasons. A 503
// names at most 20 of them. Nothing here needs authentication, so nothing here tells a secret.
//
// The package has no state of the broker: it asks functions that cmd/broker gives it. Goroutines: the one that serves,
// started by Serve and ended by Shutdown, and net/http's own.
package console
