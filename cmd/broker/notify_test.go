package broker

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A service manager hears READY=1 when clients are served, not before, and STOPPING=1 before the stop.
func TestServiceManagerHearsOfReadyAndStop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	hear := func() string {
		t.Helper()
		require.NoError(t, socket.SetReadDeadline(time.Now().Add(30*time.Second)))
		b := make([]byte, 512)
		n, err := socket.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	b := startBroker(t, testConfig(t.TempDir()))
	require.Equal(t, "READY=1\nSTATUS=serving "+b.Advertised(), hear())
	require.Empty(t, b.readiness(), "READY=1 means what /readyz means")
	require.NoError(t, b.Close())
	require.Equal(t, "STOPPING=1", hear())
}

// A manager that is gone is an error for the log, and nothing else.
func TestNotifyWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	require.NoError(t, notify("READY=1"))
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	require.ErrorContains(t, notify("READY=1"), "tell the service manager READY=1")
	require.NoError(t, startBroker(t, testConfig(t.TempDir())).Close())
}
