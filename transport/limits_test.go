package transport

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// prefix is a size prefix and the begin of a produce request's header.
func prefix(size uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, size)
	return append(b, 0, 0, 0, 9, 0, 0, 0, 1)
}

// TestGiantPrefixes is N3: a thousand connections that announce 99 MiB each and send nothing, or a little, hold no memory for it, and good
// clients don't notice.
func TestGiantPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) { r.Reply(Message(respond("ok"))) }), nil)
		var hostile []*testClient
		for range 1000 {
			c := s.dial()
			c.send(prefix(99 << 20))
			hostile = append(hostile, c)
		}
		synctest.Wait()
		b := s.listeners[0].budget
		require.Zero(t, b.inUse(), "memory was taken on the word of a prefix")

		for _, c := range hostile {
			c.send(make([]byte, 5000))
		}
		synctest.Wait()
		require.LessOrEqual(t, b.inUse(), int64(1000*frameClasses[firstStepClass]))
		good := s.dial()
		go good.send(produceFrame(7, -1, 1<<20))
		good.expect("7 ok")

		// Connections that announce what the pools hold are lent half of the budget at most.
		for range 1000 {
			c := s.dial()
			c.send(prefix(1<<20), make([]byte, 4090))
		}
		synctest.Wait()
		require.LessOrEqual(t, b.inUse(), b.main)
		go good.send(produceFrame(8, -1, 1<<20))
		good.expect("8 ok")
		require.Zero(t, time.Since(s.started), "the good client had to wait for a timeout")

		// The stalled ones are cut off in time, and give back what they held.
		time.Sleep(s.cfg.FrameTimeout + 300*time.Second)
		synctest.Wait()
		require.Len(t, s.conns(), 1)
		require.Zero(t, b.inUse())
	})
}

// TestImpossibleSizes: a size that can't be closes the connection at once, also when nothing follows it.
func TestImpossibleSizes(t *testing.T) {
	for _, size := range []uint32{0, 1, 7, 1 << 31, 0xffffffff, 100<<20 + 1, 0x7fffffff} {
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t, handlerFunc(func(*Request) { t.Error("handled") }), nil)
			c := s.dial()
			go func() { _, _ = c.Write(prefix(size)[:4]) }()
			require.Empty(t, c.ends())
			require.Less(t, time.Since(s.started), time.Second)
			require.EqualValues(t, 1, s.rejected(rejectSize), "size %d", size)
		})
	}
}

// rejected is the count of a rejection on the first listener.
func (s *testServer) rejected(r rejection) int64 {
	for i := range rejections {
		if rejections[i] == r {
			return s.listeners[0].metrics.rejects[i].Load()
		}
	}
	return -1
}

// TestUnknownKeyOrVersion is N11: it closes the connection, before its body has arrived.
func TestUnknownKeyOrVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(*Request) { t.Error("handled") }), nil)
		for _, kv := range [][2]byte{{99, 0}, {3, 99}} {
			c := s.dial()
			b := prefix(1 << 20)
			b[5], b[7] = kv[0], kv[1]
			go func() { _, _ = c.Write(b) }()
			require.Empty(t, c.ends())
		}
		require.EqualValues(t, 2, s.rejected(rejectVersion))
	})
}

// TestMalformedHeaders: each closes the connection.
func TestMalformedHeaders(t *testing.T) {
	header := func(key, version int16, rest ...byte) []byte {
		b := binary.BigEndian.AppendUint16(nil, uint16(key))
		b = binary.BigEndian.AppendUint16(b, uint16(version))
		b = append(append(b, 0, 0, 0, 1), rest...)
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	}
	for name, b := range map[string][]byte{
		"no client id":          header(3, 1),
		"half a length":         header(3, 1, 0),
		"client id below null":  header(3, 1, 0xff, 0xfe),
		"client id too long":    header(3, 1, 0, 5, 'a', 'b'),
		"no tags":               header(3, 9, 0xff, 0xff),
		"tag without size":      header(3, 9, 0xff, 0xff, 1, 0),
		"tag longer than frame": header(3, 9, 0xff, 0xff, 1, 0, 9, 'x'),
		"two billion tags":      header(3, 9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x07, 0, 0),
		"endless varint":        header(3, 9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t, handlerFunc(func(*Request) { t.Error("handled", name) }), nil)
			c := s.dial()
			go func() { _, _ = c.Write(b) }()
			require.Empty(t, c.ends(), name)
			require.EqualValues(t, 1, s.rejected(rejectHeader), name)
		})
	}
}

