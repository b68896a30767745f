package metadata

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mountSmall mounts a file system of that size on dir; it takes root.
func mountSmall(dir string, bytes int) error {
	return unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
}

func unmount(dir string) error { return unix.Unmount(dir, 0) }
