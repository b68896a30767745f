package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Protocol is the security protocol of a listener, by Kafka's name.
type Protocol string

// The protocols of this package; the SASL ones come with authentication.
const (
	Plaintext Protocol = "PLAINTEXT"
	SSL       Protocol = "SSL"
)

// ListenerConfig is one listener: a name, where it is bound and how clients reach it.
type ListenerConfig struct {
	// Name is the listener's name as in Kafka's `listeners`, such as PLAINTEXT or EXTERNAL; unique in a server.
	Name     string
	Protocol Protocol

	// Bind is the TCP address to listen on, "host:port"; port 0 takes a free one. Used when Listener is nil.
	Bind string
	// Listener, when not nil, is served instead of Bind; the server closes it.
	Listener net.Listener

	// AdvertisedHost and AdvertisedPort are what clients are told. An empty host means the bound host, or this machine's name when
	// all addresses are bound; port 0 the bound port. A wildcard address is refused.
	AdvertisedHost string
	AdvertisedPort int32

	// TLS is required for SSL and must be nil otherwise.
	TLS *TLSConfig

	// Internal marks the listener brokers use among themselves: the server-wide connection caps don't count or refuse its
	// connections, and its frames have a budget of their own, so that clients can't keep replication from making the
	// progress that frees the clients' frames (N6).
	Internal bool

	// Streams are the other protocols of this listener, by the first byte of a connection: such a connection leaves the server, which no
	// longer counts or closes it, and is given to the function, its first byte unread and its deadlines cleared. The function owns it
	// and may take its time: it runs on a goroutine of the server, which Run waits for. Byte 0 belongs to requests.
	Streams map[byte]func(net.Conn)

	// RequireAuth makes connections start with frames capped at Config.MaxRequestBytesBeforeAuth, until Conn.SetAuthenticated (S4).
	RequireAuth bool

	// MaxConnections caps the connections of this listener; 0 for no cap.
	MaxConnections int
	// MaxConnectionRate caps the connections accepted a second by this listener; 0 for no cap. Further ones wait in the backlog.
	MaxConnectionRate float64
}

// Limits are the connection limits of a server. They may change live: [Server.SetLimits].
type Limits struct {
	// MaxConnections caps the connections of all listeners that are not Internal; 0 derives a cap from the process's limit of
	// open files. At the cap, a new connection takes the place of the oldest one that has not sent a request within a second.
	MaxConnections int
	// MaxConnectionsPerIP caps the connections of one remote address; 0 for no cap.
	MaxConnectionsPerIP int
	// PerIP overrides MaxConnectionsPerIP for single addresses (max.connections.per.ip.overrides).
	PerIP map[string]int
	// MaxConnectionRate caps the connections accepted a second on all listeners that are not Internal; 0 for no cap.
	MaxConnectionRate float64
}

