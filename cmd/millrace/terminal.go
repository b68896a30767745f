package main

import "os"

// terminal says whether a stream is a terminal: only then are there questions, bars and colours.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, ok = windowColumns(f)
	return ok
}

// stdoutWidth is the terminal's width, 0 when stdout is none: a pipe sees whole lines.
func (e *env) stdoutWidth() int {
	if e.width > 0 {
		return e.width
	}
	if f, ok := e.stdout.(*os.File); ok {
		width, _ := windowColumns(f)
		return width
	}
	return 0
}
