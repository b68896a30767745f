//go:build !linux

package metadata

import "os"

// allocate makes f at least size bytes long, with room on the disk for all of them.
func allocate(f *os.File, size int64) error { return allocateByWriting(f, size) }
