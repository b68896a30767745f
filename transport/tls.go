package transport

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ClientAuth says what an SSL listener asks of clients (ssl.client.auth).
type ClientAuth string

// The values of ssl.client.auth.
const (
	ClientAuthNone      ClientAuth = "none"
	ClientAuthRequested ClientAuth = "requested" // a certificate may be missing, but not wrong
	ClientAuthRequired  ClientAuth = "required"
)

// TLSConfig is the certificate of an SSL listener, in PEM files that are read again when they change.
type TLSConfig struct {
	// CertFile holds the certificate chain, KeyFile its private key; they may be the same file (a PEM key store). The key
	// must not be encrypted.
	CertFile, KeyFile string
	// ClientCAFile holds the certificates that client certificates must descend from; required unless ClientAuth is none.
	ClientCAFile string
	// ClientAuth defaults to required when there is a ClientCAFile, else none.
	ClientAuth ClientAuth
	// MinVersion is tls.VersionTLS12 (the default) or tls.VersionTLS13.
	MinVersion uint16
	// ReloadInterval is how often the files are looked at; 10 s by default.
	ReloadInterval time.Duration
}

// certificates is what an SSL listener shows and demands. Connections that exist aren't touched by a reload.
type certificates struct {
	listener string
	cfg      TLSConfig
	logger   *slog.Logger
	// current is the configuration of new connections. One value per reload, so that session tickets stay good until the next.
	current atomic.Pointer[loadedTLS]

	mu struct {
		sync.Mutex
		reported [3]fileState // the files as of the last failure that was logged
	}
}

// errNoCertificate is a PEM file without what it is there for.
var errNoCertificate = errors.New("no certificate found")

type loadedTLS struct {
	config *tls.Config
	files  [3]fileState
	expiry time.Time
}

// fileState tells whether a file has changed.
type fileState struct {
	modified time.Time
	size     int64
}

func newCertificates(listener string, cfg TLSConfig, logger *slog.Logger) (*certificates, error) {
	c := &certificates{listener: listener, cfg: cfg, logger: logger.With("listener", listener)}
	if c.cfg.ClientAuth == "" {
		c.cfg.ClientAuth = ClientAuthNone
		if cfg.ClientCAFile != "" {
			c.cfg.ClientAuth = ClientAuthRequired
		}
	}
	if c.cfg.MinVersion == 0 {
		c.cfg.MinVersion = tls.VersionTLS12
	}
	if c.cfg.ReloadInterval <= 0 {
		c.cfg.ReloadInterval = 10 * time.Second
	}
	switch {
	case c.cfg.MinVersion < tls.VersionTLS12:
		return nil, fmt.Errorf("%w: listener %s: TLS below 1.2", ErrConfig, listener)
	case c.cfg.ClientAuth != ClientAuthNone && c.cfg.ClientAuth != ClientAuthRequested && c.cfg.ClientAuth != ClientAuthRequired:
		return nil, fmt.Errorf("%w: listener %s: client authentication %q is not none, requested or required", ErrConfig, listener, c.cfg.ClientAuth)
	case c.cfg.ClientAuth != ClientAuthNone && cfg.ClientCAFile == "":
		return nil, fmt.Errorf("%w: listener %s: client authentication is %s, and there is no file of client CAs", ErrConfig, listener, c.cfg.ClientAuth)
	}
	loaded, err := c.load()
	if err != nil {
		return nil, err
	}
	c.current.Store(loaded)
	return c, nil
}

// serverConfig is the configuration for a new connection. The certificate is looked up when the handshake begins.
func (c *certificates) serverConfig() *tls.Config { return c.current.Load().config }

// expiry is when the certificate in use expires.
func (c *certificates) expiry() time.Time { return c.current.Load().expiry }

// load reads the files.
func (c *certificates) load() (*loadedTLS, error) {
	files := c.files() // before reading them: a change in between is seen as one the next time
	cert, err := tls.LoadX509KeyPair(c.cfg.CertFile, c.cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s and key %s of listener %s: %w", c.cfg.CertFile, c.cfg.KeyFile, c.listener, err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: c.cfg.MinVersion}
	if c.cfg.ClientAuth != ClientAuthNone {
		pem, err := os.ReadFile(c.cfg.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("load client CAs of listener %s: %w", c.listener, err)
		}
		conf.ClientCAs = x509.NewCertPool()
		if !conf.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("load client CAs %s of listener %s: %w", c.cfg.ClientCAFile, c.listener, errNoCertificate)
		}
		conf.ClientAuth = tls.VerifyClientCertIfGiven
		if c.cfg.ClientAuth == ClientAuthRequired {
			conf.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	l := &loadedTLS{config: conf, files: files}
	if cert.Leaf != nil {
		l.expiry = cert.Leaf.NotAfter
	}
	return l, nil
}

// files is the state of the files; that of one which can't be seen is zero.
func (c *certificates) files() (states [3]fileState) {
	for i, name := range [...]string{c.cfg.CertFile, c.cfg.KeyFile, c.cfg.ClientCAFile} {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			states[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	return states
}

// reload reads the files and uses them for connections from now on, if they are good.
func (c *certificates) reload() error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	c.current.Store(loaded)
	c.logger.Info("certificate loaded", "file", c.cfg.CertFile, "expires", loaded.expiry)
	return nil
}

// check reloads when a file has changed. Certificate and key are two files, so a new pair may not match for a moment: then the old one
// stays, and the next check tries again; the failure is logged once for each state of the files.
func (c *certificates) check() {
	files := c.files()
	if files == c.current.Load().files {
		return
	}
	err := c.reload()
	if err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.reported != files {
		c.mu.reported = files
		c.logger.Error("a changed certificate can't be used: the old one stays", "err", err)
	}
}

// RefusedCertificate says whose certificate was refused in a handshake that ended with err: its subject, and who issued it.
// "" when the handshake failed for another reason. A stranger chose the text.
func RefusedCertificate(err error) string {
	failed, ok := errors.AsType[*tls.CertificateVerificationError](err)
	if !ok || len(failed.UnverifiedCertificates) == 0 {
		return ""
	}
	const longest = 200
	name := func(n pkix.Name) string {
		text := n.String()
		return fmt.Sprintf("%q", text[:min(len(text), longest)])
	}
	cert := failed.UnverifiedCertificates[0]
	return fmt.Sprintf("%s, issued by %s", name(cert.Subject), name(cert.Issuer))
}

// watch checks the files until stop is closed.
func (c *certificates) watch(stop <-chan struct{}) {
	t := time.NewTicker(c.cfg.ReloadInterval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.check()
		case <-stop:
			return
		}
	}
}
