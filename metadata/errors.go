package metadata

import "errors"

// Sentinels of this package. Errors returned by Store match them with errors.Is; their text says what was asked, why it
// was refused and what mends it (see Error). Only transport/kafka/errors.go maps them to Kafka's codes.
//
// All but ErrTimeout are definite: nothing was changed. ErrTimeout is indefinite: the change may or may not happen, now
// or later (M11).
var (
	ErrTopicExists              = errors.New("topic already exists")
	ErrUnknownTopic             = errors.New("unknown topic")
	ErrUnknownTopicID           = errors.New("unknown topic id")
	ErrUnknownPartition         = errors.New("unknown partition")
	ErrUnknownBroker            = errors.New("unknown broker")
	ErrInvalidTopic             = errors.New("invalid topic name")
	ErrInvalidPartitions        = errors.New("invalid number of partitions")
	ErrInvalidReplicationFactor = errors.New("invalid replication factor")
	ErrInvalidAssignment        = errors.New("invalid replica assignment")
	ErrInvalidConfig            = errors.New("invalid config")
	ErrInvalidRequest           = errors.New("invalid request")
	ErrDuplicateResource        = errors.New("named more than once in one request")
	ErrPolicyViolation          = errors.New("refused by policy")
	ErrNotController            = errors.New("not the controller")
	ErrStale                    = errors.New("state has changed meanwhile")
	ErrStaleBrokerEpoch         = errors.New("stale broker epoch")
	ErrFencedLeaderEpoch        = errors.New("fenced leader epoch")
	ErrIneligibleReplica        = errors.New("ineligible replica")
	ErrDuplicateBroker          = errors.New("another incarnation of this broker is alive")
	ErrTimeout                  = errors.New("outcome unknown")
	ErrBusy                     = errors.New("controller is busy")
	ErrClosed                   = errors.New("metadata store is closed")
	ErrClusterMismatch          = errors.New("data belongs to another cluster")
	ErrCorrupt                  = errors.New("metadata store is damaged")
	ErrFailed                   = errors.New("metadata store has failed")
	ErrRemoved                  = errors.New("removed from the cluster")
	ErrElectionNotNeeded        = errors.New("election not needed")
	ErrPreferredLeaderUnfit     = errors.New("preferred leader not available")
	ErrNoEligibleLeader         = errors.New("no eligible leader available")
	ErrNoReassignment           = errors.New("no reassignment in progress")
	ErrInvalidFeatureLevel      = errors.New("invalid feature level")
	ErrNotCoordinator           = errors.New("not the coordinator")
	ErrGroupNotFound            = errors.New("unknown group")
	ErrGroupNotEmpty            = errors.New("group has members")
	ErrUnknownMember            = errors.New("unknown member")
	ErrFencedInstance           = errors.New("another member has this instance id")
	ErrIllegalGeneration        = errors.New("illegal generation")
	ErrStaleMemberEpoch         = errors.New("stale member epoch")
	ErrProducerFenced           = errors.New("producer is fenced")
	ErrInvalidProducerEpoch     = errors.New("invalid producer epoch")
	ErrInvalidProducerIDMapping = errors.New("producer id is not that of the transactional id")
	ErrInvalidTransactionState  = errors.New("invalid state of the transaction")
	ErrConcurrentTransactions   = errors.New("the transaction before is not complete")
	ErrTransactionNotFound      = errors.New("unknown transactional id")
	// ErrNotSent is what a Forwarder returns when the call has certainly not reached the controller. Callers of a Store
	// see ErrNotController in its place.
	ErrNotSent = errors.New("not sent")
)

// Error is a refusal with the mend in it. Error() gives three lines: what, "why:   …" and "fix:   …", so that a caller
// who prints it after "error: " shows the form that the command line promises.
type Error struct {
	Kind error  // the sentinel, for errors.Is
	What string // what was asked and refused, with ids
	Why  string // the fact that led to the refusal
	Fix  string // what the reader can do
}

// Error returns the three lines.
func (e *Error) Error() string {
	s := e.What
	if e.Why != "" {
		s += "\nwhy:   " + e.Why
	}
	if e.Fix != "" {
		s += "\nfix:   " + e.Fix
	}
	return s
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.Kind }