// Config is the configuration of a [Server].
type Config struct {
	Listeners []ListenerConfig

	// MaxRequestBytes caps one request (socket.request.max.bytes), size prefix excluded. 100 MiB.
	MaxRequestBytes int
	// MaxRequestBytesBeforeAuth caps requests on a RequireAuth listener before authentication. 64 KiB.
	MaxRequestBytesBeforeAuth int

	// FrameBudgetBytes bounds the memory of all requests being read or in work (queued.max.request.bytes); 0 is the smaller of
	// 64 MiB and a sixteenth of the memory this process may use. A quarter of it is kept for one frame at a time that could
	// not grow otherwise; a frame larger than that quarter is let in alone, above the budget. See budget.go.
	FrameBudgetBytes int64
	// ResponseBudgetBytes bounds the 256 KiB chunks that spliced responses are copied through; further ones use 16 KiB. 32 MiB.
	ResponseBudgetBytes int64
	// MaxInFlight bounds the unanswered requests of one connection; it is not read from while it has so many. 128.
	MaxInFlight int
	// MaxOutboundBytes is how many bytes of encoded answers may wait on one connection before it is no longer read from. 1 MiB.
	MaxOutboundBytes int

	// FirstRequestTimeout is the time from accept until the TLS handshake is done and the first request has been read. 10 s.
	FirstRequestTimeout time.Duration
	// IdleTimeout closes a connection without requests (connections.max.idle.ms), unless one is in work. 10 min.
	IdleTimeout time.Duration
	// FrameTimeout is the time for a request to arrive once it has begun; a second more for each 512 KiB. Time spent waiting
	// for the budget doesn't count. 30 s.
	FrameTimeout time.Duration
	// WriteTimeout closes a connection whose peer doesn't take one chunk (≤ 256 KiB) within it. 60 s.
	WriteTimeout time.Duration

	Limits Limits

	// Logger must not be nil.
	Logger *slog.Logger
	// Registerer receives the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Default returns a configuration without listeners and logger.
func Default() Config {
	return Config{
		MaxRequestBytes:           100 << 20,
		MaxRequestBytesBeforeAuth: 64 << 10,
		ResponseBudgetBytes:       32 << 20,
		MaxInFlight:               128,
		MaxOutboundBytes:          1 << 20,
		FirstRequestTimeout:       10 * time.Second,
		IdleTimeout:               10 * time.Minute,
		FrameTimeout:              30 * time.Second,
		WriteTimeout:              60 * time.Second,
	}
}

// ErrConfig is matched by every error about an impossible configuration.
var ErrConfig = errors.New("transport: invalid configuration")

// Validate reports the first impossible setting.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...)
	}
	if c.Logger == nil {
		return bad("no logger")
	}
	if len(c.Listeners) == 0 {
		return bad("no listeners")
	}
	for _, p := range []struct {
		name string
		ok   bool
	}{
		{"MaxRequestBytes", c.MaxRequestBytes >= minRequestBytes},
		{"MaxRequestBytesBeforeAuth", c.MaxRequestBytesBeforeAuth >= minRequestBytes},
		{"FrameBudgetBytes", c.FrameBudgetBytes >= 0},
		{"ResponseBudgetBytes", c.ResponseBudgetBytes >= 0},
		{"MaxInFlight", c.MaxInFlight > 0},
		{"MaxOutboundBytes", c.MaxOutboundBytes > 0},
		{"FirstRequestTimeout", c.FirstRequestTimeout > 0},
		{"IdleTimeout", c.IdleTimeout > 0},
		{"FrameTimeout", c.FrameTimeout > 0},
		{"WriteTimeout", c.WriteTimeout > 0},
		{"Limits.MaxConnections", c.Limits.MaxConnections >= 0},
		{"Limits.MaxConnectionsPerIP", c.Limits.MaxConnectionsPerIP >= 0},
		{"Limits.MaxConnectionRate", c.Limits.MaxConnectionRate >= 0},
	} {
		if !p.ok {
			return bad("%s is out of range", p.name)
		}
	}
	names := map[string]bool{}
	for i := range c.Listeners {
		l := &c.Listeners[i]
		switch {
		case l.Name == "":
			return bad("listener %d has no name", i)
		case names[strings.ToUpper(l.Name)]:
			return bad("two listeners are named %s", l.Name)
		case l.Listener == nil && l.Bind == "":
			return bad("listener %s has no address", l.Name)
		case l.Protocol != Plaintext && l.Protocol != SSL:
			return bad("listener %s: protocol %q is not PLAINTEXT or SSL", l.Name, l.Protocol)
		case l.Protocol == SSL && l.TLS == nil:
			return bad("listener %s is SSL and has no certificate", l.Name)
		case l.Protocol == Plaintext && l.TLS != nil:
			return bad("listener %s is PLAINTEXT and has a certificate", l.Name)
		case l.AdvertisedPort < 0 || l.AdvertisedPort > 65535:
			return bad("listener %s: advertised port %d", l.Name, l.AdvertisedPort)
		case l.Streams[0] != nil:
			return bad("listener %s: byte 0 begins a request, it can't begin another protocol", l.Name)
		case l.MaxConnections < 0 || l.MaxConnectionRate < 0:
			return bad("listener %s: negative limit", l.Name)
		case isWildcard(l.AdvertisedHost):
			return bad("listener %s advertises %s, which no client can connect to; set advertised.listeners to this machine's name or address",
				l.Name, l.AdvertisedHost)
		}
		names[strings.ToUpper(l.Name)] = true
	}
	return nil
}

// isWildcard reports whether host stands for all addresses of a machine.
func isWildcard(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsUnspecified()
}
