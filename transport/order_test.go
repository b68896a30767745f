package transport

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// parking is a handler that answers requests whose text begins with "!" at once and keeps the others.
type parking struct {
	mu      sync.Mutex
	handled []string
	parked  map[string]*Request
}

func (p *parking) Handle(r *Request) {
	text := metadataText(r)
	p.mu.Lock()
	p.handled = append(p.handled, text)
	if !strings.HasPrefix(text, "!") {
		if p.parked == nil {
			p.parked = map[string]*Request{}
		}
		p.parked[text] = r
	}
	p.mu.Unlock()
	if strings.HasPrefix(text, "!") {
		r.Reply(Message(respond(text)))
	}
}

func (p *parking) Accept(key, version int16) (bool, bool) {
	return handlerFunc(nil).Accept(key, version)
}

func (p *parking) all() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.handled...)
}

func (p *parking) get(text string) *Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parked[text]
}

func (c *testClient) expect(want ...string) {
	c.t.Helper()
	for _, w := range want {
		id, text := c.receiveText()
		require.Equal(c.t, w, fmt.Sprint(id, " ", text))
	}
}

// TestPipelining is N7: a parked fetch, a produce that waits for its acknowledgement, one with acks=0 and metadata requests on one
// connection are handled in order, at once, and answered in order although the answers come backwards.
func TestPipelining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "!first"), metadataFrame(2, "fetch"), metadataFrame(3, "acks=0"), metadataFrame(4, "produce"), metadataFrame(5, "!metadata"))
		c.expect("1 !first")
		synctest.Wait()
		require.Equal(t, []string{"!first", "fetch", "acks=0", "produce", "!metadata"}, h.all(), "a parked request must not block the handling of later ones")

		h.get("produce").Reply(Message(respond("produced")))
		h.get("acks=0").ReplyNothing()
		synctest.Wait()
		c.nothing()
		h.get("fetch").Reply(Message(respond("fetched")))
		c.expect("2 fetched", "4 produced", "5 !metadata")
		synctest.Wait()
		c.nothing()
	})
}

// TestWriterStartsLate: a connection whose requests are answered in Handle has one goroutine; the first late answer starts the second.
func TestWriterStartsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "!a"), metadataFrame(2, "!b"))
		c.expect("1 !a", "2 !b")
		synctest.Wait()
		started := func() bool {
			conn := s.conns()[0]
			conn.mu.Lock()
			defer conn.mu.Unlock()
			return conn.mu.writer
		}
		require.False(t, started())
		go c.send(metadataFrame(3, "late"))
		synctest.Wait()
		h.get("late").Reply(Message(respond("now")))
		c.expect("3 now")
		require.True(t, started())
	})
}

// countingConn counts the calls of Write.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// TestOneWritePerBurst: answers to requests that arrived together leave together (dataplane.md 3), and a request that has arrived only in
// part doesn't hold them back.
func TestOneWritePerBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int64
		l := newMemListener()
		l.wrap = func(c net.Conn) net.Conn { return countingConn{c, &writes} }
		s := startServer(t, &parking{}, func(cfg *Config) {
			cfg.Listeners = []ListenerConfig{{Name: "MEM", Protocol: Plaintext, Listener: l}}
		})
		c := s.dial()
		var burst []byte
		for i := range 30 {
			burst = append(burst, metadataFrame(int32(i), "!x")...)
		}
		burst = append(burst, metadataFrame(30, "!y")[:9]...)
		require.Less(t, len(burst), readBufferBytes)
		go c.send(burst)
		for i := range 30 {
			c.expect(fmt.Sprint(i, " !x"))
		}
		require.EqualValues(t, 1, writes.Load())
		go c.send(metadataFrame(30, "!y")[9:])
		c.expect("30 !y")
		require.EqualValues(t, 2, writes.Load())
	})
}

// TestReplyFunc: the function runs when the answer's turn has come, so that it reads what is there then; and never for a dead connection.
func TestReplyFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"), metadataFrame(3, "c"))
		synctest.Wait()
		now := "too early"
		h.get("b").ReplyFunc(func() Response { return Message(respond(now)) })
		synctest.Wait()
		now = "in time"
		h.get("a").ReplyFunc(func() Response {
			return Splice(&Spliced{Pieces: []Piece{{Header: appendMessage(nil, 0, respond("spliced"))[8:]}}})
		})
		c.expect("1 spliced", "2 in time")
		require.NoError(t, c.Close())
		synctest.Wait()
		h.get("c").ReplyFunc(func() Response { t.Error("called for a dead connection"); return Message(respond("")) })
		synctest.Wait()
	})
}

