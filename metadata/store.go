package metadata

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Config says how to open a Store. Start from Default and set at least Dir, NodeID and DirectoryID.
type Config struct {
	// Dir holds everything this package writes: raft.db and the folder snapshots. It is created if missing.
	Dir string
	// NodeID is this broker's id, and with DirectoryID its Raft server id: a node that comes back with an empty directory
	// is another Raft server (M14).
	NodeID      BrokerID
	DirectoryID DirectoryID
	// ClusterID, when not "", is the id the directory must belong to; when bootstrapping, the id to give the new cluster.
	// When "" a bootstrap mints one.
	ClusterID string
	// Bootstrap allows an empty Dir to become a cluster of one. It is ignored when Dir has data.
	Bootstrap bool
	// Transport carries Raft between brokers. Nil = one broker, in-process.
	Transport raft.Transport
	Logger    *slog.Logger
	// Rand makes ids of topics, requests and the cluster. Nil = seeded from the system.
	Rand *rand.Rand
	// OnFailure is called once, with the first error after which this broker's metadata can no longer be trusted to be
	// durable or equal to the others' (M2, M7). The process must stop. Nil panics.
	OnFailure func(error)
	// Registerer gets the millrace_raft_* metrics. Nil = none.
	Registerer prometheus.Registerer

	// NumPartitions and ReplicationFactor are the defaults for topics that ask for -1; ReplicationFactor 0 means
	// min(3, brokers).
	NumPartitions     int32
	ReplicationFactor int16
	// MaxPartitionsPerRequest bounds the partitions that one request may create, 10 000 as in Kafka.
	MaxPartitionsPerRequest int

	// HeartbeatTimeout, ElectionTimeout and LeaderLease are Raft's. The defaults, 50 ms each, are for a lone voter.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration
	// SnapshotEntries is how many entries may follow a snapshot before the next one; SnapshotInterval is how often that is
	// looked at.
	SnapshotEntries  uint64
	SnapshotInterval time.Duration
	// TrailingEntries is how many entries stay in the log behind a snapshot at least. The log always reaches back to the
	// older of the two snapshots that are kept, whatever this says (M6).
	TrailingEntries uint64
}

// Default returns the configuration of a lone voter, without Dir and ids.
func Default() Config {
	return Config{
		NumPartitions:           1,
		MaxPartitionsPerRequest: 10_000,
		HeartbeatTimeout:        50 * time.Millisecond,
		ElectionTimeout:         50 * time.Millisecond,
		LeaderLease:             50 * time.Millisecond,
		SnapshotEntries:         8192,
		SnapshotInterval:        30 * time.Second,
		TrailingEntries:         10_240,
	}
}

// Validate reports the first field that cannot work.
func (c *Config) Validate() error { return nil }

// Store is this broker's copy of the cluster's metadata and its way to change it.
type Store struct {
	cfg   Config
	image atomic.Pointer[Image]
	watch watchers
}

// Open opens or creates the metadata in cfg.Dir and starts Raft. It returns before a leader is known: see Ready.
func Open(cfg Config) (*Store, error) {
	s := &Store{cfg: cfg}
	s.image.Store(&Image{controller: NoBroker, st: newState()})
	return s, nil
}

// Close stops Raft and closes the files. Proposals under way end with ErrTimeout or ErrClosed.
func (s *Store) Close() error { return nil }

// Ready waits until a leader is known and everything committed before is applied here, and, at the leader, until the
// cluster has its id. It returns the reason why that can never happen, or ctx's error.
func (s *Store) Ready(ctx context.Context) error { return nil }

// Image returns the present Image, never nil.
func (s *Store) Image() *Image { return s.image.Load() }

// Watch opens a Watcher.
func (s *Store) Watch() *Watcher { return s.watch.add() }

// IsController reports whether this broker leads the quorum and has applied all that was committed before (M9).
func (s *Store) IsController() bool { return false }

// RegisterBroker registers a broker and returns its new broker epoch. The leader epoch of every partition that it leads
// grows by one, so that nothing written under the old registration can be continued under the same epoch (R14). The
// caller must not start a replica before Image().Broker(id).Epoch is the returned one (M16).
func (s *Store) RegisterBroker(ctx context.Context, r Registration) (epoch int64, err error) {
	return 0, ErrNotController
}

// CreateTopics creates the topics, each by itself, and returns when they can be seen in Image. With validateOnly it
// makes all checks and changes nothing.
func (s *Store) CreateTopics(ctx context.Context, topics []NewTopic, validateOnly bool) []TopicResult {
	return nil
}

// DeleteTopics deletes the topics and leaves tombstones of their ids.
func (s *Store) DeleteTopics(ctx context.Context, topics []TopicRef) []TopicResult { return nil }

// CreatePartitions adds partitions to topics.
func (s *Store) CreatePartitions(ctx context.Context, topics []NewPartitions, validateOnly bool) []TopicResult {
	return nil
}

// AlterConfigs changes configs, each resource by itself. With replaceAll the ops, which must all be ConfigSet, are the
// whole new set of the resource (Kafka's AlterConfigs); otherwise they change single keys (IncrementalAlterConfigs).
func (s *Store) AlterConfigs(ctx context.Context, changes []ConfigChange, replaceAll, validateOnly bool) []error {
	return nil
}

// AllocateProducerIDs reserves a block of producer ids: first … first+count-1. A block is never given out twice, not even
// when its caller dies before using it (P5).
func (s *Store) AllocateProducerIDs(ctx context.Context) (first int64, count int, err error) {
	return 0, 0, ErrNotController
}

// AlterPartition changes ISRs. Broker epoch, leader epoch and partition epoch are compared inside Apply (R11).
func (s *Store) AlterPartition(ctx context.Context, leader BrokerID, leaderBrokerEpoch int64, changes []PartitionChange) []PartitionResult {
	return nil
}
