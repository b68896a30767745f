//go:build !unix

package main

import "io/fs"

// openFileLimit is 0 on systems that have no such limit.
func openFileLimit() (uint64, error) { return 0, nil }

// writable cannot be asked here without writing; the broker will say.
func writable(string) error { return nil }

// ownerOf is unknown here.
func ownerOf(fs.FileInfo) (uid int, ok bool) { return 0, false }
