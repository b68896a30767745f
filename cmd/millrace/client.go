package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/magiconair/properties"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// clientProperties are the keys of Kafka's client.properties that the commands understand, and what a value may be.
var clientProperties = map[string][]string{
	"bootstrap.servers":  nil,
	"client.id":          nil,
	"client.rack":        nil,
	"request.timeout.ms": nil,
	"security.protocol":  {"PLAINTEXT"},
	adminProperty:        nil,
	devPortProperty:      nil,
	devPreviousProperty:  nil,
}

// adminProperty names the addresses of the admin API, host:port,…
const adminProperty = "millrace.admin"

// clientOptions merges a profile's properties, a properties file and -X flags; the later win.
func clientOptions(profile map[string]string, file string, flags []string) (map[string]string, error) {
	options := map[string]string{}
	maps.Copy(options, profile)
	if file != "" {
		values, err := readClientProperties(file, "--command-config FILE")
		if err != nil {
			return nil, err
		}
		maps.Copy(options, values)
	}
	values, err := propertyFlags("-X", flags)
	if err != nil {
		return nil, err
	}
	maps.Copy(options, values)
	return options, checkClientProperties(options)
}

// readClientProperties reads a file of client properties. ${…} stays as it is, as in Kafka.
func readClientProperties(file, fix string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		f := usageError("cannot read the client properties "+file, fix)
		f.why, f.cause = err.Error(), err
		return nil, f
	}
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	p, err := loader.LoadBytes(b)
	if err != nil {
		f := usageError("cannot read the client properties "+file, "one KEY=VALUE a line")
		f.why, f.cause = err.Error(), err
		return nil, f
	}
	return p.Map(), nil
}

// propertyFlags reads repeated KEY=VALUE flags.
func propertyFlags(flag string, pairs []string) (map[string]string, error) {
	values := map[string]string{}
	for _, x := range pairs {
		k, v, ok := strings.Cut(x, "=")
		if !ok || k == "" {
			f := usageError(fmt.Sprintf("%s %s is not KEY=VALUE", flag, x), flag+" client.id=me")
			f.why = "a client property needs a value"
			return nil, f
		}
		values[k] = v
	}
	return values, nil
}

// checkClientProperties refuses properties that nobody knows, and those that would be unsafe to ignore.
func checkClientProperties(options map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(options)) {
		v := options[k]
		values, known := clientProperties[k]
		if !known {
			if isOtherClientProperty(k) {
				continue
			}
			names := slices.Sorted(maps.Keys(clientProperties))
			f := usageError("unknown client property "+k, "leave it out")
			f.why = "known are " + strings.Join(names, ", ")
			if near := nearest(k, names); near != "" {
				f.fix = "did you mean " + near + "?"
			}
			return f
		}
		if values != nil && !slices.Contains(values, v) {
			f := usageError(fmt.Sprintf("client property %s=%s cannot be had", k, v), k+"="+values[0])
			f.why = "TLS and SASL of the command line come in a later release"
			return f
		}
	}
	return nil
}

// isOtherClientProperty says whether a key is one of Kafka's that changes nothing here, so that a client.properties
// written for the Java tools can be used. Security keys are none of them: to ignore one would be unsafe.
func isOtherClientProperty(k string) bool {
	for _, p := range []string{"metadata.", "retry.", "retries", "retry", "reconnect.", "socket.", "send.", "receive.", "connections.", "default.api.", "auto.", "group.", "key.", "value.",
		"acks", "linger.", "batch.", "buffer.", "compression.", "delivery.", "enable.", "max.", "fetch.", "isolation.", "session.", "heartbeat.", "partition", "client.dns", "interceptor.", "metric.", "metrics."} {
		if strings.HasPrefix(k, p) {
			return true
		}
	}
	return false
}

// connection is a client of the cluster, with the reasons why connections failed.
type connection struct {
	*kgo.Client
	adm   *kadm.Client
	fails *dialFailures
}

// connect makes a client and proves that some seed answers, so that a cluster that is down is told at once instead of
// after a time-out. extra are options of the command.
func (e *env) connect(ctx context.Context, extra ...kgo.Opt) (*connection, error) {
	if e.profileErr != nil {
		return nil, e.profileErr
	}
	fails := &dialFailures{}
	clientID := "millrace-cli"
	if id := e.options["client.id"]; id != "" {
		clientID = id
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(e.brokers...),
		kgo.ClientID(clientID),
		kgo.SoftwareNameAndVersion("millrace-cli", binaryVersion()),
		kgo.WithHooks(fails),
		kgo.DialTimeout(min(e.timeout, 5*time.Second)),
		kgo.RetryTimeout(e.timeout),
		kgo.MetadataMinAge(50 * time.Millisecond),
		kgo.DisableClientMetrics(),
	}
	if rack := e.options["client.rack"]; rack != "" {
		options = append(options, kgo.Rack(rack))
	}
	if e.verbose {
		options = append(options, kgo.WithLogger(kgo.BasicLogger(e.stderr, kgo.LogLevelDebug, nil)))
	}
	client, err := kgo.NewClient(append(options, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, e.unreachable(ctx, err)
	}
	adm := kadm.NewClient(client)
	adm.SetTimeoutMillis(int32(e.timeout.Milliseconds()))
	return &connection{Client: client, adm: adm, fails: fails}, nil
}

// unreachable is the failure of connecting to every seed.
func (e *env) unreachable(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	f := &failure{code: exitNoConnection, what: "cannot connect to " + strings.Join(e.brokers, ", "), cause: err}
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		f.why = dialReason(err)
	case ctx.Err() != nil:
		f.code, f.why = exitTimeout, fmt.Sprintf("something accepts connections there, but did not answer within %s", e.timeout)
	default:
		f.why = explain("connect", err).why
	}
	switch {
	case e.named:
		f.fix = "name a broker that runs: -b HOST:PORT"
	default:
		f.fix = "millrace dev   starts a broker here; -b HOST:PORT or MILLRACE_BROKERS names another"
	}
	return f
}

