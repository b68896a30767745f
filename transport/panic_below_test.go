package transport_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/millrace/millrace/transport"
	"github.com/stretchr/testify/require"
)

// This file's package is another one than transport, as package log is: to transport, a panic in it is one below.

type panics struct{}

func (panics) Accept(int16, int16) (bool, bool) { return false, true }
func (panics) Handle(*transport.Request)        { panic("half a change") }

// TestPanicBelowEndsTheProcess is the other half of N9: a panic that passed through a package which shares state ends the process, with
// the panic and its stack on standard error. The process is this test binary, run again.
func TestPanicBelowEndsTheProcess(t *testing.T) {
	if os.Getenv("TRANSPORT_TEST_PANIC") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=TestPanicBelowEndsTheProcess$")
		cmd.Env = append(os.Environ(), "TRANSPORT_TEST_PANIC=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 2, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), "panic: half a change")
		require.Contains(t, string(out), "transport_test.panics.Handle")
		require.Contains(t, string(out), "panic below transport: the process ends")
		return
	}
	cfg := transport.Default()
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg.Listeners = []transport.ListenerConfig{{Name: "PLAINTEXT", Protocol: transport.Plaintext, Bind: "127.0.0.1:0"}}
	s, err := transport.New(cfg, panics{})
	require.NoError(t, err)
	go func() { _ = s.Run(context.Background()) }()
	c, err := net.Dial("tcp", s.Listeners()[0].Addr().String())
	require.NoError(t, err)
	_, err = c.Write([]byte{0, 0, 0, 10, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff})
	require.NoError(t, err)
	_, _ = c.Read(make([]byte, 1))
	t.Fatal("the process lives")
}
