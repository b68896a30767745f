package proxy

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; it is a limit, never a measure.
const patience = 20 * time.Second

// echo is a broker that answers each request with its correlation id and body, and echoes a Raft stream.
type echo struct {
	listener net.Listener
	running  sync.WaitGroup
	got      chan int32 // correlation ids, as they arrive
}

func startEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	e := &echo{listener: l, got: make(chan int32, 100)}
	e.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			e.running.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		e.running.Wait()
	})
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	if first, err := in.Peek(1); err == nil && first[0] == 'R' {
		_, _ = io.Copy(c, in)
		return
	}
	for {
		p, err := readFrame(in, nil)
		if err != nil {
			return
		}
		e.got <- int32(binary.BigEndian.Uint32(p[4:]))
		if _, err := c.Write(appendFrame(nil, p[4:])); err != nil {
			return
		}
	}
}

func open(t *testing.T) (*Proxy, *echo) {
	t.Helper()
	e := startEcho(t)
	p, err := Open("127.0.0.1:0", e.listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p, e
}

type testClient struct {
	t  *testing.T
	c  net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *testClient {
	t.Helper()
	c, err := net.DialTimeout("tcp", p.Addr(), patience)
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = c.Close() })
	return &testClient{t, c, bufio.NewReader(c)}
}

func (c *testClient) ask(key int16, correlation int32) {
	c.t.Helper()
	p := binary.BigEndian.AppendUint16(nil, uint16(key))
	p = binary.BigEndian.AppendUint16(p, 9)
	p = binary.BigEndian.AppendUint32(p, uint32(correlation))
	p = append(binary.BigEndian.AppendUint16(p, 2), "me"...)
	_, err := c.c.Write(appendFrame(nil, p))
	require.NoError(c.t, err)
}

func (c *testClient) answer() int32 {
	c.t.Helper()
	p, err := readFrame(c.in, nil)
	require.NoError(c.t, err)
	return int32(binary.BigEndian.Uint32(p))
}

