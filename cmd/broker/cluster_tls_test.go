package broker

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/metadata/membership"
)

// certificates signs PEM key stores with an authority of its own.
type certificates struct {
	t    *testing.T
	name string
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newCertificates(t *testing.T, name string) *certificates {
	a := &certificates{t: t, name: name, dir: t.TempDir()}
	a.cert, a.key = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	require.NoError(t, os.WriteFile(a.authorities(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600))
	return a
}

func (a *certificates) authorities() string { return filepath.Join(a.dir, "ca.pem") }

func (a *certificates) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	a.n++
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(a.n), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
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

// store writes the key store of a broker on this machine, in place of what is there.
func (a *certificates) store(broker string) string {
	cert, key := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: broker}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	file := filepath.Join(a.dir, broker+".pem")
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	require.NoError(a.t, os.WriteFile(file, text, 0o600))
	return file
}

// lines gathers what a broker logs.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// count is how many lines hold all the texts.
func (l *lines) count(texts ...string) (n int) {
next:
	for line := range strings.Lines(l.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		n++
	}
	return n
}

// secure is a broker's configuration as its properties would say it: listeners on free ports, mutual TLS among brokers,
// encrypted gossip.
func secure(t *testing.T, store, authorities, key string, expect int, join ...string) (Config, *lines) {
	t.Helper()
	gossip := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	pairs := []string{
		"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
		"controller.listener.names=CONTROLLER", "ssl.keystore.location=" + store, "ssl.truststore.location=" + authorities,
		"millrace.gossip.listener=" + gossip, "millrace.gossip.key=" + key, "log.dirs=" + filepath.Join(t.TempDir(), "data"),
		"millrace.join=" + strings.Join(append(join, gossip), ","), fmt.Sprintf("millrace.bootstrap.expect=%d", expect),
	}
	if expect == 0 {
		pairs = pairs[:len(pairs)-1]
	}
	c, err := FromSettings(set(t, pairs...), Options{})
	require.NoError(t, err)
	require.NotNil(t, c.Peers.TLS)
	base, out := testConfig(c.DataDir), &lines{}
	base.Listeners, base.Peers, base.Join, base.BootstrapExpect, base.Static = c.Listeners, c.Peers, c.Join, c.BootstrapExpect, c.Static
	base.Metadata, base.StopTimeout = c.Metadata, 10*time.Second
	base.Logger = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return base, out
}

func gossipKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	return base64.StdEncoding.EncodeToString(key)
}

