package transport

import (
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is how long sent bytes may stay unacknowledged: keepalive doesn't run while there are any, and the kernel would try again
// for a quarter of an hour.
const userTimeout = 2 * time.Minute

func setUserTimeout(c *net.TCPConn) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}

// dropLocalPacing takes a connection within this machine out of the hands of a congestion control that paces (BBR): there is no path to
// be found out, and the timer that lets a few packets go at a time costs as much CPU as copying the bytes (measured:
// integration/peer/DESIGN.md). Connections that leave the machine keep what its owner chose.
func dropLocalPacing(c *net.TCPConn) {
	local, remote := addrIP(c.LocalAddr()), addrIP(c.RemoteAddr())
	if !remote.IsLoopback() && local != remote {
		return
	}
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && strings.HasPrefix(name, "bbr") {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // the one that every kernel has and everybody may set
		}
	})
}
