package transport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testCerts is a certificate authority and the files of a server's certificate.
type testCerts struct {
	t      testing.TB
	dir    string
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	pool   *x509.CertPool
	serial int64
}

func newTestCerts(t testing.TB) *testCerts {
	c := &testCerts{t: t, dir: t.TempDir(), pool: x509.NewCertPool()}
	c.ca, c.caKey = c.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	c.pool.AddCert(c.ca)
	c.write("ca.pem", "CERTIFICATE", c.ca.Raw)
	c.renew()
	return c
}

// make signs a certificate.
func (c *testCerts) make(template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(c.t, err)
	c.serial++
	template.SerialNumber = big.NewInt(c.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	require.NoError(c.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(c.t, err)
	return cert, key
}

// renew writes a new certificate of the server and returns its serial number.
func (c *testCerts) renew() int64 {
	cert, key := c.make(&x509.Certificate{
		Subject: pkix.Name{CommonName: "broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, c.ca, c.caKey)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(c.t, err)
	c.write("key.pem", "PRIVATE KEY", der)
	c.write("cert.pem", "CERTIFICATE", cert.Raw)
	return cert.SerialNumber.Int64()
}

func (c *testCerts) path(name string) string { return filepath.Join(c.dir, name) }

func (c *testCerts) write(name, kind string, der []byte) {
	require.NoError(c.t, os.WriteFile(c.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

func (c *testCerts) config() *TLSConfig {
	return &TLSConfig{CertFile: c.path("cert.pem"), KeyFile: c.path("key.pem"), ReloadInterval: time.Hour}
}

// client makes a client's certificate.
func (c *testCerts) client() tls.Certificate {
	cert, key := c.make(&x509.Certificate{Subject: pkix.Name{CommonName: "alice"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, c.ca, c.caKey)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

// startTLS runs a server with one SSL listener.
func startTLS(t *testing.T, conf *TLSConfig, h Handler) *testServer {
	return startServer(t, h, func(cfg *Config) {
		cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: conf}}
	})
}

// request sends one request over TLS and returns the answer's text and the server's certificate.
func (c *testCerts) request(s *testServer, conf *tls.Config) (text string, server *x509.Certificate, err error) {
	conf.RootCAs = c.pool
	conn, err := tls.Dial("tcp", s.listeners[0].Addr().String(), conf)
	if err != nil {
		return "", nil, err
	}
	defer conn.Close()
	if _, err := conn.Write(metadataFrame(1, "hello")); err != nil {
		return "", nil, err
	}
	b, err := readResponse(conn)
	if err != nil {
		return "", nil, err
	}
	return string(b[len(b)-5:]), conn.ConnectionState().PeerCertificates[0], nil
}

// TestTLSReload: new connections get the new certificate, old ones stay; a pair that doesn't match changes nothing until it does.
func TestTLSReload(t *testing.T) {
	certs := newTestCerts(t)
	s := startTLS(t, certs.config(), handlerFunc(answering))
	old, err := tls.Dial("tcp", s.listeners[0].Addr().String(), &tls.Config{RootCAs: certs.pool})
	require.NoError(t, err)
	defer old.Close()
	ping := func() {
		t.Helper()
		_, err = old.Write(metadataFrame(1, "x"))
		require.NoError(t, err)
		_, err = readResponse(old)
		require.NoError(t, err)
	}
	ping()

	serves := func(serial int64) {
		t.Helper()
		_, cert, err := certs.request(s, &tls.Config{})
		require.NoError(t, err)
		require.Equal(t, serial, cert.SerialNumber.Int64())
		ping()
	}
	serves(2)
	require.NoError(t, s.ReloadTLS())
	serves(2)

	l := s.listeners[0].tls
	l.check()
	require.Equal(t, 1, s.logs.count("certificate loaded"), "a check without a change does nothing")
	serial := certs.renew()
	l.check()
	serves(serial)

	good, err := os.ReadFile(certs.path("key.pem"))
	require.NoError(t, err)
	next := certs.renew()
	right, err := os.ReadFile(certs.path("key.pem"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certs.path("key.pem"), append(good, '\n'), 0o600)) // the certificate is new, the key old
	l.check()
	l.check()
	require.Equal(t, 1, s.logs.count("can't be used"), "logged once")
	require.Error(t, s.ReloadTLS())
	serves(serial)
	require.NoError(t, os.WriteFile(certs.path("key.pem"), right, 0o600))
	l.check()
	serves(next)
	require.NoError(t, os.Remove(certs.path("cert.pem")))
	l.check()
	serves(next)
}

// TestTLSWatch: files are looked at without being asked.
func TestTLSWatch(t *testing.T) {
	certs := newTestCerts(t)
	conf := certs.config()
	conf.ReloadInterval = time.Millisecond
	s := startTLS(t, conf, handlerFunc(answering))
	serial := certs.renew()
	require.Eventually(t, func() bool {
		_, cert, err := certs.request(s, &tls.Config{})
		return err == nil && cert.SerialNumber.Int64() == serial
	}, 10*time.Second, 5*time.Millisecond)
}

// TestMutualTLS: who has no certificate of the right authority doesn't get in, and the handler sees who did.
func TestMutualTLS(t *testing.T) {
	certs, foreign := newTestCerts(t), newTestCerts(t)
	who := handlerFunc(func(r *Request) {
		name := "nobody"
		if state := r.Conn.TLS(); len(state.VerifiedChains) > 0 {
			name = state.VerifiedChains[0][0].Subject.CommonName
		}
		r.Reply(Message(respond(name)))
	})
	f := func(auth ClientAuth, client []tls.Certificate, want string) {
		t.Helper()
		conf := certs.config()
		conf.ClientCAFile, conf.ClientAuth = certs.path("ca.pem"), auth
		s := startTLS(t, conf, who)
		// As a client with its own mind does: show the certificate whatever authorities the server names.
		tc := &tls.Config{}
		if client != nil {
			tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client[0], nil }
		}
		text, _, err := certs.request(s, tc)
		if want == "" {
			require.Error(t, err)
			require.Eventually(t, func() bool { return s.rejected(rejectTLSHandshake) == 1 }, 10*time.Second, time.Millisecond)
			return
		}
		require.NoError(t, err)
		require.Contains(t, want, text)
	}
	alice, mallory := []tls.Certificate{certs.client()}, []tls.Certificate{foreign.client()}
	f("", alice, "alice")
	f("", nil, "")
	f("", mallory, "")
	f(ClientAuthRequired, alice, "alice")
	f(ClientAuthRequested, nil, "nobody")
	f(ClientAuthRequested, alice, "alice")
	f(ClientAuthRequested, mallory, "")
	f(ClientAuthNone, nil, "nobody")
}

// TestTLSStrangers: what isn't TLS 1.2 on an SSL listener gets one clear line, and silence is cut off.
func TestTLSStrangers(t *testing.T) {
	certs := newTestCerts(t)
	s := startServer(t, handlerFunc(answering), func(cfg *Config) {
		cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: certs.config()}}
		cfg.FirstRequestTimeout = 500 * time.Millisecond
	})
	c := s.dial()
	c.send(metadataFrame(1, "plain"))
	c.ends()
	require.EqualValues(t, 1, s.rejected(rejectPlaintextOnTLS))
	require.Equal(t, 1, s.logs.count("client does not speak TLS, and this listener is SSL"))
	c = s.dial()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	require.NoError(t, err)
	c.ends()
	require.EqualValues(t, 2, s.rejected(rejectPlaintextOnTLS))

	_, _, err = certs.request(s, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.Error(t, err)
	require.Eventually(t, func() bool { return s.rejected(rejectTLSHandshake) == 1 }, 10*time.Second, time.Millisecond)

	require.Empty(t, s.dial().ends(), "a handshake that doesn't begin (N6)")
	require.EqualValues(t, 1, s.rejected(rejectFirstRequest))
	_, _, err = certs.request(s, &tls.Config{})
	require.NoError(t, err)
}

// TestTLSGoodbye: an idle connection and one that is shut down end with TLS's close_notify, so that clients can tell it from an attack.
func TestTLSGoodbye(t *testing.T) {
	certs := newTestCerts(t)
	s := startServer(t, handlerFunc(answering), func(cfg *Config) {
		cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: certs.config()}}
		cfg.IdleTimeout = 50 * time.Millisecond
	})
	c, err := tls.Dial("tcp", s.listeners[0].Addr().String(), &tls.Config{RootCAs: certs.pool})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write(metadataFrame(1, "x"))
	require.NoError(t, err)
	_, err = readResponse(c)
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

// TestTLSConfig: impossible settings and unusable files are errors of New that name them.
func TestTLSConfig(t *testing.T) {
	certs := newTestCerts(t)
	f := func(want string, edit func(*TLSConfig)) {
		t.Helper()
		conf := certs.config()
		edit(conf)
		cfg := Default()
		cfg.Logger = discardLogger
		cfg.Listeners = []ListenerConfig{{Name: "SSL", Protocol: SSL, Bind: "127.0.0.1:0", TLS: conf}}
		_, err := New(cfg, handlerFunc(answering))
		require.ErrorContains(t, err, want)
	}
	f("nowhere.pem", func(c *TLSConfig) { c.CertFile = certs.path("nowhere.pem") })
	f("ca.pem", func(c *TLSConfig) { c.KeyFile = certs.path("ca.pem") })
	f("TLS below 1.2", func(c *TLSConfig) { c.MinVersion = tls.VersionTLS11 })
	f("no file of client CAs", func(c *TLSConfig) { c.ClientAuth = ClientAuthRequired })
	f("perhaps", func(c *TLSConfig) { c.ClientAuth = "perhaps" })
	f("no certificate found", func(c *TLSConfig) { c.ClientCAFile = certs.path("key.pem") })
}
