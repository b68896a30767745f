package transport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var discardLogger = slog.New(slog.DiscardHandler)

// TestShutdown: requests in work are answered, in order, connections are closed by FIN, nothing new is taken.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		busy, idle, half := s.dial(), s.dial(), s.dial()
		go busy.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
		go idle.send(metadataFrame(1, "!i"))
		idle.expect("1 !i")
		half.send(metadataFrame(1, "!never")[:10])
		synctest.Wait()

		finished := make(chan error, 1)
		go func() { finished <- s.Shutdown(context.Background()) }()
		require.Empty(t, idle.ends())
		require.Empty(t, half.ends())
		_, err := s.mem[0].Dial()
		require.Error(t, err)
		synctest.Wait()
		require.Empty(t, finished)
		select {
		case <-h.get("a").Draining():
		default:
			t.Error("handlers are not told")
		}
		require.NoError(t, h.get("a").Context().Err())
		require.Zero(t, time.Since(s.started))
		h.get("b").Reply(Message(respond("b")))
		h.get("a").Reply(Message(respond("a")))
		busy.expect("1 a", "2 b")
		require.Empty(t, busy.ends())
		require.NoError(t, <-finished)
		require.Equal(t, ErrServerClosed, s.Run(context.Background()))
	})
}

// TestShutdownGivesUp: what isn't answered when the time is over is given up.
func TestShutdownGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		c.send(metadataFrame(1, "a"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Empty(t, c.ends())
		require.ErrorIs(t, context.Cause(h.get("a").Context()), ErrServerClosed)
	})
}

// TestRunEndsWithItsContext: then everything is closed at once.
func TestRunEndsWithItsContext(t *testing.T) {
	cfg := Default()
	cfg.Logger = discardLogger
	overTCP(&cfg)
	s, err := New(cfg, &parking{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() { ran <- s.Run(ctx) }()
	c, err := net.Dial("tcp", s.Listeners()[0].Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(metadataFrame(1, "parked"))
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ran)
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, s.Close())
}

// TestNeverRun: a server that was bound and not run can be closed, and its port is free.
func TestNeverRun(t *testing.T) {
	cfg := Default()
	cfg.Logger = discardLogger
	overTCP(&cfg)
	s, err := New(cfg, &parking{})
	require.NoError(t, err)
	require.NoError(t, s.Shutdown(context.Background()))
	cfg.Listeners[0].Bind = s.Listeners()[0].Addr().String()
	s, err = New(cfg, &parking{})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, ErrServerClosed, s.Run(context.Background()))
}

// failingListener fails some calls of Accept, the last one for good.
type failingListener struct {
	net.Listener
	fails atomic.Int64
}

func (l *failingListener) Accept() (net.Conn, error) {
	if l.fails.Add(-1) >= 0 {
		return nil, os.NewSyscallError("accept4", os.ErrPermission)
	}
	return l.Listener.Accept()
}

// TestAcceptErrors: running out of descriptors passes, a listener that was closed by someone else ends Run with an error.
func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMemListener()
		l := &failingListener{Listener: mem}
		l.fails.Store(30)
		cfg := Default()
		logs := &logBuffer{}
		cfg.Logger = slog.New(slog.NewTextHandler(logs, nil))
		cfg.Listeners = []ListenerConfig{{Name: "MEM", Protocol: Plaintext, Listener: l}}
		s, err := New(cfg, handlerFunc(answering))
		require.NoError(t, err)
		ran := make(chan error)
		go func() { ran <- s.Run(context.Background()) }()
		raw, err := mem.Dial()
		require.NoError(t, err)
		c := &testClient{t: t, Conn: raw}
		go c.send(metadataFrame(1, "x"))
		c.expect("1 ok")
		require.Less(t, logs.count("can't be accepted"), 31)
		require.NoError(t, mem.Close())
		require.ErrorIs(t, <-ran, net.ErrClosed)
		require.Empty(t, c.ends())
	})
}

// TestAdvertisedAddress: what clients are told is what was configured, else what is bound, and never a wildcard.
func TestAdvertisedAddress(t *testing.T) {
	f := func(l ListenerConfig, host string, bound bool) {
		t.Helper()
		cfg := Default()
		logs := &logBuffer{}
		cfg.Logger = slog.New(slog.NewTextHandler(logs, nil))
		l.Name, l.Protocol = "PLAINTEXT", Plaintext
		cfg.Listeners = []ListenerConfig{l}
		s, err := New(cfg, handlerFunc(answering))
		require.NoError(t, err)
		defer s.Close()
		require.Equal(t, host, s.Listeners()[0].AdvertisedHost())
		port := s.Listeners()[0].Addr().(*net.TCPAddr).Port
		require.Equal(t, bound, int(s.Listeners()[0].AdvertisedPort()) == port)
		require.Equal(t, l.Bind == ":0", logs.count("open to everyone") == 1, "S1: an open port is announced")
	}
	name, err := os.Hostname()
	require.NoError(t, err)
	f(ListenerConfig{Bind: "127.0.0.1:0"}, "127.0.0.1", true)
	f(ListenerConfig{Bind: ":0"}, name, true)
	f(ListenerConfig{Bind: "127.0.0.1:0", AdvertisedHost: "broker.example", AdvertisedPort: 19092}, "broker.example", false)
}

