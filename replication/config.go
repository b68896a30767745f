package replication

import (
	"context"
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
	// AlterPartition asks the controller to change ISRs of partitions this broker leads (KIP-497), and answers each
	// change; see metadata.Store.
	AlterPartition(ctx context.Context, leader metadata.BrokerID, leaderBrokerEpoch int64, changes []metadata.PartitionChange) []metadata.PartitionResult
	// MarkersWritten reports that markers are committed in partitions this broker leads, and calls done, from any goroutine,
	// once Image shows it. With an error the outcome may be open.
	MarkersWritten(markers []metadata.WrittenMarker, done func(err error))
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
	// Peers reaches the brokers to follow. Nil: this broker follows nobody, as one that is alone.
	Peers Peers
	// FetchWait is how long a follower's fetch waits at a leader that has nothing to say (replica.fetch.wait.max.ms); it is
	// never more than a third of ReplicaLagMax, or followers with nothing to fetch would seem to lag.
	FetchWait time.Duration
	// FetchMinBytes is replica.fetch.min.bytes, FetchMaxBytes replica.fetch.response.max.bytes, FetchPartitionBytes
	// replica.fetch.max.bytes.
	FetchMinBytes, FetchMaxBytes, FetchPartitionBytes int
	// FetchRetryMin and FetchRetryMax bound the pause before a partition is fetched again after an error, and before a
	// leader is called again that could not be reached; it doubles from one to the other (replica.fetch.backoff.ms).
	FetchRetryMin, FetchRetryMax time.Duration
	// ProposalTimeout is how long a leader waits for the controller's word on an ISR change before it asks again.
	ProposalTimeout time.Duration
	// SessionTimeout is broker.session.timeout.ms: how long fetches of all other electable replicas stand in for the
	// controller when a leader's lease has lapsed.
	SessionTimeout time.Duration
	// Workers bounds the logs that are created or deleted at once.
	Workers int

	// OnFailure is called once when the broker cannot go on: the log directory is poisoned (L2), or another process has
	// registered under this broker's id (M13). It must not wait for the manager's Close.
	OnFailure func(error)
	// OnPeerFailure is told of each call of a leader that failed, from the fetcher's goroutine: evidence that the broker
	// is gone, or only the way to it (D5). It must not block. Nil: nobody is told.
	OnPeerFailure func(broker metadata.BrokerID, err error)
}

// Default returns the configuration of a production broker; BrokerID, Dir and Store are the caller's to fill in.
func Default() Config {
	return Config{
		FS:                  vfs.OS(),
		PartitionMetrics:    "auto",
		TickInterval:        time.Second,
		CheckpointInterval:  5 * time.Second,
		RetryInterval:       5 * time.Second,
		ReplicaLagMax:       30 * time.Second,
		FetchWait:           500 * time.Millisecond,
		FetchMinBytes:       1,
		FetchMaxBytes:       10 << 20,
		FetchPartitionBytes: 1 << 20,
		FetchRetryMin:       20 * time.Millisecond,
		FetchRetryMax:       time.Second,
		ProposalTimeout:     10 * time.Second,
		SessionTimeout:      9 * time.Second,
		Workers:             8,
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
	positive("FetchWait", c.FetchWait)
	positive("FetchRetryMin", c.FetchRetryMin)
	positive("FetchRetryMax", c.FetchRetryMax)
	positive("ProposalTimeout", c.ProposalTimeout)
	positive("SessionTimeout", c.SessionTimeout)
	if c.FetchMinBytes < 0 || c.FetchMaxBytes <= 0 || c.FetchPartitionBytes <= 0 {
		errs = append(errs, fmt.Errorf("replication: fetch sizes must be positive, are %d, %d and %d", c.FetchMinBytes, c.FetchMaxBytes, c.FetchPartitionBytes))
	}
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
