package broker

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/transport"
)

// Everything that a broker starts has ended when Run returns.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits; it is a limit, never a measure.
const patience = 30 * time.Second

// testConfig is a broker on free ports with small write-ahead log files.
func testConfig(dir string) Config {
	c := Default()
	c.DataDir = dir
	c.Listeners = []transport.ListenerConfig{{Name: "PLAINTEXT", Protocol: transport.Plaintext, Bind: "127.0.0.1:0"}}
	c.HTTPListener = "127.0.0.1:0"
	c.Log.WALInitialBytes, c.Log.WALFileBytes = 1<<20, 1<<20
	c.Logger = slog.New(slog.DiscardHandler)
	return c
}

// startBroker runs a broker until the test ends, and waits until it serves.
func startBroker(t testing.TB, c Config) *Broker {
	t.Helper()
	b, err := New(c)
	require.NoError(t, err)
	go b.Run(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, b.Ready(ctx))
	t.Cleanup(func() { b.Close() })
	return b
}

// runError runs a broker that must not start and returns why.
func runError(t *testing.T, c Config) error {
	t.Helper()
	b, err := New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = b.Run(ctx)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "it had to end by itself")
	require.Error(t, b.Ready(context.Background()))
	return err
}

func client(t testing.TB, b *Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Advertised()), kgo.AllowAutoTopicCreation(), kgo.RetryTimeout(patience)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(cl.Close)
	return cl
}

func get(t *testing.T, b *Broker, path string) (int, string) {
	t.Helper()
	once := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := once.Get("http://" + b.Addrs()["HTTP"].String() + path)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// A broker in this process serves clients, keeps its identity and records over a restart, and stops clean (D19).
func TestBrokerRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	c := testConfig(dir)
	c.Static = map[string]string{"num.partitions": "2"}
	b := startBroker(t, c)
	require.EqualValues(t, 1, b.NodeID())
	cluster := b.ClusterID()
	require.NotEmpty(t, cluster)
	status, body := get(t, b, "/readyz")
	require.Equal(t, 200, status, body)
	status, body = get(t, b, "/metrics")
	require.Equal(t, 200, status)
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", "millrace_raft_"} {
		require.Contains(t, body, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cl := client(t, b)
	for i := range 10 {
		require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: fmt.Appendf(nil, "v%d", i)}).FirstErr())
	}
	require.Len(t, b.Store().Image().Topic("orders").Partitions, 2)
	cl.Close()
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Ready(context.Background()), ErrClosed)
	require.ErrorIs(t, b.Run(context.Background()), ErrClosed, "a broker runs once")
	meta, err := os.ReadFile(filepath.Join(dir, "meta.properties"))
	require.NoError(t, err)
	for _, line := range []string{"version=1", "cluster.id=" + cluster, "node.id=1", "directory.id="} {
		require.Contains(t, string(meta), line)
	}

	b = startBroker(t, testConfig(dir))
	require.Equal(t, cluster, b.ClusterID())
	cl = client(t, b, kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for n := 0; n < 10; {
		fetches := cl.PollFetches(ctx)
		require.NoError(t, fetches.Err0())
		n += fetches.NumRecords()
	}
}

// A stop while starting is no error, and leaves the directory usable.
func TestBrokerStopWhileStarting(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b, err := New(testConfig(dir))
	require.NoError(t, err)
	require.NoError(t, b.Run(ctx))
	startBroker(t, testConfig(dir))

	b, err = New(testConfig(t.TempDir()))
	require.NoError(t, err)
	require.NoError(t, b.Close(), "never run")
	require.ErrorIs(t, b.Run(context.Background()), ErrClosed)
}

// Two brokers never use one directory; the error names the holder.
func TestBrokerDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	startBroker(t, testConfig(dir))
	err := runError(t, testConfig(dir))
	require.ErrorIs(t, err, ErrDataDirectory)
	require.Contains(t, err.Error(), "is in use by another broker of this process")
	require.Contains(t, err.Error(), "\nfix:   stop that process")
}

