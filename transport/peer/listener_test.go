package peer

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

func raftAddress(p *testPeer) raft.ServerAddress { return raft.ServerAddress(p.Advertised()) }

// strange connects to the broker's listener, sends bytes, and reads until the broker closes.
func strange(t testing.TB, p *testPeer, bytes []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(bytes)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(testDeadline)))
	_, err = io.Copy(io.Discard, conn)
	if err != nil {
		require.False(t, isTimeout(err), "the connection is open after %q", bytes)
	}
}

// Whoever speaks something else is closed with one line that says what it was, and brokers go on.
func TestGarbage(t *testing.T) {
	frame := func(b ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	f := func(bytes []byte, want string) {
		t.Helper()
		b := start(t, identity("c", 2))
		strange(t, b, bytes)
		require.Eventually(t, func() bool { return b.log.count(want) == 1 }, testDeadline, time.Millisecond, "%s in %s", want, b.log)
		require.Equal(t, 1, b.log.count("level=WARN"), b.log.String())
		a := start(t, identity("c", 1))
		_, err := a.Call(deadline(t), b.Advertised(), "x", nil)
		require.ErrorContains(t, err, "unknown method")
	}
	f([]byte("GET / HTTP/1.1\r\n\r\n"), "client speaks HTTP")
	f([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc}, "client speaks TLS")
	f([]byte("\xff\xfe random"), "impossible request size: connection closed")
	f(frame(0, 18, 0, 3, 0, 0, 0, 1, 0xff, 0xff), "key or version that isn't served") // a Kafka client's first request
	f(appendRequest(nil, keyCall, 1, appendCall(nil, time.Second, "x", nil)), "clients of Kafka use another listener")
	f(appendRequest(nil, keyHello, 1, []byte("hello there")), "garbage where a broker's hello was expected")
	f(append(binary.BigEndian.AppendUint32(nil, 65<<10), 0x4e, 0x20, 0, 0), "request is too large") // never read: more than 64 KiB before the hello
	f([]byte("Raft, please!"), "garbage where a broker's hello was expected")
	f(append([]byte{'R'}, frame([]byte("{}")...)...), "garbage where a broker's hello was expected")
	f(append([]byte{'R'}, frame([]byte(strings.Repeat("[", 60_000))...)...), "garbage where a broker's hello was expected")
}

// Calls and fetches have connections of their own kind.
func TestPurposes(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	for _, c := range []struct {
		what purpose
		key  int16
	}{{forFetch, keyCall}, {forProbe, keyCall}, {forCalls, keyHello}} {
		conn, _, err := a.open(deadline(t), b.Advertised(), c.what, nil)
		require.NoError(t, err)
		_, err = conn.Write(appendRequest(nil, c.key, 1, appendCall(nil, time.Second, "x", nil)))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(testDeadline)))
		n, err := io.Copy(io.Discard, conn)
		require.Zero(t, n)
		if err != nil {
			require.False(t, isTimeout(err), "a connection for %s serves key %d", c.what, c.key)
		}
		_ = conn.Close()
	}
	_, _, err := a.open(deadline(t), b.Advertised(), forRaft, nil)
	require.ErrorIs(t, err, ErrUnreachable, "a Raft stream begins with its byte")
}
