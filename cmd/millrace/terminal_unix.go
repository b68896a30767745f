//go:build unix

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// windowColumns returns the width of the terminal behind a file, and whether it is one.
func windowColumns(f *os.File) (int, bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	return int(size.Col), true
}
