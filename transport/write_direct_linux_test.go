package transport

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// awaitParked waits until a request is parked and the reader has left it, so that its answer is a late one.
func awaitParked(t *testing.T, p *parking, text string) (r *Request) {
	t.Helper()
	require.Eventually(t, func() bool {
		if r = p.get(text); r == nil {
			return false
		}
		r.Conn.mu.Lock()
		defer r.Conn.mu.Unlock()
		return !r.slot.handling
	}, 20*time.Second, 100*time.Microsecond)
	return r
}

func (c *Conn) writerRuns() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.writer
}

// A late answer to the only request in work is written by whoever answers, and no writer is woken for it.
func TestDirectAnswer(t *testing.T) {
	p := &parking{}
	s := startServer(t, p, overTCP)
	c := s.dial()
	for i := range 3 {
		text := fmt.Sprint("direct ", i)
		c.send(metadataFrame(int32(i), text))
		r := awaitParked(t, p, text)
		r.ReplyDirect(Message(respond(text)))
		require.False(t, r.Conn.writerRuns())
		id, got := c.receiveText()
		require.Equal(t, int32(i), id)
		require.Equal(t, text, got)
	}
	// While another request is in work its answer may share the write.
	c.send(metadataFrame(7, "first"), metadataFrame(8, "second"))
	first, second := awaitParked(t, p, "first"), awaitParked(t, p, "second")
	first.ReplyDirect(Message(respond("first")))
	require.True(t, first.Conn.writerRuns())
	second.ReplyDirect(Message(respond("second")))
	c.expect("7 first", "8 second")
}

// A socket without room makes nobody wait who answers directly: the writer sends what is left, from the byte where the try ended.
func TestDirectAnswerToFullSocket(t *testing.T) {
	p := &parking{}
	s := startServer(t, p, overTCP)
	c := s.dial()
	fill := strings.Repeat("x", 3<<10)
	sent := 0
	for writer := false; !writer; sent++ {
		require.Less(t, sent, 20_000, "the socket never filled")
		text := fmt.Sprintf("%d %s", sent, fill)
		c.send(metadataFrame(int32(sent), text))
		r := awaitParked(t, p, text)
		r.ReplyDirect(Message(respond(text)))
		writer = r.Conn.writerRuns()
	}
	for i := range sent {
		id, text := c.receiveText()
		require.Equal(t, int32(i), id)
		require.Equal(t, fmt.Sprintf("%d %s", i, fill), text)
	}
}

// Answers of one connection keep their order, whoever gives them and however they are written (N7), and none is lost when the connection
// ends meanwhile.
func TestDirectAnswersKeepOrder(t *testing.T) {
	for range 20 {
		p := &parking{}
		s := startServer(t, p, overTCP)
		c := s.dial()
		const n = 24
		var frames [][]byte
		for i := range n {
			frames = append(frames, metadataFrame(int32(i), fmt.Sprint(i)))
		}
		c.send(frames...)
		order := rand.Perm(n)
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for k := w; k < n; k += 4 {
					text := fmt.Sprint(order[k])
					r := awaitParked(t, p, text)
					if k%3 == 0 {
						r.Reply(Message(respond(text)))
					} else {
						r.ReplyDirect(Message(respond(text)))
					}
				}
			})
		}
		for i := range n {
			c.expect(fmt.Sprint(i, " ", i))
		}
		wg.Wait()

		// The end of a connection in the middle of a direct answer leaves nothing behind (stop checks).
		c.send(metadataFrame(1, "last"))
		r := awaitParked(t, p, "last")
		wg.Go(func() { r.Conn.kill(nil) })
		r.ReplyDirect(Message(respond("last")))
		wg.Wait()
	}
}
