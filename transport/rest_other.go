//go:build !unix

package transport

// canWait is false: connections don't rest here.
const canWait = false

func readable(uintptr) bool { return true }
