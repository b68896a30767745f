package broker

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/transport"
	"github.com/millrace/millrace/transport/kafka"
)

// Config is all that a broker is made of. Default has production values; FromSettings fills it from files,
// environment and flags. A test that embeds a broker sets DataDir and, with port 0, Listeners.
type Config struct {
	// NodeID is this broker's id; NoBroker takes the one in meta.properties, or 1 in a fresh directory.
	NodeID metadata.BrokerID
	Rack   string
	// DataDir holds records, metadata and meta.properties. It is created if missing.
	DataDir string
	// MetadataDir holds the Raft log; "" is DataDir. A folder "raft" is made in it.
	MetadataDir string
	// Listeners are where clients connect. At least one.
	Listeners []transport.ListenerConfig
	// Join is where other brokers of the cluster gossip, as host[:port]. Empty, with BootstrapExpect ≤ 1, is a broker that
	// forms a cluster of its own, if its directory is empty.
	Join []string
	// BootstrapExpect is how many empty brokers form a new cluster together; 0 only ever joins one.
	BootstrapExpect int
	// Replace is the id of a dead broker whose place this one takes, NoBroker for none.
	Replace metadata.BrokerID
	// Peers opens this broker to others; nil leaves it alone. It is needed when Join, BootstrapExpect or Replace is set.
	Peers *PeerConfig
	// Progress gets lines for the person who waits for the start, such as which brokers are missing. It may be nil, and
	// must not block.
	Progress func(line string)
	// HTTPListener is the address of health and metrics; "" serves none. HTTP, when not nil, is served instead.
	HTTPListener string
	HTTP         net.Listener
	// Static is what was set by file, environment and flags: the static layer of DescribeConfigs, and what topics
	// inherit.
	Static map[string]string
	// Version is the software's version.
	Version string
	// MemoryLimitBytes is the soft memory limit that TuneProcess sets; ≤ 0 leaves the runtime's.
	MemoryLimitBytes int64
	// StopTimeout bounds how long a stop waits for requests under way.
	StopTimeout time.Duration

	// The parts. The fields that the broker itself fills in (directories, ids, loggers, registerers, failure hooks)
	// are overwritten.
	Log         log.Config
	Metadata    metadata.Config
	Replication replication.Config
	Kafka       kafka.Config
	Transport   transport.Config

	// Logger gets the broker's lines. Default slog.Default().
	Logger *slog.Logger

	// Notes are lines for whoever starts the broker: keys without effect, unknown keys, settings worth a warning.
	Notes []string

	// groupPatience is console.Admin.Patience.
	groupPatience time.Duration
}

// Default returns the configuration of a broker with Kafka's defaults, without directory and listeners.
func Default() Config {
	return Config{
		NodeID:      metadata.NoBroker,
		Replace:     metadata.NoBroker,
		StopTimeout: 30 * time.Second,
		Log:         log.Default(),
		Metadata:    metadata.Default(),
		Replication: replication.Default(),
		Kafka:       kafka.Default(),
		Transport:   transport.Default(),
		Version:     "unknown",
	}
}

// Options are what the command line says beside the settings.
type Options struct {
	// Advertise is the host that clients are told, for every listener without an advertised address of its own. With
	// it, listeners that are not configured are bound to every address.
	Advertise string
	// DataDir is where data goes when log.dirs is not set.
	DataDir string
	// Replace is the id of a dead broker whose place this one takes; 0 and below is none unless Replaces is set.
	Replace  metadata.BrokerID
	Replaces bool
}

