package transport

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func checkSocket(t *testing.T, c *net.TCPConn) {
	rc, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		get := func(level, option int) int {
			n, err := unix.GetsockoptInt(int(fd), level, option)
			require.NoError(t, err)
			return n
		}
		require.Equal(t, 1, get(unix.SOL_SOCKET, unix.SO_KEEPALIVE))
		require.Equal(t, 60, get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
		require.Equal(t, 120_000, get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
		require.Equal(t, 1, get(unix.IPPROTO_TCP, unix.TCP_NODELAY))
		congestion, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		require.NoError(t, err)
		require.NotContains(t, congestion, "bbr", "a connection within the machine is paced") // can fail where it is the default
	}))
}
