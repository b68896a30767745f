package transport

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"sync/atomic"
	"time"
)

// ClientTLS is what this process shows and demands when it connects to others with TLS: the same files as a listener's, read again when
// they change.
type ClientTLS struct {
	certificates *certificates
	checked      atomic.Int64 // when the files were looked at, in Unix nanoseconds
}

// NewClientTLS reads the files. name says in log lines whose they are. The servers' certificates must descend from ClientCAFile, which is
// required; ClientAuth means nothing here.
func NewClientTLS(name string, cfg TLSConfig, logger *slog.Logger) (*ClientTLS, error) {
	cfg.ClientAuth = ClientAuthRequired
	c, err := newCertificates(name, cfg, logger)
	if err != nil {
		return nil, err
	}
	return &ClientTLS{certificates: c}, nil
}

// Config is the configuration for a connection to serverName. With anyName the server's certificate is good for every name, if its
// authority is right (ssl.endpoint.identification.algorithm= in Kafka's words).
func (c *ClientTLS) Config(serverName string, anyName bool) *tls.Config {
	now := time.Now()
	if last := c.checked.Load(); now.Sub(time.Unix(0, last)) >= c.certificates.cfg.ReloadInterval && c.checked.CompareAndSwap(last, now.UnixNano()) {
		c.certificates.check()
	}
	loaded := c.certificates.current.Load().config
	// The certificate is shown whatever authorities the server names: one that it does not trust can then be refused by name.
	show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &loaded.Certificates[0], nil }
	conf := &tls.Config{GetClientCertificate: show, MinVersion: loaded.MinVersion, RootCAs: loaded.ClientCAs, ServerName: serverName}
	if anyName {
		conf.InsecureSkipVerify = true // VerifyConnection does all of it but the name
		conf.VerifyConnection = verifyChain(conf.RootCAs)
	}
	return conf
}

// Reload reads the files now.
func (c *ClientTLS) Reload() error { return c.certificates.reload() }

// verifyChain checks a server's certificate against the authorities, whatever its name.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		intermediates := x509.NewCertPool()
		for _, cert := range state.PeerCertificates[1:] {
			intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
		return err
	}
}