// M18 and L11: a cluster is formed only over an empty directory, and a node keeps its id.
func TestBrokerIdentity(t *testing.T) {
	dir := t.TempDir()
	c := testConfig(dir)
	c.NodeID = 5
	b := startBroker(t, c)
	cluster := b.ClusterID()
	require.EqualValues(t, 5, b.NodeID())
	cl := client(t, b)
	require.NoError(t, cl.ProduceSync(context.Background(), &kgo.Record{Topic: "orders", Value: []byte("v")}).FirstErr())
	require.NoError(t, b.Close())

	c.NodeID = 6
	err := runError(t, c)
	require.ErrorIs(t, err, ErrDataDirectory)
	require.Contains(t, err.Error(), "belongs to node 5")

	// The records belong to another directory than meta.properties says.
	meta := filepath.Join(dir, "meta.properties")
	text, err := os.ReadFile(meta)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(meta, []byte(strings.Replace(string(text), "directory.id=", "directory.id=x", 1)), 0o600))
	require.ErrorContains(t, runError(t, testConfig(dir)), "is not the one that meta.properties was written for")

	// Metadata of another cluster.
	require.NoError(t, os.WriteFile(meta, []byte(strings.Replace(string(text), cluster, "another-cluster", 1)), 0o600))
	err = runError(t, testConfig(dir))
	require.ErrorContains(t, err, "another-cluster")
	require.ErrorContains(t, err, cluster)

	require.NoError(t, os.WriteFile(meta, []byte("version=1\nnode.id=5\n"), 0o600))
	require.ErrorContains(t, runError(t, testConfig(dir)), "meta.properties is damaged")

	// The metadata is gone: no new cluster over old records, with or without meta.properties.
	require.NoError(t, os.WriteFile(meta, text, 0o600))
	require.NoError(t, os.Rename(filepath.Join(dir, "raft"), filepath.Join(dir, "kept")))
	require.ErrorContains(t, runError(t, testConfig(dir)), "has no metadata")
	require.NoError(t, os.Remove(meta))
	require.ErrorContains(t, runError(t, testConfig(dir)), "holds records without the metadata")

	// Everything back: it starts as node 5 without being told.
	require.NoError(t, os.WriteFile(meta, text, 0o600))
	require.NoError(t, os.Rename(filepath.Join(dir, "kept"), filepath.Join(dir, "raft")))
	b = startBroker(t, testConfig(dir))
	require.EqualValues(t, 5, b.NodeID())
	require.Equal(t, cluster, b.ClusterID())
}

// A directory that Apache Kafka wrote is told apart.
func TestBrokerKafkaDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "__cluster_metadata-0"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "meta.properties"), []byte("version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\nnode.id=1\ndirectory.id=abc\n"), 0o600))
	require.ErrorContains(t, runError(t, testConfig(dir)), "written by Apache Kafka")
}

// A busy port is an error with the holder, before anything is served.
func TestBrokerPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c := testConfig(t.TempDir())
	c.Listeners[0].Bind = l.Addr().String()
	err = runError(t, c)
	require.ErrorIs(t, err, ErrAddress)
	require.Contains(t, err.Error(), "is taken by this process")
	c = testConfig(t.TempDir())
	c.HTTPListener = l.Addr().String()
	require.ErrorContains(t, runError(t, c), "millrace.http.listener")
}

// L2, W17: when the disk fails, the broker ends with the reason, and does not say that it is alive meanwhile.
func TestBrokerEndsWhenTheDirectoryFails(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.OS())
	c := testConfig(t.TempDir())
	c.Log.FS = faulty
	b, err := New(c)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.Run(context.Background()) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, b.Ready(ctx))
	cl := client(t, b, kgo.DisableIdempotentWrite())
	require.NoError(t, cl.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: []byte("v")}).FirstErr())
	faulty.Inject(vfs.Fault{Op: vfs.OpSync, Err: vfs.ErrIO, Times: -1})
	produced := make(chan error, 1)
	producing, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() {
		produced <- cl.ProduceSync(producing, &kgo.Record{Topic: "orders", Value: []byte("v")}).FirstErr()
	}()
	select {
	case err := <-done:
		require.ErrorIs(t, err, vfs.ErrIO)
		require.ErrorContains(t, err, "the log directory "+c.DataDir)
	case <-ctx.Done():
		t.Fatal("the broker did not end")
	}
	require.NotEmpty(t, b.live())
	giveUp()
	require.Error(t, <-produced, "an unsynced record is never acknowledged")
}

