//go:build unix

package transport

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// resting is how many connections rest and have no writer.
func (s *testServer) resting() (n int) {
	for _, c := range s.conns() {
		c.mu.Lock()
		if c.mu.rests && !c.mu.writer {
			n++
		}
		c.mu.Unlock()
	}
	return n
}

// rests waits until all of n connections rest.
func (s *testServer) rests(n int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.resting() == n }, 20*time.Second, time.Millisecond)
}

// eachKind runs a test over a plain connection and over one that speaks TLS.
func eachKind(t *testing.T, h func() Handler, edit func(*Config), test func(t *testing.T, s *testServer, dial func() *testClient)) {
	t.Run("PLAINTEXT", func(t *testing.T) {
		s := startServer(t, h(), func(cfg *Config) {
			overTCP(cfg)
			if edit != nil {
				edit(cfg)
			}
		})
		test(t, s, s.dial)
	})
	t.Run("SSL", func(t *testing.T) {
		certs := newTestCerts(t)
		s := startServer(t, h(), func(cfg *Config) {
			cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: certs.config()}}
			if edit != nil {
				edit(cfg)
			}
		})
		test(t, s, func() *testClient {
			c := s.dial()
			c.Conn = tls.Client(c.Conn, &tls.Config{RootCAs: certs.pool, ServerName: "127.0.0.1"})
			return c
		})
	})
}

// TestRest: a connection that is silent rests, before its first request too, and serves what comes then as if it had not: requests in order
// (N7), late answers while it rests and after, a request in pieces with rests between them.
func TestRest(t *testing.T) {
	h := &parking{}
	eachKind(t, func() Handler { *h = parking{}; return h }, nil, func(t *testing.T, s *testServer, dial func() *testClient) {
		c := dial()
		s.rests(1)
		c.send(metadataFrame(1, "!first"))
		c.expect("1 !first")
		s.rests(1)

		c.send(metadataFrame(2, "late"), metadataFrame(3, "later"), metadataFrame(4, "!at once"))
		require.Eventually(t, func() bool { return len(h.all()) == 4 }, 10*time.Second, time.Millisecond)
		s.rests(1)
		h.get("later").Reply(Message(respond("later")))
		s.rests(1)
		h.get("late").Reply(Message(respond("late")))
		c.expect("2 late", "3 later", "4 !at once")
		s.rests(1) // the writer of the late answers ends again

		whole := metadataFrame(5, "!pieces")
		c.send(whole[:2])
		require.Eventually(t, func() bool { return s.resting() == 0 }, 10*time.Second, time.Millisecond)
		c.send(whole[2:])
		c.expect("5 !pieces")
		s.rests(1)
		require.Equal(t, []string{"!first", "late", "later", "!at once", "!pieces"}, h.all())
	})
}

// TestRestEnds: a connection that rests ends when its time is over, with its client and with the server.
func TestRestEnds(t *testing.T) {
	answer := func() Handler { return handlerFunc(answering) }
	begin := func(s *testServer, dial func() *testClient) (*testClient, *Conn) {
		c := dial()
		c.send(metadataFrame(1, "x"))
		c.expect("1 ok")
		s.rests(1)
		return c, s.conns()[0]
	}
	t.Run("no first request", func(t *testing.T) {
		s := startServer(t, answer(), func(cfg *Config) {
			overTCP(cfg)
			cfg.FirstRequestTimeout = 3 * restAfter
		})
		c := s.dial()
		require.Empty(t, c.ends())
		require.GreaterOrEqual(t, time.Since(s.started), 3*restAfter)
		require.EqualValues(t, 1, s.rejected(rejectFirstRequest))
	})
	t.Run("idle", func(t *testing.T) {
		eachKind(t, answer, func(cfg *Config) { cfg.IdleTimeout = 5 * restAfter }, func(t *testing.T, s *testServer, dial func() *testClient) {
			c, conn := begin(s, dial)
			require.Empty(t, c.ends())
			require.NoError(t, c.Close())
			<-conn.Context().Done()
			require.ErrorIs(t, context.Cause(conn.Context()), ErrIdle)
		})
	})
	t.Run("its client ends it", func(t *testing.T) {
		eachKind(t, answer, nil, func(t *testing.T, s *testServer, dial func() *testClient) {
			c, conn := begin(s, dial)
			require.NoError(t, c.Close())
			<-conn.Context().Done()
			require.ErrorIs(t, context.Cause(conn.Context()), ErrPeerClosed)
		})
	})
	t.Run("shutdown", func(t *testing.T) {
		eachKind(t, answer, nil, func(t *testing.T, s *testServer, dial func() *testClient) {
			c, _ := begin(s, dial)
			silent := s.dial()
			s.rests(2)
			done := make(chan error, 1)
			go func() { done <- s.Shutdown(context.Background()) }()
			require.Empty(t, c.ends())
			require.Empty(t, silent.ends())
			require.NoError(t, c.Close())
			require.NoError(t, silent.Close())
			require.NoError(t, <-done)
			require.Less(t, time.Since(s.started), s.cfg.FirstRequestTimeout, "it waited for one that was silent")
		})
	})
}

// TestRestingConnectionIsSmall: neither the stack that handling a request took, nor a buffer, nor a writer outlasts the request for long. A
// broker has thousands of connections that do nothing (N6).
func TestRestingConnectionIsSmall(t *testing.T) {
	if raceBuild {
		t.Skip("race builds have larger stacks")
	}
	const conns = 400
	measure := func() int64 {
		runtime.GC() // what rests by now is in the pools once more
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.StackInuse + m.HeapAlloc)
	}
	s := startServer(t, handlerFunc(func(r *Request) {
		deep(100)
		go r.Reply(Message(respond("late")))
	}), overTCP)
	clients := make([]net.Conn, conns)
	smallStacks(t)
	before := measure()
	for i := range clients {
		c := s.dial()
		c.send(metadataFrame(1, "x"))
		c.expect("1 late")
		clients[i] = c.Conn
	}
	s.rests(conns)
	var each int64
	require.Eventuallyf(t, func() bool { // stacks shrink by half with each collection, and some requests' goroutines end only now
		each = (measure() - before) / conns
		return each < 6656 // it would be 7500 with stacks of 4 KiB
	}, 20*time.Second, 10*time.Millisecond, "a connection at rest takes too much")
	t.Logf("%d bytes each, the client's side included", each)
	runtime.KeepAlive(clients)
}

// smallStacks makes goroutines start with Go's smallest stack until the test ends, once it has collected. Each collection sets the size they
// start with to the average of the stacks it found: in a broker with thousands of connections that is theirs, which are small; in a test
// with a dozen goroutines it is what happened to run, and a goroutine that starts with 4 KiB to wait in 1 KiB of it never shrinks.
func smallStacks(t *testing.T) {
	const many = 1000
	done := make(chan struct{})
	var all sync.WaitGroup
	for range many {
		all.Go(func() { <-done })
	}
	percent := debug.SetGCPercent(-1) // what collects now are the test's own calls
	t.Cleanup(func() {
		close(done)
		all.Wait()
		debug.SetGCPercent(percent)
	})
}

// deep needs a stack of 16 KiB.
//
//go:noinline
func deep(n int) (sum int) {
	var local [16]int
	for i := range local {
		local[i] = n
	}
	if n > 0 {
		sum = deep(n - 1)
	}
	return sum + local[n%len(local)]
}