// TestRequestHeader: client ids and tags are parsed as they are written, and unknown tags are skipped.
func TestRequestHeader(t *testing.T) {
	f := func(b []byte, flexible bool, clientID, body string) {
		t.Helper()
		h, err := parseHeader(append([]byte{0, 3, 0, 9, 0xff, 0xff, 0xff, 0xfe}, b...), flexible)
		require.NoError(t, err)
		require.EqualValues(t, 3, h.key)
		require.EqualValues(t, 9, h.version)
		require.EqualValues(t, -2, h.correlationID)
		require.Equal(t, clientID, string(h.clientID))
		require.Equal(t, body, string(h.body))
	}
	f([]byte{0xff, 0xff}, false, "", "")
	f([]byte{0xff, 0xff, 'x'}, false, "", "x")
	f([]byte{0, 0, 'x'}, false, "", "x")
	f([]byte{0, 2, 'm', 'e', 'x'}, false, "me", "x")
	f([]byte{0, 2, 'm', 'e', 0, 'x'}, true, "me", "x")
	f([]byte{0, 2, 'm', 'e', 2, 0, 3, 'a', 'b', 'c', 0x85, 1, 0, 'x'}, true, "me", "x")
}

// TestCapBeforeAuthentication is S4: 64 KiB until the handler says that the client is authenticated.
func TestCapBeforeAuthentication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) {
			if r.Key == 3 {
				r.Conn.SetAuthenticated()
			}
			r.Reply(Message(respond("ok")))
		}), func(cfg *Config) {
			cfg.Listeners = []ListenerConfig{{Name: "SASL", Protocol: Plaintext, Listener: newMemListener(), RequireAuth: true}}
		})
		c := s.dial()
		go c.send(produceFrame(1, 1, 60<<10))
		c.expect("1 ok")
		go func() { _, _ = c.Write(prefix(64<<10 + 1)) }()
		require.Empty(t, c.ends())
		require.EqualValues(t, 1, s.rejected(rejectSize))

		c = s.dial()
		go c.send(metadataFrame(1, "login"), produceFrame(2, 1, 1<<20))
		c.expect("1 ok", "2 ok")
	})
}

// limitedHandler caps requests other than produce.
type limitedHandler struct{ handlerFunc }

func (limitedHandler) MaxRequestBytes(key, _ int16) int {
	if key == 0 {
		return 0
	}
	return 1000
}

// TestCapPerKey: a handler may accept less for requests whose decoding costs many times their size.
func TestCapPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, limitedHandler{func(r *Request) { r.Reply(Message(respond("ok"))) }}, nil)
		c := s.dial()
		go c.send(produceFrame(1, 1, 5000), metadataFrame(2, strings.Repeat("x", 900)))
		c.expect("1 ok", "2 ok")
		go func() { _, _ = c.Write(metadataFrame(3, strings.Repeat("x", 1000))) }()
		require.Empty(t, c.ends())
		require.EqualValues(t, 1, s.rejected(rejectSize))
	})
}

// TestForeignProtocols is N3 and protocol.md 1: TLS and HTTP on a plain port cost one clear line and no memory.
func TestForeignProtocols(t *testing.T) {
	f := func(hello, line string, reason rejection) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t, handlerFunc(func(*Request) { t.Error("handled") }), nil)
			for range 30 {
				c := s.dial()
				go func() { _, _ = io.WriteString(c, hello) }()
				require.Empty(t, c.ends())
			}
			require.EqualValues(t, 30, s.rejected(reason))
			require.Equal(t, noiseBurst, s.logs.count(line), "the log is not the client's to fill")
			time.Sleep(time.Second)
			c := s.dial()
			go func() { _, _ = io.WriteString(c, hello) }()
			require.Empty(t, c.ends())
			require.Equal(t, 1, s.logs.count("suppressed=20"))
		})
	}
	f("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "client speaks TLS, and this listener is PLAINTEXT", rejectTLSOnPlaintext)
	f("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "client speaks HTTP", rejectHTTP)
	f("POST / HTTP/1.1\r\nHost: x\r\n\r\n", "client speaks HTTP", rejectHTTP)
}

// TestFirstRequestTimeout is N6: ten seconds for a silent connection, and for one that trickles.
func TestFirstRequestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(*Request) { t.Error("handled") }), nil)
		silent, trickling, half := s.dial(), s.dial(), s.dial()
		began := time.Now()
		half.send(produceFrame(1, 1, 100<<10)[:50<<10])
		go func() {
			for _, b := range metadataFrame(1, "a") {
				if _, err := trickling.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(time.Second)
			}
		}()
		require.Empty(t, silent.ends())
		require.Empty(t, trickling.ends())
		require.Empty(t, half.ends())
		require.Equal(t, 10*time.Second, time.Since(began))
		require.EqualValues(t, 3, s.rejected(rejectFirstRequest))
		time.Sleep(2 * time.Second) // the trickling writer
	})
}

