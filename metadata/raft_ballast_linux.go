package metadata

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate makes f at least size bytes long, with room on the disk for all of them.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return allocateByWriting(f, size)
	}
	return err
}
