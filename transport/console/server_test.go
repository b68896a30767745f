package console

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Health answers tell machines by status and people by reasons, at most 20 of them; metrics are always there.
func TestServer(t *testing.T) {
	var ready, live atomic.Pointer[[]string]
	ready.Store(&[]string{})
	live.Store(&[]string{})
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_test_total"})
	registry.MustRegister(counter)
	counter.Add(3)
	s := New(Config{Live: func() []string { return *live.Load() }, Ready: func() []string { return *ready.Load() }, Gatherer: registry, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.Serve(l)
	client := &http.Client{}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + l.Addr().String() + path)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		status, body := get(path)
		require.Equal(t, 200, status, path)
		require.Equal(t, "ok\n", body)
	}
	// Recovering: alive, not ready.
	reasons := []string{"recovering logs"}
	for i := range 24 {
		reasons = append(reasons, fmt.Sprint("reason ", i))
	}
	ready.Store(&reasons)
	status, body := get("/readyz")
	require.Equal(t, 503, status)
	require.Equal(t, 1+20+1, strings.Count(body, "\n"), body)
	require.True(t, strings.HasPrefix(body, "failed\nrecovering logs\n"), body)
	require.Contains(t, body, "and 5 more")
	status, body = get("/healthz?format=json")
	require.Equal(t, 503, status)
	var h Health
	require.NoError(t, json.Unmarshal([]byte(body), &h))
	require.Equal(t, "failed", h.Status)
	require.Len(t, h.Reasons, 20)
	require.Equal(t, 25, h.Total)
	status, body = get("/livez?format=json")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"check":"livez","status":"ok","reasons":[],"total":0}`, body)
	live.Store(&[]string{"the log directory failed"})
	status, _ = get("/livez")
	require.Equal(t, 503, status)

	status, body = get("/metrics")
	require.Equal(t, 200, status)
	require.Contains(t, body, "millrace_test_total 3")
	status, _ = get("/nothing")
	require.Equal(t, 404, status)
	status, body = get("/")
	require.Equal(t, 200, status)
	require.Contains(t, body, "/readyz")

	client.CloseIdleConnections()
	require.NoError(t, s.Shutdown(context.Background()))
	_, err = net.Dial("tcp", l.Addr().String())
	require.Error(t, err)
}
