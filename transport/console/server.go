package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/metadata"
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
	cfg         Config
	http        http.Server
	crossOrigin *http.CrossOriginProtection
	admin       atomic.Pointer[Admin] // nil while the broker starts and stops
	wait        sync.WaitGroup
}

// New makes a server; Serve starts it.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, crossOrigin: http.NewCrossOriginProtection()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", s.health("livez", cfg.Live))
	mux.HandleFunc("GET /readyz", s.health("readyz", cfg.Ready))
	mux.HandleFunc("GET /healthz", s.health("healthz", cfg.Ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /safe-to-stop", s.safeToStop)
	for i := range routes {
		mux.HandleFunc(routes[i].method+" "+routes[i].path, s.serveRoute(&routes[i]))
	}
	mux.HandleFunc("GET /v1/openapi.json", s.serveOpenAPI)
	mux.HandleFunc("/v1/", s.notFound)
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

// SetAdmin gives the parts that the admin API and /safe-to-stop ask, once they are open; nil takes them away before they
// are closed. Requests under way keep what they have.
func (s *Server) SetAdmin(a *Admin) { s.admin.Store(a) }

// Health is the JSON form of a health answer.
type Health struct {
	Check  string `json:"check" doc:"which check"`
	Status string `json:"status" doc:"ok or failed"`
	// Reasons are the first 20; Total counts all of them.
	Reasons []string `json:"reasons" doc:"why it failed, 20 at most"`
	Total   int      `json:"total" doc:"how many reasons there are"`
}

func healthOf(check string, reasons []string) Health {
	h := Health{Check: check, Status: "ok", Reasons: []string{}, Total: len(reasons)}
	if len(reasons) > 0 {
		h.Status, h.Reasons = "failed", reasons[:min(len(reasons), maxReasons)]
	}
	return h
}

func (s *Server) health(check string, reasons func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { s.writeHealth(w, r, healthOf(check, reasons())) }
}

func (s *Server) writeHealth(w http.ResponseWriter, r *http.Request, h Health) {
	status := http.StatusOK
	if h.Total > 0 {
		status = http.StatusServiceUnavailable
	}
	if r.URL.Query().Get("format") == "json" {
		s.writeJSON(w, status, h)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
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

// safeToStop says whether this broker may be stopped, or with ?broker=ID another: any broker knows.
func (s *Server) safeToStop(w http.ResponseWriter, r *http.Request) {
	const check = "safe-to-stop"
	admin := s.admin.Load()
	if admin == nil {
		reasons := s.cfg.Ready()
		if len(reasons) == 0 {
			reasons = []string{"the broker is starting or stopping"}
		}
		s.writeHealth(w, r, healthOf(check, reasons))
		return
	}
	id := admin.BrokerID
	if text := r.URL.Query().Get("broker"); text != "" && text != "self" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			s.writeHealth(w, r, healthOf(check, []string{fmt.Sprintf("%q is not a broker id", text)}))
			return
		}
		id = metadata.BrokerID(n)
	}
	ctx, cancel := context.WithTimeout(r.Context(), orderTimeout)
	defer cancel()
	q, err := admin.Quorum.Quorum(ctx)
	if err != nil {
		s.writeHealth(w, r, healthOf(check, []string{"the quorum could not be asked: " + err.Error()}))
		return
	}
	s.writeHealth(w, r, healthOf(check, stopReasons(admin.Cluster.Image(), id, admin.MinISR(), &q)))
}

func index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprint(w, "millrace\n"+
		"/livez         the process works\n/readyz        it serves clients   (?format=json)\n/healthz       the same\n/safe-to-stop  nothing is lost by stopping it now\n"+
		"/metrics       Prometheus, OpenMetrics\n/v1/           the admin API: /v1/openapi.json\n")
}