// TestSecondAnswerIsDropped: a handler that answers twice by mistake does not answer another request.
func TestSecondAnswerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
		synctest.Wait()
		var released atomic.Int64
		h.get("b").Reply(Message(respond("b")))
		h.get("b").Reply(Message(respond("again")))
		h.get("b").Reply(Splice(&Spliced{Pieces: []Piece{{Body: memorySource{b: []byte("x"), released: &released}}}}))
		h.get("a").Reply(Message(respond("a")))
		c.expect("1 a", "2 b")
		synctest.Wait()
		c.nothing()
		require.Equal(t, 2, s.logs.count("answered twice"))
		require.EqualValues(t, 1, released.Load())
	})
}

// TestInFlightBound: a connection with MaxInFlight unanswered requests is not read from (N7).
func TestInFlightBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, func(cfg *Config) { cfg.MaxInFlight = 3 })
		c := s.dial()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"), metadataFrame(3, "!c"), metadataFrame(4, "!d"), metadataFrame(5, "!e"))
		synctest.Wait()
		require.Equal(t, []string{"a", "b", "!c"}, h.all())
		h.get("a").Reply(Message(respond("a")))
		c.expect("1 a")
		synctest.Wait()
		require.Equal(t, []string{"a", "b", "!c", "!d"}, h.all())
		h.get("b").Reply(Message(respond("b")))
		c.expect("2 b", "3 !c", "4 !d", "5 !e")
	})
}

// TestCloseConnKeepsOrder: a produce with acks=0 that failed closes the connection (the only signal its client gets), but after the
// answers to earlier requests, and nothing behind it is handled.
func TestCloseConnKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "acks=0"))
		synctest.Wait()
		request := h.get("a")
		h.get("acks=0").CloseConn("produce failed")
		go func() { _, _ = c.Write(metadataFrame(3, "!behind")) }()
		synctest.Wait()
		require.NoError(t, request.Context().Err(), "the earlier request is still in work")
		request.Reply(Message(respond("a")))
		c.expect("1 a")
		require.Empty(t, c.ends())
		synctest.Wait()
		require.Equal(t, []string{"a", "acks=0"}, h.all())
		require.ErrorContains(t, cause(request), "produce failed")
	})
}

// TestAnswerBeforeClose: the answer before an orderly close arrives although the client has sent more than the server will ever read: the
// connection ends by FIN, not by a reset that would overtake the answer.
func TestAnswerBeforeClose(t *testing.T) {
	s := startServer(t, handlerFunc(func(r *Request) { r.ReplyThenClose(Message(respond("last")), "authentication failed") }), overTCP)
	c := s.dial()
	c.send(metadataFrame(1, "a"), metadataFrame(2, "b"), make([]byte, 64<<10))
	c.expect("1 last")
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// TestAnswersFromManyGoroutines: whatever goroutine answers and in whatever order, encoded or spliced, large or small, the client sees the
// answers in the order of its requests (N7).
func TestAnswersFromManyGoroutines(t *testing.T) {
	const requests = 2000
	rnd := rand.New(rand.NewPCG(1, 2))
	texts := make([]string, requests)
	for i := range texts {
		texts[i] = strings.Repeat("x", rnd.IntN(40))
		if i%50 == 0 {
			texts[i] = strings.Repeat("y", 5000+rnd.IntN(25000))
		}
	}
	var answerers sync.WaitGroup
	s := startServer(t, handlerFunc(func(r *Request) {
		resp := func() Response {
			m := respond(texts[r.CorrelationID])
			if r.CorrelationID%3 == 0 {
				return Splice(&Spliced{Pieces: []Piece{{Body: memorySource{b: m.AppendTo(nil)}}}})
			}
			return Message(m)
		}
		switch r.CorrelationID % 4 {
		case 0:
			r.Reply(resp())
		case 1:
			r.ReplyFunc(resp)
		default:
			answerers.Go(func() { r.Reply(resp()) })
		}
	}), overTCP)
	c := s.dial()
	go func() {
		for i := range requests {
			if _, err := c.Write(metadataFrame(int32(i), "t")); err != nil {
				return
			}
		}
	}()
	for i := range requests {
		id, text := c.receiveText()
		require.EqualValues(t, i, id)
		require.Equal(t, texts[i], text)
	}
	answerers.Wait()
}

// TestThrottle: a throttled answer leaves at once, and the socket isn't read for as long (KIP-219).
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startServer(t, handlerFunc(func(r *Request) { r.ReplyThrottled(Message(respond("slower")), 3*time.Second) }), nil)
		c := s.dial()
		began := time.Now()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
		c.expect("1 slower")
		require.Zero(t, time.Since(began))
		c.expect("2 slower")
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Equal(t, 6*time.Second, time.Duration(s.metrics.throttle.Load()))
	})
}

