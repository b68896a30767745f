package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// patience bounds every wait of the tests; it is a limit, never a measure.
const patience = 30 * time.Second

var buildOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "millrace-integration-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	bin := filepath.Join(dir, "millrace")
	out, err := exec.Command("go", "build", "-o", bin, module+"/cmd/millrace").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return bin, nil
})

// builtIn is the folder of the built binary, removed at the end.
var builtIn string

func TestMain(m *testing.M) {
	code := m.Run()
	if builtIn != "" {
		_ = os.RemoveAll(builtIn)
	}
	os.Exit(code)
}

// millraceBinary builds millrace once for all tests and returns its path.
func millraceBinary(t testing.TB) string {
	t.Helper()
	bin, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// A broker is one real millrace process.
type broker struct {
	t    testing.TB
	Data string // data directory
	Addr string // client listener, host:port
	HTTP string // health and metrics, host:port
	args []string
	// wrap, when not empty, is a command line that the broker's own is appended to.
	wrap []string

	cmd    *exec.Cmd
	stderr *lockedBuffer
	done   chan struct{}
}

// startBroker starts a process on a fresh data directory and waits until it
// answers a Metadata request. It ends with the test.
func startBroker(t testing.TB, set ...string) *broker {
	t.Helper()
	b := newBroker(t, set...)
	b.Start()
	return b
}

// newBroker is startBroker without the start.
func newBroker(t testing.TB, set ...string) *broker {
	t.Helper()
	b := &broker{t: t, Data: t.TempDir(), Addr: freeAddr(t), HTTP: freeAddr(t)}
	b.args = []string{
		"start", "--data", b.Data,
		"--set", "listeners=PLAINTEXT://" + b.Addr,
		"--set", "advertised.listeners=PLAINTEXT://" + b.Addr,
		"--set", "millrace.http.listener=" + b.HTTP,
	}
	for _, kv := range set {
		b.args = append(b.args, "--set", kv)
	}
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("broker log:\n%s", b.stderr.Tail(8<<10))
		}
	})
	return b
}

// Start runs the process (again) and waits until it serves.
func (b *broker) Start() {
	b.t.Helper()
	line := append(append(slices.Clone(b.wrap), millraceBinary(b.t)), b.args...)
	b.cmd = exec.Command(line[0], line[1:]...)
	b.stderr = &lockedBuffer{}
	b.cmd.Stderr = b.stderr
	b.cmd.Stdout = b.stderr
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(b.cmd, b.done)
	b.awaitMetadata()
}

func (b *broker) awaitMetadata() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := askMetadata(ctx, b.Addr)
		if err == nil {
			return
		}
		select {
		case <-b.done:
			b.t.Fatalf("the broker ended: %v\n%s", b.cmd.ProcessState, b.stderr.Tail(8<<10))
		case <-ctx.Done():
			b.t.Fatalf("the broker does not answer: %v\n%s", err, b.stderr.Tail(8<<10))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends the process with SIGKILL and waits for its end. The page cache of
// the machine survives, as at any kill -9.
func (b *broker) Kill() {
	b.t.Helper()
	if b.cmd == nil || b.cmd.Process == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	<-b.done
}

// Stop ends the process as an operator does, with SIGTERM, and returns its
// exit code.
func (b *broker) Stop() int {
	b.t.Helper()
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.t.Fatal(err)
	}
	select {
	case <-b.done:
	case <-time.After(patience):
		b.t.Fatalf("the broker does not stop on SIGTERM\n%s", b.stderr.Tail(8<<10))
	}
	return b.cmd.ProcessState.ExitCode()
}

// askMetadata sends one Metadata request over a connection of its own.
func askMetadata(ctx context.Context, addr string) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 9
	req.Topics = []kmsg.MetadataRequestTopic{}
	body, err := roundTrip(ctx, addr, req)
	if err != nil {
		return err
	}
	resp := req.ResponseKind().(*kmsg.MetadataResponse)
	if err := resp.ReadFrom(body); err != nil {
		return err
	}
	if len(resp.Brokers) == 0 {
		return errors.New("no broker in the metadata yet")
	}
	return nil
}

// roundTrip writes one request in its own version and returns the body of the
// response behind its header.
func roundTrip(ctx context.Context, addr string, req kmsg.Request) ([]byte, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if _, err := conn.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("integration")).AppendRequest(nil, req, 7)); err != nil {
		return nil, err
	}
	return readResponse(conn, req)
}

func readResponse(r io.Reader, req kmsg.Request) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(size[0])<<24 | int(size[1])<<16 | int(size[2])<<8 | int(size[3])
	header := 4
	if req.IsFlexible() && req.Key() != 18 {
		header++ // the empty tag section
	}
	if n < header || n > 128<<20 {
		return nil, fmt.Errorf("a response of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	return body[header:], nil
}

// client opens a franz-go client that ends with the test.
func (b *broker) client(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Addr)}, opts...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cl.Close)
	return cl
}

// freeAddr returns a loopback address that nobody listens on now.
func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// lockedBuffer collects the output of a process.
type lockedBuffer struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.buf.Write(p)
}

// Tail returns the last n bytes.
func (b *lockedBuffer) Tail(n int) string {
	if b == nil {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.mu.buf.String()
	if len(s) > n {
		s = s[len(s)-n:]
		if i := strings.IndexByte(s, '\n'); i >= 0 {
			s = s[i+1:]
		}
	}
	return s
}

func (b *lockedBuffer) String() string { return b.Tail(1 << 30) }
