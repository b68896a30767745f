//go:build unix

package transport

import "golang.org/x/sys/unix"

// canWait says that readable works here.
const canWait = true

// readable reports whether a read of the socket would not wait: there are bytes, its end, or an error.
func readable(fd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p[:], 0)
	return n != 0 || err != nil
}
