package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// maxReasons is how many reasons a 503 names.
const maxReasons = 20

// Config says what to serve.
type Config struct {
	// Live and Ready return the reasons why the broker is not, none when it is. They are called for each request and
	// must not block.
	Live, Ready func() []string
	// Gatherer has the metrics.
	Gatherer prometheus.Gatherer
	Logger   *slog.Logger
}

// Server answers HTTP.
type Server struct {
	cfg  Config
	http http.Server
	wait sync.WaitGroup
}

// New makes a server; Serve starts it.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", s.health("livez", cfg.Live))
	mux.HandleFunc("GET /readyz", s.health("readyz", cfg.Ready))
	mux.HandleFunc("GET /healthz", s.health("healthz", cfg.Ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /{$}", index)
	s.http = http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return s
}

// Serve answers on l until Shutdown, in a goroutine of its own. The server closes l.
func (s *Server) Serve(l net.Listener) {
	s.wait.Go(func() {
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.cfg.Logger.Error("http port closed", "address", l.Addr(), "error", err)
		}
	})
}

// Shutdown stops listening, waits for requests under way until ctx ends, then cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	s.wait.Wait()
	return err
}

// Health is the JSON form of a health answer.
type Health struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, failed
	// Reasons are the first 20; Total counts all of them.
	Reasons []string `json:"reasons"`
	Total   int      `json:"total"`
}

func (s *Server) health(check string, reasons func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all := reasons()
		h := Health{Check: check, Status: "ok", Reasons: []string{}, Total: len(all)}
		status := http.StatusOK
		if len(all) > 0 {
			h.Status, status = "failed", http.StatusServiceUnavailable
			h.Reasons = all[:min(len(all), maxReasons)]
		}
		w.Header().Set("Cache-Control", "no-store")
		if r.URL.Query().Get("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			if err := json.NewEncoder(w).Encode(h); err != nil {
				s.cfg.Logger.Debug("health answer not delivered", "error", err)
			}
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		fmt.Fprintln(w, h.Status)
		for _, reason := range h.Reasons {
			fmt.Fprintln(w, reason)
		}
		if more := h.Total - len(h.Reasons); more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
}

func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "millrace\n/livez    the process works\n/readyz   it serves clients   (?format=json)\n/healthz  the same\n/metrics  Prometheus, OpenMetrics\n")
}
