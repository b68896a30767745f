package metadata

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// Config says how to open a Store. Start from Default and set at least Dir, NodeID, DirectoryID and OnFailure.
type Config struct {
	// Dir holds everything this package writes: raft.db, raft-log and the folders of snapshots. It is created if missing.
	Dir string
	// NodeID is this broker's id, and with DirectoryID its Raft server id: a node that comes back with an empty directory
	// is another Raft server (M14).
	NodeID      BrokerID
	DirectoryID DirectoryID
	// ClusterID, when not "", is the id the directory must belong to; when bootstrapping, the id to give the new cluster.
	// When "" a bootstrap mints one.
	ClusterID string
	// FeatureLevel is the level at which a new cluster begins. 0 is MaxFeatureLevel; less makes a cluster as an older
	// release leaves it, for tests of what an upgrade brings.
	FeatureLevel uint32
	// Bootstrap allows an empty Dir to become a new cluster (M18): of BootstrapServers, who must have agreed to it, else of
	// this broker alone. It is ignored when Dir has data.
	Bootstrap bool
	// BootstrapServers form the new cluster, this broker among them; it and those with the lowest ids vote, up to QuorumSize.
	// The others open with Bootstrap false, and wait to be contacted.
	BootstrapServers []Server
	// Founded says that this directory has been part of a cluster: a metadata folder without anything in it has lost it, and
	// is refused.
	Founded bool
	// QuorumSize is millrace.quorum.size: up to how many servers vote (D2).
	QuorumSize int
	// Moved is asked when the Raft configuration has this server at another address than Transport's, before Raft starts:
	// an error says that a process with this server's id lives there, so that this one must be a copy of it (M13). Nil
	// asks nobody.
	Moved func(from string) error
	// Transport carries Raft between brokers. Nil = one broker, in-process. A Transport with a Close method is closed with
	// the Store.
	Transport raft.Transport
	// Logger gets this package's and Raft's messages. Nil = none.
	Logger *slog.Logger
	// Rand makes ids of topics, requests and the cluster; it is used under a lock. Nil = seeded from the system.
	Rand *rand.Rand
	// OnFailure is called once, with the first error after which this broker's metadata can no longer be trusted to be
	// durable or equal to the others' (M2, M7). The process must stop. It is called with locks of Raft held: it must not
	// call the Store. Nil panics.
	OnFailure func(error)
	// Registerer gets the millrace_raft_* metrics. Nil = none.
	Registerer prometheus.Registerer

	// StaticConfig are the broker configs from the properties file, the environment and --set. num.partitions and
	// default.replication.factor are taken from it (and from the dynamic configs), and it decides what a topic's
	// min.insync.replicas is by default.
	StaticConfig map[string]string
	// MaxPartitionsPerRequest bounds the partitions that one request may create, 10 000 as in Kafka.
	MaxPartitionsPerRequest int

	// Forwarder carries operations to the controller when this broker is not it (D15). Nil = this broker is alone.
	Forwarder Forwarder
	// Probe asks the process behind a registration, over one connection to its PeerAddress, whether it lives. Nil means
	// that it answered and has b's incarnation; the error of a process that refused the connection, or that is another
	// one, should come at once. The controller gives it 150 ms before it fences a broker, and before it gives a broker's id
	// to another process (M13). Nil = nobody else can be alive.
	Probe func(ctx context.Context, b *Broker) error
	// LogEnds asks a live broker how far its replicas reach, for an unclean election. Nil = elections go by the order of
	// the replicas, the last known leader first.
	LogEnds func(ctx context.Context, b *Broker, partitions []TopicPartition) ([]LogEnd, error)
	// Drain asks a live broker that leads partitions to hold back what is produced to them until their in-sync followers have
	// all of it, so that an election right after cuts nobody off. The holding ends by itself a moment later. Nil = elections
	// of preferred leaders don't wait.
	Drain func(ctx context.Context, leader *Broker, partitions []TopicPartition) error
	// ReplicaBytes asks a live broker how large its copies of partitions are, -1 for one that it has not, so that the balancer
	// can say how far moves are. Nil = it can't.
	ReplicaBytes func(ctx context.Context, b *Broker, partitions []TopicPartition) ([]int64, error)
	// Balance runs the balancer while this broker is the controller. Orders are carried out without it too, but nothing
	// begins their moves.
	Balance bool
	// SessionTimeout is broker.session.timeout.ms: after how long without a heartbeat a broker is fenced.
	SessionTimeout time.Duration
	// HeartbeatInterval is broker.heartbeat.interval.ms: how often a broker should send a heartbeat. This package itself
	// sends none.
	HeartbeatInterval time.Duration

	// HeartbeatTimeout, ElectionTimeout and LeaderLease are Raft's. A broker alone does not wait for them. A leader sends heartbeats
	// each 15 to 30 % of HeartbeatTimeout (see Store.pace): LeaderLease should be longer than two of them, and less
	// than HeartbeatTimeout, so that a leader that is cut off is none any more when another can be elected.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration
	// SnapshotEntries is how many entries may follow a snapshot before the next one; SnapshotInterval is how often that is
	// looked at.
	SnapshotEntries  uint64
	SnapshotInterval time.Duration
	// TrailingEntries is how many entries stay in the log behind a snapshot at least, at least 1. The log always reaches
	// back to the older of the two snapshots that are kept, whatever this says (M6).
	TrailingEntries uint64

	// BallastBytes of disk space are set aside for the Raft log, for the day the disk is full (L13). 0 = none.
	BallastBytes int64

	// wrapLogs lets tests put a failing log under the guard.
	wrapLogs func(raft.LogStore) raft.LogStore
	// holdWrites lets tests hang the disk: it is called before each write of Raft's log, term and vote.
	holdWrites func()
	// segmentBytes lets tests have small segments; 0 = raftlog.DefaultSegmentBytes. moveStep is called before each step of moving an
	// earlier version's entries.
	segmentBytes int
	moveStep     func(step string) error
	// commitTimeout lets tests do without Raft's own news of a commit; 0 = 250 ms.
	commitTimeout time.Duration
	// joinSettles lets tests have the balancer act at once; 0 = after five seconds.
	joinSettles time.Duration
}