// FromSettings turns settings into a Config. Errors match metadata.ErrInvalidConfig and have three lines.
func FromSettings(s *Settings, o Options) (Config, error) {
	c := Default()
	c.Static = s.Static()
	c.Notes = append(c.Notes, s.Warnings...)
	if id := firstSet(s, "node.id", "broker.id"); id != "" {
		n, err := strconv.ParseInt(id, 10, 32)
		if err != nil {
			return c, fmt.Errorf("read node.id: %w", err)
		}
		c.NodeID = metadata.BrokerID(n)
	}
	c.Rack = s.Get("broker.rack")
	dirs := metadata.SplitConfigList(s.Get("log.dirs"))
	if _, ok := s.IsSet("log.dirs"); !ok {
		switch _, single := s.IsSet("log.dir"); {
		case single:
			dirs = metadata.SplitConfigList(s.Get("log.dir"))
		case o.DataDir != "":
			dirs = []string{o.DataDir}
		}
	}
	if len(dirs) != 1 {
		return c, &metadata.Error{
			Kind: metadata.ErrInvalidConfig,
			What: fmt.Sprintf("broker config log.dirs=%s names %d directories", strings.Join(dirs, ","), len(dirs)),
			Why:  "this version keeps its data in one directory",
			Fix:  "name one, and join the disks below it (LVM, RAID, ZFS)",
		}
	}
	c.DataDir = dirs[0]
	c.MetadataDir = s.Get("metadata.log.dir")
	if err := c.setCluster(s, o); err != nil {
		return c, err
	}
	if err := c.setListeners(s, o); err != nil {
		return c, err
	}
	if err := c.setPeers(s, o); err != nil {
		return c, err
	}
	c.HTTPListener = httpAddress(s.Get("millrace.http.listener"))
	c.MemoryLimitBytes = s.number("millrace.memory.limit.bytes")

	c.Log.WAL = s.Get("millrace.wal") == "on"
	c.Log.RetentionInterval = s.duration("log.retention.check.interval.ms")
	c.Log.RecoveryWorkers = int(s.number("num.recovery.threads.per.data.dir"))
	c.Log.ReservePercent = 100 - float64(s.number("millrace.disk.reject.percent"))
	c.Transport.MaxRequestBytes = int(s.number("socket.request.max.bytes"))
	if idle := s.duration("connections.max.idle.ms"); idle > 0 {
		c.Transport.IdleTimeout = idle
	} else {
		c.Transport.IdleTimeout = 100 * 365 * 24 * time.Hour // negative is never
	}
	if n := s.number("queued.max.request.bytes"); n > 0 {
		c.Transport.FrameBudgetBytes = n
	}
	c.Transport.Limits.MaxConnections = limit(s, "max.connections")
	c.Transport.Limits.MaxConnectionsPerIP = limit(s, "max.connections.per.ip")
	if _, err := metadata.ResolveTopicSettings(c.Static, nil); err != nil {
		return c, err
	}
	if lines := s.WithoutEffect(); len(lines) > 0 {
		c.Notes = append(c.Notes, "these settings are accepted and have no effect:")
		for _, l := range lines {
			c.Notes = append(c.Notes, "  "+l)
		}
	}
	return c, nil
}

// limit reads a number of connections; Kafka's 2147483647 is no limit.
func limit(s *Settings, name string) int {
	if n := s.number(name); n < 1<<31-1 {
		return int(n)
	}
	return 0
}

func firstSet(s *Settings, names ...string) string {
	for _, n := range names {
		if _, ok := s.IsSet(n); ok && s.Get(n) != "-1" {
			return s.Get(n)
		}
	}
	return ""
}

func (s *Settings) number(name string) int64 {
	n, err := strconv.ParseInt(s.Get(name), 10, 64)
	if err != nil {
		panic("broker: config " + name + " is not a number after its check: " + err.Error())
	}
	return n
}

// duration reads milliseconds; values beyond a time.Duration are the longest one.
func (s *Settings) duration(name string) time.Duration {
	const longest = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(s.number(name), longest)) * time.Millisecond
}

// thisMachine says whether host:port is this node by one of its own names.
func thisMachine(address string, s *Settings) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return true
	}
	if name, err := os.Hostname(); err == nil && (host == name || strings.HasPrefix(name, host+".")) {
		return true
	}
	for _, l := range metadata.SplitConfigList(s.Get("listeners") + "," + s.Get("advertised.listeners")) {
		if _, h, _, err := metadata.SplitListener(l); err == nil && h == host {
			return true
		}
	}
	return false
}

// httpAddress puts loopback in front of a port without host: health, metrics and profiles are for this machine unless
// somebody says otherwise (S7). "off" is "".
func httpAddress(v string) string {
	switch {
	case v == "off":
		return ""
	case strings.HasPrefix(v, ":"):
		return "127.0.0.1" + v
	}
	return v
}

// Validate reports the first thing that cannot work, and makes the directories absolute.
func (c *Config) Validate() error {
	if c.DataDir == "" {
		return &metadata.Error{Kind: metadata.ErrInvalidConfig, What: "no data directory", Why: "a broker keeps its records in one", Fix: "--data DIR, or log.dirs=DIR"}
	}
	if len(c.Listeners) == 0 {
		return &metadata.Error{Kind: metadata.ErrInvalidConfig, What: "no listener for clients", Why: "listeners names only the controller's", Fix: "listeners=PLAINTEXT://:9092"}
	}
	if err := c.validateCluster(); err != nil {
		return err
	}
	dir, err := filepath.Abs(c.DataDir)
	if err != nil {
		return fmt.Errorf("find the data directory %s: %w", c.DataDir, err)
	}
	c.DataDir = dir
	if c.MetadataDir == "" {
		c.MetadataDir = c.DataDir
	}
	if c.MetadataDir, err = filepath.Abs(c.MetadataDir); err != nil {
		return fmt.Errorf("find the metadata directory: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 30 * time.Second
	}
	return nil
}