// TestConfigErrors: each is an ErrConfig that says what.
func TestConfigErrors(t *testing.T) {
	f := func(want string, edit func(*Config)) {
		t.Helper()
		cfg := Default()
		cfg.Logger = discardLogger
		overTCP(&cfg)
		edit(&cfg)
		_, err := New(cfg, handlerFunc(answering))
		require.ErrorIs(t, err, ErrConfig)
		require.ErrorContains(t, err, want)
	}
	f("no logger", func(c *Config) { c.Logger = nil })
	f("no listeners", func(c *Config) { c.Listeners = nil })
	f("MaxInFlight", func(c *Config) { c.MaxInFlight = 0 })
	f("has no name", func(c *Config) { c.Listeners[0].Name = "" })
	f("two listeners", func(c *Config) {
		c.Listeners = append(c.Listeners, ListenerConfig{Name: "plaintext", Protocol: Plaintext, Bind: ":0"})
	})
	f("no address", func(c *Config) { c.Listeners[0].Bind = "" })
	f("SASL_PLAINTEXT", func(c *Config) { c.Listeners[0].Protocol = "SASL_PLAINTEXT" })
	f("no certificate", func(c *Config) { c.Listeners[0].Protocol = SSL })
	f("has a certificate", func(c *Config) { c.Listeners[0].TLS = &TLSConfig{} })
	for _, host := range []string{"0.0.0.0", "::", "[::]"} {
		f("no client can connect", func(c *Config) { c.Listeners[0].AdvertisedHost = host })
	}
	f("advertised port", func(c *Config) { c.Listeners[0].AdvertisedPort = 70000 })

	cfg := Default()
	cfg.Logger = discardLogger
	overTCP(&cfg)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	cfg.Listeners = append(cfg.Listeners, ListenerConfig{Name: "SECOND", Protocol: Plaintext, Bind: taken.Addr().String()})
	_, err = New(cfg, handlerFunc(answering))
	require.ErrorContains(t, err, "SECOND", "a port that is taken")
}

// TestSocketOptions is N2: keepalive runs, and the kernel's buffers are left to its autotuning.
func TestSocketOptions(t *testing.T) {
	var raw atomic.Pointer[net.TCPConn]
	s := startServer(t, handlerFunc(func(r *Request) {
		raw.Store(r.Conn.raw.(*net.TCPConn))
		answering(r)
	}), overTCP)
	c := s.dial()
	c.send(metadataFrame(1, "x"))
	c.expect("1 ok")
	checkSocket(t, raw.Load())
}

func TestMemTotal(t *testing.T) {
	require.EqualValues(t, 24<<30, memTotal("MemFree: 1 kB\nMemTotal:       25165824 kB\n"))
	require.Zero(t, memTotal(""))
	require.Zero(t, memTotal("MemTotal: much"))
	require.Greater(t, memoryLimit(), int64(1<<20))
	require.Greater(t, defaultMaxConnections(), 0)
}

// TestPipeHasNoFIN: a connection that can't be closed in halves is just closed.
func TestPipeHasNoFIN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) { r.ReplyThenClose(Message(respond(strings.Repeat("x", 100))), "bye") }), nil)
		c := s.dial()
		go c.send(metadataFrame(1, "x"))
		_, text := c.receiveText()
		require.Len(t, text, 100)
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// watched is a handler that hears of the end of connections.
type watched struct {
	handlerFunc
	mu    sync.Mutex
	ended map[*Conn]int
}

func (w *watched) Ended(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Context().Err() == nil {
		panic("a connection ended with its context") // within Server: no test can go on
	}
	w.ended[c]++
}

// A handler hears of the end of each connection, once, whoever ended it, after its context was done.
func TestConnWatcher(t *testing.T) {
	w := &watched{ended: map[*Conn]int{}}
	w.handlerFunc = func(r *Request) {
		switch text := metadataText(r); text {
		case "panic":
			panic(text)
		case "close":
			r.CloseConn("for the test")
		default:
			r.Reply(Message(respond("ok")))
		}
	}
	s := startServer(t, w, nil)
	var clients []*testClient
	for range 4 {
		c := s.dial()
		c.send(metadataFrame(1, "x"))
		c.expect("1 ok")
		clients = append(clients, c)
	}
	told := func() (n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, times := range w.ended {
			require.Equal(t, 1, times)
			n++
		}
		return n
	}
	require.Zero(t, told())
	require.NoError(t, clients[0].Close())
	clients[1].send(metadataFrame(2, "panic"))
	clients[2].send(metadataFrame(2, "close"))
	require.Eventually(t, func() bool { return told() == 3 }, 20*time.Second, time.Millisecond)
	require.NoError(t, s.Close())
	require.Equal(t, 4, told())
}