// silent says that nothing arrives.
func (c *testClient) silent() {
	c.t.Helper()
	require.NoError(c.t, c.c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	_, err := c.in.Peek(1)
	require.ErrorContains(c.t, err, "timeout")
	require.NoError(c.t, c.c.SetReadDeadline(time.Now().Add(patience)))
}

func (c *testClient) broken() {
	c.t.Helper()
	_, err := io.Copy(io.Discard, c.in)
	if err != nil {
		require.NotContains(c.t, err.Error(), "timeout")
	}
}

// refused says that a new connection does not live; the reset may come before the dial has ended.
func refused(t *testing.T, p *Proxy) {
	t.Helper()
	c, err := net.DialTimeout("tcp", p.Addr(), patience)
	if err != nil {
		return
	}
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	(&testClient{t, c, bufio.NewReader(c)}).broken()
}

func wait[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

func TestFramesPass(t *testing.T) {
	p, e := open(t)
	seen := make(chan Frame, 4)
	p.Add(func(f Frame) Verdict {
		f.Payload = nil
		seen <- f
		return Verdict{}
	})
	c := dial(t, p)
	c.ask(3, 70)
	require.Equal(t, int32(70), c.answer())
	require.Equal(t, int32(70), wait(t, e.got))
	require.Equal(t, Frame{Direction: Request, Conn: 1, Key: 3, Version: 9, Correlation: 70, ClientID: "me"}, wait(t, seen))
	require.Equal(t, Frame{Direction: Answer, Conn: 1, Key: 3, Version: 9, Correlation: 70, ClientID: "me"}, wait(t, seen))
}

// A held request does not reach the broker; other connections are not held up.
func TestHoldRequest(t *testing.T) {
	p, e := open(t)
	gate := p.Hold(First(1, Key(Request, 0)), Verdict{})
	held, other := dial(t, p), dial(t, p)
	held.ask(0, 1)
	require.Equal(t, int32(1), wait(t, gate.Held()).Correlation)
	other.ask(0, 2)
	require.Equal(t, int32(2), other.answer())
	require.Equal(t, int32(2), wait(t, e.got))
	held.silent()
	gate.Open()
	require.Equal(t, int32(1), held.answer())
	require.Equal(t, int32(1), wait(t, e.got))
}

// The broker did what it was asked to, and the client never learns.
func TestLostAnswer(t *testing.T) {
	p, e := open(t)
	gate := p.Hold(Key(Answer, 0), Verdict{Drop: true, Cut: true})
	c := dial(t, p)
	c.ask(0, 1)
	require.Equal(t, int32(1), wait(t, gate.Held()).Correlation)
	require.Equal(t, int32(1), wait(t, e.got))
	gate.Open()
	c.broken()
	again := dial(t, p)
	again.ask(0, 2)
	require.Equal(t, int32(2), again.answer(), "an open gate holds nothing")
}

// A lost request never arrives; the connection lives on.
func TestLostRequest(t *testing.T) {
	p, e := open(t)
	remove := p.Add(func(f Frame) Verdict { return Verdict{Drop: f.Direction == Request && f.Correlation == 1} })
	c := dial(t, p)
	c.ask(0, 1)
	c.ask(0, 2)
	require.Equal(t, int32(2), c.answer())
	require.Equal(t, int32(2), wait(t, e.got))
	remove()
	c.ask(0, 1)
	require.Equal(t, int32(1), c.answer())
}

func TestDelay(t *testing.T) {
	p, _ := open(t)
	const delay = 50 * time.Millisecond
	p.Add(func(f Frame) Verdict {
		if Key(Answer, 1)(f) {
			return Verdict{Delay: delay}
		}
		return Verdict{}
	})
	c := dial(t, p)
	began := time.Now()
	c.ask(1, 1)
	c.ask(3, 2)
	require.Equal(t, int32(1), c.answer(), "answers keep their order")
	require.Equal(t, int32(2), c.answer())
	require.GreaterOrEqual(t, time.Since(began), delay)
}

// One way is dead, both sides think the connection alive, and nothing is lost once it heals.
func TestOneWay(t *testing.T) {
	p, e := open(t)
	c := dial(t, p)
	c.ask(3, 1)
	require.Equal(t, int32(1), c.answer())
	require.Equal(t, int32(1), wait(t, e.got))
	p.Pause(Answer)
	c.ask(3, 2)
	require.Equal(t, int32(2), wait(t, e.got), "requests still arrive")
	c.silent()
	fresh := dial(t, p)
	fresh.ask(3, 3)
	require.Equal(t, int32(3), wait(t, e.got))
	fresh.silent()
	p.Resume(Answer)
	require.Equal(t, int32(2), c.answer())
	require.Equal(t, int32(3), fresh.answer())
}

func TestCutAndRefuse(t *testing.T) {
	p, _ := open(t)
	c := dial(t, p)
	c.ask(3, 1)
	require.Equal(t, int32(1), c.answer())
	p.Refuse(true)
	p.Cut()
	c.broken()
	refused(t, p)
	p.Refuse(false)
	c = dial(t, p)
	c.ask(3, 2)
	require.Equal(t, int32(2), c.answer())

	other := startEcho(t)
	p.Forward(other.listener.Addr().String())
	c = dial(t, p)
	c.ask(3, 3)
	require.Equal(t, int32(3), c.answer())
	require.Equal(t, int32(3), wait(t, other.got))
}

// A Raft stream is bytes: rules do not see it, pauses and cuts reach it.
func TestRaftStream(t *testing.T) {
	p, _ := open(t)
	p.Add(func(Frame) Verdict { return Verdict{Drop: true} })
	c := dial(t, p)
	_, err := c.c.Write([]byte("Rhello"))
	require.NoError(t, err)
	got := make([]byte, 6)
	_, err = io.ReadFull(c.in, got)
	require.NoError(t, err)
	require.Equal(t, "Rhello", string(got))
	p.Pause(Request)
	_, err = c.c.Write([]byte("x"))
	require.NoError(t, err)
	c.silent()
	p.Resume(Request)
	b, err := c.in.ReadByte()
	require.NoError(t, err)
	require.Equal(t, byte('x'), b)
	p.Cut()
	c.broken()
}

// Garbage, a giant size and a broker that is not there break the connection, not the proxy.
func TestBrokenStreams(t *testing.T) {
	p, e := open(t)
	c := dial(t, p)
	_, err := c.c.Write([]byte{0x7f, 0xff, 0xff, 0xff, 1, 2, 3})
	require.NoError(t, err)
	c.broken()
	require.NoError(t, e.listener.Close())
	refused(t, p)
}

// A late request leaves its connection: what comes behind it is answered, and it reaches the broker when it is let go, though
// its client is gone.
func TestLateRequest(t *testing.T) {
	p, e := open(t)
	gate := make(chan struct{})
	late, answer := First(1, Key(Request, 26)), make(chan []byte, 1)
	defer p.Add(func(f Frame) Verdict {
		if late(f) {
			return Verdict{Late: true, Hold: gate, LateAnswer: answer}
		}
		return Verdict{}
	})()
	c := dial(t, p)
	c.ask(26, 1)
	c.ask(26, 2)
	require.Equal(t, int32(2), c.answer())
	require.Equal(t, int32(2), wait(t, e.got))
	c.silent()
	require.NoError(t, c.c.Close())
	require.Empty(t, e.got)
	require.Empty(t, answer)
	close(gate)
	require.Equal(t, int32(1), wait(t, e.got))
	require.Equal(t, int32(1), int32(binary.BigEndian.Uint32(wait(t, answer))))
}

// A late request whose broker is gone is lost, and whoever asked for its answer learns of it.
func TestLateRequestLost(t *testing.T) {
	p, e := open(t)
	gate, answer := make(chan struct{}), make(chan []byte, 1)
	c := dial(t, p)
	c.ask(3, 1)
	require.Equal(t, int32(1), c.answer(), "the proxy has reached the broker for this client")
	require.Equal(t, int32(1), wait(t, e.got))
	defer p.Add(func(f Frame) Verdict { return Verdict{Late: true, Hold: gate, LateAnswer: answer} })()
	c.ask(26, 2)
	require.NoError(t, e.listener.Close())
	close(gate)
	require.Nil(t, wait(t, answer))
	require.Empty(t, e.got)
}
