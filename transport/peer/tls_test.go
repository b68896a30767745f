package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// authority signs brokers' certificates.
type authority struct {
	t      testing.TB
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = a.sign(template)
	a.write("ca.pem", "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return cert, key
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	require.NoError(a.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// broker makes the files of a broker's certificate, for host names it.
func (a *authority) broker(name string, host net.IP) *TLS {
	cert, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{host},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	return &TLS{CertFile: a.write(name+".pem", "CERTIFICATE", cert.Raw), KeyFile: a.write(name+".key", "PRIVATE KEY", der), CAFile: filepath.Join(a.dir, "ca.pem")}
}

// Mutual TLS for calls and Raft; a broker with plain connections, or with another authority's certificate, is refused
// with one line that says so; certificates are read again.
func TestTLS(t *testing.T) {
	ca, localhost := newAuthority(t), net.IPv4(127, 0, 0, 1)
	with := func(files *TLS) func(*Config) { return func(cfg *Config) { cfg.TLS = files } }
	files := ca.broker("one", localhost)
	a, b := start(t, identity("c", 1), with(files)), start(t, identity("c", 2), with(ca.broker("two", localhost)))
	b.Handle("now", func(context.Context, From, []byte) ([]byte, error) { return []byte("yes"), nil })
	out, err := a.Call(deadline(t), b.Advertised(), "now", make([]byte, 300_000))
	require.NoError(t, err)
	require.Equal(t, "yes", string(out))
	conn, err := a.raft.Dial(raftAddress(b), time.Second)
	require.NoError(t, err)
	taken, err := b.raft.Accept()
	require.NoError(t, err)
	_, err = conn.Write([]byte("x"))
	require.NoError(t, err)
	_, err = taken.Read(make([]byte, 1))
	require.NoError(t, err)
	_, _ = conn.Close(), taken.Close()

	plain := start(t, identity("c", 3))
	_, err = plain.Call(deadline(t), b.Advertised(), "now", nil)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "is TLS between brokers on there")
	require.Eventually(t, func() bool { return b.log.count("does not speak TLS") == 1 }, testDeadline, time.Millisecond, b.log)
	_, err = plain.raft.Dial(raftAddress(b), time.Second)
	require.ErrorIs(t, err, ErrUnreachable)
	_, err = a.Call(deadline(t), plain.Advertised(), "now", nil)
	require.ErrorIs(t, err, ErrUnreachable)
	require.Eventually(t, func() bool { return plain.log.count("client speaks TLS") == 1 }, testDeadline, time.Millisecond)

	stranger := newAuthority(t)
	c := start(t, identity("c", 4), with(&TLS{CertFile: stranger.broker("four", localhost).CertFile, KeyFile: filepath.Join(stranger.dir, "four.key"), CAFile: files.CAFile}))
	_, err = c.Call(deadline(t), b.Advertised(), "now", nil)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "refused this broker's certificate")
	require.ErrorContains(t, err, "fix:")
	require.Eventually(t, func() bool { return b.log.count("TLS handshake failed") == 1 }, testDeadline, time.Millisecond)
	require.Equal(t, 1, b.log.count(`CN=four`), b.log)

	// A certificate for another host serves only where names don't matter.
	d := start(t, identity("c", 5), with(ca.broker("five", net.IPv4(10, 0, 0, 1))))
	d.Handle("now", func(context.Context, From, []byte) ([]byte, error) { return nil, nil })
	_, err = a.Call(deadline(t), d.Advertised(), "now", nil)
	require.ErrorContains(t, err, "10.0.0.1")
	lenient := *ca.broker("six", localhost)
	lenient.AnyName = true
	e := start(t, identity("c", 6), with(&lenient))
	_, err = e.Call(deadline(t), d.Advertised(), "now", nil)
	require.NoError(t, err)
	// … and never one of another authority.
	_, err = e.Call(deadline(t), c.Advertised(), "now", nil)
	require.ErrorIs(t, err, ErrUnreachable)
	_, err = a.Call(deadline(t), c.Advertised(), "now", nil)
	require.ErrorContains(t, err, "is not trusted here")
	require.ErrorContains(t, err, "CN=four")

	// What is on disk now counts for the next connection, in both roles.
	ca.broker("one", net.IPv4(10, 0, 0, 9))
	require.NoError(t, a.ReloadTLS())
	_, err = b.Call(deadline(t), a.Advertised(), "now", nil)
	require.ErrorContains(t, err, "10.0.0.9")
}
