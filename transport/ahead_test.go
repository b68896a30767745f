//go:build linux

package transport

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// echo answers produce requests at once by their correlation id. It is a gate, too: nothing is handled before open.
type echo struct{ open sync.WaitGroup }

func (e *echo) Handle(r *Request) {
	e.open.Wait()
	r.Reply(Message(respond(fmt.Sprint(r.CorrelationID))))
}

func (e *echo) Accept(key, version int16) (bool, bool) { return handlerFunc(nil).Accept(key, version) }

// A client that sends requests larger than the read buffer ahead of the answers gets these by few writes, in order, and the last ones
// although nothing follows.
func TestAnswersOfLargeRequestsShareWrites(t *testing.T) {
	e := &echo{}
	e.open.Add(1)
	s := startServer(t, e, overTCP)
	c := s.dial()
	const requests = 3*maxHeldRequests + 2
	var burst [][]byte
	for i := range requests {
		burst = append(burst, produceFrame(int32(i), -1, readBufferBytes+100))
	}
	c.send(burst...)
	e.open.Done() // all of it has arrived: loopback
	for i := range requests {
		id, text := c.receiveText()
		require.EqualValues(t, i, id)
		require.Equal(t, fmt.Sprint(i), text)
	}
	c.send(produceFrame(99, -1, readBufferBytes+100))
	c.expect("99 99") // and alone
}

// Answers held back go out before the reader waits, whatever it finds instead of a request.
func TestHeldAnswersAreNotLost(t *testing.T) {
	large := produceFrame(1, -1, readBufferBytes+100)
	for name, after := range map[string]func(c *testClient){
		"nothing":            func(c *testClient) {},
		"half a prefix":      func(c *testClient) { c.send([]byte{0, 0}) },
		"half a request":     func(c *testClient) { c.send(large[:readBufferBytes+50]) },
		"a large request":    func(c *testClient) { c.send(produceFrame(2, -1, 2*maxHeldFrameBytes)[:maxHeldFrameBytes]) },
		"end of the stream":  func(c *testClient) { require.NoError(c.t, c.Conn.(*net.TCPConn).CloseWrite()) },
		"unknown key":        func(c *testClient) { c.send([]byte{0, 0, 0, 8, 0x7f, 0xff, 0, 0, 0, 0, 0, 3}) },
		"impossible size":    func(c *testClient) { c.send([]byte{0xff, 0, 0, 0}) },
		"TLS behind a frame": func(c *testClient) { c.send(bytes.Repeat([]byte{0x16, 0x03}, 100)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := &echo{}
			e.open.Add(1)
			c := startServer(t, e, overTCP).dial()
			c.send(large)
			after(c) // the bytes are in the socket before the answer is there
			e.open.Done()
			c.expect("1 1")
		})
	}
}
