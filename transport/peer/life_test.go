package peer

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// frozen is a way to a broker that can be cut without a word, as a pulled cable or a stopped process would.
type frozen struct {
	t      testing.TB
	net    net.Listener
	mu     sync.Mutex
	cut    bool
	melted chan struct{}
}

func freeze(t testing.TB, to *testPeer) *frozen {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &frozen{t: t, net: listener, melted: make(chan struct{})}
	var tasks sync.WaitGroup
	t.Cleanup(func() {
		close(f.melted)
		_ = listener.Close()
		tasks.Wait()
	})
	tasks.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to.Addr().String())
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				tasks.Go(func() { f.carry(way[0], way[1]) })
			}
		}
	})
	return f
}

func (f *frozen) carry(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		f.mu.Lock()
		cut := f.cut
		f.mu.Unlock()
		if cut {
			<-f.melted
			return
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (f *frozen) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = true
}

// N2: a connection whose other end fell silent is given up: calls learn that their outcome is open, the fetch too, and
// the broker is a suspect.
func TestHalfOpen(t *testing.T) {
	fast := func(cfg *Config) {
		cfg.PingInterval, cfg.PingTimeout, cfg.DialTimeout = 20*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond
	}
	b := start(t, identity("c", 2))
	way := freeze(t, b)
	a := start(t, identity("c", 1), fast, func(cfg *Config) {
		cfg.Address = func(metadata.BrokerID) string { return way.net.Addr().String() }
	})
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	b.Handle("wait", func(ctx context.Context, _ From, _ []byte) ([]byte, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil, ctx.Err()
	})
	b.Handle("now", func(context.Context, From, []byte) ([]byte, error) { return nil, nil })

	// A slow receiver is not a dead one: its broker answers pings.
	ctx, cancel := context.WithTimeout(t.Context(), 600*time.Millisecond)
	defer cancel()
	_, err := a.Call(ctx, way.net.Addr().String(), "wait", nil)
	require.ErrorIs(t, err, metadata.ErrTimeout)
	require.False(t, a.suspects(2))

	way.freeze()
	_, err = a.Call(deadline(t), way.net.Addr().String(), "now", nil)
	require.ErrorIs(t, err, ErrBroken)
	require.ErrorContains(t, err, "no sign of life")
	require.Eventually(t, func() bool { return a.suspects(2) }, testDeadline, time.Millisecond)
	_, err = a.Call(deadline(t), way.net.Addr().String(), "now", nil)
	require.ErrorIs(t, err, metadata.ErrNotSent, "no new connection, so nothing was sent")
	f := a.OpenFetcher(2)
	defer f.Close()
	_, err = f.Fetch(deadline(t), &replication.FollowerFetch{MaxWait: 10 * time.Millisecond})
	require.ErrorIs(t, err, ErrUnreachable)
}

// The death of a broker is noticed at its connections, at once and at both ends; a stop in order is not one.
func TestBroken(t *testing.T) {
	a, b := start(t, identity("c", 1)), start(t, identity("c", 2))
	b.Handle("now", func(context.Context, From, []byte) ([]byte, error) { return nil, nil })
	_, err := a.Call(deadline(t), b.Advertised(), "now", nil)
	require.NoError(t, err)
	a.stop()
	require.Eventually(t, func() bool { return b.log.count("connection closed") > 0 }, testDeadline, time.Millisecond)
	require.False(t, b.suspects(1), "it said that it would close")

	c := start(t, identity("c", 3))
	conn, _, err := c.open(deadline(t), b.Advertised(), forFetch, nil)
	require.NoError(t, err)
	_ = conn.Close() // as the kernel does for a process that was killed
	require.Eventually(t, func() bool { return b.suspects(3) }, testDeadline, time.Millisecond)

	d := start(t, identity("c", 4))
	_, err = d.Call(deadline(t), b.Advertised(), "now", nil)
	require.NoError(t, err)
	b.stop()
	require.Eventually(t, func() bool { return d.suspects(2) }, testDeadline, time.Millisecond)
	_, err = d.Call(deadline(t), b.Advertised(), "now", nil)
	require.ErrorIs(t, err, metadata.ErrNotSent)
}

// Connections for calls that nobody uses go, without alarm, and come back; addresses that are not used are forgotten.
func TestIdle(t *testing.T) {
	a, b := start(t, identity("c", 1), func(cfg *Config) { cfg.PingInterval, cfg.IdleTimeout = 4*time.Millisecond, 30*time.Millisecond }), start(t, identity("c", 2))
	b.Handle("now", func(context.Context, From, []byte) ([]byte, error) { return nil, nil })
	for range 2 {
		_, err := a.Call(deadline(t), b.Advertised(), "now", nil)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			a.Peers.mu.Lock()
			defer a.Peers.mu.Unlock()
			return len(a.Peers.mu.calls) == 0
		}, testDeadline, time.Millisecond)
	}
	require.False(t, a.suspects(2))
	require.False(t, b.suspects(1))
	require.EqualValues(t, 2, a.metrics.dials.Load())
}

// A bad answer costs the connection, never more memory than it is worth (N3).
func TestAnswers(t *testing.T) {
	f := func(answer []byte, words string) {
		t.Helper()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		reply := encode(helloReply{Protocol: 1, identityText: textOf(identity("c", 2))})
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if _, err := readSmallFrame(conn, maxHelloBytes); err != nil {
				return
			}
			_, _ = conn.Write(append([]byte{0, 0, byte((len(reply) + 4) >> 8), byte(len(reply) + 4), 0, 0, 0, 0}, reply...))
			if _, err := readSmallFrame(conn, maxHelloBytes); err != nil {
				return
			}
			_, _ = conn.Write(answer)
			_, _ = io.Copy(io.Discard, conn)
		}()
		a := start(t, identity("c", 1))
		_, err = a.Call(deadline(t), listener.Addr().String(), "x", nil)
		require.ErrorIs(t, err, ErrBroken)
		require.ErrorContains(t, err, words)
	}
	f([]byte{0x7f, 0, 0, 0, 0, 0, 0, 1}, "answer of")
	f([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1}, "answer of")
	f([]byte{0, 0, 0, 4, 0, 0, 0, 1}, "without a status")
}
