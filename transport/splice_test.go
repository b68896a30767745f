package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// fetchResponse is a random fetch response with records.
func fetchResponse(rt *rapid.T) *kmsg.FetchResponse {
	r := kmsg.NewPtrFetchResponse()
	r.Version = int16(rapid.IntRange(4, 13).Draw(rt, "version"))
	for range rapid.IntRange(0, 3).Draw(rt, "topics") {
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = "topic"
		for range rapid.IntRange(0, 4).Draw(rt, "partitions") {
			p := kmsg.NewFetchResponseTopicPartition()
			size := rapid.SampledFrom([]int{0, 1, 100, 5000, 70 << 10, 300 << 10}).Draw(rt, "records")
			p.RecordBatches = []byte(strings.Repeat("0123456789", size/10+1)[:size])
			topic.Partitions = append(topic.Partitions, p)
		}
		r.Topics = append(r.Topics, topic)
	}
	return r
}

// TestSplicedBytes: whatever the cuts, the chunks and the neighbours, a spliced response is byte for byte what encoding it whole gives, and its
// sources are released once.
func TestSplicedBytes(t *testing.T) {
	var next *kmsg.FetchResponse
	var spliced *Spliced
	var released, done atomic.Int64
	h := handlerFunc(func(r *Request) {
		if r.Key == 1 {
			r.Reply(Splice(spliced))
			return
		}
		r.Reply(Message(respond(metadataText(r))))
	})
	f := func(name string, edit func(*Config), client func(net.Conn) net.Conn) {
		t.Run(name, func(t *testing.T) {
			s := startServer(t, h, edit)
			c := s.dial()
			if client != nil {
				c.Conn = client(c.Conn)
			}
			rapid.Check(t, func(rt *rapid.T) {
				next = fetchResponse(rt)
				body := next.AppendTo(nil)
				released.Store(0)
				done.Store(0)
				spliced = &Spliced{Flexible: next.IsFlexible(), Released: func() { done.Add(1) }}
				sources := 0
				for rest := body; len(rest) > 0; {
					cut := func(label string) []byte {
						n := min(len(rest), rapid.SampledFrom([]int{0, 1, 50, 4096, 16 << 10, 100 << 10, 256 << 10, 1 << 20}).Draw(rt, label))
						b := rest[:n]
						rest = rest[n:]
						return b
					}
					p := Piece{Header: cut("header")}
					if rapid.Bool().Draw(rt, "body?") {
						p.Body = memorySource{b: cut("body"), released: &released}
						if rapid.Bool().Draw(rt, "file?") {
							p.Body = inFile(t, p.Body.(memorySource))
						}
						sources++
					}
					spliced.Pieces = append(spliced.Pieces, p)
				}
				require.Equal(rt, len(body), spliced.Len())
				fetch := kmsg.NewPtrFetchRequest()
				fetch.Version = next.Version
				before := strings.Repeat("b", rapid.SampledFrom([]int{1, 3000, 20000}).Draw(rt, "before"))
				go c.send(metadataFrame(1, before), frame(2, fetch), metadataFrame(3, "after"))
				c.expect("1 " + before)
				got, err := readResponse(c)
				require.NoError(rt, err)
				require.Equal(rt, appendMessage(nil, 2, next)[4:], got)
				c.expect("3 after")
				require.EqualValues(rt, sources, released.Load())
				require.EqualValues(rt, 1, done.Load())
			})
		})
	}
	f("tcp", overTCP, nil)
	f("tcp, small chunks", func(cfg *Config) { overTCP(cfg); cfg.ResponseBudgetBytes = 0 }, nil)
	f("pipe", nil, nil)
	certs := newTestCerts(t)
	f("tls", func(cfg *Config) {
		cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: certs.config()}}
	}, func(c net.Conn) net.Conn {
		return tls.Client(c, &tls.Config{RootCAs: certs.pool, ServerName: "127.0.0.1"})
	})
}

// TestWritesPerMiB guards the unit of system calls: a spliced MiB, its header and its neighbour are four writes.
func TestWritesPerMiB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		l := newMemListener()
		l.wrap = func(c net.Conn) net.Conn { return countingConn{c, &writes} }
		body := make([]byte, 1<<10)
		s := startServer(t, handlerFunc(func(r *Request) {
			if r.CorrelationID == 1 {
				r.Reply(Message(respond("before")))
				return
			}
			sp := &Spliced{Pieces: make([]Piece, 1<<10)}
			for i := range sp.Pieces {
				sp.Pieces[i].Body = memorySource{b: body}
			}
			r.Reply(Splice(sp))
		}), func(cfg *Config) {
			cfg.Listeners = []ListenerConfig{{Name: "MEM", Protocol: Plaintext, Listener: l}}
		})
		c := s.dial()
		go c.send(metadataFrame(1, "x"), metadataFrame(2, "x"))
		c.expect("1 before")
		_, b := c.receive()
		require.Len(t, b, 1<<20)
		require.EqualValues(t, 4, writes.Load())
	})
}

