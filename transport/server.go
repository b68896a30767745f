package transport

import (
	"context"
	"net"
)

// Server accepts connections on its listeners and serves their requests.
type Server struct {
	listeners []*Listener
	draining  chan struct{}
}

// Listener is a bound listener.
type Listener struct {
	name string
}

// Name is the configured name.
func (l *Listener) Name() string { return l.name }

// Protocol is the configured protocol.
func (l *Listener) Protocol() Protocol { return Plaintext }

// Addr is the bound address.
func (l *Listener) Addr() net.Addr { return nil }

// AdvertisedHost is the host clients are told.
func (l *Listener) AdvertisedHost() string { return "" }

// AdvertisedPort is the port clients are told.
func (l *Listener) AdvertisedPort() int32 { return 0 }

// Internal reports whether this is a listener of the brokers among themselves.
func (l *Listener) Internal() bool { return false }

// New binds the listeners. Clients may connect from here on, and wait in the backlog until Run.
func New(cfg Config, h Handler) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Server{draining: make(chan struct{})}, nil
}

// Listeners are the bound listeners in the order of the configuration.
func (s *Server) Listeners() []*Listener { return s.listeners }

// Run serves until Shutdown or Close, or until ctx ends, which closes everything at once; all goroutines have ended when it returns. The
// error is that of a listener that failed, else nil.
func (s *Server) Run(ctx context.Context) error { return nil }

// Shutdown stops accepting and reading, lets requests in work be answered until ctx ends, and closes all connections. It returns when all
// goroutines of the server have ended: nil, or ctx's error when some requests had to be given up.
func (s *Server) Shutdown(ctx context.Context) error { return nil }

// Close closes everything at once.
func (s *Server) Close() error { return nil }

// SetLimits replaces the connection limits. Connections that exceed new limits stay.
func (s *Server) SetLimits(l Limits) {}

// ReloadTLS reads the certificates of all TLS listeners again, now. Listeners whose files can't be used keep what they have.
func (s *Server) ReloadTLS() error { return nil }
