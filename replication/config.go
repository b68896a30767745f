package replication

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/log"
	"github.com/millrace/millrace/log/vfs"
	"github.com/millrace/millrace/metadata"
)

// Metadata is where a Manager learns what it has to do; *metadata.Store is the one that brokers use.
type Metadata interface {
	// Image returns the newest committed metadata, never nil and never older than one returned before.
	Image() *metadata.Image
	// Watch tells when there is a newer one.
	Watch() *metadata.Watcher
}

// Config configures a Manager. Start from [Default].
type Config struct {
	// BrokerID is this broker.
	BrokerID metadata.BrokerID
	// Incarnation is that of this process's registration: no replica starts before the metadata shows the broker
	// registered under it (M16).
	Incarnation [16]byte
	// Dir holds the logs. The manager uses it but does not close it.
	Dir *log.Dir
	// FS is the file system of Dir, for the high watermark checkpoint. Default vfs.OS().
	FS vfs.FS
	// Store is the metadata.
	Store Metadata
	// BrokerConfig returns the broker's effective configuration, which topics inherit: only keys that were set. It is
	// asked again after each change of the metadata. Nil: none.
	BrokerConfig func() map[string]string
	// Logger gets one line per role change, creation, deletion and failure. Default slog.Default().
	Logger *slog.Logger
	// Registerer gets the collectors of metrics.go; nil registers nothing.
	Registerer prometheus.Registerer
	// PartitionMetrics is millrace.metrics.partition.level: "auto" exports series per partition while this broker leads
	// at most 2,000, "always", "never".
	PartitionMetrics string

	// TickInterval is the pause between two ticks of the log directory: rolls, retention, background syncs.
	TickInterval time.Duration
	// CheckpointInterval is the pause between two writes of the high watermark checkpoint
	// (replica.high.watermark.checkpoint.interval.ms).
	CheckpointInterval time.Duration
	// RetryInterval is the pause before a partition that could not be opened or created is tried again.
	RetryInterval time.Duration
	// ReplicaLagMax is replica.lag.time.max.ms.
	ReplicaLagMax time.Duration
	// FetchTimeout is how long a follower waits for an answer before it asks again.
	FetchTimeout time.Duration
	// Workers bounds the logs that are created or deleted at once.
	Workers int

	// OnFailure is called once when the broker cannot go on: the log directory is poisoned (L2), or another process has
	// registered under this broker's id (M13). It must not wait for the manager's Close.
	OnFailure func(error)
}

// Default returns the configuration of a production broker; BrokerID, Dir and Store are the caller's to fill in.
func Default() Config {
	return Config{
		FS:                 vfs.OS(),
		PartitionMetrics:   "auto",
		TickInterval:       time.Second,
		CheckpointInterval: 5 * time.Second,
		RetryInterval:      5 * time.Second,
		ReplicaLagMax:      30 * time.Second,
		FetchTimeout:       5 * time.Second,
		Workers:            8,
	}
}

// Validate checks the fields and fills those that have an obvious default.
func (c *Config) Validate() error {
	if c.FS == nil {
		c.FS = vfs.OS()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.BrokerConfig == nil {
		c.BrokerConfig = func() map[string]string { return nil }
	}
	if c.OnFailure == nil {
		c.OnFailure = func(error) {}
	}
	if c.PartitionMetrics == "" {
		c.PartitionMetrics = "auto"
	}
	var errs []error
	if c.Dir == nil || c.Store == nil {
		errs = append(errs, errors.New("replication: Dir and Store are needed"))
	}
	if c.BrokerID < 0 {
		errs = append(errs, fmt.Errorf("replication: broker id %d is negative", c.BrokerID))
	}
	positive := func(name string, d time.Duration) {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("replication: %s must be positive, is %v", name, d))
		}
	}
	positive("TickInterval", c.TickInterval)
	positive("CheckpointInterval", c.CheckpointInterval)
	positive("RetryInterval", c.RetryInterval)
	positive("ReplicaLagMax", c.ReplicaLagMax)
	positive("FetchTimeout", c.FetchTimeout)
	if c.Workers <= 0 {
		errs = append(errs, fmt.Errorf("replication: Workers must be positive, is %d", c.Workers))
	}
	switch c.PartitionMetrics {
	case "auto", "always", "never":
	default:
		errs = append(errs, fmt.Errorf("replication: PartitionMetrics is %q, must be auto, always or never", c.PartitionMetrics))
	}
	return errors.Join(errs...)
}
