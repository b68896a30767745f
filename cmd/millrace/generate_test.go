package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metadata"
)

// The command line of the printed unit starts a broker that tells systemd when it serves, and ends with 0 when it is
// asked to stop: what Type=notify and Restart=on-failure rest on.
func TestSystemdUnitStartsABroker(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "server.properties")
	require.NoError(t, os.WriteFile(config, []byte(serverProperties()+"\nlisteners=PLAINTEXT://127.0.0.1:0\nmillrace.http.listener=off\n"), 0o600))
	e, unit, _ := testEnv()
	require.Equal(t, exitOK, run(t.Context(), e, []string{"generate", "systemd", "--config", config}))
	var words []string
	for line := range strings.SplitSeq(unit.String(), "\n") {
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			words = strings.Fields(strings.Replace(command, "/var/lib/millrace", filepath.Join(dir, "data"), 1))
		}
	}
	require.NotEmpty(t, words)
	require.Equal(t, "/usr/local/bin/millrace", words[0])

	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer socket.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("GOMAXPROCS", "2") // the process is the test's, and stays as it is
	t.Setenv("GOMEMLIMIT", "off")
	hear := func() string {
		t.Helper()
		require.NoError(t, socket.SetReadDeadline(time.Now().Add(time.Minute)))
		b := make([]byte, 512)
		n, err := socket.Read(b)
		require.NoError(t, err)
		return string(b[:n])
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	code := make(chan int, 1)
	broker, _, _ := testEnv()
	go func() { code <- run(ctx, broker, words[1:]) }()
	require.True(t, strings.HasPrefix(hear(), "READY=1\n"))
	cancel()
	require.Equal(t, "STOPPING=1", hear())
	require.Equal(t, exitOK, <-code)
}

// Every honoured key is in the printed file once, and no other.
func TestServerPropertiesHasEveryHonouredKey(t *testing.T) {
	text := serverProperties()
	for _, k := range metadata.ConfigKeys(metadata.ConfigBroker) {
		require.Equal(t, k.Class == metadata.ConfigHonoured && !k.Hidden, strings.Contains(text, "\n#"+k.Name+"="), k.Name)
	}
	for line := range strings.SplitSeq(text, "\n") {
		require.LessOrEqual(t, len(line), 240, line)
		key, value, found := strings.Cut(strings.TrimPrefix(line, "#"), "=")
		if !found || strings.HasPrefix(line, "# ") {
			continue
		}
		require.Equal(t, 1, strings.Count(text, "\n#"+key+"="), key)
		if value != "" {
			require.Empty(t, lintPair(key, value), line)
		}
	}
	require.Contains(t, text, "\n#min.insync.replicas=\n", "a default that depends on the cluster is not spelt out")
}
