package transport

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// handlerFunc serves every key and version kmsg knows by a function.
type handlerFunc func(*Request)

func (handlerFunc) Accept(key, version int16) (flexible, ok bool) {
	r := kmsg.RequestForKey(key)
	if r == nil || version > r.MaxVersion() {
		return false, false
	}
	r.SetVersion(version)
	return r.IsFlexible(), true
}

func (h handlerFunc) Handle(r *Request) { h(r) }

// respond makes the response a test client recognises by its text.
func respond(text string) *kmsg.SASLHandshakeResponse {
	r := kmsg.NewPtrSASLHandshakeResponse()
	r.SupportedMechanisms = []string{text}
	return r
}

// testServer is a running server; it is shut down with the test.
type testServer struct {
	*Server
	t    testing.TB
	logs *logBuffer
	ran  chan error
	mem  []*memListener
}

// startServer runs a server. Without listeners it gets one in memory.
func startServer(t testing.TB, h Handler, edit func(*Config)) *testServer {
	t.Helper()
	s := &testServer{t: t, logs: &logBuffer{}, ran: make(chan error, 1)}
	cfg := Default()
	cfg.Logger = slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg.FrameBudgetBytes = 64 << 20
	if edit != nil {
		edit(&cfg)
	}
	if len(cfg.Listeners) == 0 {
		cfg.Listeners = []ListenerConfig{{Name: "MEM", Protocol: Plaintext, Listener: newMemListener()}}
	}
	for i := range cfg.Listeners {
		if m, ok := cfg.Listeners[i].Listener.(*memListener); ok {
			s.mem = append(s.mem, m)
		}
	}
	var err error
	s.Server, err = New(cfg, h)
	require.NoError(t, err)
	go func() { s.ran <- s.Run(context.Background()) }()
	t.Cleanup(s.stop)
	return s
}

// overTCP lets a server listen on loopback.
func overTCP(cfg *Config) {
	cfg.Listeners = []ListenerConfig{{Name: "PLAINTEXT", Protocol: Plaintext, Bind: "127.0.0.1:0"}}
}

// stop closes the server and checks that it ended.
func (s *testServer) stop() {
	_ = s.Close()
	if err, ok := <-s.ran; ok {
		close(s.ran)
		require.NoError(s.t, err)
	}
	require.Zero(s.t, s.listeners[0].budget.inUse(), "frame memory is still charged (I23)")
	require.Zero(s.t, s.chunks.out.Load(), "a chunk was not returned")
}

// dial connects to the server's first listener.
func (s *testServer) dial() *testClient {
	s.t.Helper()
	var c net.Conn
	var err error
	if len(s.mem) > 0 {
		c, err = s.mem[0].Dial()
	} else {
		c, err = net.Dial("tcp", s.listeners[0].Addr().String())
	}
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return &testClient{t: s.t, Conn: c}
}

// conns are the server's connections.
func (s *testServer) conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*Conn
	for c := range s.mu.conns {
		all = append(all, c)
	}
	return all
}

// testClient writes requests and reads responses, each by hand.
type testClient struct {
	net.Conn
	t testing.TB
}

// frame encodes a request with a size prefix.
func frame(correlationID int32, req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("test")).AppendRequest(nil, req, correlationID)
}

// metadataFrame is a small request that isn't flexible; text is its one topic.
func metadataFrame(correlationID int32, text string) []byte {
	r := kmsg.NewPtrMetadataRequest()
	r.Version = 1
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &text
	r.Topics = append(r.Topics, topic)
	return frame(correlationID, r)
}

// metadataText is the text of a metadataFrame's body.
func metadataText(r *Request) string {
	m := kmsg.NewPtrMetadataRequest()
	m.Version = r.Version
	if err := m.ReadFrom(r.Body); err != nil || len(m.Topics) == 0 || m.Topics[0].Topic == nil {
		return ""
	}
	return *m.Topics[0].Topic
}

// produceFrame is a produce request with records of size bytes.
func produceFrame(correlationID int32, acks int16, size int) []byte {
	r := kmsg.NewPtrProduceRequest()
	r.Version = 9
	r.Acks = acks
	topic := kmsg.NewProduceRequestTopic()
	topic.Topic = "t"
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = bytes.Repeat([]byte{'r'}, size)
	topic.Partitions = append(topic.Partitions, p)
	r.Topics = append(r.Topics, topic)
	return frame(correlationID, r)
}

// send writes bytes.
func (c *testClient) send(b ...[]byte) {
	c.t.Helper()
	_, err := c.Write(bytes.Join(b, nil))
	require.NoError(c.t, err)
}

// receive reads one response: its correlation id and what follows.
func (c *testClient) receive() (correlationID int32, rest []byte) {
	c.t.Helper()
	b, err := readResponse(c.Conn)
	require.NoError(c.t, err)
	return int32(binary.BigEndian.Uint32(b)), b[4:]
}

// receiveText reads the response made by respond.
func (c *testClient) receiveText() (correlationID int32, text string) {
	c.t.Helper()
	id, body := c.receive()
	r := kmsg.NewPtrSASLHandshakeResponse()
	require.NoError(c.t, r.ReadFrom(body))
	require.Len(c.t, r.SupportedMechanisms, 1)
	return id, r.SupportedMechanisms[0]
}

// ends waits until the server has closed the connection and returns what it sent before.
func (c *testClient) ends() []byte {
	b, _ := io.ReadAll(c.Conn)
	return b
}

func readResponse(r io.Reader) ([]byte, error) {
	var p [4]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint32(p[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// memListener accepts the server ends of pipes. Pipes have no buffer: a client that doesn't read blocks the server at once.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	wrap   func(net.Conn) net.Conn // what the server gets instead of its end of a pipe
}

func newMemListener() *memListener {
	return &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Dial() (net.Conn, error) {
	client, server := net.Pipe()
	if l.wrap != nil {
		server = l.wrap(server)
	}
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return memAddr{} }

type memAddr struct{}

func (memAddr) Network() string { return "mem" }
func (memAddr) String() string  { return "mem" }

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// count is how often s was logged.
func (l *logBuffer) count(s string) int { return bytes.Count([]byte(l.String()), []byte(s)) }

// nothing checks that the server has nothing to say. In a synctest bubble it takes no time.
func (c *testClient) nothing() {
	c.t.Helper()
	require.NoError(c.t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	n, err := c.Read(make([]byte, 1))
	require.Zero(c.t, n, "unexpected bytes from the server")
	require.True(c.t, isTimeout(err), "%v", err)
	require.NoError(c.t, c.SetReadDeadline(time.Time{}))
}