// Default returns a configuration without Dir and ids.
func Default() Config {
	return Config{
		QuorumSize:              3,
		MaxPartitionsPerRequest: 10_000,
		HeartbeatTimeout:        500 * time.Millisecond,
		ElectionTimeout:         500 * time.Millisecond,
		LeaderLease:             350 * time.Millisecond,
		SessionTimeout:          9 * time.Second,
		HeartbeatInterval:       2 * time.Second,
		SnapshotEntries:         4096,
		SnapshotInterval:        5 * time.Second,
		TrailingEntries:         4096,
		BallastBytes:            8 << 20,
	}
}

// Validate reports the first field that can't work.
func (c *Config) Validate() error {
	switch {
	case c.Dir == "":
		return errors.New("metadata config: Dir is not set")
	case c.NodeID < 0:
		return fmt.Errorf("metadata config: NodeID %d is negative", c.NodeID)
	case c.DirectoryID == DirectoryID{}:
		return errors.New("metadata config: DirectoryID is not set")
	case c.QuorumSize < 1:
		return fmt.Errorf("metadata config: QuorumSize %d", c.QuorumSize)
	case c.MaxPartitionsPerRequest < 1:
		return fmt.Errorf("metadata config: MaxPartitionsPerRequest %d", c.MaxPartitionsPerRequest)
	case c.SessionTimeout <= 0 || c.HeartbeatInterval <= 0 || c.HeartbeatInterval > c.SessionTimeout/2:
		return fmt.Errorf("metadata config: SessionTimeout %v with HeartbeatInterval %v", c.SessionTimeout, c.HeartbeatInterval)
	case c.TrailingEntries < 1:
		return errors.New("metadata config: TrailingEntries must be at least 1")
	case c.SnapshotEntries < 1:
		return errors.New("metadata config: SnapshotEntries must be at least 1")
	}
	return nil
}

func (c *Config) raftConfig() *raft.Config {
	rc := raft.DefaultConfig()
	rc.LocalID = serverID(c.NodeID, c.DirectoryID)
	rc.HeartbeatTimeout = c.HeartbeatTimeout
	rc.ElectionTimeout = c.ElectionTimeout
	rc.LeaderLeaseTimeout = c.LeaderLease
	// Followers hear that an entry is committed from the announcer; those that it does not reach, with Raft's next message,
	// which comes after this time when nothing more is proposed. With Raft's own 50 ms, it is half of what Raft does at rest.
	rc.CommitTimeout = cmp.Or(c.commitTimeout, 250*time.Millisecond)
	rc.MaxAppendEntries = messageEntries
	rc.SnapshotThreshold = c.SnapshotEntries
	rc.SnapshotInterval = c.SnapshotInterval
	rc.TrailingLogs = c.TrailingEntries
	rc.NoSnapshotRestoreOnStart = true // recoverState has done it
	rc.NoLegacyTelemetry = true
	rc.Logger = newRaftLogger(c.Logger)
	return rc
}

// serverID is the Raft server id of a node with a directory (M14).
func serverID(id BrokerID, dir DirectoryID) raft.ServerID {
	return raft.ServerID(fmt.Sprintf("%d-%s", id, hex.EncodeToString(dir[:])))
}

// directoryOf returns the directory that a Raft server id names, zero for none.
func directoryOf(id raft.ServerID) (dir DirectoryID) {
	_, text, _ := strings.Cut(string(id), "-")
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(dir) {
		copy(dir[:], b)
	}
	return dir
}

// brokerOf returns the broker a Raft server id belongs to, NoBroker for none.
func brokerOf(id raft.ServerID) BrokerID {
	number, _, _ := strings.Cut(string(id), "-")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return NoBroker
	}
	return BrokerID(n)
}
