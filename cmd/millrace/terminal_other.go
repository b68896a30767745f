//go:build !unix

package main

import "os"

// windowColumns says on other systems only whether the file is a console; its width stays unknown.
func windowColumns(f *os.File) (int, bool) {
	info, err := f.Stat()
	return 0, err == nil && info.Mode()&os.ModeCharDevice != 0
}