// TestResponseHeaders: the tag byte is there iff the response is flexible and not ApiVersions' (protocol.md 1).
func TestResponseHeaders(t *testing.T) {
	f := func(m kmsg.Response, want ...byte) {
		t.Helper()
		b := appendMessage(nil, 0x01020304, m)
		require.Equal(t, want, b[4:min(len(b), 4+len(want))])
	}
	versions := kmsg.NewPtrApiVersionsResponse()
	f(versions, 1, 2, 3, 4, 0, 0) // v0: then the error code
	versions.Version = 3
	versions.ErrorCode = 35
	f(versions, 1, 2, 3, 4, 0, 35)
	heartbeat := kmsg.NewPtrHeartbeatResponse()
	heartbeat.ErrorCode = 27
	f(heartbeat, 1, 2, 3, 4, 0, 27)
	heartbeat.Version = 4
	f(heartbeat, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 27, 0)
}

// badSource delivers the first bytes of what it promised.
type badSource struct {
	memorySource
	good int
	err  error
}

func (s badSource) ReadAt(p []byte, off int) (int, error) {
	if off+len(p) <= s.good {
		return s.memorySource.ReadAt(p, off)
	}
	return 0, s.err
}

// TestSourcesAreReleased: once, on each way a spliced response can take.
func TestSourcesAreReleased(t *testing.T) {
	body := make([]byte, 1<<20)
	f := func(name string, want int64, do func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &parking{}
				s := startServer(t, h, nil)
				c := s.dial()
				var released atomic.Int64
				go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
				synctest.Wait()
				do(t, s, c, h, memorySource{b: body, released: &released})
				synctest.Wait()
				require.Equal(t, want, released.Load())
				s.stop()
				require.Equal(t, want, released.Load())
			})
		})
	}
	splice := func(sources ...Source) Response {
		sp := &Spliced{}
		for _, s := range sources {
			sp.Pieces = append(sp.Pieces, Piece{Body: s})
		}
		return Splice(sp)
	}
	f("sent", 2, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").Reply(splice(source, source))
		c.receive()
	})
	f("client gone halfway", 2, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").Reply(splice(source, source))
		_, err := io.CopyN(io.Discard, c, 300<<10)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	f("source fails", 3, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").Reply(splice(source, badSource{source, 500 << 10, errors.New("disk on fire")}, source))
		require.Less(t, len(c.ends()), 1600<<10)
		synctest.Wait()
		require.Equal(t, 1, s.logs.count("level=ERROR"))
		require.NotZero(t, s.logs.count("disk on fire"))
	})
	f("source ends early", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").Reply(splice(badSource{source, 500 << 10, nil}))
		c.ends()
		synctest.Wait()
		require.Len(t, s.conns(), 0)
	})
	f("small source fails", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		source.b = source.b[:100]
		h.get("a").Reply(splice(badSource{source, 50, io.ErrUnexpectedEOF}))
		require.Empty(t, c.ends())
	})
	f("waits behind a parked request", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("b").Reply(splice(source))
		synctest.Wait()
		require.NoError(t, c.Close())
	})
	f("after the client's death", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		require.NoError(t, c.Close())
		synctest.Wait()
		h.get("a").Reply(splice(source))
	})
	f("behind a close", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").CloseConn("")
		h.get("b").Reply(splice(source))
		require.Empty(t, c.ends())
	})
	f("by a function", 1, func(t *testing.T, s *testServer, c *testClient, h *parking, source memorySource) {
		h.get("a").ReplyFunc(func() Response { return splice(source) })
		c.receive()
	})
}

// TestChunksAreBounded is N8: with ResponseBudgetBytes for two large chunks, a third connection that sends a response copies through a small
// one instead of waiting for the two whose clients don't read.
func TestChunksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := make([]byte, 1<<20)
		s := startServer(t, handlerFunc(func(r *Request) {
			r.Reply(Splice(&Spliced{Pieces: []Piece{{Body: memorySource{b: body}}}}))
		}), func(cfg *Config) { cfg.ResponseBudgetBytes = 2 * chunkBytes })
		var clients []*testClient
		for range 20 {
			c := s.dial()
			c.send(metadataFrame(1, "a"))
			clients = append(clients, c)
		}
		synctest.Wait()
		require.EqualValues(t, 2, s.chunks.out.Load())
		var readers sync.WaitGroup
		for _, c := range clients {
			readers.Go(func() {
				if _, b := c.receive(); len(b) != len(body) {
					t.Errorf("%d bytes", len(b))
				}
			})
		}
		readers.Wait()
	})
}
