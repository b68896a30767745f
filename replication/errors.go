package replication

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/log"
)

// Errors of this package. Those marked definite promise that nothing was appended and nothing ever becomes visible; the
// others leave the outcome open (correctness.md part 2).
var (
	// ErrUnknownTopicOrPartition: the committed metadata has no such topic or partition. Definite.
	ErrUnknownTopicOrPartition = errors.New("unknown topic or partition")
	// ErrUnknownTopicID: the committed metadata has no topic with this id. Definite.
	ErrUnknownTopicID = errors.New("unknown topic id")
	// ErrNotLeader: this broker does not lead the partition (now). Definite: it is returned only when nothing was
	// appended.
	ErrNotLeader = errors.New("not the leader of the partition")
	// ErrOffline: the partition's log could not be opened or has been halted; the log file says why. Definite.
	ErrOffline = errors.New("partition is offline on this broker")
	// ErrFencedLeaderEpoch: the client's leader epoch is older than the partition's. Definite.
	ErrFencedLeaderEpoch = errors.New("leader epoch is older than the partition's")
	// ErrUnknownLeaderEpoch: the client knows a newer leader epoch than this broker does yet. Definite.
	ErrUnknownLeaderEpoch = errors.New("leader epoch is newer than this broker knows")
	// ErrNotEnoughReplicas: the ISR is smaller than min.insync.replicas; found before the append. Definite.
	ErrNotEnoughReplicas = errors.New("fewer in-sync replicas than min.insync.replicas")
	// ErrNotEnoughReplicasAfterAppend: the ISR shrank below min.insync.replicas after the append. Indefinite.
	ErrNotEnoughReplicasAfterAppend = errors.New("fewer in-sync replicas than min.insync.replicas after the append")
	// ErrTimeout: the request's time passed before it was acknowledged; what was appended stays. Indefinite.
	ErrTimeout = errors.New("timed out before the acknowledgement")
	// ErrLeadershipLost: the leader epoch changed while the request waited (R23). It is an ErrTimeout, never an
	// ErrNotLeader: the records were appended. Indefinite.
	ErrLeadershipLost = fmt.Errorf("the leader epoch changed while the request waited: %w", ErrTimeout)
	// ErrDeleted: the partition was deleted or moved away while the request waited. It is an ErrTimeout. Indefinite.
	ErrDeleted = fmt.Errorf("the partition went away while the request waited: %w", ErrTimeout)
	// ErrOffsetNotAvailable: a new leader has not yet committed up to the start of its epoch, so that an answer might
	// go back (R7, I4).
	ErrOffsetNotAvailable = errors.New("the new leader's high watermark has not reached the start of its epoch")
	// ErrUnknownOffsetSpec: a negative timestamp that names no known position.
	ErrUnknownOffsetSpec = errors.New("unknown offset specification")
	// ErrLeaseLapsed: this broker has not heard of the controller for so long that another one may lead (D5, R16). It is
	// an ErrNotLeader, so clients ask who does. Definite.
	ErrLeaseLapsed = fmt.Errorf("the lease of this broker has lapsed: %w", ErrNotLeader)
	// ErrStorage: the log directory failed; the broker is about to stop (L2). Indefinite for an append.
	ErrStorage = errors.New("storage failure")
	// ErrStaleBrokerEpoch: a follower's fetch was made under an earlier registration of its broker (R12).
	ErrStaleBrokerEpoch = errors.New("broker epoch is not the present one")
	// ErrNotReplica: the fetching broker holds no replica of the partition.
	ErrNotReplica = errors.New("not a replica of the partition")
	// ErrInvalidAcks: acks is not -1, 0 or 1. Definite.
	ErrInvalidAcks = errors.New("acks must be -1, 0 or 1")
	// ErrTruncationBelowHighWatermark: following this leader would cut committed records; the replica is halted instead
	// (R25).
	ErrTruncationBelowHighWatermark = errors.New("refusing to truncate below the high watermark")
	// ErrClosed: the manager has been closed. Indefinite for an append.
	ErrClosed = fmt.Errorf("the broker is shutting down: %w", ErrTimeout)
)

// errOutOfRange is the log's own error, which the core answers where it knows the bounds before the log is asked.
var errOutOfRange = log.ErrOffsetOutOfRange
