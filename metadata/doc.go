// Package metadata owns everything small that all brokers must agree on: brokers, topics, partitions, configs,
// producer-id blocks and tombstones of deleted topics. It keeps them in one Raft group.
package metadata
