package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/time/rate"
)

// Listener is a bound listener.
type Listener struct {
	cfg     ListenerConfig
	net     net.Listener
	host    string // advertised
	port    int32  // advertised
	tls     *certificates
	budget  *budget
	rate    *rate.Limiter
	metrics *listenerMetrics

	conns int // guarded by Server.mu
}

// Name is the configured name.
func (l *Listener) Name() string { return l.cfg.Name }

// Protocol is the configured protocol.
func (l *Listener) Protocol() Protocol { return l.cfg.Protocol }

// Addr is the bound address.
func (l *Listener) Addr() net.Addr { return l.net.Addr() }

// AdvertisedHost is the host clients are told.
func (l *Listener) AdvertisedHost() string { return l.host }

// AdvertisedPort is the port clients are told.
func (l *Listener) AdvertisedPort() int32 { return l.port }

// Internal reports whether this is a listener of the brokers among themselves.
func (l *Listener) Internal() bool { return l.cfg.Internal }

// keepAlive finds a peer that is gone without a word in about two minutes, when nothing is being sent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 60 * time.Second, Interval: 10 * time.Second, Count: 6}

// listen binds a listener and finds out what it advertises.
func listen(cfg ListenerConfig, logger *slog.Logger) (*Listener, error) {
	l := &Listener{cfg: cfg, net: cfg.Listener, host: cfg.AdvertisedHost, port: cfg.AdvertisedPort, rate: newLimiter(cfg.MaxConnectionRate)}
	if l.cfg.Protocol == SSL {
		c, err := newCertificates(cfg.Name, *cfg.TLS, logger)
		if err != nil {
			return nil, err
		}
		l.tls = c
	}
	if l.net == nil {
		lc := net.ListenConfig{KeepAliveConfig: keepAlive}
		n, err := lc.Listen(context.Background(), "tcp", cfg.Bind)
		if err != nil {
			return nil, fmt.Errorf("listen on %s for listener %s: %w", cfg.Bind, cfg.Name, err)
		}
		l.net = n
	}
	if err := l.advertise(); err != nil {
		_ = l.net.Close()
		return nil, err
	}
	if ip := addrIP(l.net.Addr()); cfg.Protocol == Plaintext && !cfg.RequireAuth && ip.IsValid() && !ip.IsLoopback() {
		logger.Warn("listener is open to everyone who can reach it, and its traffic is not encrypted", "listener", cfg.Name, "addr", l.net.Addr().String())
	}
	return l, nil
}

// advertise fills in what the configuration leaves open. A wildcard address is no advertisement: then it is this machine's name.
func (l *Listener) advertise() error {
	host, port, err := net.SplitHostPort(l.net.Addr().String())
	if err != nil {
		host, port = l.net.Addr().String(), "0" // not a network address: a listener in memory
	}
	if l.host == "" {
		l.host = host
		if host == "" || isWildcard(host) {
			if l.host, err = os.Hostname(); err != nil {
				return fmt.Errorf("find a host to advertise for listener %s: %w", l.cfg.Name, err)
			}
		}
	}
	if l.port == 0 {
		p, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			return fmt.Errorf("find a port to advertise for listener %s: %w", l.cfg.Name, err)
		}
		l.port = int32(p)
	}
	return nil
}

// accept is a listener's goroutine. It ends with the listener.
func (s *Server) accept(l *Listener) error {
	pause := time.Duration(0)
	for {
		if l.rate.Wait(s.acceptCtx) != nil || !l.cfg.Internal && s.rate.Wait(s.acceptCtx) != nil {
			return nil
		}
		raw, err := l.net.Accept()
		switch {
		case err == nil:
			pause = 0
			s.welcome(l, raw)
		case s.acceptCtx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on listener %s: %w", l.Name(), err)
		default:
			// Out of descriptors, most likely, or a connection that was reset in the backlog: the listener itself is sound.
			l.metrics.rejected(rejectAccept)
			if suppressed, ok := s.noise.allow(rejectAccept); ok {
				s.logger.Error("a connection can't be accepted", "listener", l.Name(), "err", err, "suppressed", suppressed)
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-s.acceptCtx.Done():
				t.Stop()
				return nil
			}
		}
	}
}

// welcome serves a new connection, or closes it when there are too many.
func (s *Server) welcome(l *Listener, raw net.Conn) {
	if t, ok := raw.(*net.TCPConn); ok {
		if l.cfg.Listener != nil {
			_ = t.SetKeepAliveConfig(keepAlive)
		}
		setUserTimeout(t)
		dropLocalPacing(t)
	}
	c := newConn(s, l, raw, s.nextID.Add(1))
	evicted, refused := s.add(c)
	if evicted != nil {
		evicted.reject(rejectEvicted, "no request yet, and the limit of connections is reached: connection closed for a new one")
		evicted.kill(ErrIdle)
	}
	if refused == rejectShutdown {
		c.cancel(ErrServerClosed)
		_ = raw.Close()
		return
	}
	if refused != "" {
		c.reject(refused, "too many connections: connection closed", "limit_of", string(refused))
		c.cancel(ErrRejected)
		_ = raw.Close()
		return
	}
	c.begin()
}

// addrIP is the IP address of a, or the zero Addr if it has none.
func addrIP(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// addrString is a's text, for logs.
func addrString(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// newLimiter is a limiter of n events a second; 0 means no limit.
func newLimiter(n float64) *rate.Limiter {
	r := rate.NewLimiter(rate.Inf, 1)
	setLimiter(r, n)
	return r
}

func setLimiter(r *rate.Limiter, n float64) {
	if n <= 0 {
		r.SetLimit(rate.Inf)
		return
	}
	r.SetLimit(rate.Limit(n))
	r.SetBurst(max(1, int(n)))
}
