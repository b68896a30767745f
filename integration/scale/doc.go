// Command scale measures what many partitions cost, and what clients notice of a cluster that grows or is restarted. It
// runs clusters of real millrace processes and compares what it finds with the goals.
//
//	go run ./integration/scale                      # everything, some ten minutes
//	go run ./integration/scale partitions           # 10,000 partitions of three replicas on three brokers
//	go run ./integration/scale move stop first      # a fourth broker under load; planned stops; a new cluster's first topic
//	go run ./integration/scale connections groups   # a thousand groups of three at rest, and their members' connections alone
//
// The producers whose latency is measured beside offset commits are a process of their own; -together has them in that of the
// members, where their answers wait for their turn behind the members'.
//
// It prints a table with a row per figure and ends with 1 when one misses its goal. The figures are those of this machine:
// run it alone. With root it works in the sandbox of package cluster, so that nothing outlives it.
package main
