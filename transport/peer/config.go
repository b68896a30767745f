package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// ListenerName is the name of the listener that brokers use among themselves, Kafka's word in examples and the default
// of controller.listener.names.
const ListenerName = "CONTROLLER"

// Identity is who a process says it is. Another process that claims part of it is refused (M13, M14).
type Identity struct {
	// ClusterID is "" before the process knows which cluster it belongs to.
	ClusterID string
	// Node is the broker's id, [metadata.NoBroker] before it has one.
	Node metadata.BrokerID
	// Directory is the id of its log directory, the same in each run.
	Directory metadata.DirectoryID
	// Incarnation is random and new in each run.
	Incarnation [16]byte
}

// TLS are the files of mutual TLS between brokers; they are read again when they change. The same certificate is shown
// to brokers that connect and to those connected to, so it needs both extended key usages.
type TLS struct {
	CertFile, KeyFile string
	// CAFile holds the authorities that every broker's certificate must descend from.
	CAFile string
	// AnyName accepts a certificate whatever host it names (ssl.endpoint.identification.algorithm=).
	AnyName bool
	// ReloadInterval is how often the files are looked at; 10 s by default.
	ReloadInterval time.Duration
}

func (t *TLS) files() transport.TLSConfig {
	return transport.TLSConfig{CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.CAFile, ClientAuth: transport.ClientAuthRequired, ReloadInterval: t.ReloadInterval}
}

// Config configures [New]. Start from [Default] and set at least Bind or Listener, Identity, Address and Logger.
type Config struct {
	// Name is the listener's name in logs and metrics.
	Name string
	// Bind is the TCP address to listen on, "host:port", port 0 for a free one. Used when Listener is nil; a Listener is
	// closed by Close.
	Bind     string
	Listener net.Listener
	// Advertised is the address under which the other brokers reach this one, "host:port"; it is also this broker's Raft
	// address. "" is the bound address.
	Advertised string
	// TLS is nil for plain connections.
	TLS *TLS

	// Identity says who this process is at present. It is asked for each hello, from any goroutine.
	Identity func() Identity
	// Address says where the other brokers reach the broker of that id, by the newest metadata; "" is unknown.
	Address func(metadata.BrokerID) string
	// Admit judges a caller after this package has: an error refuses it, and is told to it. It may be nil.
	Admit func(From) error
	// RaftServer judges who answered at a Raft address before Raft hears of it: a process with another id or directory
	// than the Raft configuration names there must not be taken for the server it stands in the place of (M14). It may
	// be nil.
	RaftServer func(address string, node metadata.BrokerID, directory metadata.DirectoryID) error
	// Broken is told when a connection with that incarnation of a broker ended, or can't be made, for no reason of ours: a
	// hint that it may be dead (D5). It is called from many goroutines and must not block. It may be nil.
	Broken func(broker metadata.BrokerID, incarnation [16]byte, reason string)
	// Dial connects; nil is a net.Dialer with keepalive.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Version is the software's, for people.
	Version string

	// DialTimeout bounds connecting, TLS handshake and hello together.
	DialTimeout time.Duration
	// ProbeTimeout bounds a Probe.
	ProbeTimeout time.Duration
	// CallTimeout bounds a call whose context has no deadline.
	CallTimeout time.Duration
	// WriteTimeout bounds the sending of one request or answer.
	WriteTimeout time.Duration
	// PingInterval is how long the other end of a connection with open calls may be silent before it is asked for a sign of
	// life, PingTimeout how long before it is given up (N2). A fetch that has no answer PingTimeout after its MaxWait
	// is given up too.
	PingInterval, PingTimeout time.Duration
	// IdleTimeout closes connections for calls that nobody uses.
	IdleTimeout time.Duration
	// MaxBodyBytes bounds the body of a call and that of its answer.
	MaxBodyBytes int
	// MaxAnswerBytes bounds the answer to a fetch.
	MaxAnswerBytes int

	// Logger must not be nil.
	Logger *slog.Logger
	// Registerer gets the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Default returns a Config without its required fields.
func Default() Config {
	return Config{
		Name:           ListenerName,
		DialTimeout:    3 * time.Second,
		ProbeTimeout:   150 * time.Millisecond,
		CallTimeout:    30 * time.Second,
		WriteTimeout:   10 * time.Second,
		PingInterval:   time.Second,
		PingTimeout:    4 * time.Second,
		IdleTimeout:    3 * time.Minute,
		MaxBodyBytes:   16 << 20,
		MaxAnswerBytes: 256 << 20,
	}
}

// Validate reports the first field that cannot work.
func (c *Config) Validate() error {
	switch {
	case c.Logger == nil, c.Identity == nil, c.Address == nil:
		return errors.New("peer: Logger, Identity and Address are required")
	case c.Bind == "" && c.Listener == nil:
		return errors.New("peer: Bind or Listener is required")
	case c.Name == "":
		return errors.New("peer: Name is required")
	}
	for name, d := range map[string]time.Duration{
		"DialTimeout": c.DialTimeout, "ProbeTimeout": c.ProbeTimeout, "CallTimeout": c.CallTimeout, "WriteTimeout": c.WriteTimeout,
		"PingInterval": c.PingInterval, "PingTimeout": c.PingTimeout, "IdleTimeout": c.IdleTimeout,
	} {
		if d <= 0 {
			return fmt.Errorf("peer: %s must be positive, is %v", name, d)
		}
	}
	if c.MaxBodyBytes < 64<<10 || c.MaxAnswerBytes < 1<<20 {
		return errors.New("peer: MaxBodyBytes or MaxAnswerBytes is too small")
	}
	if c.Advertised != "" {
		if _, _, err := net.SplitHostPort(c.Advertised); err != nil {
			return fmt.Errorf("peer: advertised address %s: %w", c.Advertised, err)
		}
	}
	return nil
}