// S1: mutual TLS between brokers and encrypted gossip through the real settings. A broker with another authority, with
// plain connections, with another gossip key or with none is refused, with who it is and the mend, at both ends; and
// certificates are exchanged under a running cluster.
func TestSecureCluster(t *testing.T) {
	ours, key := newCertificates(t, "our-authority"), gossipKey()
	c1, log1 := secure(t, ours.store("first"), ours.authorities(), key, 2)
	c2, log2 := secure(t, ours.store("second"), ours.authorities(), key, 2, c1.Peers.GossipBind)
	c1.Join = append(c1.Join, c2.Peers.GossipBind)
	b1, err := New(c1)
	require.NoError(t, err)
	go b1.Run(context.Background())
	t.Cleanup(func() { b1.Close() })
	b2 := startBroker(t, c2)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, b1.Ready(ctx))
	require.Equal(t, b1.ClusterID(), b2.ClusterID())
	require.NoError(t, b1.Store().CreateTopics(ctx, []metadata.NewTopic{{Name: "t", Partitions: 1, ReplicationFactor: 2}}, false)[0].Err)
	cl := client(t, b2, kgo.DefaultProduceTopic("t"), kgo.RequiredAcks(kgo.AllISRAcks()))
	produce := func(text string) {
		t.Helper()
		require.NoError(t, cl.ProduceSync(t.Context(), kgo.StringRecord(text)).FirstErr())
	}
	produce("replicated over TLS")

	t.Run("another authority", func(t *testing.T) {
		theirs := newCertificates(t, "their-authority")
		for _, trusts := range []string{ours.authorities(), theirs.authorities()} {
			c, out := secure(t, theirs.store("stranger"), trusts, key, 0, c1.Peers.GossipBind, c2.Peers.GossipBind)
			b, err := New(c)
			require.NoError(t, err)
			go b.Run(context.Background())
			if trusts == ours.authorities() {
				t.Cleanup(func() {
					if t.Failed() {
						t.Log(out, log1, log2)
					}
				})
				eventually(t, "those who are called name the certificate", func() bool {
					return log1.count("not trusted here", "CN=stranger", "CN=their-authority")+log2.count("not trusted here", "CN=stranger", "CN=their-authority") > 0
				})
				eventually(t, "the stranger is told", func() bool { return out.count("refused this broker's certificate", "ssl.truststore.location") > 0 })
			} else {
				eventually(t, "the stranger says whom it does not trust", func() bool { return out.count("is not trusted here", "CN=our-authority") > 0 })
			}
			require.Error(t, b.Ready(expired(t)))
			require.NoError(t, b.Close())
			require.NotContains(t, b1.Store().Servers(), 3)
			require.Len(t, b1.Store().Image().Brokers(), 2)
		}
	})
	t.Run("no TLS", func(t *testing.T) {
		c, out := secure(t, ours.store("plain"), ours.authorities(), key, 0, c1.Peers.GossipBind, c2.Peers.GossipBind)
		c.Peers.TLS = nil
		b, err := New(c)
		require.NoError(t, err)
		go b.Run(context.Background())
		eventually(t, "it is told what is wrong", func() bool { return out.count("is TLS between brokers on there") > 0 })
		eventually(t, "they say what called", func() bool { return log1.count("does not speak TLS")+log2.count("does not speak TLS") > 0 })
		require.NoError(t, b.Close())
	})
	t.Run("another gossip key or none", func(t *testing.T) {
		for _, other := range []string{gossipKey(), ""} {
			c, _ := secure(t, ours.store("deaf"), ours.authorities(), other, 0, c1.Peers.GossipBind, c2.Peers.GossipBind)
			said := make(chan string, 100)
			c.Progress = func(line string) {
				select {
				case said <- line:
				default:
				}
			}
			b, err := New(c)
			require.NoError(t, err)
			go b.Run(context.Background())
			eventually(t, "it says that the key may be the reason", func() bool {
				select {
				case line := <-said:
					return strings.Contains(line, "millrace.gossip.key")
				default:
					return false
				}
			})
			require.NoError(t, b.Close())
		}
	})
	t.Run("new certificates", func(t *testing.T) {
		// Both authorities are trusted, then the certificates change, then the old authority goes.
		next := newCertificates(t, "next-authority")
		old, err := os.ReadFile(ours.authorities())
		require.NoError(t, err)
		added, err := os.ReadFile(next.authorities())
		require.NoError(t, err)
		reload := func() {
			require.NoError(t, b1.ReloadTLS())
			require.NoError(t, b2.ReloadTLS())
		}
		require.NoError(t, os.WriteFile(ours.authorities(), append(old, added...), 0o600))
		reload()
		for _, name := range []string{"first", "second"} {
			text, err := os.ReadFile(next.store(name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(ours.dir, name+".pem"), text, 0o600))
		}
		reload()
		require.NoError(t, os.WriteFile(ours.authorities(), added, 0o600))
		reload()
		produce("over the connections that exist")
		require.NoError(t, b2.Close())
		b2 = startBroker(t, c2)
		eventually(t, "both replicas are in sync", func() bool { return len(b1.Store().Image().Topic("t").Partitions[0].ISR) == 2 })
		produce("over new ones")

		require.NoError(t, os.WriteFile(ours.authorities(), []byte("no certificate"), 0o600))
		require.Error(t, b1.ReloadTLS())
		produce("a bad file changes nothing")
		require.NoError(t, os.WriteFile(ours.authorities(), added, 0o600))
	})
	require.NoError(t, b2.Close())
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// I23, N3: whoever sends garbage to the two ports of the brokers, over TCP and UDP, with and without a gossip key, ends no
// broker, fills no log and no memory; and the cluster goes on.
func TestGarbageOnThePeerPorts(t *testing.T) {
	c, out := memberConfig(t, filepath.Join(t.TempDir(), "data"), 0), &lines{}
	c.Logger = slog.New(slog.NewTextHandler(out, nil))
	key, err := membership.ParseKeys(gossipKey())
	require.NoError(t, err)
	for _, keys := range [][][]byte{nil, key} {
		c.Peers.GossipKeys, c.DataDir = keys, filepath.Join(t.TempDir(), "data")
		b := startBroker(t, c)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		logged := len(out.String())
		random := mathrand.New(mathrand.NewPCG(1, uint64(len(keys))))
		send := func(network, to string, data []byte) {
			conn, err := net.Dial(network, to)
			if err != nil {
				return // too many at once
			}
			_, _ = conn.Write(data)
			_ = conn.Close()
		}
		for i := range 600 {
			data := make([]byte, 1+random.IntN(4096))
			for j := range data {
				data[j] = byte(random.Uint32())
			}
			switch i % 6 {
			case 0: // a type of gossip's messages, and lengths that promise gigabytes
				data = append([]byte{byte(i / 6 % 20), 0xff, 0xff, 0xff, 0xff, 0x7f}, data...)
			case 1:
				data = append([]byte{'R', 0x7f, 0xff, 0xff, 0xff}, data...)
			case 2:
				data = append([]byte{0x7f, 0xff, 0xff, 0xff, 0x4e, 0x20, 0, 1}, data...)
			case 3:
				data = append([]byte{byte(i), 0xdf, 0xff, 0xff, 0xff, 0xff}, data...) // a map of 4 billion in msgpack
			}
			send("tcp", b.peers.Addr().String(), data)
			send("tcp", c.Peers.GossipBind, data)
			send("udp", c.Peers.GossipBind, data[:min(len(data), 1400)])
		}
		require.NoError(t, b.Store().CreateTopics(t.Context(), []metadata.NewTopic{{Name: "after", Partitions: 1, ReplicationFactor: 1}}, false)[0].Err)
		require.NoError(t, b.failure())
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(32<<20), "memory stays")
		text := out.String()[logged:]
		require.Less(t, strings.Count(text, "level=WARN")+strings.Count(text, "level=ERROR"), 100, "1800 attacks do not fill the log:\n%s", text)
		require.NoError(t, b.Close())
	}
}
