package transport

import "time"

// ClientAuth says what an SSL listener asks of clients (ssl.client.auth).
type ClientAuth string

// The values of ssl.client.auth.
const (
	ClientAuthNone      ClientAuth = "none"
	ClientAuthRequested ClientAuth = "requested"
	ClientAuthRequired  ClientAuth = "required"
)

// TLSConfig is the certificate of an SSL listener, in PEM files that are read again when they change.
type TLSConfig struct {
	// CertFile holds the certificate chain, KeyFile its private key; they may be the same file (a PEM key store).
	CertFile, KeyFile string
	// ClientCAFile holds the certificates that client certificates must descend from; required unless ClientAuth is none.
	ClientCAFile string
	// ClientAuth defaults to required when there is a ClientCAFile, else none.
	ClientAuth ClientAuth
	// MinVersion is tls.VersionTLS12 (the default) or tls.VersionTLS13.
	MinVersion uint16
	// ReloadInterval is how often the files are looked at; 10 s.
	ReloadInterval time.Duration
}