// Whatever a part's failure hook reports ends Run with that error.
func TestBrokerFailureHook(t *testing.T) {
	b, err := New(testConfig(t.TempDir()))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.Run(context.Background()) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, b.Ready(ctx))
	broken := errors.New("fsync: input/output error")
	b.fail("the log directory", broken)
	b.fail("the metadata store", errors.New("second"))
	select {
	case err := <-done:
		require.ErrorIs(t, err, broken)
		require.Contains(t, err.Error(), "the log directory failed")
	case <-ctx.Done():
		t.Fatal("the broker did not end")
	}
	require.NotEmpty(t, b.live())
}

// Several listeners answer with the address that was advertised for the one that was asked.
func TestBrokerListeners(t *testing.T) {
	c := testConfig(t.TempDir())
	c.Listeners = append(c.Listeners, transport.ListenerConfig{Name: "EXTERNAL", Protocol: transport.Plaintext, Bind: "127.0.0.1:0", AdvertisedHost: "kafka.example.com", AdvertisedPort: 443})
	b := startBroker(t, c)
	ask := func(address string) string {
		cl, err := kgo.NewClient(kgo.SeedBrokers(address))
		require.NoError(t, err)
		defer cl.Close()
		resp, err := kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), cl)
		require.NoError(t, err)
		require.Len(t, resp.Brokers, 1)
		return fmt.Sprintf("%s:%d", resp.Brokers[0].Host, resp.Brokers[0].Port)
	}
	require.Equal(t, b.Addrs()["PLAINTEXT"].String(), ask(b.Addrs()["PLAINTEXT"].String()))
	require.Equal(t, "kafka.example.com:443", ask(b.Addrs()["EXTERNAL"].String()))
	registered := b.Store().Image().Broker(1).Listeners
	require.Equal(t, metadata.Listener{Name: "EXTERNAL", Host: "kafka.example.com", Port: 443, Protocol: "PLAINTEXT"}, registered[1])
}

func TestNewRefusesBadConfigs(t *testing.T) {
	c := testConfig("")
	_, err := New(c)
	require.ErrorContains(t, err, "no data directory")
	c = testConfig(t.TempDir())
	c.Listeners = nil
	_, err = New(c)
	require.ErrorContains(t, err, "no listener")
	c = testConfig("/proc/none/of/this")
	require.ErrorIs(t, runError(t, c), ErrDataDirectory)
}

// A TLS listener out of settings: key and chain in one PEM file, client certificates required on one listener only.
func TestBrokerTLS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.pem")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	text := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	require.NoError(t, os.WriteFile(file, text, 0o600))

	c, err := FromSettings(set(t, "listeners=SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0", "listener.security.protocol.map=SSL:SSL,MUTUAL:SSL", "ssl.keystore.location="+file,
		"listener.name.mutual.ssl.client.auth=required", "listener.name.mutual.ssl.truststore.location="+file), Options{DataDir: t.TempDir()})
	require.NoError(t, err)
	base := testConfig(c.DataDir)
	base.Listeners = c.Listeners
	b := startBroker(t, base)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(text))
	ask := func(listener string, certificates ...tls.Certificate) error {
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs()[listener].String()), kgo.DialTLSConfig(&tls.Config{RootCAs: pool, Certificates: certificates}), kgo.RequestRetries(0))
		require.NoError(t, err)
		defer cl.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return cl.Ping(ctx)
	}
	pair, err := tls.X509KeyPair(text, text)
	require.NoError(t, err)
	require.NoError(t, ask("SSL"))
	require.Error(t, ask("MUTUAL"), "without a certificate")
	require.NoError(t, ask("MUTUAL", pair))
}
