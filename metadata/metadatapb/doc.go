// Package metadatapb holds the protobuf messages of Raft entries and snapshots, generated from metadata.proto. Only
// package metadata uses it.
package metadatapb

//go:generate protoc --go_out=. --go_opt=paths=source_relative metadata.proto
