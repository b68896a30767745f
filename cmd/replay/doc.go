// Package replay is a Kafka client that costs next to nothing: it sends the
// same encoded Produce request again and again, ahead of the answers, and reads
// Fetch answers without looking at records. A normal client burns most of two
// cores and hides the broker behind it; this one shows the broker.
//
// It owns one TCP connection per Producer or Fetcher and speaks to the broker it
// was given, which must lead the partitions: it does not follow metadata, retry
// or reconnect. Neither type is safe for concurrent use; open several. A
// Producer runs one goroutine of its own during Run, which has ended when Run
// returns.
//
// Callers: the bench commands of cmd/millrace, and the benchmarks of
// integration.
package replay