// TestIdleClose: ten minutes after the last answer, and never while a request is parked, for however long.
func TestIdleClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		began := time.Now()
		go c.send(metadataFrame(1, "!a"))
		c.expect("1 !a")
		time.Sleep(9 * time.Minute)
		go c.send(metadataFrame(2, "parked"))
		time.Sleep(55 * time.Minute)
		require.Len(t, s.conns(), 1, "closed while a request was parked")
		h.get("parked").Reply(Message(respond("b")))
		c.expect("2 b")
		time.Sleep(10*time.Minute - time.Second)
		synctest.Wait()
		require.Len(t, s.conns(), 1)
		require.Empty(t, c.ends())
		require.Equal(t, 74*time.Minute, time.Since(began).Round(time.Minute))
	})
}

// TestFrameTimeout: a request that has begun must arrive, at a speed that is enough for slow lines.
func TestFrameTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) { r.Reply(Message(respond("ok"))) }), nil)
		slow, stalled := s.dial(), s.dial()
		go slow.send(metadataFrame(1, "a"))
		slow.expect("1 ok")
		go stalled.send(metadataFrame(1, "a"))
		stalled.expect("1 ok")
		f := produceFrame(2, 1, 1<<20)
		go func() {
			for ; len(f) > 40<<10; f = f[40<<10:] {
				slow.send(f[:40<<10])
				time.Sleep(time.Second)
			}
			slow.send(f)
		}()
		began := time.Now()
		stalled.send(produceFrame(2, 1, 1000)[:500])
		slow.expect("2 ok")
		require.Equal(t, 25*time.Second, time.Since(began))
		require.Empty(t, stalled.ends())
		require.Equal(t, 30*time.Second, time.Since(began))
		require.EqualValues(t, 1, s.rejected(rejectFrameTimeout))
	})
}

// answering answers everything.
func answering(r *Request) { r.Reply(Message(respond("ok"))) }

// TestConnectionFlood is N6: five thousand silent connections fill the server's limit, and a good client still gets in.
func TestConnectionFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) { cfg.Limits.MaxConnections = 5000 })
		for range 5000 {
			s.dial()
		}
		early := s.dial()
		require.Empty(t, early.ends(), "those before it may still be about to send")
		require.EqualValues(t, 1, s.rejected(rejectTotal))
		time.Sleep(2 * time.Second)
		for range 3 {
			good := s.dial()
			go good.send(metadataFrame(1, "a"))
			good.expect("1 ok")
		}
		require.EqualValues(t, 3, s.rejected(rejectEvicted))
		require.Len(t, s.conns(), 5000)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Len(t, s.conns(), 3, "the flood ends with the time for the first request; clients stay")
	})
}

// TestConnectionCaps: by address, by listener and in total, over sockets; internal listeners are not counted among the clients.
func TestConnectionCaps(t *testing.T) {
	start := func(edit func(*Config)) *testServer {
		return startServer(t, handlerFunc(answering), func(cfg *Config) {
			cfg.Listeners = []ListenerConfig{
				{Name: "PLAINTEXT", Protocol: Plaintext, Bind: "127.0.0.1:0"},
				{Name: "CONTROLLER", Protocol: Plaintext, Bind: "127.0.0.1:0", Internal: true},
			}
			edit(cfg)
		})
	}
	dial := func(s *testServer, listener int) (served bool) {
		raw, err := net.Dial("tcp", s.listeners[listener].Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = raw.Close() })
		if _, err := raw.Write(metadataFrame(1, "a")); err != nil {
			return false
		}
		_, err = readResponse(raw)
		return err == nil
	}
	f := func(reason rejection, edit func(*Config)) *testServer {
		t.Helper()
		s := start(edit)
		require.True(t, dial(s, 0))
		require.True(t, dial(s, 0))
		require.False(t, dial(s, 0))
		require.EqualValues(t, 1, s.rejected(reason))
		require.True(t, dial(s, 1))
		require.True(t, dial(s, 1))
		require.True(t, dial(s, 1))
		return s
	}
	f(rejectTotal, func(cfg *Config) { cfg.Limits.MaxConnections = 2 })
	f(rejectPerIP, func(cfg *Config) { cfg.Limits.MaxConnectionsPerIP = 2 })
	f(rejectListener, func(cfg *Config) { cfg.Listeners[0].MaxConnections = 2 })
	s := f(rejectPerIP, func(cfg *Config) {
		cfg.Limits.MaxConnectionsPerIP = 100
		cfg.Limits.PerIP = map[string]int{"127.0.0.1": 2}
	})
	s.SetLimits(Limits{MaxConnectionsPerIP: 3})
	require.True(t, dial(s, 0))
	require.False(t, dial(s, 0))
}