// TestThrottleWhileReading: muting takes effect for the request the reader is waiting for already.
func TestThrottleWhileReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &parking{}
		s := startServer(t, h, nil)
		c := s.dial()
		go c.send(metadataFrame(1, "a"))
		synctest.Wait()
		began := time.Now()
		h.get("a").ReplyThrottled(Message(respond("a")), 3*time.Second)
		c.expect("1 a")
		go c.send(metadataFrame(2, "!b"))
		c.expect("2 !b")
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}

// TestEmptyResponse: a handler that answers with nothing by mistake doesn't make the client take the next answer for this one.
func TestEmptyResponse(t *testing.T) {
	f := func(reply func(*Request)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			s := startServer(t, handlerFunc(reply), nil)
			c := s.dial()
			go func() { _, _ = c.Write(append(metadataFrame(1, "a"), metadataFrame(2, "b")...)) }()
			require.Empty(t, c.ends())
		})
	}
	f(func(r *Request) { r.Reply(Message(nil)) })
	f(func(r *Request) { r.ReplyFunc(func() Response { return Response{} }) })
}

// TestGo: a handler may block on a goroutine of the server while later requests are handled.
func TestGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var later sync.WaitGroup
		later.Add(1)
		s := startServer(t, handlerFunc(func(r *Request) {
			if r.CorrelationID == 1 {
				r.Go(func() { later.Wait(); r.Reply(Message(respond("blocked"))) })
				return
			}
			later.Done()
			r.Reply(Message(respond("later")))
		}), nil)
		c := s.dial()
		go c.send(metadataFrame(1, "a"), metadataFrame(2, "b"))
		c.expect("1 blocked", "2 later")
	})
}

// TestTruncatedStreams: a connection that ends at any byte has only whole requests handled, and leaves nothing behind.
func TestTruncatedStreams(t *testing.T) {
	stream := append(append(metadataFrame(1, "!first"), metadataFrame(2, "!second")...), produceFrame(3, -1, 5000)...)
	whole := []int{len(metadataFrame(1, "!first")), len(metadataFrame(1, "!first")) + len(metadataFrame(2, "!second")), len(stream)}
	synctest.Test(t, func(t *testing.T) {
		var handled atomic.Int64
		s := startServer(t, handlerFunc(func(r *Request) { handled.Add(1); r.ReplyNothing() }), nil)
		for end := 0; end <= len(stream); end++ {
			if end > 200 && end < len(stream)-3 && end%97 != 0 {
				continue
			}
			handled.Store(0)
			c := s.dial()
			c.send(stream[:end])
			synctest.Wait()
			require.NoError(t, c.Close())
			synctest.Wait()
			want := 0
			for _, w := range whole {
				if end >= w {
					want++
				}
			}
			require.EqualValues(t, want, handled.Load(), "cut at %d", end)
			require.Empty(t, s.conns())
			require.Zero(t, s.listeners[0].budget.inUse())
		}
	})
}

// cause waits for the end of the request's connection.
func cause(r *Request) error {
	<-r.Context().Done()
	return context.Cause(r.Context())
}

// A request that is recycled behind others that wait keeps its place and its answer until its turn has come, and then serves another
// one (N7).
func TestRecycledInOrder(t *testing.T) {
	h := new(parking)
	recycling := handlerFunc(func(r *Request) {
		text := metadataText(r)
		h.Handle(r)
		if strings.HasPrefix(text, "!") {
			r.Recycle()
		}
	})
	s := startServer(t, recycling, overTCP)
	c := s.dial()
	for round := range 20 {
		late := fmt.Sprint("late", round)
		c.send(metadataFrame(1, "!a"), metadataFrame(2, late), metadataFrame(3, "!b"), metadataFrame(4, "!c"))
		require.Eventually(t, func() bool { return len(h.all()) == 4*(round+1) }, 10*time.Second, time.Millisecond)
		c.expect("1 !a")
		h.get(late).Reply(Message(respond(late)))
		c.expect("2 "+late, "3 !b", "4 !c")
	}
}
