//go:build !linux

package transport

import "net"

// setUserTimeout does nothing: the kernel's own limit of retransmissions and the idle timeout find dead peers, only later.
func setUserTimeout(*net.TCPConn) {}

// dropLocalPacing does nothing: only Linux is known to pace connections within a machine.
func dropLocalPacing(*net.TCPConn) {}