// TestConnectionRate: connections beyond the rate wait, they are not refused.
func TestConnectionRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(answering), func(cfg *Config) { cfg.Limits.MaxConnectionRate = 10 })
		began := time.Now()
		for range 50 {
			s.dial()
		}
		require.InDelta(t, 4.5, time.Since(began).Seconds(), 0.5)
	})
}

// TestSlowReader is N1: a client that sends requests and doesn't read the answers costs a bounded number of bytes, is not read from, and is
// closed when a write made no progress for WriteTimeout.
func TestSlowReader(t *testing.T) {
	const answer = 64 << 10
	text := strings.Repeat("x", answer)
	var late *Request
	f := func(name string, bound int64, handle func(r *Request, n int64)) {
		synctest.Test(t, func(t *testing.T) {
			var handled atomic.Int64
			s := startServer(t, handlerFunc(func(r *Request) { handle(r, handled.Add(1)) }), nil)
			c := s.dial()
			var sent atomic.Bool
			go func() {
				for i := range 100 {
					if _, err := c.Write(metadataFrame(int32(i), "x")); err != nil {
						return
					}
				}
				sent.Store(true)
			}()
			began := time.Now()
			synctest.Wait()
			if late != nil {
				late.Reply(Message(respond("")))
				synctest.Wait()
			}
			require.LessOrEqual(t, handled.Load(), bound, name)
			require.False(t, sent.Load(), name)
			conn := s.conns()[0]
			<-conn.Context().Done()
			require.Equal(t, s.cfg.WriteTimeout, time.Since(began), name)
			require.EqualValues(t, 1, s.rejected(rejectSlowReader), name)
		})
	}
	f("inline", 4, func(r *Request, _ int64) { r.Reply(Message(respond(text[:32000]))) }) // one buffer per write
	f("spliced", 1, func(r *Request, _ int64) { r.Reply(Splice(&Spliced{Pieces: []Piece{{Header: []byte(text)}}})) })
	// The first answer comes late: the others wait for it in memory, up to MaxOutboundBytes.
	f("parked", 2+1<<20/32000, func(r *Request, n int64) {
		if n == 1 {
			late = r
			return
		}
		r.Reply(Message(respond(text[:32000])))
	})
}

// TestSlowReaderOverTCP: the kernel's buffers take some answers, and then the broker stops reading and holds one chunk.
func TestSlowReaderOverTCP(t *testing.T) {
	var handled atomic.Int64
	body := make([]byte, 1<<20)
	s := startServer(t, handlerFunc(func(r *Request) {
		handled.Add(1)
		r.Reply(Splice(&Spliced{Pieces: []Piece{{Body: memorySource{b: body}}}}))
	}), func(cfg *Config) { overTCP(cfg); cfg.WriteTimeout = 200 * time.Millisecond })
	c := s.dial()
	for i := range 500 {
		c.send(metadataFrame(int32(i), "x"))
	}
	require.Eventually(t, func() bool { return s.rejected(rejectSlowReader) == 1 }, 20*time.Second, time.Millisecond)
	require.Less(t, handled.Load(), int64(100))
}

// TestDeadConnectionsLeaveNothing is N2: what a dead connection's requests wait for is given up, and goroutines are back at their number.
func TestDeadConnectionsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waiting sync.WaitGroup
		s := startServer(t, handlerFunc(func(r *Request) {
			r.Go(func() { waiting.Done(); <-r.Context().Done(); r.Reply(Message(respond("to nobody"))) })
		}), nil)
		waiting.Add(200)
		for range 100 {
			c := s.dial()
			c.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
			go func() { waiting.Wait(); _ = c.Close() }()
		}
		waiting.Wait()
		synctest.Wait()
		require.Empty(t, s.conns())
	})
}
