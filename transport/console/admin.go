package console

import (
	"context"
	"time"

	"github.com/millrace/millrace/metadata"
	"github.com/millrace/millrace/replication"
)

// Admin is what the admin API calls: the parts of a broker, given by SetAdmin once they are open. All methods may be
// called from any goroutine. Refusals that a person can mend are *metadata.Error.
type Admin struct {
	// BrokerID is this broker.
	BrokerID metadata.BrokerID
	Cluster  Cluster
	Quorum   Quorum
	// Balancer may be nil: then the routes of rebalance answer that there is none.
	Balancer Balancer
	// Replicas are those of this broker.
	Replicas Replicas
	// Peers asks other brokers; nil when there are none.
	Peers Peers
	// Groups asks the coordinators of groups; nil when there are none.
	Groups Groups
	// Patience is instead of GroupPatience, unless 0: tests have less.
	Patience time.Duration
	// MinISR returns how many replicas of a partition of a topic must be in sync for acks=all, by the configuration of now.
	MinISR func() func(t *metadata.Topic) int
}

// Cluster is the metadata and the orders given to it; *metadata.Store is one. Orders may be given at any broker.
type Cluster interface {
	Image() *metadata.Image
	SetMaintenance(ctx context.Context, id metadata.BrokerID, on bool) error
	Decommission(ctx context.Context, id metadata.BrokerID, on bool) error
	UnregisterBroker(ctx context.Context, id metadata.BrokerID) error
	// UpdateFeatureLevel finalizes a feature level (D17).
	UpdateFeatureLevel(ctx context.Context, level uint32) error
	// PlanRecovery says what electing leaders of partitions that have none would mean; Recover does it, exactly as planned.
	PlanRecovery(ctx context.Context, partitions []metadata.TopicPartition) ([]metadata.Recovery, error)
	Recover(ctx context.Context, orders []metadata.RecoveryOrder) []metadata.ElectionResult
}

// Quorum is the Raft group behind the metadata. Orders may be given at any broker; they change the committed
// configuration, one server at a time (M15).
type Quorum interface {
	Quorum(ctx context.Context) (QuorumStatus, error)
	AddServer(ctx context.Context, id metadata.BrokerID) error
	RemoveServer(ctx context.Context, id metadata.BrokerID) error
	TransferLeadership(ctx context.Context, to metadata.BrokerID) error
}

// Balancer plans and makes moves; it runs at the controller, and may be asked at any broker.
type Balancer interface {
	// PlanBalance says what RunBalance would do now, and changes nothing.
	PlanBalance(ctx context.Context) (*metadata.BalancerPlan, error)
	// RunBalance plans and begins. It returns once the plan is committed, not once it is done.
	RunBalance(ctx context.Context) (*metadata.BalancerPlan, error)
	// BalanceStatus says what is under way, or was last: moves that have ended stay listed until the next plan.
	BalanceStatus(ctx context.Context) (*metadata.BalancerStatus, error)
	// CancelBalance drops what waits and takes back what moves. It returns how many moves it ended.
	CancelBalance(ctx context.Context) (int, error)
}

// Replicas is what this broker knows of the logs it holds; cmd/broker makes one of *replication.Manager.
type Replicas interface {
	// ReplicaState describes this broker's replica of a partition; false when it has none.
	ReplicaState(topic metadata.TopicID, partition int32) (ReplicaState, bool)
	LogDirs() []replication.LogDir
}

// Peers asks another broker for what only that one knows.
type Peers interface {
	ReplicaState(ctx context.Context, broker metadata.BrokerID, topic metadata.TopicID, partition int32) (ReplicaState, bool, error)
}

// ReplicaState is one replica as its own broker sees it.
type ReplicaState struct {
	Broker         int32  `json:"broker" doc:"whose replica"`
	Role           string `json:"role" doc:"leader, follower, or why it is neither"`
	LeaderEpoch    int32  `json:"leader_epoch" doc:"the leader epoch it acts in; -1 before any"`
	LogStartOffset int64  `json:"log_start_offset" doc:"first offset it has"`
	HighWatermark  int64  `json:"high_watermark" doc:"first offset not known to be committed"`
	LogEndOffset   int64  `json:"log_end_offset" doc:"next offset to be written"`
	DurableOffset  int64  `json:"durable_offset" doc:"first offset not known to be on disk"`
	SizeBytes      int64  `json:"size_bytes" doc:"size of its segments"`
	Trouble        string `json:"trouble" doc:"why it does not work; empty when it does"`
	// Followers are known to a leader only.
	Followers []FollowerState `json:"followers" doc:"what a leader knows of its followers"`
}

// FollowerState is a follower as its leader sees it.
type FollowerState struct {
	Broker       int32      `json:"broker" doc:"whose replica"`
	InSync       bool       `json:"in_sync" doc:"whether it is in the ISR"`
	LogEndOffset int64      `json:"log_end_offset" doc:"up to where it has fetched; -1 while unknown"`
	LagRecords   int64      `json:"lag_records" doc:"how far behind the leader's end; -1 while unknown"`
	CaughtUp     *time.Time `json:"caught_up" doc:"when it last had all; null when it never had in this leader epoch"`
	Fetched      *time.Time `json:"fetched" doc:"when it last asked; null when it never did in this leader epoch"`
}

// QuorumStatus is the Raft group as one of its servers sees it.
type QuorumStatus struct {
	Leader int32 `json:"leader" doc:"broker id; -1 while there is none"`
	Term   int64 `json:"term" doc:"Raft term"`
	// CommitIndex and LastIndex are those of the leader.
	CommitIndex int64 `json:"commit_index" doc:"last committed entry"`
	LastIndex   int64 `json:"last_index" doc:"last entry of the leader's log"`
	// Size is millrace.quorum.size.
	Size    int            `json:"size" doc:"how many voters there are to be"`
	Servers []QuorumServer `json:"servers" doc:"each server"`
}

// QuorumServer is one server of the Raft group.
type QuorumServer struct {
	Broker  int32  `json:"broker" doc:"broker id"`
	Server  string `json:"server" doc:"Raft server id: broker id and directory id"`
	Address string `json:"address" doc:"its listener for other brokers"`
	Voter   bool   `json:"voter" doc:"whether it votes"`
	Leader  bool   `json:"leader" doc:"whether it leads"`
	Healthy bool   `json:"healthy" doc:"whether the leader has heard of it lately"`
	// LastContact is negative while unknown.
	LastContactMS int64 `json:"last_contact_ms" doc:"how long ago the leader heard of it; -1 is unknown"`
	LastIndex     int64 `json:"last_index" doc:"up to where its log is known to reach; -1 is unknown"`
	Lag           int64 `json:"lag" doc:"entries behind the leader; -1 is unknown"`
	DiskHangMS    int64 `json:"disk_hang_ms" doc:"for how long its disk has not come back with a write; 0 when it does, or is unknown"`
}

// majority is how many voters must be there for anything to be committed.
func (q *QuorumStatus) majority() int { return q.voters()/2 + 1 }

func (q *QuorumStatus) voters() (n int) {
	for _, s := range q.Servers {
		if s.Voter {
			n++
		}
	}
	return n
}