// fail explains an error of a request. When a broker could not be reached at the address it advertises, that is the
// reason, whatever the request's own error says.
func (c *connection) fail(doing string, err error) *failure {
	if f := c.fails.trap(); f != nil && !errors.Is(err, context.Canceled) {
		f.cause = err
		return f
	}
	return explain(doing, err)
}

// dialFailures remembers the last broker that could not be connected to at its advertised address. A broker that was
// reached once is no such: it may be restarting.
type dialFailures struct {
	mu struct {
		sync.Mutex
		reached map[int32]bool
		broker  kgo.BrokerMetadata
		seed    string // an address that did answer
		err     error
		onTrap  func(*failure) // called once, at the first such failure
		patient bool           // a failure that may be a dead broker's is waited on, see trapPatience
	}
}

// trapPatience is how long a broker that refuses connections, and no other that answers, may be taken for one that died:
// another takes over its partitions meanwhile. A name that does not resolve is no dead broker's.
const trapPatience = 5 * time.Second

// sureLocked says whether the failure is that of an address and not of a broker that is down. The lock is held.
func (d *dialFailures) sureLocked() bool {
	var dns *net.DNSError
	return errors.As(d.mu.err, &dns)
}

// arm sets a function that ends a wait early when a broker cannot be reached at its advertised address. It is called at
// once when that has happened already.
func (d *dialFailures) arm(onTrap func(*failure)) {
	d.mu.Lock()
	d.mu.onTrap = onTrap
	failed := d.mu.err != nil
	d.mu.Unlock()
	if failed {
		d.spring()
	}
}

// spring tells who is waiting, if the failure is sure to be one of addresses; else once it has lasted for trapPatience.
func (d *dialFailures) spring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.onTrap == nil || d.mu.err == nil {
		return
	}
	if d.sureLocked() {
		d.callLocked()
		return
	}
	if !d.mu.patient {
		d.mu.patient = true
		time.AfterFunc(trapPatience, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.mu.patient = false
			if d.mu.err != nil && len(d.mu.reached) == 0 {
				d.callLocked()
			}
		})
	}
}

// callLocked calls onTrap, once. The lock is held.
func (d *dialFailures) callLocked() {
	if onTrap := d.mu.onTrap; onTrap != nil {
		d.mu.onTrap = nil
		go func() {
			if f := d.trap(); f != nil { // it may have been reached meanwhile
				onTrap(f)
			}
		}()
	}
}

// OnBrokerConnect is called by the client after each try to connect.
func (d *dialFailures) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.reached == nil {
		d.mu.reached = map[int32]bool{}
	}
	address := net.JoinHostPort(meta.Host, fmt.Sprint(meta.Port))
	switch {
	case err == nil && meta.NodeID < 0:
		d.mu.seed = address
	case err == nil:
		d.mu.reached[meta.NodeID] = true
		if d.mu.broker.NodeID == meta.NodeID {
			d.mu.err = nil
		}
	case meta.NodeID >= 0 && !errors.Is(err, context.Canceled) && !d.mu.reached[meta.NodeID]:
		var dial *net.OpError
		if !errors.As(err, &dial) {
			return
		}
		d.mu.broker, d.mu.err = meta, err
		go d.spring()
	}
}

// trap returns the failure of the advertised address trap, nil when there was none.
func (d *dialFailures) trap() *failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.err == nil || len(d.mu.reached) > 0 && !d.sureLocked() {
		return nil // none, or one broker of several is down
	}
	b := d.mu.broker
	why := dialReason(d.mu.err)
	if i := strings.IndexByte(why, ':'); i > 0 {
		why = why[:i] // "connection refused", "no answer in time"
	}
	if strings.HasPrefix(why, "the name ") {
		why = "that name does not resolve here"
	}
	seed := d.mu.seed
	if seed == "" {
		seed = "another broker"
	}
	return &failure{
		code: exitNoConnection,
		what: fmt.Sprintf("broker %d told me to connect to %s:%d, and %s", b.NodeID, b.Host, b.Port, why),
		why:  fmt.Sprintf("I reached the cluster through %s, but clients are always redirected to advertised.listeners", seed),
		fix:  fmt.Sprintf("on broker %d set  advertised.listeners=PLAINTEXT://<address clients can reach>:%d    (containers: one listener inside, one outside)", b.NodeID, b.Port),
	}
}

var _ kgo.HookBrokerConnect = (*dialFailures)(nil)
